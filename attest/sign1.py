"""COSE_Sign1 with a detached payload and one fixed header: the only signature format of this project besides notes.

A message is tag 18 around `[protected, {}, nil, signature]` (RFC 9052 section 4.2) with

    protected = {1: -19, 4: key id, 15: {1: issuer, 2: "sha-256:" + hex(SHA-256(payload))}, 16: type}

Algorithm -19 is Ed25519 (RFC 9864), label 15 holds CWT claims (RFC 9597), label 16 the type (RFC 9596).
"""

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from attest import cbor
from attest.errors import CborError, SignatureRefused
from attest.keys import key_id, public_bytes, verify_signature
from attest.keys.signers import Signer, as_signer
from attest.schema.plain import check_id

TYP_ATTESTATION = "application/vnd.dptrain.attestation+cose"
TYP_WITHDRAWAL = "application/vnd.dptrain.withdrawal+cose"
TYP_POLICY = "application/vnd.dptrain.policy+cose"
TYP_REGISTRY = "application/vnd.dptrain.registry+cose"
TYP_KEY = "application/vnd.dptrain.key+cose"
TYP_RELEASE = "application/vnd.dptrain.release+cose"
TYP_PINNED = "application/vnd.dptrain.pinned+cose"
TYP_ANCHOR = "application/vnd.dptrain.anchor+cose"
TYP_RIGHTS = "application/vnd.dptrain.rights+cose"

MAX_SIZE = 1024
"""Bytes of a message; a real one takes about 330."""

_TAG_SIGN1 = b"\xd2"
_ALG_ED25519 = -19


@dataclass(frozen=True, slots=True)
class Headers:
    """Holds what a message says about itself; unverified when it comes from `parse`."""

    issuer: str
    subject: str
    key_id: bytes
    typ: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the one form allowed, not verified yet; `read` makes it."""

    headers: Headers
    protected: bytes
    signature: bytes

    def verify(self, payload: bytes, public_key: bytes | Ed25519PublicKey, *, typ: str) -> Headers:
        """Checks the message over a payload; arguments, guarantee and errors as for the function `verify`."""
        raw = public_bytes(public_key) if isinstance(public_key, Ed25519PublicKey) else public_key
        self._require_for(payload, typ)
        verify_signature(raw, self.signature, to_be_signed(self.protected, payload))
        return self._by(raw)

    def fit(self, payload: bytes, raw: bytes, *, typ: str) -> Headers:
        """Checks all that `verify` checks but the signature, for a message that verified under this key before."""
        self._require_for(payload, typ)
        return self._by(raw)

    def _require_for(self, payload: bytes, typ: str) -> None:
        """Raises SignatureRefused if the header speaks of another payload or another purpose."""
        if type(payload) is not bytes:
            raise SignatureRefused("TYPE", f"payload is {type(payload).__name__}, expected bytes")
        headers = self.headers
        if headers.typ != typ:
            raise SignatureRefused("HEADER", f"message is of type {headers.typ!a}, expected {typ!r}")
        if headers.subject != subject_of(payload):
            raise SignatureRefused("HEADER", "message names another payload; its subject is not this payload's digest")

    def _by(self, raw: bytes) -> Headers:
        """Returns the header, which must name the key."""
        if self.headers.key_id != key_id(raw):
            raise SignatureRefused("HEADER", "key id in the header is not that of the signing key; sign again")
        return self.headers


def subject_of(payload: bytes) -> str:
    """Returns the subject claim for a payload."""
    return "sha-256:" + hashlib.sha256(payload).hexdigest()


def to_be_signed(protected: bytes, payload: bytes) -> bytes:
    """Returns the Sig_structure of RFC 9052 section 4.4, with empty external data."""
    return cbor.encode(["Signature1", protected, b"", payload])


def protected_header(payload: bytes, kid: bytes, contributor: str, typ: str) -> bytes:
    """Returns the header that is signed with a payload."""
    return cbor.encode({1: _ALG_ED25519, 4: kid, 15: {1: contributor, 2: subject_of(payload)}, 16: typ})


def assemble(protected: bytes, signature: bytes) -> bytes:
    """Returns the message of a header and a signature."""
    return _TAG_SIGN1 + cbor.encode([protected, {}, None, signature])


def sign(payload: bytes, key: Signer | Ed25519PrivateKey, *, contributor: str, typ: str = TYP_ATTESTATION) -> bytes:
    """Signs a payload; the message carries its digest, not the payload itself.

    Args:
        contributor: Identifier of the signer; becomes the issuer claim.
        typ: Purpose of the signature; a message of one purpose is refused for every other.

    Raises:
        SignatureRefused: Contributor or payload is of the wrong kind.
        KeyRefused: The signer is unsound, refused, or returned a signature that is not one of its key.
    """
    check_id(contributor, "contributor", error=SignatureRefused)
    if type(payload) is not bytes:
        raise SignatureRefused("TYPE", f"payload is {type(payload).__name__}, expected bytes")
    signer = as_signer(key)
    protected = protected_header(payload, key_id(signer.public_key), contributor, typ)
    return assemble(protected, signer.sign(to_be_signed(protected, payload)))


def verify(message: bytes, payload: bytes, public_key: bytes | Ed25519PublicKey, *, typ: str = TYP_ATTESTATION) -> Headers:
    """Checks a message over a payload.

    Guarantee: on return, the holder of `public_key` signed exactly these payload bytes for the purpose `typ` under the issuer
    name returned. The message has the one header form above and no other field; the signature is checked over the protected
    bytes as received, after they passed the strict decoder. Who may use the issuer's name is for the caller to check.

    Raises:
        CborError: The message is not strict CBOR.
        SignatureRefused: Code HEADER or SIG_BAD.
        KeyRefused: The key is unsound.
    """
    return read(message).verify(payload, public_key, typ=typ)


def parse(message: bytes) -> Headers:
    """Reads the header of a message strictly, without checking its signature. Raises CborError: the message is not strict CBOR;
    SignatureRefused: code HEADER or SIG_BAD (a signature of another length)."""
    return read(message).headers


def peek_issuer(message: bytes) -> str:
    """Returns the issuer that a message claims, not verified: good for looking up a key, for nothing else."""
    return read(message).headers.issuer


def read(message: bytes) -> Message:
    """Reads a message strictly, without checking its signature. Raises CborError: the message is not strict CBOR;
    SignatureRefused: code HEADER or SIG_BAD (a signature of another length)."""
    if type(message) is not bytes:
        raise CborError("TYPE", f"message is {type(message).__name__}, expected bytes")
    if len(message) > MAX_SIZE:
        raise CborError("SIZE", f"message has {len(message)} bytes, expected at most {MAX_SIZE}")
    if message[:1] != _TAG_SIGN1:
        raise SignatureRefused("HEADER", "message does not start with tag 18 (COSE_Sign1)")
    body = cbor.decode(message[1:])
    if type(body) is not list or len(body) != 4:
        raise SignatureRefused("HEADER", "message is not an array of four fields")
    protected, unprotected, payload, signature = body
    if type(protected) is not bytes:
        raise SignatureRefused("HEADER", "protected header is not a byte string")
    if unprotected != {} or type(unprotected) is not dict:
        raise SignatureRefused("HEADER", "unprotected header is not an empty map")
    if payload is not None:
        raise SignatureRefused("HEADER", "payload is attached, expected nil (detached)")
    if type(signature) is not bytes:
        raise SignatureRefused("HEADER", "signature is not a byte string")
    if len(signature) != 64:
        raise SignatureRefused("SIG_BAD", f"signature has {len(signature)} bytes, expected 64")
    return Message(_parse_protected(protected), protected, signature)


def _parse_protected(protected: bytes) -> Headers:
    fields = cbor.decode(protected)
    if type(fields) is not dict or set(fields) != {1, 4, 15, 16}:
        raise SignatureRefused("HEADER", "protected header has other labels than 1, 4, 15 and 16")
    algorithm, kid, claims, typ = fields[1], fields[4], fields[15], fields[16]
    if type(algorithm) is not int or algorithm != _ALG_ED25519:
        raise SignatureRefused("HEADER", f"algorithm is {ascii(algorithm)[:40]}, expected {_ALG_ED25519} (Ed25519)")
    if type(kid) is not bytes or len(kid) != 8:
        raise SignatureRefused("HEADER", "key id is not 8 bytes")
    if type(claims) is not dict or set(claims) != {1, 2}:
        raise SignatureRefused("HEADER", "claims are not exactly issuer (1) and subject (2)")
    issuer, subject = claims[1], claims[2]
    try:
        check_id(issuer, "issuer", error=SignatureRefused)
    except SignatureRefused as error:
        raise SignatureRefused("HEADER", error.sentence) from error
    if type(subject) is not str or type(typ) is not str:
        raise SignatureRefused("HEADER", "subject or type is not a text string")
    return Headers(issuer, subject, kid, typ)
