"""Keyed random bytes addressed by position: the only source of randomness that privacy rests on.

AES-256 in counter mode (NIST SP 800-38A, section 6.5) is read at an address (purpose, step, tensor, offset), so a draw
does not depend on rank, sharding or the order in which draws are made, and no byte is ever used for two of them.
"""

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = 16
_ZEROS = bytes(1 << 20)
_MAX_STEP = 1 << 32
_MAX_LANE = 1 << 32


@dataclass(frozen=True)
class Keyed:
    """A 256-bit key for one purpose in one attempt of one run, derived from a master by HMAC-SHA-256.

    Guarantee: purpose, run and attempt each change the key; it is never pickled, copied, shown, or used in a forked process.
    """

    purpose: str
    run: bytes
    attempt: int
    master: bytes = field(repr=False)
    _key: bytes = field(init=False, repr=False)
    _process: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.master) != 32:
            raise ValueError(f"a master key has 32 bytes, got {len(self.master)}")
        label = b"dptrain.keystream/1\x00" + self.purpose.encode() + b"\x00" + self.run + self.attempt.to_bytes(8, "big")
        object.__setattr__(self, "_process", os.getpid())
        object.__setattr__(self, "_key", hmac.new(self.master, label, hashlib.sha256).digest())

    @staticmethod
    def fresh_master() -> bytes:
        """32 bytes from the operating system; never written to disk for noise."""
        return os.urandom(32)

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a key stream belongs to the process that made it; it is not read in a forked one")

    def __reduce__(self) -> NoReturn:
        """A key stream is never written anywhere."""
        raise TypeError("a key stream cannot be pickled or copied: its key must not leave the process")


@dataclass(frozen=True)
class KeyStream(Keyed):
    """Random bytes that are a function of (key, purpose, run, attempt, step, lane, block).

    The 128-bit AES counter is ``step (32 bits) | lane (32 bits) | block (64 bits)``; purpose, run and attempt enter the key.
    A lane is a tensor (noise) or a pool (sampling).

    Guarantee: two different addresses never share a cipher block, so no random byte is used twice within an attempt;
    a new attempt has a fresh master from the operating system, so re-executed steps never see old noise.
    """

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        """``blocks`` 16-byte blocks of the stream of (step, lane), from ``first_block`` on.

        Raises:
            ValueError: an address outside 32-bit step or lane, or a block range outside 64 bits.
            RuntimeError: read in a forked process, where the same bytes could be used twice.
        """
        self._require_own_process()
        if not 0 <= step < _MAX_STEP or not 0 <= lane < _MAX_LANE:
            raise ValueError(f"address outside the stream: step {step}, lane {lane}; both must be below 2^32")
        if first_block < 0 or blocks < 0 or first_block + blocks > 1 << 64:
            raise ValueError(f"block range [{first_block}, {first_block + blocks}) is outside the stream")
        counter = step.to_bytes(4, "big") + lane.to_bytes(4, "big") + first_block.to_bytes(8, "big")
        encryptor = Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()
        size = blocks * BLOCK_BYTES
        return encryptor.update(memoryview(_ZEROS)[:size] if size <= len(_ZEROS) else bytes(size))
