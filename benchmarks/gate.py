"""``make bench-gate``: the admission gate beside the bare signature checks that it cannot do without.

Every round measures, one after the other on the same corpus and with the same number of processes: the bare Ed25519
verifications (messages and keys ready in memory, processes started beforehand), and the gate with everything it does (reading
and hashing the data, strict decoding, all checks, starting its workers). The ratio is formed within each round; the median
over rounds is printed, of wall time and, for a machine that has other work too, of the processor time of all processes
together. Peak memory is that of the process that drives the gate, Python and libraries included. ``kept`` is the processor time
of a reading in a process of its own after another one kept which signatures verified. Give several ``--records`` or
``--contributors`` for one row each.

``--registry`` measures the opening of a registry of so many contributors, with the names beside it, and nothing else: seconds,
processor time and peak memory of a process of its own, and a look-up of a contributor by name with the test of its key.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from attest import cbor, sign1, signed_file
from attest.attestation import Attestation, read_sequence
from attest.corpus import SigningTemplate, open_corpus, sign_corpus
from attest.gate import Admitted, Gate
from attest.gate.reading import Context, KeptReading, Verified
from attest.keys import check_public_key, generate, load_public_key, public_bytes, save_public_key
from attest.policy import ClassRule, DepthRule, Policy, open_policy, sign_policy
from attest.processes import available_processors
from attest.registry import Enrol, RegistryLog, open_registry
from attest.registry.entries import SCHEMA, join, root_of, split
from attest.schema.plain import REGISTRY_CONTRIBUTOR, SALT_SIZE, commit

DAY = 86400
CORPUS = "benchmark"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Of the ledger for which a reading is kept."""

COLUMNS = (
    ("records", "records", ""), ("people", "contributors", ""), ("workers", "workers", ""), ("bare s", "bare_seconds", ".2f"),
    ("gate s", "gate_seconds", ".2f"), ("ratio", "ratio", ".2f"), ("cpu ratio", "cpu_ratio", ".2f"),
    ("again s", "again_seconds", ".2f"), ("kept s", "kept_cpu_seconds", ".2f"), ("peak MiB", "peak_mib", ".0f"),
    ("decode us", "descriptor_open_us", ".1f"),
)  # fmt: skip
"""Heads of the columns, and what stands in them."""

REGISTRY_COLUMNS = (
    ("contributors", "contributors", ""), ("file MiB", "file_mib", ".0f"), ("entries", "entries", ""),
    ("open s", "seconds", ".2f"),
    ("open cpu s", "cpu_seconds", ".2f"), ("peak MiB", "peak_mib", ".0f"), ("before MiB", "start_mib", ".0f"),
    ("find us", "find_us", ".1f"), ("test key us", "key_test_us", ".1f"),
)  # fmt: skip

_ENROLLED_AT_ONCE = 1700
"""Enrolments in one entry, about as many as `RegistryLog` puts there."""


def make_corpus(root: Path, records: int, contributors: int) -> None:
    """A signed policy, a registry and ``records`` attested JSONL records of some 200 bytes by ``contributors`` contributors."""
    now = int(time.time())
    owner = generate()
    keys = {f"contributor-{index:06d}": generate() for index in range(contributors)}
    log = RegistryLog.create(root / "registry.cbor", owner, owner="owner", now=now)
    log.append(
        [
            Enrol(name, public_bytes(key), not_before=now - DAY, not_after=now + DAY, classes=("all",))
            for name, key in keys.items()
        ],
        now=now,
    )
    policy = Policy(
        corpus=CORPUS,
        delta=Fraction(1, 10**8),
        steps=1000,
        normalizer=64,
        classes=(
            ClassRule(
                name="all",
                clip_norm_micro=1_000_000,
                noise_multiplier_micro=1_000_000,
                sampling_rate=Fraction(1, 1000),
                depth=DepthRule(band=(Fraction(0), Fraction(1))),
            ),
        ),
        contributor_cap=2**32 - 1,
    )
    save_public_key(root / "owner.pub", public_bytes(owner), "owner")
    signed_file.write(root / "policy.cose", *sign_policy(policy, owner, owner="owner", registry_root=log.registry.root()))
    (root / "corpus").mkdir()
    for index, (name, key) in enumerate(keys.items()):
        data = root / "corpus" / f"{name}.jsonl"
        with data.open("w") as stream:
            for number in range(index, records, contributors):
                text = hashlib.sha256(number.to_bytes(8, "big")).hexdigest() * 3
                stream.write(json.dumps({"text": text, "label": number % 2}) + "\n")
        template = SigningTemplate(
            contributor=name, data_class="benchmark", admissibility_class="all", corpus=CORPUS, not_before=now - 60,
            not_after=now + 3600, clip_norm_micro=1_000_000, noise_multiplier_micro=1_000_000,
        )  # fmt: skip
        sign_corpus(data, None, key, template)


def bare(root: Path, workers: int) -> dict[str, float]:
    """Seconds that ``workers`` processes need for all signatures and nothing else."""
    registry = open_registry(root / "registry.cbor", load_public_key(root / "owner.pub"))
    checks: list[tuple[Any, bytes, bytes]] = []
    for path in sorted((root / "corpus").glob("*.attest")):
        with path.open("rb") as stream:
            verify = None
            for attestation in read_sequence(stream):
                if verify is None:
                    name = attestation.opened().contributor
                    found = registry.find(name)
                    verify = Ed25519PublicKey.from_public_bytes(found.keys[0].raw).verify if found else None
                body = cbor.decode(attestation.sign1[1:])
                checks.append((verify, body[3], sign1.to_be_signed(body[0], attestation.descriptor)))
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(workers + 1)

    def run(part: int) -> None:
        share = checks[part::workers]
        barrier.wait()
        for verify, signature, message in share:
            verify(signature, message)

    processes = [fork.Process(target=run, args=(part,)) for part in range(workers)]
    for process in processes:
        process.start()
    barrier.wait()
    start = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - start
    if any(process.exitcode for process in processes):
        raise SystemExit("a bare verification failed")
    return {"seconds": seconds, "cpu_seconds": cpu(resource.RUSAGE_CHILDREN), "signatures": len(checks)}


def cpu(*whose: int) -> float:
    """Seconds of processor time, of this process or of its children."""
    used = [resource.getrusage(who) for who in whose]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def judge(root: Path, workers: int, part: str) -> dict[str, float]:
    """Seconds of the gate over the corpus, and the peak memory of this process in MiB.

    Args:
        root: where the corpus lies.
        workers: processes that verify.
        part: "judge" to remember nothing, "again" to read twice in this process, "keep" to use what is kept and to keep it.
    """
    signed = open_policy(root / "policy.cose", load_public_key(root / "owner.pub"))
    registry = open_registry(root / "registry.cbor", load_public_key(root / "owner.pub"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    own_before = cpu(resource.RUSAGE_SELF)
    start = time.perf_counter()
    reading = KeptReading(root / "reading", KEY, Context.of(signed, registry)) if part == "keep" else None
    gate = Gate(signed.policy, registry, workers=workers, remember=Verified() if part == "again" else reading)
    now = int(time.time())
    admitted = sum(isinstance(outcome, Admitted) for outcome in gate.judge(open_corpus(root / "corpus"), now=now))
    if reading is not None:
        reading.keep()
    own = cpu(resource.RUSAGE_SELF) - own_before
    result = {
        "seconds": time.perf_counter() - start,
        "admitted": admitted,
        "driver_cpu_seconds": own,
        "cpu_seconds": own + cpu(resource.RUSAGE_CHILDREN),
    }
    if part == "again":
        start = time.perf_counter()
        if sum(isinstance(outcome, Admitted) for outcome in gate.judge(open_corpus(root / "corpus"), now=now)) != admitted:
            raise SystemExit("the second reading admitted another number")
        result["again_seconds"] = time.perf_counter() - start
    return result | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "start_mib": before / 1024}


def decode_microseconds(root: Path, count: int = 5000) -> dict[str, float]:
    """Median microseconds of strict decoding: of the CBOR alone, and of descriptor and opening with all their checks."""
    path = next((root / "corpus").glob("*.attest"))
    with path.open("rb") as stream:
        found = [attestation for _, attestation in zip(range(count), read_sequence(stream), strict=False)]

    def per_item(work: Callable[[Attestation], object]) -> float:
        rounds = []
        for _ in range(7):
            start = time.perf_counter()
            for attestation in found:
                work(attestation)
            rounds.append((time.perf_counter() - start) / len(found) * 1e6)
        return statistics.median(rounds)

    return {
        "cbor_decode_us": per_item(lambda attestation: cbor.decode(attestation.descriptor)),
        "descriptor_open_us": per_item(Attestation.opened),
    }


def make_registry(root: Path, count: int) -> list[str]:
    """A registry of ``count`` contributors as `RegistryLog` writes it, and a few of their names.

    Only a few of the keys are anybody's, the others are 32 random bytes: opening a registry tests no key for prime order.
    """
    now, owner, salts = int(time.time()), generate(), os.urandom(SALT_SIZE * count)
    signer, time_left = public_bytes(owner), now + DAY
    RegistryLog.create(root / "registry.cbor", owner, owner="owner", now=now)
    with (root / "registry.cbor").open("rb") as stream:
        ((payload, _),) = split(stream.read())
    head, between = cbor.encode([1, bytes(32), bytes(32), 0, 0, [], None, None])[:4], b"\x58\x20"
    terms = b"".join(cbor.encode(value) for value in (now - DAY, time_left, ["all"], None, None))
    names, keys = [f"contributor-{index:07d}" for index in range(count)], os.urandom(32 * count)
    own = {index: public_bytes(generate()) for index in range(0, count, max(1, count // 64))}
    seq, root_before = 1, root_of(payload)
    with (root / "registry.cbor").open("ab") as log, (root / "registry.names").open("wb") as beside:
        for start in range(0, count, _ENROLLED_AT_ONCE):
            rows = []
            for index in range(start, min(count, start + _ENROLLED_AT_ONCE)):
                name, salt = names[index].encode(), salts[SALT_SIZE * index : SALT_SIZE * (index + 1)]
                beside.write(b"\x83" + cbor.encode(names[index]) + b"\x50" + salt + b"\xf6")
                raw = own.get(index) or keys[32 * index : 32 * index + 31] + b"\x11"
                rows.append(b"".join((head, commit(REGISTRY_CONTRIBUTOR, name, salt), between, raw, terms)))
            fields = cbor.encode({1: SCHEMA, 2: seq, 3: root_before, 4: now, 5: [0] * len(rows)})
            payload = fields[: -len(rows)] + b"".join(rows)
            message = sign1.sign(payload, owner, contributor="owner", typ=sign1.TYP_REGISTRY)
            log.write(join([(payload, message)]))
            seq, root_before = seq + 1, root_of(payload)
    save_public_key(root / "owner.pub", signer, "owner")
    return [names[index] for index in own]


def open_one(root: Path, wanted: Sequence[str]) -> dict[str, float]:
    """Seconds to open a registry, microseconds to find a contributor by name and to test its key, and the peak memory."""
    owner = load_public_key(root / "owner.pub")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, own = time.perf_counter(), time.process_time()
    registry = open_registry(root / "registry.cbor", owner)
    registry.require_names()
    seconds, used = time.perf_counter() - start, time.process_time() - own
    start = time.process_time()
    found = [registry.find(name) for name in wanted]
    look_up = (time.process_time() - start) / len(wanted) * 1e6
    start = time.process_time()
    for contributor in found:
        check_public_key(contributor.keys[0].raw if contributor else b"")
    test = (time.process_time() - start) / len(wanted) * 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "contributors": len(registry.by_name), "seconds": seconds, "cpu_seconds": used, "start_mib": before / 1024,
        "peak_mib": peak / 1024, "find_us": look_up, "key_test_us": test, "entries": len(registry.roots),
    }  # fmt: skip


def measure_registry(count: int) -> dict[str, Any]:
    """One row: a registry is made, and opened in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-registry-") as folder:
        start = time.perf_counter()
        wanted = make_registry(Path(folder), count)
        made = time.perf_counter() - start
        command = [sys.executable, "-m", "benchmarks.gate", "--part", "open", "--root", folder, "--names", *wanted]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        size = (Path(folder) / "registry.cbor").stat().st_size
    return {**found, "made_seconds": made, "file_mib": size / 2**20}


def measure(records: int, contributors: int, workers: int, rounds: int) -> dict[str, Any]:
    """Alternates bare verification and gate, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-gate-") as folder:
        root = Path(folder)
        make_corpus(root, records, contributors)

        def part(*words: str) -> dict[str, float]:
            command = [sys.executable, "-m", "benchmarks.gate", "--part", *words, "--root", folder, "--workers", str(workers)]
            return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))

        runs = [(part("bare"), part("judge")) for _ in range(rounds)]
        again, _, kept = part("again"), part("keep"), part("keep")
        ratios = [gate["seconds"] / alone["seconds"] for alone, gate in runs]
        if any(gate["admitted"] != records for _, gate in runs):
            raise SystemExit("the gate refused records that it should have admitted")
        return {
            "records": records,
            "contributors": contributors,
            "workers": workers,
            "bare_seconds": statistics.median(alone["seconds"] for alone, _ in runs),
            "gate_seconds": statistics.median(gate["seconds"] for _, gate in runs),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "cpu_ratio": statistics.median(gate["cpu_seconds"] / alone["cpu_seconds"] for alone, gate in runs),
            "driver_cpu_seconds": statistics.median(gate["driver_cpu_seconds"] for _, gate in runs),
            "peak_mib": max(gate["peak_mib"] for _, gate in runs),
            "again_seconds": again["again_seconds"],
            "kept_seconds": kept["seconds"],
            "kept_cpu_seconds": kept["cpu_seconds"],
            **decode_microseconds(root),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, nargs="+", default=[100_000])
    parser.add_argument("--contributors", type=int, nargs="+", default=[10])
    parser.add_argument("--workers", type=int, default=available_processors())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", choices=("bare", "judge", "again", "keep", "open"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--registry", type=int, nargs="+", help="contributors of registries to open, and nothing else")
    options = parser.parse_args()
    if options.part == "open":
        print(json.dumps(open_one(options.root, options.names)))
        return
    if options.part:
        alone = options.part == "bare"
        found = bare(options.root, options.workers) if alone else judge(options.root, options.workers, options.part)
        print(json.dumps(found))
        return
    if options.registry:
        opened = [measure_registry(count) for count in options.registry]
        if options.json:
            print(json.dumps({"machine": platform.machine(), "registries": opened}, indent=1))
            return
        print(" ".join(f"{name:>12}" for name, _, _ in REGISTRY_COLUMNS))
        for found in opened:
            print(" ".join(f"{found[key]:>12{form}}" for _, key, form in REGISTRY_COLUMNS))
        return
    rows = [(count, people) for people in options.contributors for count in options.records]
    results = [measure(count, people, options.workers, options.rounds) for count, people in rows]
    versions = {"python": platform.python_version(), "cryptography": version("cryptography"), "processors": os.cpu_count()}
    record = {"versions": versions, "machine": platform.machine(), "results": results}
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.json:
        print(json.dumps(record, indent=1))
        return
    print(" ".join(f"{name:>9}" for name, _, _ in COLUMNS))
    for found in results:
        print(" ".join(f"{found[key]:>9{form}}" for _, key, form in COLUMNS))


if __name__ == "__main__":
    main()
