"""Evidence against a log: two checkpoints that it signed, and what shows that no one history has both.

A file of text, for publication: whoever has the log's key can check it, and needs neither ledger nor export::

    dptrain-ledger-evidence-v1
    prefix <base64>          root that the later tree gives its first leaves, as many as the earlier one has; and
    <base64>                 the consistency proof from there to the later root (RFC 6962, 2.1.2), a hash a line.
                             Both are left out where the sizes are equal, or the checkpoint offered is the smaller one
    <checkpoint note remembered>

    <checkpoint note offered>

after an empty line each. A checkpoint's text has no empty line, so the parts cannot be mistaken.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from attest.schema.plain import read_base64
from ledger.errors import ProofError
from ledger.merkle import HASH_SIZE, verify_consistency
from ledger.note import MAX_NOTE_SIZE, Checkpoint, open_note, parse_checkpoint

HEADER: Final = "dptrain-ledger-evidence-v1"
"""First line of an evidence file."""

MAX_EVIDENCE_SIZE: Final = 2 * MAX_NOTE_SIZE + 8_192
"""Longest evidence file that is looked at, in bytes."""

Kind = Literal["FORK", "ROLLBACK"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two checkpoints of one log.

    Attributes:
        remembered: the note that was seen first.
        offered: the note that was seen after it.
        prefix: where the note offered is of the larger tree, the root of that tree's first leaves, as many as the remembered
            one has; else None.
        proof: the consistency proof from ``prefix`` to the root offered; else empty.
    """

    remembered: bytes
    offered: bytes
    prefix: bytes | None = None
    proof: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        """Returns the file."""
        lines = [HEADER]
        if self.prefix is not None:
            lines += [f"prefix {_base64(self.prefix)}", *map(_base64, self.proof)]
        return "\n".join(lines).encode() + b"\n\n" + self.remembered + b"\n" + self.offered


@dataclass(frozen=True, slots=True)
class Judgement:
    """What evidence shows.

    Attributes:
        kind: FORK, two histories under the log's own signature; or ROLLBACK, a smaller tree offered after a larger one,
            which an old copy does too.
        remembered: the checkpoint that was seen first.
        offered: the one that was seen after it.
    """

    kind: Kind
    remembered: Checkpoint
    offered: Checkpoint


def parse_evidence(data: bytes) -> Evidence:
    """Reads an evidence file; raises ProofError if it is malformed."""
    if type(data) is not bytes or len(data) > MAX_EVIDENCE_SIZE:
        raise ProofError("EVIDENCE_SIZE", f"an evidence file has at most {MAX_EVIDENCE_SIZE} bytes")
    parts = data.split(b"\n\n")
    header, *lines = parts[0].decode("ascii", "replace").split("\n")
    if header != HEADER or len(parts) != 5:
        raise ProofError("EVIDENCE_FORMAT", f"expected {HEADER!r}, perhaps a prefix and a proof, and two checkpoint notes")
    prefix = None
    if lines:
        word, _, root = lines.pop(0).partition(" ")
        prefix = _hash(root if word == "prefix" else "")
    return Evidence(
        remembered=parts[1] + b"\n\n" + parts[2] + b"\n",
        offered=parts[3] + b"\n\n" + parts[4],
        prefix=prefix,
        proof=tuple(map(_hash, lines)),
    )


def judge(evidence: Evidence, log_keys: Sequence[str]) -> Judgement:
    """Says what evidence shows, believing nothing of it that the log's key does not confirm.

    Guarantee:
        FORK is returned only if a key given signed two checkpoints of one origin whose trees differ in a leaf that both have.

    Raises:
        NoteError: a note is not signed by the log's key.
        ProofError: the two checkpoints are of different logs, or nothing shows that they disagree.
    """
    remembered, offered = (parse_checkpoint(open_note(note, log_keys).text) for note in (evidence.remembered, evidence.offered))
    if remembered.origin != offered.origin:
        raise ProofError("EVIDENCE_ORIGIN", f"the checkpoints are of {remembered.origin!r} and of {offered.origin!r}")
    if offered.size < remembered.size:
        return Judgement("ROLLBACK", remembered, offered)
    prefix = offered.root if offered.size == remembered.size else evidence.prefix
    if prefix is None or prefix == remembered.root:
        raise ProofError("NO_EVIDENCE", "nothing here shows that the two checkpoints disagree")
    verify_consistency(remembered.size, offered.size, evidence.proof, prefix, offered.root)
    return Judgement("FORK", remembered, offered)


def _hash(text: str) -> bytes:
    found = read_base64(text)
    if found is None or len(found) != HASH_SIZE:
        raise ProofError("EVIDENCE_FORMAT", f"expected the base64 of {HASH_SIZE} bytes, got {text!r:.60}")
    return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
