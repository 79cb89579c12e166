"""Noise of the device where 32 bits run over: counters at 2^31 and 2^32, words with the sign bit, edges of pieces."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dptrain.noise import DeviceGaussian, device, keystream  # noqa: E402
from dptrain.noise.device import MOST_BLOCKS, PER_BLOCK  # noqa: E402
from dptrain.noise.lattice import LATTICE_BITS  # noqa: E402
from dptrain.noise.normals import TAIL_LANE  # noqa: E402
from tests.noise.test_device import Low, plain_normals, plain_words, stream, with_key  # noqa: E402

EDGES = (0, 1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) - 1)
"""Of unsigned words: around the sign bit, and around what 32 bits hold."""

COUNTERS = (0, (1 << 31) - 2, (1 << 32) - 2, (1 << 33) - 2, (1 << 63) - 5, (1 << 63) - (1 << 32) - 2, (1 << 40) - 1)


def unsigned(words: torch.Tensor) -> list[list[int]]:
    return (words.T.to(torch.int64) & 0xFFFFFFFF).tolist()


@pytest.mark.parametrize("first", COUNTERS)
def test_counters_carry_into_the_high_word_and_wrap_nowhere_else(first: int) -> None:
    s, count = stream(), 4
    found = s.words(3, 7, torch.arange(first, first + count))
    assert unsigned(found) == [plain_words(s._key, 3, 7, block) for block in range(first, first + count)]
    assert torch.equal(found, device.openssl_words(s, 3, 7, first, count))


@pytest.mark.parametrize(("step", "lane"), list(itertools.product(EDGES, EDGES)))
def test_steps_and_lanes_with_the_sign_bit_are_the_words_that_they_are(step: int, lane: int) -> None:
    s, block = stream(), torch.tensor([0, (1 << 31), (1 << 32) - 1, 1 << 32])
    found = s.words(step, lane, block)
    assert unsigned(found) == [plain_words(s._key, step, lane, b) for b in block.tolist()]


@pytest.mark.parametrize("word", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff\xff\xff\x7f"])
def test_additions_of_extreme_keys_run_over_as_the_rfc_wants(word: bytes) -> None:
    s = with_key(word * 8)
    block = torch.tensor([0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1])
    for step, lane in ((0, 0), ((1 << 32) - 1, (1 << 32) - 1), (1 << 31, (1 << 31) - 1)):
        assert unsigned(s.words(step, lane, block)) == [plain_words(word * 8, step, lane, b) for b in block.tolist()]


def test_counters_of_one_call_in_any_order_are_those_of_calls_of_their_own() -> None:
    """Nothing of one column reaches another one: a block is a function of its own counter."""
    s, block = stream(), torch.tensor([(1 << 32) + 5, 0, (1 << 63) - 1, (1 << 32) - 1, 1 << 31, 5])
    whole = s.words(1, 2, block)
    for place, counter in enumerate(block.tolist()):
        assert torch.equal(whole[:, place], s.words(1, 2, torch.tensor([counter]))[:, 0])
    assert len({tuple(column) for column in unsigned(whole)}) == len(block)


def drops_the_carry(words: torch.Tensor) -> torch.Tensor:
    """The high word of a counter is lost: counters 2^32 apart get one block."""
    return torch.zeros_like(words).to(torch.int32) if int(words.max()) < 1 << 31 else _signed(words)


def saturates(words: torch.Tensor) -> torch.Tensor:
    """Numbers above 2^31 become the largest int32, as some devices convert."""
    return words.clamp_max((1 << 31) - 1).to(torch.int32)


_signed = keystream._signed


@pytest.mark.parametrize("fault", [drops_the_carry, saturates])
def test_counters_without_carry_or_with_saturation_are_seen(
    fault: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystream, "_signed", fault)
    with pytest.raises(AssertionError):
        test_counters_carry_into_the_high_word_and_wrap_nowhere_else((1 << 32) - 2)
    assert device._wrong(torch.device("cpu")) == "its ChaCha20 blocks are not those of RFC 8439"


# From words to normals.

CORNERS = [-1, 0, 1, -(1 << 31), (1 << 31) - 1, 0x7FF, 0x800, -0x800, 1 << 30]
"""Words as int32: all bits, none, the sign alone, all but the sign, and around the bits that are dropped."""


def test_fifty_three_bits_are_those_of_the_unsigned_words() -> None:
    low, high = (torch.tensor(list(side), dtype=torch.int32) for side in zip(*itertools.product(CORNERS, CORNERS), strict=True))
    found = device._fifty_three(low, high)
    expected = [((h & 0xFFFFFFFF) << 32 | (w & 0xFFFFFFFF)) >> 11 for w, h in itertools.product(CORNERS, CORNERS)]
    assert found.dtype is torch.float64 and [int(value) for value in found.tolist()] == expected
    assert float(found.max()) == 2.0**53 - 1


def test_radii_and_angles_of_extreme_words_are_finite_and_those_of_exact_integers() -> None:
    rows = list(itertools.product(CORNERS, repeat=4))
    words = torch.tensor(rows, dtype=torch.int32).T.reshape(1, 4, -1).contiguous()
    x = device._small(words)
    for value, (a, b, c, _) in zip(x[0].tolist(), rows, strict=True):
        first = (b & 0xFFFFFFFF) << 32 | a & 0xFFFFFFFF
        whole = (first << 10 | (c & 0xFFFFFFFF) >> 1 & 0x3FF) + 1  # 75 bits, never zero
        assert 0.0 < value <= 0.5
        assert abs(value - whole * 2.0**-75) <= 2.0**-53 * value
    pairs = device._box_muller(words, x).view(-1, 2)
    assert bool(pairs.isfinite().all())
    assert float(pairs.square().sum(1).sqrt().max()) <= math.sqrt(2 * 75 * math.log(2)) + 1e-9


@pytest.mark.parametrize("around", [1 << 31, 1 << 32, 1 << 34, 1 << 35, 1 << 36])
@pytest.mark.parametrize("before", [17, 8, 3, 0])
def test_normals_of_coordinates_whose_blocks_pass_2_to_the_31_and_32(around: int, before: int) -> None:
    found = DeviceGaussian(stream()).normals(3, 1, around - before, 27).numpy()
    expected = plain_normals(stream(), 3, 1, around - before, 27)
    assert found.shape == (27,) and np.all(np.abs(found - expected) <= 2.0**-49 * np.abs(expected) + 2.0**-60)


def test_further_bits_of_pairs_beyond_2_to_the_32_have_addresses_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address of a pair's further bits is four times its block and more, which runs over 32 bits first."""
    asked: list[int] = []

    class Watched(Low):
        def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
            if lane >= TAIL_LANE:
                asked.extend(block.tolist())
            return super().words(step, lane, block)

    first = (1 << 30) - 2  # of the blocks: pairs from 2^32 - 8 on
    DeviceGaussian(Watched()).normals(2, 7, PER_BLOCK * first, PER_BLOCK * 4)
    assert sorted(asked) == list(range(4 * first, 4 * first + 16))


# Edges of pieces.


def released(count: int) -> torch.Tensor:
    total = torch.linspace(-2.0, 3.0, count, dtype=torch.float64)
    return DeviceGaussian(stream()).release_(total, 0.3, 7.0, step=2, lane=4)


PIECE = 16 * PER_BLOCK


@pytest.mark.parametrize("count", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 5])
def test_a_release_at_the_edge_of_a_piece_has_the_noise_of_its_coordinates(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers from the plain transcription, coordinate by coordinate: none is skipped, repeated or drawn for another."""
    monkeypatch.setitem(device.BLOCKS, "cpu", PIECE // PER_BLOCK)
    gamma = 0.3 * 2.0**-LATTICE_BITS
    noise = torch.from_numpy(plain_normals(stream(), 2, 4, 0, count)).mul_(2.0**LATTICE_BITS).round_()
    expected = (torch.linspace(-2.0, 3.0, count, dtype=torch.float64) / gamma).round() + noise
    off = ((released(count) * 7.0 / gamma).round() - expected).abs()
    assert float(off.max()) <= 1 and int((off > 0).sum()) <= 2, "another last bit of a logarithm may turn a rounding"


def test_pieces_of_an_accelerator_s_size_are_those_of_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^19 blocks at a time, and a rest of nine coordinates, as every device but the processor takes them."""
    count = PER_BLOCK * MOST_BLOCKS + 9
    small = released(count)
    monkeypatch.setattr(device, "BLOCKS", {})
    large = released(count)
    step = 0.3 * 2.0**-LATTICE_BITS / 7.0
    assert int((small != large).sum()) <= count >> 20 and float((small - large).abs().max()) < 1.5 * step
