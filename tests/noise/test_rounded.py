"""Normals in whole lattice steps against the reference transform: every bit, and how far the cheap one may be from it."""

import ctypes
import hashlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.noise import KeyStream, LatticeGaussian, adding, keystream, rounded  # noqa: E402
from dptrain.noise.normals import BoxMuller  # noqa: E402
from dptrain.noise.rounded import UNSURE, RoundedNormals  # noqa: E402

BITS = 32
SURE = 2.0**-11.6
"""Lattice steps that the proof says the two transforms are apart at most."""


def stream(attempt: int = 0) -> KeyStream:
    return KeyStream("noise", b"r" * 16, attempt, b"rounded".ljust(32))


def reference(read, step: int, lane: int, offset: int, count: int, bits: int = BITS) -> np.ndarray:
    return BoxMuller().normals(read, step, lane, offset, count).numpy() * 2.0**bits


@pytest.fixture(params=["kernel", "kernel that is given words", "numpy", "torch"])
def way(request, monkeypatch) -> str:
    """The ways to a rounded normal: a kernel of C++, which draws words itself or is given them, or numpy with logarithms of its
    own or of torch's."""
    if not request.param.startswith("kernel"):
        monkeypatch.setattr(rounded, "_BY_NUMPY", request.param == "numpy")
        for kernels in (rounded, adding):
            monkeypatch.setattr(kernels, "library", lambda: None)
    elif rounded.library() is None:
        pytest.skip("no C++ compiler here, so numpy computes")
    if request.param == "kernel that is given words":
        monkeypatch.setattr(keystream, "evp", lambda: None)
    return request.param


def cheap(words: np.ndarray, way: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns what the cheap transform makes of words, in lattice steps and not rounded, and where it is not sure."""
    made, turns = RoundedNormals(BITS), np.empty(len(words), np.complex128)
    made._room(len(words))
    if not way.startswith("kernel"):
        unsure = made._nearest(words, turns)
        return (turns + made._products).view(np.float64).reshape(-1, 2), unsure  # the step, and what was left
    unsure = made._nearest_of(rounded.library(), words, turns).copy()
    made._scale *= 2.0**36  # steps of 2^-50 say what was rounded
    made._nearest_of(rounded.library(), words, turns)
    return turns.view(np.float64).reshape(-1, 2) * 2.0**-18, unsure


class Written:
    """A stream with these words; what is read again in the tail is fixed too."""

    def __init__(self, words: np.ndarray) -> None:
        self._bytes = words.astype("<u8").tobytes()

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        if lane >> 31:
            return bytes(range(first_block % 200, first_block % 200 + 16))
        return self._bytes[16 * first_block : 16 * (first_block + blocks)]


def corners() -> np.ndarray:
    """Words at the ends of what a uniform, a cell of angles and the bit of a side may be, each with each."""
    ends = [(1 << 64) - 1, (1 << 64) - (1 << 12), 1 << 55, 1 << 54, (1 << 54) - 1]
    ends += [1 << 53, 1 << 32, 1 << 12, (1 << 12) - 1, 2, 1, 0]  # the tail last: its places are not those among the unsure
    cells = [place << 52 for place in (0, 1, 511, 512, 513, 1023, 1024, 1536, 2047, 2048, 3071, 3072, 4095)]
    inside = [0, 1, 2, 3, 0x7FF, 0x800, 1 << 51, (1 << 51) - 1, (1 << 52) - 2, (1 << 52) - 1]
    seconds = [cell | low for cell in cells for low in inside]
    return np.array([(first, second) for first in ends for second in seconds], np.uint64)


def test_every_bit_of_rounded_normals_is_that_of_the_reference(way):
    """Some seven in ten million would round otherwise by the cheap transform alone."""
    found, size = RoundedNormals(BITS), 1 << 16
    for place in range(1 << 5):
        steps = found.steps(stream(), 7, 3, place * size, size)
        assert np.array_equal(steps, np.rint(reference(stream(), 7, 3, place * size, size)))


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (0, 2), (2, 1), (4, 7), (1 << 20, 4097), (6, 70_001)])
def test_any_part_of_a_tensor_has_the_bits_of_the_reference(offset, count, way):
    found = RoundedNormals(BITS)
    for step, lane in ((1, 0), ((1 << 32) - 1, (1 << 31) - 1)):
        steps = found.steps(stream(), step, lane, offset, count)
        assert steps.shape == (count,) and np.array_equal(steps, np.rint(reference(stream(), step, lane, offset, count)))


@pytest.mark.parametrize("bits", [1, 20, 32])
def test_the_corners_of_the_words_have_the_bits_of_the_reference(bits, way):
    words = corners()
    read, count = Written(words), 2 * len(words)
    assert np.array_equal(RoundedNormals(bits).steps(read, 1, 0, 0, count), np.rint(reference(read, 1, 0, 0, count, bits)))
    for offset in range(0, 40, 2):
        steps = RoundedNormals(bits).steps(read, 1, 0, offset, 301)
        assert np.array_equal(steps, np.rint(reference(read, 1, 0, offset, 301, bits)))


def test_the_cheap_transform_is_within_what_its_proof_says(way):
    drawn = np.frombuffer(stream().read(1, 0, 0, 1 << 19), "<u8").reshape(-1, 2)
    for words in (drawn, corners()):
        tail = (words[:, 0] >> np.uint64(12)).astype(np.float64) * 2.0**-53 < 2.0**-10
        found, unsure = cheap(words, way)
        exact = reference(Written(words), 1, 0, 0, 2 * len(words)).reshape(-1, 2)
        apart = np.abs(found - exact)[~tail]
        assert apart.max() < SURE < UNSURE / 2
        assert set(np.flatnonzero(tail)) <= set(unsure), "the tail is the reference's"
        close = np.abs(np.abs(exact - np.floor(exact)) - 0.5).min(axis=1) < UNSURE - SURE
        assert set(np.flatnonzero(close & ~tail)) <= set(unsure), "and so is what lies near a middle"


def test_few_pairs_are_left_to_the_reference(way):
    """One in 1024 in the tail of x on (0, 1/2], doubled, and two in 512 near a middle."""
    words = np.frombuffer(stream().read(1, 0, 0, 1 << 15), "<u8").reshape(-1, 2)
    assert 0.004 < len(cheap(words, way)[1]) / len(words) < 0.008


class Spoiled:
    """A kernel that is off by one step in one number, or sure of everything, of nothing, or of some pairs that it is not."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def dptrain_nearest(self, words, pairs, turns, scale, tail, sure, found, unsure):
        count = rounded.library().dptrain_nearest(words, pairs, turns, scale, tail, sure, found, unsure)
        if self._fault == "a step":
            rounded.ctypes.c_double.from_address(found + 16 * (pairs - 5)).value += 1.0
        places = np.ctypeslib.as_array((rounded.ctypes.c_int64 * pairs).from_address(unsure))
        if self._fault == "of nothing":
            places[:] = np.arange(pairs)
        if self._fault == "of some":
            kept = [place for place in places[:count] if not 49 <= place < 5049]  # those lie near a middle, on the right side
            places[: len(kept)] = kept
            return len(kept)
        return {"a step": count, "of everything": 0, "of nothing": pairs}[self._fault]


@pytest.mark.skipif(rounded.library() is None, reason="no C++ compiler here, so numpy computes")
@pytest.mark.parametrize("fault", ["a step", "of everything", "of nothing", "of some"])
def test_a_kernel_that_rounds_otherwise_is_not_used(fault):
    assert rounded.works(rounded.library())
    assert not rounded.works(Spoiled(fault))


@pytest.fixture
def drawing() -> None:
    if rounded.library() is None or keystream.evp() is None:
        pytest.skip("no C++ compiler here, or no OpenSSL beside the interpreter: words are read before they are rounded")


def test_a_kernel_draws_its_words_where_it_can(drawing, monkeypatch):
    true = RoundedNormals(BITS).steps(stream(), 7, 3, 4, 50_001)
    read, read_too = KeyStream.read, []
    monkeypatch.setattr(KeyStream, "read", lambda self, *address: read_too.append(address[1]) or read(self, *address))
    assert np.array_equal(RoundedNormals(BITS).steps(stream(), 7, 3, 4, 50_001), true)
    assert all(lane >= 1 << 31 for lane in read_too), "what is read beside is of the tail"


@pytest.mark.parametrize("wrong", ["another cipher", "a cipher that fails", "fewer bytes"])
def test_words_of_a_cipher_that_does_not_serve_are_not_used(wrong, drawing, monkeypatch):
    """What has been written when it fails counts for nothing: all is drawn again by the other way."""
    found, true = keystream.evp(), np.rint(reference(stream(), 7, 3, 4, 50_001))
    if wrong == "another cipher":
        library = found.library
        library.EVP_chacha20.restype = ctypes.c_void_p
        other = keystream.Evp(library, library.EVP_chacha20(), found.update)
        assert keystream._gives(found) and not keystream._gives(other)
        return
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4, ctypes.c_int)
    right, asked = kind(found.update), []

    def update(cipher: int, out: int, written: int, given: int, size: int) -> int:
        asked.append(size)
        if len(asked) < 3:
            return right(cipher, out, written, given, size)
        ctypes.c_int.from_address(written).value = size - 16 if wrong == "fewer bytes" else size
        return int(wrong == "fewer bytes")

    held = kind(update)
    spoiled = keystream.Evp(found.library, found.aes, ctypes.cast(held, ctypes.c_void_p).value)
    monkeypatch.setattr(keystream, "evp", lambda: spoiled)
    assert np.array_equal(RoundedNormals(BITS).steps(stream(), 7, 3, 4, 50_001), true) and len(asked) == 3


def test_a_kernel_that_draws_other_words_is_not_used(drawing, monkeypatch):
    kernels = rounded.library()

    class Spoiled:
        dptrain_nearest = kernels.dptrain_nearest

        def dptrain_drawn(self, *given):
            count = kernels.dptrain_drawn(*given)
            ctypes.c_double.from_address(given[-3] + 16 * rounded.PART).value += 1.0
            return count

    assert rounded.works(kernels) and not rounded.works(Spoiled())


def test_a_release_is_the_same_as_it_ever_was(way):
    """The bytes of two releases, written down before normals were rounded by another way than the reference."""
    total = torch.arange((1 << 12) + 11, dtype=torch.float64) * 1e-3
    made = LatticeGaussian(KeyStream("noise", b"b", 0, b"k" * 32))
    made.release_(total, 1.3, 7.0, step=1, lane=0)
    made.release_(total, 0.7, 3.0, step=2, lane=5, draws=2)
    digest = hashlib.sha256(total.numpy().tobytes()).hexdigest()
    assert digest == "b462d080e881c4fb57fcb91fd1b5b33ad03a8fd8e2fb3510ce2b6823083b4784"


def test_a_finer_lattice_than_the_proof_allows_is_refused():
    for bits in (0, 33):
        with pytest.raises(ValueError, match="expected 1 to 32"):
            RoundedNormals(bits)
