"""What accounting costs: `python -m benchmarks.accounting [--json]`. Times of one processor, whatever else the machine does.

Cold is the first figure of a schedule in a process that has loaded its libraries, cached every further one. The run of the last
rows has 100,000 steps and three classes in ten epochs: 30 schedules, as the ledger asks for them.
"""

import argparse
import json
import time
from collections.abc import Callable

from dptrain import opacus_prv
from dptrain.accounting import register
from ledger import accountants
from ledger.accountants import ACCOUNTANTS, Phase, renyi

DELTA = 1e-6
CLASSES = ((0.8, 0.002), (1.2, 0.005), (3.0, 0.01))
STEPS = 100_000
EPOCHS = 10


def _forget() -> None:
    accountants.core.cached.cache_clear()
    accountants.mixtures._mixture.cache_clear()
    accountants.pld._steps.cache_clear()
    accountants.pld.epsilon_at_deltas.cache_clear()
    accountants.pld.epsilon_of_runs.cache_clear()
    opacus_prv._divergences.cache_clear()
    renyi._step_curve.cache_clear()
    renyi.log_moment.cache_clear()


def _timed(work: Callable[[], object]) -> dict[str, float]:
    _forget()
    start = time.process_time()
    work()
    middle = time.process_time()
    work()
    return {"cold_ms": 1e3 * (middle - start), "cached_ms": 1e3 * (time.process_time() - middle)}


def run() -> dict[str, dict[str, float]]:
    """Returns cold and cached milliseconds by what was computed."""
    register()
    for name in ACCOUNTANTS:  # loads the libraries
        accountants.epsilon(1.0, 0.01, 10, DELTA, name)
    phases = [Phase(z, q, STEPS // 3) for z, q in CLASSES]
    rows: dict[str, dict[str, float]] = {}
    for name in ACCOUNTANTS:
        rows[f"{name}: 1000 steps"] = _timed(lambda name=name: accountants.epsilon(1.0, 0.01, 1000, DELTA, name))
        rows[f"{name}: {STEPS} steps"] = _timed(lambda name=name: accountants.epsilon(1.2, 0.005, STEPS, DELTA, name))
        rows[f"{name}: three phases, {STEPS} steps"] = _timed(
            lambda name=name: accountants.epsilon_of_phases(phases, DELTA, name)
        )
    rows["content replaced, pld: 1000 steps"] = _timed(lambda: accountants.epsilon(1.0, 0.01, 1000, DELTA, replace=True))
    rows["calibrate, pld: 1000 steps"] = _timed(lambda: accountants.calibrate(2.0, 0.01, 1000, DELTA))
    rows["calibrate, rdp: 1000 steps"] = _timed(lambda: accountants.calibrate(2.0, 0.01, 1000, DELTA, "rdp"))
    rows["16 contributions of one person: 1000 steps"] = _timed(lambda: accountants.epsilon_group(4.0, 0.01, 1000, 16, DELTA))
    for name in ACCOUNTANTS:

        def whole(name: str = name, epochs: int = EPOCHS) -> None:
            for epoch in range(1, epochs + 1):
                for z, q in CLASSES:
                    accountants.epsilon(z, q, STEPS // epochs * epoch, DELTA, name)

        rows[f"a run of {STEPS} steps, 3 classes, at its end, {name}"] = _timed(lambda whole=whole: whole(epochs=1))
        rows[f"the same at the end of each of {EPOCHS} epochs, {name}"] = _timed(whole)
    return rows


def main() -> None:
    """Prints the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run()
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    width = max(map(len, rows))
    print(f"{'':{width}}  {'cold':>10}  {'cached':>10}")
    for name, row in rows.items():
        print(f"{name:{width}}  {row['cold_ms']:>7.1f} ms  {1e3 * row['cached_ms']:>7.1f} us")


if __name__ == "__main__":
    main()
