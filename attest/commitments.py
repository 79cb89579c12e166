"""Salted commitments: what a contributor signs in place of words and contents that an export must not tell."""

import hashlib
from typing import Final

SALT_SIZE: Final = 16
"""Bytes of a salt or nonce: whoever guesses a value has to guess these 128 random bits as well."""

COMMITMENT_SIZE: Final = 32

CONTENT: Final = b"dptrain/commit/content/1\0"
CONTRIBUTOR: Final = b"dptrain/commit/contributor/1\0"
DATA_CLASS: Final = b"dptrain/commit/data-class/1\0"
PRINCIPAL: Final = b"dptrain/commit/principal/1\0"
REGISTRY_CONTRIBUTOR: Final = b"dptrain/commit/registry-contributor/1\0"
REGISTRY_PRINCIPAL: Final = b"dptrain/commit/registry-principal/1\0"
"""Domains: they keep a commitment to one thing from being opened as another."""


def commit(domain: bytes, value: bytes, salt: bytes) -> bytes:
    """Returns SHA-256 of the domain, the value and the salt.

    Guarantee: binding if SHA-256 is collision resistant: the salt has one length, so domain, value and salt can be cut from
    what is hashed in one way. Without the salt it tells nothing of the value, not even to who guesses it (with SHA-256 as a
    random oracle, each guess of the value costs 2^128 guesses of the salt).

    Args:
        domain: One of this module.
        value: What is committed to: the SHA-256 of a content, or an identifier in ASCII; empty where there is none.
        salt: `SALT_SIZE` random bytes.
    """
    return hashlib.sha256(b"".join((domain, value, salt))).digest()


def commit_content(content_hash: bytes, nonce: bytes) -> bytes:
    """Returns the commitment to a content: it stands in descriptors and ledgers, and whoever has content and nonce finds it.

    Args:
        content_hash: SHA-256 of the content.
        nonce: `SALT_SIZE` random bytes.
    """
    return commit(CONTENT, content_hash, nonce)
