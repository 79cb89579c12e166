"""Measures the geometry at the LoRA shapes of large models, without weights: a step of every pair, one after another.

Each pair is measured in turn: frames of both factors, lift of a summed gradient, noise in every
coordinate with its projection, and retraction, exact and by one step of subspace iteration. Seconds are of one processor. Peak
memory is that of the process, less what it has when its libraries are loaded.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dptrain.geometry import LoraTangent
from recipes.correlated_noise import Results

PARTS = ("frames", "lift", "noise", "retraction", "retraction_fast")


@dataclass(frozen=True)
class Shapes:
    """The pairs of a model: for each of its layers, m and n of every adapted module."""

    title: str
    layers: int
    modules: tuple[tuple[int, int], ...]
    rank: int

    @property
    def pairs(self) -> int:
        """Returns how many pairs the model has."""
        return self.layers * len(self.modules)


def llama(title: str, layers: int, width: int, keys: int, inner: int, rank: int = 16) -> Shapes:
    """Returns the shapes of a Llama with LoRA on all seven linear maps of a layer (m out, n in)."""
    attention = ((width, width), (keys, width), (keys, width), (width, width))
    return Shapes(title, layers, (*attention, (inner, width), (inner, width), (width, inner)), rank)


MODELS: Mapping[str, Shapes] = {
    "7b": llama("Llama 2 7B", 32, 4096, 4096, 11008),
    "70b": llama("Llama 2 70B", 80, 8192, 1024, 28672),
    "wide": Shapes("one pair of 100,000 by 100,000", 1, ((100_000, 100_000),), 8),
}


def measured(name: str) -> dict[str, Any]:
    """Takes a step of every pair of a model; returns seconds of each part, over all pairs, and mebibytes at the most."""
    shapes, loaded = MODELS[name], _mebibytes()
    seconds = dict.fromkeys(PARTS, 0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(shapes.layers):
        for m, n in shapes.modules:
            drawn = [torch.randn(rows, shapes.rank, generator=generator) for rows in (m, n, m, n)]
            (A, B), (gA, gB) = (value * 0.02 for value in drawn[:2]), drawn[2:]
            began = time.process_time()
            at = LoraTangent(A, B)
            seconds["frames"] += time.process_time() - began
            began = time.process_time()
            direction = at.lift(gA, gB)
            seconds["lift"] += time.process_time() - began
            began = time.process_time()
            direction = direction + at.noise(0.1, generator)
            seconds["noise"] += time.process_time() - began
            for part, exact in (("retraction", True), ("retraction_fast", False)):
                began = time.process_time()
                at.retract(direction, 1e-3, exact=exact)
                seconds[part] += time.process_time() - began
    rounded = {part: round(value, 3) for part, value in seconds.items()}
    return {**rounded, "mebibytes": round(_mebibytes() - loaded, 1), "loaded_mebibytes": round(loaded, 1)}


def _mebibytes() -> float:
    """Returns the most memory that this process has had, in MiB."""
    kilo = 1024.0 if platform.system() != "Darwin" else 1024.0**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / kilo


def run(results: Results) -> None:
    """Measures every model in a process of its own; what is in the results already is left."""
    for name, shapes in MODELS.items():
        key = {"part": "shapes", "model": name, "pairs": shapes.pairs, "rank": shapes.rank}
        results.once(key, lambda key: _apart(key["model"]))


def _apart(name: str) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.prism.shapes", name], check=True, capture_output=True, text=True, env=environment
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def lines_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a table: seconds on one thread for all pairs of a model, and memory beyond the libraries."""
    names = " | ".join(f"{part.replace('_fast', ', fast')} s" for part in PARTS)
    yield f"| one thread, float32 | pairs, r | {names} | peak MiB |"
    yield "|---" * (len(PARTS) + 3) + "|"
    for row in rows:
        if row["part"] == "shapes":
            cells = " | ".join(f"{row[part]:.2f}" for part in PARTS)
            yield f"| {MODELS[row['model']].title} | {row['pairs']}, {row['rank']} | {cells} | {row['mebibytes']:.0f} |"


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1])))
