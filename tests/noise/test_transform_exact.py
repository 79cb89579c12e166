"""The assumption of Theorem 2 about floating point, held to multiprecision arithmetic: functions, and whole draws."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
mpmath = pytest.importorskip("mpmath")

from dptrain.noise import DeviceGaussian, KeyStream, LatticeGaussian  # noqa: E402
from dptrain.noise.keystream import ChaChaStream  # noqa: E402
from dptrain.noise.lattice import LATTICE_BITS  # noqa: E402

RUN, MASTER = b"r" * 16, bytes(range(32))
COUNT = 4000


def uniform() -> torch.Tensor:
    words = np.frombuffer(KeyStream("arguments", RUN, 0, MASTER).read(1, 0, 0, COUNT // 2), "<u8")
    return torch.from_numpy(((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-54)  # on (0, 1/2]


FUNCTIONS = {
    "log": (torch.log, mpmath.log, 1.0),
    "log of the tail": (torch.log, mpmath.log, 2.0**-70),
    "log near one half": (torch.log, mpmath.log, 2.0),
    "log1p": (torch.log1p, mpmath.log1p, -1.0),
    "log1p at the centre": (torch.log1p, mpmath.log1p, -(2.0**-40)),
    "sqrt": (torch.sqrt, mpmath.sqrt, 60.0),
    "cos": (torch.cos, mpmath.cos, 4.0 * math.pi),
    "sin": (torch.sin, mpmath.sin, 4.0 * math.pi),
}


def errors(values: torch.Tensor, exact: list) -> np.ndarray:
    """Signed errors in units in the last place of the exact value."""
    units = []
    for value, true in zip(values.tolist(), exact, strict=True):
        unit = mpmath.mpf(2) ** (math.frexp(float(true))[1] - 53)
        units.append(float((mpmath.mpf(value) - true) / unit))
    return np.array(units)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_within_a_unit_in_the_last_place_and_not_off_to_one_side(name: str) -> None:
    """A common bias of many draws is what could tell worlds apart; roundings that scatter cannot."""
    function, exact, scale = FUNCTIONS[name]
    arguments = uniform() * scale
    with mpmath.workprec(160):
        found = errors(function(arguments), [exact(mpmath.mpf(x)) for x in arguments.tolist()])
    assert np.abs(found).max() < 1.0
    assert abs(found.mean()) < 5 * found.std() / math.sqrt(COUNT) + 0.01
    worse = errors(function(arguments) * (1 + 2.0**-51), [mpmath.mpf(x) for x in function(arguments).tolist()])
    assert np.abs(worse).max() > 1.0, "the test sees an error of two units"


def exact_pair(first: int, second: int, more: int) -> tuple:
    """The transform of one block in multiprecision arithmetic, from its integers."""
    fine = ((first & 0x7FF) << 10 | second >> 1 & 0x3FF) + 1
    x = mpmath.mpf(first >> 11) / 2**54 + mpmath.mpf(fine) / 2**75
    if x < mpmath.mpf(2) ** -21:
        x += mpmath.mpf(more >> 11) / 2**128
    radius = mpmath.sqrt(-2 * mpmath.log(1 - x if second & 1 else x))
    angle = mpmath.mpf(second >> 11) / 2**53 * 2 * mpmath.pi
    return radius * mpmath.cos(angle), radius * mpmath.sin(angle)


def host() -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    stream = KeyStream("noise", RUN, 0, MASTER)
    words = np.frombuffer(stream.read(1, 0, 0, COUNT // 2), "<u8").reshape(-1, 2).tolist()
    return LatticeGaussian(stream).normals(1, 0, 0, COUNT), [(a, b, 0) for a, b in words]


def device() -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    stream = ChaChaStream("noise on a device", RUN, 0, MASTER)
    words = stream.words(1, 0, torch.arange(COUNT // 8)).T.contiguous().numpy().view("<u8").reshape(-1, 2).tolist()
    return DeviceGaussian(stream).normals(1, 0, 0, COUNT), [(a, b, 0) for a, b in words]


@pytest.mark.parametrize("generator", [host, device])
def test_integers_of_the_noise_are_those_of_exact_arithmetic(generator) -> None:
    """Four thousand coordinates: an error of a few 2^-50 turns a rounding to 2^-32 in one of some 10^5."""
    drawn, words = generator()
    with mpmath.workprec(160):
        exact = [value for pair in words for value in exact_pair(*pair)]
        integers = [int(mpmath.nint(value * 2**LATTICE_BITS)) for value in exact]
        off = [abs(float(mpmath.mpf(value) - true)) for value, true in zip(drawn.tolist(), exact, strict=True)]
    assert max(off) < 2.0**-47, "a few units of 2^-50, most of them from the angle"
    different = (drawn * 2.0**LATTICE_BITS).round().to(torch.int64) - torch.tensor(integers)
    assert int((different != 0).sum()) <= 1 and int(different.abs().max()) <= 1
    coarse = (drawn.float().double() * 2.0**LATTICE_BITS).round().to(torch.int64) - torch.tensor(integers)
    assert int((coarse != 0).sum()) > COUNT // 2, "the test sees float32"
