"""Naive transcription of the random streams: one AES block at a time, one Bernoulli draw at a time, Box-Muller by formula."""

import hashlib
import hmac
import math
from fractions import Fraction

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def stream_key(purpose: str, run: bytes, attempt: int, master: bytes) -> bytes:
    label = b"dptrain.keystream/1\x00" + purpose.encode() + b"\x00" + run + attempt.to_bytes(8, "big")
    return hmac.new(master, label, hashlib.sha256).digest()


def block(key: bytes, step: int, lane: int, index: int) -> bytes:
    counter = step.to_bytes(4, "big") + lane.to_bytes(4, "big") + index.to_bytes(8, "big")
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counter)


def normals(key: bytes, step: int, lane: int, count: int) -> list[float]:
    out: list[float] = []
    for pair in range((count + 1) // 2):
        raw = block(key, step, lane, pair)
        w0, w1 = (int.from_bytes(raw[i : i + 8], "little") for i in (0, 8))
        fine = (w0 << 10) | ((w1 & 2047) >> 1)  # 74 bits
        x = (fine + 1) * 2.0**-75
        if x < 2.0**-21:
            more = block(key, step, lane + 2**31, pair)
            x += (int.from_bytes(more[:8], "little") >> 11) * 2.0**-128
        radius = math.sqrt(-2.0 * (math.log1p(-x) if w1 & 1 else math.log(x)))
        angle = 2.0 * math.pi * (w1 >> 11) * 2.0**-53
        out += [radius * math.cos(angle), radius * math.sin(angle)]
    return out[:count]


def draw(key: bytes, step: int, rates: list[Fraction]) -> list[int]:
    chosen = []
    for slot, rate in enumerate(rates):
        raw = block(key, step, 0, slot // 2)
        word = int.from_bytes(raw[8 * (slot % 2) : 8 * (slot % 2) + 8], "little")
        if rate == 1 or word < int(rate * 2**64):
            chosen.append(slot)
    return chosen
