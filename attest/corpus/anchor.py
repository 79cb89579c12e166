"""Signs and checks content anchors: small records beside a content that lead to its contribution in every ledger.

A ledger knows a contribution by the commitment to its content and by the hash of its descriptor. The record holds both, signed
by the contributor. So whoever has it finds the contribution in an export, without the attestation.

The nonce, which opens the commitment, is in it only where the contributor puts it there. Without the nonce a record is of no
content: nobody confirms a guess of what was contributed, and nobody can show that the record belongs to the file beside it.
With the nonce it confirms exactly one content, to everybody who has that content or guesses it.
"""

import os
from dataclasses import dataclass
from typing import ClassVar, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1, signed_file
from attest.descriptor import ContributionDescriptor
from attest.errors import SignatureRefused, ValueRefused
from attest.keys.signers import Signer
from attest.registry import Contributor, Registry
from attest.schema import declared
from attest.schema.kinds import COMMITMENT, MOMENT, SHA256, octets
from attest.schema.plain import SALT_SIZE, commit_content, utc
from attest.schema.wire import Payload

SUFFIX: Final = ".anchor"
"""The record of content `X` lies in `.X.anchor` beside it, where its contributor names no other place. The dot keeps it from
being taken for data, by the gate and by whoever signs a folder."""


@dataclass(frozen=True, slots=True)
class ContentAnchor(Payload):
    """Anchors a content: what its contributor signs."""

    SCHEMA: ClassVar = "dptrain.anchor/1"
    CDDL: ClassVar = "anchor"
    WHAT: ClassVar = "anchor"
    ERROR: ClassVar = ValueRefused
    content: bytes = declared(
        2,
        COMMITMENT,
        "Commitment to the SHA-256 of the content: field 7 of the descriptor, the anchor of ADMIT leaves and member records.",
    )
    descriptor_hash: bytes = declared(3, SHA256, "SHA-256 of the descriptor.")
    time: int = declared(4, MOMENT, "When it was signed, in seconds since 1970.")
    nonce: bytes | None = declared(
        5,
        octets(SALT_SIZE),
        "What opens the commitment, field 1 of the opening; left out where the record is to be of no content by itself.",
        default=None,
        optional=True,
        secret=True,
    )

    def require_content(self, content_hash: bytes, nonce: bytes | None = None) -> None:
        """Checks that this is the anchor of a content.

        Guarantee: where it returns, `content` commits to this hash: with another content the contributor could not have made
        it, if SHA-256 is collision resistant.

        Raises:
            ValueRefused: Code NONCE, there is none, or another one than in the record; CONTENT_MISMATCH, the content is
                another, or changed since it was signed.
        """
        found = self.nonce or nonce
        if found is None:
            sentence = "the anchor holds no nonce, so nothing shows which content it is of; give the nonce of the attestation"
            raise ValueRefused("NONCE", sentence)
        if nonce is not None and nonce != found:
            raise ValueRefused("NONCE", "the nonce given is not the one in the anchor; leave it out, or give the right anchor")
        if commit_content(content_hash, found) != self.content:
            raise ValueRefused(
                "CONTENT_MISMATCH",
                f"the content with SHA-256 {content_hash.hex()} is not the one of the anchor: it changed since it was signed, "
                "or it is another",
            )


def anchor_of(descriptor: ContributionDescriptor, *, time: int, opened: bool = False) -> ContentAnchor:
    """Returns the anchor of a contribution.

    Args:
        opened: Whether the record holds the nonce. It cannot be taken back: whoever has content and nonce can show for ever
            that this content was contributed, and a guess of a short or predictable content is confirmed.
    """
    signed = descriptor.signed
    return ContentAnchor(signed.content, signed.digest(), time, descriptor.nonce if opened else None)


def sign_anchor(anchor: ContentAnchor, key: Signer | Ed25519PrivateKey, *, issuer: str) -> tuple[bytes, bytes]:
    """Signs an anchor; returns payload and COSE_Sign1 message. `issuer`: of the descriptor: a record tells no name either."""
    payload = anchor.to_cbor()
    return payload, sign1.sign(payload, key, contributor=issuer, typ=sign1.TYP_ANCHOR)


def read_anchor(path: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """Reads payload and signature of an anchor file; neither is verified. Raises FileRefused: code FILE, SIZE or FORMAT."""
    return signed_file.read(path, what="content anchor")


def verify_anchor(payload: bytes, message: bytes, public_key: bytes) -> ContentAnchor:
    """Checks an anchor under one key.

    Guarantee: on return, the holder of `public_key` signed exactly this record, as an anchor and as nothing else. Whether that
    key is of the contributor whose attestation was admitted, a ledger tells by its id (`ledger.views.trace`).

    Raises:
        CborError, SignatureRefused, KeyRefused, ValueRefused: What was refused; code SIG_BAD for another key's signature.
    """
    sign1.verify(message, payload, public_key, typ=sign1.TYP_ANCHOR)
    return ContentAnchor.from_cbor(payload)


def verify_enrolled_anchor(payload: bytes, message: bytes, registry: Registry) -> tuple[ContentAnchor, Contributor]:
    """Checks an anchor under the key of a registry that its message names.

    Guarantee: as for `verify_anchor`, and the key is enrolled for the contributor returned, and was valid and not revoked at
    the time that the record states. That time is the signer's word: a thief of a key may date a record back, and a ledger still
    refuses it unless it pairs commitment and descriptor as the contributor's own attestation does.

    Raises:
        CborError, SignatureRefused, KeyRefused, ValueRefused: What was refused; code KEY_UNKNOWN, no key of the registry has
            that id; KEY_NOT_VALID, it was revoked, or not valid when the record was signed.
    """
    kid = sign1.parse(message).key_id
    holders = [(item, record) for item in registry.contributors for record in item.keys if record.key_id == kid]
    if not holders:
        raise SignatureRefused(
            "KEY_UNKNOWN",
            f"no key of the registry has the id {kid.hex()}, which the anchor names: it is of another registry, or signed by "
            "nobody here",
        )
    last: SignatureRefused | None = None
    for holder, record in holders:
        try:
            anchor = verify_anchor(payload, message, record.raw)
        except SignatureRefused as error:
            last = error
            continue
        if not record.valid(anchor.time):
            why = "revoked" if record.revoked(anchor.time) else "not valid"
            told = f"key {kid.hex()} was {why} at {utc(anchor.time)}, when the anchor says that it was signed"
            raise SignatureRefused("KEY_NOT_VALID", f"{told}; ask the contributor for one signed with a valid key")
        return anchor, holder
    assert last is not None
    raise last
