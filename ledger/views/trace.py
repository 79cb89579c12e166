"""Tells what became of one contribution: where it was admitted, in which pools it was, what it could touch and has spent."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from attest.fixed_point import from_micro
from attest.schema.plain import commit_content
from attest.withdrawal import PASSING
from ledger.errors import AnchorRefused, LedgerError
from ledger.leaves import Admit, Charge, Withdraw, decode_leaf
from ledger.replay import Replay
from ledger.replay.contributions import Contribution
from ledger.replay.influence import artifacts
from ledger.retention import is_stand_in


@dataclass(frozen=True, slots=True)
class Wanted:
    """A contribution that is looked for, by one or both of the names that a ledger has for it.

    Attributes:
        content: the commitment to its content; None where only the descriptor is known.
        descriptor_hash: SHA-256 of its descriptor; None where only the content is known.
    """

    content: bytes | None = None
    descriptor_hash: bytes | None = None

    @classmethod
    def of_content(cls, content_hash: bytes, nonce: bytes) -> "Wanted":
        """Returns the contribution with this content and nonce; whoever has no nonce looks for nothing.

        Args:
            content_hash: SHA-256 of the content.
            nonce: of its descriptor.
        """
        return cls(content=commit_content(content_hash, nonce))

    def within(self, body: bytes) -> bool:
        """Tells whether a leaf could be its admission: most are of others, and need not be decoded."""
        return any(name is not None and name in body for name in (self.content, self.descriptor_hash))

    def is_of(self, seq: int, descriptor_hash: bytes, anchor: bytes) -> bool:
        """Tells whether an admission is its own.

        Args:
            seq: position of the ADMIT leaf.
            descriptor_hash: whom it admits.
            anchor: the commitment to the content that it has.

        Raises:
            AnchorRefused: code DESCRIPTOR, one name is that of the leaf and the other is not.
        """
        pairs = ((self.content, anchor), (self.descriptor_hash, descriptor_hash))
        same = [name == found for name, found in pairs if name is not None]
        if any(same) and not all(same):
            raise AnchorRefused(
                "DESCRIPTOR",
                f"leaf {seq} admits the descriptor {descriptor_hash.hex()} with the content commitment "
                f"{anchor.hex()}; the anchor pairs one of these with another: it is not of this contribution",
            )
        return all(same)


@dataclass(frozen=True, slots=True)
class TouchedRelease:
    """A release that a contribution may have influenced.

    Attributes:
        seq: position of its RELEASE leaf.
        time: POSIX seconds of that leaf.
        step: last released step that the weights contain.
        manifest_digest: SHA-256 of `release.cose`.
        parts: names of the parts that it may have influenced: ``full``, ``base``, or ``adapter:NAME``.
    """

    seq: int
    time: int
    step: int
    manifest_digest: bytes
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A contribution in a ledger.

    Attributes:
        admit: its ADMIT leaf; where that was pruned what its aggregate says of it, blank in the rest.
        pruned: whether it was: then neither attestation, key id nor time of the admission are known.
        withdraw: its first WITHDRAW leaf, with which it left its pool; None while it is there.
        signed: the WITHDRAW leaf that stands for a withdrawal that somebody signed: the same, or a later one; None without.
        windows: the CHARGE leaves in whose pool it was, abandoned attempts included: it may have been drawn in their steps.
        variances: of each of these the scheduled noise variance of its class, the square of what the CHARGE leaf says.
        steps: how many steps these are.
        occurrences: in how many it took part, where the ledger says so; else None.
        blocks: names of the blocks that it could touch.
        epsilon: what it has spent in this run; None if its class is public.
        carried: what it had spent before, in the earlier runs that the header counts.
        releases: the releases that it may have influenced.
    """

    admit: Admit
    pruned: bool
    withdraw: Withdraw | None
    signed: Withdraw | None
    windows: tuple[Charge, ...]
    variances: tuple[float, ...]
    steps: int
    occurrences: int | None
    blocks: tuple[str, ...]
    epsilon: float | None
    carried: float
    releases: tuple[TouchedRelease, ...]

    def require_signer(self, key_ids: Collection[bytes]) -> None:
        """Checks that the contribution was signed with one of these keys; of a pruned one no key is known, and nothing checked.

        Raises:
            AnchorRefused: code KEY.
        """
        if not self.pruned and self.admit.key_id not in key_ids:
            known = ", ".join(sorted(key_id.hex() for key_id in key_ids))
            raise AnchorRefused(
                "KEY",
                f"leaf {self.admit.seq} names the key {self.admit.key_id.hex()} as its contributor's, the anchor is signed by "
                f"somebody with {known}; after a change of key give the registry, which knows both",
            )


def trace(run: Replay, bodies: Iterable[bytes | None], wanted: Wanted) -> Trace:
    """Finds a contribution, and says what became of it.

    Guarantee:
        `Trace.releases` leaves out a release, or a part of one, only if no step in whose pool the contribution was, and no
        draw of it where draws are public, can be in its weights: no path leads from its class to a block of the part
        (`ledger.replay.influence.artifacts`), or nothing was charged to it before the leaf. That the weights are of an earlier
        step than was charged is the operator's word, and leaves nothing out.

    Args:
        run: the replayed ledger.
        bodies: its leaves in order; of pruned ones what stands in for them (`ledger.export.Pruned.entries`), or nothing. These
            have no commitment to a content any more: who looks for one of them needs its descriptor hash.
        wanted: which.

    Raises:
        LedgerError: code NOT_FOUND; it was not admitted.
        AnchorRefused: as for `Wanted.is_of`.
    """
    admit, pruned, lean = None, False, False
    left: list[Withdraw] = []
    known = None if wanted.descriptor_hash is None else run.contributions.get(wanted.descriptor_hash)
    for seq, body in enumerate(bodies):
        if not body or is_stand_in(body):
            lean = True
            if known is not None and known.seq == seq:
                admit, pruned = restored(known, run.header.time), True
            continue
        if not (wanted.within(body) if admit is None else admit.descriptor_hash in body):
            continue
        leaf = decode_leaf(body)
        if admit is None and isinstance(leaf, Admit) and wanted.is_of(leaf.seq, leaf.descriptor_hash, leaf.anchor):
            admit = leaf
        elif admit is not None and isinstance(leaf, Withdraw) and leaf.descriptor_hash == admit.descriptor_hash:
            left.append(leaf)
    if admit is None:
        name = "anchor of this content and nonce" if wanted.descriptor_hash is None else "descriptor"
        gone = "; or its ADMIT leaf was pruned, with the commitment to its content: ask by the descriptor hash" if lean else ""
        if any(run.register.unnamed):
            gone += ", or, if it stayed until the run was closed, give its member record to 'dptrain ledger trace --member'"
        raise LedgerError(
            "NOT_FOUND",
            f"no admission has the {name}: never admitted here, or the content was signed again, with another nonce, and "
            f"admitted as that{gone}",
        )
    return _trace(run, admit, left, pruned)


def restored(known: Contribution, time: int) -> Admit:
    """Returns an ADMIT leaf that was pruned, blank in what is gone.

    Args:
        known: the contribution.
        time: POSIX seconds that stand in for the time of the leaf, which is gone too.
    """
    terms = known.terms
    head = (known.seq, time, known.descriptor_hash, terms.class_name, terms.class_index)
    return Admit(*head, *terms.bounds, bytes(32), bytes(8), bytes(32), terms.carried_micro, *terms.limit)


def _trace(run: Replay, admit: Admit, left: Sequence[Withdraw], pruned: bool) -> Trace:
    found, withdraw = run.contributions[admit.descriptor_hash], left[0] if left else None
    header, end = run.header, run.size if withdraw is None else withdraw.seq
    windows = tuple(window for window in run.windows if admit.seq < window.seq < end)
    occurrences = found.occurrences if header.occurrences_public else None
    return Trace(
        admit=admit,
        pruned=pruned,
        withdraw=withdraw,
        signed=next((leaf for leaf in left if leaf.reason not in PASSING), None),
        windows=windows,
        variances=tuple(window.classes[found.class_index].min_std ** 2 for window in windows),
        steps=sum(window.n_steps for window in windows),
        occurrences=occurrences,
        blocks=tuple(header.blocks[index].name for index in header.profiles[found.class_index].blocks),
        epsilon=None if header.policy.classes[found.class_index].public else run.epsilon(found),
        carried=from_micro(admit.carried_micro),
        releases=() if occurrences == 0 else _touched(run, windows, found.class_index),
    )


def _touched(run: Replay, windows: Collection[Charge], place: int) -> tuple[TouchedRelease, ...]:
    recorded = [item.leaf for item in run.releases.recorded]
    parts = tuple(part.name for part in artifacts(run.header) if part.influenced_by[place]) if recorded else ()
    return tuple(
        TouchedRelease(leaf.seq, leaf.time, leaf.step, leaf.manifest_digest, parts)
        for leaf in recorded
        if parts and any(window.seq < leaf.seq for window in windows)
    )
