"""Reads the strategy that a policy signs, and writes one as a policy would: in whole numbers, so that everybody computes from
the same ones.

Coefficients are whole numbers of 2^-20, decays and scales of buffers of 2^-40. What does not fit into a policy lies in a file
of which the policy has the SHA-256: four bytes a number, big-endian, two's complement, row by row; of a dense strategy every
row up to its diagonal, of general bands those from the diagonal down, column by column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from attest.policy.mechanism import BUFFER_BITS, GRID_BITS, MAX_COEFFICIENTS, Bands, Buffers, MechanismRule
from ledger.accountants.correlated.strategies import (
    CODE,
    Banded,
    BandedInverse,
    Buffered,
    Dense,
    Strategy,
    Toeplitz,
    require,
)
from ledger.errors import AccountantError

if TYPE_CHECKING:
    import numpy as np

_ONE: Final = 1 << GRID_BITS
_BUFFER: Final = 1 << BUFFER_BITS


def strategy_of(rule: MechanismRule, steps: int, coefficients: bytes | None = None) -> Strategy:
    """Returns the strategy of a policy.

    Args:
        rule: the noise of the policy. steps: of the policy, for which columns are normalised. coefficients: the file of its
            digest, where it has one.

    Raises:
        AccountantError: code STRATEGY, noise that is not correlated, coefficients that are not those of the digest or not as
            many as the strategy has, or no strategy.
    """
    if rule.digest is not None:
        if coefficients is None:
            raise AccountantError(CODE, f"noise.family {rule.name!r} has its coefficients in a file; give that of its digest")
        if hashlib.sha256(coefficients).digest() != rule.digest:
            raise AccountantError(CODE, "the coefficients are not those of noise.digest; take the file that was signed")
    numbers = rule.parameters
    if rule.name == "buffered_toeplitz":
        return Buffered(tuple(d / _BUFFER for d in numbers.decays), tuple(s / _BUFFER for s in numbers.scales))
    if rule.name == "dense":
        assert coefficients is not None
        return Dense(_triangle(_read(coefficients, steps * (steps + 1) // 2), steps))
    if rule.name not in ("banded_toeplitz", "banded_inverse", "banded"):
        raise AccountantError(CODE, f"noise.family {rule.name!r} is not correlated between steps, and has no strategy")
    if rule.name == "banded":
        assert coefficients is not None
        return Banded(_columns(coefficients, steps, numbers.bands), normalized=numbers.normalized)
    held = _read(coefficients, numbers.bands) if coefficients is not None else [c / _ONE for c in numbers.coefficients]
    if rule.name == "banded_inverse":
        if numbers.normalized:
            raise AccountantError(CODE, "columns of a banded inverse are not normalised; leave normalized out")
        found: Strategy = BandedInverse(tuple(held))
    else:
        found = Toeplitz(tuple(held), steps if numbers.normalized else None)
    require(found, steps)
    return found


def rule_of(strategy: Strategy) -> tuple[MechanismRule, bytes | None]:
    """Returns the noise of a policy with the strategy nearest to one, and the file of its coefficients where it needs one.

    The first coefficient becomes 1: a strategy is scaled before its noise is, so that this changes nothing. Scales of buffers
    are rounded down, so that they are still at most 1 together.

    Raises:
        AccountantError: code STRATEGY, a strategy that has no word.
    """
    if isinstance(strategy, Buffered) and strategy.decays:
        decays = tuple(min(max(round(d * _BUFFER), 1), _BUFFER - 1) for d in strategy.decays)
        scales = tuple(max(int(s * _BUFFER), 1) for s in strategy.scales)
        return MechanismRule("buffered_toeplitz", Buffers(decays=decays, scales=scales)), None
    if isinstance(strategy, Dense):
        return _in_file("dense", None, [row[: place + 1] for place, row in enumerate(strategy.rows)])
    if isinstance(strategy, Banded):
        bands = Bands(bands=strategy.bands, normalized=strategy.normalized)
        columns, steps = strategy.rows, strategy.longest
        return _in_file("banded", bands, ([columns[j][t - j] for j in places] for t, places in _banded(steps, strategy.bands)))
    if isinstance(strategy, Toeplitz | BandedInverse) and len(strategy.coefficients) > 1:
        first = strategy.coefficients[0]
        numbers = tuple(_whole(value / first) for value in strategy.coefficients)
        normalized = isinstance(strategy, Toeplitz) and strategy.steps is not None
        name = "banded_toeplitz" if isinstance(strategy, Toeplitz) else "banded_inverse"
        if len(numbers) <= MAX_COEFFICIENTS:
            held = Bands(bands=len(numbers), coefficients=numbers, normalized=normalized)
            return MechanismRule(name, held), None
        scaled = [[value / first for value in strategy.coefficients]]
        return _in_file(name, Bands(bands=len(numbers), normalized=normalized), scaled)
    raise AccountantError(CODE, "independent noise has no strategy to sign; its family is 'gaussian'")


def _in_file(name: str, parameters: Bands | None, rows: Iterable[Iterable[float]]) -> tuple[MechanismRule, bytes]:
    """Returns the rule of numbers that lie in a file, and the file."""
    data = b"".join(_whole(value).to_bytes(4, "big", signed=True) for row in rows for value in row)
    return MechanismRule(name, parameters, hashlib.sha256(data).digest()), data


def _whole(value: float) -> int:
    """Returns a coefficient in units of 2^-20."""
    found = round(value * _ONE)
    if not -(1 << 31) <= found < 1 << 31:
        raise AccountantError(CODE, f"a coefficient is {value:g}, expected one between -2048 and 2048; scale the strategy")
    return found


def _read(data: bytes, count: int) -> np.ndarray:
    """Returns the numbers of a file."""
    import numpy as np

    if len(data) != 4 * count:
        raise AccountantError(CODE, f"the file of coefficients has {len(data)} bytes, expected {4 * count}, four a number")
    return np.frombuffer(data, dtype=">i4").astype(np.float64) / _ONE


def _banded(steps: int, bands: int) -> Iterator[tuple[int, range]]:
    """Yields every row with its columns that lie in the bands."""
    return ((t, range(max(0, t - bands + 1), t + 1)) for t in range(steps))


def _columns(data: bytes, steps: int, bands: int) -> tuple[tuple[float, ...], ...]:
    """Returns columns from the diagonal down, of a file that has rows up to it; what lies below the matrix is zero."""
    places = [(j, t - j) for t, columns in _banded(steps, bands) for j in columns]
    held = [[0.0] * bands for _ in range(steps)]
    for (column, below), value in zip(places, _read(data, len(places)).tolist(), strict=True):
        held[column][below] = value
    return tuple(map(tuple, held))


def _triangle(numbers: np.ndarray, steps: int) -> np.ndarray:
    """Returns a lower triangular matrix of its rows up to the diagonal."""
    import numpy as np

    held = np.zeros((steps, steps))
    held[np.tril_indices(steps)] = numbers
    return held
