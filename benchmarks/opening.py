"""``python -m benchmarks.opening``: what a run costs before its first step, at growing numbers of contributions.

For each number a corpus is signed. Then four processes, one after the other, on a model of one small layer: the gate, which
verifies and keeps which signatures verified; `PrivateTraining.open` and `prepare` after it; and an opening that uses nothing of
what was kept. The second one also begins its first step, up to the moment at which the ledger is made and everybody is in it.
Wall time, processor time of the process, and peak memory with its libraries. Records are text of 200 bytes. The processor time
inside `decode` and `collate`, which are the user's, stands in a column of its own and is in no other one.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gate import make_corpus
from benchmarks.ledger import peak_mib

PARTS = ("gate", "open", "afresh")


def gate(root: Path) -> dict[str, float]:
    """Seconds of the gate, as the command runs it."""
    from attest.corpus import open_corpus
    from attest.gate import Admitted, Gate
    from attest.keys import generate, load_public_key, save_private_key
    from attest.policy import open_policy
    from attest.registry import open_registry
    from dptrain.record.registry_watch import reading_beside
    from ledger.storage.place import Place

    place, key = Place.of(root / "ledger.db"), generate()
    save_private_key(place.key, key)
    start, cpu = time.perf_counter(), time.process_time()
    signed = open_policy(root / "policy.cose", load_public_key(root / "owner.pub"))
    registry = open_registry(root / "registry.cbor", load_public_key(root / "owner.pub"))
    reading = reading_beside(place, key, signed, registry)
    assert reading is not None
    judged = Gate(signed.policy, registry, remember=reading).judge(open_corpus(root / "corpus"), now=int(time.time()))
    admitted = sum(isinstance(outcome, Admitted) for outcome in judged)
    reading.keep()
    return {"gate": time.perf_counter() - start, "gate_cpu": time.process_time() - cpu, "admitted": admitted}


class Own:
    """Adds up the processor time inside the functions that it wraps.

    Attributes:
        seconds: so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the function, timed."""

        def run(argument: Any) -> Any:
            start = time.process_time()
            try:
                return work(argument)
            finally:
                self.seconds += time.process_time() - start

        return run


class Watch:
    """Takes wall time, processor time and peak memory from one moment to the next, without what is the user's."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self._last = self._now()

    def lap(self, name: str) -> dict[str, float]:
        """Returns what passed since the last moment, under keys that begin with a name."""
        before, self._last = self._last, self._now()
        wall, cpu, own = (now - then for now, then in zip(self._last, before, strict=True))
        return {name: wall - own, f"{name}_cpu": cpu - own, f"{name}_own": own, f"{name}_peak_mib": peak_mib()}

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self._own.seconds


def opened(root: Path, *, kept: bool) -> dict[str, float]:
    """Seconds of `open`, `prepare`, and the making of the ledger."""
    import torch

    from dptrain import PrivateTraining, RunLedger
    from dptrain.data.microbatch import json_examples

    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        digests = [hashlib.sha256(example["text"].encode()).digest()[:8] for example in examples]
        return {"x": torch.tensor([list(digest) for digest in digests], dtype=torch.float32) / 256}

    class Model(torch.nn.Module):
        """Two layers."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Returns logits."""
            for layer in self.layers:
                x = layer(x)
            return x

    model, own = Model(), Own()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ledger, watch = root / ("ledger.db" if kept else "afresh.db"), Watch(own)
    run = PrivateTraining.open(
        root / "policy.cose", root / "corpus", ledger=RunLedger(ledger, keep_reading=kept), progress=False
    )  # fmt: skip
    found = watch.lap("open") | {"spared": run.opened.reading.spared if run.opened.reading else 0}
    if kept:
        _, _, steps = run.prepare(
            model, optimizer, own.timed(collate), decode=own.timed(json_examples), layers="layers"
        )
        found |= watch.lap("prepare")
        begin = run.prepared.begin

        def begun() -> None:
            nonlocal found
            watch.lap("probes")
            begin()
            found |= watch.lap("begin")

        run.prepared.begin = begun
        for rows in next(iter(steps)):
            run.backward(run.prepared.model(rows["x"]).square().mean(1), rows)
            if run.prepared.attempt is not None:
                break
    run.close()
    if kept:
        found["ledger_bytes"] = ledger.stat().st_size
    return found


def measure(records: int, contributors: int) -> dict[str, Any]:
    """One row: each part in a process of its own over one corpus."""
    with tempfile.TemporaryDirectory(prefix="bench-opening-") as folder:
        make_corpus(Path(folder), records, contributors)
        found = {}
        for part in PARTS:
            command = [sys.executable, "-m", "benchmarks.opening", "--part", part, "--root", folder]
            found[part] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    counts = found["gate"]["admitted"], found["open"]["spared"]
    if counts != (records, records):
        raise SystemExit("of {} contributions {} were admitted and {} spared".format(records, *counts))
    return {"records": records, "contributors": contributors, **found}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per number of contributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 200_000], help="numbers of contributions")
    parser.add_argument("--contributors", type=int, default=10)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    if chosen.part is not None:
        print(json.dumps(gate(chosen.root) if chosen.part == "gate" else opened(chosen.root, kept=chosen.part == "open")))
        return
    rows = [measure(count, chosen.contributors) for count in chosen.records]
    if chosen.json:
        print(json.dumps({"rows": rows}, indent=1))
        return
    print("contributions   gate s (cpu)    open after it s (cpu)   prepare s (cpu)   user s   ledger s (cpu)   ", end="")
    print("open afresh s   peak MiB: open prepare ledger   bytes of ledger")
    for row in rows:
        first, after, afresh = (row[part] for part in PARTS)
        print(
            f"{row['records']:>13}  {first['gate']:6.2f} ({first['gate_cpu']:6.2f})"
            f"  {after['open']:12.2f} ({after['open_cpu']:6.2f})  {after['prepare']:8.2f} ({after['prepare_cpu']:6.2f})"
            f"  {after['prepare_own']:7.2f}  {after['begin']:7.2f} ({after['begin_cpu']:6.2f})  {afresh['open']:14.2f}"
            f"  {after['open_peak_mib']:14.0f} {after['prepare_peak_mib']:7.0f} {after['begin_peak_mib']:6.0f}"
            f"  {after['ledger_bytes'] / row['records']:16.0f}"
        )


if __name__ == "__main__":
    main()
