"""The second part of ``make bench-ledger``: appending to a store, what a window of steps pays, and opening a ledger.

*Appending*: WITHDRAW leaves, encoded beforehand, go through ``Store.append`` in batches, with triggers, index, leaf hashes,
frontier and one durable commit a batch; on SQLite, and on a PostgreSQL server started for it (where one is installed). Beside
it stands the same loop without a store (leaf hashes and frontier alone), so that the store's own share can be read off.

*Windows*: charge and settle of 16 steps through `Ledger`, high-water file included, per step and as a share of a step of half a
second. Beside it stands one 4 KiB write with fsync, because a window costs a handful of them.

*Opening*: a fresh process opens a ledger of a given size, checks it, and reports time and peak memory.

Batches alternate between the stores, so that a machine that slows down does so for both; the median batch is reported.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ledger import SIGNER, START, header, peak_mib, write_ledger
from ledger.leaves import Withdraw, encode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.storage.place import Place
from ledger.storage.store import Row, Store, create_store
from tests.worlds.postgres import Cluster, server_binary

BATCHES = (1, 1_024, 8_192)
"""Rows per commit."""

WINDOW_STEPS = 16
STEP_SECONDS = 0.5
"""What a training step is reckoned to take, for the share that charging adds to it."""


def withdrawals(first: int, count: int) -> list[bytes]:
    """Bodies of WITHDRAW leaves."""
    made = []
    for seq in range(first, first + count):
        digest = leaf_hash(seq.to_bytes(8, "big"))
        made.append(encode_leaf(Withdraw(seq + 1, START, digest, seq // 2 + 1, "expired", digest)))
    return made


def rows_of(first: int, bodies: list[bytes], frontier: Frontier) -> list[Row]:
    """Leaf hashes and rows, with the frontier carried along: what every append computes."""
    rows = []
    for seq, body in enumerate(bodies, start=first):
        hashed = leaf_hash(body)
        rows.append(Row(seq, Withdraw.KIND, hashed, body))
        frontier.append(hashed)
    return rows


def append(stores: dict[str, Store], batch: int, rounds: int) -> dict[str, float]:
    """Rows per second of every store at one batch size: the median batch."""
    took: dict[str, list[float]] = {name: [] for name in (*stores, "no store")}
    frontiers = {name: _head(store) for name, store in stores.items()} | {"no store": Frontier()}
    for _ in range(rounds):
        for name, frontier in frontiers.items():
            first = frontier.size
            bodies = withdrawals(first, batch)
            start = time.perf_counter()
            rows = rows_of(first, bodies, frontier)
            if name in stores:
                stores[name].append(rows, frontier)
            took[name].append(time.perf_counter() - start)
    return {name: batch / median(seconds) for name, seconds in took.items()}


def _head(store: Store) -> Frontier:
    with store.snapshot() as snapshot:
        return snapshot.head()


def windows(ledger: Ledger, count: int) -> float:
    """Seconds that charge and settle of one window take together: the median."""
    took = []
    for number in range(1, count + 1):
        step = ledger.state.position
        start = time.perf_counter()
        window = ledger.charge(step + 1, WINDOW_STEPS, now=START, noise_stream=number.to_bytes(16, "big"))
        ledger.settle(window, WINDOW_STEPS, now=START)
        took.append(time.perf_counter() - start)
    return median(took)


def synced_write(directory: Path, count: int = 50) -> float:
    """Seconds of one 4 KiB write with fsync to the disk of the ledgers: the median."""
    took = []
    with (directory / "synced").open("wb", buffering=0) as stream:
        for _ in range(count):
            start = time.perf_counter()
            stream.write(bytes(4096))
            os.fsync(stream.fileno())
            took.append(time.perf_counter() - start)
    return median(took)


def opening(ledger: Path) -> dict[str, float]:
    """Opens a ledger in this process, which does nothing else."""
    before = peak_mib()
    start = time.perf_counter()
    with Ledger.open(ledger, SIGNER) as log:
        wall, size = time.perf_counter() - start, log.size
    peak = peak_mib()
    return {"size": size, "wall": wall, "rss_mib": peak, "grown_mib": peak - before}


def measure_opening(size: int) -> dict[str, float]:
    """Writes a ledger of about a size and opens it in a fresh process."""
    with tempfile.TemporaryDirectory() as base:
        write_ledger(Path(base), size)
        command = [sys.executable, "-m", "benchmarks.ledger_append", "--open", f"{base}/ledger.db"]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@contextmanager
def places(directory: Path) -> Iterator[Callable[[str], dict[str, Place]]]:
    """Gives places for a ledger of a name on every database of this machine; the server runs only here."""
    cluster = Cluster(directory=directory) if server_binary("postgres") else None

    def named(name: str) -> dict[str, Place]:
        found = {"SQLite": Place.of(directory / f"{name}.db")}
        if cluster is not None:
            found["PostgreSQL"] = Place.of(f"{cluster.url()}?schema={name}", directory / f"{name}.state")
        return found

    try:
        yield named
    finally:
        if cluster is not None:
            cluster.stop()


def measure(rounds: int, directory: Path | None) -> dict[str, Any]:
    """Appending and windows, on every database."""
    with tempfile.TemporaryDirectory(dir=directory) as base:
        root = Path(base)
        root.chmod(0o711)  # the server may run as another user, below here
        found: dict[str, Any] = {"append": {}, "window": {}, "synced_write": synced_write(root)}
        with places(root) as named:
            for batch in BATCHES:
                stores = {name: create_store(place) for name, place in named(f"append_{batch}").items()}
                try:
                    found["append"][batch] = append(stores, batch, rounds if batch > 1 else 10 * rounds)
                finally:
                    for store in stores.values():
                        store.close()
            for name, place in named("windows").items():
                with closing(Ledger.create(place, header(), SIGNER, now=START)) as ledger:
                    found["window"][name] = windows(ledger, 16)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints three small tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="batches per store and batch size")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000], help="leaves of ledgers that are opened")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure; default: the temporary one")
    parser.add_argument("--open", type=Path, help="only open this ledger and print JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    if chosen.open is not None:
        print(json.dumps(opening(chosen.open)))
        return
    found = measure(chosen.rounds, chosen.dir) | {"open": [measure_opening(size) for size in chosen.sizes]}
    if chosen.json:
        print(json.dumps(found))
        return
    print("rows per second    batch " + "".join(f"{name:>14}" for name in found["append"][1]))
    for batch, rates in found["append"].items():
        print(f"{batch:>24} " + "".join(f"{rate:14,.0f}" for rate in rates.values()))
    print(f"\none write with fsync: {found['synced_write'] * 1e3:.2f} ms")
    for name, seconds in found["window"].items():
        share = f"{seconds / WINDOW_STEPS / STEP_SECONDS:.2%} of a {STEP_SECONDS} s step"
        print(f"charge and settle on {name}: {seconds * 1e3:.1f} ms a window of {WINDOW_STEPS}, {share}")
    print("\n   leaves  open s  us/leaf  peak MiB  of which opening")
    for row in found["open"]:
        print(
            f"{row['size']:>9}  {row['wall']:6.2f}  {row['wall'] / row['size'] * 1e6:7.1f}  {row['rss_mib']:8.0f}"
            f"  {row['grown_mib']:16.0f}"
        )


if __name__ == "__main__":
    main()
