"""How far back what is gone may reach: bodies by what auditors vouch for, hashes by a second horizon of the signed policy."""

from collections.abc import Iterable, Sequence

from ledger.leaves import Epoch, Header, Summary


def waited(summary: Summary, epochs: Sequence[Epoch], closed: bool) -> bool:
    """Tells whether what a SUMMARY leaf speaks for may go by now: an EPOCH leaf follows it, or the run is closed.

    Args:
        summary: the leaf.
        epochs: the EPOCH leaves.
        closed: whether the run was closed.
    """
    return closed or (bool(epochs) and summary.seq < epochs[-1].seq)


def hashes_end(header: Header, summaries: Iterable[Summary], epochs: Sequence[Epoch]) -> int:
    """Returns where the leaves end whose hashes the policy lets go; 0 where it keeps them.

    That is the end of the last summarised range which at least ``retention_hash_epochs`` closed epochs follow. Only pruned
    leaves lose their hashes, so bodies must be gone before, and auditors vouch for the range.

    Args:
        header: leaf 0.
        summaries: the SUMMARY leaves.
        epochs: the EPOCH leaves.
    """
    horizon = header.policy.retention_hash_epochs
    if not 0 < horizon <= len(epochs):
        return 0
    return max((leaf.end for leaf in summaries if leaf.end <= epochs[-horizon].seq), default=0)
