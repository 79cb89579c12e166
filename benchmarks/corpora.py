"""``python -m benchmarks.corpora``: how large corpora go from signing to an audit, whole and in shards.

For each number of contributions, records of 100 bytes are written to JSONL files of 50,000, signed in turn by ten people.
Then each part runs in a process of its own, one after the other, with one thread: the gate over the whole corpus; every shard
of it; the merge of their verdicts, which keeps a reading; the gate after that reading, admission to a ledger, an epoch of four
windows, and the export; draws of a Poisson sampler over as many slots; and the audit of the export, all signatures verified.
No model is trained.

Told are processor time, wall time, and peak memory of the process with its libraries; bytes of what lies on disk. Of the
shards the slowest is told, as all run at once where there are machines for them, and the processor time of all together.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.corpus import ShardNumber, SigningTemplate, open_corpus, sign_corpus
from attest.gate import judge_shard, merge_shards, run_gate
from attest.gate.admission import AdmittedRows, SharedTerms
from attest.gate.reading import Context, KeptReading
from attest.keys import public_bytes
from attest.registry import Enrol, Registry, RegistryLog, open_registry
from benchmarks.ledger import KEY, SIGNER, START, header, run_epoch
from benchmarks.ledger_attested import YEAR, people
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.replay.contributions import AdmitSpec

PAYLOAD = 100
PER_FILE = 50_000
CONTRIBUTORS = 10
DRAWS = 20
VERDICT_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))

Found = dict[str, dict[str, float]]


def payload(number: int) -> bytes:
    """The record of a number: 100 bytes of JSON."""
    text = hashlib.sha256(number.to_bytes(8, "big")).hexdigest()
    return b'{"text":"%s","number":%0*d}' % (text.encode(), PAYLOAD - len(text) - 21, number + 10**14)


def setting(root: Path) -> tuple[Registry, HeaderSpec]:
    """The registry of a corpus, and the policy and header that it is judged under."""
    registry = open_registry(root / "registry.cbor", public_bytes(KEY))
    return registry, header(registry.root(), contributor_cap=2**32 - 1)


class Watch:
    """Takes times and peak memory from one moment to the next."""

    def __init__(self) -> None:
        self.found: Found = {}
        self._begin()

    def lap(self, name: str) -> None:
        """Notes what passed since the last moment."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.found[name] = {"wall": wall, "cpu": cpu, "peak_mib": _peak()}
        self._begin()

    def _begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def _peak() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def sign(root: Path, count: int) -> Found:
    """Writes registry and data, and signs them."""
    keys = people(CONTRIBUTORS)
    log = RegistryLog.create(root / "registry.cbor", KEY, owner="owner", now=START - 120)
    valid: dict[str, Any] = {"not_before": START - 60, "not_after": START + YEAR, "classes": ("head", "upper", "whole")}
    log.append([Enrol(name, public_bytes(key), **valid) for name, key in keys.items()], now=START - 60)
    _, spec = setting(root)
    rule = spec.policy.policy.classes[0]
    (root / "corpus").mkdir()
    files = []
    for number, start in enumerate(range(0, count, PER_FILE)):
        files.append(root / "corpus" / f"{number:05d}.jsonl")
        with files[-1].open("wb") as stream:
            stream.writelines(payload(place) + b"\n" for place in range(start, min(start + PER_FILE, count)))
    watch = Watch()
    for number, data in enumerate(files):
        name = list(keys)[number % CONTRIBUTORS]
        template = SigningTemplate(
            contributor=name, data_class="benchmark", admissibility_class=rule.name, corpus="benchmark",
            clip_norm_micro=rule.clip_norm_micro, noise_multiplier_micro=rule.noise_multiplier_micro, not_before=START - 60,
            not_after=START + YEAR,
        )  # fmt: skip
        sign_corpus(data, None, keys[name], template)
    watch.lap("sign")
    return watch.found


def gate(root: Path, count: int) -> Found:
    """Judges the whole corpus in this process."""
    registry, spec = setting(root)
    watch = Watch()
    report = run_gate(open_corpus(root / "corpus"), spec.policy.policy, registry, now=START, workers=1)
    _require(len(report.admitted), count)
    watch.lap("gate")
    return watch.found


def shard(root: Path, number: ShardNumber) -> Found:
    """Judges one shard, and writes its verdicts."""
    registry, spec = setting(root)
    (root / "verdicts").mkdir(exist_ok=True)
    watch = Watch()
    path = root / "verdicts" / f"{number.number}"
    judge_shard(open_corpus(root / "corpus"), spec.policy, registry, number, path, VERDICT_KEY, now=START, workers=1)
    watch.lap("shard")
    return watch.found


def merge(root: Path, count: int) -> Found:
    """Merges the verdicts of all shards, and keeps the reading."""
    registry, spec = setting(root)
    watch = Watch()
    kept = KeptReading(root / "reading", KEY, Context.of(spec.policy, registry))
    paths = sorted((root / "verdicts").iterdir())
    report = merge_shards(open_corpus(root / "corpus"), spec.policy, registry, paths, VERDICT_KEY, workers=1, remember=kept)
    kept.keep()
    _require(len(report.admitted), count)
    watch.lap("merge")
    return watch.found


def admissions(rows: AdmittedRows, spec: HeaderSpec) -> Iterator[AdmitSpec]:
    """Yields what the ledger records of rows, one at a time, as a run does."""
    names = [rule.name for rule in spec.policy.policy.classes]
    shared, forms = SharedTerms(), {}
    for place in range(len(rows)):
        form = rows.form(place)
        if form not in forms:
            signed, name = form.descriptor, form.sample.admissibility_class
            quoted = (name, names.index(name), *signed.bounds), form.sample.key_id, (0, *signed.limit), shared.of(form.sample)
            forms[form] = quoted
        own, key_id, limits, terms = forms[form]
        descriptor_hash, attestation_hash, anchor, signature = rows.quoted(place)
        yield AdmitSpec(descriptor_hash, *own, attestation_hash, key_id, anchor, *limits, (terms, signature))


def admit(root: Path, count: int) -> Found:
    """Reads the corpus after a kept reading, admits it to a ledger, closes an epoch and exports."""
    registry, spec = setting(root)
    watch = Watch()
    kept = KeptReading(root / "reading", KEY, Context.of(spec.policy, registry))
    report = run_gate(
        open_corpus(root / "corpus"), spec.policy.policy, registry, now=START, workers=1, remember=kept
    )
    _require(kept.spared, count)
    assert isinstance(report.admitted, AdmittedRows)
    watch.lap("gate again")
    with Ledger.create(root / "ledger.db", spec, SIGNER, now=START) as ledger:
        ledger.admit(admissions(report.admitted, spec), now=START)
        watch.lap("admission")
        run_epoch(ledger, 0, START)
        watch.lap("epoch")
        ledger.export(root / "export", registry=root / "registry.cbor")
        watch.lap("export")
    return watch.found


def sample(root: Path, count: int) -> Found:
    """Makes a sampler over all contributions, and draws some steps."""
    from dptrain.data.sampling import PoissonSampler
    from dptrain.noise.keystream import KeyStream

    rate = Fraction(256, max(256, count))
    rates, caps = [rate] * count, [0] * count
    watch = Watch()
    sampler = PoissonSampler(KeyStream("sampling", bytes(16), 0, bytes(32)), rates, caps)
    del rates, caps
    watch.lap("sampler")
    for step in range(1, DRAWS + 1):
        sampler.draw(step)
    watch.lap("draws")
    return watch.found


def audit(root: Path, count: int) -> Found:
    """Audits the export."""
    from ledger.audit import verify_export

    watch = Watch()
    report = verify_export(root / "export", [SIGNER.vkey])
    if report.verdict != "FULL":
        raise SystemExit(f"expected FULL, the audit says {report.verdict}: {report.findings[:1]} {report.notes}")
    watch.lap("audit")
    return watch.found


PARTS: dict[str, Callable[[Path, int], Found]] = {
    "sign": sign, "gate": gate, "merge": merge, "admit": admit, "sample": sample, "audit": audit,
}  # fmt: skip


def _require(found: int, count: int) -> None:
    if found != count:
        raise SystemExit(f"of {count} contributions {found} went through")


def _bytes(path: Path, end: str = "") -> int:
    files = [path] if path.is_file() else path.rglob(f"*{end}")
    return sum(file.stat().st_size for file in files if file.is_file())


def measure(count: int, shards: int, folder: Path | None = None) -> dict[str, Any]:
    """Measures all parts at one number of contributions, in a temporary folder of `folder`."""
    with tempfile.TemporaryDirectory(prefix="bench-corpora-", dir=folder) as where:
        root = Path(where)

        def run(part: str) -> Found:
            command = [sys.executable, "-m", "benchmarks.corpora", "--part", part, "--root", where]
            command += ["--contributions", str(count)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found: Found = json.loads(done.stdout)
            return found

        found = run("sign") | run("gate")
        each = [run(f"{number}/{shards}")["shard"] for number in range(1, shards + 1)]
        found["slowest shard"] = max(each, key=lambda one: one["cpu"])
        for part in ("merge", "admit", "sample", "audit"):
            found |= run(part)
        sizes = {
            "data": _bytes(root / "corpus", ".jsonl"), "attestations": _bytes(root / "corpus", ".attest"),
            "verdicts": _bytes(root / "verdicts"), "kept reading": _bytes(root / "reading"),
            "ledger": _bytes(root / "ledger.db"), "export": _bytes(root / "export"),
        }  # fmt: skip
    total = sum(one["cpu"] for one in each)
    return {"contributions": count, "shards": shards, "all_shards_cpu": total, "parts": found, "bytes": sizes}


def render(row: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of one number of contributions."""
    count = row["contributions"]
    yield f"{count:,} contributions, {row['shards']} shards (together {row['all_shards_cpu']:.1f} s of processor time)"
    yield f"{'':16}{'cpu s':>9}{'wall s':>9}{'us each':>9}{'peak MiB':>10}"
    for name, one in row["parts"].items():
        each = one["cpu"] / count * 1e6
        yield f"{name:16}{one['cpu']:9.2f}{one['wall']:9.2f}{each:9.2f}{one['peak_mib']:10.0f}"
    yield "bytes each: " + ", ".join(f"{name} {size / count:.0f}" for name, size in row["bytes"].items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one table per number of contributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contributions", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where the files go; default: where the system keeps temporary ones")
    parser.add_argument("--out", type=Path, help="write JSON here")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.part is not None:
        part, root = chosen.part, chosen.root
        found = shard(root, ShardNumber.parse(part)) if "/" in part else PARTS[part](root, chosen.contributions[0])
        print(json.dumps(found))
        return
    rows = []
    for count in chosen.contributions:
        rows.append(measure(count, chosen.shards, chosen.folder))
        print("\n".join(render(rows[-1])), flush=True)
        if chosen.out is not None:
            chosen.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
