"""``make bench-serve``: what a request to a service pays before and behind its model.

*Budget*: a reservation before the model, and its settlement behind it, on SQLite and on a PostgreSQL server started for it
(where one is installed): by 1, 8 and 32 threads of one process, and by 4 processes of one thread. A request either settles at
once (`commit`), or with the next turn (`settle_later`). Every row has a fresh log and begins all its askers together. They ask
without a pause, so with many of them a request waits for others, and the rate says what the log can do.

Right before and right after each row the disk itself is measured: a page is written and synced, over one that is there and
behind the end of a file, in turns. A row whose syncs are slow was measured on a disk that was busy: read it beside others
whose syncs are the same, and not against the clock.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ledger_append import places
from ledger.budget.log import BudgetLog
from ledger.storage.place import Place
from tests.worlds.budgets import ANNA, created
from tests.worlds.ledgers import START

ASKERS = ((1, 1), (1, 8), (1, 32), (4, 1))
"""Processes, and threads of each."""

LATER = (False, True)

PAGES = 40
"""Pages written and synced around a row."""

Took = list[tuple[float, float]]
"""Seconds of each reservation, and of its settlement."""


def told(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    return {"p50": median(seconds) * 1e3, "p99": sorted(seconds)[int(len(seconds) * 0.99)] * 1e3}


def syncs(directory: Path) -> tuple[list[float], list[float]]:
    """Seconds of a page written and synced in place, and of one behind the end, in turns."""
    paths = [directory / name for name in ("in-place", "behind")]
    inside, behind = (os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for path in paths)
    try:
        os.pwrite(inside, bytes(4096 * PAGES), 0)
        os.fsync(inside)
        took: tuple[list[float], list[float]] = ([], [])
        for number in range(PAGES):
            for file, found in ((inside, took[0]), (behind, took[1])):
                start = time.perf_counter()
                os.pwrite(file, os.urandom(4096), 4096 * number)
                os.fdatasync(file)
                found.append(time.perf_counter() - start)
        return took
    finally:
        for path, file in zip(paths, (inside, behind), strict=True):
            os.close(file)
            path.unlink()


def asks(log: BudgetLog, requests: int, later: bool, begin: Callable[[], object]) -> Took:
    """Reserves and settles so often in this thread, once all others have come."""
    settle = log.settle_later if later else log.commit
    took = []
    begin()
    for _ in range(requests):
        start = time.perf_counter()
        paid = log.reserve(ANNA, "token", 1, now=START)
        reserved = time.perf_counter()
        settle(paid, 1, now=START)
        took.append((reserved - start, time.perf_counter() - reserved))
    return took


def in_threads(place: Place, threads: int, requests: int, later: bool, begin: Callable[[], object]) -> Took:
    """Asks in threads of this process over one handle; each has its share of the requests."""
    with BudgetLog.open(place) as log:
        gathered: list[Took] = []
        ready = threading.Barrier(threads, action=begin)
        share = max(1, requests // threads)

        def run() -> None:
            asks(log, 2, later, lambda: None)  # what the first call prepares
            gathered.append(asks(log, share, later, ready.wait))

        running = [threading.Thread(target=run) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if len(gathered) != threads:
            raise SystemExit("a thread of the benchmark failed")
        return [pair for took in gathered for pair in took]


def budget_row(place: Place, directory: Path, processes: int, threads: int, requests: int, later: bool) -> dict[str, Any]:
    """Measures one row on a fresh log."""
    created(place, caps={"user": (10**9, 10_000_000)}).close()
    before = syncs(directory)
    fork = multiprocessing.get_context("fork")
    barrier, answers = fork.Barrier(processes + 1), fork.SimpleQueue()

    def process() -> None:
        answers.put(in_threads(place, threads, requests // processes, later, barrier.wait))

    running = [fork.Process(target=process) for _ in range(processes)]
    for one in running:
        one.start()
    barrier.wait(120)
    start = time.perf_counter()
    took = [tuple(pair) for _ in running for pair in answers.get()]
    wall = time.perf_counter() - start
    for one in running:
        one.join()
    after = syncs(directory)
    reserved, settled = zip(*took, strict=True)
    return {
        "processes": processes,
        "threads": threads,
        "settles": "later" if later else "at once",
        "requests": len(took),
        "reserve_ms": told(reserved),
        "settle_ms": told(settled),
        "both_ms": told([a + b for a, b in took]),
        "per_second": len(took) / wall,
        "sync_in_place_ms": told([*before[0], *after[0]]),
        "sync_behind_ms": told([*before[1], *after[1]]),
    }


def budget(requests: int, directory: Path) -> list[dict[str, Any]]:
    """Reserving and settling, on every database of this machine."""
    rows = []
    with places(directory) as named:
        for processes, threads in ASKERS:
            for later in LATER:
                for name, place in named(f"budget_{processes}_{threads}_{'later' if later else 'once'}").items():
                    rows.append({"store": name} | budget_row(place, directory, processes, threads, requests, later))
    return rows


def render_budget(rows: list[dict[str, Any]]) -> str:
    """A line per row; times in ms, as median and 99th percentile."""
    lines = ["store       processes x threads  settles       reserve ms        settle ms          both ms  per s  sync, behind"]
    for row in rows:
        shown = (row[f"{name}_ms"] for name in ("reserve", "settle", "both"))
        times = "  ".join(f"{times['p50']:6.2f} {times['p99']:8.2f}" for times in shown)
        syncing = f"{row['sync_in_place_ms']['p50']:.2f}, {row['sync_behind_ms']['p50']:.2f}"
        who = f"{row['processes']} x {row['threads']}"
        lines.append(f"{row['store']:<10}  {who:<19}  {row['settles']:<8}  {times}  {row['per_second']:5.0f}  {syncing}")
    return "\n".join(lines)


PARTS: dict[str, tuple[Callable[[int, Path], Any], Callable[[Any], str]]] = {"budget": (budget, render_budget)}
"""Names what measures a part, with a number of requests and a directory, and what prints it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a table per part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="these parts; default all")
    parser.add_argument("--requests", type=int, default=2_000, help="requests of a row; default 2000")
    parser.add_argument("--directory", type=Path, help="where logs lie: on the disk to be measured, not in memory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=chosen.directory) as base:
        root = Path(base)
        root.chmod(0o711)  # a server may run as another user, below here
        found = {name: PARTS[name][0](chosen.requests, root) for name in chosen.parts or PARTS}
    if chosen.json:
        print(json.dumps(found))
        return
    for name, rows in found.items():
        print(PARTS[name][1](rows))


if __name__ == "__main__":
    main()
