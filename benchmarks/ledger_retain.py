"""The last part of ``make bench-ledger``: summarising, pruning, dropping old hashes, and opening, with time and peak memory.

For each size a ledger in SQLite is written with four closed epochs, a tenth of its contributions withdrawn in the first. Then
every step of retention runs in a fresh process, which opens the ledger first: the SUMMARY leaf over the epochs past the
horizon; after an auditor has vouched and a fifth epoch was closed, the pruning of bodies; and the going of hashes. After each
the ledger is opened once more by a process that does nothing else. Peak memory is the process's, imports included. A step's own
time is without the opening before it, and per leaf it is processor time. Pruning and the going of hashes read the whole ledger
twice more, to try it first and to check it after.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.ledger import EPOCHS, SIGNER, START, admission, header, peak_mib, run_epoch
from ledger.log import Ledger
from ledger.note import Cosigner
from ledger.retention import summary_keys, vouch

AUDITOR = Cosigner("auditor.example/benchmark", Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
STEPS = ("open", "summarise", "prune", "drop_hashes")


def write(base: Path, size: int) -> None:
    """Writes a ledger of about a size, but for its last epoch."""
    spec = header(retention_epochs=1, retention_hash_epochs=1, auditors=(AUDITOR.vkey,), auditor_quorum=1)
    contributions = max(10, int((size - 60) / 1.1))
    with Ledger.create(base / "ledger.db", spec, SIGNER, now=START) as ledger:
        ledger.admit((admission(spec, n) for n in range(contributions)), now=START)
        gone = [admission(spec, n).descriptor_hash for n in range(0, contributions, 10)]
        for number in range(EPOCHS - 1):
            run_epoch(ledger, number, START)
            if not number:
                ledger.withdraw_all(((hash_, "contributor", bytes(32)) for hash_ in gone), now=START)


def vouched_and_older(base: Path) -> None:
    """An auditor vouches for the summary, and one more epoch is closed."""
    with Ledger.open(base / "ledger.db", SIGNER) as ledger:
        since = ledger.state.tally.summaries[-1].seq
        note = vouch(ledger.checkpoint, AUDITOR, [SIGNER.vkey], since=since, time=START)
        ledger.add_signatures(note, summary_keys(ledger.header))
        ledger.resume(ledger.state.position, ledger.pin(), now=START)
        run_epoch(ledger, EPOCHS - 1, START)


def step(name: str, path: Path) -> dict[str, Any]:
    """Takes one step in this process, which does nothing else."""
    start, cpu_start = time.perf_counter(), time.process_time()
    with Ledger.open(path, SIGNER) as ledger:
        opened, cpu_opened = time.perf_counter(), time.process_time()
        gone = None
        if name == "summarise":
            ledger.summarise(now=START)
        elif name != "open":
            gone = ledger.prune() if name == "prune" else ledger.drop_hashes()
        end, cpu_end = time.perf_counter(), time.process_time()
        first, last, cpu = (start, opened, cpu_opened - cpu_start) if name == "open" else (opened, end, cpu_end - cpu_opened)
        return {"size": ledger.size, "wall": last - first, "cpu": cpu, "gone": gone, "rss_mib": peak_mib()}


def fresh(name: str, base: Path) -> dict[str, Any]:
    """Takes one step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ledger_retain", "--step", name, f"{base}/ledger.db"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(size: int) -> dict[str, Any]:
    """All steps at one size."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        write(base, size)
        found = {"whole": fresh("open", base), "summarise": fresh("summarise", base)}
        vouched_and_older(base)
        found["prune"] = fresh("prune", base)
        found["pruned"] = fresh("open", base)
        found["drop_hashes"] = fresh("drop_hashes", base)
        found["lean"] = fresh("open", base)
        return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row per size and step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="numbers of leaves")
    parser.add_argument("--step", nargs=2, metavar=("NAME", "LEDGER"), help=f"only take one of {', '.join(STEPS)}; prints JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    if chosen.step is not None:
        print(json.dumps(step(chosen.step[0], Path(chosen.step[1]))))
        return
    rows = {size: measure(size) for size in chosen.sizes}
    if chosen.json:
        print(json.dumps(rows))
        return
    print("   leaves  step                     s    cpu s  us/leaf  peak MiB     gone")
    for found in rows.values():
        for name, row in found.items():
            told = f"open, {name}" if name in ("whole", "pruned", "lean") else name.replace("_", " ")
            gone = "" if row["gone"] is None else f"{row['gone']:>9}"
            print(
                f"{row['size']:>9}  {told:<18}  {row['wall']:7.2f}  {row['cpu']:7.2f}  {row['cpu'] / row['size'] * 1e6:7.1f}"
                f"  {row['rss_mib']:8.0f}{gone}"
            )


if __name__ == "__main__":
    main()
