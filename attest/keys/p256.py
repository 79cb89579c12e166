"""Holds ECDSA keys on the curve P-256, which tools of the sigstore family take; everything else here signs with Ed25519.

Files are protected as those of Ed25519 keys are. A public key travels as the 65 bytes of its point, and for other tools in PEM.
Source: SEC 1, 2.3.3 (points); FIPS 186-5, 6.4 (ECDSA).
"""

import os
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from attest.errors import KeyRefused, SignatureRefused
from attest.keys.ed25519 import passphrase_bytes, read_private, write_private

POINT_SIZE: Final = 65
"""Bytes of a public key: `04`, and two coordinates."""

ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Number of points of the curve."""


def generate() -> ec.EllipticCurvePrivateKey:
    """Returns a new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def point(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns the public half of a key."""
    form = serialization.PublicFormat.UncompressedPoint
    return key.public_key().public_bytes(serialization.Encoding.X962, form)


def public_key(raw: bytes) -> ec.EllipticCurvePublicKey:
    """Reads a public key. Raises KeyRefused: code FORMAT, it is no uncompressed point of the curve."""
    try:
        if len(raw) != POINT_SIZE:
            raise ValueError(f"{len(raw)} bytes")
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    except ValueError as error:
        raise KeyRefused("FORMAT", f"expected the 65 bytes of a point of P-256 behind 04, got {raw.hex():.40}") from error


def public_pem(raw: bytes) -> bytes:
    """Returns a public key in PEM, as other tools read it (RFC 5480). Raises KeyRefused: as `public_key`."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return public_key(raw).public_bytes(serialization.Encoding.PEM, form)


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """Returns the signature of a message, with SHA-256, in DER; its second number is the smaller of the two that verify."""
    r, s = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
    return encode_dss_signature(r, min(s, ORDER - s))


def verify(raw: bytes, signature: bytes, message: bytes) -> None:
    """Verifies a signature.

    Guarantee: nobody without the private key makes other bytes out of a signature that verify as well.

    Raises:
        KeyRefused: as `public_key`.
        SignatureRefused: code SIG_BAD, it is of another key or message, or one of the other encodings.
    """
    key = public_key(raw)
    try:
        r, s = decode_dss_signature(signature)
        if s > ORDER // 2 or encode_dss_signature(r, s) != signature:
            raise ValueError("another encoding")
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError) as error:
        raise SignatureRefused("SIG_BAD", "the signature does not verify under the key of P-256 that is named") from error


def save_private_key(
    path: str | os.PathLike[str], key: ec.EllipticCurvePrivateKey, passphrase: str | bytes | None = None
) -> None:
    """Writes a private key (PKCS#8), readable by its owner alone, never over an existing file. Raises KeyRefused: as that of
    `attest.keys`."""
    secret = passphrase_bytes(passphrase)
    protection = serialization.BestAvailableEncryption(secret) if secret else serialization.NoEncryption()
    write_private(path, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))


def load_private_key(
    path: str | os.PathLike[str], passphrase: str | bytes | None = None
) -> ec.EllipticCurvePrivateKey:
    """Reads what `save_private_key` writes. Raises KeyRefused: code FILE, MODE (others may read the file), PASSPHRASE or
    FORMAT."""
    shown = repr(os.fspath(path))
    data = read_private(path, shown)
    try:
        key = serialization.load_pem_private_key(data, passphrase_bytes(passphrase))
    except TypeError as error:
        wanted = "is encrypted; give its passphrase" if passphrase is None else "is not encrypted; give no passphrase"
        raise KeyRefused("PASSPHRASE", f"{shown} {wanted}") from error
    except (UnsupportedAlgorithm, ValueError) as error:
        if passphrase is not None and b"ENCRYPTED" in data:
            raise KeyRefused("PASSPHRASE", f"the passphrase of {shown} is another, or the file is damaged") from error
        raise KeyRefused("FORMAT", f"{shown} is not a readable private key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise KeyRefused("FORMAT", f"{shown} holds a {type(key).__name__}, expected a key of P-256")
    return key
