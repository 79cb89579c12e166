"""Draws Gaussian noise on the device that holds the sums, after a test that the device computes it rightly."""

import math
from typing import Any

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dptrain.errors import ConfigError
from dptrain.noise.keystream import WORDS, ChaChaStream, Keyed
from dptrain.noise.lattice import SUM_LIMIT, Claims, LatticeGaussian, require_releasable
from dptrain.noise.mechanism import Independent, Source, register_mechanism
from dptrain.noise.normals import TAIL, TAIL_LANE
from ledger.accountants.table import DEVICE, LATTICE_BITS, TABLE

UNITS = 4.0
"""Units in the last place by which log, log1p, sqrt, sin and cos may differ from the processor's."""

_BLOCKS = 1024
_STEP, _LANE = 0xFEDCBA98, 0x89ABCDEF  # with the sign bit, in both
_passed: set[torch.device] = set()


def require_family(family: str) -> None:
    """Refuses noise of a family on the device of the sums, where nothing draws it there.

    Raises:
        ConfigError: code NOISE_GENERATOR, noise of this family is drawn on the processor alone.
    """
    if DEVICE in TABLE[family].generators:
        return
    there = ", ".join(name for name, cost in TABLE.items() if DEVICE in cost.generators)
    raise ConfigError(
        "NOISE_GENERATOR",
        f"noise_generator = 'device' asks for noise on the device, and noise of family {family!r} is drawn on the processor "
        f"alone (on a device: {there}); leave noise_generator at 'host', which releases on any device, or sign a policy with a "
        "family that is drawn there",
    )


def require(device: torch.device) -> None:
    """Tests a device once in the life of the process.

    Raises:
        ConfigError: code NOISE_DEVICE, the device must not draw noise.
    """
    if device in _passed:
        return
    try:
        wrong = _wrong(device)
    except (RuntimeError, TypeError, NotImplementedError) as error:  # no float64, or no 32-bit shifts, say
        wrong = f"it cannot compute what is needed ({str(error).splitlines()[0]})"
    if wrong:
        raise ConfigError(
            "NOISE_DEVICE",
            f"noise cannot be drawn on device {str(device)!r}: {wrong}; leave run.noise_generator at 'host', which draws on "
            "the processor",
        )
    _passed.add(device)


def _wrong(device: torch.device) -> str | None:
    stream = ChaChaStream("selftest", b"", 0, bytes(32))
    first = (1 << 32) - _BLOCKS // 2  # so that the low word of the counter runs over
    block = torch.arange(first, first + _BLOCKS, device=device)
    found = stream.words(_STEP, _LANE, block).cpu()
    if not torch.equal(found, openssl_words(stream, _STEP, _LANE, first, _BLOCKS)):
        return "its ChaCha20 blocks are not those of RFC 8439"
    drawn = found.view(-1).to(torch.float64).abs().add_(0.5).mul_(2.0**-32)  # in (0, 1/2]
    there = drawn.to(device)
    for name, function, argument in (
        ("log", torch.log, 1.0),
        ("log", torch.log, 2.0**-40),
        ("log1p", torch.log1p, -1.0),
        ("log1p", torch.log1p, -(2.0**-40)),
        ("sqrt", torch.sqrt, 1.0),
        ("sin", torch.sin, 4.0 * torch.pi),
        ("cos", torch.cos, 4.0 * torch.pi),
        ("division", lambda x: torch.div(1.0, x), 3.0),
        ("round", torch.round, 2.0**33),
    ):
        here = function(drawn * argument)
        far = (function(there * argument).cpu() - here).abs()
        if not bool((far <= UNITS * 2.0**-52 * here.abs()).all()):
            return f"its float64 {name} is off by more than {UNITS:g} units in the last place"
    return None


def openssl_words(stream: Keyed, step: int, lane: int, first: int, count: int) -> torch.Tensor:
    """Returns the blocks of :meth:`ChaChaStream.words` as OpenSSL makes them: int32, shape (16, count)."""
    blocks = []
    for place in range(first, first + count):  # each with a nonce of its own: its counter has 32 bits
        nonce = place.to_bytes(8, "little") + lane.to_bytes(4, "little") + step.to_bytes(4, "little")
        blocks.append(Cipher(algorithms.ChaCha20(stream._key, nonce), mode=None).encryptor().update(bytes(4 * WORDS)))
    return torch.frombuffer(bytearray(b"".join(blocks)), dtype=torch.int32).view(count, WORDS).T.contiguous()


PER_BLOCK = 8
"""Coordinates made of one block: four pairs of 128 bits."""

BLOCKS = {"cpu": 1 << 15}
"""Blocks per turn: enough work for the call of an operation, and little enough for the caches of a core."""

MOST_BLOCKS = 1 << 19
"""The same on other devices: 2^22 coordinates, for which some 200 MiB are held for a moment."""

_LOW = (1 << 32) - 1


class DeviceGaussian(Independent):
    """Adds N(0, s^2) on the lattice to a clipped sum, on the device of that sum.

    Guarantee: the output of :meth:`release_` is ``gamma/normaliser`` times an integer per coordinate; the noise integer of
    coordinate ``o`` of tensor ``lane`` at ``step`` is a function of (key, step, lane, o) and of how the device rounds log, sin
    and cos, is used once, and comes from ChaCha20 under a key of 256 bits; radii are finer than the lattice, up to 11.7 s.
    Assumption: the float64 functions of the device are within 4 units in the last place (docs/mechanism, Theorem 2), which
    is checked on some thousand arguments of every device before its first release.
    """

    def __init__(self, stream: ChaChaStream) -> None:
        self._stream = stream
        self._claims = Claims()

    def normals(self, step: int, lane: int, offset: int, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Returns standard normals (float64, shape (count,)) of coordinates [offset, offset + count), on ``device``.

        Args:
            step, lane: the address; ``lane`` is the index of a tensor, below 2^31.
        """
        if not 0 <= lane < TAIL_LANE:
            raise ValueError(f"lane {lane} is not the index of a tensor, expected 0 to 2^31 - 1")
        first, last = offset // PER_BLOCK, -(-(offset + count) // PER_BLOCK)
        block = torch.arange(first, last, dtype=torch.int64, device=device)
        words = self._stream.words(step, lane, block).view(4, 4, -1)
        x = _small(words)
        pair, place = torch.nonzero(x < TAIL, as_tuple=True)
        if len(pair):  # one pair in a million
            more = self._stream.words(step, lane | TAIL_LANE, block[place] * 4 + pair)
            x[pair, place] += _fifty_three(more[0], more[1]).mul_(2.0**-128)
        skip = offset % PER_BLOCK
        return _box_muller(words, x)[skip : skip + count]

    def gaussian(
        self, step: int, lane: int, offset: int, count: int, draws: int = 1, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Returns standard normals made of ``draws`` draws of variance 1/draws each, added up in float64 and not rounded.

        Draw g is read at lane ``lane * draws + g``, as :meth:`dptrain.noise.lattice.LatticeGaussian.gaussian` does.
        """
        total = self.normals(step, lane * draws, offset, count, device)
        for place in range(lane * draws + 1, (lane + 1) * draws):
            total += self.normals(step, place, offset, count, device)
        return total.mul_(draws**-0.5) if draws > 1 else total

    addressed = True

    def release_(
        self,
        clipped_sum: torch.Tensor,
        std: float,
        normalizer: float,
        *,
        step: int,
        lane: int,
        draws: int = 1,
        offset: int = 0,
        **where: Any,
    ) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place and on its device.

        Arguments, result and ValueError are those of :meth:`dptrain.noise.lattice.LatticeGaussian.release_`.

        Raises:
            ConfigError: the device does not compute as the RFC or as float64 asks for, code NOISE_DEVICE.
        """
        require_releasable(clipped_sum, std)
        device = clipped_sum.device
        require(device)
        self._claims.claim(step, lane, offset, clipped_sum.numel())
        gamma = std * 2.0**-LATTICE_BITS
        divisor = torch.tensor(gamma, dtype=torch.float64, device=device)  # by a number, a GPU would multiply by its inverse
        flat = clipped_sum.view(-1)
        for start in range(0, len(flat), size := PER_BLOCK * BLOCKS.get(device.type, MOST_BLOCKS)):
            part = flat[start : start + size]
            released = torch.div(part.to(torch.float64), divisor).round_().clamp_(-SUM_LIMIT, SUM_LIMIT)
            noise = self.gaussian(step, lane, offset + start, len(part), draws, device).mul_(2.0**LATTICE_BITS).round_()
            part.copy_(released.add_(noise).mul_(gamma / normalizer))
        return clipped_sum

    def destroy(self) -> None:
        """Forgets the key, and overwrites it where devices hold it; nothing can be drawn again."""
        self._stream.forget()
        del self._stream


@register_mechanism("gaussian")
def gaussian(source: Source) -> DeviceGaussian | LatticeGaussian:
    """Returns Gaussian noise on the device of the sums, or on the processor."""
    if source.generator == DEVICE:
        return DeviceGaussian(source.device_stream())
    return LatticeGaussian(source.stream())


def _small(words: torch.Tensor) -> torch.Tensor:
    """Returns x, uniform on (0, 1/2] in steps of 2^-75: float64, shape (4, N), from words of shape (4 pairs, 4, N)."""
    fine = ((words[:, 0] & 0x7FF) << 10) + ((words[:, 2] >> 1) & 0x3FF) + 1
    return _fifty_three(words[:, 0], words[:, 1]).mul_(2.0**-54).add_(fine.to(torch.float64).mul_(2.0**-75))


def _box_muller(words: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Returns pairs of normals, one after the other: -2 log of x, or of 1 - x where a bit says so, and an angle of 53 bits."""
    mirrored = (words[:, 2] & 1).bool()
    radius = torch.where(mirrored, torch.log1p(-x), torch.log(x)).mul_(-2.0).sqrt_()
    angle = _fifty_three(words[:, 2], words[:, 3]).mul_(2.0**-53 * 2.0 * math.pi)
    pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    return pairs.transpose(0, 1).reshape(-1)  # (N blocks, 4 pairs, 2)


def _fifty_three(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Returns the upper 53 of 64 bits as float64, exactly."""
    return (((high.to(torch.int64) & _LOW) << 21) | ((low.to(torch.int64) & _LOW) >> 11)).to(torch.float64)
