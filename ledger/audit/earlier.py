"""Audits a run together with the earlier runs that it says it counted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from attest.schema.plain import machine_time
from attest.withdrawal import PASSING
from ledger.accountants import MICRO
from ledger.audit.files import Leaves
from ledger.audit.findings import AuditReport, Finding, Report, Verdict, weakest
from ledger.audit.histories import Anchors, Given, judge_citations, judge_crossing, longest, read_export
from ledger.audit.remarks import Remarks
from ledger.audit.replaying import begin, follow
from ledger.audit.verify import MAX_FINDINGS, verify_export
from ledger.errors import ExportChanged, LeafRefused, LedgerBehind, LedgerForked, ProofError
from ledger.leaves import Header, Previous, Withdraw
from ledger.leaves.header import COMPROMISED, SPENT
from ledger.replay import Replay
from ledger.replay.budgets import TOLERANCE_MICRO, Account, Use
from ledger.replay.contributions import Contribution
from ledger.replay.earlier_runs import Accounts, Earlier, SpentRegistry, left_out

CARRIED_TOLERANCE_MICRO = 2
"""Most by which what a run says was spent before may lie below the recomputed value, in 1e-6: last bits differ."""


ANSWERED: Final = frozenset({"EARLIER_TOLD", "LIMITS_ALONE"})
"""Qualifiers of a run that no longer hold once the exports of other runs, among them all that it cites, were verified too, and
everybody whom it admitted could be held against them."""

INHERITED: Final = frozenset(
    {
        "CLOCK_SET",
        "DRAWS_TOLD",
        "FROZEN_TOLD",
        "NO_AUDITORS",
        "NO_QUORUM",
        "NO_WITNESS_QUORUM",
        "PRUNED",
        "UNADDRESSED",
        "UNPROBED",
    }
)
"""Qualifiers of a cited run that hold of what was spent in it, and so of the run that counts it."""


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
    given.require(report.size, report.root_hex)
    withdrawn: list[Withdraw] = []
    run = _replay(given.leaves, given.leaves.size, withdrawn)
    if reason == SPENT and not run.closed:
        raise LeafRefused("EARLIER_OPEN", f"the run of {path} {_NOT_CLOSED}")
    size, header = given.leaves.size, run.header
    for cited in counted:
        if cited.header_digest == given.digest and size < cited.size:
            raise LedgerBehind("BEHIND", f"{cited.size} leaves of {cited.origin} were counted, {path} has {size}")
        if cited.header_digest == given.digest and given.leaves.root_at(cited.size) != cited.root:
            raise LedgerForked("FORKED", f"the first {cited.size} leaves of {path} are not those that were counted")
    cited = Previous(header.origin, size, given.leaves.root_at(size), given.digest, run.keys.current, reason)
    return Earlier(cited, run, tuple(withdrawn))


_NOT_CLOSED = "is not closed, and what it charges later would not be counted; close it, and export it again"


def verify_with_earlier(
    path: str | Path,
    keys: Sequence[str],
    earlier: Sequence[str | Path],
    *,
    owner_key: bytes | None = None,
    require_quorum: bool = False,
    now: int | None = None,
    max_age: int | None = None,
    minimum_size: int | None = None,
    withdrawals: Path | None = None,
    registry: Path | None = None,
) -> AuditReport:
    """Audits an export as `verify_export` does, and what it says of earlier runs against their exports.

    Guarantee: FULL means besides, and SUMMARISED of everybody whom a leaf names (what of the others is told, EARLIER_TOLD
    says): every cited earlier run was given, is FULL itself (or SUMMARISED), of the same corpus, is no shorter than cited and
    has the cited root at that size, under the cited name and key, and was closed there; whatever one of them counted is cited
    too, and so is every run given that began before and shares a contribution; none has leaves dated after the run that cites
    it began; a compromised one is no longer than cited, and is counted with its whole plan unless it was closed, for whoever
    was admitted in it and whoever may have been; all exports given, and all that the runs in them counted, tell one history of
    each ledger; no noise stream of any was used in another; no admission says less than what its contribution had spent in them
    together, or another signed limit than they did; one descriptor has one class, one set of bounds and one content in all
    exports given, and one content one descriptor; nobody took part who was withdrawn in a cited one, or in any that was given
    before this one began; and with this run as planned nobody exceeds a limit of epsilon over all runs, its own or one of any
    policy for its class; nor could anybody with a cited run as that was planned, and the runs that it counted.

        The verdict is the weakest of the run and of those that it cites (`ledger.audit.findings.VERDICTS`). It has the
        qualifiers of the run, but for those that these exports answer, and those of `INHERITED` of any run that it cites.

    Args:
        earlier: directories of the exports of earlier runs: all that the auditor knows of, whether cited or not.
        require_quorum: as for `verify_export`, for the run and every earlier one: an operator who shows different people
            different histories of an earlier run could show here the one in which less was spent.
        max_age: as for `verify_export`, for this run alone: an earlier one is closed, and grows old.
        withdrawals: for all of them: who withdrew in an earlier run, for whatever reason, has withdrawn from the corpus.
    """
    now = machine_time() if now is None else now
    report = verify_export(
        path,
        keys,
        owner_key=owner_key,
        require_quorum=require_quorum,
        now=now,
        max_age=max_age,
        minimum_size=minimum_size,
        withdrawals=withdrawals,
        registry=registry,
    )
    if report.verdict == "FAILED":
        return report
    findings: list[Finding] = []
    remarks = Remarks()
    verdicts: list[Verdict] = [report.verdict]

    def fault(code: str, where: str, sentence: str) -> None:
        findings.append(Finding(code, where, sentence))

    try:
        own = read_export(Path(path))
        own.require(report.size, report.root_hex)
        anchors = Anchors()
        run = _replay(own.leaves, own.leaves.size, anchors=anchors)
        shown = longest([own, *(read_export(Path(item)) for item in earlier)], fault)
        given = [found for found in shown if found.digest != own.digest]
        judge_citations(given, own, fault)

        def audited(item: Given) -> AuditReport:
            evidence: dict[str, Any] = {"withdrawals": withdrawals, "registry": registry}
            found = verify_export(item.path, keys, owner_key=owner_key, require_quorum=require_quorum, now=now, **evidence)
            if found.verdict != "FAILED":
                item.require(found.size, found.root_hex)
            return found

        runs = _cited_runs(run.header, given, audited, fault, remarks, verdicts)
        for origin, missing in left_out(runs):
            sentence = f"{origin} counted {missing.origin}, which this run does not cite: what was spent there counts nowhere"
            fault("EARLIER_UNCITED", "seq 0", sentence)
        for item in given:
            if item.digest not in {before.header_digest for before in run.header.previous}:
                remarks.note(*_judge_uncited(run, own.digest, item, audited(item), fault, remarks))
        if not findings:
            others = list(map(_whole, given))
            _judge_streams([*(other for other, _, _ in others), run], fault)
            remarks.note(*map(_counted, runs))
            _remark_apart(runs, remarks)
            _judge_plans(runs, fault, remarks)
            spent = SpentRegistry(runs)
            remarks.note(*_judge_spent(run, spent, fault, remarks))
            for other, _, left in others:
                _judge_left(run, other, left, spent, fault)
            judge_crossing([*((other, theirs) for other, theirs, _ in others), (run, anchors)], fault)
    except (LeafRefused, ExportChanged, ProofError) as error:
        fault(error.code, str(path), error.sentence)
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        fault("INTERNAL", str(path), f"the audit of earlier runs broke off: {type(error).__name__}: {error}")
    if findings:
        return replace(report, verdict="FAILED", findings=tuple(findings[:MAX_FINDINGS]))
    # The run itself says nothing of others, nor does a run over another corpus, in which none of its contributions can be.
    alike = any(item.header.policy.corpus == run.header.policy.corpus for item in given)
    answered = ANSWERED if alike else ANSWERED - {"LIMITS_ALONE"}
    if any(run.register.unnamed):
        answered = frozenset()  # of these nothing shows what they spent elsewhere
    words = sorted({*report.qualifiers} - answered | {*remarks.qualifiers})
    return replace(report, verdict=weakest(verdicts), qualifiers=tuple(words), notes=(*report.notes, *remarks.notes))


def _counted(earlier: Earlier) -> str:
    cited = earlier.cited
    told = f"counted with {cited.origin}, verified over its {cited.size} cited leaves"
    if earlier.lost:
        return f"{told}; its key was lost there, before it was closed: everybody of its classes is counted with its whole plan"
    return told


def _remark_apart(runs: Sequence[Earlier], remarks: Remarks) -> None:
    """Tells of cited runs that share contributions though neither counts the other, as if both had been first."""
    for one, other in combinations(runs, 2):
        counted = {before.header_digest for run in (one.run, other.run) for before in run.header.previous}
        shared = sum(name in other.run.contributions for name, item in one.run.contributions.items() if not item.unnamed)
        shared += min(sum(one.run.register.unnamed), len(other.run.contributions))  # they may be the same
        shared += min(sum(other.run.register.unnamed), len(one.run.contributions))
        if shared and counted.isdisjoint((one.cited.header_digest, other.cited.header_digest)):
            told = f"{one.cited.origin} and {other.cited.origin} share {shared} contributions and neither counts the other"
            sentence = f"{told}: what is said of limits over runs holds if neither was chosen by looking at the other's model"
            remarks.qualify("EARLIER_APART", sentence)


def _cited_runs(
    header: Header,
    given: Sequence[Given],
    audited: Callable[[Given], AuditReport],
    fault: Report,
    remarks: Remarks,
    verdicts: list[Verdict],
) -> list[Earlier]:
    """Returns the cited runs, each verified and replayed to the size at which it is cited; takes over their qualifiers."""
    runs: list[Earlier] = []
    for cited in header.previous:
        match = next((item for item in given if item.digest == cited.header_digest), None)
        if match is None:
            fault("EARLIER_MISSING", "seq 0", f"the run cites {cited.origin}, {cited.size} leaves, whose export was not given")
            continue
        path = str(match.path)
        report = audited(match)
        if report.verdict == "FAILED":
            fault("EARLIER", path, f"the earlier run {cited.origin} is FAILED: {report.findings[0].sentence}")
            continue
        if _is_cited(match.leaves, cited, path, fault):
            withdrawn: list[Withdraw] = []
            run = _replay(match.leaves, cited.size, withdrawn)
            runs.append(Earlier(cited, run, tuple(withdrawn)))
            _judge_cited(runs[-1], header, path, fault)
            verdicts.append(report.verdict)
            remarks.note(*(f"{cited.origin}: {note}" for gone, note in _summarised(report) if gone))
            for word in INHERITED.intersection(report.qualifiers):
                remarks.qualify(word, f"{word} holds of {cited.origin} too, and so of what was spent there")
    return runs


def _summarised(report: AuditReport) -> Iterator[tuple[int, str]]:
    """Yields what is pruned in each range of an export, and where its figures come from."""
    for row in report.summaries:
        told = f"the bodies of {row.pruned} of the leaves {row.first} to {row.end - 1} are gone; what was spent was recomputed"
        yield row.pruned, f"{told} from what stays, on the word of {', '.join(row.vouchers) or 'nobody'}"


def _is_cited(leaves: Leaves, cited: Previous, path: str, fault: Report) -> bool:
    """Tells whether an export is one of the ledger that is cited, and whether that has ended where it must have."""
    if leaves.size < cited.size:
        fault("EARLIER_BEHIND", path, f"{cited.size} leaves of {cited.origin} were cited, {leaves.size} are here")
    elif leaves.root_at(cited.size) != cited.root:
        fault("EARLIER_FORKED", path, f"the first {cited.size} leaves of {cited.origin} are not those that were cited")
    elif cited.reason == COMPROMISED and leaves.size > cited.size:
        sentence = f"{cited.origin} ended at {cited.size} leaves, when its key was lost; {leaves.size} are shown"
        fault("EARLIER_COMPROMISED", path, sentence)
    else:
        return True
    return False


def _judge_cited(earlier: Earlier, header: Header, path: str, fault: Report) -> None:
    """Holds a citation against the run as it was then."""
    cited, run = earlier.cited, earlier.run
    named = (run.header.origin, run.keys.at(cited.size))
    if (cited.origin, cited.log_vkey) != named:
        sentence = f"it is {named[0]!r}, signed by {named[1]} at {cited.size}, and cited as {cited.origin!r}, {cited.log_vkey}"
        fault("EARLIER_NAME", path, sentence)
    if run.header.policy.corpus != header.policy.corpus:
        sentence = f"it is a run over {run.header.policy.corpus}, and is counted in one over {header.policy.corpus}"
        fault("EARLIER_CORPUS", path, sentence)
    if wrong := earlier.misdates(header.time):
        fault("EARLIER_TIME", "seq 0", f"{wrong}: one of the two is dated falsely")
    if cited.reason == SPENT and not run.closed:
        sentence = f"{cited.origin} was counted at {cited.size} leaves, where it was not closed: whatever it charged after that"
        fault("EARLIER_OPEN", path, f"{sentence} counts nowhere")


def _judge_uncited(
    run: Replay, digest: bytes, given: Given, report: AuditReport, fault: Report, remarks: Remarks
) -> Iterator[str]:
    """Looks at an export that is not cited: what was spent in a run that began before this one must be counted."""
    if report.verdict == "FAILED":
        fault("EARLIER", str(given.path), f"it is not cited, and FAILED: {report.findings[0].sentence}")
        return
    other = _replay(given.leaves, given.leaves.size)
    accounts, origin = Accounts(other), other.header.origin
    mine = ((name, item.terms) for name, item in run.contributions.items() if not item.unnamed)
    shared = sum(1 for name, terms in mine if (found := accounts.of(name, terms, named=True)) is not None and found.spent)
    unnamed, before = (any(one.register.unnamed) for one in (run, other)), other.header.time <= run.header.time
    if before and any(unnamed):
        told = f"{origin} began before this run and is not cited: whether who stayed in one of the two spent anything there"
        remarks.qualify("EARLIER_TOLD", f"{told}, nothing shows once their ADMIT leaves are gone")
    if digest in {before.header_digest for before in other.header.previous}:
        yield f"{origin} is a later run, which counts this one: audit it with --earlier of this"
    elif not shared:
        yield f"{origin} is not cited, and nobody whom leaves of both runs name spent anything there"
    elif before:
        sentence = f"{origin} began before this run and is not cited: what {shared} contributions of this run spent there"
        fault("EARLIER_LEFT_OUT", str(given.path), f"{sentence} counts nowhere")
    else:
        yield f"{origin} began after this run, shares {shared} contributions with it and does not count it: audit it too"


def _judge_streams(runs: Sequence[Replay], fault: Report) -> None:
    """Refuses a noise stream that two runs share, cited or not; each run by itself was judged as it was verified."""
    seen: set[bytes] = set()
    for run in runs:
        own = {window.noise_stream for window in run.windows}
        if shared := seen & own:
            told = f"{len(shared)} noise streams of {run.header.origin} were used in another run too"
            fault("NOISE_REUSED", "seq 0", f"{told}, {min(shared).hex()} among them: the noise of two releases would cancel")
        seen |= own


def _judge_plans(runs: Sequence[Earlier], fault: Report, remarks: Remarks) -> None:
    """Holds every cited run, as it was planned, against limits with the runs that it counts itself.

    A filter lets through what it has room for beforehand: where a run without room stopped early may depend on what it saw.
    """
    for earlier in runs:
        header, own = earlier.run.header, Accounts(earlier.run)
        counted = {before.header_digest for before in header.previous}
        if not counted:
            continue  # its own plan was judged as its export was verified
        registry = SpentRegistry([other for other in runs if other.cited.header_digest in counted])
        if any(earlier.run.register.unnamed):
            told = f"what contributions that stayed in {header.origin} had spent before it, and their limits"
            remarks.qualify("EARLIER_TOLD", f"{told}, nothing shows any more")
        unheld = 0
        for name, contribution in earlier.run.contributions.items():
            if contribution.unnamed or own.of(name) is None:
                continue
            use, may = _beyond(registry, name, contribution, own.planned(contribution), header.delta)
            if use is not None:
                sentence = f"{name.hex()}: {use.limit} over all runs; as {header.origin} was planned that could have been"
                fault("BUDGET", header.origin, f"{sentence} {use.epsilon:.6f}, wherever it stopped: it must not have begun")
                break
            unheld += may
        _remark_unheld(unheld, header.origin, remarks)


def _beyond(
    registry: SpentRegistry, name: bytes, contribution: Contribution, planned: Account, delta: float
) -> tuple[Use | None, bool]:
    """Returns the limit that is exceeded by what leaves say, if any; and whether one is exceeded with what the contribution may
    have spent besides, in runs of which nothing says any more who stayed."""
    known = registry.accounts(name, contribution.terms, named=True)
    use = registry.worst(known, planned, delta)
    if use is not None and use.too_much(TOLERANCE_MICRO):
        return use, True
    most = registry.accounts(name, contribution.terms)
    use = None if most == known else registry.worst(most, planned, delta)
    return None, use is not None and use.too_much(TOLERANCE_MICRO)


def _remark_unheld(count: int, origin: str, remarks: Remarks) -> None:
    """Tells of limits that cannot be held against runs of which nothing says any more who stayed."""
    if count:
        told = f"{count} contributions of {origin}, as it was planned, pass a limit over all runs with what some spent whom an"
        remarks.qualify("EARLIER_TOLD", f"{told} earlier run names no more: whether they are among these nothing shows")


def _judge_spent(run: Replay, registry: SpentRegistry, fault: Report, remarks: Remarks) -> Iterator[str]:
    """Holds what every admission says against what is recomputed, and yields the largest totals per class.

    Wrong is what contradicts leaves that name the contribution. Where an earlier run names nobody any more who stayed, totals
    count what it may have spent there, and that an admission says less is a qualifier. Contributions with equal histories share
    one computation, so that this takes seconds for 10^5 of them.
    """
    own, delta, unnamed, untold, unheld = Accounts(run), run.header.delta, sum(run.register.unnamed), 0, 0
    most: dict[str, float] = {}
    for name, contribution in run.contributions.items():
        if name in registry.withdrawn and run.expenditure.steps(contribution, run.charged_phases):
            _tell_withdrawn(contribution, *registry.withdrawn[name], fault)
        account = own.of(name)
        if account is None:
            continue
        if contribution.unnamed:  # nothing says who it is, and so what it spent elsewhere
            total = registry.composed((*registry.of_anybody(contribution.terms), account), delta)
            most[contribution.terms.class_name] = max(most.get(contribution.terms.class_name, 0.0), total)
            continue
        before, known = registry.accounts(name, contribution.terms), registry.accounts(name, contribution.terms, named=True)
        _judge_admission(contribution, registry.composed(known, delta), fault)
        untold += before != known and _says_less(contribution, registry.composed(before, delta))
        use, may = _beyond(registry, name, contribution, own.planned(contribution), delta)
        unheld += use is None and may
        if use is not None:
            sentence = f"{name.hex()}: {use.limit} over all runs; with this one as planned {use.epsilon:.6f} of it is used"
            fault("BUDGET", f"seq {contribution.seq}", sentence)
        signed = [item for item in account.limits if item.by == "contributor"]
        if any([item for item in other.limits if item.by == "contributor"] != signed for other in before):
            said = "an earlier run says that it signed another limit of epsilon, or none"
            fault("LIMIT", f"seq {contribution.seq}", f"{name.hex()}: {said}; one descriptor has one limit")
        total = registry.composed((*before, account), delta)
        most[contribution.terms.class_name] = max(most.get(contribution.terms.class_name, 0.0), total)
    if unnamed:
        yield (
            f"the ADMIT leaves of {unnamed} contributions that stayed are gone: what they are said to have spent before, their "
            "limits over runs, and whether they had withdrawn, can be held against no other run; totals count the most that "
            "anybody of their class spent"
        )
    if untold:
        told = f"{untold} contributions are said to have spent less before than some did whom an earlier run names no more"
        remarks.qualify("EARLIER_TOLD", f"{told}: whether they are among these nothing shows; totals count it")
    _remark_unheld(unheld, run.header.origin, remarks)
    for class_name, total in most.items():
        spent = f"a contribution has spent epsilon {total:.6f} at most, at delta {delta:g}"
        yield f"class {class_name}: over all runs counted, {spent}, if none was chosen by looking at another one's model"


def _judge_left(run: Replay, other: Replay, left: Sequence[Withdraw], registry: SpentRegistry, fault: Report) -> None:
    """Finds who was withdrawn for good before this run began, and took part: in leaves behind those cited, or in no cited run.

    Whoever chooses the size at which a run is cited, or cites none, does not choose what was withdrawn by then.
    """
    for leaf in left:
        here = run.contributions.get(leaf.descriptor_hash)
        late = leaf.reason in PASSING or leaf.time > run.header.time or leaf.descriptor_hash in registry.withdrawn
        if here is not None and not late and run.expenditure.steps(here, run.charged_phases):
            _tell_withdrawn(here, other.header.origin, leaf, fault)


def _tell_withdrawn(contribution: Contribution, origin: str, leaf: Withdraw, fault: Report) -> None:
    sentence = f"{leaf.descriptor_hash.hex()} was withdrawn in {origin} (leaf {leaf.seq}, {leaf.reason})"
    fault("EARLIER_WITHDRAWN", f"seq {contribution.seq}", f"{sentence}, and was in the pool of charged steps here")


def _says_less(contribution: Contribution, before: float) -> bool:
    """Tells whether an admission says less than was spent before."""
    return contribution.terms.carried_micro + CARRIED_TOLERANCE_MICRO < before * MICRO


def _judge_admission(contribution: Contribution, before: float, fault: Report) -> None:
    if _says_less(contribution, before):
        name, said = contribution.descriptor_hash.hex(), contribution.terms.carried_micro
        sentence = f"{name} had spent {before * MICRO:.3f} (1e-6) before, the leaf says {said}"
        fault("CARRIED", f"seq {contribution.seq}", sentence)


def _whole(given: Given) -> tuple[Replay, Anchors, list[Withdraw]]:
    """Returns a run at its whole size, with the content commitments of its contributions, and its WITHDRAW leaves."""
    anchors, withdrawn = Anchors(), list[Withdraw]()
    return _replay(given.leaves, given.leaves.size, withdrawn, anchors), anchors, withdrawn


def _replay(leaves: Leaves, size: int, withdrawn: list[Withdraw] | None = None, anchors: Anchors | None = None) -> Replay:
    """Replays the first leaves of a run; it was verified before, so recorded epsilons are not computed again. Lists given take
    the WITHDRAW leaves and the content commitments."""
    run = begin(leaves, recompute=False)
    for leaf, _ in follow(run, leaves, size):
        if withdrawn is not None and isinstance(leaf, Withdraw):
            withdrawn.append(leaf)
        if anchors is not None:
            anchors.see(leaf, run)
    return run
