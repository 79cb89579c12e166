"""Draws integers of an exact law from blocks of a key stream: rejection under a step function, decided in exact arithmetic.

A law gives a weight w(k) to every magnitude k >= 0; the sign is a fair coin, and zero has one sign. Magnitudes are cut into
cells of 2^(b-h) neighbours, h being the law's ``cell_bits``. A cell is chosen with an *integer* weight W_j >= S w(first of the
cell), the weights and a remainder that stands for "again" adding up to exactly 2^64, so a table of 4096 columns (Walker 1977)
chooses from one 64-bit word without rounding. A magnitude of the cell, uniform, is then kept with probability S w(k) / W_j.
Hence every k is returned with a probability proportional to w(k): exactly, whatever S and W are.

The last decision compares a uniform number with an irrational one. Its first bits are compared in float64; where they lie
within :data:`BAND` of the threshold, which is far more than float64 and its exponential are off, further bits are read, and
integers that enclose w(k) decide (Canonne, Kamath and Steinke 2020, section 5, decide all of theirs with rationals). So
floating point decides how fast a draw is made, and never which one.
"""

from functools import lru_cache
from typing import Protocol

import numpy as np

from dptrain.noise.normals import TAIL_LANE, Blocks

CHUNK = 1 << 15
"""Coordinates that are drawn together. A chunk's addresses follow from it, so it is never changed within a version."""

BAND = 2.0**-40
"""Relative distance from its threshold within which a comparison in float64 is not trusted; the error is below 2^-48."""

COLUMNS = 12
"""Bits of a word that choose a column; the other 52 are compared with the column's cut."""

_CUT = 64 - COLUMNS
_LOW = np.uint64((1 << _CUT) - 1)
_ROUND, _PIECE = 40, 56
_MOST_ROUNDS = 1 << (_PIECE - _ROUND)
_ROOM = 1 << 64


class Law(Protocol):
    """Weights of magnitudes, not increasing from 0 on, with w(0) = 1 as far as the envelope goes."""

    name: str
    bits: int
    """b: 2^b magnitudes lie between 0 and one scale of the law."""
    cell_bits: int
    """h: a scale has 2^h cells, h <= b."""
    scales: int
    """Cells reach so many scales; from there on a weight is at most half of that one scale before."""

    def enclose(self, k: int, precision: int) -> tuple[int, int]:
        """Integers (a, b) with a <= 2^precision w(k) <= b, as close as one likes for large precisions."""

    def top(self, k: int, precision: int) -> tuple[int, int]:
        """Encloses in this way a bound of w at k and at all larger magnitudes."""

    def ratios(self, cells: np.ndarray, inside: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
        """Returns w(k) / top(first magnitude of the cell) in float64, relative error below 2^-48."""


class Table:
    """Holds the integer weights of a law's cells, as a table that one word looks up; all samplers of the law share it."""

    def __init__(self, law: Law) -> None:
        cells = law.scales << law.cell_bits
        if not (cells + 2 <= 1 << COLUMNS and 0 <= law.cell_bits <= law.bits <= 32):
            raise ValueError(
                f"{law.name}: {cells} cells do not fit into {1 << COLUMNS} columns, or bits {law.bits} are not 0 to 32"
            )
        width = 1 << (law.bits - law.cell_bits)
        precision = 192
        tops = [law.top(j * width, precision)[1] for j in range(cells)]
        beyond = law.top(cells * width, precision)[1] << (law.cell_bits + 1)  # see _decide: 2^(h+1) times the first weight
        tops.append(beyond)
        self.scale = ((_ROOM - cells - 1) << precision) // sum(tops)
        """S: as large as fits."""
        weights = [(self.scale * top >> precision) + 1 for top in tops]
        again = _ROOM - sum(weights)
        assert again >= 0
        self.weights = weights
        self.tail = cells
        cuts, other = _columns([*weights, again])
        self.cuts = np.array(cuts, dtype=np.uint64)
        self.other = np.array(other, dtype=np.int64)
        fit = [self.scale * top / (weight << precision) for top, weight in zip(tops[:cells], weights, strict=False)]
        self.fit = np.array([*fit, np.nan, 0.0, *[0.0] * ((1 << COLUMNS) - cells - 2)])
        """S top / W of a cell: NaN beyond the cells, which no comparison in float64 decides; 0 where it is drawn again."""


def _columns(weights: list[int]) -> tuple[list[int], list[int]]:
    """Walker's table for integer weights that add up to 2^64: (cut, other) of every column, each of capacity 2^52. Exact."""
    size, capacity = 1 << COLUMNS, 1 << _CUT
    left = [*weights, *[0] * (size - len(weights))]
    cuts, other = [capacity] * size, list(range(size))
    small = [j for j in range(size) if left[j] < capacity]
    large = [j for j in range(size) if left[j] > capacity]
    while small:
        j = small.pop()
        giver = large[-1]
        cuts[j], other[j] = left[j], giver
        left[giver] -= capacity - left[j]
        if left[giver] <= capacity:
            large.pop()
            if left[giver] < capacity:
                small.append(giver)
    assert not large
    return cuts, other


class ExactSampler:
    """Draws the integers of a law at the addresses of a stream.

    Guarantee: given uniform independent bytes, the integers of different coordinates are independent and each has exactly the
    law w(|k|) / sum of w. The integer of coordinate ``o`` of tensor ``lane`` at ``step`` is a function of (key, step, lane, o)
    alone.

    Addresses: round r of a chunk reads one block of 16 bytes for each coordinate that is still open, the i-th of them at
    block ``r 2^40 + start + i`` of ``lane``; further bits of a coordinate are blocks of ``lane + 2^31``. None is read twice.

    Args:
        band: as :data:`BAND`; a larger one decides more in exact arithmetic and changes no draw.
    """

    def __init__(self, law: Law, band: float = BAND) -> None:
        self.law = law
        self.band = band
        self.table = table_of(law)
        self._shift = law.bits - law.cell_bits
        self._resolution = min(52, 63 - self._shift)
        self.decided_exactly = 0
        """Number of draws decided in exact arithmetic; for tests, and not exact itself if threads draw at the same time."""

    def integers(self, stream: Blocks, step: int, lane: int, start: int, count: int) -> np.ndarray:
        """Integers (int64, shape (count,)) of coordinates [start, start + count).

        Args:
            start: a multiple of :data:`CHUNK`, below 2^40. count: at most :data:`CHUNK`.
        """
        if start % CHUNK or not 0 <= start < 1 << _ROUND or not 0 <= count <= CHUNK or not 0 <= lane < TAIL_LANE:
            raise ValueError(f"coordinates {start} to {start + count} of tensor {lane} are not part of one chunk of {CHUNK}")
        found, taken = self._round(stream, step, lane, start, 0, count)
        places = np.flatnonzero(~taken)
        number = 0
        while len(places):
            number += 1
            if number >= _MOST_ROUNDS:
                raise RuntimeError("a coordinate was drawn 65536 times in vain: the stream is not random")
            values, taken = self._round(stream, step, lane, start, number, len(places))
            found[places[taken]] = values[taken]
            places = places[~taken]
        return found

    def _round(
        self, stream: Blocks, step: int, lane: int, start: int, number: int, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns one proposal for each of ``count`` coordinates, and whether it is taken."""
        table, shift, resolution = self.table, self._shift, self._resolution
        data = stream.read(step, lane, (number << _ROUND) | start, count)
        words = np.frombuffer(data, dtype="<u8").reshape(count, 2)
        column = (words[:, 0] >> np.uint64(_CUT)).view(np.int64)
        cell = np.where((words[:, 0] & _LOW) < table.cuts[column], column, table.other[column])
        second = words[:, 1]
        inside = (second & np.uint64((1 << shift) - 1)).view(np.int64)
        negative = ((second >> np.uint64(shift)) & np.uint64(1)).view(np.int64)
        magnitude = (cell << np.int64(shift)) + inside
        uniform = (second >> np.uint64(64 - resolution)).astype(np.float64)

        threshold = table.fit[cell]
        threshold *= self.law.ratios(cell, inside, magnitude)
        threshold *= 2.0**resolution
        taken = uniform + 1.0 <= threshold * (1.0 - self.band)
        open_ = ~taken & ~(uniform >= threshold * (1.0 + self.band))
        zeros = np.flatnonzero(magnitude == 0)
        if len(zeros):
            second_zero = zeros[negative[zeros] == 1]  # zero has one sign
            taken[second_zero] = open_[second_zero] = False
        value = (magnitude ^ -negative) + negative
        for index in np.flatnonzero(open_).tolist():
            bits = _Bits(stream, step, lane | TAIL_LANE, (number << _ROUND) | (start + index))
            prefix = int(second[index]) >> (64 - resolution)
            kept = self._decide(int(cell[index]), int(magnitude[index]), prefix, bits)
            self.decided_exactly += 1
            if kept is not None:
                taken[index] = True
                value[index] = -kept if negative[index] else kept
        return value, taken

    def _decide(self, cell: int, magnitude: int, prefix: int, bits: "_Bits") -> int | None:
        """Returns the magnitude if it is kept, None if not, by comparing a uniform number with S w(k) / W in integers.

        Args:
            prefix: the first bits of the uniform number. bits: where all others come from.
        """
        factor, weight = self.table.scale, self.table.weights[cell]
        if cell == self.table.tail:
            beyond = 0
            while bits.take(1):
                beyond += 1
            magnitude = ((self.law.scales + beyond) << self.law.bits) + bits.take(self.law.bits)
            factor <<= self.law.cell_bits + beyond + 1  # of 2^b magnitudes, in place of 2^(b-h), chosen 1 in 2^(beyond+1)
        length = self._resolution
        while True:
            precision = length + 64
            low, high = self.law.enclose(magnitude, precision)
            if ((prefix + 1) * weight) << precision <= (factor * low) << length:
                return magnitude
            if (prefix * weight) << precision >= (factor * high) << length:
                return None
            prefix, length = (prefix << 64) | bits.take(64), length + 64


class _Bits:
    """Gives fresh bits of one coordinate, in blocks that no other reads."""

    def __init__(self, stream: Blocks, step: int, lane: int, place: int) -> None:
        self._stream, self._step, self._lane, self._place = stream, step, lane, place
        self._pieces = self._held = self._length = 0

    def take(self, count: int) -> int:
        """Returns the next ``count`` bits as a number below 2^count."""
        while self._length < count:
            if self._pieces >= 1 << (64 - _PIECE):
                raise RuntimeError("a comparison took 32768 bits: the stream is not random")
            block = self._stream.read(self._step, self._lane, (self._pieces << _PIECE) | self._place, 1)
            self._pieces += 1
            self._held |= int.from_bytes(block, "little") << self._length
            self._length += 128
        found = self._held & ((1 << count) - 1)
        self._held >>= count
        self._length -= count
        return found


def exp_of_minus(numerator: int, denominator_bits: int, precision: int) -> tuple[int, int]:
    """Integers (a, b) with a <= 2^precision exp(-numerator / 2^denominator_bits) <= b; numerator >= 0.

    The argument is halved until it is below 1/2, the series of exp(-t) summed with every division rounded down, and the result
    squared as often with both ends rounded outwards. A term of the series is off by less than 2 units, from 1 unit of its own
    and at most half of the one before; so the sum of n terms is off by less than 2 n + 4, the terms left out included.
    """
    if numerator == 0:
        return 1 << precision, 1 << precision
    halvings = max(0, numerator.bit_length() - denominator_bits + 1)
    working = precision + halvings + 24
    down = denominator_bits + halvings
    term, total, n = 1 << working, 1 << working, 0
    while term:
        n += 1
        term = (term * numerator >> down) // n
        total += -term if n % 2 else term
    slack = 2 * n + 8
    low, high = max(0, total - slack), min(1 << working, total + slack)
    for _ in range(halvings):
        low, high = low * low >> working, -(-high * high >> working)
    drop = working - precision
    return low >> drop, -(-high >> drop)


@lru_cache(maxsize=16)
def table_of(law: Law) -> Table:
    """Returns the table of a law; made once per law, which must be hashable by its parameters."""
    return Table(law)
