"""Verifying an export: names, hashes, signatures, and then the meaning of every leaf."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from attest.clock import machine_time
from attest.micro import from_micro
from attest.policy.sampling import POISSON
from attest.shown import utc, visible
from ledger import layout
from ledger.accountants import MICRO, Phase, caveat, describe
from ledger.audit.carried import Carried, carried_notes, ignored_lines, known_keys, tell_ignored
from ledger.audit.files import Export, Leaves
from ledger.audit.findings import AuditReport, ClockRow, EpochRow, Finding, Signer, Verdict
from ledger.audit.kinds import Kinds
from ledger.audit.quorum import judge_signers, pinned_signers
from ledger.audit.replaying import begin, follow
from ledger.audit.signing import judge_keys
from ledger.audit.summaries import judge_summaries
from ledger.audit.withdrawals import Withdrawals
from ledger.errors import ExportChanged, LeafRefused, NoteError, ProofError
from ledger.leaves import Header, decode_leaf
from ledger.leaves.header import UNADDRESSED
from ledger.note import Checkpoint, checkpoint_text, parse_verifier_key
from ledger.replay import Replay
from ledger.retention.retained import RetainedReplay
from ledger.views.posture import block_multipliers
from ledger.views.released import release_rows
from ledger.views.summary import class_summaries

MAX_CLOCK_NOTES: Final = 10
"""CLOCK leaves that notes tell of one by one; the report has all."""

MAX_FINDINGS: Final = 200
"""An audit stops naming faults after this many; one is enough to fail."""


def verify_export(
    path: str | Path,
    keys: Sequence[str],
    *,
    owner_key: bytes | None = None,
    require_quorum: bool = False,
    now: int | None = None,
    max_age: int | None = None,
) -> AuditReport:
    """Audits an export offline.

    Guarantee:
        The verdict FULL means: the directory holds exactly the files that its signed size calls for; they are the tree
        whose root a pinned key signed, or the key to which a pinned one handed the ledger over by leaves that both signed;
        the policy in the header is signed by the header's owner key (and that is ``owner_key``, if given);
        the noise schedule is the one that the policy's rule
        gives; the charged windows tile every attempt within the horizon, each in one phase of the noise, over the pool of its
        moment and under a fresh noise stream; draws are recorded step by step where
        the policy makes them public, with the variances that they give, of exactly those due where it signs an order, and
        nowhere else; and every recorded epsilon is at
        least the one recomputed here from admissions, charges and withdrawals, and at most 2e-6 above it (for the accountant
        `prv`: at least what `pld` gives, and at most 0.02 above it; for versions of an accountant that were looser than
        this one, which a note names: at least the one recomputed); and no time runs back but at a CLOCK leaf, which a note
        names, and none since the last of these lies ahead of the auditor's clock. An auditor's signature counts only if its
        time lies between the last leaf that it covers and that clock. The audit cannot
        tell whether the trainer did what it recorded, or trained elsewhere on unlogged data.

        SUMMARISED means the same of a ledger of which SPEND leaves, and ADMIT leaves of contributions that left, were pruned:
        every figure was recomputed from what stays, a quorum of the auditors whom the signed policy names vouches for the
        summaries of everything pruned, and each summary agrees with what stays. That the pruned leaves said no more than
        their stand-ins is these auditors' word (`ledger.retention.retained`, `ledger.retention.statements`); the notes
        name them and the ranges.

    Args:
        path: the directory of the export.
        keys: verifier keys of the log, obtained from a place that the exporter does not control.
        owner_key: raw public key of the corpus owner, likewise; without it the header's own counts, and a note says so.
        require_quorum: fail unless as many of the policy's auditors as it asks for have cosigned the checkpoint.
        now: the auditor's clock, POSIX seconds; that of this machine without. Times may lie `attest.clock.AHEAD_SECONDS` ahead.
        max_age: fail if the last leaf, and every cosignature that counts, is older than this many seconds; None for any age.
            An operator who shows an old export shows nothing wrong, only less than there is.

    Returns:
        The report. Bad input never raises: it is a finding.
    """
    findings: list[Finding] = []
    clock = machine_time() if now is None else now
    report: dict[str, Any] = {}
    try:
        _verify(Path(path), list(keys), owner_key, require_quorum, clock, max_age, findings, report)
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        findings.append(Finding("INTERNAL", str(path), f"the audit broke off: {type(error).__name__}: {error}"))
    whole: Verdict = "SUMMARISED" if any(row.pruned for row in report.get("summaries", ())) else "FULL"
    return AuditReport(verdict="FAILED" if findings else whole, findings=tuple(findings[:MAX_FINDINGS]), now=clock, **report)


def _verify(
    path: Path,
    keys: list[str],
    owner_key: bytes | None,
    require_quorum: bool,
    now: int,
    max_age: int | None,
    findings: list[Finding],
    report: dict[str, Any],
) -> None:
    def fault(code: str, where: str, sentence: str) -> None:
        findings.append(Finding(code, where, sentence))

    export = Export(path, fault)
    if not _check_keys(keys, fault) or not export.scan():
        return
    opened = export.checkpoint(keys)
    if opened is None:
        return
    note, checkpoint = opened
    report.update(origin=checkpoint.origin, size=checkpoint.size, root_hex=checkpoint.root.hex())
    if note is not None:
        report.update(signers=pinned_signers(note, checkpoint.origin), ignored=ignored_lines([note], keys))
    if checkpoint.size == 0:
        fault("EMPTY", layout.CHECKPOINT, "an empty tree has no header")
        return
    leaves = export.leaves(checkpoint) if export.check_names(checkpoint.size) else None
    if leaves is None:
        return
    header = _header(next(iter(leaves)), fault)
    if header is None:
        return
    notes: list[str] = []
    _check_header(header, checkpoint, owner_key, fault, notes)
    withdrawals, kinds = Withdrawals(), Kinds(header)
    run = _replay(leaves, findings, withdrawals, kinds)
    _judge_times(run, now, fault, notes)
    if export.read(layout.POLICY) not in (None, run.keys.trust_policy().text()):
        fault("POLICY_FILE", layout.POLICY, "the trust policy is not that of the ledger's key and the auditors in the header")
    signed = export.read(layout.CHECKPOINT)
    note = judge_keys(signed, header.origin, run.keys, keys, fault, notes) or note
    if note is None:  # no pinned key led to a signature: nothing here is to be believed
        report.clear()
        return
    if note.text != checkpoint_text(checkpoint.origin, checkpoint.size, checkpoint.root):
        # What was signed is not what was audited, and the leaves hang on the latter.
        fault("CHANGED", layout.CHECKPOINT, "the checkpoint changed while it was audited; audit a copy that nobody writes")
        report.clear()
        return
    known = known_keys(run, keys)
    carried = carried_notes(run, export, leaves, Carried(checkpoint.size, signed or b"", note), known, fault)
    over_it = [item for item in carried if item.size == checkpoint.size]
    counts = partial(run.timeline.counts, size=checkpoint.size, now=now)
    signers = judge_signers(over_it, header, run.keys, counts, require_quorum, fault, notes)
    _judge_age(run, signers["signers"], now, max_age, fault)
    ignored = ignored_lines((item.note for item in carried), known)
    notes += tell_ignored(ignored)
    _describe(run, notes, report)
    report.update(
        **signers,
        ignored=ignored,
        owner_pinned=owner_key is not None,
        kinds=kinds.rows(),
        log_keys=run.keys.vkeys,
        multipliers=block_multipliers(header),
        withdrawal_counts=withdrawals.counts(),
        withdrawals=withdrawals.rows(run),
        summaries=judge_summaries(run, export.nodes, carried, now, fault, notes),
        last_time=run.last_time,
        clock_sets=tuple(ClockRow(leaf.seq, leaf.before, leaf.time, leaf.reason) for leaf in run.timeline.sets),
        release_count=len(run.releases.recorded),
        releases=release_rows(run),
    )
    report.update(notes=tuple(notes))


def _check_keys(keys: list[str], fault: Any) -> bool:
    if not keys:
        fault("KEYS", "keys", "no verifier key was given; get the log's key from a trusted place")
    for key in keys:
        try:
            parse_verifier_key(key)
        except NoteError as error:
            fault(error.code, "keys", error.sentence)
            return False
    return bool(keys)


def _header(data: bytes, fault: Any) -> Header | None:
    try:
        leaf = decode_leaf(data)
    except LeafRefused as error:
        fault(error.code, "seq 0", error.sentence)
        return None
    if isinstance(leaf, Header):
        return leaf
    fault("HEADER", "seq 0", "the first leaf is not a header")
    return None


def _check_header(header: Header, checkpoint: Checkpoint, owner_key: bytes | None, fault: Any, notes: list[str]) -> None:
    if header.origin != checkpoint.origin:
        sentence = f"the checkpoint is of {checkpoint.origin!r}, the header of {header.origin!r}"
        fault("ORIGIN", layout.CHECKPOINT, sentence)
    if not header.private:
        fault("NOT_PRIVATE", "seq 0", "the run used a fixed test key, so its noise protects nobody")
    if owner_key is None:
        notes.append(f"the policy is signed by key {header.owner_key.hex()} of {header.owner}, which was not pinned")
    elif header.owner_key != owner_key:
        fault("OWNER", "seq 0", f"the policy is signed by {header.owner_key.hex()}, {owner_key.hex()} was pinned")
    if header.previous:
        counted = ", ".join(f"{item.origin} ({item.reason}, {item.size} leaves)" for item in header.previous)
        notes.append(
            f"the run counts {counted}; what was spent there is the signer's word unless their exports are given too "
            "(--earlier)"
        )
    here = describe(header.accountant.name, header.policy.noise_family)
    there = (header.accountant.name, header.accountant.library, header.accountant.version, header.accountant.parameters)
    if there != here:
        notes.append(f"recorded with {' '.join(there)}; recomputed with {' '.join(here)}")


def _replay(leaves: Leaves, findings: list[Finding], withdrawals: Withdrawals, kinds: Kinds) -> RetainedReplay:
    run = begin(leaves)
    try:
        for seq, (leaf, problems) in enumerate(follow(run, leaves), start=1):
            withdrawals.see(leaf, run)
            kinds.see(leaf)
            if problems:
                findings.extend(Finding(problem.code, f"seq {seq}", problem.sentence) for problem in problems)
                if len(findings) >= MAX_FINDINGS:
                    break
    except LeafRefused as error:
        # What follows an unreadable leaf cannot be judged; the run as told so far is still described.
        findings.append(Finding(error.code, f"seq {run.size}", error.sentence))
    except (ExportChanged, ProofError) as error:
        findings.append(Finding(error.code, f"seq {run.size}", error.sentence))
    return run


def _judge_times(run: Replay, now: int, fault: Any, notes: list[str]) -> None:
    """Holds the times of the leaves against the auditor's clock, and tells which of them were taken back."""
    try:
        run.timeline.require_not_ahead(now)
    except LeafRefused as error:
        fault(error.code, f"seq {error.seq}", error.sentence)
    sets = run.timeline.sets
    for leaf in sets[-MAX_CLOCK_NOTES:]:
        notes.append(
            f"leaf {leaf.seq} sets the ledger's clock back from {utc(leaf.before)} to {utc(leaf.time)}, since, as its operator "
            f"says: {visible(leaf.reason)}. Do not rely on times before that leaf; who expired by them stays withdrawn"
        )
    if len(sets) > MAX_CLOCK_NOTES:
        notes.append(f"the clock was set back {len(sets)} times in all")


def _judge_age(run: Replay, signers: Sequence[Signer], now: int, max_age: int | None, fault: Any) -> None:
    """Holds the newest time that this export shows against what its reader asks for."""
    newest = max([run.last_time, *(signer.time for signer in signers if signer.counts and signer.time is not None)])
    if max_age is not None and now - newest > max_age:
        sentence = f"the newest leaf or cosignature is of {utc(newest)}, {now - newest} s ago; {max_age} s at most are wanted"
        fault("STALE", layout.CHECKPOINT, f"{sentence}. Get a newer export, or cosignatures of today")


def _caveats(run: Replay) -> list[str]:
    """What must be said beside the figures of the accountant, per class: of a contribution at its presets over all charged
    steps or, where occurrences are public, of the one that took part most."""
    header, found = run.header, []
    for index, rule in enumerate(header.policy.classes):
        if rule.public:
            continue
        if header.occurrences_public:
            loss = max((item.loss for item in run.register.by_number if item.class_index == index), default=0.0)
            phases = [Phase(loss**-0.5, 1.0, 1)] if loss else []
        else:
            multipliers = run.expenditure.multipliers(index, rule.noise_multiplier_micro, rule.clip_norm_micro)
            phases = run.expenditure.charged_phases(index, multipliers, run.charged_phases)
        told = caveat(phases, header.delta, header.accountant.name)
        if told:
            found.append(f"class {rule.name}: {told}")
    return found


def _forward_notes(run: Replay) -> list[str]:
    """What the trainer recorded of optimizer and forward that makes a statement weaker."""
    header, found = run.header, []
    if not run.isolation.held:
        found.append(
            f"statement A (direct isolation) does not hold of this run, as the trainer recorded: {run.isolation.told}; B, and "
            "so every epsilon here, does not hang on it"
        )
    if header.randomness == UNADDRESSED and not header.occurrences_public:
        found.append(
            "random numbers of the forward passes are of one generator for everybody drawn in a step, as the trainer recorded: "
            "who knows its seed may tell draws that the figures here take for secret"
        )
    if header.unprobed:
        found.append(
            f"the start-up probes saw no gradient in {len(header.unprobed)} trained tensors (first: {header.unprobed[0]}), so "
            "they vouch for nothing there"
        )
    return found


def _describe(run: Replay, notes: list[str], report: dict[str, Any]) -> None:
    header, policy = run.header, run.header.policy
    if not run.closed:
        notes.append("the run is not closed: more may be charged")
    accounted = run.epochs[-1].charged if run.epochs else 0
    if accounted != run.charged:
        notes.append(f"{run.charged - accounted} charged steps are in no epoch yet; the figures here count them")
    unsettled = len(run.unsettled) + (run.open_window is not None)
    if unsettled:
        what = "of the steps those with a draw count" if header.occurrences_public else "every step charged counts"
        windows = "1 window was" if unsettled == 1 else f"{unsettled} windows were"
        notes.append(f"{windows} charged and never settled; {what}")
    limited = sum(bool(run.plans.limits(found)) for found in run.register.by_number)
    if limited:
        notes.append(
            f"contributions with a limit of epsilon over all runs: {limited}; here this run by itself, and what it says was "
            "spent before, was held against it. Give the exports of all other runs over the corpus too (--earlier)"
        )
    notes.extend(_forward_notes(run))
    if header.occurrences_public:
        notes.append("who was drawn is public in this ledger: every occurrence is counted in full, nothing by sampling")
    if policy.sampling_order != POISSON:
        notes.append(
            f"contributions take turns in {policy.sampling_order} order, once in each period of 1/q steps: every recorded draw "
            "was held against it"
        )
    varying = header.phases.scales != (MICRO,)
    phases = tuple(zip(header.phases.firsts, map(from_micro, header.phases.scales), run.charged_phases, strict=True))
    if varying:
        told = ", ".join(f"{scale:g} times from step {first} ({charged} charged)" for first, scale, charged in phases)
        notes.append(f"noise varies over the run, by signed policy: {told}; epsilon counts every step at its own noise")
    if header.per_sample:
        notes.append(
            "the noise of a step follows its draw: everybody drawn brings (sigma C)^2 of variance to every block that they may "
            "touch, and a block that nobody drawn may touch has none; epsilon counts the noise of each step as it was drawn"
        )
    for rule in policy.classes:
        if rule.public:
            alone = sum(block.classes != () and block.std == 0 and rule.name in block.classes for block in header.blocks)
            notes.append(
                f"class {rule.name} is public: its contributions are neither clipped nor noised and no epsilon is claimed for "
                f"them; {alone} blocks that it may touch carry no noise, since no private class may touch them"
            )
    notes.extend(_caveats(run))
    unmatched = sum(hash_ not in run.contributions for hash_ in run.withdrawals)
    if unmatched:
        named = "withdrawal names a contribution" if unmatched == 1 else "withdrawals name contributions"
        notes.append(f"{unmatched} {named} never admitted")
    report.update(
        notes=tuple(notes),
        finished=run.closed,
        corpus=policy.corpus,
        delta=header.delta,
        accountant="{} ({} {})".format(*describe(header.accountant.name, policy.noise_family)[:3]),
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
        isolation=run.isolation.sentence,
        randomness=header.randomness,
        unprobed=header.unprobed,
        noise_follows_draw=header.per_sample,
        noise_phases=phases if varying else (),
        owner=header.owner,
        model_digest=run.epochs[-1].model_digest.hex() if run.epochs else None,
    )
