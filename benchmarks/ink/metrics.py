"""Measures texts against held-out ones: MAUVE, perplexity, lengths, and a classifier that learnt from them.

Features come from any encoder, a map of texts to (n, width); `minilm` is a pretrained one. MAUVE is written from its paper:
Pillutla et al., "MAUVE: Measuring the Gap Between Neural Text and Human Text using Divergence Frontiers", 2021.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

Array = Any
"""A float64 array of numpy."""

Encoder = Callable[[Sequence[str]], Array]

SCALINGS: Final = (0.9, 5.0)
"""Scale the divergences: as the InvisibleInk page does, and as the MAUVE paper does."""

_POINTS: Final = 25
"""Mixtures on a frontier."""

_Z: Final = 2.5758293035489004
"""99.5 % quantile of the normal law."""


def minilm(texts: Sequence[str], batch: int = 64) -> Array:
    """Returns features of the MiniLM encoder, the mean of its last states, (n, 384)."""
    from transformers import AutoModel, AutoTokenizer

    from dptrain.tasks.text_classification import minilm_path

    tokenizer, model = AutoTokenizer.from_pretrained(minilm_path()), AutoModel.from_pretrained(minilm_path()).eval()
    found = []
    for first in range(0, len(texts), batch):
        part = list(texts[first : first + batch])
        given = tokenizer(part, padding=True, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            states = model(**given).last_hidden_state
        mask = given["attention_mask"][..., None]
        found.append(((states * mask).sum(1) / mask.sum(1)).double().numpy())
    return np.concatenate(found)


def frontier(p: Array, q: Array, scaling: float) -> Array:
    """Returns exp(-scaling KL(q | r)) and exp(-scaling KL(p | r)) for mixtures r of two histograms, and both ends, (n, 2)."""
    points = [(1.0, 0.0)]
    for weight in np.linspace(1e-6, 1 - 1e-6, _POINTS):
        mixture = weight * p + (1 - weight) * q
        points.append((math.exp(-scaling * _kl(q, mixture)), math.exp(-scaling * _kl(p, mixture))))
    return np.array([*points, (0.0, 1.0)])


def _kl(p: Array, q: Array) -> float:
    held = p > 0
    return float((p[held] * np.log(p[held] / q[held])).sum())


def area(p: Array, q: Array, scaling: float) -> float:
    """Returns the area under the frontier of two histograms: 1 where they are equal, `least` where they share no bin."""
    x, y = frontier(p, q, scaling).T
    return (_below(x, y) + _below(y, x)) / 2


def _below(x: Array, y: Array) -> float:
    order = np.lexsort((-y, x))
    return float(np.trapezoid(y[order], x[order]))


def least(scaling: float) -> float:
    """Returns the area of histograms that share no bin, c B(c + 1, c): .552 at scaling .9 and .004 at 5. No less is possible.

    So scores at scaling .9 lie between .552 and 1.
    """
    return scaling * math.exp(math.lgamma(scaling + 1) + math.lgamma(scaling) - math.lgamma(2 * scaling + 1))


def principal(features: Array, kept: float = 0.9) -> Array:
    """Returns features of unit length in their principal directions, as many as hold ``kept`` of the variance."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    centred = unit - unit.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    held = np.cumsum(values**2) / max(float((values**2).sum()), 1e-300)
    return centred @ directions[: int(np.searchsorted(held, kept)) + 1].T


def clusters(points: Array, bins: int, seed: int = 0, starts: int = 5, rounds: int = 100) -> Array:
    """Returns the bin of each point by k-means, the best of several starts by k-means++."""
    numbers = np.random.default_rng(seed)
    best, labels = math.inf, np.zeros(len(points), dtype=int)
    for _ in range(starts):
        centres = _spread(points, bins, numbers)
        for _ in range(rounds):
            squares = _squares(points, centres)
            found = squares.argmin(1)
            moved = np.stack([points[found == k].mean(0) if (found == k).any() else centres[k] for k in range(bins)])
            if np.array_equal(moved, centres):
                break
            centres = moved
        spread = float(squares.min(1).sum())
        if spread < best:
            best, labels = spread, found
    return labels


def _spread(points: Array, bins: int, numbers: np.random.Generator) -> Array:
    centres = [points[numbers.integers(len(points))]]
    nearest = _squares(points, centres[0][None])[:, 0]
    for _ in range(bins - 1):
        total = nearest.sum()
        place = numbers.choice(len(points), p=nearest / total) if total > 0 else numbers.integers(len(points))
        centres.append(points[place])
        nearest = np.minimum(nearest, _squares(points, points[place][None])[:, 0])
    return np.stack(centres)


def _squares(points: Array, centres: Array) -> Array:
    return np.maximum((points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)[None], 0.0)


def mauve(real: Array, written: Array, scalings: Sequence[float] = SCALINGS, seed: int = 0) -> dict[float, float]:
    """Returns MAUVE by scaling: the area under the frontier of both texts' histograms over N/20 bins of k-means.

    Args:
        real: features of held-out texts that were no references, (N, width). written: of as many texts.

    Raises:
        ValueError: the numbers differ, or there are fewer than 40 of each, which is less than two bins.
    """
    if len(real) != len(written):
        raise ValueError(f"{len(real)} held-out texts beside {len(written)} written ones; give equal numbers")
    bins = round(len(real) / 20)
    if bins < 2:
        raise ValueError(f"{len(real)} texts make {bins} bins of 20; give at least 40 of each")
    labels = clusters(principal(np.concatenate([real, written])), bins, seed)
    p, q = (np.bincount(part, minlength=bins) / len(part) for part in (labels[: len(real)], labels[len(real) :]))
    return {scaling: area(p, q, scaling) for scaling in scalings}


@torch.no_grad()
def perplexities(model: Any, prompts: Sequence[list[int]], texts: Sequence[list[int]], batch: int = 64) -> Array:
    """Returns the perplexity of each text behind its prompt under a causal model, from ids; texts must not be empty."""
    found = []
    for first in range(0, len(texts), batch):
        pairs = list(zip(prompts[first : first + batch], texts[first : first + batch], strict=True))
        longest = max(len(prompt) + len(text) for prompt, text in pairs)
        ids = torch.zeros(len(pairs), longest, dtype=torch.long)
        mask, counted = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool)
        for row, (prompt, text) in enumerate(pairs):
            ids[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text])
            mask[row, : len(prompt) + len(text)] = 1
            counted[row, len(prompt) : len(prompt) + len(text)] = True
        logs = model(input_ids=ids, attention_mask=mask).logits[:, :-1].double().log_softmax(-1)
        each = logs.gather(-1, ids[:, 1:, None])[..., 0] * counted[:, 1:]
        found.append((-each.sum(1) / counted[:, 1:].sum(1)).exp().numpy())
    return np.concatenate(found)


def gaps(written: Array, real: Array) -> dict[str, float]:
    """Returns both gaps of perplexity that go by one name.

    ``page``: mean over texts x of |PPL(x) - mean PPL(real)|, as the InvisibleInk page defines it. ``scripts``: |mean
    PPL(written) - mean PPL(real)|, as its scripts compute it. The first is never smaller.
    """
    return {
        "page": float(np.abs(written - real.mean()).mean()),
        "scripts": float(abs(written.mean() - real.mean())),
    }


def lengths(texts: Sequence[Sequence[int]], width: int = 4) -> dict[int, int]:
    """Returns how many texts have how many tokens, by the least number of each bin of ``width``."""
    return dict(sorted(Counter(len(text) // width * width for text in texts).items()))


@dataclass(frozen=True)
class Interval:
    """Holds a mean, and the half width of its 99 % Wald interval; infinite for a single value."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Returns that of values, one for each seed or each text."""
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.inf
        return cls(float(np.mean(values)), _Z * spread / math.sqrt(len(values)))


def classifier_accuracy(
    features: Array, labels: Sequence[int], real: Array, truth: Sequence[int], decay: float = 1e-3, rounds: int = 100
) -> float:
    """Returns how often logistic regression, which learnt from written texts, is right on held-out ones.

    Args:
        features, labels: of written texts, (n, width) and (n,). real, truth: of held-out texts. decay: of the weights, squared.
    """
    x, y = torch.tensor(features, dtype=torch.float64), torch.tensor(list(labels))
    kinds = max(max(labels), max(truth)) + 1
    weights = torch.zeros(kinds, x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=rounds, line_search_fn="strong_wolfe")

    def scores(given: torch.Tensor) -> torch.Tensor:
        return given @ weights[:, :-1].T + weights[:, -1]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores(x), y) + decay * weights[:, :-1].square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    guessed = scores(torch.tensor(real, dtype=torch.float64)).argmax(-1)
    return float((guessed == torch.tensor(list(truth))).double().mean())
