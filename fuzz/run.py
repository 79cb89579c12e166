"""Fuzz every target for its share of the time, and report: `python -m fuzz.run --seconds 600`.

Inputs that broke something, and the corpora that grew, lie in `build/fuzz/`. Needs the extra `fuzz` (atheris).
"""

import argparse
import hashlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("build/fuzz")
_UNITS = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_PEAK = re.compile(r"stat::peak_rss_mb:\s+(\d+)")
_COVERAGE = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


@dataclass(frozen=True)
class Outcome:
    """What one target came to."""

    name: str
    executions: int
    edges: int
    features: int
    corpus: int
    peak_mb: int
    failed: bool


def write_seeds(name: str, seeds: list[bytes]) -> Path:
    """A corpus folder that holds the seeds, and what earlier runs found."""
    folder = FOLDER / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    return folder


def fuzz(name: str, seeds: list[bytes], seconds: int) -> Outcome:
    """Fuzz one target in a process of its own."""
    corpus = write_seeds(name, seeds)
    command = [
        *(sys.executable, "-m", "fuzz.one", name, str(corpus), f"-max_total_time={max(1, seconds)}"),
        *("-print_final_stats=1", "-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={FOLDER}/{name}-"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    said = done.stdout + done.stderr
    (FOLDER / f"{name}.log").write_text(said)
    units, peak, last = _UNITS.search(said), _PEAK.search(said), _COVERAGE.findall(said)
    edges, features, size = map(int, last[-1]) if last else (0, 0, 0)
    failed = done.returncode != 0 or units is None
    return Outcome(name, int(units[1]) if units else 0, edges, features, size, int(peak[1]) if peak else 0, failed)


def main() -> int:
    """The command; exit code 1 if an invariant broke."""
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description="Fuzz every reader of bytes from outside.")
    parser.add_argument("--seconds", type=int, default=600, help="Time for all targets together.")
    parser.add_argument("--jobs", type=int, default=1, help="Targets at a time.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"Default: all of {', '.join(TARGETS)}.")
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    names = options.targets or list(TARGETS)
    share = options.seconds * options.jobs // len(names)
    print(f"{len(names)} targets, {share} s each, {options.jobs} at a time", flush=True)
    print(f"{'target':<20}{'executions':>12}{'edges':>8}{'features':>10}{'corpus':>8}{'MB':>6}")
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for outcome in pool.map(lambda name: fuzz(name, TARGETS[name].seeds, share), names):
            outcomes.append(outcome)
            print(
                f"{outcome.name:<20}{outcome.executions:>12}{outcome.edges:>8}{outcome.features:>10}{outcome.corpus:>8}"
                f"{outcome.peak_mb:>6}{'  FAILED, see ' + str(FOLDER / outcome.name) + '.log' if outcome.failed else ''}",
                flush=True,
            )
    failed = [outcome.name for outcome in outcomes if outcome.failed]
    print(f"{sum(outcome.executions for outcome in outcomes)} executions, {len(failed)} targets failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
