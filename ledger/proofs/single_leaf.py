"""Proves single leaves offline: by a proof file, which is text, or by a COSE receipt, which SCITT tools read.

A proof file shows that a leaf is in a tree that a log signed and auditors cosigned. Format: C2SP tlog-proof,
``c2sp.org/tlog-proof@v1``. Its ``extra`` line, which the format leaves to the application, holds the leaf itself, so that a
contributor keeps one file; it is nothing but bytes until it hashes to its place under the signed root. An inclusion proof holds
for other (index, size) pairs too, so the size comes from the signed checkpoint and the index must be the sequence number inside
the leaf.

A receipt is an inclusion proof that the log signs anew, over a tree that it checkpointed. Format: RFC 9942, receipt of
inclusion for RFC9162_SHA256, in one form and no other::

    d2 [ protected, { 396: { -1: [ <<[size, index, path]>> ] } }, nil, signature ]
    protected = { 1: -19, 4: key id, 15: { 1: origin, 2: "sha-256:" + hex(SHA-256(leaf)) },
                  16: "application/vnd.dptrain.receipt+cose", 395: 1, -65537: [size, index] }

The payload, detached, is the root. RFC 9942 signs the root alone: size and index stand in the unprotected header, and one path
and root verify under other sizes and positions. So here the origin (the issuer), size and index are signed too, under a label
of COSE's private range, and the leaf states its index itself. A receipt is derived: what commits a ledger to its history is its
checkpoints, and a receipt has no cosignatures. A tree of one leaf has none: its path would be empty, which RFC 9942 excludes.
"""

import base64
import hashlib
from dataclasses import dataclass
from typing import Any, Final

from attest import cbor, keys, sign1
from attest.errors import AttestError
from attest.schema.plain import read_base64, read_decimal
from ledger.errors import LedgerWrongRun, ProofError, TrustError
from ledger.leaves import Leaf, decode_leaf
from ledger.merkle import HASH_SIZE, MAX_SIZE, leaf_hash, root_of_inclusion, verify_inclusion
from ledger.note import MAX_NOTE_SIZE, Checkpoint, NoteSigner
from ledger.proofs.prover import Node, inclusion_proof
from ledger.trust import NO_QUORUM, TrustedCheckpoint, TrustPolicy

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


TYP_RECEIPT: Final = "application/vnd.dptrain.receipt+cose"
"""Type of the message (RFC 9596), so that it is taken for nothing else."""

MAX_RECEIPT_SIZE: Final = 4_096
"""Longest receipt that is looked at, in bytes; 63 hashes and a long origin take about 2,700."""

_TAG_SIGN1: Final = b"\xd2"
_ALG_ED25519: Final = -19
_VDS, _VDP, _INCLUSION, _PLACE = 395, 396, -1, -65537
_RFC9162_SHA256: Final = 1


@dataclass(frozen=True, slots=True)
class ReceivedLeaf:
    """Holds a leaf that a receipt proves, and the checkpoint of its tree."""

    leaf: Leaf
    data: bytes
    checkpoint: Checkpoint


def make_receipt(signer: NoteSigner, node: Node, index: int, checkpoint: Checkpoint, leaf: bytes) -> bytes:
    """Signs a receipt for a leaf. `checkpoint`: what the log has committed to; only such a tree may be signed. Raises
    ProofError: the tree has one leaf, or the leaf is not in the tree of the checkpoint at this place; LedgerWrongRun: the key
    is of another log."""
    if signer.name != checkpoint.origin:
        raise LedgerWrongRun("WRONG_KEY", f"the checkpoint is of {checkpoint.origin!r}, the key of {signer.name!r}")
    if checkpoint.size < 2:
        raise ProofError("ONE_LEAF", "a tree of one leaf has no receipt (RFC 9942 asks for a path); use a proof file")
    path = inclusion_proof(node, index, checkpoint.size)
    if root_of_inclusion(leaf_hash(leaf), index, checkpoint.size, path) != checkpoint.root:
        raise ProofError("INCLUSION", f"leaf {index} is not in the tree that the checkpoint signs")
    protected = cbor.encode(_protected(signer.verifier.public_key, leaf, checkpoint.origin, checkpoint.size, index))
    proof = cbor.encode([checkpoint.size, index, path])
    signature = signer.private_key.sign(sign1.to_be_signed(protected, checkpoint.root))
    return _TAG_SIGN1 + cbor.encode([protected, {_VDP: {_INCLUSION: [proof]}}, None, signature])


def verify_receipt(data: bytes, leaf: bytes, policy: TrustPolicy) -> ReceivedLeaf:
    """Verifies a receipt offline.

    Guarantee: Returns only if a log of the policy signed, for this leaf, a root, size and index to which the path leads from
    it, and the leaf states that index itself.

    Raises:
        ProofError: the receipt is not of the one form, is for another leaf, or its path leads elsewhere.
        LedgerWrongRun: it is of a log that the policy does not know.
        TrustError: the policy asks for a quorum, which no receipt can show.
        LeafRefused: the leaf is none of this version.
    """
    if policy.quorum != NO_QUORUM:
        raise TrustError("QUORUM", "a receipt carries no cosignatures; ask for the proof file, or trust the log alone")
    protected, proof, signature = _parts(data)
    fields = _map(protected)
    size, index, path = _proof(proof)
    origin = fields.get(15, {}).get(1) if type(fields.get(15)) is dict else None
    named = [key for key in policy.logs if key.name == origin]
    if not named:
        known = ", ".join(sorted(key.name for key in policy.logs))
        raise LedgerWrongRun("ORIGIN", f"the receipt is of {origin!r:.200}, the policy is for {known}")
    log = next((key for key in named if keys.key_id(key.public_key) == fields.get(4)), named[0])
    if protected != cbor.encode(_protected(log.public_key, leaf, log.name, size, index)):
        sentence = "the receipt's header is not that of this leaf, place and log; is it for another leaf?"
        raise ProofError("RECEIPT_HEADER", sentence)
    root = root_of_inclusion(leaf_hash(leaf), index, size, path)
    try:
        keys.verify_signature(log.public_key, signature, sign1.to_be_signed(protected, root))
    except AttestError as error:
        sentence = "the log did not sign the root to which this leaf and path lead"
        raise ProofError("RECEIPT_SIGNATURE", sentence) from error
    decoded = decode_leaf(leaf)
    if decoded.seq != index:
        raise ProofError("SEQ", f"the leaf states position {decoded.seq}, the receipt is for position {index}")
    return ReceivedLeaf(decoded, leaf, Checkpoint(log.name, size, root))


def _protected(public_key: bytes, leaf: bytes, origin: str, size: int, index: int) -> dict[int, Any]:
    return {
        1: _ALG_ED25519,
        4: keys.key_id(public_key),
        15: {1: origin, 2: "sha-256:" + hashlib.sha256(leaf).hexdigest()},
        16: TYP_RECEIPT,
        _VDS: _RFC9162_SHA256,
        _PLACE: [size, index],
    }


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Returns protected header, inclusion proof and signature of a message of the one form."""
    if type(data) is not bytes or len(data) > MAX_RECEIPT_SIZE or data[:1] != _TAG_SIGN1:
        raise ProofError("RECEIPT", f"a receipt is tag 18 (COSE_Sign1), and at most {MAX_RECEIPT_SIZE} bytes")
    body = _decoded(data[1:])
    if type(body) is not list or len(body) != 4:
        raise ProofError("RECEIPT", "a receipt is an array of four fields")
    protected, unprotected, payload, signature = body
    proofs = unprotected.get(_VDP, {}) if type(unprotected) is dict else {}
    stated = proofs.get(_INCLUSION) if type(proofs) is dict else None
    if unprotected != {_VDP: {_INCLUSION: stated}} or type(stated) is not list or len(stated) != 1:
        raise ProofError("RECEIPT", "the unprotected header holds one inclusion proof (396: {-1: [proof]}) and nothing else")
    if payload is not None or [type(part) for part in (protected, stated[0], signature)] != [bytes] * 3:
        raise ProofError("RECEIPT", "header, proof and signature are byte strings, and the payload is nil (detached)")
    return protected, stated[0], signature


def _proof(data: bytes) -> tuple[int, int, list[bytes]]:
    value = _decoded(data)
    if type(value) is not list or [type(part) for part in value] != [int, int, list]:
        raise ProofError("RECEIPT", "an inclusion proof is [size, index, path]")
    size, index, path = value
    if not 1 <= len(path) <= MAX_PATH or any(type(hash_) is not bytes or len(hash_) != HASH_SIZE for hash_ in path):
        raise ProofError("RECEIPT", f"a path is 1 to {MAX_PATH} hashes of {HASH_SIZE} bytes")
    return size, index, path


def _map(data: bytes) -> dict[Any, Any]:
    value = _decoded(data)
    if type(value) is not dict:
        raise ProofError("RECEIPT", "the protected header is not a map")
    return value


def _decoded(data: bytes) -> Any:
    try:
        return cbor.decode(data, max_size=MAX_RECEIPT_SIZE)
    except AttestError as error:
        raise ProofError("RECEIPT", f"a receipt is strict CBOR: {error.sentence}") from error
