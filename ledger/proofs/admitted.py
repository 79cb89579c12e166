"""Admission proofs: a contribution is a member of an aggregate of a SUMMARY leaf, also once its ADMIT leaf is gone.

A SUMMARY leaf names nobody. Its proof file shows that it is in the ledger, and this file, beside it, that a contribution was
admitted, where, and under which terms. Handed out before ADMIT leaves go, it is what a contributor shows afterwards, and what a
withdrawal brings. Lines of ASCII::

    dptrain-admitted-v1
    leaf <n>                  position of the SUMMARY leaf
    aggregate <base64>        the aggregate, as the leaf commits to it
    place <n> of <m>          its place among the aggregates of the leaf, from 0, and how many these are
    contribution <hex>        descriptor hash of the member
    admitted <n>              position of its ADMIT leaf
    content <hex>             its content anchor
    path <n>                  how many of the hashes lead to the root over the members; the others to that of the leaf
    <base64>                  a hash a line, both paths from below (RFC 6962, 2.1.1)
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attest.files import read_limited
from attest.schema.plain import read_base64, read_decimal
from ledger.errors import LeafRefused, ProofError
from ledger.leaves import Leaf, Summary
from ledger.merkle import HASH_SIZE, MAX_SIZE, inclusion_proof, verify_inclusion
from ledger.proofs.tlog_proof import MAX_PATH
from ledger.replay import Replay
from ledger.replay.contributions import stand_in_name
from ledger.replay.summaries import Aggregate, Member, ShownMember

HEADER: Final = "dptrain-admitted-v1"
"""First line of such a file."""

MAX_ADMITTED_SIZE: Final = 16_384
"""Longest such file that is looked at, in bytes."""

_WORDS: Final = ("leaf ", "aggregate ", "place ", "contribution ", "admitted ", "content ", "path ")


@dataclass(frozen=True, slots=True)
class Admitted:
    """Holds what such a file says; nothing of it is verified.

    Attributes:
        place: its place among those of the leaf, from 0.
        path: the path from the aggregate to the root that the leaf says.
    """

    leaf: int
    aggregate: Aggregate
    place: int
    places: int
    shown: ShownMember
    path: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Returns the file."""
        member, encoded = self.shown.member, base64.b64encode(self.aggregate.to_bytes()).decode()
        values = (
            self.leaf, encoded, f"{self.place} of {self.places}", member.descriptor_hash.hex(), member.seq,
            member.content_anchor.hex(), len(self.shown.path),
        )  # fmt: skip
        hashes = (base64.b64encode(hash_).decode() for hash_ in (*self.shown.path, *self.path))
        return "\n".join([HEADER, *map("{}{}".format, _WORDS, values), *hashes, ""]).encode()


def parse_admitted(data: bytes) -> Admitted:
    """Reads such a file.

    Guarantee: What is accepted is exactly what `Admitted.to_bytes` of the result writes.

    Raises:
        ProofError: code ADMITTED_FORMAT, the file is malformed.
    """
    if type(data) is not bytes or len(data) > MAX_ADMITTED_SIZE:
        raise ProofError("ADMITTED_FORMAT", f"a file of this kind has at most {MAX_ADMITTED_SIZE} bytes")
    lines = data.decode("ascii", "replace").split("\n")
    if len(lines) < 2 + len(_WORDS) or lines[0] != HEADER or lines[-1]:
        raise ProofError("ADMITTED_FORMAT", f"expected {HEADER!r}, {', '.join(word.strip() for word in _WORDS)}, and hashes")
    leaf, encoded, place, name, seq, anchor, count = (line.partition(" ")[2] for line in lines[1 : 1 + len(_WORDS)])
    hashes = tuple(read_base64(line) or b"" for line in lines[1 + len(_WORDS) : -1])
    if len(hashes) > 2 * MAX_PATH or any(len(hash_) != HASH_SIZE for hash_ in hashes):
        raise ProofError("ADMITTED_FORMAT", f"two paths are at most {2 * MAX_PATH} hashes of {HASH_SIZE} bytes")
    try:
        aggregate = Aggregate.from_bytes(read_base64(encoded) or b"")
        member = Member(bytes.fromhex(name), _number(seq), bytes.fromhex(anchor))
    except (LeafRefused, ValueError) as error:
        raise ProofError("ADMITTED_FORMAT", f"its aggregate or member record is none: {error}") from error
    first, _, places = place.partition(" of ")
    split = _number(count)
    shown = ShownMember(member, hashes[:split])
    found = Admitted(_number(leaf), aggregate, _number(first), _number(places), shown, hashes[split:])
    if found.to_bytes() != data:
        raise ProofError("ADMITTED_FORMAT", "its lines are not those that are written of what they say")
    return found


def read_admitted(path: Path) -> Admitted:
    """Reads such a file from a place. Raises FileRefused: it cannot be read, or is too long to be one; ProofError: code
    ADMITTED_FORMAT, as `parse_admitted`."""
    return parse_admitted(read_limited(path, MAX_ADMITTED_SIZE, "member record"))


def prove_admitted(summary_seq: int, aggregates: Sequence[Aggregate], shown: ShownMember) -> Admitted:
    """Makes the proof of a member. `aggregates`: all to which it commits, in order. Raises ProofError: code NO_LEAF, none of
    them has the member."""
    place = next((place for place, found in enumerate(aggregates) if found.covers(shown.member.seq)), None)
    if place is None:
        raise ProofError("NO_LEAF", f"leaf {summary_seq} does not speak for the ADMIT leaf {shown.member.seq}")
    path = tuple(inclusion_proof([aggregate.to_bytes() for aggregate in aggregates], place))
    return Admitted(summary_seq, aggregates[place], place, len(aggregates), shown, path)


def verify_admitted(proof: Admitted, leaf: Leaf) -> Aggregate:
    """Verifies that a contribution was admitted, and returns the terms under which.

    Guarantee: Returns only if the member record is under the root of the aggregate, at its own place, and the aggregate under
    the root that this leaf says. The leaf is for the caller to prove (`ledger.proofs.tlog_proof.verify_proof`).

    Raises:
        ProofError: it is about another leaf, or no such aggregate or member is there.
    """
    if not isinstance(leaf, Summary) or leaf.seq != proof.leaf:
        raise ProofError("OTHER_LEAF", f"it is about the SUMMARY leaf {proof.leaf}; leaf {leaf.seq} is not that one")
    verify_inclusion(proof.aggregate.to_bytes(), proof.place, proof.places, proof.path, leaf.set_root)
    try:
        proof.aggregate.require_member(proof.shown.member, proof.shown.path)
    except LeafRefused as error:
        raise ProofError(error.code, error.sentence) from error
    return proof.aggregate


def shows_member(run: Replay, proof: Admitted) -> bool:
    """Tells whether a member record is under a SUMMARY leaf of a replayed run; one of another run is under none."""
    summary = next((leaf for leaf in run.tally.summaries if leaf.seq == proof.leaf), None)
    try:
        return summary is not None and bool(verify_admitted(proof, summary))
    except ProofError:
        return False


def name_member(run: Replay, proof: Admitted) -> bool:
    """Names who stayed in a run, and whose admission is gone, as its member record shows; tells whether it does.

    Guarantee: Nobody is named whom the record does not show under a SUMMARY leaf of this run. One of another run names nobody.

    Args:
        run: the replayed run; what it says of the contribution is from then on found under its descriptor hash.
    """
    found = run.contributions.get(stand_in_name(proof.shown.member.seq))
    if found is None or not shows_member(run, proof):
        return False
    run.register.name(found, proof.shown.member.descriptor_hash)
    return True


def _number(text: str) -> int:
    found = read_decimal(text)
    if found is None or found >= MAX_SIZE:
        raise ProofError("ADMITTED_FORMAT", f"expected a decimal below 2^63 without leading zeros, got {text!r:.60}")
    return found
