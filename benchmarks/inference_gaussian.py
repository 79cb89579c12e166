"""Measures what private releases of hidden states leave of an adapter's use, on a small pretrained model.

    python -m benchmarks.inference_gaussian --data DATA --out benchmarks/inference_gaussian.json

DATA holds stories260K/ and text/tinyshakespeare/. An adapter of rank 8 on the last hidden state, ``y = h + B A h``, learns
plays of a model that knows children's stories. Then every token's state is released, and delta made of what is released: of
the state, as published and clipped to its own size, and of the r coordinates that the adapter reads, with and without the
public factor. NLL is that of held-out plays, in nats a token. The base path keeps h in clear, as published: what is private
is what feeds the adapter.

Clip norms and factors are chosen on training text, which is public here. Noise has no seed: a second run differs by what
``spread`` says. A second table, `benchmarks.inference_places`, injects the published noise after every layer.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from benchmarks.__main__ import versions
from benchmarks.inference_places import places, released
from dptrain.inference import GaussianRelease, RankSpace
from dptrain.inference.preset import parameters_of
from dptrain.inference.rank_space import shrinkage
from recipes.language.stories import tokenizer_of

RANK, LENGTH = 8, 128
EPSILONS = (1.0, 8.0, 32.0, 128.0, 512.0)
DELTA = 1e-5
ANSWER = 64
"""Tokens of an answer whose epsilon is asked for as a whole, in one more row."""


class Setting:
    """Holds the model, the states of its text and an adapter that was trained on them.

    Args:
        data: holds stories260K/ and text/. train, held_out: numbers of sequences.
    """

    def __init__(self, data: Path, train: int, held_out: int) -> None:
        self.model = LlamaForCausalLM.from_pretrained(data / "stories260K" / "hf").eval().requires_grad_(False)
        text = (data / "text" / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
        count = LENGTH * (train + held_out)
        ids = torch.tensor(tokenizer_of(data / "stories260K" / "tok512.bin")(text[: 4 * count])["input_ids"])
        rows = ids[: min(count, len(ids) // LENGTH * LENGTH)].view(-1, LENGTH)
        if len(rows) < train + held_out:
            raise ValueError(f"the text has {len(rows)} sequences, expected {train + held_out}; ask for fewer")
        self.held_out = rows[train:]
        self.seen, self.next_seen = self.states(rows[:train])
        self.unseen, self.next = self.states(self.held_out)
        self.A, self.B = self.adapter()

    def states(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns last hidden states, shape (n, d), and the tokens that come next, shape (n,)."""
        found = torch.cat([self.model.model(some).last_hidden_state[:, :-1] for some in rows.split(32)])
        return found.reshape(-1, found.shape[-1]), rows[:, 1:].reshape(-1)

    def nll(self, delta: torch.Tensor) -> float:
        """Returns the NLL of held-out text with delta added to its states."""
        return float(functional.cross_entropy(self.model.lm_head(self.unseen + delta), self.next))

    def adapter(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns A, shape (r, d), and B, shape (d, r), trained by Adam on the states of training text."""
        torch.manual_seed(0)
        width = self.seen.shape[1]
        A = (torch.randn(RANK, width) / math.sqrt(width)).requires_grad_()
        B = torch.zeros(width, RANK, requires_grad=True)
        optimizer = torch.optim.Adam([A, B], lr=5e-3)
        for _ in range(1500):
            chosen = torch.randint(len(self.seen), (1024,))
            h = self.seen[chosen]
            loss = functional.cross_entropy(self.model.lm_head(h + h @ A.T @ B.T), self.next_seen[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return A.detach(), B.detach()


def measured(setting: Setting, kind: str, release: GaussianRelease, tokens: int, repeats: int) -> dict[str, Any]:
    """Returns the NLL and the error of delta, of releases of the state or of r coordinates, with and without the factor.

    Args:
        kind: ``state`` or ``rank``. release: with as many releases as there are states, whatever was calibrated.
        tokens: over which the epsilon that is said goes.
    """
    A, B = setting.A, setting.B
    clear = setting.unseen @ A.T @ B.T
    read = setting.unseen if kind == "state" else setting.unseen @ A.T
    public = (setting.seen if kind == "state" else setting.seen @ A.T).double().numpy()
    factor = shrinkage(public, release.worth)
    space = RankSpace(A, B)
    plain, shrunk, errors = [], [], []
    for _ in range(repeats):
        noised = released(release, read)
        delta = torch.stack([space.expand(A @ row if kind == "state" else row) for row in noised])
        plain.append(setting.nll(delta))
        shrunk.append(setting.nll(factor * delta))
        errors.append(float(((delta - clear).norm(dim=1) / clear.norm(dim=1)).median()))
    worth = GaussianRelease(
        release.worth.clip, adjacency="replace_one", delta=DELTA, sigma=release.worth.sigma, tokens=tokens
    ).worth
    return {
        "released": kind, "clip": release.worth.clip, "sigma": release.worth.sigma, "tokens": tokens,
        "epsilon_two_inputs": worth.of("replace_one"), "epsilon_against_none": worth.of("replace_null"), "delta": DELTA,
        "nll": float(np.mean(plain)), "nll_shrunk": float(np.mean(shrunk)), "factor": factor,
        "spread": [float(np.ptp(plain)), float(np.ptp(shrunk))], "relative_error": float(np.mean(errors)),
    }  # fmt: skip


def of_adapter(setting: Setting, repeats: int) -> dict[str, Any]:
    """Returns the figures of every design at every epsilon."""
    count = len(setting.unseen)
    norms = {"state": setting.seen.norm(dim=1), "rank": (setting.seen @ setting.A.T).norm(dim=1)}
    clips = {kind: float(found.quantile(0.5)) for kind, found in norms.items()}
    preset = parameters_of({"preset": "published"})
    rows = [measured(setting, "state", GaussianRelease.of(preset, tokens=count), 1, repeats) | {"design": "published"}]
    for tokens, epsilon in [*((1, each) for each in EPSILONS), (ANSWER, 8.0), (ANSWER, 128.0)]:
        for kind, clip in clips.items():
            sigma = GaussianRelease(clip, adjacency="replace_one", delta=DELTA, epsilon=epsilon, tokens=tokens).worth.sigma
            release = GaussianRelease(clip, adjacency="replace_one", delta=DELTA, sigma=sigma, tokens=count)
            rows.append(measured(setting, kind, release, tokens, repeats) | {"design": "analytic", "epsilon_asked": epsilon})
            print(rows[-1], flush=True)
    exact = setting.unseen @ setting.A.T @ setting.B.T
    return {
        "width": setting.unseen.shape[1], "rank": RANK, "tokens_held_out": count, "repeats": repeats,
        "nll_base": setting.nll(torch.zeros_like(exact)), "nll_adapter": setting.nll(exact), "median_norms": clips,
        "rows": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--train", type=int, default=600, help=f"sequences of {LENGTH} tokens")
    parser.add_argument("--held-out", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("inference_gaussian.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    setting = Setting(options.data, options.train, options.held_out)
    with torch.no_grad():
        adapter = of_adapter(setting, options.repeats)
        found = versions() | {"adapter": adapter, "places": places(setting.model, setting.held_out[:8])}
    found["seconds"] = time.perf_counter() - began
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"saved to {options.out}, {found['seconds']:.0f} s")


if __name__ == "__main__":
    main()
