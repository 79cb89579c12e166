"""``make bench-corpora``: how large corpora go from signing to an audit, in shards, at growing numbers of contributions.

Records of 100 bytes are made when they are read (:mod:`benchmarks.made`) and signed in turn by ten people. Then each part runs
in processes of its own with one thread: the gate over the whole corpus; every shard of it; the merge of their verdicts, which
keeps a reading; the gate after that reading, admission to a ledger, an epoch of four windows, and the export; the ledger opened
again; draws of a Poisson sampler over as many slots, each content read; and the audit of the export, all signatures verified.
No model is trained.

Told are processor time, wall time, and peak memory of the process with its libraries; bytes of what lies on disk; and what one
contribution more takes from one number of contributions to the next. Of parts in several processes, as shards are, the times
are of all together, the memory is of the largest. ``--verified 1`` verifies signatures in the first shard alone; the others
write down that they had, which only who has the key of verdicts can do.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.corpus import Extent, Shard, ShardNumber, SigningTemplate
from attest.gate import judge_shard, merge_shards, run_gate
from attest.gate.admission import AdmittedRows, SharedTerms
from attest.gate.reading import Context, KeptReading
from attest.gate.verdicts import ShardReading
from attest.keys import public_bytes
from attest.registry import Enrol, Registry, RegistryLog, open_registry
from benchmarks.ledger import KEY, SIGNER, START, header, peak_mib, run_epoch
from benchmarks.ledger_attested import YEAR, people
from benchmarks.made import MadeCorpus
from ledger.leaves import HeaderSpec
from ledger.log import Ledger
from ledger.replay.contributions import AdmitSpec

PER_FILE = 50_000
CONTRIBUTORS = 10
DRAWS = 20
OTHERS = 11
"""Leaves that are no admissions: a header, four charges and settlements, the end of an epoch with its spending."""
VERDICT_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))

Found = dict[str, dict[str, float]]


def made(root: Path, count: int, shards: int) -> MadeCorpus:
    """The corpus of a folder: of files that all shards and people have as many of, with up to `PER_FILE` contributions each."""
    per_file = min(PER_FILE, math.ceil(count / math.lcm(shards, CONTRIBUTORS)))
    return MadeCorpus(root / "corpus", size=count, per_file=per_file)


def setting(root: Path) -> tuple[Registry, HeaderSpec]:
    """The registry of a corpus, and the policy and header that it is judged under."""
    registry = open_registry(root / "registry.cbor", public_bytes(KEY))
    return registry, header(registry.root(), contributor_cap=2**32 - 1)


def begin(root: Path) -> None:
    """Writes the registry, and makes the folders."""
    log = RegistryLog.create(root / "registry.cbor", KEY, owner="owner", now=START - 120)
    valid: dict[str, Any] = {"not_before": START - 60, "not_after": START + YEAR, "classes": ("head", "upper", "whole")}
    keys = people(CONTRIBUTORS)
    log.append([Enrol(name, public_bytes(key), **valid) for name, key in keys.items()], now=START - 60)
    for name in ("corpus", "verdicts"):
        (root / name).mkdir()


class Watch:
    """Takes times and peak memory from one moment to the next."""

    def __init__(self) -> None:
        self.found: Found = {}
        self._begin()

    def lap(self, name: str) -> None:
        """Notes what passed since the last moment."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self.found[name] = {"wall": wall, "cpu": cpu, "peak_mib": peak_mib()}
        self._begin()

    def _begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        self._wall, self._cpu = time.perf_counter(), time.process_time()


def sign(root: Path, corpus: MadeCorpus, number: ShardNumber) -> Found:
    """Signs the files of one process."""
    keys = people(CONTRIBUTORS)
    _, spec = setting(root)
    rule = spec.policy.policy.classes[0]
    watch = Watch()
    for place, source in list(enumerate(corpus.files))[number.number - 1 :: number.of]:
        name = list(keys)[place % CONTRIBUTORS]
        template = SigningTemplate(
            contributor=name, data_class="benchmark", admissibility_class=rule.name, corpus="benchmark",
            clip_norm_micro=rule.clip_norm_micro, noise_multiplier_micro=rule.noise_multiplier_micro, not_before=START - 60,
            not_after=START + YEAR,
        )  # fmt: skip
        corpus.sign(source, keys[name], template)
    watch.lap("sign")
    return watch.found


def gate(root: Path, corpus: MadeCorpus) -> Found:
    """Judges the whole corpus in this process."""
    registry, spec = setting(root)
    watch = Watch()
    report = run_gate(corpus, spec.policy.policy, registry, now=START, workers=1)
    _require(len(report.admitted), corpus.size)
    watch.lap("gate")
    return watch.found


def shard(root: Path, corpus: MadeCorpus, number: ShardNumber) -> Found:
    """Judges one shard, and writes its verdicts."""
    registry, spec = setting(root)
    watch = Watch()
    path = root / "verdicts" / f"{number.number}"
    judge_shard(corpus, spec.policy, registry, number, path, VERDICT_KEY, now=START, workers=1)
    watch.lap("shards")
    return watch.found


class Vouched(ShardReading):
    """Notes what passed in a shard whose signatures nobody verified, as the holder of the key can."""

    def holds(self, tag: bytes) -> bool:
        """Tells that no signature is verified."""
        return True


def vouched(root: Path, corpus: MadeCorpus, number: ShardNumber) -> Found:
    """Writes the verdicts of one shard as if its signatures had been verified."""
    registry, spec = setting(root)
    watch = Watch()
    part = Shard(corpus, number, Extent.of(corpus))
    reading = Vouched(part, spec.policy, registry, START, root / "verdicts" / f"{number.number}", VERDICT_KEY)
    run_gate(part, spec.policy.policy, registry, now=START, workers=1, remember=reading)
    reading.keep()
    watch.lap("shards not verified")
    return watch.found


def merge(root: Path, corpus: MadeCorpus) -> Found:
    """Merges the verdicts of all shards, and keeps the reading."""
    registry, spec = setting(root)
    watch = Watch()
    kept = KeptReading(root / "reading", KEY, Context.of(spec.policy, registry))
    paths = sorted((root / "verdicts").iterdir())
    report = merge_shards(corpus, spec.policy, registry, paths, VERDICT_KEY, now=START, workers=1, remember=kept)
    kept.keep()
    _require(len(report.admitted), corpus.size)
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


def admit(root: Path, corpus: MadeCorpus) -> Found:
    """Reads the corpus after a kept reading, admits it to a ledger, closes an epoch and exports."""
    registry, spec = setting(root)
    watch = Watch()
    kept = KeptReading(root / "reading", KEY, Context.of(spec.policy, registry))
    report = run_gate(corpus, spec.policy.policy, registry, now=START, workers=1, remember=kept)
    _require(kept.spared, corpus.size)
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


def open_again(root: Path, corpus: MadeCorpus) -> Found:
    """Opens the ledger, which replays all of it."""
    watch = Watch()
    with Ledger.open(root / "ledger.db", SIGNER) as ledger:
        _require(ledger.size, corpus.size + OTHERS)
        watch.lap("open")
    return watch.found


def sample(root: Path, corpus: MadeCorpus) -> Found:
    """Makes a sampler over all contributions, draws some steps, and reads the contents that they draw."""
    from dptrain.data.sampling import PoissonSampler
    from dptrain.noise.keystream import KeyStream

    count = corpus.size
    rate = Fraction(256, max(256, count))
    rates, caps = [rate] * count, [0] * count
    watch = Watch()
    sampler = PoissonSampler(KeyStream("sampling", bytes(16), 0, bytes(32)), rates, caps)
    del rates, caps
    watch.lap("sampler")
    with corpus.contents() as contents:
        for step in range(1, DRAWS + 1):
            for number in sampler.draw(step).tolist():
                contents.read(corpus.locator(number))
    watch.lap("draws")
    return watch.found


def audit(root: Path, corpus: MadeCorpus) -> Found:
    """Audits the export."""
    from ledger.audit import verify_export

    watch = Watch()
    report = verify_export(root / "export", [SIGNER.vkey])
    if report.verdict != "FULL":
        raise SystemExit(f"expected FULL, the audit says {report.verdict}: {report.findings[:1]} {report.notes}")
    _require(report.size, corpus.size + OTHERS)
    watch.lap("audit")
    return watch.found


PARTS: dict[str, Callable[[Path, MadeCorpus], Found]] = {
    "gate": gate, "merge": merge, "admit": admit, "open": open_again, "sample": sample, "audit": audit,
}  # fmt: skip

SHARED: dict[str, Callable[[Path, MadeCorpus, ShardNumber], Found]] = {"sign": sign, "shard": shard, "vouched": vouched}
"""Parts that several processes share."""


def _require(found: int, count: int) -> None:
    if found != count:
        raise SystemExit(f"expected {count}, found {found}")


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def measure(
    count: int,
    shards: int,
    *,
    jobs: int = 1,
    verified: int | None = None,
    skip: Iterable[str] = (),
    folder: Path | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measures all parts at one number of contributions, in a temporary folder of `folder`.

    Args:
        jobs: Processes side by side. verified: Shards whose signatures are verified; None for all. skip: Parts left out.
        tell: Called with what is measured so far, after each part.
    """
    row: dict[str, Any] = {"contributions": count, "shards": shards, "verified": verified or shards, "parts": {}, "bytes": {}}
    with tempfile.TemporaryDirectory(prefix="bench-corpora-", dir=folder) as where, ThreadPoolExecutor(jobs) as pool:
        root = Path(where)
        begin(root)

        def run(part: str) -> Found:
            command = [sys.executable, "-m", "benchmarks.corpora", "--part", part, "--root", where]
            command += ["--size", str(count), "--shards", str(shards)]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found: Found = json.loads(done.stdout)
            return found

        def note(found: Found) -> None:
            row["parts"] |= found
            places = {"attestations": "corpus", "verdicts": "verdicts", "kept reading": "reading", "ledger": "ledger.db"}
            places["export"] = "export"
            row["bytes"] = {name: _bytes(root / place) for name, place in places.items() if (root / place).exists()}
            if tell is not None:
                tell(row)

        def together(part: str, numbers: Sequence[int], of: int) -> None:
            start = time.perf_counter()
            each = list(pool.map(run, [f"{part} {number}/{of}" for number in numbers]))
            for name in each[0] if each else ():
                found = [one[name] for one in each]
                whole = {"cpu": sum(one["cpu"] for one in found), "wall": time.perf_counter() - start}
                worst = {f"slowest_{key}": max(one[key] for one in found) for key in ("cpu", "wall")}
                note({name: whole | worst | {"peak_mib": max(one["peak_mib"] for one in found), "processes": len(found)}})

        together("sign", range(1, jobs + 1), jobs)
        together("shard", range(1, row["verified"] + 1), shards)
        together("vouched", range(row["verified"] + 1, shards + 1), shards)
        for part in ("merge", "admit"):
            note(run(part))
        for found in pool.map(run, [part for part in ("audit", "open", "sample", "gate") if part not in skip]):
            note(found)
    return row


def render(row: dict[str, Any], before: dict[str, Any] | None = None) -> Iterator[str]:
    """Yields the lines of one number of contributions; with a smaller one, what each contribution more takes."""
    count = row["contributions"]
    yield f"{count:,} contributions, {row['shards']} shards, signatures verified in {row['verified']}"
    titles = ["cpu s", "wall s", "us each", "peak MiB", *(["us more", "KB more"] if before else [])]
    yield " " * 20 + "".join(f"{title:>10}" for title in titles)
    for name, one in row["parts"].items():
        processes = one.get("processes", 1)
        judged = count * processes / row["shards"] if name.startswith("shards") else count
        line = f"{name:20}{one['cpu']:10.2f}{one['wall']:10.2f}{one['cpu'] / judged * 1e6:10.2f}{one['peak_mib']:10.0f}"
        last = before and before["parts"].get(name)
        if before and last and judged == count:
            more, taken = count - before["contributions"], {key: one[key] - last[key] for key in ("cpu", "peak_mib")}
            line += f"{taken['cpu'] / more * 1e6:10.2f}{taken['peak_mib'] * 1048.576 / more:10.3f}"
        yield line + (f"  (slowest of {processes}: {one['slowest_cpu']:.2f} s)" if processes > 1 else "")
    yield "bytes each: " + ", ".join(f"{name} {size / count:.0f}" for name, size in row["bytes"].items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints one table per number of contributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs="+", default=[10_000, 100_000], help="numbers of contributions")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--verified", type=int, help="shards whose signatures are verified; default: all")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side; times are clean only of one")
    parser.add_argument("--skip", nargs="+", choices=("audit", "open", "sample", "gate"), default=[], help="parts left out")
    parser.add_argument("--folder", type=Path, help="where the files go; default: where the system keeps temporary ones")
    parser.add_argument("--out", type=Path, help="write JSON here after each part")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.part is not None:
        part, _, number = chosen.part.partition(" ")
        corpus = made(chosen.root, chosen.size[0], chosen.shards)
        run = partial(SHARED[part], number=ShardNumber.parse(number)) if number else PARTS[part]
        print(json.dumps(run(chosen.root, corpus)))
        return
    rows: list[dict[str, Any]] = []

    def tell(row: dict[str, Any]) -> None:
        if chosen.out is not None:
            chosen.out.write_text(json.dumps({"rows": [*rows, row]}, indent=1) + "\n")

    for count in chosen.size:
        limits = {"jobs": chosen.jobs, "verified": chosen.verified, "skip": chosen.skip, "folder": chosen.folder}
        row = measure(count, chosen.shards, tell=tell, **limits)
        print("\n".join(render(row, rows[-1] if rows else None)), flush=True)
        rows.append(row)


if __name__ == "__main__":
    main()
