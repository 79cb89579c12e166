"""Signs a policy and opens a signed one."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1, signed_file
from attest.errors import AttestError, FileRefused, PolicyRefused
from attest.files import read_limited
from attest.keys.signers import Signer
from attest.policy.mechanism import MAX_FILE
from attest.policy.rules import Policy
from attest.schema.cards import card_of
from attest.schema.plain import check_bytes

ENDING: Final = ".coefficients"
"""Ending of the file with the coefficients of a policy's noise: policy.coefficients beside policy.toml or policy.cose."""


@dataclass(frozen=True, slots=True)
class SignedPolicy:
    """Holds a policy whose signature was checked, its signed bytes, `policy.to_cbor()`, and their SHA-256."""

    policy: Policy
    payload: bytes
    sign1: bytes
    owner: str
    digest: bytes

    _repr_html_ = card_of


def sign_policy(
    policy: Policy, owner_key: Signer | Ed25519PrivateKey, *, owner: str, registry_root: bytes
) -> tuple[bytes, bytes]:
    """Binds a policy to the contributor registry with this root, in place of another, and signs it. Returns payload and message
    for `attest.signed_file.write`."""
    check_bytes(registry_root, "registry_root", 32, error=PolicyRefused)
    payload = replace(policy, registry_root=registry_root).to_cbor()
    return payload, sign1.sign(payload, owner_key, contributor=owner, typ=sign1.TYP_POLICY)


def verify_policy(payload: bytes, message: bytes, owner_public_key: bytes) -> SignedPolicy:
    """Checks a policy's signature, then read it.

    Guarantee: every rule returned was signed, as a policy, by the holder of `owner_public_key`.

    Raises:
        PolicyRefused: With the code of what was refused.
    """
    try:
        headers = sign1.verify(message, payload, owner_public_key, typ=sign1.TYP_POLICY)
    except AttestError as error:
        sentence = f"policy is not signed by the owner's key given: {error.sentence}; check key and file"
        raise PolicyRefused(error.code, sentence) from error
    policy = Policy.from_cbor(payload)
    if policy.registry_root is None:
        raise PolicyRefused("SCHEMA", "policy names no contributor registry; sign it again with the registry's root")
    return SignedPolicy(policy, payload, message, headers.issuer, hashlib.sha256(payload).digest())


def open_policy(path: str | os.PathLike[str], owner_public_key: bytes) -> SignedPolicy:
    """Opens a `.cose` policy file. `owner_public_key`: obtained from the owner by a trusted way. Raises PolicyRefused:
    unreadable, unsigned, signed by another key, or malformed."""
    try:
        payload, message = signed_file.read(path, what="signed policy")
    except FileRefused as error:
        if error.code == "FORMAT" and _is_policy_text(path):
            raise PolicyRefused(
                "UNSIGNED",
                f"{os.fspath(path)!r} is a policy in TOML, which nobody signed; sign it with 'dptrain policy sign'"
                " and give the .cose file",
            ) from error
        raise PolicyRefused(error.code, error.sentence) from error
    signed = verify_policy(payload, message, owner_public_key)
    return replace(signed, policy=with_file(signed.policy, path))


def coefficients_file(path: str | os.PathLike[str]) -> Path:
    """Returns where the coefficients of a policy in this file lie."""
    return Path(path).with_suffix(ENDING)


def with_file(policy: Policy, path: str | os.PathLike[str]) -> Policy:
    """Returns a policy with the coefficients of its noise, where it has their digest and they lie beside its file.

    Raises:
        PolicyRefused: Code `COEFFICIENTS`, others lie there; FILE or SIZE, what lies there cannot be read.
    """
    place = coefficients_file(path)
    if policy.mechanism.digest is None or not place.exists():
        return policy
    try:
        data = read_limited(place, MAX_FILE, "file of coefficients")
        return replace(policy, mechanism=policy.mechanism.with_coefficients(data))
    except FileRefused as error:
        raise PolicyRefused(error.code, error.sentence) from error
    except PolicyRefused as error:
        raise PolicyRefused(error.code, f"{os.fspath(place)!r}: {error.sentence}") from error


def _is_policy_text(path: str | os.PathLike[str]) -> bool:
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read(1 << 16)
    except (OSError, UnicodeDecodeError):
        return False
    return "[[class]]" in text or ("corpus" in text and "=" in text)
