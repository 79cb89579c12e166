"""``make bench-ledger``: auditing exports of growing size, and making and checking proofs over them.

For each size a ledger is written through the ordinary way (admissions, windows, epochs with a SPEND leaf per contribution,
close) and exported; then a fresh process audits the export, all epsilons recomputed, and reports its wall time, processor time
and peak memory, libraries included. Growth is the time per leaf from one size to the next. Writing is timed too, and named for
what it is: through the store, durable, every leaf checked on the way.
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
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import public_bytes
from attest.policy import ClassRule, DepthRule, Policy, sign_policy, verify_policy
from attest.stack import NO_TOWER, Stack, StackTensor, Tower
from ledger.handles import AdmitSpec
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.note import NoteSigner

EPOCHS = 5
START = 1_750_000_000
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = NoteSigner("benchmark/run", KEY)


def header(**rules: Any) -> HeaderSpec:
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
    payload, message = sign_policy(policy, KEY, owner="owner", registry_root=bytes(32))
    signed = verify_policy(payload, message, public_bytes(KEY))
    layers = tuple(f"layers.{layer}" for layer in range(12))
    tensors = [StackTensor((f"{name}.weight",), 1_000, ((NO_TOWER, place),)) for place, name in enumerate(layers)]
    return HeaderSpec(
        policy=signed,
        owner_key=public_bytes(KEY),
        registry_root=bytes(32),
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
        digest, rule.name, n % 3, rule.clip_norm_micro, rule.noise_multiplier_micro, 0, digest, digest[:8], digest
    )


def run_epoch(ledger: Ledger, number: int, now: int) -> None:
    """Four windows of sixteen steps, and the close of an epoch."""
    for window in range(4 * number + 1, 4 * number + 5):
        step = ledger.state.position
        charged = ledger.charge(step + 1, 16, now=now, noise_stream=window.to_bytes(16, "big"))
        ledger.settle(charged, 16, now=now)
    ledger.close_epoch(ledger.state.position, bytes(32), isolation="held", now=now)


def write_ledger(base: Path, size: int) -> dict[str, float]:
    """Writes a ledger of about ``size`` leaves and exports it; returns the seconds that each part took."""
    contributions = max(1, (size - 60) // (1 + EPOCHS))
    spec, now, took = header(), START, {}
    with Ledger.create(base / "ledger.db", spec, SIGNER, now=now) as ledger:
        start = time.perf_counter()
        ledger.admit((admission(spec, n) for n in range(contributions)), now=now)
        took["admit"] = time.perf_counter() - start
        start = time.perf_counter()
        for number in range(EPOCHS):
            run_epoch(ledger, number, now)
        ledger.finish(now=now)
        took["run"] = time.perf_counter() - start
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


def measure(size: int) -> dict[str, Any]:
    """Writes and audits one size."""
    with tempfile.TemporaryDirectory() as base:
        took = write_ledger(Path(base), size)
        command = [sys.executable, "-m", "benchmarks.ledger", "--audit", f"{base}/export"]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return {**json.loads(found.stdout), "took": took}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="numbers of leaves")
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
    print("   leaves  verdict  audit s  cpu s  us/leaf  peak MiB   admit s  run s  export s")
    for row in rows:
        took, per_leaf = row["took"], row["wall"] / row["size"] * 1e6
        print(
            f"{row['size']:>9}  {row['verdict']:>7}  {row['wall']:7.2f}  {row['cpu']:5.1f}  {per_leaf:7.1f}"
            f"  {row['rss_mib']:8.0f}   {took['admit']:7.1f}  {took['run']:5.1f}  {took['export']:8.1f}"
        )


if __name__ == "__main__":
    main()
