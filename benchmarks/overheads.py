"""Measures what router, routing, sandbox, ledger and noise cost: ``python -m benchmarks.overheads [--json]``.

Router: masks of three classes, the dual clip and noise, beside the same engine that clips every contribution to one norm and
adds up. Routing: the same 64 contributions in one class, and in three classes of equal depth and bounds, taking turns. Sandbox:
a step with dropout by address, and all else that is watched in a private microbatch, beside the same with torch's own dropout
and nothing watched. Ledger: CPU time inside the calls that charge, settle and close, beside that of the steps they belong to; a
run without a ledger does not exist.
Noise: nanoseconds per coordinate of a release, beside generators that promise less.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks import noise as generators
from benchmarks.configs import CONFIGS, ROUTING, Config
from benchmarks.step import take_turns
from benchmarks.variants import ours, ours_fast
from dptrain.clipping.fast import Bounds, FastSums
from dptrain.engine import prepared as engine
from dptrain.noise.lattice import OnHost
from dptrain.sandbox import interception
from ledger.leaves.weights import model_digest

TARGETS = {"router": 1.05, "routing": 1.02, "sandbox": 1.03, "ledger": 1.01, "noise": 16.0}

WINDOW, EPOCH = 16, 10_000
"""Steps per charge and per epoch over which the ledger's cost is spread: the defaults of a policy of 100 000 steps."""

COORDINATES = 1 << 25


def router(rounds: int, threads: int, config: Config = ROUTING["three classes"]) -> dict[str, Any]:
    """The step of three classes over one without masks, dual clip and noise."""
    return _over({"bare": partial(_bare, config), "routed": partial(ours_fast, config)}, rounds, threads)


def routing(rounds: int, threads: int, configs: Mapping[str, Config] = ROUTING) -> dict[str, Any]:
    """Three classes over one."""
    return _over({name: partial(ours_fast, configs[name]) for name in ("one class", "three classes")}, rounds, threads)


def sandbox(rounds: int, threads: int, config: Config = CONFIGS["bert_full"], dropout: float = 0.1) -> dict[str, Any]:
    """The step with addressed dropout in the sandbox over the same with torch's own dropout and no sandbox."""
    config = replace(config, dropout=dropout)
    return _over({"torch": partial(_unwatched, config), "addressed": partial(ours_fast, config)}, rounds, threads)


def _over(variants: dict[str, Any], rounds: int, threads: int) -> dict[str, Any]:
    """Times two steps that take turns: medians of CPU and of wall time of the second over those of the first."""
    taken, failed = take_turns(variants, rounds, threads)
    if failed:
        raise RuntimeError(f"a run failed: {failed}")
    base, other = (taken[name] for name in variants)
    pairs = [b / a for a, b in zip(base["cpu"], other["cpu"], strict=True)]
    return {
        "cpu_ratio": statistics.median(other["cpu"]) / statistics.median(base["cpu"]),
        "cpu_ratio_range": [min(pairs), max(pairs)],
        "wall_ratio": statistics.median(other["wall"]) / statistics.median(base["wall"]),
    }


@contextmanager
def _bare(config: Config) -> Iterator[Any]:
    """Our step that clips to one norm, adds up and divides. For this comparison alone; not private."""

    def clipped(self: FastSums, norms_sq_NG: torch.Tensor, bounds: Bounds) -> torch.Tensor:
        factor_N = (bounds.clip_N / norms_sq_NG.sum(1).sqrt().clamp_min(1e-12)).clamp_max(1.0)
        return factor_N[:, None].expand_as(norms_sq_NG)

    def divided(self: OnHost, clipped_sum: torch.Tensor, std: float, normalizer: float, **where: Any) -> torch.Tensor:
        return clipped_sum.div_(normalizer)

    with ours(config) as (_, step):
        step()

        def bare() -> None:
            kept = FastSums.coefficients, OnHost.release_
            FastSums.coefficients, OnHost.release_ = clipped, divided
            try:
                step()
            finally:
                FastSums.coefficients, OnHost.release_ = kept

        yield bare


@contextmanager
def _unwatched(config: Config) -> Iterator[Any]:
    """Our step with no operation intercepted: random numbers are torch's own. For this comparison alone; not private."""
    with ours(config) as (_, step):
        step()  # the probes at the start refuse torch's own dropout

        def unwatched() -> None:
            kept = interception._push_mode, interception.Called.__enter__
            interception._push_mode = lambda mode: None
            interception.Called.__enter__ = lambda self: self
            try:
                step()
            finally:
                interception._push_mode, interception.Called.__enter__ = kept

        yield unwatched


@contextmanager
def timed(owner: Any, names: tuple[str, ...], seconds: dict[str, list[float]]) -> Iterator[None]:
    """Counts the CPU seconds of every call of these methods or functions."""

    def wrapped(name: str, method: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                seconds.setdefault(name, []).append(time.process_time() - start)

        return call

    before = {name: getattr(owner, name) for name in names}
    for name, method in before.items():
        setattr(owner, name, wrapped(name, method))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(owner, name, method)


def ledger(rounds: int, threads: int, config: Config = CONFIGS["bert_full"]) -> dict[str, Any]:
    """Windows of one step, so that every step charges and settles; then spread over the default window and epoch."""
    torch.set_num_threads(threads)
    seconds: dict[str, list[float]] = {}
    steps = []
    with ours(config, window=1) as (private, step):
        step()
        with timed(engine, ("settle_pool",), seconds), timed(private.opened.recorder, ("charge", "settle"), seconds):
            for _ in range(rounds):
                start = time.process_time()
                step()
                steps.append(time.process_time() - start)
        start = time.process_time()
        model_digest(private.prepared.weights.records())
        digest = time.process_time() - start
        start = time.process_time()
        private.prepared.finish()  # settles, closes the epoch (with a digest of its own) and the run
        closing = time.process_time() - start
    per_window = sum(statistics.median(seconds[call]) for call in ("settle_pool", "charge", "settle"))
    taken = statistics.median(steps)
    without = taken - per_window
    return {
        "step_s": taken,
        "window_s": per_window,
        "epoch_s": closing,
        "of_that_digest_of_the_model_s": digest,
        "cpu_ratio": 1.0 + (per_window / WINDOW + closing / EPOCH) / without,
        "cpu_ratio_windows_of_one": 1.0 + per_window / without,
    }


def noise(rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Nanoseconds per coordinate of a release and three generators beside it; all of them: ``python -m benchmarks.noise``."""
    names = ("release", "torch_randn_float32", "numpy_philox_float32", "urandom_box_muller_float32")
    return generators.measure(max(3, rounds), threads, names, COORDINATES)


def run(rounds: int, threads: int) -> dict[str, Any]:
    return {name: measure(rounds, threads) for name, measure in MEASURES.items()}


MEASURES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "router": router, "routing": routing, "sandbox": sandbox, "ledger": ledger, "noise": noise,
}  # fmt: skip


def render(found: dict[str, Any]) -> str:
    """Five rows, each beside its target."""
    whole, routed, watched, charged, drawn = (found[name] for name in MEASURES)
    fewest, highest = whole["cpu_ratio_range"]
    low, high = routed["cpu_ratio_range"]
    least, most = watched["cpu_ratio_range"]
    figures = ", ".join(f"{name.replace('_', ' ')} {row['cpu_ns']:.1f} ({row['wall_ns']:.1f})" for name, row in drawn.items())
    return "\n".join(
        (
            f"router    CPU {whole['cpu_ratio']:.3f} ({fewest:.3f}..{highest:.3f}), wall {whole['wall_ratio']:.3f}: masks, "
            f"dual clip and noise over bare clipping; target {TARGETS['router']}",
            f"routing   CPU {routed['cpu_ratio']:.3f} ({low:.3f}..{high:.3f}), wall {routed['wall_ratio']:.3f}: three classes "
            f"of full depth over one; target {TARGETS['routing']}",
            f"sandbox   CPU {watched['cpu_ratio']:.3f} ({least:.3f}..{most:.3f}), wall {watched['wall_ratio']:.3f}: dropout by "
            f"address over torch's own with nothing watched; target {TARGETS['sandbox']}",
            f"ledger    CPU {charged['cpu_ratio']:.5f}, windows of {WINDOW} steps; {charged['cpu_ratio_windows_of_one']:.5f}, "
            f"windows of one ({charged['window_s'] * 1e3:.1f} ms each); target {TARGETS['ledger']}",
            f"noise     ns of CPU (wall) per coordinate: {figures}; target {TARGETS['noise']:.0f} wall on two cores",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=sorted(TARGETS), help="measure this alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.only:
        measured = {options.only: MEASURES[options.only](options.rounds, options.threads)}
        print(json.dumps(measured, indent=None if options.json else 1))
        return
    found = run(options.rounds, options.threads)
    print(json.dumps(found) if options.json else render(found))


if __name__ == "__main__":
    main()
