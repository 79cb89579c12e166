"""Holds a budget of texts against the runs that it counts, and against others that an auditor has: limits over all runs."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from attest.descriptor import SignedDescriptor
from attest.withdrawal import PASSING
from ledger.audit.among import Among
from ledger.audit.earlier import INHERITED
from ledger.audit.findings import AuditReport, Report, Verdict
from ledger.audit.given import Given, Leaves, read_export
from ledger.audit.histories import Followed, extends_cited, judge_crossing, longest
from ledger.audit.remarks import Remarks
from ledger.audit.texts import GivenTexts, ShownTexts, judge_texts_crossing, remark_texts_apart, shown_texts
from ledger.audit.verify import verify_export
from ledger.budget.audit.read import read_texts
from ledger.budget.counted import Admitting, cited_as, own_texts
from ledger.budget.leaves import Reference, decode_leaf
from ledger.budget.state import BudgetState
from ledger.errors import ExportChanged, LeafRefused, ProofError
from ledger.leaves.header import COMPROMISED, SPENT, TEXTS
from ledger.replay import Replay
from ledger.replay.budgets import TOLERANCE_MICRO
from ledger.replay.earlier_runs import Accounts, Earlier, SpentRegistry, left_out
from ledger.replay.earlier_texts import EarlierTexts


@dataclass(slots=True)
class OverRuns:
    """Collects what runs say of a budget of texts.

    Attributes:
        verdicts: of the runs that it counts. qualifiers, notes: for its report.
        withdrawn: when a run withdrew each contribution for good, of those that it admitted.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    qualifiers: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    withdrawn: dict[bytes, int] = field(default_factory=dict)


def judge_over_runs(
    state: BudgetState,
    leaves: Leaves,
    exports: Sequence[Path],
    budgets: Sequence[GivenTexts],
    keys: Sequence[str],
    owner_key: bytes | None,
    now: int,
    fault: Report,
) -> OverRuns:
    """Holds a log against exports of runs, those that it says it counts among them, and other budgets.

    Guarantee: without a finding every run or budget that the header cites and whose export was given passed its own audit, is
    no shorter than cited, has the cited root there under the cited name and key, and no leaf dated after the log began; a run
    was closed there, and whatever one of them counts is cited too; nobody admitted to the log had withdrawn in one of them; no
    other run that was given and began before shares a contribution with the log that spent anything, and no other budget one
    that has a limit; a content stands in all cited runs under one descriptor; and with all that its rule allows nobody exceeds
    a limit of epsilon over all runs, its own, or one of any policy for its class. A ledger that is cited and was not given
    leaves the qualifier EARLIER_TOLD; limits that were held against nothing else LIMITS_ALONE.

    Args:
        leaves: of the log. exports: directories of exports of runs. budgets: other logs that were given.
    """
    return _Judge(state, leaves, list(keys), owner_key, now, fault).judged(exports, budgets)


class _Judge:
    def __init__(
        self, state: BudgetState, leaves: Leaves, keys: list[str], owner_key: bytes | None, now: int, fault: Report
    ) -> None:
        self._state, self._leaves, self._fault = state, leaves, fault
        self._keys, self._owner_key, self._now = keys, owner_key, now
        header = state.header
        self._cited = () if header.over_runs is None else header.over_runs.previous
        self._digest = cited_as(header, 1, bytes(32)).header_digest
        self._found = OverRuns()
        self._limits: list[bool] = []  # of every run that may use up limits, whether all was held against them that it can say

    @cached_property
    def _own(self) -> ShownTexts:
        """The log under audit, as runs see it."""
        report = AuditReport(verdict="FULL", findings=(), now=self._now)
        return ShownTexts(self._leaves.export.base, report, read_texts(self._leaves))

    def judged(self, exports: Sequence[Path], budgets: Sequence[GivenTexts]) -> OverRuns:
        try:
            shown = longest([read_export(path) for path in exports], self._fault)
            given = [(one, report) for one in shown if (report := self._audit(one)) is not None]
            whole = {one.digest: Followed.of(one) for one, _ in given}
            others = shown_texts(budgets, self._fault)
            runs, texts = self._counted(given), self._texts(others)
            for origin, left in left_out([*runs, *texts]):
                sentence = f"{origin} counted {left.origin}, which this log does not cite: what was spent there counts nowhere"
                self._fault("EARLIER_UNCITED", "seq 0", sentence)
            self._judge_among(runs, texts, list(whole.values()), others)
            missing = len(self._cited) - len(runs) - len(texts)
            if missing:
                self._found.qualifiers.add("EARLIER_TOLD")
                self._found.notes.append(f"the log counts {missing} ledgers whose exports were not given")
            limited = self._judge_limits(SpentRegistry(runs, texts))
            for one, report in given:
                self._see_withdrawn(whole[one.digest])
                if one.digest not in {cited.header_digest for cited in self._cited}:
                    self._look_at_run(one, report, whole[one.digest].run, limited)
            self._look_at_budgets(others, limited)
            if limited and not (self._limits and all(self._limits)):
                self._found.qualifiers.add("LIMITS_ALONE")
                self._found.notes.append(f"{len(limited)} contributions have a limit of epsilon over all runs")
        except (LeafRefused, ExportChanged, ProofError) as error:
            self._fault(error.code, "--earlier", error.sentence)
        return self._found

    def _audit(self, given: Given) -> AuditReport | None:
        """Audits a run by itself; None where it FAILED."""
        report = verify_export(given.path, self._keys, owner_key=self._owner_key, now=self._now)
        if report.verdict == "FAILED":
            found = report.findings[0]
            told = f"the run {given.header.origin} is FAILED: {found.code} {found.where}: {found.sentence}"
            self._fault("EARLIER", str(given.path), told)
            return None
        given.require(report)
        return report

    def _counted(self, given: Sequence[tuple[Given, AuditReport]]) -> list[Earlier]:
        """Returns the runs that the header cites, each as it was there."""
        runs = []
        for cited in self._cited:
            one, report = next((pair for pair in given if pair[0].digest == cited.header_digest), (None, None))
            if one is None or report is None:
                continue
            if cited.reason == TEXTS:
                told = f"{cited.origin} is a run, and is cited as a budget of texts, which need not be closed"
                self._fault("EARLIER_NAME", str(one.path), told)
            elif extends_cited(one.leaves, cited, str(one.path), self._fault):
                followed = Followed.of(one, cited.size)
                runs.append(Earlier(cited, followed.run, followed.withdrawn))
                self._judge_cited(runs[-1], str(one.path), one.leaves.size)
                self._limits.append(True)
                self._found.verdicts.append(report.verdict)
                self._found.qualifiers |= INHERITED & set(report.qualifiers)
                self._found.notes.append(f"counted with {cited.origin}, verified over its {cited.size} cited leaves")
        return runs

    def _judge_among(
        self,
        runs: Sequence[Earlier],
        texts: Sequence[EarlierTexts],
        whole: Sequence[Followed],
        others: Sequence[ShownTexts],
    ) -> None:
        """Holds all runs that were given, and the ledgers that the log counts, against each other and against what contributors
        signed to the log, as a run does that counts them."""
        remarks = Remarks()
        among = Among(self._fault, remarks)
        among.judge_streams(whole)
        among.remark_apart(runs)
        among.judge_plans(runs, texts)
        judge_crossing(whole, self._fault)
        for followed in whole:
            judge_texts_crossing(followed, [self._own, *others], self._fault)
        remark_texts_apart(runs, texts, remarks)
        self._found.qualifiers |= {*remarks.qualifiers}
        self._found.notes += remarks.notes

    def _judge_cited(self, earlier: Earlier, path: str, size: int) -> None:
        cited, run = earlier.cited, earlier.run
        self._judge_citation(earlier, (run.header.origin, run.keys.at(cited.size)), path)
        if cited.reason == SPENT and not run.closed:
            sentence = f"{cited.origin} was counted at {cited.size} leaves, where it was not closed"
            self._fault("EARLIER_OPEN", path, f"{sentence}: whatever it charged after that counts nowhere")
        if cited.reason == COMPROMISED and size > cited.size:
            sentence = f"{cited.origin} ended at {cited.size} leaves, when its key was lost; {size} are shown"
            self._fault("EARLIER_COMPROMISED", path, sentence)

    def _judge_citation(self, earlier: Earlier | EarlierTexts, named: tuple[str, str], path: str) -> None:
        """Holds a citation against name, key and times, and the log against withdrawals in its leaves."""
        cited = earlier.cited
        if (cited.origin, cited.log_vkey) != named:
            self._fault("EARLIER_NAME", path, f"it is {named[0]!r}, cited as {cited.origin!r}, or under another key")
        if wrong := earlier.misdates(self._state.header.time):
            self._fault("EARLIER_TIME", "seq 0", f"{wrong}: one of the two is dated falsely")
        for leaf in earlier.withdrawn:
            found = self._state.admitted.get(leaf.descriptor_hash)
            if found is not None and leaf.reason not in PASSING:
                sentence = f"{leaf.descriptor_hash.hex()} was withdrawn in {cited.origin} (leaf {leaf.seq}, {leaf.reason})"
                self._fault("EARLIER_WITHDRAWN", f"seq {found.seq}", f"{sentence}, and was admitted to generation here")

    def _see_withdrawn(self, followed: Followed) -> None:
        """Takes in whom a run withdrew."""
        known = self._found.withdrawn
        for leaf in followed.withdrawn:
            if leaf.reason not in PASSING and leaf.descriptor_hash in self._state.admitted:
                known[leaf.descriptor_hash] = min(leaf.time, known.get(leaf.descriptor_hash, leaf.time))

    def _look_at_run(self, given: Given, report: AuditReport, run: Replay, limited: Set[bytes]) -> None:
        """Looks at a run that is not cited."""
        corpora, origin = {found.corpus for found in self._state.admitted.values()}, given.header.origin
        if self._digest in {one.header_digest for one in given.header.previous}:
            self._found.notes.append(f"{origin} is a later run, which counts this log: audit it with --earlier of this")
            return
        before, unnamed = given.header.time <= self._state.header.time, any(run.register.unnamed)
        known = Accounts(run)
        spent = {name: own for name in self._state.admitted if (own := known.of(name, named=True)) and own.spent}
        bound = [name for name, own in spent.items() if own.limits or name in limited]
        if run.header.policy.corpus in corpora and (before or spent or unnamed):
            self._limits.append(before and run.closed and report.verdict != "TOLD" and not unnamed)
        if unnamed:
            self._found.qualifiers.add("EARLIER_TOLD")
            told = f"{origin} is not cited, and names nobody any more who stayed: they may be of this log"
            self._found.notes.append(told)
        elif not spent:
            self._found.notes.append(f"{origin} is not cited, and nobody of this log whom its leaves name spent there")
        elif before and not bound:
            self._found.notes.append(f"{origin} is not cited; {len(spent)} contributions spent there, and none has a limit")
        if bound and before:
            sentence = f"{origin} began before this log and is not cited: what {len(bound)} contributions with a limit over"
            self._fault("EARLIER_LEFT_OUT", str(given.path), f"{sentence} all runs spent there counts nowhere")
        elif spent and not before:
            told = f"{origin} began after this log, shares {len(spent)} contributions with it and does not count it"
            self._found.notes.append(f"{told}: audit it too")

    def _texts(self, budgets: Sequence[ShownTexts]) -> list[EarlierTexts]:
        """Returns the other budgets that the header cites, each as it was there."""
        found = []
        for cited in self._cited:
            for one in budgets:
                own, path = one.texts.cited, str(one.path)
                if own.header_digest != cited.header_digest:
                    continue
                if cited.reason != TEXTS:
                    told = f"{cited.origin} is a budget of texts, which is never closed, and is cited as a run"
                    self._fault("EARLIER_NAME", path, told)
                elif extends_cited(one.leaves, cited, path, self._fault):
                    found.append(one.texts.at(cited, one.read.times[cited.size - 1]))
                    self._judge_citation(found[-1], (own.origin, own.log_vkey), path)
                    self._limits.append(True)
        return found

    def _look_at_budgets(self, budgets: Sequence[ShownTexts], limited: Set[bytes]) -> None:
        """Looks at budgets that are not cited, by whom of those with a limit they admitted too, or may."""
        classes = {found.rule for found in self._state.admitted.values()}
        for one in budgets:
            own = one.texts
            if own.cited.header_digest in {cited.header_digest for cited in self._cited}:
                continue
            if self._digest in {cited.header_digest for cited in own.previous or ()}:
                self._found.notes.append(f"{own.cited.origin} is a later log, which counts this one")
                continue
            shared = limited & own.admitted
            if limited and not classes.isdisjoint(own.allowed):
                self._limits.append(False)  # it may admit more
            if shared and own.began <= self._state.header.time:
                sentence = f"{own.cited.origin} began before this log and is not cited: what {len(shared)} contributions with a"
                self._fault("EARLIER_LEFT_OUT", str(one.path), f"{sentence} limit over all runs may spend there counts nowhere")
            elif shared:
                told = f"{own.cited.origin} began after this log, shares {len(shared)} contributions with a limit over all runs"
                self._found.notes.append(f"{told} and does not count it: audit it too")

    def _judge_limits(self, spent: SpentRegistry) -> set[bytes]:
        """Holds every contribution against every limit; returns those that have one."""
        judge, limited, unheld = Admitting(self._state, own_texts(self._state.header), spent), set[bytes](), 0
        for leaf in self._references():
            signed = SignedDescriptor.from_cbor(leaf.descriptor)
            has, use = judge.used(leaf.account, signed, named=True)
            _, most = judge.used(leaf.account, signed)
            limited |= {leaf.account} if has else set()
            if use is not None and use.too_much(TOLERANCE_MICRO):
                told = f"{leaf.account.hex()}: {use.limit} over all runs; with texts as planned {use.epsilon:.6f} of it is used"
                self._fault("BUDGET", f"seq {leaf.seq}", told)
                break
            unheld += most is not None and most.too_much(TOLERANCE_MICRO)
        if unheld:
            self._found.qualifiers.add("EARLIER_TOLD")
            told = f"{unheld} contributions pass a limit over all runs with what some spent whom an earlier run names no more"
            self._found.notes.append(f"{told}: whether they are among these nothing shows")
        return limited

    def _references(self) -> Iterator[Reference]:
        for body in islice(self._leaves, 1, None):
            leaf = decode_leaf(body)
            if isinstance(leaf, Reference):
                yield leaf

