"""ChaCha20 in torch operations on 32-bit integers: keyed random words on whatever device asks for them.

The block function is that of RFC 8439, section 2.3 (Nir and Langley, 2018); its 128 bits of counter and nonce hold an address
of ours. Additions wrap around and shifts are logical, as the RFC wants them; :mod:`dptrain.noise.selftest` refuses a device
on which they do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dptrain.noise.keystream import Keyed

WORDS = 16
"""32-bit words in a block."""

_CONSTANTS = b"expand 32-byte k"
_LOW = (1 << 32) - 1
_SIGN = 1 << 31
_MAX = 1 << 32


@dataclass(frozen=True)
class ChaChaStream(Keyed):
    """Random words that are a function of (key, purpose, run, attempt, step, lane, block).

    Words 12 to 15 of the state are ``block (64 bits, low word first), lane, step``: the RFC's counter is the low word of the
    block, its nonce the rest. Purpose, run and attempt enter the key, as in :class:`dptrain.noise.keystream.KeyStream`.

    Guarantee: two different addresses never share a block; a new attempt has a fresh master, so no word is used twice. The
    key lies in the memory of the device while the stream lives, and is overwritten by :meth:`forget`.
    """

    _heads: dict[torch.device, torch.Tensor] = field(init=False, repr=False, default_factory=dict)

    def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
        """The blocks of the stream of (step, lane) at the places ``block``.

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
    """The first blocks of the key stream of every nonce, as RFC 8439, section 2.4 has them with the counter at 0.

    Args:
        key: 32 bytes. nonces: 12 bytes each. blocks: how many of each nonce, below 2^31.

    Returns:
        int32, shape (nonces, 16 * blocks), on ``device``.
    """
    head = torch.frombuffer(bytearray(_CONSTANTS + key), dtype=torch.int32).to(device)
    tail = torch.frombuffer(bytearray(b"".join(nonces)), dtype=torch.int32).view(-1, 3).to(device)
    start = torch.empty(WORDS, len(nonces), blocks, dtype=torch.int32, device=device)
    start[:12] = head.view(12, 1, 1)
    start[12] = torch.arange(blocks, dtype=torch.int32, device=device)
    start[13:] = tail.T[:, :, None]
    flat = start.view(WORDS, -1)
    made = _twenty_rounds(flat.clone()).add_(flat)
    return made.view(WORDS, len(nonces), blocks).permute(1, 2, 0).reshape(len(nonces), -1)


def _twenty_rounds(state: torch.Tensor) -> torch.Tensor:
    """Ten double rounds; all columns, then all diagonals, are worked on at a time. May use ``state`` up."""
    a, b, c, d = state.view(4, 4, -1)
    spare = torch.empty_like(a)
    for _ in range(10):
        _quarter_round(a, b, c, d, spare)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_round(a, b, c, d, spare)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat((a, b, c, d))


def _quarter_round(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, spare: torch.Tensor) -> None:
    """RFC 8439, section 2.1, in place."""
    a += b
    _xor_and_turn(d, a, 16, spare)
    c += d
    _xor_and_turn(b, c, 12, spare)
    a += b
    _xor_and_turn(d, a, 8, spare)
    c += d
    _xor_and_turn(b, c, 7, spare)


def _xor_and_turn(x: torch.Tensor, other: torch.Tensor, bits: int, spare: torch.Tensor) -> None:
    """``x ^= other``, turned left by ``bits``; the shift to the right brings the sign along, so it is masked."""
    x ^= other
    torch.bitwise_right_shift(x, 32 - bits, out=spare)
    spare &= (1 << bits) - 1
    x <<= bits
    x |= spare


def _wrapped(word: int) -> int:
    """A 32-bit word as the signed number with the same bits."""
    return (word ^ _SIGN) - _SIGN


def _signed(words: torch.Tensor) -> torch.Tensor:
    """The same for int64 numbers below 2^32, as int32."""
    return ((words ^ _SIGN) - _SIGN).to(torch.int32)
