"""``python -m benchmarks.ledger_attested``: what it costs an auditor to hold every admission against what was signed.

For each number of contributions attestations are signed, admitted and exported. Then three processes, one after the other: the
bare Ed25519 verifications (messages and keys ready in memory); the audit of the export without its attestations; and the audit
of the whole export. What the second audit takes more than the first is what holding attestations costs; the ratio is that over
the bare verifications, in processor time, so that a machine with other work too can tell it.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from attest.attestation import CommonTerms, Framing, subject_of
from attest.corpus.signing import SigningTemplate
from attest.keys import key_id, public_bytes
from attest.registry import Enrol, RegistryLog
from benchmarks.ledger import EPOCHS, KEY, SIGNER, START, header, peak_mib, run_epoch
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.replay.contributions import AdmitSpec

PARTS = ("bare", "told", "held")
YEAR = 365 * 86_400


def people(count: int) -> dict[str, Ed25519PrivateKey]:
    """Keys of contributors, by name."""
    return {f"contributor-{n:06d}": Ed25519PrivateKey.from_private_bytes(n.to_bytes(32, "big")) for n in range(1, count + 1)}


def terms_of(name: str, key: Ed25519PrivateKey, spec: HeaderSpec) -> list[CommonTerms]:
    """Returns what one contributor signs for each class, at its presets."""
    found = []
    for rule in spec.policy.policy.classes:
        template = SigningTemplate(
            contributor=name, data_class="benchmark", admissibility_class=rule.name, corpus="benchmark",
            clip_norm_micro=rule.clip_norm_micro, noise_multiplier_micro=rule.noise_multiplier_micro, not_before=START - 60,
            not_after=START + YEAR,
        )  # fmt: skip
        found.append(CommonTerms.of(template.descriptor(bytes(32)).signed, key_id(public_bytes(key))))
    return found


@dataclass(frozen=True, slots=True)
class Signed:
    """A contribution: whose key signed which bytes, the signature, and its admission."""

    key: Ed25519PrivateKey
    message: bytes
    signature: bytes
    admission: AdmitSpec


def signed(contributions: int, contributors: int, spec: HeaderSpec) -> Iterator[Signed]:
    """Contributions in turn by each contributor and class."""
    keys = people(contributors)
    framings = [
        (key, place, terms, Framing(terms))
        for name, key in keys.items()
        for place, terms in enumerate(terms_of(name, key, spec))
    ]
    for n in range(contributions):
        key, place, terms, framing = framings[n % len(framings)]
        content = n.to_bytes(32, "big")
        descriptor = framing.descriptor(content)
        subject = subject_of(descriptor)
        message = framing.to_be_signed(descriptor, subject)
        signature = key.sign(message)
        digest = framing.digest(descriptor, framing.message(subject, signature))
        bounds = terms.signed
        admission = AdmitSpec(
            descriptor_hash=hashlib.sha256(descriptor).digest(),
            class_name=bounds.admissibility_class,
            profile_id=place,
            **bounds.bounds._asdict(),
            attestation_hash=digest,
            key_id=terms.key_id,
            anchor=content,
            attestation=(terms, signature),
        )
        yield Signed(key, message, signature, admission)


def write(root: Path, contributions: int, contributors: int) -> None:
    """Writes a registry, a ledger over it, and its export with and without attestations."""
    log = RegistryLog.create(root / "registry.cbor", KEY, owner="owner", now=START - 120)
    valid = {"not_before": START - 60, "not_after": START + YEAR, "classes": ("head", "upper", "whole")}
    log.append([Enrol(name, public_bytes(key), **valid) for name, key in people(contributors).items()], now=START - 60)
    spec = header(log.registry.root(), contributor_cap=2**32 - 1)
    with Ledger.create(root / "ledger.db", spec, SIGNER, now=START) as ledger:
        ledger.admit((item.admission for item in signed(contributions, contributors, spec)), now=START)
        for number in range(EPOCHS):
            run_epoch(ledger, number, START)
        ledger.finish(now=START)
        ledger.export(root / "held", registry=root / "registry.cbor")
        ledger.export(root / "told", registry=root / "registry.cbor", attestations=False)


def bare(contributions: int, contributors: int) -> dict[str, float]:
    """Seconds of all verifications and nothing else, taken in parts whose messages are made beforehand."""
    keys: dict[int, Ed25519PublicKey] = {}
    found = {"wall": 0.0, "cpu": 0.0}
    stream = signed(contributions, contributors, header(contributor_cap=2**32 - 1))
    while part := list(islice(stream, 10_000)):
        for item in part:
            keys.setdefault(id(item.key), item.key.public_key())
        wall, cpu = time.perf_counter(), time.process_time()
        for item in part:
            keys[id(item.key)].verify(item.signature, item.message)
        found["wall"] += time.perf_counter() - wall
        found["cpu"] += time.process_time() - cpu
    return found


def audit(export: Path, verdict: str) -> dict[str, float]:
    """Seconds and peak memory of an audit, libraries included."""
    from ledger.audit import verify_export

    wall, cpu = time.perf_counter(), time.process_time()
    report = verify_export(export, [SIGNER.vkey])
    if report.verdict != verdict:
        raise SystemExit(f"expected {verdict}, the audit says {report.verdict}: {report.findings[:1]} {report.notes}")
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "peak_mib": peak_mib()}


def measure(contributions: int, contributors: int) -> dict[str, Any]:
    """One row: each part in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-attested-") as folder:
        root = Path(folder)
        write(root, contributions, contributors)
        row: dict[str, Any] = {"contributions": contributions, "contributors": contributors}
        for part in PARTS:
            command = [sys.executable, "-m", "benchmarks.ledger_attested", "--part", part, "--root", folder]
            command += ["--sizes", str(contributions), "--contributors", str(contributors)]
            row[part] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        row["bytes"] = sum(path.stat().st_size for path in (root / "held").rglob("*") if path.is_file()) / contributions
    row["ratio"] = (row["held"]["cpu"] - row["told"]["cpu"]) / row["bare"]["cpu"]
    return row


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one row per number of contributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000], help="numbers of contributions")
    parser.add_argument("--contributors", type=int, default=10)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    if chosen.part == "bare":
        print(json.dumps(bare(chosen.sizes[0], chosen.contributors)))
    elif chosen.part is not None:
        print(json.dumps(audit(chosen.root / chosen.part, "FULL" if chosen.part == "held" else "TOLD")))
    else:
        rows = [measure(size, chosen.contributors) for size in chosen.sizes]
        if chosen.json:
            print(json.dumps({"rows": rows}, indent=1))
            return
        print("contributions   bare cpu s   audit, told, cpu s   audit, held, cpu s   ratio   peak MiB   bytes a contribution")
        for row in rows:
            print(
                f"{row['contributions']:>13}   {row['bare']['cpu']:10.1f}   {row['told']['cpu']:18.1f}"
                f"   {row['held']['cpu']:18.1f}   {row['ratio']:5.2f}   {row['held']['peak_mib']:8.0f}   {row['bytes']:20.0f}"
            )


if __name__ == "__main__":
    main()
