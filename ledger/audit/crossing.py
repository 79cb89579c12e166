"""Contributions of several runs, held against each other: one descriptor says one thing, and one content has one descriptor.

A run carries what a contribution spent before by its descriptor hash. An operator who lets a leaf of another run quote that
hash with other bounds, or who admits the content under another hash, would carry nothing, or too little.
"""

from collections.abc import Callable, Iterable

from attest.corpus.digests import DigestTable
from ledger.leaves import Admit, Leaf
from ledger.replay import Replay
from ledger.rules.groups import Contribution

Fault = Callable[[str, str, str], None]

_SIZE = 32


class Anchors:
    """The content commitments of a run, by contribution and the reverse; 56 bytes for each, and a table of bounded memory.

    Takes the leaves of a run in order, each behind the run that applied it.
    """

    def __init__(self) -> None:
        """Begins before the first admission."""
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


def judge_crossing(runs: Iterable[tuple[Replay, Anchors]], fault: Fault) -> None:
    """Holds the contributions of each run against those of the runs before it.

    Guarantee: without a finding a descriptor hash that stands in two of these runs stands there with one class, clip norm,
        noise multiplier, cap and content commitment, and a content commitment stands in all of them under one descriptor hash.
        So nobody begins at nothing again but who signed anew, under a fresh nonce. (Limits are held against each other where
        totals are: code LIMIT.) Of an ADMIT leaf that was pruned the content commitment is gone, and of who stayed the
        descriptor hash too: these are held against nothing.

    Args:
        runs: each with its commitments; the run under audit last.
        fault: takes (code, where, sentence) of everything wrong; of two runs only the first contribution of each kind is named.
    """
    before: list[tuple[Replay, Anchors]] = []
    for run, anchors in runs:
        for other, theirs in before:
            _judge_pair(run, anchors, other, theirs, fault)
        before.append((run, anchors))


def _judge_pair(run: Replay, anchors: Anchors, other: Replay, theirs: Anchors, fault: Fault) -> None:
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
    return (
        ("class", a.class_name, b.class_name),
        ("clip norm", a.clip_micro, b.clip_micro),
        ("noise multiplier", a.sigma_micro, b.sigma_micro),
        ("max occurrences", a.max_occurrences, b.max_occurrences),
    )
