"""What both readers conclude from an audit, against the claim; run as a module, a table of it.

``python -m tests.guarantees.crowd.verdicts "two layers, fast" --steps 5000`` prints one row per scene.
"""

import argparse
import sys
from contextlib import nullcontext
from functools import lru_cache

import numpy as np

from tests.guarantees.crowd import readers
from tests.guarantees.crowd.lockstep import DELTA, HORIZON, RATE, Measured, masks_from_one_generator, measure
from tests.guarantees.crowd.scenes import MAIN, PACKED

ALARM = 1e-3
"""False-alarm rate of every statistical sentence of the audit."""


LEAST = 50
"""Runs of each kind below which not even readers who are always right refute an epsilon of 2."""


def _right(found: Measured) -> np.ndarray:
    return readers.guesses(found.readings, np.random.default_rng(0)) == found.readings.drawn


def read_right(found: Measured) -> int:
    """How often the reader of draws is right."""
    return int(_right(found).sum())


def chance_of_reading(found: Measured) -> float:
    """How likely it is that a reader who knows nothing is right so often."""
    return readers.chance_of_several(_right(found), found.readings.number)


@lru_cache(maxsize=64)
def lower_bound(found: Measured, runs: int = 2000, alpha: float = ALARM) -> float:
    """Epsilon that the reader of payloads refutes in whole runs, simulated with what was measured.

    The threshold comes from as many other runs.
    """
    coins = np.random.default_rng(0)
    real, null = (readers.simulated_runs(found.readings, 2 * runs, HORIZON, RATE, payload, coins) for payload in (True, False))
    threshold = readers.best_threshold(real[:runs], null[:runs], runs, DELTA, alpha)
    return readers.refuted(real[runs:], null[runs:], threshold, DELTA, alpha)


@lru_cache(maxsize=64)
def lower_bound_by_releases(found: Measured, alpha: float = ALARM) -> tuple[float, int]:
    """The same in runs whose drawn steps are real releases, each used once; and the number of runs of each kind.

    Of contributions that were audited in one step, the runs take one: they must not share noise.
    """
    coins = np.random.default_rng(1)
    once = readers.one_a_step(found.readings, found.readings.drawn, coins)
    real, null = (readers.released_runs(once, HORIZON, RATE, payload, coins) for payload in (True, False))
    modelled = [readers.simulated_runs(found.readings, 4000, HORIZON, RATE, payload, coins) for payload in (True, False)]
    runs = min(len(real), len(null))
    threshold = readers.best_threshold(*modelled, runs, DELTA, alpha)
    return readers.refuted(real, null, threshold, DELTA, alpha), runs


def noise_seen(found: Measured) -> np.ndarray:
    """Noise of the releases along an own gradient, one number of each: what the simulated runs take for standard normal."""
    everybody = np.ones(len(found.readings), dtype=bool)
    return readers.noise_along(readers.one_a_step(found.readings, everybody, np.random.default_rng(2)))


def row(name: str, found: Measured) -> str:
    """One row of the table: what both readers conclude."""
    apart, right, trials = found.readings.separation, read_right(found), len(found.readings)
    released, runs = lower_bound_by_releases(found)
    noise = noise_seen(found)
    return (
        f"| {name} | {trials} | {apart.mean():.2g}, {apart.max():.2g} "
        f"| {right} ({right / trials:.3f}, by chance {chance_of_reading(found):.2g}) | {lower_bound(found, 20_000):.2f} "
        f"| {f'{released:.2f}' if runs >= LEAST else 'too few'}, {runs} runs each | {noise.mean():.2f}, {noise.std():.2f} "
        f"| {found.claim:.2f} | {found.misjudged:.2g} | {found.graphs} |"
    )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="Audits scenes and prints what both readers conclude.")
    parser.add_argument("scenes", nargs="*", default=list(MAIN))
    parser.add_argument("--steps", type=int, default=200, help="draws that are audited, one per step and contribution")
    parser.add_argument("--drawn", type=int, nargs="*", default=[])
    parser.add_argument("--audited", type=int, help="contributions that are audited in a step")
    parser.add_argument("--old", action="store_true", help="with the masks of one generator")
    given = parser.parse_args()
    print(
        "| scene | draws | separation in noise deviations: mean, most | read right | epsilon >=, simulated | by releases "
        "| noise: mean, deviation | claim | adversary off by | graphs |"
    )

    def tell(found: Measured) -> None:
        apart = found.readings.separation.max()
        print(f"{len(found.readings)} draws, {read_right(found)} right, separation {apart:.2g}", file=sys.stderr, flush=True)

    for name in given.scenes:
        scene = (MAIN | PACKED)[name]
        for drawn in given.drawn or [scene.drawn]:
            setting = scene.but(name, drawn=drawn, audited=given.audited or scene.audited)
            with masks_from_one_generator() if given.old else nullcontext():
                found = measure(setting, given.steps, tell)
            print(row(f"{name}, {drawn} + {setting.audited / 2:g} drawn", found), flush=True)


if __name__ == "__main__":
    main()
