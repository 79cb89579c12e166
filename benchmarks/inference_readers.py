"""Runs the three readers that the published page fears on released states, and holds how often they are right to epsilon.

    python -m benchmarks.inference_readers --data DATA --out benchmarks/inference_readers.json

DATA holds stories260K/, text/ and gsm8k/. A query is a text of 64 tokens; each token's last hidden state is released. Of how
many a reader has the first T. The readers:

* ``clusters``: groups like queries by k-means, and names groups by the kind of text that they are nearest to;
* ``coordinates``: tells the kind from the r coordinates that an adapter of rank 8 reads, by linear discriminants;
* ``dictionary``: knows 16 queries and their states, and looks up which of them a session was.

Each is stronger than feared: it has the model, states of its own texts in clear, clip norm, sigma and adapter, and weighs all
by the law of the noise. The settings: states in ``clear``; as ``published``, each token at clip norm 1 and sigma 4.8448;
``equal``, ours, which is r coordinates at the same epsilon as published; ``answer``, ours where the epsilon that published has
for one token is that of all T together. Under (epsilon, delta)-DP no reader names one of k equally likely queries, or kinds of
query, more often than `allowed`. Readers see states alone, and not the text that a server sends with them.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.__main__ import versions
from benchmarks.inference_gaussian import RANK, Setting
from benchmarks.inference_places import released
from dptrain.inference import GaussianRelease
from dptrain.inference.gaussian import delta_of, distance, epsilon_of, sensitivity_of
from dptrain.inference.preset import parameters_of
from recipes.language.stories import tokenizer_of

Array = np.ndarray

LENGTH, KNOWN, TOKENS = 64, 16, (1, 16, 64)
DELTA = 1e-5
SETTINGS = ("clear", "published", "equal", "answer")
READERS = ("clusters", "coordinates", "dictionary")


def allowed(epsilon: float, delta: float, k: int) -> float:
    """Returns how often a reader may at most name the right one of k equally likely inputs.

    The probability p_ii of naming i under i is at most e^epsilon p_ji + delta for each j. Over all pairs that is
    (k - 1) sum_i p_ii <= e^epsilon (k - sum_i p_ii) + k (k - 1) delta. Two inputs: e^epsilon / (1 + e^epsilon), and delta.
    """
    small = math.exp(-epsilon)
    return min(1.0, (1.0 + (k - 1) * delta * small) / (1.0 + (k - 1) * small))


def allowed_exactly(sigma: float, sensitivity: float, releases: int, k: int) -> float:
    """Returns the least of `allowed` over all (epsilon, delta) that releases have: for k = 2 what the best reader reaches."""
    most = 30.0 + 2.0 * distance(sigma, sensitivity, releases) ** 2
    return min(allowed(each, delta_of(sigma, each, sensitivity, releases), k) for each in np.linspace(0.0, most, 2000).tolist())


@dataclass(frozen=True)
class Channel:
    """Says what leaves of a state.

    Attributes:
        name: of `SETTINGS`. A: (r, d) where r coordinates are released, None where states are. clip, sigma: of each release;
            sigma is 0 in clear.
    """

    name: str
    A: torch.Tensor | None = None
    clip: float = math.inf
    sigma: float = 0.0

    def clean(self, states: torch.Tensor) -> Array:
        """Returns what would be released without noise, (n, T, d) to (n, T, d or r); a reader's own texts go this way."""
        read = states if self.A is None else states @ self.A.T
        return (read * (self.clip / read.norm(dim=-1, keepdim=True)).clamp(max=1.0)).double().numpy()

    def seen(self, states: torch.Tensor) -> Array:
        """Returns what is released, one release for each state."""
        if not self.sigma:
            return self.clean(states)
        read = (states if self.A is None else states @ self.A.T).flatten(0, 1)
        release = GaussianRelease(self.clip, adjacency="replace_one", delta=DELTA, sigma=self.sigma, tokens=len(read))
        return released(release, read.double()).view(*states.shape[:2], -1).numpy()

    def bounds(self, tokens: int, k: int) -> dict[str, float | None]:
        """Returns epsilon for two inputs, and what it allows; None in clear."""
        if not self.sigma:
            return {"epsilon": None, "allowed": None, "allowed_exactly": None}
        sensitivity = sensitivity_of(self.clip, "replace_one")
        epsilon = epsilon_of(self.sigma, DELTA, sensitivity, tokens)
        exactly = allowed_exactly(self.sigma, sensitivity, tokens, k)
        return {"epsilon": epsilon, "allowed": allowed(epsilon, DELTA, k), "allowed_exactly": exactly}


def channels(A: torch.Tensor, public: torch.Tensor, tokens: int) -> list[Channel]:
    """Returns the settings; the clip norm of ours is the median norm of the coordinates of public text."""
    preset = parameters_of({"preset": "published"})
    clip = float((public @ A.T).norm(dim=-1).median())
    equal = clip * preset.sigma / preset.clip
    return [
        Channel("clear"), Channel("published", None, preset.clip, preset.sigma), Channel("equal", A, clip, equal),
        Channel("answer", A, clip, equal * math.sqrt(tokens)),
    ]  # fmt: skip


def clusters(known: Array, kinds: Array, seen: Array) -> Array:
    """Returns the kind of every query by k-means over all of them, begun at the means of the reader's own texts.

    Args:
        known: (n, w), the reader's own. kinds: (n,). seen: (m, w), means over the tokens of a query.
    """
    means = np.stack([known[kinds == kind].mean(0) for kind in range(kinds.max() + 1)])
    centres = means.copy()
    for _ in range(20):
        nearest = _squares(seen, centres).argmin(1)
        centres = np.stack([seen[nearest == k].mean(0) if (nearest == k).any() else centres[k] for k in range(len(centres))])
    names = _squares(centres, means).argmin(1)
    return names[_squares(seen, centres).argmin(1)]


def coordinates(known: Array, kinds: Array, seen: Array, noise: Array) -> Array:
    """Returns the kind of every query by linear discriminants. noise: (w, w), the covariance that releases add to a mean."""
    means = np.stack([known[kinds == kind].mean(0) for kind in range(kinds.max() + 1)])
    within = np.cov((known - means[kinds]).T) + noise
    weights = np.linalg.solve(within + 1e-6 * np.trace(within) / len(within) * np.eye(len(within)), means.T)
    return (seen @ weights - 0.5 * np.sum(means.T * weights, axis=0)).argmax(1)


def dictionary(entries: Array, seen: Array) -> Array:
    """Returns which entry every session was: the likeliest, under normal noise of any size. entries: (k, T, w)."""
    return _squares(seen.reshape(len(seen), -1), entries.reshape(len(entries), -1)).argmin(1)


def _squares(rows: Array, centres: Array) -> Array:
    return np.square(rows).sum(1)[:, None] - 2.0 * rows @ centres.T + np.square(centres).sum(1)[None]


def texts(data: Path) -> dict[str, str]:
    """Returns the texts of four kinds of query."""
    lines = (data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "stories": (data / "text" / "tinystories" / "tinystories_sample.txt").read_text(encoding="utf-8")[:600_000],
        "plays": (data / "text" / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")[-600_000:],
        "articles": (data / "text" / "wikitext-2" / "valid.txt").read_text(encoding="utf-8")[:600_000],
        "sums": " ".join(json.loads(line)["question"] for line in lines[:3000])[:600_000],
    }


def queries(setting: Setting, data: Path, count: int) -> torch.Tensor:
    """Returns last states of ``count`` queries of each kind, shape (kinds, count, 64, d), in an order of chance."""
    tokenizer = tokenizer_of(data / "stories260K" / "tok512.bin")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    states = []
    for text in texts(data).values():
        ids = torch.tensor(tokenizer(text[: 6 * LENGTH * count])["input_ids"][: LENGTH * count]).view(count, LENGTH)
        states.append(torch.cat([setting.model.model(some).last_hidden_state for some in ids[order].split(64)]))
    return torch.stack(states)


def measured(states: torch.Tensor, A: torch.Tensor, secret: int, sessions: int) -> Iterator[dict[str, Any]]:
    """Yields one row for every reader, setting and number of tokens.

    Args:
        states: (kinds, n, 64, d). A: (r, d), of the adapter. secret: how many queries of each kind are asked; the others are
            the reader's own texts. sessions: of each query that the dictionary knows.
    """
    among = len(states)
    asked, own = states[:, :secret].flatten(0, 1), states[:, secret:].flatten(0, 1)
    truth, labels = (np.repeat(np.arange(among), each) for each in (secret, states.shape[1] - secret))
    for tokens in TOKENS:
        for channel in channels(A, own, tokens):
            known, seen = channel.clean(own[:, -tokens:]).mean(1), channel.seen(asked[:, -tokens:]).mean(1)
            M = A.double().numpy() if channel.A is None else np.eye(RANK)
            noise = channel.sigma**2 / tokens * M @ M.T
            entries = own[:: len(own) // KNOWN, -tokens:][:KNOWN]
            session = channel.seen(entries.repeat(sessions, 1, 1))
            found = {
                "clusters": (clusters(known, labels, seen) == truth, among),
                "coordinates": (coordinates(known @ M.T, labels, seen @ M.T, noise) == truth, among),
                "dictionary": (dictionary(channel.clean(entries), session) == np.tile(np.arange(KNOWN), sessions), KNOWN),
            }
            for reader, (right, k) in found.items():
                yield {
                    "reader": reader, "setting": channel.name, "tokens": tokens, "among": k, "asked": len(right),
                    "right": int(right.sum()), "clip": channel.clip if channel.sigma else None, "sigma": channel.sigma,
                    "delta": DELTA, **channel.bounds(tokens, k),
                }  # fmt: skip


def lines_of(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the table in Markdown: how often readers are right, and what epsilon allows at most."""
    columns = "reader | T | chance | clear | published | its epsilon, and what that allows | ours at that epsilon"
    yield f"| {columns} | ours, epsilon 1.610 in all | what that allows |"
    yield "|" + "---|" * 9
    of = {(one["reader"], one["tokens"], one["setting"]): one for one in rows}
    for reader in READERS:
        for tokens in sorted({one["tokens"] for one in rows}):
            clear, published, equal, answer = (of[reader, tokens, setting] for setting in SETTINGS)
            share = [f"{one['right'] / one['asked']:.3f}" for one in (clear, published, equal, answer)]
            cells = [
                reader, str(tokens), f"{1 / clear['among']:.3f}", share[0], share[1],
                f"{published['epsilon']:.2f}: {published['allowed_exactly']:.3f}", share[2], share[3],
                f"{answer['allowed_exactly']:.3f}",
            ]  # fmt: skip
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--count", type=int, default=220, help="queries of each kind")
    parser.add_argument("--secret", type=int, default=100, help="how many of them are asked")
    parser.add_argument("--sessions", type=int, default=40, help=f"of each of {KNOWN} queries")
    parser.add_argument("--out", type=Path, default=Path("inference_readers.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    setting = Setting(options.data, 200, 8)
    with torch.no_grad():
        states = queries(setting, options.data, options.count)
        rows = list(measured(states, setting.A, options.secret, options.sessions))
    found = versions() | {"rows": rows, "width": states.shape[-1], "rank": RANK, "seconds": time.perf_counter() - began}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(lines_of(rows)))


if __name__ == "__main__":
    main()
