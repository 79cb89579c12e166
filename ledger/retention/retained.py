"""Replaying a pruned ledger: what stands in for the leaves whose bodies are gone, and what must then be vouched for.

One kind of bodies goes: an ADMIT leaf, when its contribution has left the run and an epoch told what it had spent. Its stand-in
is its anchor record, from which the replay restores it at its place. So of a pruned ledger too every pool, group, charge,
withdrawal and epsilon is recomputed, for those who left and for those who stay; what rests on the auditors' word is that the
stand-ins are what the leaves under the signed root said. ADMIT leaves of whoever is active are kept (later charges and epsilons
need them). DRAW leaves name contributions by the order of admission, in which stand-ins keep their places, and are never pruned: so
where occurrences are public everybody's are counted again from them.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable

from ledger.errors import LeafRefused
from ledger.leaves import Admit, Header, Summary
from ledger.replay import Replay
from ledger.retention.anchors import AnchorRecord
from ledger.retention.horizons import waited


def is_stand_in(data: bytes) -> bool:
    """Tells a stand-in, which is a CBOR array, from a leaf, which is a CBOR map."""
    return bool(data) and data[0] >> 5 == 4


class RetainedReplay(Replay):
    """A replay that also takes stand-ins.

    Attributes:
        pruned: positions of pruned leaves.
    """

    def __init__(self, header: Header, root_at: Callable[[int], bytes], *, recompute: bool = True) -> None:
        """Starts after leaf 0, as `Replay`."""
        super().__init__(header, root_at, recompute=recompute)
        self.pruned: array[int] = array("q")
        self._restored: dict[bytes, AnchorRecord] = {}

    def stand_in(self, data: bytes) -> tuple[Admit, list[LeafRefused]]:
        """Applies what stands in for a pruned leaf.

        Returns:
            An ADMIT leaf that means the same, blank in what is gone, and what contradicts the leaves before it.

        Raises:
            LeafRefused: no leaf can have been here whose stand-in this is.
        """
        leaf, problems = self._restore(AnchorRecord.from_bytes(data))
        self.pruned.append(leaf.seq)
        self.timeline.loose = True
        return leaf, problems

    def unvouched(self, end: int) -> str | None:
        """Says what is pruned beyond the ranges that auditors vouch for, or None when nothing is.

        Args:
            end: where these ranges end.
        """
        if self.pruned and self.pruned[-1] >= end:
            last = self.pruned[-1]
            return f"the body of leaf {last} is gone, and auditors vouch for summaries of the leaves below {end} only"
        for hash_, record in self._restored.items():
            covered, committed = self.tally.summarised.get(hash_, (None, None))
            if covered is None or covered > end:
                return f"the ADMIT leaf of {hash_.hex()} is gone, and no summary that auditors vouch for has its record"
            if record != committed:
                return f"what stands for the ADMIT leaf of {hash_.hex()} is not the record that its summary commits to"
        return None

    def restored(self, leaf: Summary) -> int:
        """Returns how many ADMIT leaves are gone to whose anchor records a summary commits; they may lie in earlier ranges."""
        covered = (self.tally.summarised.get(hash_) for hash_ in self._restored)
        return sum(1 for found in covered if found is not None and found[0] == leaf.end)

    def too_early(self) -> str | None:
        """Says which pruned range had to wait for another epoch, or None when none had."""
        for leaf in self.tally.summaries:
            gone = bisect_left(self.pruned, leaf.end) - bisect_left(self.pruned, leaf.first)
            if gone and not waited(leaf, self.epochs, self.closed):
                sentence = f"{gone} bodies of leaves {leaf.first} to {leaf.end - 1} are gone, and the summary, leaf {leaf.seq},"
                return f"{sentence} is followed by no EPOCH leaf, nor is the run closed: nothing may be pruned before"
        return None

    def _restore(self, record: AnchorRecord) -> tuple[Admit, list[LeafRefused]]:
        classes = self.header.policy.classes
        if record.first_seq != self.size or record.class_index >= len(classes):
            raise LeafRefused("ANCHOR", f"an anchor of leaf {record.first_seq} stands for leaf {self.size}")
        leaf = record.admission(classes[record.class_index].name, self.last_time)
        problems = self.apply(leaf)
        self._restored[record.descriptor_hash] = record
        return leaf, problems
