"""What became of one contribution: where it was admitted, in which pools it was, what it could touch, what it has spent."""

from collections.abc import Iterable
from dataclasses import dataclass

from attest.commitments import commit_content
from attest.micro import from_micro
from ledger.errors import LedgerError
from ledger.leaves import Admit, Charge, Withdraw, decode_leaf
from ledger.replay import Replay
from ledger.retention.anchors import AnchorRecord
from ledger.retention.retained import is_stand_in


@dataclass(frozen=True, slots=True)
class Trace:
    """A contribution in a ledger.

    Attributes:
        admit: its ADMIT leaf; where that was pruned what its anchor record says of it, blank in the rest.
        pruned: whether it was: then neither attestation, key id nor time of the admission are known.
        withdraw: its WITHDRAW leaf, None while it is in its pool.
        windows: the CHARGE leaves in whose pool it was, abandoned attempts included: it may have been drawn in their steps.
        steps: how many steps these are.
        occurrences: in how many it took part, where the ledger says so; else None.
        blocks: names of the blocks that it could touch.
        epsilon: what it has spent in this run; None if its class is public.
        carried: what it had spent before, in the earlier runs that the header counts.
    """

    admit: Admit
    pruned: bool
    withdraw: Withdraw | None
    windows: tuple[Charge, ...]
    steps: int
    occurrences: int | None
    blocks: tuple[str, ...]
    epsilon: float | None
    carried: float


def trace_content(run: Replay, bodies: Iterable[bytes | None], content_hash: bytes, nonce: bytes) -> Trace:
    """Finds the contribution that was admitted with this content and nonce.

    Args:
        run: the replayed ledger.
        bodies: its leaves in order; of pruned ones what stands in for them (`ledger.export.Pruned.stand_in`), or nothing.
        content_hash: SHA-256 of the content.
        nonce: of its descriptor; whoever does not have it finds nothing.

    Raises:
        LedgerError: code NOT_FOUND; it was not admitted.
    """
    anchor, admit, withdraw, pruned = commit_content(content_hash, nonce), None, None, False
    for body in bodies:
        # Most leaves are of other contributions: bytes are compared before anything is decoded.
        if not body or (anchor if admit is None else admit.descriptor_hash) not in body:
            continue
        if is_stand_in(body):
            record = AnchorRecord.from_bytes(body)
            if record.content_anchor == anchor:
                admit, pruned = record.admission(run.header.policy.classes[record.class_index].name, run.header.time), True
            continue
        leaf = decode_leaf(body)
        if admit is None and isinstance(leaf, Admit) and leaf.anchor == anchor:
            admit = leaf
        elif admit is not None and isinstance(leaf, Withdraw) and leaf.descriptor_hash == admit.descriptor_hash:
            withdraw = leaf
    if admit is None:
        raise LedgerError(
            "NOT_FOUND",
            "no admission has the anchor of this content and nonce: another nonce, or never admitted",
        )
    return _trace(run, admit, withdraw, pruned)


def _trace(run: Replay, admit: Admit, withdraw: Withdraw | None, pruned: bool) -> Trace:
    found = run.contributions[admit.descriptor_hash]
    header, end = run.header, run.size if withdraw is None else withdraw.seq
    windows = tuple(window for window in run.windows if admit.seq < window.seq < end)
    return Trace(
        admit=admit,
        pruned=pruned,
        withdraw=withdraw,
        windows=windows,
        steps=sum(window.n_steps for window in windows),
        occurrences=found.occurrences if header.occurrences_public else None,
        blocks=tuple(header.blocks[index].name for index in header.profiles[found.class_index].blocks),
        epsilon=None if header.policy.classes[found.class_index].public else run.epsilon(found),
        carried=from_micro(admit.carried_micro),
    )
