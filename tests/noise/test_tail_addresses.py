"""Further bits of radii in the tail, from words that make them count: each pair has its own, at an address of its own."""

import math

import pytest

torch = pytest.importorskip("torch")

from dptrain.noise import DeviceGaussian  # noqa: E402
from dptrain.noise.normals import TAIL_LANE, BoxMuller  # noqa: E402


class Bottom:
    """Words of zero, so that every x is 2^-75 and its further bits are most of it; those depend on their block alone."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def words(self, step: int, lane: int, block: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(16, block.numel(), dtype=torch.int32)
        if lane >= TAIL_LANE:
            assert (step, lane) == (3, 5 | TAIL_LANE)
            self.asked += block.tolist()
            found[1] = (block * 1_000_003 % (1 << 31)).to(torch.int32)
        return found


@pytest.mark.parametrize(("offset", "count"), [(0, 80), (24, 160), (5, 33)])
def test_each_pair_reads_its_own_further_bits(offset: int, count: int) -> None:
    stream = Bottom()
    found = DeviceGaussian(stream).normals(3, 5, offset, count)
    pairs = range(offset // 8 * 4, -(-(offset + count) // 8) * 4)
    assert sorted(stream.asked) == list(pairs), "pair p of block b reads block 4 b + p of the tail, and nothing else does"
    for place in range(offset + offset % 2, offset + count, 2):
        more = (place // 2) * 1_000_003 % (1 << 31)
        x = 2.0**-75 + (more << 21) * 2.0**-128
        assert float(found[place - offset]) == pytest.approx(math.sqrt(-2 * math.log(x)), rel=1e-14), place
    assert len({round(float(v), 12) for v in found[offset % 2 :: 2]}) == len(found[offset % 2 :: 2])


class BottomBytes:
    """The same for the processor's generator: blocks of 16 bytes, further bits from the number of their block."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
        if lane < TAIL_LANE:
            return bytes(16 * blocks)
        assert (step, lane, blocks) == (3, 5 | TAIL_LANE, 1)
        self.asked.append(first_block)
        return ((first_block * 1_000_003 % (1 << 31)) << 32).to_bytes(16, "little")


@pytest.mark.parametrize(("offset", "count"), [(0, 80), (24, 160), (1 << 16, 33)])
def test_each_pair_of_the_processor_reads_its_own_further_bits(offset: int, count: int) -> None:
    """Offsets are the starts of pieces: no piece reads what another one read."""
    stream = BottomBytes()
    found = BoxMuller().normals(stream, 3, 5, offset, count)
    assert stream.asked == list(range(offset // 2, (offset + count + 1) // 2))
    for place in range(0, count, 2):
        more = (offset + place) // 2 * 1_000_003 % (1 << 31)
        x = 2.0**-75 + (more << 21) * 2.0**-128
        assert float(found[place]) == pytest.approx(math.sqrt(-2 * math.log(x)), rel=1e-14), place
