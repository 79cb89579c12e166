"""The content anchor of an admission: who has content and nonce finds where it was admitted, and nobody else learns of it."""

import hashlib
from typing import Final

DOMAIN: Final = b"dptrain/anchor/1\0"
"""Keeps anchors apart from every other hash of this project."""


def content_anchor(content_hash: bytes, nonce: bytes) -> bytes:
    """Returns SHA-256 of the domain, the SHA-256 of the content and the nonce of the descriptor.

    Guarantee: without the 16 random bytes of the nonce it tells nothing of the content, not even to who guesses it.
    """
    return hashlib.sha256(DOMAIN + content_hash + nonce).digest()
