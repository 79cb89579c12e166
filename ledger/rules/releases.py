"""What a RELEASE leaf must say: that weights left the house, under which manifest, and how far the ledger was then."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.errors import LeafRefused
from ledger.leaves import Release
from ledger.merkle import Frontier, leaf_hash, root
from ledger.rules.influence import is_final

if TYPE_CHECKING:
    from ledger.replay import Replay


def withdrawals_root(withdrawals: Mapping[bytes, int], size: int) -> tuple[int, bytes]:
    """Returns how many contributions were withdrawn by a size of the ledger, and the RFC 6962 root over their hashes.

    Args:
        withdrawals: position of the WITHDRAW leaf by descriptor hash, in order, those that matched nothing included.
        size: number of leaves that count.
    """
    found = [descriptor_hash for descriptor_hash, seq in withdrawals.items() if seq < size]
    return len(found), root(found)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A release, as far as the ledger tells of it.

    Attributes:
        leaf: its RELEASE leaf.
        admitted: number of contributions admitted before it.
        withdrawn: number of withdrawals entered before it.
        final: whether the run had gone to its signed end, so that what it had charged is all that it ever charges.
    """

    leaf: Release
    admitted: int
    withdrawn: int
    final: bool


class Releases:
    """The RELEASE leaves of a run: each stands right behind the checkpoint that it cites, and tells of it truly.

    Attributes:
        recorded: all of them.
    """

    def __init__(self, root_at: Callable[[int], bytes]) -> None:
        """Takes what returns the root over the first leaves, as many as it is asked for."""
        self.recorded: list[Recorded] = []
        self._root_at = root_at
        self._withdrawn = Frontier()

    def withdrawn(self, descriptor_hash: bytes) -> None:
        """Takes the hash of a WITHDRAW leaf, each once."""
        self._withdrawn.append(leaf_hash(descriptor_hash))

    @property
    def withdrawals_root(self) -> bytes:
        """The root over all withdrawals so far, as `withdrawals_root` computes it."""
        return self._withdrawn.root()

    def take(self, leaf: Release, run: "Replay") -> Iterator[LeafRefused]:
        """Yields what is wrong with a RELEASE leaf, and records it either way."""
        self.recorded.append(Recorded(leaf, len(run.register.by_number), len(run.withdrawals), is_final(run)))
        if leaf.size != leaf.seq:
            yield LeafRefused("RELEASE", f"a release cites the {leaf.seq} leaves before it, this one cites {leaf.size}")
            return
        if self._root_at(leaf.size) != leaf.root:
            yield LeafRefused("RELEASE", f"the root at size {leaf.size} is not the one that the release cites")
        expected = self.withdrawals_root
        if leaf.withdrawals_root != expected:
            told = f"the root over the withdrawals is {expected.hex()}, not {leaf.withdrawals_root.hex()}"
            yield LeafRefused("RELEASE", told)
        if leaf.step != run.position:
            yield LeafRefused("RELEASE", f"the last released step is {run.position}, the leaf says {leaf.step}")
