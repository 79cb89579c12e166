"""COSE receipts: an inclusion proof in the form that SCITT tools read, signed anew by the log over a tree that it checkpointed.

Format: RFC 9942, receipt of inclusion for RFC9162_SHA256, in one form and no other::

    d2 [ protected, { 396: { -1: [ <<[size, index, path]>> ] } }, nil, signature ]
    protected = { 1: -19, 4: key id, 15: { 1: origin, 2: "sha-256:" + hex(SHA-256(leaf)) },
                  16: "application/vnd.dptrain.receipt+cose", 395: 1, -65537: [size, index] }

The payload, detached, is the root. RFC 9942 signs the root alone: size and index stand in the unprotected header, and one path
and root verify under other sizes and positions. So here the origin (the issuer), size and index are signed too, under a label
of COSE's private range, and the leaf states its index itself. A receipt is derived: what commits a ledger to its history is its
checkpoints, and a receipt has no cosignatures. A tree of one leaf has none: its path would be empty, which RFC 9942 excludes.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from attest import cbor, keys, sign1
from attest.errors import AttestError
from ledger.errors import LedgerWrongRun, ProofError, TrustError
from ledger.leaves import Leaf, decode_leaf
from ledger.merkle import HASH_SIZE, leaf_hash, root_of_inclusion
from ledger.note import Checkpoint, NoteSigner
from ledger.proofs.prover import Node, inclusion_proof
from ledger.proofs.tlog_proof import MAX_PATH
from ledger.trust import NO_QUORUM, TrustPolicy

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
