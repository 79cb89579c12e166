"""Anchor records: what stays of a contribution that has left its run when the body of its ADMIT leaf is pruned.

A record holds what later leaves can be judged by, and the content anchor, by which whoever has content and nonce finds what
became of it; and nothing that leads to a person: neither attestation nor key id, and without the 16 random bytes of the nonce
an anchor tells nothing, not even to who guesses the content. From it
the replay restores bounds and class at the place of the ADMIT leaf, and so counts and roots of the pools, every charge, and
the epsilon spent, exactly as from the leaf. SUMMARY leaves commit to the records by a root over the sorted set.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

from attest import cbor
from attest.errors import AttestError
from ledger.errors import LeafRefused
from ledger.leaves import Admit, checks
from ledger.merkle import root as merkle_root

MAX_RECORD_SIZE = 256
"""Longest encoded record, in bytes."""


@dataclass(frozen=True, slots=True)
class AnchorRecord:
    """A contribution that was withdrawn, and whose group had its row in a SPEND leaf since.

    The order of the fields is the wire format: a CBOR array.

    Attributes:
        descriptor_hash: SHA-256 of its descriptor.
        class_index: place of its class in the policy.
        first_seq: position of its ADMIT leaf.
        last_seq: position of its WITHDRAW leaf.
        spent_micro: the epsilon that the row of its group records, in 1e-6; null in a public class.
        clip_micro: clip norm that it signed, in 1e-6.
        sigma_micro: noise multiplier that it signed, in 1e-6.
        max_occurrences: its cap, 0 for none.
        carried_micro: what it had spent in earlier runs, in 1e-6.
        max_epsilon_micro: most that it might spend over all runs, in 1e-6; 0 for no limit.
        max_delta_pico: the delta of that limit, in 1e-12; 0 for no limit.
        content_anchor: of its content and nonce (`attest.commitments.commit_content`), as in its ADMIT leaf.
    """

    descriptor_hash: bytes
    class_index: int
    first_seq: int
    last_seq: int
    spent_micro: int | None
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    carried_micro: int
    max_epsilon_micro: int
    max_delta_pico: int
    content_anchor: bytes

    def __post_init__(self) -> None:
        checks.octets(self.descriptor_hash, "descriptor hash", 32)
        checks.uint(self.class_index, "class of an anchor")
        checks.uint(self.first_seq, "first leaf of an anchor", low=1)
        checks.uint(self.last_seq, "last leaf of an anchor", low=self.first_seq + 1)
        if self.spent_micro is not None:
            checks.uint(self.spent_micro, "epsilon of an anchor")
        for name in ("clip_micro", "sigma_micro", "max_occurrences", "carried_micro"):
            checks.uint(getattr(self, name), f"{name} of an anchor")
        checks.limit(self.max_epsilon_micro, self.max_delta_pico)
        checks.octets(self.content_anchor, "content anchor", 32)

    def to_bytes(self) -> bytes:
        """Returns the record as it is hashed and exported."""
        return cbor.encode(list(astuple(self)))

    @classmethod
    def from_bytes(cls, data: bytes) -> "AnchorRecord":
        """Inverse of `to_bytes`; raises LeafRefused for anything else."""
        if len(data) > MAX_RECORD_SIZE:
            raise LeafRefused("SIZE", f"an anchor record has at most {MAX_RECORD_SIZE} bytes, got {len(data)}")
        try:
            found = cbor.decode(data)
        except AttestError as error:
            raise LeafRefused(error.code, f"an anchor record: {error.sentence}") from error
        if type(found) is not list or len(found) != len(fields(cls)):
            raise LeafRefused("TYPE", f"an anchor record is an array of {len(fields(cls))} fields")
        return cls(*found)

    def admission(self, class_name: str, time: int) -> Admit:
        """Returns an ADMIT leaf that means to the replay what the pruned one did; what only the attestation tells is blank."""
        bounds = (self.clip_micro, self.sigma_micro, self.max_occurrences)
        blank = (bytes(32), bytes(8))
        first = (self.first_seq, time, self.descriptor_hash, class_name, self.class_index)
        limit = (self.carried_micro, self.max_epsilon_micro, self.max_delta_pico)
        return Admit(*first, *bounds, *blank, self.content_anchor, *limit)


def set_root(records: Iterable[AnchorRecord]) -> bytes:
    """Returns the RFC 6962 root over the encoded records, sorted by descriptor hash."""
    return merkle_root([record.to_bytes() for record in sorted(records, key=lambda record: record.descriptor_hash)])
