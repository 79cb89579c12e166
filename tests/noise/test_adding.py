"""A release by a kernel against one by numpy: every bit, of any sum, in any part, on any number of threads."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain import native  # noqa: E402
from dptrain.noise import KeyStream, LatticeGaussian, Step, adding, lattice, rounded  # noqa: E402
from dptrain.noise import normals as transform  # noqa: E402
from dptrain.noise.adding import add_  # noqa: E402
from dptrain.noise.correlated import CorrelatedGaussian, toeplitz  # noqa: E402
from dptrain.noise.correlated import gaussian as correlated  # noqa: E402
from dptrain.noise.families import integer_noise  # noqa: E402
from dptrain.noise.rounded import RoundedNormals  # noqa: E402
from ledger.accountants.correlated import Toeplitz  # noqa: E402

COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(os.name != "posix" or not COMPILER, reason="no C++ compiler here, so numpy computes")

SOURCE = Path(adding.__file__).with_suffix(".cpp")
STREAM = KeyStream("noise", b"r" * 16, 0, b"adding".ljust(32))
TO_NEAREST, DOWN, UP, TO_ZERO = 0, 0x400, 0x800, 0xC00  # of fesetround, on x86


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what is built here nowhere else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernel, whatever it computes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("kernel")))
        return native.built(SOURCE, adding._declared, lambda found: True, adding.OPTIONS)


def plain(sums: np.ndarray, noise: np.ndarray, gamma: float, limit: float, scale: float) -> np.ndarray:
    """Releases as ever since the first: one pass of numpy after the other."""
    with np.errstate(all="ignore"):
        steps = np.clip(np.rint(np.divide(sums, gamma)), -limit, limit)
        return np.multiply(np.add(steps, noise), scale)


def same(found: np.ndarray, true: np.ndarray) -> bool:
    return found.dtype == true.dtype and found.tobytes() == true.tobytes()


def words(count: int, block: int = 0) -> np.ndarray:
    """Words of the stream."""
    return np.frombuffer(STREAM.read(1, 0, block, -(-count // 2)), "<u8")[:count]


def normals(count: int) -> np.ndarray:
    return LatticeGaussian(STREAM).normals(2, 1, 0, count).numpy()


SIZES = (*range(20), 31, 32, 33, 63, 64, 65, 255, 257, 1000, 4097)
LATTICES = [(1.0, 32, 2.0**51), (0.37, 32, 2.0**51), (3.1e-5, 20, 2.0**38), (1e7, 18, 2.0**36), (3.0 * 2.0**-900, 32, 2.0**51)]


@needs_compiler
@pytest.mark.parametrize(("std", "bits", "limit"), LATTICES)
@pytest.mark.parametrize("kind", [np.float64, np.int64])
@pytest.mark.parametrize("spread", [0.0, 1e-9, 1.0, 3e5, 1e12])
def test_every_bit_of_a_release_by_the_kernel_is_numpy_s(std, bits, limit, kind, spread, kernel):
    """Sums from less than a step to far beyond the limit, in any number, at any place of a vector."""
    gamma = std * 2.0**-bits
    sums, noise = normals(5000) * (std * spread), np.rint(normals(5000)[::-1] * 2.0**bits).astype(kind)
    for size in SIZES:
        for first in (0, 1, 3, 7):
            part = slice(first, first + size)
            found = sums.copy()
            assert adding._by_kernel(kernel, found[part], noise[part], gamma, limit, gamma / 7.0)
            assert same(found[part], plain(sums[part], noise[part], gamma, limit, gamma / 7.0))
            assert same(found[:first], sums[:first]) and same(found[first + size :], sums[first + size :])


@needs_compiler
@pytest.mark.parametrize(("std", "bits", "limit"), LATTICES)
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_middles_between_steps_go_to_the_even_one_as_numpy_has_it(std, bits, limit, kind, kernel):
    """A product with 1 / gamma would round some of them to the other step."""
    gamma = std * 2.0**-bits
    steps = np.arange(-3000, 3000) + 0.5
    steps = np.concatenate([steps, steps * 2.0**22 + 0.5, np.array([limit - 0.5, limit + 0.5, 0.5 - limit, -0.5 - limit])])
    for sums in (steps * gamma, np.nextafter(steps * gamma, np.inf), np.nextafter(steps * gamma, -np.inf)):
        found, noise = sums.copy(), np.zeros(len(sums), kind)
        assert adding._by_kernel(kernel, found, noise, gamma, limit, gamma)
        assert same(found, plain(sums, noise, gamma, limit, gamma))


@needs_compiler
@pytest.mark.parametrize("kind", [np.float64, np.int64])
def test_what_is_not_finite_is_released_as_numpy_releases_it(kind, kernel):
    """Infinite sums are cut at the limit; what is not a number stays the one it is, and so does the sign of zero."""
    quiet, signals = (0x7FF8 << 48) + 12345, (0x7FF0 << 48) + 12345
    bits = [0, 1, 1 << 51, 0x7FF << 52, (0x7FE << 52) + 5, quiet, signals]
    ends = np.array([word | sign << 63 for word in bits for sign in (0, 1)], np.uint64).view(np.float64)
    for noise in (np.zeros(len(ends), kind), -np.zeros(len(ends), kind), np.full(len(ends), 123456789, kind)):
        for gamma, scale in ((0.7, 0.3), (2.0**-32, -(2.0**-32)), (2.0**-930, 2.0**-1060), (1e300, 1e300)):
            found = ends.copy()
            assert adding._by_kernel(kernel, found, noise, gamma, 2.0**51, scale)
            assert same(found, plain(ends, noise, gamma, 2.0**51, scale))


@needs_compiler
def test_every_pattern_of_bits_is_released_as_numpy_releases_it(kernel):
    """Words of the cipher as sums, of every size from the smallest number to the largest, and as noise."""
    sums, noise = words(100_001).view(np.float64), words(100_001, 1 << 20).view(np.int64)
    for gamma in (2.0**-32, 0.37, 2.0**-930, 1.1e250):
        for given in (noise, noise >> 25, np.rint((noise >> 25) * 0.3)):
            found = sums.copy()
            assert adding._by_kernel(kernel, found, given, gamma, 2.0**51, gamma / 3.0)
            assert same(found, plain(sums, given, gamma, 2.0**51, gamma / 3.0))


# ------------------------------------------------------------------------------------------------------ through a mechanism


def released(kind: str, dtype: torch.dtype, shape: tuple[int, ...], threads: int, parts: int = 1) -> bytes:
    """Two steps of a mechanism, of a tensor that comes in some parts."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        count = int(np.prod(shape))
        if kind.startswith("gaussian"):
            noise, draws = LatticeGaussian(STREAM), int(kind[-1])
        elif kind == "banded":
            strategy = Toeplitz(tuple(toeplitz.optimal_coefficients(8, 3)))
            noise, draws = CorrelatedGaussian(STREAM, strategy, 8), 1
        else:
            noise, draws = integer_noise(kind, STREAM, 12), 1
        state, told = noise.init(()), []
        for number, std, normalizer in ((1, 1.3, 7.0), (2, 0.37, 64.0)):
            sums = torch.from_numpy(normals(count) * 1e3).to(dtype)
            odd = sums[::11]
            odd.copy_(torch.tensor([0.0, -0.0, 1e30, torch.inf, -torch.inf, torch.nan]).repeat(len(odd))[: len(odd)])
            cuts = [count * part // parts for part in range(parts + 1)]
            for first, last in pairwise(cuts):
                part = sums[first:last].clone().view(shape if parts == 1 else -1)
                noise.release(part, state, Step(number, 3, std, normalizer, draws, first, count))
                told.append(part.numpy().tobytes())
        noise.destroy()
        return b"".join(told)
    finally:
        torch.set_num_threads(before)


KINDS = ["gaussian 1", "gaussian 3", "banded", "discrete_gaussian", "laplace", "skellam"]


@pytest.mark.one_in(3)
@needs_compiler
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("kind", "dtype"), [(kind, torch.float64) for kind in KINDS] + [(KINDS[0], torch.float32)], ids=str)
@pytest.mark.parametrize("shape", [(3,), (5, 7), (1 << 15,), (3, 30_001)], ids=str)
def test_a_mechanism_releases_the_same_bytes_with_and_without_kernels(kind, dtype, shape, monkeypatch):
    """A tensor whole and in three parts, on one thread and on several; a turn is small, so that there are many."""
    monkeypatch.setattr(lattice, "CHUNK", 1 << 12)
    monkeypatch.setattr(lattice, "LEAST", 1 << 8)
    for room in (lattice, transform, rounded, correlated):
        monkeypatch.setattr(room, "AT_A_TIME", 1 << 10)
    assert adding.library() is not None and rounded.library() is not None
    fast = [released(kind, dtype, shape, threads, parts) for threads, parts in ((1, 1), (3, 1), (2, 3))]
    monkeypatch.setattr(adding, "library", lambda: None)
    monkeypatch.setattr(rounded, "library", lambda: None)
    assert fast == [released(kind, dtype, shape, 1)] * 3


# --------------------------------------------------------------------------------------------- what the kernel is kept from


class Counted:
    """A kernel that counts how often it is asked."""

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.asked = kernel, 0

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._kernel, name)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    if adding.library() is None:
        pytest.skip("no C++ compiler here, so numpy computes")
    found = Counted(adding.library())
    monkeypatch.setattr(adding, "library", lambda: found)
    return found


KEPT = ("noise float32", "noise int32", "noise strided", "sums strided", "sums unaligned", "noise swapped")


@pytest.mark.parametrize("what", KEPT)
def test_what_the_kernel_does_not_take_is_numpy_s(what, counted):
    sums, noise = normals(200), np.rint(normals(200) * 2.0**20)
    if what == "noise float32":
        noise = noise.astype(np.float32)
    elif what == "noise int32":
        noise = noise.astype(np.int32)
    elif what == "noise swapped":
        noise = noise.astype(">f8")
    elif what == "noise strided":
        sums, noise = sums[:100], noise[::2]
    elif what == "sums strided":
        sums, noise = sums[::2], noise[:100]
    else:
        held = np.zeros(8 * 200 + 1, np.uint8)[1:].view(np.float64)
        held[:] = sums
        sums = held
    true = plain(sums, noise, 0.37, 2.0**51, 0.1)
    add_(sums, noise, 0.37, 2.0**51, 0.1)
    assert same(np.ascontiguousarray(sums), true) and counted.asked == 0


def test_noise_of_another_length_is_refused_and_a_sum_that_must_not_be_written_is_not(counted):
    for count in (3, 99, 101):
        with pytest.raises(ValueError, match="broadcast"):
            add_(np.zeros(100), np.zeros(count), 1.0, 2.0**51, 1.0)
    fixed = np.zeros(100)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        add_(fixed, np.ones(100), 1.0, 2.0**51, 1.0)
    assert counted.asked == 0 and not fixed.any()
    add_(np.zeros(100), np.zeros(100), 1.0, 2.0**51, 1.0)
    assert counted.asked == 1, "what it takes it is asked for"


@contextmanager
def rounding(mode: int) -> Iterator[None]:
    """Has this thread round otherwise."""
    library = ctypes.CDLL("libm.so.6")
    assert library.fesetround(mode) == 0
    try:
        yield
    finally:
        assert library.fesetround(TO_NEAREST) == 0


@pytest.mark.skipif(native.platform.machine() != "x86_64", reason="the numbers of modes are those of another processor")
@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="sets the mode by glibc")
@pytest.mark.parametrize("mode", [DOWN, UP, TO_ZERO])
def test_in_another_rounding_mode_numpy_computes(mode, counted, monkeypatch):
    """There numpy rounds to whole numbers in its own way, and a kernel in another."""
    sums, noise = normals(1001), np.rint(normals(1001)[::-1] * 2.0**32)
    found, asked = sums.copy(), []
    kernels = rounded.library()
    monkeypatch.setattr(rounded, "library", lambda: asked.append(1) or kernels)
    with rounding(mode):
        nearest = native.to_nearest()
        add_(found, noise, 2.0**-32, 2.0**51, 2.0**-32)
        true = plain(sums, noise, 2.0**-32, 2.0**51, 2.0**-32)
        RoundedNormals(32).steps(STREAM, 1, 0, 0, 100)
    assert same(found, true) and not nearest and counted.asked == 0 and not asked
    assert native.to_nearest()


@needs_compiler
def test_where_subnormal_numbers_count_as_zero_they_do_so_in_the_kernel_too(kernel):
    sums, noise = normals(4096) * 2.0**-890, np.rint(normals(4096) * 2.0**20)
    found = sums.copy()
    assert torch.set_flush_denormal(True)
    try:
        assert adding._by_kernel(kernel, found, noise, 2.0**-932, 2.0**51, 2.0**-1055)
        true = plain(sums, noise, 2.0**-932, 2.0**51, 2.0**-1055)
    finally:
        torch.set_flush_denormal(False)
    assert same(found, true) and not same(true, plain(sums, noise, 2.0**-932, 2.0**51, 2.0**-1055))


# -------------------------------------------------------------------------------------------------------------- its building


@needs_compiler
def test_the_kernel_is_kept_by_what_it_computes_and_other_threads_run_meanwhile():
    """A library that holds the interpreter's lock has another flag."""
    for found in (adding.library(), rounded.library()):
        assert found is not None
        assert not found._FuncPtr._flags_ & ctypes._FUNCFLAG_PYTHONAPI
    assert adding.works(adding.library())


WRONG = {
    "a product with the inverse": ("/ gamma", "* (1.0 / gamma)"),
    "middles away from zero": ("std::rint(", "std::round("),
    "middles up": ("std::rint(sums[i] / gamma)", "std::floor(sums[i] / gamma + 0.5)"),
    "no whole steps": ("std::rint(sums[i] / gamma)", "sums[i] / gamma"),
    "no lower limit": ("-limit > steps ? -limit : steps", "steps"),
    "no upper limit": ("steps > limit ? limit : steps", "steps"),
    "a number of what is none": ("-limit > steps ? -limit : steps", "steps > -limit ? steps : -limit"),
    "noise in float32": ("static_cast<double>(noise[i])", "static_cast<double>(static_cast<float>(noise[i]))"),
    "noise without its last bit": ("static_cast<double>(noise[i])", "2.0 * std::rint(0.5 * static_cast<double>(noise[i]))"),
    "two products": ("(steps + static_cast<double>(noise[i])) * scale", "steps * scale + noise[i] * scale"),
    "a division by the inverse": ("* scale;", "/ (1.0 / scale);"),
    "zero without a sign": ("std::rint(sums[i] / gamma)", "(std::rint(sums[i] / gamma) + 0.0)"),
    "the last one left out": ("i < count", "i < count - 1"),
    "one too many": ("i < count", "i <= count"),
    "whole vectors alone": ("i < count", "i < count - count % 2"),
}


@pytest.mark.one_in(7)
@needs_compiler
@pytest.mark.parametrize("fault", WRONG)
def test_a_kernel_that_adds_otherwise_is_not_used(fault, tmp_path, unbuilt):
    old, new = WRONG[fault]
    text = SOURCE.read_text()
    assert text.count(old) == 1
    (tmp_path / "wrong.cpp").write_text(text.replace(old, new))
    assert native.built(tmp_path / "wrong.cpp", adding._declared, lambda found: True, adding.OPTIONS) is not None, "it is built"
    assert native.built(tmp_path / "wrong.cpp", adding._declared, adding.works, adding.OPTIONS) is None


@needs_compiler
def test_one_that_a_compiler_was_told_to_make_faster_is_not_used(unbuilt):
    fast = (*adding.OPTIONS, "-freciprocal-math", "-fassociative-math", "-fno-signed-zeros", "-ffinite-math-only")
    assert native.built(SOURCE, adding._declared, adding.works, fast) is None
    assert native.built(SOURCE, adding._declared, adding.works, adding.OPTIONS) is not None
