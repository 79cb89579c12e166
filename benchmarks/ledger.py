"""``make bench-ledger``: what an epoch costs, and auditing exports, at growing numbers of contributions.

For each number a ledger is written through the ordinary way (admissions, windows, epochs, close) and exported; then a fresh
process audits the export, all epsilons recomputed, and reports its wall time, processor time and peak memory, libraries
included. Writing is timed too, and named for what it is: through the store, durable, every leaf checked on the way. Of closing
an epoch three times are told, each with the bytes of its leaves: the first one, the median of those in which nobody came or
left, and one before which one in a hundred left.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import public_bytes
from attest.policy import ClassRule, DepthRule, Policy, sign_policy, verify_policy
from attest.schedule.stack import NO_TOWER, Stack, StackTensor, Tower
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.contributions import AdmitSpec

EPOCHS = 5
START = 1_750_000_000
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = NoteSigner("benchmark/run", KEY)


def header(registry_root: bytes = bytes(32), **rules: Any) -> HeaderSpec:
    """Three classes over nested bands of twelve layers, five epochs of four windows; further rules of the policy by name."""
    names = ("whole", "upper", "head")
    classes = tuple(
        ClassRule(
            name=name,
            clip_norm_micro=1_000_000,
            noise_multiplier_micro=1_000_000 + 500_000 * place,
            sampling_rate=Fraction(1, 100 + 50 * place),
            depth=DepthRule(band=(Fraction(place, 3), Fraction(1))),
        )
        for place, name in enumerate(names)
    )
    fields: dict[str, Any] = {"steps": 16 * 4 * EPOCHS, "normalizer": 64, "epoch_steps": 64, "classes": classes} | rules
    policy = Policy(corpus="benchmark", delta=Fraction(1, 10**7), **fields)
    payload, message = sign_policy(policy, KEY, owner="owner", registry_root=registry_root)
    signed = verify_policy(payload, message, public_bytes(KEY))
    layers = tuple(f"layers.{layer}" for layer in range(12))
    tensors = [StackTensor((f"{name}.weight",), 1_000, ((NO_TOWER, place),)) for place, name in enumerate(layers)]
    return HeaderSpec(
        policy=signed,
        owner_key=public_bytes(KEY),
        registry_root=registry_root,
        model_fingerprint=bytes(32),
        stack=Stack((Tower(NO_TOWER, "", layers),), tuple(sorted(tensors, key=lambda tensor: tensor.names))),
        isolation="held",
        randomness="addressed",
        unprobed=(),
    )


def admission(spec: HeaderSpec, n: int) -> AdmitSpec:
    """The n-th contribution, at the presets of its class."""
    rule, digest = spec.policy.policy.classes[n % 3], hashlib.sha256(b"%d" % n).digest()
    return AdmitSpec(
        digest, rule.name, n % 3, *rule.bounds, digest, digest[:8], digest
    )


def run_epoch(ledger: Ledger, number: int, now: int) -> tuple[float, int]:
    """Four windows of sixteen steps, and the close of an epoch: its seconds of processor time, and the bytes of its leaves."""
    for window in range(4 * number + 1, 4 * number + 5):
        step = ledger.state.position
        charged = ledger.charge(step + 1, 16, now=now, noise_stream=window.to_bytes(16, "big"))
        ledger.settle(charged, 16, now=now)
    before, start = ledger.size, time.process_time()
    ledger.close_epoch(ledger.state.position, bytes(32), isolation="held", now=now)
    took = time.process_time() - start
    with ledger.rows() as rows:
        return took, sum(len(row.body) for row in islice(rows, before, None))


def write_ledger(base: Path, contributions: int) -> dict[str, Any]:
    """Writes a ledger and exports it; returns the seconds that each part took, and what epochs took."""
    spec, now = header(), START
    took: dict[str, Any] = {}
    with Ledger.create(base / "ledger.db", spec, SIGNER, now=now) as ledger:
        start = time.perf_counter()
        ledger.admit((admission(spec, n) for n in range(contributions)), now=now)
        took["admit"] = time.perf_counter() - start
        start = time.perf_counter()
        epochs = []
        for number in range(EPOCHS):
            if number == EPOCHS - 1:
                gone = [admission(spec, n).descriptor_hash for n in range(0, contributions, 100)]
                ledger.withdraw_all(((hash_, "contributor", bytes(32)) for hash_ in gone), now=now)
            epochs.append(run_epoch(ledger, number, now))
        ledger.finish(now=now)
        took["run"] = time.perf_counter() - start
        took["first"], took["left"] = epochs[0], epochs[-1]
        took["quiet"] = tuple(median(column) for column in zip(*epochs[1:-1], strict=True))
        start = time.perf_counter()
        ledger.export(base / "export")
        took["export"] = time.perf_counter() - start
    return took


def audit(export: Path) -> dict[str, Any]:
    """Audits in this process; for a process that does nothing else."""
    from ledger.audit import verify_export

    start = time.perf_counter()
    report = verify_export(export, [SIGNER.vkey])
    wall = time.perf_counter() - start
    return {
        "verdict": report.verdict,
        "size": report.size,
        "wall": wall,
        "cpu": time.process_time(),
        "rss_mib": peak_mib(),
        "torch": "torch" in sys.modules,
    }


def peak_mib() -> float:
    """Most memory that this process has had; ``ru_maxrss`` is at least that of the process which started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def measure(contributions: int) -> dict[str, Any]:
    """Writes and audits a ledger of so many contributions."""
    with tempfile.TemporaryDirectory() as base:
        took = write_ledger(Path(base), contributions)
        command = [sys.executable, "-m", "benchmarks.ledger", "--audit", f"{base}/export"]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return {"contributions": contributions, **json.loads(found.stdout), "took": took}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per number of contributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 200_000], help="numbers of contributions")
    parser.add_argument("--audit", type=Path, help="only audit this export and print JSON")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    if chosen.audit is not None:
        print(json.dumps(audit(chosen.audit)))
        return
    rows = [measure(size) for size in chosen.sizes]
    if chosen.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}))
        return
    print("contributions    leaves  verdict  audit s  cpu s  us/leaf  peak MiB   admit s  run s  export s")
    for row in rows:
        took, per_leaf = row["took"], row["wall"] / row["size"] * 1e6
        print(
            f"{row['contributions']:>13}  {row['size']:>8}  {row['verdict']:>7}  {row['wall']:7.2f}  {row['cpu']:5.1f}"
            f"  {per_leaf:7.1f}  {row['rss_mib']:8.0f}   {took['admit']:7.1f}  {took['run']:5.1f}  {took['export']:8.1f}"
        )
    print("\ncontributions   first epoch, cpu s, bytes   nobody came or left   1 in 100 left")
    for row in rows:
        told = (f"{took:.3f} {size:>11.0f}" for took, size in (row["took"][name] for name in ("first", "quiet", "left")))
        print(f"{row['contributions']:>13}   " + "   ".join(told))


if __name__ == "__main__":
    main()
