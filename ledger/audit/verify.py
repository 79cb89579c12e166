"""Verifies an export: names, hashes, signatures, the meaning of every leaf; and opens one that holds for questions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attest.schema.plain import machine_time, utc
from ledger import accountants, layout
from ledger.accountants import MICRO
from ledger.audit import signatures
from ledger.audit.attested import registered
from ledger.audit.bounds import Bounds, bounds_are_signed
from ledger.audit.earlier import hold_against_earlier
from ledger.audit.findings import (
    MAX_FINDINGS,
    AuditReport,
    CitedRow,
    ClockRow,
    EpochRow,
    Finding,
    Kinds,
    Report,
    Signer,
    Verdict,
)
from ledger.audit.given import Export, Given, Leaves, begin, check_keys, follow, lookup, read_export
from ledger.audit.histories import Followed
from ledger.audit.remarks import Remarks, charged_noise_phases, remark_header, remark_run
from ledger.audit.texts import GivenTexts
from ledger.audit.withdrawals import SignedWithdrawals, Withdrawals
from ledger.errors import (
    ExportChanged,
    ExportRefused,
    LeafRefused,
    LedgerBehind,
    LedgerForked,
    ProofError,
)
from ledger.leaves import Header, Previous, read_header
from ledger.leaves.header import SPENT
from ledger.note import Checkpoint, checkpoint_text
from ledger.replay import Replay
from ledger.replay.earlier_runs import Earlier
from ledger.retention import RetainedReplay
from ledger.views.geometry import geometry_of
from ledger.views.summary import block_multipliers, class_summaries, preset_epsilon, release_rows


@dataclass(frozen=True, slots=True)
class _Asked:
    """Holds what an auditor brings and asks for; fields as the arguments of `verify_export`."""

    keys: list[str]
    owner_key: bytes | None
    require_quorum: bool
    minimum_size: int | None
    withdrawals: Path | None
    registry: Path | None
    now: int
    max_age: int | None


def verify_export(
    path: str | Path,
    keys: Sequence[str],
    *,
    owner_key: bytes | None = None,
    require_quorum: bool = False,
    now: int | None = None,
    max_age: int | None = None,
    minimum_size: int | None = None,
    withdrawals: Path | None = None,
    registry: Path | None = None,
    earlier: Sequence[str | Path] | None = None,
    texts: Sequence[GivenTexts] = (),
) -> AuditReport:
    """Audits an export offline, and if asked what it says of earlier runs, and of budgets of texts, against their exports
    (`hold_against_earlier`).

    Guarantee: The verdict FULL means: the directory holds exactly the files that its signed size calls for; they are the tree
    whose root a pinned key signed, or the key to which a pinned one handed the ledger over by leaves that both signed; the
    policy in the header is signed by the header's owner key (and that is ``owner_key``, if given); blocks and their noise are
    those that the policy's rule makes of the stack that the header names, whose names, order and coordinates are the operator's
    word; every epoch says of the frozen parameters what the header says; class, bounds and limits of every contribution are
    those of an attestation that verifies under a key of its contributor in the state of the owner's registry in force then, of
    the header or of the last REGISTRY leaf, within the policy and valid at every charge (`ledger.audit.bounds`); the charged
    windows tile every attempt within the horizon, each in one phase of the noise, over the pool of its moment and under a fresh
    noise stream; draws are recorded step by step where the policy makes them public, with the variances that they give, of
    exactly those due where it signs an order, and nowhere else; and every recorded epsilon is at least the one recomputed here
    from admissions, charges and withdrawals, and at most 2e-6 above it (for the accountant `prv`: at least what `pld` gives,
    and at most 0.02 above it; for one of another package, above by no more than it says of the version that recorded); and no
    time runs back but at a CLOCK leaf, which a note names, and none since the last of these lies ahead of the auditor's clock.
    An auditor's signature counts only if its time lies between the last leaf that it covers and that
    clock. The audit cannot tell whether the trainer did what it recorded, or trained elsewhere on unlogged data.

        SUMMARISED means the same of a ledger without the ADMIT leaves of contributions that left, or, once the run was closed,
        of all: every figure was recomputed from what stays, a quorum of the auditors whom the signed policy names vouches for
        the summaries of everything pruned, and for who stayed through the close, and each summary agrees with what stays.
        That the pruned leaves said no more than their stand-ins, and what was signed, is these auditors' word
        (`ledger.retention`, `ledger.retention`); the notes name them and the ranges.

        TOLD means the same, pruned or not, but for the bounds: these are what the ledger's operator wrote into ADMIT leaves.

        Whatever weakens a verdict is a qualifier (`ledger.audit.findings.QUALIFIERS`).

    Args:
        keys: verifier keys of the log, obtained from a place that the exporter does not control.
        owner_key: raw public key of the corpus owner, likewise; without it the header's own counts (UNPINNED).
        require_quorum: fail unless as many of the policy's auditors, and of its witnesses, as it asks for have cosigned the
            export and every earlier one: an operator who shows different people different histories of an earlier run could
            show here the one in which less was spent.
        now: the auditor's clock, POSIX seconds; that of this machine without. Times may lie
            `attest.schema.plain.AHEAD_SECONDS` ahead.
        max_age: fail if the last leaf, and every cosignature that counts, is older than this many seconds; None for any age. An
            operator who shows an old export shows nothing wrong, only less than there is. Earlier runs may be of any age.
        minimum_size: fail if the checkpoint has fewer leaves: the largest size that the auditor knows of; None for unknown.
        withdrawals: a directory of signed withdrawals, to hold WITHDRAW leaves against: who withdrew in an earlier run, for
            whatever reason, has withdrawn from the corpus.
        registry: file of the contributor registry, in place of the one in the export: under its keys attestations and signed
            withdrawals verify.
        earlier: directories of the exports of earlier runs, all that the auditor knows of; None to hold against none.
        texts: exports of budget logs by which contributions make texts, likewise (`ledger.budget.audit.given_texts`).

    Returns:
        The report. Bad input never raises: it is a finding.
    """
    now = machine_time() if now is None else now
    asked = _Asked(list(keys), owner_key, require_quorum, minimum_size, withdrawals, registry, now, max_age)
    report = _audited(Path(path), asked)
    if earlier is None and not texts:
        return report
    alone = replace(asked, max_age=None, minimum_size=None)
    return hold_against_earlier(report, Path(path), earlier or (), lambda other: _audited(other, alone), texts)


def _audited(path: Path, asked: _Asked) -> AuditReport:
    findings: list[Finding] = []
    report: dict[str, Any] = {}
    verdict: Verdict = "FAILED"
    try:
        verdict = _verify(path, asked, findings, report)
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        findings.append(Finding("INTERNAL", str(path), f"the audit broke off: {type(error).__name__}: {error}"))
    return AuditReport(
        verdict="FAILED" if findings else verdict,
        findings=tuple(findings[:MAX_FINDINGS]),
        now=asked.now,
        owner_pinned=asked.owner_key is not None,
        **report,
    )


def _verify(path: Path, asked: _Asked, findings: list[Finding], report: dict[str, Any]) -> Verdict:
    def fault(code: str, where: str, sentence: str) -> None:
        findings.append(Finding(code, where, sentence))

    keys, export = asked.keys, Export(path, fault)
    if not check_keys(keys, fault) or not export.scan():
        return "FAILED"
    opened = export.checkpoint(keys)
    if opened is None:
        return "FAILED"
    note, checkpoint = opened
    report.update(origin=checkpoint.origin, size=checkpoint.size, root_hex=checkpoint.root.hex())
    if note is not None:
        report.update(
            signers=signatures.pinned_signers(note, checkpoint.origin), ignored=signatures.ignored_lines([note], keys)
        )
    if checkpoint.size == 0:
        fault("EMPTY", layout.CHECKPOINT, "an empty tree has no header")
        return "FAILED"
    remarks = Remarks()
    _check_size(checkpoint, asked.minimum_size, fault, remarks)
    leaves = export.leaves(checkpoint) if export.check_names(checkpoint.size) else None
    if leaves is None:
        return "FAILED"
    header = _header(leaves, fault)
    if header is None:
        return "FAILED"
    _check_header(header, checkpoint, asked.owner_key, fault)
    remark_header(header, asked.owner_key, remarks)
    withdrawals, kinds = Withdrawals(), Kinds(header)
    registry = registered(header, export, asked.registry, fault)
    latest = None if registry is None else registry.latest
    evidence = SignedWithdrawals(header, asked.withdrawals, latest, fault, lookup(leaves))
    bounds = Bounds(header, export, registry, fault)
    run = _replay(leaves, findings, withdrawals, kinds, evidence, bounds)
    try:
        run.timeline.require_not_ahead(asked.now)
    except LeafRefused as error:
        fault(error.code, f"seq {error.seq}", error.sentence)
    if export.read(layout.POLICY) not in (None, run.keys.trust_policy().text()):
        fault("POLICY_FILE", layout.POLICY, "the trust policy is not that of the ledger's key and the auditors in the header")
    signed = export.read(layout.CHECKPOINT)
    note = signatures.judge_keys(signed, header.origin, run.keys, keys, fault, remarks) or note
    if note is None:  # no pinned key led to a signature: nothing here is to be believed
        report.clear()
        return "FAILED"
    if note.text != checkpoint_text(checkpoint.origin, checkpoint.size, checkpoint.root):
        # What was signed is not what was audited, and the leaves hang on the latter.
        fault("CHANGED", layout.CHECKPOINT, "the checkpoint changed while it was audited; audit a copy that nobody writes")
        report.clear()
        return "FAILED"
    known = signatures.known_keys(run, keys)
    carried = signatures.carried_notes(
        run, export, leaves, signatures.Carried(checkpoint.size, signed or b"", note), known, fault
    )
    over_it = [item for item in carried if item.size == checkpoint.size]
    counts = partial(run.timeline.counts, size=checkpoint.size, now=asked.now)
    signers = signatures.judge_signers(over_it, header, run.keys, counts, asked.require_quorum, fault, remarks)
    _judge_age(run, signers["signers"], asked.now, asked.max_age, fault)
    ignored = signatures.ignored_lines((item.note for item in carried), known)
    remarks.note(*signatures.tell_ignored(ignored))
    remark_run(run, remarks)
    summaries = signatures.judge_summaries(run, export.nodes, carried, asked.now, fault, remarks)
    held = bounds.judge(run, remarks)
    _describe(run, report)
    report.update(
        **signers,
        bounds=held,
        ignored=ignored,
        kinds=kinds.rows(),
        log_keys=run.keys.vkeys,
        multipliers=block_multipliers(header),
        withdrawal_counts=withdrawals.counts(),
        withdrawals=withdrawals.rows(run),
        withdrawal_evidence=evidence.judge(run.contributions.__contains__, sum(run.register.unnamed), remarks),
        summaries=summaries,
        folded=sum(1 for _ in run.folded()),
        last_time=run.last_time,
        clock_sets=tuple(ClockRow(leaf.seq, leaf.before, leaf.time, leaf.reason) for leaf in run.timeline.sets),
        release_count=len(run.releases.recorded),
        releases=release_rows(run),
    )
    report.update(notes=tuple(remarks.notes), qualifiers=remarks.qualifiers)
    if not bounds_are_signed(held):
        classes = enumerate(report["classes"])
        report.update(classes=tuple(replace(row, epsilon_preset=preset_epsilon(run, place)) for place, row in classes))
        return "TOLD"
    return "SUMMARISED" if any(row.pruned for row in summaries) else "FULL"


def _check_size(checkpoint: Checkpoint, minimum: int | None, fault: Report, remarks: Remarks) -> None:
    """Holds the size against what the auditor knows of; an export can be of any size that was ever signed."""
    if minimum is None:
        remarks.qualify("UNCOMPARED")
    elif checkpoint.size < minimum:
        sentence = f"the checkpoint has {checkpoint.size} leaves, at least {minimum} are asked for"
        fault("OLD", layout.CHECKPOINT, f"{sentence}: an old copy, or the tail was cut; ask the operator for the newest export")


def _header(leaves: Leaves, fault: Report) -> Header | None:
    try:
        return read_header(leaves)
    except LeafRefused as error:
        fault(error.code, f"seq {error.seq or 0}", error.sentence)
        return None


def _check_header(header: Header, checkpoint: Checkpoint, owner_key: bytes | None, fault: Report) -> None:
    if header.origin != checkpoint.origin:
        sentence = f"the checkpoint is of {checkpoint.origin!r}, the header of {header.origin!r}"
        fault("ORIGIN", layout.CHECKPOINT, sentence)
    if not header.private:
        fault("NOT_PRIVATE", "seq 0", "the run used a fixed test key, so its noise protects nobody")
    if owner_key is not None and header.owner_key != owner_key:
        fault("OWNER", "seq 0", f"the policy is signed by {header.owner_key.hex()}, {owner_key.hex()} was pinned")


def _replay(
    leaves: Leaves, findings: list[Finding], withdrawals: Withdrawals, kinds: Kinds, evidence: SignedWithdrawals, bounds: Bounds
) -> RetainedReplay:
    run = begin(leaves)
    try:
        for seq, (leaf, problems) in enumerate(follow(run, leaves), start=1):
            withdrawals.see(leaf, run)
            kinds.see(leaf)
            evidence.see(leaf)
            bounds.see(leaf, run)
            findings.extend(Finding(problem.code, f"seq {seq}", problem.sentence) for problem in problems)
            if len(findings) >= MAX_FINDINGS:
                break
    except (LeafRefused, ExportChanged, ProofError) as error:
        # What follows an unreadable leaf cannot be judged; the run as told so far is still described.
        findings.append(Finding(error.code, f"seq {run.size}", error.sentence))
    return run


def _judge_age(run: Replay, signers: Sequence[Signer], now: int, max_age: int | None, fault: Report) -> None:
    """Holds the newest time that this export shows against what its reader asks for."""
    newest = max([run.last_time, *(signer.time for signer in signers if signer.counts and signer.time is not None)])
    if max_age is not None and now - newest > max_age:
        sentence = f"the newest leaf or cosignature is of {utc(newest)}, {now - newest} s ago; {max_age} s at most are wanted"
        fault("STALE", layout.CHECKPOINT, f"{sentence}. Get a newer export, or cosignatures of today")


def _describe(run: Replay, report: dict[str, Any]) -> None:
    header, policy = run.header, run.header.policy
    report.update(
        finished=run.closed,
        corpus=policy.corpus,
        cited=tuple(CitedRow(item.origin, item.size, item.root.hex(), item.reason) for item in header.previous),
        delta=header.delta,
        accountant="{} ({} {})".format(*accountants.describe(header.accountant.name, policy.mechanism.name)[:3]),
        steps=policy.steps,
        charged=run.charged,
        attempts=run.attempt + 1,
        classes=class_summaries(run),
        epochs=tuple(
            EpochRow(
                epoch.number,
                epoch.step,
                epoch.charged,
                tuple(None if (spent := row.max_epsilon_micro) is None else spent / MICRO for row in epoch.classes),
                seq=epoch.seq,
                time=epoch.time,
                active=tuple(row.active for row in epoch.classes),
                withdrawn=tuple(row.withdrawn for row in epoch.classes),
                model_digest=epoch.model_digest.hex(),
            )
            for epoch in run.epochs
        ),
        blocks=header.blocks,
        began=header.time,
        model_fingerprint=header.model_fingerprint.hex(),
        layers=sum(header.stack.depths.values()),
        stack_parameters=len(header.stack.tensors),
        isolation=run.isolation.sentence,
        randomness=header.randomness,
        unprobed=header.unprobed,
        geometry=geometry_of(header),
        noise_follows_draw=header.per_sample,
        noise_phases=charged_noise_phases(run),
        owner=header.owner,
        model_digest=run.epochs[-1].model_digest.hex() if run.epochs else None,
    )


@dataclass(frozen=True, slots=True)
class OpenedExport:
    """Holds an export that passed its audit, and its run, replayed to the last leaf to be asked."""

    report: AuditReport
    given: Given
    run: Replay


def open_export(
    path: str | Path, keys: Sequence[str], *, owner_key: bytes | None = None, now: int | None = None
) -> OpenedExport:
    """Audits an export, and replays it once more to be asked. Raises ExportRefused: code FAILED, the audit found something; no
    answer from such a record would be worth anything; ExportChanged: it changed after the audit; LeafRefused, ProofError:
    likewise."""
    report = verify_export(path, keys, owner_key=owner_key, now=now)
    if report.verdict == "FAILED":
        first = report.findings[0]
        more = f" (and {len(report.findings) - 1} findings more)" if len(report.findings) > 1 else ""
        sentence = f"the audit of {path} FAILED, {first.code} {first.where}: {first.sentence}{more}"
        raise ExportRefused("FAILED", f"{sentence}; nothing that it says can be relied on: see 'dptrain ledger verify {path}'")
    given = read_export(Path(path))
    given.require(report)
    return OpenedExport(report, given, given.run())


def earlier_run(
    path: str | Path,
    keys: Sequence[str],
    *,
    owner_key: bytes | None = None,
    reason: str = SPENT,
    counted: Sequence[Previous] = (),
    now: int | None = None,
) -> Earlier:
    """Verifies an export and returns it as an earlier run, at its whole size.

    A pruned one will do: what was spent is recomputed from what stays (`ledger.retention`).

    Args:
        counted: how a header cites earlier ledgers, perhaps this one, which must have grown from there.

    Raises:
        LedgerBehind, LedgerForked: it is shorter than cited, or another history.
        LeafRefused: code EARLIER, the audit FAILED; EARLIER_OPEN, the run is not closed, so that more could be charged to it
            unseen; the sentence says more.
        ExportChanged: the export was written to meanwhile.
    """
    report = verify_export(path, keys, owner_key=owner_key, now=now)
    if report.verdict == "FAILED":
        found = report.findings[0]
        raise LeafRefused("EARLIER", f"the earlier run {path} is FAILED: {found.where}: {found.sentence}")
    given = read_export(Path(path))
    given.require(report)
    followed = Followed.of(given)
    run = followed.run
    if reason == SPENT and not run.closed:
        why = "is not closed, and what it charges later would not be counted; close it, and export it again"
        raise LeafRefused("EARLIER_OPEN", f"the run of {path} {why}")
    size, header = given.leaves.size, run.header
    for cited in counted:
        if cited.header_digest == given.digest and size < cited.size:
            raise LedgerBehind("BEHIND", f"{cited.size} leaves of {cited.origin} were counted, {path} has {size}")
        if cited.header_digest == given.digest and given.leaves.root_at(cited.size) != cited.root:
            raise LedgerForked("FORKED", f"the first {cited.size} leaves of {path} are not those that were counted")
    cited = Previous(header.origin, size, given.leaves.root_at(size), given.digest, run.keys.current, reason)
    return Earlier(cited, run, followed.withdrawn)
