"""Writes and verifies sigstore bundles by a key of P-256: that of OpenSSF model signing, and the manifest's own statement.

A bundle holds a DSSE envelope around an in-toto statement. Payload and bundle are canonical JSON (RFC 8785), so that one
payload and one signature make one file. Source: sigstore bundle v0.3; DSSE v1.0, protocol.md (PAE); in-toto attestation v1;
OpenSSF Model Signing v1.0, as `model-signing` 1.1 writes and reads it.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from attest.errors import AttestError
from attest.keys import p256
from ledger.errors import ReleaseRefused
from ledger.published.facts import Listed

MODEL_SIGNATURE: Final = "model.sig"
MODEL_KEY: Final = "model.pub"
STATEMENT: Final = "release.sigstore.json"
"""Names in the directory of a release: signature over the files and its public key, and the bundle of the manifest."""

MAX_BUNDLE: Final = 1 << 26

_MEDIA: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD: Final = "application/vnd.in-toto+json"
_STATEMENT: Final = "https://in-toto.io/Statement/v1"
_MODEL: Final = "https://model_signing/signature/v1.0"
_RELEASE: Final = "https://dptrain/release/v1"
_GIT: Final = (".git", ".gitattributes", ".github", ".gitignore")


def model_statement(files: Sequence[Listed], name: str, beside: Sequence[str]) -> bytes:
    """Returns the payload of `model.sig`: every file but itself, those in ``beside``, and git's own, which tools leave out.

    Args:
        beside: what comes after it, and so has no digest in it.
    """
    ignored = sorted((*_GIT, MODEL_SIGNATURE, *beside))
    signed = [item for item in files if PurePosixPath(item.path).parts[0] not in ignored]
    signed.sort(key=lambda item: PurePosixPath(item.path).parts)
    whole = hashlib.sha256(b"".join(item.sha256 for item in signed)).hexdigest()
    return canonical(
        {
            "_type": _STATEMENT,
            "subject": [{"name": name, "digest": {"sha256": whole}}],
            "predicateType": _MODEL,
            "predicate": {
                "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": ignored},
                "resources": [{"name": item.path, "algorithm": "sha256", "digest": item.sha256.hex()} for item in signed],
            },
        }
    )


def release_statement(manifest: bytes, path: str, files: Sequence[Listed], predicate: Mapping[str, Any]) -> bytes:
    """Returns the payload of the manifest's bundle: the file of the manifest and every file in it, and what it says of them."""
    subjects = [Listed(path, hashlib.sha256(manifest).digest()), *files]
    return canonical(
        {
            "_type": _STATEMENT,
            "subject": [{"name": item.path, "digest": {"sha256": item.sha256.hex()}} for item in subjects],
            "predicateType": _RELEASE,
            "predicate": predicate,
        }
    )


def sign_bundle(payload: bytes, key: EllipticCurvePrivateKey) -> bytes:
    """Returns a bundle around a payload."""
    return _bundle(payload, p256.sign(key, _pae(payload)), p256.point(key))


def check_bundle(data: bytes, payload: bytes, raw: bytes, path: str) -> None:
    """Refuses a bundle that is not the one around this payload by this key.

    Guarantee: exactly what `sign_bundle` writes is taken; nobody without the private key changes a byte of it.

    Raises:
        ReleaseRefused: code BUNDLE.
    """
    try:
        value = json.loads(data)
        envelope = value["dsseEnvelope"]
        found = base64.b64decode(envelope["payload"], validate=True)
        signature = base64.b64decode(envelope["signatures"][0]["sig"], validate=True)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ReleaseRefused("BUNDLE", f"{path} is no sigstore bundle around a DSSE envelope; get the release again") from error
    if found != payload:
        raise ReleaseRefused("BUNDLE", f"{path} says otherwise than the manifest; get the release again")
    try:
        p256.verify(raw, signature, _pae(payload))
    except AttestError as error:
        raise ReleaseRefused("BUNDLE", f"{path} is not signed by the key that the manifest names: {error.sentence}") from error
    if data != _bundle(payload, signature, raw):
        raise ReleaseRefused("BUNDLE", f"{path} is a bundle in another spelling than 'dptrain release' writes; get it again")


def canonical(value: Any) -> bytes:
    """Returns a value as RFC 8785 has it: texts, whole numbers below 2^53, truth values, null, lists, and names in ASCII."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def _bundle(payload: bytes, signature: bytes, raw: bytes) -> bytes:
    return canonical(
        {
            "mediaType": _MEDIA,
            "verificationMaterial": {
                "publicKey": {"hint": hashlib.sha256(p256.public_pem(raw)).hexdigest()},
                "tlogEntries": [],
            },
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": _PAYLOAD,
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        }
    )


def _pae(payload: bytes) -> bytes:
    """Returns what DSSE signs."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)
