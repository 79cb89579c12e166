"""Reads the strategy that a policy signs, and writes one as a policy would: in whole numbers, so that everybody computes from
the same ones.

Coefficients are whole numbers of 2^-20, decays and scales of buffers of 2^-40. What does not fit into a policy lies in a file
of which the policy has the SHA-256: four bytes a number, big-endian, two's complement, row by row; of a dense strategy every
row up to its diagonal, of one with columns of its own what lies in the bands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from attest.policy.mechanism import (
    BUFFER_BITS,
    COEFFICIENTS,
    GRID_BITS,
    MAX_COEFFICIENTS,
    MAX_FILE,
    Bands,
    Buffers,
    MechanismRule,
)
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

SHARE: Final = 2.0**-20
"""Slack of a dense strategy that is signed: who makes noise of it knows its inverse so well, and readers need not invert it."""

MOST_DENSE: Final = 2048
"""Most steps of a dense strategy that is signed: 8 MiB of coefficients."""

MOST_COLUMNS: Final = 1 << 14
"""Most steps of a banded strategy with columns of its own that is signed."""


def numbers_in_file(rule: MechanismRule, steps: int) -> int:
    """Returns how many coefficients of a policy's noise lie in a file; 0 where it needs none.

    Args:
        rule: the noise of the policy. steps: of the policy.

    Raises:
        AccountantError: code STRATEGY, more than a ledger takes.
    """
    if rule.digest is None:
        return 0
    longest = {"dense": MOST_DENSE, "banded": MOST_COLUMNS}.get(rule.name, steps)
    if steps > longest:
        raise AccountantError(CODE, f"a {rule.name} strategy is signed for {longest} steps at most, not for {steps}")
    if rule.name == "dense":
        found = steps * (steps + 1) // 2
    else:
        bands = rule.parameters.bands
        if rule.name == "banded" and bands > steps:
            raise AccountantError(CODE, f"a banded strategy of {steps} steps has as many bands at most, not {bands}")
        found = steps * bands - bands * (bands - 1) // 2 if rule.name == "banded" else bands
    if 4 * found > MAX_FILE:
        raise AccountantError(CODE, f"a strategy of {found} coefficients is too large, expected {MAX_FILE // 4} at most")
    return found


def require_at_hand(rule: MechanismRule) -> None:
    """Raises AccountantError: code COEFFICIENTS, something of a policy's noise lies in a file that is missing."""
    if not rule.at_hand:
        assert rule.digest is not None
        told = f"lie in a file of SHA-256 {rule.digest.hex()}, which is not here"
        raise AccountantError(COEFFICIENTS, f"the coefficients of noise.family {rule.name!r} {told}; put it beside the policy")


def strategy_of(rule: MechanismRule, steps: int) -> Strategy:
    """Returns the strategy of a policy.

    Args:
        rule: the noise of the policy, with the coefficients of its digest where it has one. steps: of the policy, for which
            columns are normalised.

    Raises:
        AccountantError: code STRATEGY, noise that is not correlated, not as many coefficients as the strategy has, or no
            strategy. COEFFICIENTS, they lie in a file that is not at hand.
    """
    numbers, count = rule.parameters, numbers_in_file(rule, steps)
    if rule.name == "buffered_toeplitz":
        return Buffered(tuple(d / _BUFFER for d in numbers.decays), tuple(s / _BUFFER for s in numbers.scales))
    if rule.name not in ("banded_toeplitz", "banded_inverse", "banded", "dense"):
        raise AccountantError(CODE, f"noise.family {rule.name!r} is not correlated between steps, and has no strategy")
    if rule.name == "banded_inverse" and numbers.normalized:
        raise AccountantError(CODE, "columns of a banded inverse are not normalised; leave normalized out")
    held = _read(rule, count) if count else None
    if rule.name == "dense":
        assert held is not None
        return Dense(_triangle(held, steps), share=SHARE)
    if rule.name == "banded":
        assert held is not None
        return Banded(_columns(held, steps, numbers.bands), normalized=numbers.normalized)
    column = tuple(c / _ONE for c in numbers.coefficients) if held is None else tuple(held.tolist())
    if rule.name == "banded_inverse":
        found: Strategy = BandedInverse(column)
    else:
        found = Toeplitz(column, steps if numbers.normalized else None)
    require(found, steps)
    return found


def rule_of(strategy: Strategy) -> MechanismRule:
    """Returns the noise of a policy with the strategy nearest to one; with the coefficients that go into a file where it needs
    one.

    The first coefficient becomes 1, and the largest of a dense strategy or of one with columns of its own: a strategy is scaled
    before its noise is, so that this changes nothing. Scales of buffers are rounded down, so that they are still at most 1
    together.

    Raises:
        AccountantError: code STRATEGY, a strategy that has no word.
    """
    if isinstance(strategy, Buffered) and strategy.decays:
        decays = tuple(min(max(round(d * _BUFFER), 1), _BUFFER - 1) for d in strategy.decays)
        scales = tuple(max(int(s * _BUFFER), 1) for s in strategy.scales)
        return MechanismRule("buffered_toeplitz", Buffers(decays=decays, scales=scales))
    if isinstance(strategy, Dense | Banded):
        return _of_many(strategy)
    if isinstance(strategy, Toeplitz | BandedInverse) and len(strategy.coefficients) > 1:
        first = strategy.coefficients[0]
        numbers = tuple(_whole(value / first) for value in strategy.coefficients)
        normalized = isinstance(strategy, Toeplitz) and strategy.steps is not None
        name = "banded_toeplitz" if isinstance(strategy, Toeplitz) else "banded_inverse"
        if len(numbers) <= MAX_COEFFICIENTS:
            held = Bands(bands=len(numbers), coefficients=numbers, normalized=normalized)
            return MechanismRule(name, held)
        return _in_file(name, Bands(bands=len(numbers), normalized=normalized), numbers)
    raise AccountantError(CODE, "independent noise has no strategy to sign; its family is 'gaussian'")


def _of_many(strategy: Dense | Banded) -> MechanismRule:
    """Returns the rule of a strategy with columns of their own: its rows up to the diagonal, those of bands from where they
    begin."""
    import numpy as np

    largest = float(np.abs(strategy.rows).max())
    if isinstance(strategy, Dense):
        rows = strategy.rows[np.tril_indices(len(strategy.rows))]
        return _in_file("dense", None, [_whole(value / largest) for value in rows.tolist()])
    columns, below = _places(strategy.longest, strategy.bands)
    held = Bands(bands=strategy.bands, normalized=strategy.normalized)
    return _in_file("banded", held, [_whole(value / largest) for value in strategy.rows[columns, below].tolist()])


def _in_file(name: str, parameters: Bands | None, numbers: Iterable[int]) -> MechanismRule:
    """Returns the rule of numbers that lie in a file, with the file."""
    data = b"".join(number.to_bytes(4, "big", signed=True) for number in numbers)
    return MechanismRule(name, parameters, hashlib.sha256(data).digest(), data)


def _whole(value: float) -> int:
    """Returns a coefficient in units of 2^-20."""
    found = round(value * _ONE)
    if not -(1 << 31) <= found < 1 << 31:
        raise AccountantError(CODE, f"a coefficient is {value:g}, expected one between -2048 and 2048; scale the strategy")
    return found


def _read(rule: MechanismRule, count: int) -> np.ndarray:
    """Returns the numbers of a file."""
    import numpy as np

    require_at_hand(rule)
    assert rule.coefficients is not None
    if len(rule.coefficients) != 4 * count:
        found = f"the file of coefficients has {len(rule.coefficients)} bytes"
        raise AccountantError(CODE, f"{found}, expected {4 * count}, four a number")
    return np.frombuffer(rule.coefficients, dtype=">i4").astype(np.float64) / _ONE


def _places(steps: int, bands: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each coefficient of a banded strategy, row by row, its column and how far below the diagonal it is."""
    import numpy as np

    below = np.broadcast_to(np.arange(bands - 1, -1, -1), (steps, bands))
    columns = np.arange(steps)[:, None] - below
    inside = columns >= 0
    return columns[inside], below[inside]


def _columns(numbers: np.ndarray, steps: int, bands: int) -> np.ndarray:
    """Returns columns from the diagonal down, of rows up to it; what lies below the matrix is zero."""
    import numpy as np

    held = np.zeros((steps, bands))
    held[_places(steps, bands)] = numbers
    return held


def _triangle(numbers: np.ndarray, steps: int) -> np.ndarray:
    """Returns a lower triangular matrix of its rows up to the diagonal."""
    import numpy as np

    held = np.zeros((steps, steps))
    held[np.tril_indices(steps)] = numbers
    return held
