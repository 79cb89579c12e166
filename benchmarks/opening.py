"""``python -m benchmarks.opening``: what a run costs before its first step, at growing numbers of contributions.

For each number a corpus is signed. Then four processes, one after the other, on a model of one small layer: the gate, which
verifies and keeps which signatures verified; `PrivateTraining.open` and `prepare` after it; and an opening that uses nothing of
what was kept. Wall time, processor time of the process, and peak memory with its libraries. Records are text of 200 bytes.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
    from dptrain.kept_reading import reading_beside
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


def opened(root: Path, *, kept: bool) -> dict[str, float]:
    """Seconds of `open` and `prepare`."""
    import torch

    from dptrain import PrivateTraining

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

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start, cpu = time.perf_counter(), time.process_time()
    run = PrivateTraining.open(
        root / "policy.cose", root / "corpus", ledger=root / "ledger.db", kept_reading=kept, progress=False
    )
    middle, middle_cpu = time.perf_counter(), time.process_time()
    found = {"open": middle - start, "open_cpu": middle_cpu - cpu, "spared": run.reading.spared if run.reading else 0}
    if kept:
        run.prepare(model, optimizer, collate, layers="layers")
        found |= {"prepare": time.perf_counter() - middle, "prepare_cpu": time.process_time() - middle_cpu}
    run.close()
    return found | {"peak_mib": peak_mib()}


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
    print("contributions   gate s (cpu)    open after it s (cpu)   prepare s (cpu)   open afresh s   peak MiB")
    for row in rows:
        first, after, afresh = (row[part] for part in PARTS)
        print(
            f"{row['records']:>13}  {first['gate']:6.2f} ({first['gate_cpu']:6.2f})"
            f"  {after['open']:12.2f} ({after['open_cpu']:6.2f})  {after['prepare']:8.2f} ({after['prepare_cpu']:6.2f})"
            f"  {afresh['open']:12.2f}  {after['peak_mib']:9.0f}"
        )


if __name__ == "__main__":
    main()
