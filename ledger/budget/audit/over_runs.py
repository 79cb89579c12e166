"""Holds a budget of texts against the runs that it counts, and against others that an auditor has: limits over all runs."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from attest.descriptor import SignedDescriptor
from attest.withdrawal import PASSING
from ledger.audit.earlier import INHERITED
from ledger.audit.findings import AuditReport, Report, Verdict
from ledger.audit.given import Given, Leaves, read_export
from ledger.audit.histories import Followed, longest
from ledger.audit.texts import ReadTexts
from ledger.audit.verify import verify_export
from ledger.budget.counted import Admitting, cited_as
from ledger.budget.leaves import Reference, decode_leaf
from ledger.budget.state import BudgetState
from ledger.errors import ExportChanged, LeafRefused, ProofError
from ledger.leaves import Previous
from ledger.leaves.header import SPENT
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
    budgets: Sequence[tuple[Path, ReadTexts]],
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
        leaves: of the log. exports: directories of exports of runs. budgets: other logs that were given and passed their audit.
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

    def judged(self, exports: Sequence[Path], budgets: Sequence[tuple[Path, ReadTexts]]) -> OverRuns:
        try:
            shown = longest([read_export(path) for path in exports], self._fault)
            runs = self._counted(shown)
            self._look_at_others(shown)
            texts = self._texts(budgets)
            for origin, left in left_out([*runs, *texts]):
                sentence = f"{origin} counted {left.origin}, which this log does not cite: what was spent there counts nowhere"
                self._fault("EARLIER_UNCITED", "seq 0", sentence)
            missing = len(self._cited) - len(runs) - len(texts)
            if missing:
                self._found.qualifiers.add("EARLIER_TOLD")
                self._found.notes.append(f"the log counts {missing} ledgers whose exports were not given")
            limited = self._judge_limits(runs, SpentRegistry(runs, texts))
            self._look_at_budgets(budgets, limited)
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

    def _counted(self, shown: Sequence[Given]) -> list[Earlier]:
        """Returns the runs that the header cites, each as it was there."""
        runs = []
        for cited in self._cited:
            given = next((one for one in shown if one.digest == cited.header_digest), None)
            if given is None or (report := self._audit(given)) is None:
                continue
            if not self._extends(given.leaves, cited, str(given.path)):
                continue
            followed = Followed.of(given, cited.size)
            earlier = Earlier(cited, followed.run, followed.withdrawn)
            self._judge_cited(earlier, str(given.path))
            self._judge_contents(followed)
            self._see_withdrawn(Followed.of(given))
            runs.append(earlier)
            self._limits.append(True)
            self._found.verdicts.append(report.verdict)
            self._found.qualifiers |= INHERITED & set(report.qualifiers)
            self._found.notes.append(f"counted with {cited.origin}, verified over its {cited.size} cited leaves")
        return runs

    def _extends(self, leaves: Leaves, cited: Previous, path: str) -> bool:
        size = leaves.size
        if size < cited.size:
            self._fault("EARLIER_BEHIND", path, f"{cited.size} leaves of {cited.origin} are counted, {size} are here")
        elif leaves.root_at(cited.size) != cited.root:
            self._fault("EARLIER_FORKED", path, f"the first {cited.size} leaves of {cited.origin} are not those cited")
        else:
            return True
        return False

    def _judge_cited(self, earlier: Earlier, path: str) -> None:
        cited, run = earlier.cited, earlier.run
        self._judge_citation(earlier, (run.header.origin, run.keys.at(cited.size)), path)
        if cited.reason == SPENT and not run.closed:
            sentence = f"{cited.origin} was counted at {cited.size} leaves, where it was not closed"
            self._fault("EARLIER_OPEN", path, f"{sentence}: whatever it charged after that counts nowhere")

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

    def _judge_contents(self, followed: Followed) -> None:
        register = followed.run.register.by_number
        for account, found in self._state.admitted.items():
            number = followed.anchors.number(found.content)
            if number is not None and not register[number].unnamed and register[number].descriptor_hash != account:
                known, origin = register[number].descriptor_hash.hex(), followed.run.header.origin
                sentence = f"{account.hex()} has the content commitment of {known} in {origin}, whose spending does not count"
                self._fault("EARLIER_ANCHOR", f"seq {found.seq}", sentence)
                return

    def _see_withdrawn(self, followed: Followed) -> None:
        known = self._found.withdrawn
        for leaf in followed.withdrawn:
            if leaf.reason not in PASSING and leaf.descriptor_hash in self._state.admitted:
                known[leaf.descriptor_hash] = min(leaf.time, known.get(leaf.descriptor_hash, leaf.time))

    def _look_at_others(self, shown: Sequence[Given]) -> None:
        """Looks at runs over the same corpus that are not cited."""
        corpora = {found.corpus for found in self._state.admitted.values()}
        for given in shown:
            cited = given.digest in {one.header_digest for one in self._cited}
            if cited or (report := self._audit(given)) is None:
                continue
            followed = Followed.of(given)
            run, origin = followed.run, given.header.origin
            self._see_withdrawn(followed)
            before = given.header.time <= self._state.header.time
            known = Accounts(run)
            spent = [name for name in self._state.admitted if (own := known.of(name, named=True)) and own.spent]
            if self._digest in {one.header_digest for one in given.header.previous}:
                self._found.notes.append(f"{origin} is a later run, which counts this log: audit it with --earlier of this")
                continue
            if run.header.policy.corpus in corpora and (before or spent):
                self._limits.append(before and run.closed and report.verdict != "TOLD")
            if not spent:
                self._found.notes.append(f"{origin} is not cited, and nobody of this log whom its leaves name spent there")
            elif before:
                sentence = f"{origin} began before this log and is not cited: what {len(spent)} contributions of this log spent"
                self._fault("EARLIER_LEFT_OUT", str(given.path), f"{sentence} there counts nowhere")
            else:
                told = f"{origin} began after this log, shares {len(spent)} contributions with it and does not count it"
                self._found.notes.append(f"{told}: audit it too")

    def _texts(self, budgets: Sequence[tuple[Path, ReadTexts]]) -> list[EarlierTexts]:
        """Returns the other budgets that the header cites, each as it was there."""
        found = []
        for cited in self._cited:
            for path, read in budgets:
                own = read.texts.cited
                if own.header_digest == cited.header_digest and self._extends(read.leaves, cited, str(path)):
                    found.append(read.texts.at(cited, read.times[cited.size - 1]))
                    self._judge_citation(found[-1], (own.origin, own.log_vkey), str(path))
                    self._limits.append(True)
        return found

    def _look_at_budgets(self, budgets: Sequence[tuple[Path, ReadTexts]], limited: Set[bytes]) -> None:
        """Looks at budgets that are not cited, by whom of those with a limit they admitted too."""
        for path, read in budgets:
            own = read.texts
            if own.cited.header_digest in {one.header_digest for one in self._cited}:
                continue
            shared = limited & own.admitted
            if self._digest in {one.header_digest for one in own.previous or ()}:
                self._found.notes.append(f"{own.cited.origin} is a later log, which counts this one")
            elif shared and own.began <= self._state.header.time:
                sentence = f"{own.cited.origin} began before this log and is not cited: what {len(shared)} contributions with a"
                self._fault("EARLIER_LEFT_OUT", str(path), f"{sentence} limit over all runs may spend there counts nowhere")
            elif shared:
                self._limits.append(False)
                told = f"{own.cited.origin} began after this log, shares {len(shared)} contributions with a limit over all runs"
                self._found.notes.append(f"{told} and does not count it: audit it too")

    def _judge_limits(self, runs: Sequence[Earlier], spent: SpentRegistry) -> set[bytes]:
        """Holds every contribution against every limit; returns those that have one."""
        judge, limited = Admitting(self._state, spent), set[bytes]()
        for leaf in self._references():
            has, use = judge.used(leaf.account, SignedDescriptor.from_cbor(leaf.descriptor))
            limited |= {leaf.account} if has else set()
            if use is not None and use.too_much(TOLERANCE_MICRO):
                told = f"{leaf.account.hex()}: {use.limit} over all runs; with texts as planned {use.epsilon:.6f} of it is used"
                self._fault("BUDGET", f"seq {leaf.seq}", told)
                break
        return limited

    def _references(self) -> Iterator[Reference]:
        for body in islice(self._leaves, 1, None):
            leaf = decode_leaf(body)
            if isinstance(leaf, Reference):
                yield leaf
