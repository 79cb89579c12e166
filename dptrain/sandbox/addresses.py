"""Random numbers that are a function of their address, for the forward passes of private microbatches.

An address says whose number it is (step, contribution, example) and what for (module, draw, position). Nothing else enters:
neither who else was drawn, nor where in a microbatch a row lies, nor how far a generator has moved. The numbers are the words
of ChaCha20 (RFC 8439, section 2.3) under a key made of a public seed. They need not be secret (docs/mechanism, Theorem 14);
ChaCha20 is taken because it is at hand on every device, to the bit.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dptrain.noise.keystream import WORDS, chacha_blocks

SEED_BYTES = 16
_NONCE = 12
_TAG = 16
_SHARED = b"everybody"
_LEVELS = 1 << 16
_HALF_BITS = {torch.bfloat16: 8, torch.float16: 11}
"""Bits of a uniform number in these types, as torch has them."""


def forward_seed() -> bytes:
    """The seed of a run that begins: a function of that of torch's generator, which is left where it stands."""
    return hashlib.sha256(b"dptrain.seed/1" + torch.initial_seed().to_bytes(8, "little")).digest()[:SEED_BYTES]


def owner_tag(step: int, owner: bytes) -> bytes:
    """The part of an address that says whose number it is."""
    return hashlib.blake2b(step.to_bytes(8, "little") + owner, digest_size=_TAG, person=b"dptrain.owner").digest()


def shared_tag(step: int) -> bytes:
    """The owner of a number that everybody shares in a step."""
    return owner_tag(step, _SHARED)


def place_tag(path: str, nth: int) -> bytes:
    """The part of an address that says what a number is for: the module that draws, and its n-th draw in a microbatch."""
    return hashlib.blake2b(nth.to_bytes(8, "little") + path.encode(), digest_size=_TAG, person=b"dptrain.place").digest()


class Numbers:
    """Words, and numbers made of them, under one public seed.

    Guarantee: what a row gets is a function of (seed, tag of its owner, tag of the place, position within the row) alone, and
    the same on every device.

    Args:
        seed: 16 bytes, public.
    """

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed of a forward pass has {SEED_BYTES} bytes, got {len(seed)}")
        self.seed = seed
        self._key = hashlib.sha256(b"dptrain.forward/1\x00" + seed).digest()

    def words(self, owners: Sequence[bytes], place: bytes, count: int, device: torch.device) -> torch.Tensor:
        """Random words of one draw.

        Args:
            owners: a tag per row. place: tag of the draw. count: words per row.

        Returns:
            int32, shape (rows, count), on ``device``.
        """
        nonces = [hashlib.blake2b(owner + place, digest_size=_NONCE).digest() for owner in owners]
        blocks = -(-count // WORDS)
        if device.type != "cpu":
            return chacha_blocks(self._key, nonces, blocks, device)[:, :count]
        out = np.empty((len(nonces), blocks * 4 * WORDS), dtype=np.uint8)
        zeros = memoryview(bytes(out.shape[1]))
        for row, nonce in zip(out, nonces, strict=True):
            Cipher(algorithms.ChaCha20(self._key, bytes(4) + nonce), mode=None).encryptor().update_into(zeros, row)
        return torch.from_numpy(out.view(np.int32))[:, :count]

    def values(
        self, kind: str, parameters: tuple[float, ...], dtype: torch.dtype, owners: Sequence[bytes], place: bytes, count: int,
        device: torch.device,
    ) -> torch.Tensor:  # fmt: skip
        """Numbers of one draw in their standard form; shape (rows, count).

        Args:
            kind: ``keep`` (booleans, true with probability ``parameters[0]`` rounded to a multiple of 2^-16), ``uniform`` on
                [0, 1), ``normal``, ``exponential`` (mean 1), or ``integer`` (from ``parameters[0]`` to below
                ``parameters[1]``). dtype: of the numbers, for the kinds that are real numbers.
        """
        if kind == "keep":
            level = keep_level(parameters[0])
            halves = self.words(owners, place, -(-count // 2), device).view(torch.int16)[:, :count]
            return torch.ones_like(halves, dtype=torch.bool) if level == _LEVELS else halves < level - _LEVELS // 2
        if kind == "integer":
            low, high = int(parameters[0]), int(parameters[1])
            return _wide(self.words(owners, place, 2 * count, device)).remainder_(high - low).add_(low)
        if kind == "uniform":
            return self._uniform(dtype, owners, place, count, device)
        real = torch.float64 if dtype == torch.float64 else torch.float32
        if kind == "exponential":
            return self._uniform(real, owners, place, count, device).neg_().log1p_().neg_().to(dtype)
        if kind == "normal":
            pairs = -(-count // 2)
            uniform = self._uniform(real, owners, place, 2 * pairs, device)
            radius = uniform[:, :pairs].neg().log1p_().mul_(-2.0).sqrt_()
            angle = uniform[:, pairs:].mul(2.0 * math.pi)
            return torch.cat((radius * angle.cos(), radius * angle.sin()), 1)[:, :count].to(dtype)
        raise ValueError(f"no random numbers of kind {kind!r}")

    def seed_of(self, owner: bytes, purpose: str) -> int:
        """A seed below 2^63 for generators that know no addresses."""
        tag = hashlib.blake2b(owner + purpose.encode(), key=self._key, digest_size=8, person=b"dptrain.seed").digest()
        return int.from_bytes(tag, "little") >> 1

    def _uniform(
        self, dtype: torch.dtype, owners: Sequence[bytes], place: bytes, count: int, device: torch.device
    ) -> torch.Tensor:
        if dtype == torch.float64:
            return _wide(self.words(owners, place, 2 * count, device)).bitwise_and_((1 << 53) - 1).double().mul_(2.0**-53)
        bits = _HALF_BITS.get(dtype, 24)
        small = self.words(owners, place, count, device) & ((1 << bits) - 1)
        return small.to(torch.float32).mul_(2.0**-bits).to(dtype)


def keep_level(probability: float) -> int:
    """The number of 2^16 equally likely levels at which a mask keeps; its realised rate is this over 65536."""
    return min(_LEVELS, max(0, round(probability * _LEVELS)))


def _wide(words: torch.Tensor) -> torch.Tensor:
    """Pairs of words as int64 numbers of 62 bits, which are 0 or more."""
    low, high = words[:, 0::2].to(torch.int64), words[:, 1::2].to(torch.int64)
    return ((high & ((1 << 30) - 1)) << 32) | (low & ((1 << 32) - 1))
