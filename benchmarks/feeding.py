"""Measures what a slow decoder costs a step, with workers and without: ``python -m benchmarks.feeding [--json]``.

For each batch size a run takes its steps with a decoder that takes no time, and then with one that sleeps or computes for some
milliseconds an example, under 0, 1 and more workers. Every contribution is drawn in every step, so that batches are equal.

Means are over whole windows, so that the first step of a window counts, which nobody can decode ahead of its charge. ``fed`` is
the part of a step in which it reads or waits for rows; what the rest of the same steps takes is what it is put beside, since on
a busy machine no two runs have the same. ``quiet`` is the processor time of the run's own process and the time in which it
waits for rows, beside that of runs with a decoder that takes none; ``wall`` is the wall time of whole steps beside theirs. Runs
are repeated in turns. ``check`` is the time in which all contributions are decoded before a run.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain import Microbatches, PrivateTraining

TARGET = 1.10
"""Time of a step beside that of a decoder that takes none."""

WINDOW = 16
BEFORE = 18
"""Steps of the short windows with which a run begins."""

KINDS = ("sleep", "busy")


def decoder(kind: str, seconds: float) -> Callable[[bytes], list[Any]]:
    """Returns a decoder of JSON that sleeps, computes or does nothing for so long an example."""

    def decode(content: bytes) -> list[Any]:
        if kind == "sleep":
            time.sleep(seconds)
        elif kind == "busy":
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        return [json.loads(content)]

    return decode


def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stacks."""
    return {name: torch.tensor([example[name] for example in examples]) for name in ("ids", "label")}


class Model(nn.Module):
    """Token ids (B, T) to four layers to two classes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.head = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns logits (B, 2)."""
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1))


def records(count: int, tokens: int) -> list[dict[str, Any]]:
    """Made-up contributions."""
    return [{"ids": [(31 * i + 7 * t) % 1000 for t in range(tokens)], "label": i % 2} for i in range(count)]


def opened(folder: Path, count: int, tokens: int, size: Microbatches) -> PrivateTraining:
    """Opens a run in which every step draws everybody."""
    policy = (
        f'corpus = "benchmark"\ndelta = 1e-6\nsteps = 100000\nnormalizer = {count}\nwindow_steps = {WINDOW}\n'
        '[[class]]\nname = "all"\nclip_norm = 1.0\nnoise_multiplier = 1.0\nsampling_rate = 1\n'
        "depth = { from = 0.0, to = 1.0 }\n"
    )
    given = {"all": records(count, tokens)}
    return PrivateTraining.one_owner(folder, policy, given, microbatches=size, progress=False)


Taken = tuple[float, float, float]
"""Seconds of a step, those of them in which it was fed, and those in which it worked or waited for rows."""


def steps_of(folder: Path, kind: str, workers: int, batch: int, options: argparse.Namespace) -> list[Taken]:
    """Returns what each step of whole windows took."""
    torch.manual_seed(0)
    model = Model(options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = Microbatches(options.microbatch, workers=workers)
    taken: list[Taken] = []
    with opened(folder, batch, options.tokens, size) as private:
        decode = decoder(kind, options.milliseconds / 1e3)
        _, optimizer, steps = private.prepare(model, optimizer, collate, decode=decode, layers="layers")
        pool = private.prepared.feeder.workers
        if pool is not None:
            pool.wait_ready(120)
        feeder, fed, waited = private.prepared.feeder, [0.0], [0.0]
        planned = feeder.planned

        def timed(*given: Any) -> Any:
            start, worked = time.perf_counter(), time.process_time()
            try:
                return planned(*given)
            finally:
                took = time.perf_counter() - start
                fed[0] += took
                waited[0] += max(0.0, took - (time.process_time() - worked))

        feeder.planned = timed
        before, worked = time.perf_counter(), time.process_time()
        for step in steps:
            for rows in step:
                losses = nn.functional.cross_entropy(model(rows["ids"]), rows["label"], reduction="none")
                private.backward(losses, rows)
            optimizer.step()
            now, cpu = time.perf_counter(), time.process_time()
            if step.number > BEFORE:
                taken.append((now - before, fed[0], cpu - worked + waited[0]))
            before, worked, fed[0], waited[0] = now, cpu, 0.0, 0.0
            if len(taken) == WINDOW * options.windows:
                break
    return taken


def check_of(folder: Path, kind: str, workers: int, options: argparse.Namespace) -> float:
    """Returns the seconds in which everybody is decoded before a run, once the workers have started."""
    model = Model(8)
    size = Microbatches(options.microbatch, workers=workers)
    with opened(folder, options.pool, options.tokens, size) as private:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        private.prepare(model, optimizer, collate, decode=decoder("nothing", 0.0), layers="layers")
        feeder = private.prepared.feeder
        from dptrain.data.loader import Feeder

        decode = decoder(kind, options.milliseconds / 1e3)
        feeder.close()
        feeder.pool.decode = decode
        again = Feeder(feeder.pool, collate, feeder._device, None, feeder._sandbox, workers)
        try:
            if again.workers is not None:
                again.workers.wait_ready(120)
            before = time.perf_counter()
            again.check()
            return time.perf_counter() - before
        finally:
            again.close()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs all variants in turns.

    Returns:
        ``steps``: by batch size and variant the mean milliseconds of a step, and of them those in which it was fed; ``cost``,
        the mean beside the rest of it, where a decoder that takes no time has its own; ``quiet`` and ``wall``, the median over
        rounds of the mean beside that of a decoder that takes no time. ``check``: seconds by variant.
    """
    variants = [("nothing", 0), *((kind, workers) for kind in options.kinds for workers in options.workers)]
    found: dict[str, Any] = {"milliseconds": options.milliseconds, "threads": torch.get_num_threads(), "steps": [], "check": []}
    with tempfile.TemporaryDirectory(prefix="dptrain-bench-") as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in options.batch:
            taken: dict[tuple[str, int], list[list[float]]] = {variant: [] for variant in variants}
            for turn in range(options.rounds):
                for kind, workers in variants:
                    own = steps_of(Path(root) / f"{batch}-{turn}-{kind}-{workers}", kind, workers, batch, options)
                    taken[kind, workers].append([statistics.mean(one[place] for one in own) for place in range(3)])
            nothing = taken["nothing", 0]
            least = statistics.mean(fed for _, fed, _ in nothing)
            for kind, workers in variants:
                rounds = taken[kind, workers]
                step, fed = (statistics.mean(one[place] for one in rounds) for place in (0, 1))
                wall, quiet = (
                    statistics.median(one[place] / none[place] for one, none in zip(rounds, nothing, strict=True))
                    for place in (0, 2)
                )
                found["steps"].append({
                    "batch": batch, "decoder": kind, "workers": workers, "step_ms": 1e3 * step, "fed_ms": 1e3 * fed,
                    "cost": step / (step - fed + least), "quiet": quiet, "wall": wall,
                })  # fmt: skip
        for kind in options.kinds if options.pool else ():
            for workers in options.workers:
                seconds = check_of(Path(root) / f"check-{kind}-{workers}", kind, workers, options)
                found["check"].append({"decoder": kind, "workers": workers, "pool": options.pool, "seconds": seconds})
    return found


def render(found: dict[str, Any]) -> str:
    """One line for each variant."""
    lines = [f"decoder of {found['milliseconds']:g} ms an example, torch on {found['threads']} thread(s); target {TARGET:g}"]
    lines += [
        f"steps  batch {one['batch']:3d}  {one['decoder']:8s} workers {one['workers']}: {one['step_ms']:7.1f} ms, fed "
        f"{one['fed_ms']:6.1f} ms of it; cost {one['cost']:.3f}, quiet {one['quiet']:.3f}, wall {one['wall']:.3f}"
        for one in found["steps"]
    ]
    lines += [
        f"check  {one['pool']} contributions  {one['decoder']:8s} workers {one['workers']}: {one['seconds']:.2f} s"
        for one in found["check"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--milliseconds", type=float, default=5.0, help="of the decoder, an example")
    parser.add_argument("--microbatch", type=int, default=16)
    parser.add_argument("--width", type=int, default=384, help="of the model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--windows", type=int, default=1, help=f"measured, of {WINDOW} steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pool", type=int, default=1024, help="contributions of the check before a run; 0 for none")
    parser.add_argument("--threads", type=int, default=1, help="of torch in the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = measure(options)
    print(json.dumps(found) if options.json else render(found))


if __name__ == "__main__":
    main()
