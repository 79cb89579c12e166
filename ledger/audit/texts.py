"""Holds a run against budget logs from which its contributions pay for texts, those that it says it counted among them.

A budget counts with all that its rules allow, for everybody of a class that has one. So of its leaves only the header, and who
was withdrawn or admitted there, have a say in what a run counts: not what was charged, nor who else was shown them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Final, NamedTuple

from ledger.audit.findings import AuditReport, Report
from ledger.audit.given import Leaves
from ledger.audit.histories import Followed, extends_cited
from ledger.audit.remarks import Remarks
from ledger.leaves import Previous, Withdraw
from ledger.leaves.header import TEXTS
from ledger.replay import Replay
from ledger.replay.earlier_runs import Earlier
from ledger.replay.earlier_texts import WITHDRAWN, EarlierTexts

USE_TOLD: Final = "USE_TOLD"
"""Qualifier of a budget log (`ledger.budget.audit.report.WORDS`) that a run which counts it notes."""


_APART: Final = "what is said of limits over runs holds if neither was chosen by looking at what the other released"


class Signed(NamedTuple):
    """Says what a contributor signed, as the REFERENCE leaf of a contribution shows it. `content`: the commitment to it."""

    class_name: str
    bounds: tuple[int, int, int]
    limit: tuple[int, int]
    content: bytes


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """Holds a budget log that passed its audit, at its whole size.

    Attributes:
        leaves: under the root that the audit found. times: of these, by position.
        signed: by descriptor hash of who was admitted.
    """

    texts: EarlierTexts
    leaves: Leaves
    times: Sequence[int]
    signed: Mapping[bytes, Signed]


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """Holds an export of a budget log that was given beside a run (`ledger.budget.audit.given_texts`).

    Attributes:
        report: its audit by itself.
        read: what it says; None where that audit FAILED.
    """

    path: Path
    report: AuditReport
    read: ReadTexts | None


@dataclass(frozen=True, slots=True)
class ShownTexts:
    """Holds a budget log beside runs, as `ledger.audit.histories` compares them."""

    path: Path
    report: AuditReport
    read: ReadTexts
    gone: int = 0

    @property
    def leaves(self) -> Leaves:
        """Returns its leaves."""
        return self.read.leaves

    @property
    def texts(self) -> EarlierTexts:
        """Returns what it counts, at its whole size."""
        return self.read.texts

    @property
    def origin(self) -> str:
        """Returns the origin of the log."""
        return self.texts.cited.origin

    @property
    def digest(self) -> bytes:
        """Returns the SHA-256 of its leaf 0."""
        return self.texts.cited.header_digest

    @property
    def previous(self) -> tuple[Previous, ...]:
        """Returns what it counts itself."""
        return self.texts.previous or ()


def shown_texts(given: Sequence[GivenTexts], fault: Report) -> list[ShownTexts]:
    """Returns the budgets whose own audits passed, and reports the others."""
    shown = []
    for item in given:
        if item.read is not None:
            shown.append(ShownTexts(item.path, item.report, item.read))
            continue
        found = item.report.findings[0]
        fault("EARLIER", str(item.path), f"the budget log is FAILED: {found.code} {found.where}: {found.sentence}")
    return shown


class Beside:
    """Judges budgets against one run.

    Attributes:
        limits: takes for every budget whether all that it can ever charge was counted (`ledger.audit.earlier`).
    """

    def __init__(self, run: Replay, fault: Report, remarks: Remarks, limits: list[bool]) -> None:
        self._run, self._fault, self._remarks, self._limits = run, fault, remarks, limits

    def cited(self, shown: Sequence[ShownTexts]) -> list[EarlierTexts]:
        """Returns the budgets that the header cites, each as it was at that size.

        Guarantee: each was given and begins with the cited leaves, is cited under its own name and key, has rules to count by,
        and no cited leaf is dated after the run began.
        """
        found = []
        for cited in (item for item in self._run.header.previous if item.reason == TEXTS):
            match = next((item for item in shown if item.digest == cited.header_digest), None)
            if match is None:
                told = f"the run cites the budget log {cited.origin}, {cited.size} leaves, whose export was not given"
                self._fault("EARLIER_MISSING", "seq 0", told)
            elif extends_cited(match.leaves, cited, str(match.path), self._fault):
                found.append(match.texts.at(cited, match.read.times[cited.size - 1]))
                self._judge_cited(found[-1], match)
                self._limits.append(True)  # whatever is charged there later is counted already
        return found

    def _judge_cited(self, texts: EarlierTexts, match: ShownTexts) -> None:
        cited, own, path = texts.cited, match.texts.cited, str(match.path)
        if (cited.origin, cited.log_vkey) != (own.origin, own.log_vkey):
            sentence = f"it is {own.origin!r}, signed by {own.log_vkey}, and cited as {cited.origin!r}, {cited.log_vkey}"
            self._fault("EARLIER_NAME", path, sentence)
        if wrong := texts.misdates(self._run.header.time):
            self._fault("EARLIER_TIME", "seq 0", f"{wrong}: one of the two is dated falsely")
        if not texts.allowed:
            sentence = f"{cited.origin} has no rules of generation, so that nothing of any contribution can be counted from it"
            self._fault("EARLIER_RULES", path, sentence)
        classes = ", ".join(sorted(texts.allowed))
        told = f"counted with {cited.origin}, a budget log of texts, verified over its {cited.size} cited leaves"
        self._remarks.note(f"{told}: everybody of class {classes} is counted with all that its rule allows, whenever charged")
        if USE_TOLD in match.report.qualifiers:
            told = f"{cited.origin}: that no text was made of contributions by reservations which others paid for"
            self._remarks.note(f"{told} is the operator's word")

    def uncited(self, own: bytes, match: ShownTexts) -> None:
        """Looks at a budget that is not cited: what it lets contributions of this run spend must be counted by one of the two.

        Args:
            own: SHA-256 of the header of the run.
        """
        run, texts, origin = self._run, match.texts, match.origin
        if own in {before.header_digest for before in match.previous}:
            self._remarks.note(f"{origin} is a budget log that counts this run: audit it with --earlier of this")
            return
        private = {rule.name for rule in run.header.policy.classes if not rule.public}
        before = texts.began <= run.header.time
        if not texts.allowed:
            self._limits.append(False)
            told = "has no rules of generation: which records its contributions are is its operator's word"
            self._remarks.note(f"{origin} is a budget log that is not cited and {told}; nothing of it counts")
            return
        if private.isdisjoint(texts.allowed):
            self._remarks.note(f"{origin} is a budget log that is not cited, and has no rule for a private class of this run")
            return
        self._limits.append(False)
        named = sum(1 for name in texts.admitted if (item := run.contributions.get(name)) is not None and run.steps(item))
        if before and named:
            sentence = f"{origin}, a budget log, began before this run and is not cited: what {named} contributions of this run"
            self._fault("EARLIER_LEFT_OUT", str(match.path), f"{sentence} may spend there for texts counts nowhere")
        elif before:
            told = f"{origin}, a budget log, began before this run and is not cited; it names nobody who took part here"
            self._remarks.note(f"{told}, and may yet admit some: limits are not held against it")
        else:
            told = f"{origin}, a budget log, began after this run and does not count it, and may admit who took part here"
            self._remarks.note(f"{told}: limits are not held against it; audit it with --earlier of this")

    def entered(self, withdrawn: Sequence[Withdraw], shown: Sequence[ShownTexts]) -> None:
        """Looks in the budgets for the withdrawals that the run says it has from them."""
        known = {(leaf.descriptor_hash, leaf.evidence_hash) for item in shown for leaf in item.texts.withdrawn}
        missing = [leaf for leaf in withdrawn if leaf.reason == WITHDRAWN]
        missing = [leaf for leaf in missing if (leaf.descriptor_hash, leaf.evidence_hash) not in known]
        if missing:
            told = f"{len(missing)} withdrawals are entered as of a budget log, leaf {missing[0].seq} among them"
            self._remarks.note(f"{told}, and no budget that was given has them: give newer exports of these")


def remark_texts_apart(runs: Sequence[Earlier], counted: Sequence[EarlierTexts], remarks: Remarks) -> None:
    """Tells of a run and a budget, or of two budgets, that may share contributions though neither counts the other, as if both
    had been first."""
    for earlier, texts in product(runs, counted):
        linked = {item.header_digest for item in (*earlier.previous, *(texts.previous or ()))}
        shared = _may_share(earlier.run, texts)
        if shared and linked.isdisjoint((earlier.cited.header_digest, texts.cited.header_digest)):
            told = f"{earlier.cited.origin} and the budget log {texts.cited.origin} may share {shared} contributions"
            remarks.qualify("EARLIER_APART", f"{told} and neither counts the other: {_APART}")
    for one, other in combinations(counted, 2):
        linked = {item.header_digest for item in (*(one.previous or ()), *(other.previous or ()))}
        classes = one.allowed.keys() & other.allowed.keys()
        if classes and linked.isdisjoint((one.cited.header_digest, other.cited.header_digest)):
            named = ", ".join(sorted(classes))
            told = f"the budget logs {one.cited.origin} and {other.cited.origin} have rules for {named}"
            remarks.qualify("EARLIER_APART", f"{told} and neither counts the other: {_APART}")


def judge_texts_crossing(own: Followed, shown: Sequence[ShownTexts], fault: Report) -> None:
    """Holds the contributions of the run against those of budgets, as `ledger.audit.histories.judge_crossing` does between
    runs: one descriptor says one thing, and one commitment is of one descriptor. Of each kind the first is named."""
    for item in shown:
        found: dict[str, tuple[int, str]] = {}
        for name, signed in item.read.signed.items():
            here, number = own.run.contributions.get(name), own.anchors.number(signed.content)
            terms = None if here is None or here.unnamed else here.terms
            if here is not None and terms is not None:
                if (terms.class_name, terms.bounds) != (signed.class_name, signed.bounds):
                    found.setdefault("EARLIER_TERMS", (here.seq, f"{name.hex()} is of another class or has other bounds"))
                if terms.limit != signed.limit:
                    told = f"{name.hex()} signed another limit of epsilon, or none"
                    found.setdefault("LIMIT", (here.seq, told))
            other = None if number is None else own.run.register.by_number[number]
            if other is not None and not other.unnamed and other.descriptor_hash != name:
                told = f"{other.descriptor_hash.hex()} has the content commitment of {name.hex()}"
                found.setdefault("EARLIER_ANCHOR", (other.seq, told))
        for code, (seq, told) in found.items():
            fault(code, f"seq {seq}", f"{told}, by the leaves of {item.origin}; one descriptor says one thing")


def _may_share(run: Replay, texts: EarlierTexts) -> int:
    """Counts the contributions of a run that a budget may let pay for texts."""
    return sum(1 for item in run.register.by_number if not run.is_public(item) and texts.of(item.terms) is not None)
