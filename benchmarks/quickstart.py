"""``python -m benchmarks.quickstart``: the whole way from a file of records to the first step, by ``dptrain quickstart``.

For each number a .jsonl of short texts with labels is written. Then two processes follow one another: the command, and the
program that it wrote, which ends behind its first optimizer step. Wall time, and processor time with the gate's workers; peak
memory of the largest process; bytes on disk per contribution, of what the folder holds then. Imports are included.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = 5_000
LONGEST = 20

TO_THE_FIRST_STEP = """
import runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook

class Enough(BaseException):
    pass

def enough(*_):
    raise Enough

register_optimizer_step_post_hook(enough)
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except Enough:
    sys.exit(7)
"""
"""Program around the one that the command wrote; 7 says that the first step was made."""

PARTS = {"records": "*.jsonl", "attestations": "*.attest", "ledger": "ledger.db*"}
"""Files of the folder, by what they are; the ledger with the reading of the gate that is kept beside it."""


def write_records(path: Path, count: int) -> None:
    """Writes records of a text, 4 to 20 made-up words, and a label."""
    draw = random.Random(0)
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            text = " ".join(f"word{draw.randrange(WORDS)}" for _ in range(draw.randint(4, LONGEST)))
            stream.write(json.dumps({"text": text, "label": number % 2}) + "\n")


def timed(command: Sequence[str], *, expected: int) -> dict[str, float]:
    """Runs a process to its end.

    Returns:
        ``wall_s``; ``cpu_s``, of its children too; ``peak_mib`` of the largest of them.

    Raises:
        RuntimeError: it ended otherwise than it should, with the last line of its errors.
    """
    with tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != expected:
            errors.seek(0)
            told = errors.read().strip().splitlines() or ["without a word"]
            raise RuntimeError(f"{command[-2:]} ended with {process.returncode}, expected {expected}: {told[-1]}")
    return {"wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 1024}


def sizes(folder: Path, count: int) -> dict[str, float]:
    """Returns bytes per contribution of each of `PARTS`, and of the whole folder."""
    found = {
        name: sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / count
        for name, pattern in PARTS.items()
    }
    return found | {"all": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / count}


def measure(count: int) -> dict[str, Any]:
    """Runs the way once, in a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="bench-quickstart-") as folder:
        data, run = Path(folder) / "data.jsonl", Path(folder) / "run"
        write_records(data, count)
        made = timed([sys.executable, "-m", "dptrain", "quickstart", str(data), "--dir", str(run)], expected=0)
        trained = timed([sys.executable, "-c", TO_THE_FIRST_STEP, str(run / "train.py")], expected=7)
        return {"records": count, "quickstart": made, "first_step": trained, "bytes": sizes(run, count)}


def render(row: dict[str, Any]) -> str:
    """Three lines."""
    lines = [f"{row['records']:,} contributions"]
    for name in ("quickstart", "first_step"):
        part = row[name]
        lines.append(
            f"  {name:<12} {part['wall_s']:7.1f} s wall, {part['cpu_s']:7.1f} s of processors, peak {part['peak_mib']:.0f} MiB"
        )
    both = row["quickstart"]["wall_s"] + row["first_step"]["wall_s"]
    told = ", ".join(f"{name} {size:.0f}" for name, size in row["bytes"].items())
    lines.append(f"  to the first step {both / 60:.2f} minutes; bytes per contribution: {told}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per number of contributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[200_000], help="numbers of contributions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    rows = [measure(count) for count in chosen.records]
    print(json.dumps({"rows": rows}, indent=1) if chosen.json else "\n".join(map(render, rows)))


if __name__ == "__main__":
    main()
