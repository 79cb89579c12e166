"""Checking a release: files against the manifest, the manifest against pinned keys, and both against the ledger's export."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from attest.fixed_point import MICRO
from attest.schema.plain import is_ahead, machine_time, utc
from ledger.accountants import leeway
from ledger.audit import AuditReport, verify_export
from ledger.audit.files import Export, Leaves
from ledger.audit.findings import Finding
from ledger.audit.histories import read_export
from ledger.audit.replaying import begin, follow
from ledger.audit.words import Verdict
from ledger.errors import LedgerError
from ledger.leaves import Header, Leaf, Release, Withdraw, decode_leaf
from ledger.leaves.previous import COMPROMISED
from ledger.note import Checkpoint
from ledger.release.create import block_rows
from ledger.release.differences import differences
from ledger.release.manifest import EXPORT, MANIFEST, Manifest, open_manifest, read_manifest
from ledger.release.stack import frozen_note, stack_problems
from ledger.release.statements import statements
from ledger.release.tied import Tie, tie
from ledger.replay import SPEND_TOLERANCE_MICRO, Replay
from ledger.rules.expenditure import Expenditure
from ledger.rules.influence import artifacts, class_costs, is_final
from ledger.rules.releases import withdrawals_root
from ledger.rules.weights import model_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """The result of checking a release.

    Attributes:
        verdict: that of the export (`ledger.audit.words.VERDICTS`), where files, signature and every number hold against it;
            SIGNED when there was no export to check against, so that the numbers are the signer's word; FAILED otherwise.
        qualifiers: what weakens it, as words of `ledger.audit.words.QUALIFIERS`, sorted: of the export, and of the release.
        findings: what is wrong; empty unless FAILED.
        notes: what a reader should know though nothing is wrong.
        manifest: what was signed, None unless its signature holds.
        newer_withdrawals: contributions whose withdrawal the export has and the manifest cannot know, None without an export.
        weights: what the files that the manifest names have to do with the weights of the run, tensor by tensor; None unless
            its signature holds. Where the verdict is SIGNED or FAILED, what they were held against is the signer's word.
    """

    verdict: Verdict
    qualifiers: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    manifest: Manifest | None
    newer_withdrawals: int | None
    weights: Tie | None


@dataclass(slots=True)
class _Check:
    """A check under way."""

    directory: Path
    keys: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    newer: int | None = None
    words: set[str] = field(default_factory=set)
    released: list[int] = field(default_factory=list)

    def fault(self, code: str, where: str, sentence: str) -> None:
        self.findings.append(Finding(code, where, sentence))

    def see(self, leaf: Leaf, manifest: Manifest) -> None:
        """Remembers where the ledger tells of a release of the same files."""
        if isinstance(leaf, Release) and leaf.artifacts_digest == manifest.artifacts_digest:
            self.released.append(leaf.seq)


def check_release(
    directory: Path,
    keys: Sequence[str],
    *,
    export: Path | None = None,
    owner_key: bytes | None = None,
    minimum_size: int = 1,
    require_quorum: bool = False,
    now: int | None = None,
) -> ReleaseReport:
    """Checks a release offline, without torch.

    Guarantee:
        FULL means: the directory has exactly the files of the manifest, byte for byte, and beside them the manifest and the
        export alone; a key of the ledger that a pinned key leads to signed the manifest; the export is FULL by
        `ledger.audit.verify_export`; its first leaves are the tree that the manifest cites, with that header and those
        withdrawals, and the RELEASE leaf right behind them, so that no release is hidden from who reads the ledger; whose
        influence may be in which artifact follows from that header; every epsilon is at least the one computed here and at
        most 2e-6 more (accountants as in `verify_export`); and the tree has at least ``minimum_size`` leaves. And what the
        manifest says of the weights is true: the records of their tensors fold to the model digest of the epoch that it
        names, and the tensors of the files are those, or not, as ``weights`` tells: FULL does not mean that they are, and
        WEIGHTS_NOT_TIED says that they are not, or not all. CODE_BESIDE says that files can carry code. Names, sizes and
        which were trained are as the stack of the header says, and what was frozen is, tensor by tensor, what the header
        committed to before the first step (FROZEN_TOLD where that could not be compared whole, with files that are TIED).
        TOLD and SUMMARISED mean the same of an export that is no more.
        Whether the ledger's operator committed to what was trained, no check can tell.

    Args:
        directory: the release.
        keys: verifier keys of the ledger, obtained from a place that the releaser does not control.
        export: an export of the ledger; by default the one in the directory, if it is there.
        owner_key: raw public key of the corpus owner, obtained likewise; code `NO_EXPORT` if there is no export to find it in.
        minimum_size: an older release is refused: the largest size that the reader has seen in this ledger; 1 for unknown.
        require_quorum: fail unless as many of the policy's auditors and witnesses as it asks for have cosigned the export: else
            a fork of the ledger could have been made for this reader. Without an export likewise `NO_EXPORT`.
        now: the reader's clock, POSIX seconds; that of this machine without. Neither release nor export may lie ahead of it.

    Returns:
        The report. Bad input never raises: it is a finding.
    """
    check, clock = _Check(directory, tuple(keys)), machine_time() if now is None else now
    manifest: Manifest | None = None
    verdict: Verdict = "FAILED"
    try:
        manifest, verdict = _check(check, export, owner_key, minimum_size, require_quorum, clock)
    except LedgerError as error:
        check.fault(error.code, str(directory), error.sentence)
    except Exception as error:  # an input that breaks the check must not pass it
        check.fault("INTERNAL", str(directory), f"the check broke off: {type(error).__name__}: {error}")
    weights = None if manifest is None else tie(manifest.weights, manifest.files)
    if weights is not None and weights.status != "TIED":
        check.words.add("WEIGHTS_NOT_TIED")
    if weights is not None and weights.code:
        check.words.add("CODE_BESIDE")
    if minimum_size > 1:
        check.words.discard("UNCOMPARED")
    return ReleaseReport(
        verdict="FAILED" if check.findings else verdict,
        qualifiers=tuple(sorted(check.words)),
        findings=tuple(check.findings),
        notes=tuple(check.notes),
        manifest=manifest,
        newer_withdrawals=check.newer,
        weights=weights,
    )


def _check(
    check: _Check, export: Path | None, owner_key: bytes | None, minimum_size: int, require_quorum: bool, now: int
) -> tuple[Manifest | None, Verdict]:
    data = read_manifest(check.directory)
    own = check.directory / EXPORT
    place = export or (own if own.is_dir() else None)
    audited = None
    if place is not None:
        audited = verify_export(place, check.keys, owner_key=owner_key, require_quorum=require_quorum, now=now)
    followed = () if audited is None or audited.verdict == "FAILED" else audited.log_keys
    manifest = open_manifest(data, (*check.keys, *followed))
    if manifest.size < minimum_size:
        sentence = f"the release cites {manifest.size} leaves, at least {minimum_size} are asked for: get a newer release"
        check.fault("OLD", MANIFEST, sentence)
    if is_ahead(manifest.time, now):
        sentence = f"the release is dated {utc(manifest.time)}, ahead of the clock here ({utc(now)}): one of the two is wrong"
        check.fault("CLOCK", MANIFEST, sentence)
    # Only a directory of that name is an export that was looked at, here or in `_other_export`; a link or a file is neither.
    left_out = (MANIFEST, EXPORT) if own.is_dir() and not own.is_symlink() else (MANIFEST,)
    check.findings += differences(check.directory, manifest.files, left_out)
    if place is None or audited is None:
        check.notes.append(
            "no export to check against: that numbers and weights are those of the ledger is the signer's word, and nothing "
            "shows that it records this release"
        )
        if owner_key is not None or require_quorum:
            asked = "the owner's key" if owner_key is not None else "cosignatures"
            sentence = f"there is none, and without one {asked} cannot be looked for; get one from the ledger's operator"
            check.fault("NO_EXPORT", EXPORT, f"{sentence}, and give it with --export")
        return manifest, "SIGNED"
    others = _other_export(check, own, place, owner_key, now)
    for report in (audited, *others):
        for finding in report.findings:
            check.fault(finding.code, f"{EXPORT}: {finding.where}", finding.sentence)
    if audited.verdict == "FAILED":
        return manifest, "FAILED"
    if any(other.origin == audited.origin for other in others if other.verdict != "FAILED"):
        _compare_exports(check, own, place)
    check.words.update(audited.qualifiers)
    _check_ledger(check, place, audited, manifest, hashlib.sha256(data).digest())
    return manifest, audited.verdict


def _other_export(check: _Check, own: Path, place: Path, owner_key: bytes | None, now: int) -> tuple[AuditReport, ...]:
    """Audits the export in the directory, where another one is checked against: no file there goes unlooked at."""
    if not own.is_dir() or own.resolve() == place.resolve():
        return ()
    return (verify_export(own, check.keys, owner_key=owner_key, now=now),)


def _compare_exports(check: _Check, own: Path, place: Path) -> None:
    """Finds two histories of one ledger: whoever holds both has the proof that its key signed two."""
    one, two = read_export(own).leaves, read_export(place).leaves
    size = min(one.size, two.size)
    if one.root_at(size) != two.root_at(size):
        sentence = f"the first {size} leaves of the export in the directory and of {place} differ: two histories of one ledger"
        check.fault("FORKED", EXPORT, f"{sentence}, both signed; publish both checkpoints")


def _check_ledger(check: _Check, place: Path, audited: AuditReport, manifest: Manifest, digest: bytes) -> None:
    size, origin = audited.size or 0, audited.origin or ""
    export = Export(place, check.fault)
    signed = Checkpoint(origin, size, bytes.fromhex(audited.root_hex or ""))
    leaves = export.leaves(signed) if export.scan() and export.check_names(size) else None
    if leaves is None:
        return
    if origin != manifest.origin:
        _another_run(check, decode_leaf(next(iter(leaves))), manifest)
        return
    if size < manifest.size:
        check.fault("BEHIND", EXPORT, f"the manifest cites {manifest.size} leaves, the export has {size}: {_more(manifest)}")
        return
    if leaves.root_at(manifest.size) != manifest.root:
        sentence = f"the first {manifest.size} leaves of the export are not those that the manifest cites: two histories"
        check.fault("FORKED", MANIFEST, sentence)
        return
    _compare_leaf(check, next(islice(leaves, manifest.size, None), None), manifest, digest)
    if hashlib.sha256(next(iter(leaves))).digest() != manifest.header_digest:
        check.fault("HEADER", MANIFEST, "the header digest of the manifest is not that of leaf 0")
    else:
        _compare(check, leaves, manifest)


def _more(manifest: Manifest) -> str:
    return f"get one of at least {manifest.size + 1} leaves from the ledger's operator, and give it with --export"


def _another_run(check: _Check, header: Leaf, manifest: Manifest) -> None:
    """Tells why the export of another ledger does not do, and what that ledger says of the one that was released from."""
    assert isinstance(header, Header)  # the audit has read it
    sentence = f"the manifest is of {manifest.origin!r}, the export of {header.origin!r}"
    cited = [item for item in header.previous if (item.origin, item.header_digest) == (manifest.origin, manifest.header_digest)]
    for item in cited:
        if item.reason == COMPROMISED and manifest.size >= item.size:
            check.fault(
                "COMPROMISED",
                MANIFEST,
                f"{sentence}, which continues it because its key was lost: nothing counts that was signed with that key behind "
                f"leaf {item.size - 1}, and this release cites {manifest.size} leaves; take a release of {header.origin!r}",
            )
            return
        sentence += f", which counts it ({item.reason}) up to {item.size} leaves"
    check.fault("ORIGIN", MANIFEST, f"{sentence}; {_more(manifest)}")


def _compare_leaf(check: _Check, data: bytes | None, manifest: Manifest, digest: bytes) -> None:
    """Holds the manifest against the leaf behind those that it cites, which must record the release.

    An export that ends there is a fault: `release` logs before the manifest exists and exports after, so what lacks the leaf
    may be a manifest that was signed with the ledger's key and kept from everybody who reads the ledger.
    """
    if data is None:
        check.fault(
            "UNRECORDED",
            EXPORT,
            f"the export ends at {manifest.size} leaves, right before the leaf that must record this release; until an export "
            f"shows it, the release may be hidden from auditors: {_more(manifest)}",
        )
        return
    leaf = decode_leaf(data)
    told = (leaf.manifest_digest, leaf.artifacts_digest, leaf.step, leaf.time) if isinstance(leaf, Release) else None
    if told != (digest, manifest.artifacts_digest, manifest.step, manifest.time):
        check.fault("RELEASE", f"seq {manifest.size}", "the ledger does not record this release right behind what it cites")


def _compare(check: _Check, leaves: Leaves, manifest: Manifest) -> None:
    """Holds what the manifest says against what follows from the leaves that it cites."""
    run = begin(leaves, recompute=False)
    header, stream = run.header, follow(run, leaves)
    for leaf, _ in islice(stream, manifest.size - 1):
        check.see(leaf, manifest)
    signer = run.keys.at(manifest.size)
    if signer != manifest.log_vkey:
        sentence = f"at size {manifest.size} the ledger is signed by {signer}, the manifest by {manifest.log_vkey}"
        check.fault("LOG_KEY", MANIFEST, sentence)
    _compare_record(check, run, manifest)
    _compare_weights(check, run, manifest)
    _compare_costs(check, run, manifest)
    newer = set()  # also who had expired before, and withdrew since
    for leaf, _ in stream:
        check.see(leaf, manifest)
        newer |= {leaf.descriptor_hash} if isinstance(leaf, Withdraw) else set()
    check.newer = len(newer)
    if check.newer:
        check.words.add("RELEASE_OLDER")
        check.notes.append(f"{check.newer} withdrawals are newer than the release, which cannot take them into account")
    if len(check.released) > 1:
        places = " and ".join(map(str, check.released))
        check.notes.append(f"the same files were released at leaves {places}; this manifest is that of leaf {manifest.size}")
    if header.previous:
        names = ", ".join(f"{item.origin} ({item.reason})" for item in header.previous)
        check.notes.append(f"epsilons are those of this run alone; the ledger counts besides what was spent in {names}")


def _compare_record(check: _Check, run: Replay, manifest: Manifest) -> None:
    header, parts, horizon = run.header, artifacts(run.header), not is_final(run)
    delta = str(header.policy.delta)
    expected = {
        "step": run.position,
        "delta": delta,
        "horizon": horizon,
        "blocks": block_rows(header),
        "artifacts": parts,
        "statements": statements(
            parts, delta, tie(manifest.weights, manifest.files), run.isolation, step=run.position, horizon=horizon
        ),
    }
    for name, value in expected.items():
        if getattr(manifest, name) != value:
            check.fault("RECORD", MANIFEST, f"{name}: the manifest says otherwise than the ledger it cites")
    if (manifest.withdrawn, manifest.withdrawals_root) != withdrawals_root(run.withdrawals, manifest.size):
        sentence = f"the withdrawals of the manifest are not those of the {manifest.size} leaves that it cites"
        check.fault("WITHDRAWALS", MANIFEST, sentence)


def _compare_weights(check: _Check, run: Replay, manifest: Manifest) -> None:
    """Folds the records of the tensors to the digest of the epoch that the manifest names."""
    weights = manifest.weights
    note = frozen_note(run.header, None if weights is None else weights.records)
    if note:
        check.notes.append(note)
    elif tie(weights, manifest.files).status == "TIED":
        check.words.discard("FROZEN_TOLD")
    if weights is None:
        return
    epoch = next((epoch for epoch in run.epochs if epoch.number == weights.number), None)
    if epoch is None or (epoch.seq, epoch.step) != (weights.seq, weights.step):
        sentence = f"the ledger has no epoch {weights.number} at leaf {weights.seq}, after step {weights.step}"
        check.fault("WEIGHTS", MANIFEST, sentence)
    elif epoch.model_digest != (digest := model_digest(weights.records)):
        check.fault(
            "WEIGHTS",
            MANIFEST,
            f"the tensors with which epoch {weights.number} ended by the manifest have the digest {digest.hex()}, leaf "
            f"{epoch.seq} commits to {epoch.model_digest.hex()}",
        )
    for code, sentence in stack_problems(run.header, weights.records):
        check.fault(code, MANIFEST, sentence)


def _compare_costs(check: _Check, run: Replay, manifest: Manifest) -> None:
    header = run.header
    about = header.accountant
    least = Expenditure(header, "pld") if about.name == "prv" else run.expenditure
    room = SPEND_TOLERANCE_MICRO + MICRO * leeway(about.name, about.library, about.version, header.policy.mechanism.name)
    counts = [0] * len(header.policy.classes)
    for contribution in run.register.by_number:
        counts[contribution.class_index] += 1
    rows = zip(header.policy.classes, manifest.classes, class_costs(run, least), strict=False)
    for place, (rule, row, cost) in enumerate(rows):
        facts = (rule.name, counts[place], run.register.withdrawn[place], rule.public)
        if (row.name, row.contributions, row.withdrawn, row.epsilon_micro is None) != facts:
            check.fault("RECORD", MANIFEST, f"class {rule.name}: its contributions are not those that the ledger has")
        stated = (row.epsilon_micro, row.replace_micro)
        for what, said, computed in zip(("epsilon", "epsilon if content is replaced"), stated, cost or (), strict=False):
            if said is None or not computed * MICRO <= said <= computed * MICRO + room:
                sentence = f"class {rule.name}: {what} is {said} (1e-6), recomputed {computed * MICRO:.3f}"
                check.fault("EPSILON", MANIFEST, sentence)
    if len(manifest.classes) != len(counts):
        check.fault("RECORD", MANIFEST, f"the manifest has {len(manifest.classes)} classes, the policy {len(counts)}")
