"""Proof files: a leaf is in a tree that a log signed and auditors cosigned, shown offline by one text file.

Format: C2SP tlog-proof, ``c2sp.org/tlog-proof@v1``. The file's ``extra`` line, which the format leaves to the application,
holds the leaf itself, so that a contributor keeps one file; it is nothing but bytes until it hashes to its place under the
signed root. An inclusion proof holds for other (index, size) pairs too, so the size comes from the signed checkpoint and the
index must be the sequence number inside the leaf.
"""

import base64
from dataclasses import dataclass
from typing import Final

from attest.schema.plain import read_base64, read_decimal
from ledger.errors import ProofError
from ledger.leaves import Leaf, decode_leaf
from ledger.merkle import HASH_SIZE, MAX_SIZE, verify_inclusion
from ledger.note import MAX_NOTE_SIZE
from ledger.proofs.prover import Node, inclusion_proof
from ledger.trust import TrustedCheckpoint, TrustPolicy

HEADER: Final = "c2sp.org/tlog-proof@v1"
"""First line of a proof file."""

SUFFIX: Final = ".tlog-proof"
"""Ends the names of proof files."""

MAX_PATH: Final = 63
"""Hashes in the longest path: trees have less than 2^63 leaves."""

MAX_EXTRA: Final = 65_535
"""Longest extra data that is looked at, in bytes: a leaf is no longer (C2SP tlog-tiles, "Log entries")."""

MAX_PROOF_SIZE: Final = MAX_NOTE_SIZE + 2 * MAX_EXTRA
"""Longest proof file that is looked at, in bytes."""


@dataclass(frozen=True, slots=True)
class TlogProof:
    """Holds what a proof file says; nothing of it is verified. `extra`: what the file carries beside, here the leaf; None
    without it."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: bytes
    extra: bytes | None = None

    def to_bytes(self) -> bytes:
        """Returns the file."""
        lines = [HEADER]
        if self.extra is not None:
            lines.append(f"extra {_base64(self.extra)}")
        lines += [f"index {self.index}", *map(_base64, self.hashes), "", ""]
        return "\n".join(lines).encode() + self.checkpoint


@dataclass(frozen=True, slots=True)
class ProvenLeaf:
    """Holds a leaf that is in the tree of a checkpoint that a policy accepts, and who cosigned that."""

    leaf: Leaf
    data: bytes
    trusted: TrustedCheckpoint


def make_proof(node: Node, index: int, size: int, checkpoint: bytes, leaf: bytes) -> TlogProof:
    """Makes the proof of a leaf, from the nodes of the tree of the size that the checkpoint signs."""
    return TlogProof(index, tuple(inclusion_proof(node, index, size)), checkpoint, leaf)


def parse_proof(data: bytes) -> TlogProof:
    """Reads a proof file.

    Guarantee: What is accepted is exactly what `TlogProof.to_bytes` of the result writes.

    Raises:
        ProofError: the file is malformed.
    """
    if type(data) is not bytes or len(data) > MAX_PROOF_SIZE:
        raise ProofError("PROOF_SIZE", f"a proof file has at most {MAX_PROOF_SIZE} bytes")
    head, blank, checkpoint = data.partition(b"\n\n")
    if not head.isascii() or not blank or not checkpoint:
        raise ProofError("PROOF_FORMAT", "a proof file is ASCII lines, an empty line, and a checkpoint")
    header, *lines = head.decode().split("\n")
    if header != HEADER:
        raise ProofError("PROOF_FORMAT", f"a proof file begins with the line {HEADER!r}, got {header!r:.60}")
    extra = None
    if lines and lines[0].startswith("extra "):
        extra = _bytes(lines.pop(0)[len("extra ") :], "the extra data")
    if extra is not None and len(extra) > MAX_EXTRA:
        raise ProofError("PROOF_FORMAT", f"the extra data has {len(extra)} bytes, expected at most {MAX_EXTRA}")
    index = _index(lines)
    hashes = tuple(_bytes(line, "a hash of the path") for line in lines[1:])
    if len(hashes) > MAX_PATH or any(len(hash_) != HASH_SIZE for hash_ in hashes):
        raise ProofError("PROOF_FORMAT", f"a path is at most {MAX_PATH} hashes of {HASH_SIZE} bytes")
    return TlogProof(index, hashes, checkpoint, extra)


def verify_proof(data: bytes, policy: TrustPolicy, *, leaf: bytes | None = None, now: int | None = None) -> ProvenLeaf:
    """Verifies a proof file offline.

    Guarantee: Returns only if the leaf is, unchanged and at the position that it states itself, in the tree that a log of the
    policy signed and a quorum of its witnesses cosigned.

    Args:
        leaf: the leaf, for files that do not carry it; where both are given they must be equal.
        now: the reader's clock, POSIX seconds; that of this machine without. A cosignature counts only if its time lies between
            that of the leaf and this. (Of a leaf whose time a later CLOCK leaf took back none may count before that time; then
            an audit of the export shows what this file cannot.)

    Raises:
        ProofError: the file is malformed, carries no leaf, or does not prove it.
        LeafRefused: the leaf is none of this version.
        NoteError, TrustError, LedgerWrongRun: as `TrustPolicy.open_checkpoint`.
    """
    proof = parse_proof(data)
    if leaf is None and proof.extra is None:
        raise ProofError("NO_LEAF", "the proof file does not carry its leaf; give the leaf with it")
    if None not in (leaf, proof.extra) and leaf != proof.extra:
        raise ProofError("OTHER_LEAF", "the proof file carries another leaf than the one given")
    entry = (proof.extra or b"") if leaf is None else leaf
    trusted = policy.open_checkpoint(proof.checkpoint, now=now)
    checkpoint = trusted.checkpoint
    verify_inclusion(entry, proof.index, checkpoint.size, proof.hashes, checkpoint.root)
    decoded = decode_leaf(entry)
    trusted = policy.judged_since(trusted, decoded.time)
    if decoded.seq != proof.index:
        raise ProofError("SEQ", f"the leaf states position {decoded.seq}, the proof is for position {proof.index}")
    return ProvenLeaf(decoded, entry, trusted)


def _index(lines: list[str]) -> int:
    word, _, decimal = lines[0].partition(" ") if lines else ("", "", "")
    index = read_decimal(decimal)
    if word != "index" or index is None or index >= MAX_SIZE:
        raise ProofError("PROOF_FORMAT", "a line 'index <n>' follows, a decimal below 2^63 without leading zeros")
    return index


def _bytes(text: str, what: str) -> bytes:
    found = read_base64(text)
    if found is None:
        raise ProofError("PROOF_FORMAT", f"{what} is not canonical base64: {text!r:.60}")
    return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
