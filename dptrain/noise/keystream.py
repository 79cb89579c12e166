"""Gives keyed random bytes addressed by position: the only source of randomness that privacy rests on.

A draw is read at an address (purpose, step, tensor, offset), so it does not depend on rank, sharding or the order of draws, and
no byte is used twice. `KeyStream` is AES-256 in counter mode (NIST SP 800-38A, section 6.5), `ChaChaStream` is ChaCha20
(RFC 8439, section 2.3), which a device computes too.
"""

import ctypes
import hashlib
import hmac
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BLOCK_BYTES = 16
ZEROS = bytes(1 << 20)
"""What is encrypted."""
_MAX_STEP = 1 << 32
_MAX_LANE = 1 << 32


@dataclass(frozen=True)
class Keyed:
    """Holds a 256-bit key for one purpose in one attempt of one run, derived from a master by HMAC-SHA-256.

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
        """Returns 32 bytes from the operating system; for noise written to no disk, but in the state of a dense strategy."""
        return os.urandom(32)

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a key stream belongs to the process that made it; it is not read in a forked one")

    def __reduce__(self) -> NoReturn:
        """Refuses: a key stream is pickled nowhere."""
        raise TypeError("a key stream cannot be pickled or copied: its key must not leave the process")


@dataclass(frozen=True)
class KeyStream(Keyed):
    """Gives random bytes that are a function of (key, purpose, run, attempt, step, lane, block).

    The 128-bit AES counter is ``step (32 bits) | lane (32 bits) | block (64 bits)``; purpose, run and attempt enter the key.
    A lane is a tensor (noise) or a pool (sampling).

    Guarantee: two different addresses never share a cipher block, so no random byte is used twice within an attempt;
    a new attempt has a fresh master from the operating system, so re-executed steps never see old noise.
    """

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        """Returns ``blocks`` 16-byte blocks of the stream of (step, lane), from ``first_block`` on.

        Raises:
            ValueError: an address outside 32-bit step or lane, or a block range outside 64 bits.
            RuntimeError: read in a forked process, where the same bytes could be used twice.
        """
        counter = self._counter(step, lane, first_block, blocks)
        encryptor = Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()
        size = blocks * BLOCK_BYTES
        return encryptor.update(memoryview(ZEROS)[:size] if size <= len(ZEROS) else bytes(size))

    @contextmanager
    def running(self, step: int, lane: int, first_block: int, blocks: int) -> Iterator[tuple[int, int] | None]:
        """Gives what kernels read the bytes of `read` by, some at a time and while other threads of the interpreter run: the
        addresses of EVP_EncryptUpdate and of its cipher. None where `evp` is None.

        Raises:
            What `read` raises.
        """
        counter, found = self._counter(step, lane, first_block, blocks), evp()
        if found is None:
            yield None
            return
        cipher = _begun(found, self._key, counter)
        try:
            yield None if cipher is None else (found.update, cipher)
        finally:
            found.library.EVP_CIPHER_CTX_free(cipher)  # which wipes the key from it

    def _counter(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        """Returns the counter of a block, if as many blocks from it on are addresses of the stream."""
        self._require_own_process()
        if not 0 <= step < _MAX_STEP or not 0 <= lane < _MAX_LANE:
            raise ValueError(f"address outside the stream: step {step}, lane {lane}; both must be below 2^32")
        if first_block < 0 or blocks < 0 or first_block + blocks > 1 << 64:
            raise ValueError(f"block range [{first_block}, {first_block + blocks}) is outside the stream")
        return step.to_bytes(4, "big") + lane.to_bytes(4, "big") + first_block.to_bytes(8, "big")


@dataclass(frozen=True)
class Evp:
    """Holds functions of the OpenSSL that the interpreter has loaded: ``update`` is the address of EVP_EncryptUpdate."""

    library: Any
    aes: int
    update: int


@cache
def evp() -> Evp | None:
    """Returns OpenSSL's AES-256 in counter mode, as the interpreter's hashes have loaded it; None where it cannot be had, or
    does not give the bytes that `KeyStream.read` gives by the package cryptography."""
    try:
        import _hashlib

        library = ctypes.CDLL(_hashlib.__file__)  # asked of the module, names are those of the library that it is bound to
        library.EVP_aes_256_ctr.restype = library.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
        library.EVP_CIPHER_CTX_free.argtypes, library.EVP_CIPHER_CTX_free.restype = [ctypes.c_void_p], None
        library.EVP_EncryptInit_ex.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_char_p, ctypes.c_char_p]
        update = ctypes.cast(library.EVP_EncryptUpdate, ctypes.c_void_p).value
        found = Evp(library, library.EVP_aes_256_ctr(), update or 0)
    except (ImportError, AttributeError, OSError):
        return None
    return found if found.aes and found.update and _gives(found) else None


def _begun(found: Evp, key: bytes, counter: bytes) -> int | None:
    """Returns a cipher that begins at a counter; None where OpenSSL has none."""
    cipher = found.library.EVP_CIPHER_CTX_new()
    if cipher and found.library.EVP_EncryptInit_ex(cipher, found.aes, None, key, counter) == 1:
        return int(cipher)
    found.library.EVP_CIPHER_CTX_free(cipher)
    return None


def _gives(found: Evp) -> bool:
    """Tells whether it gives the bytes of the package cryptography, part by part, as the counter passes 2^32 and 2^64 - 1."""
    update = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_char_p, ctypes.c_int)(found.update)
    for first in (0, (1 << 32) - 3, (1 << 64) - 8):
        key, counter = hashlib.sha256(b"%d" % first).digest(), bytes(range(8)) + first.to_bytes(8, "big")
        cipher, written, parts = _begun(found, key, counter), ctypes.c_int(), b""
        for size in (16, 112) if cipher is not None else ():
            room = ctypes.create_string_buffer(size + BLOCK_BYTES)
            right = update(cipher, ctypes.addressof(room), ctypes.addressof(written), ZEROS, size) == 1
            parts += room.raw[: written.value] if right else b""
        if cipher is not None:
            found.library.EVP_CIPHER_CTX_free(cipher)
        if parts != Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(128)):
            return False
    return True


WORDS = 16
"""32-bit words in a block."""

_CONSTANTS = b"expand 32-byte k"
_LOW = (1 << 32) - 1
_SIGN = 1 << 31
_MAX = 1 << 32


@dataclass(frozen=True)
class ChaChaStream(Keyed):
    """Gives random words that are a function of (key, purpose, run, attempt, step, lane, block).

    Words 12 to 15 of the state are ``block (64 bits, low word first), lane, step``: the RFC's counter is the low word of the
    block, its nonce the rest. Purpose, run and attempt enter the key, as in :class:`dptrain.noise.keystream.KeyStream`.

    Guarantee: two different addresses never share a block; a new attempt has a fresh master, so no word is used twice. The
    key lies in the memory of the device while the stream lives, and is overwritten by :meth:`forget`.
    """

    _heads: dict[torch.device, torch.Tensor] = field(init=False, repr=False, default_factory=dict)

    def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
        """Returns the blocks of the stream of (step, lane) at the places ``block``.

        Args:
            block: int64, shape (N,), each 0 or more. step, lane: below 2^32.

        Returns:
            int32, shape (16, N), on the device of ``block``: word w of every block, in the order of the RFC.

        Raises:
            ValueError: an address outside the stream.
            RuntimeError: read in a forked process, where the same words could be used twice.
        """
        self._require_own_process()
        if not 0 <= step < _MAX or not 0 <= lane < _MAX:
            raise ValueError(f"address outside the stream: step {step}, lane {lane}; both must be below 2^32")
        head = self._head(block.device)
        low, high = _signed(block & _LOW), _signed(block >> 32)
        state = torch.empty(WORDS, block.numel(), dtype=torch.int32, device=block.device)
        state[:12] = head
        state[12], state[13] = low, high
        state[14].fill_(_wrapped(lane))
        state[15].fill_(_wrapped(step))
        state = _twenty_rounds(state)
        state[:12] += head
        state[12] += low
        state[13] += high
        state[14] += _wrapped(lane)
        state[15] += _wrapped(step)
        return state

    def forget(self) -> None:
        """Overwrites the key where devices hold it."""
        for head in self._heads.values():
            head.zero_()
        self._heads.clear()

    def _head(self, device: torch.device) -> torch.Tensor:
        """Constants and key, int32, shape (12, 1)."""
        if device not in self._heads:
            with torch.inference_mode(False):  # or it could not be overwritten outside that mode
                words = torch.frombuffer(bytearray(_CONSTANTS + self._key), dtype=torch.int32)
                self._heads[device] = words.to(device).view(12, 1)
        return self._heads[device]


def chacha_blocks(key: bytes, nonces: Sequence[bytes], blocks: int, device: torch.device) -> torch.Tensor:
    """Returns the first blocks of the key stream of every nonce, as RFC 8439, section 2.4 has them with the counter at 0.

    Args:
        key: 32 bytes. nonces: 12 bytes each. blocks: how many of each nonce, below 2^31.

    Returns:
        int32, shape (nonces, 16 * blocks), on ``device``.
    """
    head = torch.frombuffer(bytearray(_CONSTANTS + key), dtype=torch.int32).to(device, non_blocking=True)
    tail = torch.frombuffer(bytearray(b"".join(nonces)), dtype=torch.int32).view(-1, 3).to(device, non_blocking=True)
    start = torch.empty(WORDS, len(nonces), blocks, dtype=torch.int32, device=device)
    start[:12] = head.view(12, 1, 1)
    start[12] = torch.arange(blocks, dtype=torch.int32, device=device)
    start[13:] = tail.T[:, :, None]
    flat = start.view(WORDS, -1)
    made = _twenty_rounds(flat.clone()).add_(flat)
    return made.view(WORDS, len(nonces), blocks).permute(1, 2, 0).reshape(len(nonces), -1)


def _twenty_rounds(state: torch.Tensor) -> torch.Tensor:
    """Makes ten double rounds; works on all columns, then all diagonals, at a time. May use ``state`` up."""
    a, b, c, d = state.view(4, 4, -1)
    spare = torch.empty_like(a)
    for _ in range(10):
        _quarter_round(a, b, c, d, spare)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_round(a, b, c, d, spare)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat((a, b, c, d))


def _quarter_round(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, spare: torch.Tensor) -> None:
    """Makes a quarter round, RFC 8439, section 2.1, in place."""
    a += b
    _xor_and_turn(d, a, 16, spare)
    c += d
    _xor_and_turn(b, c, 12, spare)
    a += b
    _xor_and_turn(d, a, 8, spare)
    c += d
    _xor_and_turn(b, c, 7, spare)


def _xor_and_turn(x: torch.Tensor, other: torch.Tensor, bits: int, spare: torch.Tensor) -> None:
    """Makes ``x ^= other``, turned left by ``bits``; the shift to the right brings the sign along, so it is masked."""
    x ^= other
    torch.bitwise_right_shift(x, 32 - bits, out=spare)
    spare &= (1 << bits) - 1
    x <<= bits
    x |= spare


def _wrapped(word: int) -> int:
    """Returns a 32-bit word as the signed number with the same bits."""
    return (word ^ _SIGN) - _SIGN


def _signed(words: torch.Tensor) -> torch.Tensor:
    """Returns this for int64 numbers below 2^32, as int32."""
    return ((words ^ _SIGN) - _SIGN).to(torch.int32)
