"""What a RELEASE leaf must say: that weights left the house, under which manifest, and how far the ledger was then."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ledger.errors import LeafRefused
from ledger.leaves import Release
from ledger.merkle import root

if TYPE_CHECKING:
    from ledger.replay import Replay


def withdrawals_root(withdrawals: Mapping[bytes, int], size: int) -> tuple[int, bytes]:
    """Returns how many contributions were withdrawn by a size of the ledger, and the RFC 6962 root over their sorted hashes.

    Args:
        withdrawals: position of the WITHDRAW leaf by descriptor hash, those that matched nothing included.
        size: number of leaves that count.
    """
    found = sorted(descriptor_hash for descriptor_hash, seq in withdrawals.items() if seq < size)
    return len(found), root(found)


def release_problems(leaf: Release, run: "Replay", root_at: Callable[[int], bytes]) -> Iterator[LeafRefused]:
    """Yields what is wrong with a RELEASE leaf: it stands right behind the checkpoint that it cites, and tells of it truly."""
    if leaf.size != leaf.seq:
        yield LeafRefused("RELEASE", f"a release cites the {leaf.seq} leaves before it, this one cites {leaf.size}")
        return
    if root_at(leaf.size) != leaf.root:
        yield LeafRefused("RELEASE", f"the root at size {leaf.size} is not the one that the release cites")
    expected = _root_of_all(run)
    if leaf.withdrawals_root != expected:
        yield LeafRefused("RELEASE", f"the root over the withdrawals is {expected.hex()}, not {leaf.withdrawals_root.hex()}")
    charged = max((window.last_step for window in run.windows), default=0)
    if leaf.step > charged:
        yield LeafRefused("RELEASE", f"step {leaf.step} was released, steps up to {charged} were charged")


def _root_of_all(run: "Replay") -> bytes:
    """The root over all withdrawals so far, computed anew only where one came since the last release: there may be many."""
    count = len(run.withdrawals)
    if count not in run.withdrawn_roots:
        run.withdrawn_roots = {count: root(sorted(run.withdrawals))}
    return run.withdrawn_roots[count]
