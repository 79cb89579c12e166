"""Holds runs against each other: one history of every ledger, one meaning of every descriptor.

A log can sign two histories of one run, and show the one in which less was spent to whoever counts it. Exports of one ledger,
and the roots under which other runs counted it, are what shows that: where two that contradict each other meet in one auditor's
hands, that is a finding, whichever of them the run under audit cites.

A run carries what a contribution spent before by its descriptor hash. An operator who lets a leaf of another run quote that
hash with other bounds, or who admits the content under another hash, would carry nothing, or too little.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from attest.corpus.digests import DigestTable
from ledger.audit.findings import Report
from ledger.audit.given import Given, Leaves, begin, follow
from ledger.leaves import Admit, Leaf, Previous, Withdraw
from ledger.leaves.header import COMPROMISED
from ledger.replay import Replay
from ledger.replay.contributions import Contribution


class Shown(Protocol):
    """Holds an export of a run, or of a budget log, beside others: its leaves, how a ledger is known, and what it counts."""

    @property
    def path(self) -> Path: ...
    @property
    def leaves(self) -> Leaves: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def origin(self) -> str: ...
    @property
    def previous(self) -> tuple[Previous, ...]: ...
    @property
    def gone(self) -> int: ...


_Shown = TypeVar("_Shown", bound=Shown)


def longest(given: Sequence[_Shown], fault: Report) -> list[_Shown]:
    """Returns the longest export of each ledger, of equals that with most leaves; reports every one that is no beginning of it.
    Raises ExportChanged, ProofError: roots cannot be made."""
    found: dict[bytes, _Shown] = {}
    for item in given:
        top = found.setdefault(item.digest, item)
        longer = item.leaves.size - top.leaves.size
        if longer > 0 or (item is not top and not longer and item.gone < top.gone):
            found[item.digest] = item
    for item in given:
        top, size = found[item.digest], item.leaves.size
        if top.leaves.root_at(size) != item.leaves.root_at(size):
            sentence = f"its {size} leaves are not the first of {top.path}: two histories of {item.origin}"
            fault("EARLIER_FORKED", str(item.path), f"{sentence}; publish both checkpoints")
    return list(found.values())


def judge_citations(shown: Iterable[Shown], own: Given, fault: Report) -> None:
    """Holds what every run and budget counts against the exports of the ledgers that it names; what ``own`` counts is judged
    elsewhere.

    So no run forgets that a key was lost, as another one says: behind the leaves for which that one vouches nothing counts.

    Args:
        shown: the longest export of each ledger, without that of the run under audit.

    Raises:
        ExportChanged, ProofError: roots cannot be made.
    """
    known = {item.digest: item for item in shown}
    for citing in known.values():
        for cited in citing.previous:
            found: Shown | None = own if cited.header_digest == own.digest else known.get(cited.header_digest)
            if found is None:
                continue
            counted = f"{citing.origin} counted {cited.size} leaves of {cited.origin}"
            if cited.size <= found.leaves.size:
                if found.leaves.root_at(cited.size) != cited.root:
                    sentence = f"{counted}, which are not the first of this export: two histories of it"
                    fault("EARLIER_FORKED", str(found.path), sentence)
                elif cited.reason == COMPROMISED and cited.size < found.leaves.size:
                    sentence = f"{counted}, where its key was lost, and {found.leaves.size} are here"
                    fault("EARLIER_COMPROMISED", str(found.path), sentence)
            elif found is not own:  # of the run under audit an older checkpoint may be audited
                sentence = f"{counted}, {found.leaves.size} are here; give a longer export of it"
                fault("EARLIER_BEHIND", str(found.path), sentence)


def extends_cited(leaves: Leaves, cited: Previous, path: str, fault: Report) -> bool:
    """Tells whether leaves are those that a header cites, and perhaps more behind them; reports where they are not.

    Raises:
        ExportChanged, ProofError: roots cannot be made.
    """
    if leaves.size < cited.size:
        fault("EARLIER_BEHIND", path, f"{cited.size} leaves of {cited.origin} were cited, {leaves.size} are here")
    elif leaves.root_at(cited.size) != cited.root:
        fault("EARLIER_FORKED", path, f"the first {cited.size} leaves of {cited.origin} are not those that were cited")
    else:
        return True
    return False


_SIZE = 32


class Anchors:
    """The content commitments of a run, by contribution and the reverse; 56 bytes for each, and a table of bounded memory.

    Takes the leaves of a run in order, each behind the run that applied it.
    """

    def __init__(self) -> None:
        self._numbers, self._all = DigestTable(), bytearray()

    def see(self, leaf: Leaf, run: Replay) -> None:
        """Takes a leaf that the run has applied."""
        number = len(self._all) // _SIZE
        if isinstance(leaf, Admit) and len(run.register.by_number) > number:
            self._all += leaf.anchor
            if any(leaf.anchor):
                self._numbers.setdefault(leaf.anchor, number)

    def of(self, number: int) -> bytes:
        """Returns the commitment of a contribution, by the number of its admission."""
        return bytes(self._all[number * _SIZE : (number + 1) * _SIZE])

    def number(self, anchor: bytes) -> int | None:
        """Returns the first contribution with a commitment; None if the run has none."""
        return self._numbers.get(anchor)


@dataclass(frozen=True, slots=True)
class Followed:
    """Holds the run over the first leaves of an export, its WITHDRAW leaves, and its content commitments."""

    run: Replay
    withdrawn: tuple[Withdraw, ...]
    anchors: Anchors

    @classmethod
    def of(cls, given: Given, end: int | None = None) -> "Followed":
        """Replays leaves that were verified before: recorded epsilons are not computed again."""
        run, withdrawn, anchors = begin(given.leaves, recompute=False), list[Withdraw](), Anchors()
        for leaf, _ in follow(run, given.leaves, end):
            withdrawn += [leaf] if isinstance(leaf, Withdraw) else []
            anchors.see(leaf, run)
        return cls(run, tuple(withdrawn), anchors)


def judge_crossing(runs: Sequence[Followed], fault: Report) -> None:
    """Holds the contributions of each run against those of the runs before it.

    Guarantee: without a finding a descriptor hash that stands in two of these runs stands there with one class, clip norm,
    noise multiplier, cap and content commitment, and a content commitment stands in all of them under one descriptor hash. So
    nobody begins at nothing again but who signed anew, under a fresh nonce. (Limits are held against each other where totals
    are: code LIMIT.) Of an ADMIT leaf that was pruned the content commitment is gone, and of who stayed the descriptor hash
    too: these are held against nothing.

    Args:
        fault: of two runs only the first contribution of each kind is named.
    """
    for place, item in enumerate(runs):
        for before in runs[:place]:
            _judge_pair(item, before, fault)


def _judge_pair(one: Followed, before: Followed, fault: Report) -> None:
    run, anchors, other, theirs = one.run, one.anchors, before.run, before.anchors
    here, there = run.header.origin, other.header.origin
    terms, renamed = [], []
    places = {item.descriptor_hash: number for number, item in enumerate(other.register.by_number) if not item.unnamed}
    for number, contribution in enumerate(run.register.by_number):
        if contribution.unnamed:
            continue
        name, anchor = contribution.descriptor_hash, anchors.of(number)
        place = places.get(name)
        if place is not None:
            earlier = other.register.by_number[place]
            known = theirs.of(place)
            wrong = [what for what, a, b in _said(contribution, earlier) if a != b]
            wrong += ["content"] if any(anchor) and any(known) and anchor != known else []
            if wrong:
                terms.append((contribution, f"says {' and '.join(wrong)} otherwise here than in {there}"))
        elif any(anchor) and (found := theirs.number(anchor)) is not None:
            known_as = other.register.by_number[found].descriptor_hash.hex()
            told = f"has the content commitment of {known_as} in {there}, whose spending it does not carry"
            renamed.append((contribution, told))
    for code, lies, why in (
        ("EARLIER_TERMS", terms, "one descriptor says one thing"),
        ("EARLIER_ANCHOR", renamed, "one commitment is of one descriptor; signed anew, a content has another"),
    ):
        if lies:
            contribution, sentence = lies[0]
            more = f", and so for {len(lies) - 1} more" if len(lies) > 1 else ""
            where = f"{here}: seq {contribution.seq}"
            fault(code, where, f"{contribution.descriptor_hash.hex()} {sentence}{more}; {why}")


def _said(one: Contribution, other: Contribution) -> tuple[tuple[str, object, object], ...]:
    """Returns what two leaves quote of one descriptor, side by side; limits are held against each other elsewhere."""
    a, b = one.terms, other.terms
    bounds = zip(("clip norm", "noise multiplier", "max occurrences"), a.bounds, b.bounds, strict=True)
    return ("class", a.class_name, b.class_name), *bounds
