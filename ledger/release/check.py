"""Checks a release against manifest, pinned keys and ledger: what `ledger.release.rights` and the inference gate rest on."""

import hashlib
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from attest.fixed_point import MICRO
from attest.schema.cards import card_of
from attest.schema.plain import is_ahead, machine_time, utc
from ledger.accountants import leeway
from ledger.audit import AuditReport, verify_export
from ledger.audit.findings import Finding, Verdict
from ledger.audit.given import Given, Leaves, begin, follow, read_export
from ledger.errors import LedgerError
from ledger.leaves import Header, Release, Withdraw, decode_leaf
from ledger.leaves.header import COMPROMISED, TEXTS
from ledger.leaves.weights import model_digest
from ledger.published.bundles import STATEMENT
from ledger.release.create import record_of
from ledger.release.files import differences
from ledger.release.manifest import EXPORT, MANIFEST, Manifest, open_manifest, read_manifest
from ledger.release.publishing import audit_problem, bundle_problems, document_problems, unlisted, weaker_since
from ledger.release.stack import frozen_note, stack_problems
from ledger.release.tied import Tie, tie
from ledger.replay.influence import class_costs
from ledger.replay.replay import SPEND_TOLERANCE_MICRO, Replay
from ledger.replay.state import of_record


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseReport:
    """Holds the result of checking a release.

    Attributes:
        verdict: that of the export (`ledger.audit.findings.VERDICTS`), where files, signature and every number hold against it;
            SIGNED when there was no export to check against, so that the numbers are the signer's word; FAILED otherwise.
        qualifiers: what weakens it, as words of `ledger.audit.findings.QUALIFIERS`, sorted: of the export, and of the release.
        newer_withdrawals: contributions whose withdrawal the export has and the manifest cannot know, None without an export.
        withdrawn_classes: classes of those of them that the release may have learned from (`_classes_gone`), in the policy's
            order; None without an export.
        ledger_size, ledger_root: number of leaves of the export that it was checked against, and the root over them; None
            where none passed its audit.
        documents: documents that were written again here, and are the same to the byte; without an export none is.
        weights: what the files that the manifest names have to do with the weights of the run, tensor by tensor; None unless
            its signature holds, and the files are those that it names. Where the verdict is SIGNED or FAILED, what they were
            held against is the signer's word.
    """

    verdict: Verdict
    qualifiers: tuple[str, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    manifest: Manifest | None
    newer_withdrawals: int | None
    weights: Tie | None
    documents: tuple[str, ...] = ()
    withdrawn_classes: tuple[str, ...] | None = None
    ledger_size: int | None = None
    ledger_root: bytes | None = None

    _repr_html_ = card_of


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

    Guarantee: FULL means: the directory has exactly the files of the manifest, byte for byte, and beside them the manifest and
    the export alone; a key of the ledger that a pinned key leads to signed the manifest; the export is FULL by
    `ledger.audit.verify_export`; its first leaves are the tree that the manifest cites, with that header and those withdrawals,
    and the RELEASE leaf right behind them, so that no release is hidden from who reads the ledger; whose influence may be in
    which artifact follows from that header; every epsilon is at least the one computed here and at most 2e-6 more (accountants
    as in `verify_export`); and the tree has at least ``minimum_size`` leaves. And what the manifest says of the weights is
    true: the records of their tensors fold to the model digest of the epoch that it names, and the tensors of the files are
    those, or not, as ``weights`` tells: FULL does not mean that they are, and WEIGHTS_NOT_TIED says that they are not, or not
    all. CODE_BESIDE says that files can carry code. Names, sizes and which were trained are as the stack of the header says,
    and what was frozen is, tensor by tensor, what the header committed to before the first step (FROZEN_TOLD where that could
    not be compared whole, with files that are TIED). The documents that the manifest lists say what manifest and ledger give,
    to the byte, and of the audit no more than this one finds; bundles verify under the key that it names. TOLD and SUMMARISED
    mean the same of an export that is no more. Whether the ledger's operator committed to what was trained, no check can tell.

    Args:
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
    check = _Check(directory, tuple(keys), owner_key, minimum_size, require_quorum, machine_time() if now is None else now)
    verdict: Verdict = "FAILED"
    try:
        verdict = check.run(export)
    except LedgerError as error:
        check.fault(error.code, str(directory), error.sentence)
    except Exception as error:  # an input that breaks the check must not pass it
        check.fault("INTERNAL", str(directory), f"the check broke off: {type(error).__name__}: {error}")
    manifest = check.manifest
    other = any(finding.code in ("CHANGED_FILE", "MISSING_FILE") for finding in check.findings)
    weights = None if manifest is None or other else tie(manifest.weights, manifest.files)
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
        documents=check.documents,
        withdrawn_classes=check.gone,
        ledger_size=None if check.seen is None else check.seen[0],
        ledger_root=None if check.seen is None else check.seen[1],
    )


@dataclass(slots=True)
class _Check:
    """Runs one check. `manifest`: what was released; None before its signature was verified."""

    directory: Path
    keys: tuple[str, ...]
    owner_key: bytes | None
    minimum_size: int
    require_quorum: bool
    now: int
    manifest: Manifest | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    newer: int | None = None
    gone: tuple[str, ...] | None = None
    seen: tuple[int, bytes] | None = None
    words: set[str] = field(default_factory=set)
    documents: tuple[str, ...] = ()

    def fault(self, code: str, where: str, sentence: str) -> None:
        self.findings.append(Finding(code, where, sentence))

    def run(self, export: Path | None) -> Verdict:
        """Returns the verdict of a release without findings."""
        data = read_manifest(self.directory)
        own = self.directory / EXPORT
        place = export or (own if own.is_dir() else None)
        audited = None
        if place is not None:
            audited = self._audited(place, require_quorum=self.require_quorum)
        followed = () if audited is None or audited.verdict == "FAILED" else audited.log_keys
        manifest = self.manifest = open_manifest(data, (*self.keys, *followed))
        if manifest.size < self.minimum_size:
            sentence = f"the release cites {manifest.size} leaves, at least {self.minimum_size} are asked for"
            self.fault("OLD", MANIFEST, f"{sentence}: get a newer release")
        if is_ahead(manifest.time, self.now):
            sentence = f"the release is dated {utc(manifest.time)}, ahead of the clock here ({utc(self.now)})"
            self.fault("CLOCK", MANIFEST, f"{sentence}: one of the two is wrong")
        # Only a directory of that name is an export that was looked at; a link or a file is neither.
        left_out = [MANIFEST, *([EXPORT] if own.is_dir() and not own.is_symlink() else [])]
        left_out += [STATEMENT] if manifest.signing_key is not None and not (self.directory / STATEMENT).is_symlink() else []
        self.findings += differences(self.directory, manifest.files, left_out)
        self.findings += bundle_problems(self.directory, manifest, data)
        if place is None or audited is None:
            self.notes.append(
                "no export to check against: that numbers and weights are those of the ledger is the signer's word, and "
                "nothing shows that it records this release"
            )
            if manifest.publication is not None:
                named = ", ".join(manifest.publication.documents)
                self.notes.append(f"without an export nothing was written again: what {named} say is the signer's word")
            if self.owner_key is not None or self.require_quorum:
                asked = "the owner's key" if self.owner_key is not None else "cosignatures"
                sentence = f"there is none, and without one {asked} cannot be looked for; get one from the ledger's operator"
                self.fault("NO_EXPORT", EXPORT, f"{sentence}, and give it with --export")
            return "SIGNED"
        # No file goes unlooked at: where another export is checked against, the one in the directory is audited too.
        beside = self._audited(own) if own.is_dir() and own.resolve() != place.resolve() else None
        for report in filter(None, (audited, beside)):
            for finding in report.findings:
                self.fault(finding.code, f"{EXPORT}: {finding.where}", finding.sentence)
        if audited.verdict == "FAILED":
            return "FAILED"
        if beside is not None and beside.verdict != "FAILED" and beside.origin == audited.origin:
            self._compare_exports(own, place)
        self.words.update(audited.qualifiers)
        given = read_export(place)
        given.require(audited)
        self.seen = (given.leaves.size, bytes.fromhex(audited.root_hex or ""))  # which `require` has compared
        self._check_ledger(given, manifest, hashlib.sha256(data).digest())
        if given.digest == manifest.header_digest:
            self._check_documents(given.header, manifest, audited, audited if own.resolve() == place.resolve() else beside)
        return audited.verdict

    def _check_documents(self, header: Header, manifest: Manifest, audited: AuditReport, own: AuditReport | None) -> None:
        """Holds documents against manifest and header, and what they tell of an audit against that of the own export."""
        wrong = list(document_problems(self.directory, manifest, header))
        self.findings += wrong
        told = manifest.publication
        if told is not None:
            faulty = {finding.where for finding in wrong}
            self.documents = tuple(path for path in told.documents if path not in faulty)
        problem = None if own is None or own.origin != manifest.origin else audit_problem(manifest, own, header)
        if problem is not None:
            self.fault("AUDIT", MANIFEST, problem)
        elif told is not None and (since := weaker_since(told, audited, self.words)) is not None:
            self.notes.append(since)
        if others := unlisted(manifest):
            self.notes.append(f"not from the audit, and not checked: {', '.join(others)}")

    def _audited(self, place: Path, *, require_quorum: bool = False) -> AuditReport:
        return verify_export(place, self.keys, owner_key=self.owner_key, require_quorum=require_quorum, now=self.now)

    def _compare_exports(self, own: Path, place: Path) -> None:
        """Finds two histories of one ledger: whoever holds both has the proof that its key signed two."""
        one, two = read_export(own).leaves, read_export(place).leaves
        size = min(one.size, two.size)
        if one.root_at(size) != two.root_at(size):
            told = f"the first {size} leaves of the export in the directory and of {place} differ: two histories of one ledger"
            self.fault("FORKED", EXPORT, f"{told}, both signed; publish both checkpoints")

    def _check_ledger(self, given: Given, manifest: Manifest, digest: bytes) -> None:
        leaves, size = given.leaves, given.leaves.size
        if given.header.origin != manifest.origin:
            self._another_run(given.header, manifest)
            return
        if size < manifest.size:
            told = f"the manifest cites {manifest.size} leaves, the export has {size}: {_more(manifest)}"
            self.fault("BEHIND", EXPORT, told)
            return
        if leaves.root_at(manifest.size) != manifest.root:
            told = f"the first {manifest.size} leaves of the export are not those that the manifest cites: two histories"
            self.fault("FORKED", MANIFEST, told)
            return
        self._compare_leaf(next(islice(leaves, manifest.size, None), None), manifest, digest)
        if given.digest != manifest.header_digest:
            self.fault("HEADER", MANIFEST, "the header digest of the manifest is not that of leaf 0")
        else:
            self._compare(leaves, manifest)

    def _another_run(self, header: Header, manifest: Manifest) -> None:
        """Tells why the export of another ledger does not do, and what that ledger says of the one that was released from."""
        sentence = f"the manifest is of {manifest.origin!r}, the export of {header.origin!r}"
        released = (manifest.origin, manifest.header_digest)
        for item in (item for item in header.previous if (item.origin, item.header_digest) == released):
            if item.reason == COMPROMISED and manifest.size >= item.size:
                self.fault(
                    "COMPROMISED",
                    MANIFEST,
                    f"{sentence}, which continues it because its key was lost: nothing counts that was signed with that key "
                    f"behind leaf {item.size - 1}, and this release cites {manifest.size} leaves; take a release of "
                    f"{header.origin!r}",
                )
                return
            sentence += f", which counts it ({item.reason}) up to {item.size} leaves"
        self.fault("ORIGIN", MANIFEST, f"{sentence}; {_more(manifest)}")

    def _compare_leaf(self, data: bytes | None, manifest: Manifest, digest: bytes) -> None:
        """Holds the manifest against the leaf behind those that it cites, which must record the release.

        An export that ends there is a fault: `release` logs before the manifest exists and exports after, so what lacks the
        leaf may be a manifest that was signed with the ledger's key and kept from everybody who reads the ledger.
        """
        if data is None:
            self.fault(
                "UNRECORDED",
                EXPORT,
                f"the export ends at {manifest.size} leaves, right before the leaf that must record this release; until an "
                f"export shows it, the release may be hidden from auditors: {_more(manifest)}",
            )
            return
        leaf = decode_leaf(data)
        told = (leaf.manifest_digest, leaf.artifacts_digest, leaf.step, leaf.time) if isinstance(leaf, Release) else None
        if told != (digest, manifest.artifacts_digest, manifest.step, manifest.time):
            self.fault("RELEASE", f"seq {manifest.size}", "the ledger does not record this release right behind what it cites")

    def _compare(self, leaves: Leaves, manifest: Manifest) -> None:
        """Holds what the manifest says against what follows from the leaves that it cites."""
        run = begin(leaves, recompute=False)
        header, stream = run.header, follow(run, leaves)
        deque(islice(stream, manifest.size - 1), maxlen=0)
        signer = run.keys.at(manifest.size)
        if signer != manifest.log_vkey:
            sentence = f"at size {manifest.size} the ledger is signed by {signer}, the manifest by {manifest.log_vkey}"
            self.fault("LOG_KEY", MANIFEST, sentence)
        self._compare_record(run, manifest)
        self._compare_weights(run, manifest)
        self._compare_costs(run, manifest)
        # Also who had expired before, and withdrew since.
        gone = {leaf.descriptor_hash for leaf, _ in stream if isinstance(leaf, Withdraw)}
        self.newer, self.gone = len(gone), _classes_gone(run, gone, manifest.size)
        if self.newer:
            self.words.add("RELEASE_OLDER")
            self.notes.append(f"{self.newer} withdrawals are newer than the release, which cannot take them into account")
        recorded = (item.leaf for item in run.releases.recorded)
        released = [str(leaf.seq) for leaf in recorded if leaf.artifacts_digest == manifest.artifacts_digest]
        if len(released) > 1:
            told = f"the same files were released at leaves {' and '.join(released)}"
            self.notes.append(f"{told}; this manifest is that of leaf {manifest.size}")
        if header.previous:
            names = ", ".join(f"{item.origin} ({item.reason})" for item in header.previous)
            spent = "spent, or may be for texts," if any(item.reason == TEXTS for item in header.previous) else "spent"
            self.notes.append(f"epsilons are those of this run alone; the ledger counts besides what was {spent} in {names}")

    def _compare_record(self, run: Replay, manifest: Manifest) -> None:
        expected = record_of(run, tie(manifest.weights, manifest.files))
        wrong = [name for name, value in expected.items() if getattr(manifest, name) != value]
        gone = ("withdrawn", "withdrawals_root")
        for name in wrong:
            if name not in gone:
                self.fault("RECORD", MANIFEST, f"{name}: the manifest says otherwise than the ledger it cites")
        if not set(gone).isdisjoint(wrong):
            told = f"the withdrawals of the manifest are not those of the {manifest.size} leaves that it cites"
            self.fault("WITHDRAWALS", MANIFEST, told)

    def _compare_weights(self, run: Replay, manifest: Manifest) -> None:
        """Folds the records of the tensors to the digest of the epoch that the manifest names."""
        weights = manifest.weights
        note = frozen_note(run.header, None if weights is None else weights.records)
        if note:
            self.notes.append(note)
        elif tie(weights, manifest.files).status == "TIED":
            self.words.discard("FROZEN_TOLD")
        if weights is None:
            return
        epoch = next((epoch for epoch in run.epochs if epoch.number == weights.number), None)
        if epoch is None or (epoch.seq, epoch.step) != (weights.seq, weights.step):
            sentence = f"the ledger has no epoch {weights.number} at leaf {weights.seq}, after step {weights.step}"
            self.fault("WEIGHTS", MANIFEST, sentence)
        elif epoch.model_digest != (digest := model_digest(weights.records)):
            self.fault(
                "WEIGHTS",
                MANIFEST,
                f"the tensors with which epoch {weights.number} ended by the manifest have the digest {digest.hex()}, leaf "
                f"{epoch.seq} commits to {epoch.model_digest.hex()}",
            )
        for code, sentence in stack_problems(run.header, weights.records):
            self.fault(code, MANIFEST, sentence)

    def _compare_costs(self, run: Replay, manifest: Manifest) -> None:
        header = run.header
        about = header.accountant
        least = of_record(header, run.expenditure)
        room = SPEND_TOLERANCE_MICRO + MICRO * leeway(about.name, about.library, about.version, header.policy.mechanism.name)
        counts = [0] * len(header.policy.classes)
        for contribution in run.register.by_number:
            counts[contribution.class_index] += 1
        rows = zip(header.policy.classes, manifest.classes, class_costs(run, least), strict=False)
        for place, (rule, row, cost) in enumerate(rows):
            facts = (rule.name, counts[place], run.register.withdrawn[place], rule.public)
            if (row.name, row.contributions, row.withdrawn, row.epsilon_micro is None) != facts:
                self.fault("RECORD", MANIFEST, f"class {rule.name}: its contributions are not those that the ledger has")
            stated = (row.epsilon_micro, row.replace_micro)
            for what, said, computed in zip(("epsilon", "epsilon if content is replaced"), stated, cost or (), strict=False):
                if said is None or not computed * MICRO <= said <= computed * MICRO + room:
                    sentence = f"class {rule.name}: {what} is {said} (1e-6), recomputed {computed * MICRO:.3f}"
                    self.fault("EPSILON", MANIFEST, sentence)
        if len(manifest.classes) != len(counts):
            self.fault("RECORD", MANIFEST, f"the manifest has {len(manifest.classes)} classes, the policy {len(counts)}")


def _classes_gone(run: Replay, withdrawn: Collection[bytes], size: int) -> tuple[str, ...]:
    """Returns the classes of contributions, by the descriptor hashes of later WITHDRAW leaves, from which a release that cites
    so many leaves may have learned.

    Who was admitted behind the RELEASE leaf is none of them: the files of the release were fixed before. A withdrawal of whom
    no leaf admits by name counts for every class: a pruned leaf, or an earlier run, may have held the contribution.
    """
    names = [rule.name for rule in run.header.policy.classes]
    found = set()
    for descriptor_hash in withdrawn:
        contribution = run.contributions.get(descriptor_hash)
        if contribution is None:
            return tuple(names)
        if contribution.seq < size:
            found.add(contribution.class_index)
    return tuple(name for place, name in enumerate(names) if place in found)


def _more(manifest: Manifest) -> str:
    return f"get one of at least {manifest.size + 1} leaves from the ledger's operator, and give it with --export"
