"""Holds a run that passed its audit against the exports of earlier runs, and of budgets of texts, those that it says it counted
among them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from attest.schema.plain import AHEAD_SECONDS, is_ahead
from attest.withdrawal import PASSING
from ledger.accountants import MICRO
from ledger.audit.among import Among, beyond
from ledger.audit.findings import MAX_FINDINGS, AuditReport, Finding, weakest
from ledger.audit.given import Given, read_export
from ledger.audit.histories import Followed, extends_cited, judge_citations, judge_crossing, longest
from ledger.audit.remarks import Remarks
from ledger.audit.texts import Beside, GivenTexts, judge_texts_crossing, remark_texts_apart, shown_texts
from ledger.errors import ExportChanged, LeafRefused, ProofError
from ledger.leaves import Previous, Withdraw
from ledger.leaves.header import COMPROMISED, SPENT, TEXTS
from ledger.replay import Replay
from ledger.replay.contributions import Contribution
from ledger.replay.earlier_runs import Accounts, Earlier, SpentRegistry, left_out
from ledger.replay.earlier_texts import WITHDRAWN, EarlierTexts

CARRIED_TOLERANCE_MICRO: Final = 2
"""Most by which what a run says was spent before may lie below the recomputed value, in 1e-6: last bits differ."""

ANSWERED: Final = frozenset({"EARLIER_TOLD", "LIMITS_ALONE"})
"""Qualifiers of a run that no longer hold once the exports of other runs, among them all that it cites, were verified too, and
everybody whom it admitted could be held against them; LIMITS_ALONE once all that these say counts (`_Together.limits`)."""

INHERITED: Final = frozenset(
    ("CLOCK_SET", "DRAWS_TOLD", "FROZEN_TOLD", "NO_AUDITORS", "NO_QUORUM", "NO_WITNESS_QUORUM", "PRUNED", "UNADDRESSED",
     "UNPROBED")
)  # fmt: skip
"""Qualifiers of a cited run that hold of what was spent in it, and so of the run that counts it."""

UNSHOWN: Final = frozenset(("DRAWS_TOLD", "NO_AUDITORS", "NO_QUORUM", "NO_WITNESS_QUORUM"))
"""Those under which an uncited run does not show by itself that somebody spent nothing there."""


def hold_against_earlier(
    report: AuditReport,
    path: Path,
    earlier: Sequence[str | Path],
    audited: Callable[[Path], AuditReport],
    texts: Sequence[GivenTexts] = (),
) -> AuditReport:
    """Holds an export that passed its audit, and what it says of earlier runs, against their exports.

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
    policy for its class; nor could anybody with a cited run as that was planned, and the runs that it counted. A budget of
    texts that is cited was given, is not FAILED, begins with the cited leaves, and counts in all this with the whole rho of its
    rule for everybody of the class, whenever that is charged; and none that is uncited, and began before, names who took part.

        The verdict is the weakest of the run and of those that it cites (`ledger.audit.findings.VERDICTS`). It has the
        qualifiers of the run, but for those that these exports answer, and those of `INHERITED` of any run that it cites, and
        of `UNSHOWN` of any other that began before.

    Args:
        report: the audit of the export; one that FAILED comes back as it is.
        earlier: directories of the exports of earlier runs: all that the auditor knows of, whether cited or not.
        audited: audits one of them by itself.
        texts: budget logs, likewise, each audited by itself. Their verdicts weaken no run that counts them: whose word
            rules and consent rest on there, they allow no more.
    """
    if report.verdict == "FAILED":
        return report
    together = _Together(report, audited)
    try:
        own = read_export(path)
        own.require(report)
        mine = Followed.of(own)
        run = together.run = mine.run
        shown = longest([own, *(read_export(Path(item)) for item in earlier)], together.fault)
        given = [found for found in shown if found.digest != own.digest]
        budgets = longest(shown_texts(texts, together.fault), together.fault)
        judge_citations([*given, *budgets], own, together.fault)
        beside = Beside(run, together.fault, together.remarks, together.limits)
        runs, counted = together.cited_runs(given), beside.cited(budgets)
        for origin, missing in left_out([*runs, *counted]):
            sentence = f"{origin} counted {missing.origin}, which this run does not cite: what was spent there counts nowhere"
            together.fault("EARLIER_UNCITED", "seq 0", sentence)
        for item in given:
            if item.digest not in {before.header_digest for before in run.header.previous}:
                together.judge_uncited(own.digest, item)
        for budget in budgets:
            if budget.digest not in {before.header_digest for before in run.header.previous}:
                beside.uncited(own.digest, budget)
        if not together.findings:
            spent = together.judge_together(runs, counted, [*map(Followed.of, given), mine])
            remark_texts_apart(runs, counted, together.remarks)
            judge_texts_crossing(mine, budgets, together.fault)
            beside.entered(mine.withdrawn, budgets)
            for budget in budgets:
                together.judge_left(budget.texts.withdrawn, budget.origin, spent)
    except (LeafRefused, ExportChanged, ProofError) as error:
        together.fault(error.code, str(path), error.sentence)
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        together.fault("INTERNAL", str(path), f"the audit of earlier runs broke off: {type(error).__name__}: {error}")
    if together.findings:
        return replace(report, verdict="FAILED", findings=tuple(together.findings[:MAX_FINDINGS]))
    # The run itself says nothing of others, nor does a run over another corpus, in which none of its contributions can be.
    answered = ANSWERED if together.limits and all(together.limits) else ANSWERED - {"LIMITS_ALONE"}
    if any(run.register.unnamed):
        answered = frozenset()  # of these nothing shows what they spent elsewhere
    remarks = together.remarks
    words = tuple(sorted({*report.qualifiers} - answered | {*remarks.qualifiers}))
    return replace(report, verdict=weakest(together.verdicts), qualifiers=words, notes=(*report.notes, *remarks.notes))


class _Together:
    """Collects what is wrong with a run and others taken together, what a reader should know, and all verdicts that count.

    Attributes:
        limits: of every other run that may use up limits of this one, whether all was held against them that it can ever say,
            and by more than its operator's word. A later run that counts this one, or shares nobody, is in none.
    """

    run: Replay

    def __init__(self, report: AuditReport, audited: Callable[[Path], AuditReport]) -> None:
        self.findings: list[Finding] = []
        self.remarks, self.verdicts, self.limits = Remarks(), [report.verdict], list[bool]()
        self._audited_alone = audited
        self._among = Among(self.fault, self.remarks)

    def fault(self, code: str, where: str, sentence: str) -> None:
        self.findings.append(Finding(code, where, sentence))

    def _audited(self, given: Given) -> AuditReport:
        report = self._audited_alone(given.path)
        if report.verdict != "FAILED":
            given.require(report)
        return report

    def cited_runs(self, given: Sequence[Given]) -> list[Earlier]:
        """Returns the cited runs, each verified and replayed to the size at which it is cited; takes over their qualifiers."""
        runs: list[Earlier] = []
        for cited in (item for item in self.run.header.previous if item.reason != TEXTS):
            match = next((item for item in given if item.digest == cited.header_digest), None)
            if match is None:
                told = f"the run cites {cited.origin}, {cited.size} leaves, whose export was not given"
                self.fault("EARLIER_MISSING", "seq 0", told)
                continue
            report = self._audited(match)
            if report.verdict == "FAILED":
                told = f"the earlier run {cited.origin} is FAILED: {report.findings[0].sentence}"
                self.fault("EARLIER", str(match.path), told)
                continue
            if self._is_cited(match, cited):
                followed = Followed.of(match, cited.size)
                runs.append(Earlier(cited, followed.run, followed.withdrawn))
                self._judge_cited(runs[-1], str(match.path))
                self.verdicts.append(report.verdict)
                self.limits.append(True)  # it was closed there, or counts with its whole plan, and so does its verdict
                self.remarks.note(*(f"{cited.origin}: {note}" for note in _summarised(report)))
                self._hand_on(INHERITED, report, cited.origin)
        return runs

    def _hand_on(self, words: frozenset[str], report: AuditReport, origin: str) -> None:
        for word in sorted(words.intersection(report.qualifiers)):
            self.remarks.qualify(word, f"{word} holds of {origin} too, and so of what was spent there")

    def _is_cited(self, given: Given, cited: Previous) -> bool:
        """Tells whether an export is one of the ledger that is cited, and whether that has ended where it must have."""
        leaves, path = given.leaves, str(given.path)
        if not extends_cited(leaves, cited, path, self.fault):
            return False
        if cited.reason == COMPROMISED and leaves.size > cited.size:
            sentence = f"{cited.origin} ended at {cited.size} leaves, when its key was lost; {leaves.size} are shown"
            self.fault("EARLIER_COMPROMISED", path, sentence)
            return False
        return True

    def _judge_cited(self, earlier: Earlier, path: str) -> None:
        """Holds a citation against the run as it was then."""
        cited, run, header = earlier.cited, earlier.run, self.run.header
        named = (run.header.origin, run.keys.at(cited.size))
        if (cited.origin, cited.log_vkey) != named:
            sentence = f"it is {named[0]!r}, signed by {named[1]} at {cited.size}, and cited as {cited.origin!r}"
            self.fault("EARLIER_NAME", path, f"{sentence}, {cited.log_vkey}")
        if run.header.policy.corpus != header.policy.corpus:
            sentence = f"it is a run over {run.header.policy.corpus}, and is counted in one over {header.policy.corpus}"
            self.fault("EARLIER_CORPUS", path, sentence)
        if wrong := earlier.misdates(header.time):
            self.fault("EARLIER_TIME", "seq 0", f"{wrong}: one of the two is dated falsely")
        if cited.reason == SPENT and not run.closed:
            sentence = f"{cited.origin} was counted at {cited.size} leaves, where it was not closed: whatever it charged after"
            self.fault("EARLIER_OPEN", path, f"{sentence} that counts nowhere")

    def judge_uncited(self, digest: bytes, given: Given) -> None:
        """Looks at an export that is not cited: what was spent in a run that began before this one must be counted."""
        report, run = self._audited(given), self.run
        if report.verdict == "FAILED":
            self.fault("EARLIER", str(given.path), f"it is not cited, and FAILED: {report.findings[0].sentence}")
            return
        other = given.run()
        accounts, origin = Accounts(other), other.header.origin
        mine = ((name, item.terms) for name, item in run.contributions.items() if not item.unnamed)
        shared = sum(1 for name, terms in mine if (found := accounts.of(name, terms, named=True)) is not None and found.spent)
        unnamed, before = (any(one.register.unnamed) for one in (run, other)), other.header.time <= run.header.time
        if before and any(unnamed):
            told = f"{origin} began before this run and is not cited: whether who stayed in one of the two spent anything there"
            self.remarks.qualify("EARLIER_TOLD", f"{told}, nothing shows once their ADMIT leaves are gone")
        counts_this = digest in {before.header_digest for before in other.header.previous}
        if not counts_this and (before or shared) and other.header.policy.corpus == run.header.policy.corpus:
            self.limits.append(before and other.closed and report.verdict != "TOLD")
            if before:
                self._hand_on(UNSHOWN, report, origin)
            if before and not self.limits[-1]:
                why = "whom it admitted is its operator's word" if other.closed else "it is open, and more may be spent there"
                self.remarks.note(f"{origin} is not cited and began before this run; {why}: limits are not held against it")
        if counts_this:
            self.remarks.note(f"{origin} is a later run, which counts this one: audit it with --earlier of this")
        elif not shared:
            self.remarks.note(f"{origin} is not cited, and nobody whom leaves of both runs name spent anything there")
        elif before:
            sentence = f"{origin} began before this run and is not cited: what {shared} contributions of this run spent there"
            self.fault("EARLIER_LEFT_OUT", str(given.path), f"{sentence} counts nowhere")
        else:
            told = f"{origin} began after this run, shares {shared} contributions with it and does not count it: audit it too"
            self.remarks.note(told)

    def judge_together(
        self, runs: Sequence[Earlier], texts: Sequence[EarlierTexts], whole: Sequence[Followed]
    ) -> SpentRegistry:
        """Holds against each other the runs and budgets that are counted, and all runs that were given at their whole sizes,
        this one last; returns what is counted."""
        self._among.judge_streams(whole)
        self.remarks.note(*map(_counted, runs))
        self._among.remark_apart(runs)
        self._among.judge_plans(runs, texts)
        spent = SpentRegistry(runs, texts)
        self._judge_spent(spent)
        for other in whole[:-1]:
            self.judge_left(other.withdrawn, other.run.header.origin, spent)
        judge_crossing(whole, self.fault)
        return spent

    def _judge_spent(self, registry: SpentRegistry) -> None:
        """Holds what every admission says against what is recomputed, and tells the largest totals per class.

        Wrong is what contradicts leaves that name the contribution. Where an earlier run names nobody any more who stayed,
        totals count what it may have spent there, and that an admission says less is a qualifier. Contributions with equal
        histories share one computation, so that this takes seconds for 10^5 of them.
        """
        run = self.run
        own, delta, unnamed, untold, unheld = Accounts(run), run.header.delta, sum(run.register.unnamed), 0, 0
        most: dict[str, float] = {}
        for name, contribution in run.contributions.items():
            terms, where = contribution.terms, f"seq {contribution.seq}"
            if name in registry.withdrawn and run.steps(contribution):
                self._tell_withdrawn(contribution, *registry.withdrawn[name])
            account = own.of(name)
            if account is None:
                continue
            if contribution.unnamed:  # nothing says who it is, and so what it spent elsewhere
                total = registry.composed((*registry.of_anybody(terms), account), delta)
                most[terms.class_name] = max(most.get(terms.class_name, 0.0), total)
                continue
            before, known = registry.accounts(name, terms), registry.accounts(name, terms, named=True)
            if _says_less(contribution, spent := registry.composed(known, delta)):
                told = f"{name.hex()} had spent {spent * MICRO:.3f} (1e-6) before, the leaf says {terms.carried_micro}"
                self.fault("CARRIED", where, told)
            untold += before != known and _says_less(contribution, registry.composed(before, delta))
            use, may = beyond(registry, name, contribution, own.planned(contribution), delta)
            unheld += use is None and may
            if use is not None:
                told = f"{name.hex()}: {use.limit} over all runs; with this one as planned {use.epsilon:.6f} of it is used"
                self.fault("BUDGET", where, told)
            signed = [item for item in account.limits if item.by == "contributor"]
            if any([item for item in other.limits if item.by == "contributor"] != signed for other in before):
                said = "an earlier run says that it signed another limit of epsilon, or none"
                self.fault("LIMIT", where, f"{name.hex()}: {said}; one descriptor has one limit")
            total = registry.composed((*before, account), delta)
            most[terms.class_name] = max(most.get(terms.class_name, 0.0), total)
        if untold:
            told = f"{untold} contributions are said to have spent less before than some did whom an earlier run names no more"
            self.remarks.qualify("EARLIER_TOLD", f"{told}: whether they are among these nothing shows; totals count it")
        self._among.remark_unheld(unheld, run.header.origin)
        if unnamed:
            self.remarks.note(
                f"the ADMIT leaves of {unnamed} contributions that stayed are gone: what they are said to have spent before, "
                "their limits over runs, and whether they had withdrawn, can be held against no other run; totals count the "
                "most that anybody of their class spent"
            )
        for class_name, total in most.items():
            spends = f"a contribution has spent epsilon {total:.6f} at most, at delta {delta:g}"
            chosen = "if none was chosen by looking at another one's model"
            self.remarks.note(f"class {class_name}: over all runs counted, {spends}, {chosen}")

    def judge_left(self, withdrawn: Iterable[Withdraw], origin: str, registry: SpentRegistry) -> None:
        """Finds who was withdrawn for good before this run began, and took part: in leaves behind those cited, or in no cited
        run.

        Whoever chooses the size at which a run is cited, or cites none, does not choose what was withdrawn by then.
        """
        run = self.run
        for leaf in withdrawn:
            here = run.contributions.get(leaf.descriptor_hash)
            late = leaf.reason in PASSING or leaf.time > run.header.time or leaf.descriptor_hash in registry.withdrawn
            if here is None or late or not run.steps(here):
                continue
            if leaf.reason == WITHDRAWN and is_ahead(leaf.time + 2 * AHEAD_SECONDS, run.header.time):
                told = f"{leaf.descriptor_hash.hex()} was withdrawn in {origin} (leaf {leaf.seq}) within the hour before this"
                self.remarks.note(f"{told} run, which may have read that budget before, and was in the pool of steps here")
                continue
            self._tell_withdrawn(here, origin, leaf)

    def _tell_withdrawn(self, contribution: Contribution, origin: str, leaf: Withdraw) -> None:
        sentence = f"{leaf.descriptor_hash.hex()} was withdrawn in {origin} (leaf {leaf.seq}, {leaf.reason})"
        self.fault("EARLIER_WITHDRAWN", f"seq {contribution.seq}", f"{sentence}, and was in the pool of charged steps here")


def _counted(earlier: Earlier) -> str:
    cited = earlier.cited
    told = f"counted with {cited.origin}, verified over its {cited.size} cited leaves"
    if earlier.lost:
        return f"{told}; its key was lost there, before it was closed: everybody of its classes is counted with its whole plan"
    return told


def _summarised(report: AuditReport) -> Iterator[str]:
    """Yields what is pruned in each range of an export, and where its figures come from."""
    for row in report.summaries:
        if row.pruned:
            told = f"the bodies of {row.pruned} of the leaves {row.first} to {row.end - 1} are gone; what was spent was"
            yield f"{told} recomputed from what stays, on the word of {', '.join(row.vouchers) or 'nobody'}"


def _says_less(contribution: Contribution, before: float) -> bool:
    """Tells whether an admission says less than was spent before."""
    return contribution.terms.carried_micro + CARRIED_TOLERANCE_MICRO < before * MICRO
