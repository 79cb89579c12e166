"""The step of this tree beside that of a revision: ``python -m benchmarks.against dcea74c --only bert_lora --rounds 8``.

Every tree runs in a process of its own, and their steps take turns in random order: what drifts in the machine hits both alike.
The ratio is that of medians; its range is the middle half of the rounds' own ratios. One process a tree and configuration.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.configs import CONFIGS
from tests.house.__main__ import revision

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = ("cpu", "wall")

# Run in the other tree: nothing in it may be newer than `benchmarks.variants` and `benchmarks.configs` of the revision.
WORKER = """
import json, sys, time, torch
from benchmarks.configs import by_name, few
from benchmarks.variants import VARIANTS
name, variant, threads, small = sys.argv[1:]
torch.set_num_threads(int(threads))
config = few(by_name(name)) if small == "few" else by_name(name)
with VARIANTS[variant](config) as step:
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        print(json.dumps({"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}), flush=True)
"""


class Stepping:
    """A process that runs a step when it is told, and says in one line of JSON what the step took."""

    def __init__(self, command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._said("ready")

    def step(self) -> dict[str, float]:
        """Seconds of CPU and wall time that one step took."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._said('{"'))

    def _said(self, start: str) -> str:
        """Next line that starts so; a worker may print others.

        Raises:
            RuntimeError: the worker ended, with the last line of its errors.
        """
        assert self._process.stdout is not None and self._process.stderr is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        raise RuntimeError(f"a worker ended: {(self._process.stderr.read().strip() or 'without a word').splitlines()[-1]}")

    def peak_mib(self) -> float:
        """Peak resident memory of the process so far (Linux)."""
        told = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in told if line.startswith("VmHWM:")) / 1024

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Worker(Stepping):
    """Runs steps of a variant, in the source tree `root`."""

    def __init__(self, root: Path, config: str, variant: str, threads: int, *, small: bool) -> None:
        command = [sys.executable, "-W", "ignore", "-c", WORKER, config, variant, str(threads), "few" if small else "all"]
        super().__init__(command, root, {"PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"})


def turns(workers: Mapping[str, Stepping], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of every worker's step, round by round."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name in random.sample(list(workers), len(workers)):
            taken[name].append(workers[name].step())
    return taken


def ratio(ours: list[dict[str, float]], theirs: list[dict[str, float]], clock: str) -> tuple[float, float, float]:
    """Ratio of medians, and first and third quartile of the rounds' ratios."""
    pairs = sorted(a[clock] / b[clock] for a, b in zip(ours, theirs, strict=True))
    low, _, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else (pairs[0],) * 3
    return statistics.median(a[clock] for a in ours) / statistics.median(b[clock] for b in theirs), low, high


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="revision of this repository to stand beside")
    parser.add_argument("--only", nargs="+", choices=list(CONFIGS), default=["bert_lora", "bert_full", "gpt2_lora"])
    parser.add_argument("--variant", default="ours_fast", help="variant of the step; default ours_fast")
    parser.add_argument("--base", default="non_private", help="step without privacy that both are shown against")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--few", action="store_true", help="two microbatches a step in place of all")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    found = {}
    with revision(ROOT, asked.revision) as old:
        for config in asked.only:
            start = time.monotonic()
            with contextlib.ExitStack() as stack:
                workers = {}
                for name, root, variant in (
                    ("then", old, asked.variant), ("now", ROOT, asked.variant), ("base", ROOT, asked.base)
                ):  # fmt: skip
                    workers[name] = Worker(root, config, variant, asked.threads, small=asked.few)
                    stack.callback(workers[name].close)
                taken = turns(workers, asked.rounds)
            found[config] = {
                clock: {
                    "then_to_base": ratio(taken["then"], taken["base"], clock),
                    "now_to_base": ratio(taken["now"], taken["base"], clock),
                    "now_to_then": ratio(taken["now"], taken["then"], clock),
                }
                for clock in CLOCKS
            }
            if not asked.json:
                for clock, row in found[config].items():
                    told = ", ".join(f"{name.replace('_', ' ')} {a:.3f} ({b:.3f}..{c:.3f})" for name, (a, b, c) in row.items())
                    print(f"{config:<12} {clock:<5} {told}   [{time.monotonic() - start:.0f} s]", flush=True)
    if asked.json:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
