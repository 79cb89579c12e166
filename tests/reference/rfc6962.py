"""A word-for-word transcription of RFC 6962, section 2.1: recursive, slow, and what the fast code must equal."""

import hashlib


def mth(d: list[bytes]) -> bytes:
    """2.1: MTH({}) = SHA-256(); MTH({d0}) = SHA-256(0x00 || d0); else SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n]))."""
    n = len(d)
    if n == 0:
        return hashlib.sha256(b"").digest()
    if n == 1:
        return hashlib.sha256(b"\x00" + d[0]).digest()
    k = split(n)
    return hashlib.sha256(b"\x01" + mth(d[:k]) + mth(d[k:])).digest()


def path(m: int, d: list[bytes]) -> list[bytes]:
    """2.1.1: PATH(m, D[n])."""
    n = len(d)
    if n == 1:
        return []
    k = split(n)
    if m < k:
        return [*path(m, d[:k]), mth(d[k:])]
    return [*path(m - k, d[k:]), mth(d[:k])]


def proof(m: int, d: list[bytes]) -> list[bytes]:
    """2.1.2: PROOF(m, D[n]) = SUBPROOF(m, D[n], true)."""
    return subproof(m, d, True)


def subproof(m: int, d: list[bytes], b: bool) -> list[bytes]:
    """2.1.2: SUBPROOF(m, D[n], b)."""
    n = len(d)
    if m == n:
        return [] if b else [mth(d)]
    k = split(n)
    if m <= k:
        return [*subproof(m, d[:k], b), mth(d[k:])]
    return [*subproof(m - k, d[k:], False), mth(d[:k])]


def split(n: int) -> int:
    """The largest power of two smaller than n."""
    k = 1
    while 2 * k < n:
        k *= 2
    return k
