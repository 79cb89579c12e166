"""Whether a device computes what noise rests on: the cipher to the bit, float64 functions to a few units in the last place."""

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dptrain.errors import ConfigError
from dptrain.noise.chacha import WORDS, ChaChaStream
from dptrain.noise.keystream import Keyed

UNITS = 4.0
"""Units in the last place by which log, log1p, sqrt, sin and cos may differ from the processor's."""

_BLOCKS = 1024
_STEP, _LANE = 0xFEDCBA98, 0x89ABCDEF  # with the sign bit, in both
_passed: set[torch.device] = set()


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
    """The blocks of :meth:`ChaChaStream.words` as OpenSSL makes them: int32, shape (16, count)."""
    blocks = []
    for place in range(first, first + count):  # each with a nonce of its own: its counter has 32 bits
        nonce = place.to_bytes(8, "little") + lane.to_bytes(4, "little") + step.to_bytes(4, "little")
        blocks.append(Cipher(algorithms.ChaCha20(stream._key, nonce), mode=None).encryptor().update(bytes(4 * WORDS)))
    return torch.frombuffer(bytearray(b"".join(blocks)), dtype=torch.int32).view(count, WORDS).T.contiguous()
