"""Describes the strategies by which noise of several steps is correlated: lower triangular matrices C, without torch.

Step t of a run of n steps has row t of s C^-1 Z, with Z independent standard normals: the releases are post-processing of C G +
s Z, one Gaussian mechanism on the sums G of all steps. So what a run costs follows from C alone. Rows and columns count from 0.

Source: Denisov et al., "Improved Differential Privacy for SGD via Optimal Private Linear Operators on Adaptive Streams" (2022);
Choquette-Choo et al., "(Amplified) Banded Matrix Factorization" (2023); Dvijotham et al., "Efficient and Near-Optimal Noise
Generation for Streaming Differential Privacy" (2024) for buffers.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

from ledger.errors import AccountantError

if TYPE_CHECKING:
    import numpy as np

CODE: Final = "STRATEGY"
"""Code of what is no strategy, or none for so many steps."""

SMALLEST: Final = 1e-100
"""Least number on a diagonal: squares of smaller ones vanish in float64."""

LARGEST: Final = 1e100
"""Largest magnitude of a number: sums of products of larger ones overflow."""


@dataclass(frozen=True, eq=False)
class Strategy(ABC):
    """Stands for the matrix C of any number of steps that it serves."""

    @property
    @abstractmethod
    def bands(self) -> int | None:
        """Returns the diagonals that may hold something, the main one among them; None where all may."""

    @property
    def longest(self) -> int | None:
        """Returns the most steps that it is made for; None for any number."""
        return None

    @abstractmethod
    def matrix(self, steps: int) -> np.ndarray:
        """Returns C, shape (steps, steps), float64: for small numbers of steps."""

    @abstractmethod
    def gram(self, steps: int, lag: int) -> np.ndarray:
        """Returns X[j, j + lag] for all j, shape (steps - lag,), of X = C^T C."""

    def norms_squared(self, steps: int) -> np.ndarray:
        """Returns the squared norms of the columns, shape (steps,)."""
        return self.gram(steps, 0)

    def common(self, steps: int) -> np.ndarray | None:
        """Returns the first column, shape (steps,), where every column is that one, moved down; else None."""
        return None

    def row(self, step: int, steps: int) -> np.ndarray:
        """Returns what stands in a row up to the diagonal, shape (step + 1,), of the matrix of some steps."""
        import numpy as np

        return np.asarray(self.matrix(steps)[step, : step + 1])

    def slack(self, steps: int) -> float:
        """Returns a bound of the share by which the norm of C u exceeds what the numbers of C here give, for any u.

        Noise is made of C^-1. Where that is what is known, or both are, the C of the noise is not quite this one.
        """
        return 0.0


@dataclass(frozen=True, eq=False)
class OneColumn(Strategy):
    """Has one column for all steps, which ends nowhere."""

    @property
    @abstractmethod
    def made_of(self) -> int:
        """Returns how many numbers it is made of, beside the diagonal."""

    @property
    def bands(self) -> int | None:
        return None if self.made_of else 1

    @abstractmethod
    def column(self, steps: int) -> np.ndarray:
        """Returns the first column, shape (steps,)."""

    def common(self, steps: int) -> np.ndarray:
        return self.column(steps)

    def matrix(self, steps: int) -> np.ndarray:
        return moved_down(self.column(steps))

    def row(self, step: int, steps: int) -> np.ndarray:
        return self.column(steps)[step::-1]

    def gram(self, steps: int, lag: int) -> np.ndarray:
        column = self.column(steps)
        return _tails(column[lag:] * column[: steps - lag])


def require(strategy: Strategy, steps: int) -> None:
    """Raises AccountantError: code STRATEGY, no such number of steps, or more than the strategy is made for."""
    if type(steps) is not int or steps < 1:
        raise AccountantError(CODE, f"a strategy has 1 step or more, got {steps!r}")
    if strategy.longest is not None and steps > strategy.longest:
        told = f"the strategy is made for {strategy.longest} steps, and {steps} are asked for; columns beyond would cost more"
        raise AccountantError(CODE, told, nearest=float(strategy.longest))


@dataclass(frozen=True)
class Toeplitz(Strategy):
    """Has one column, moved down from step to step: C[i, j] = coefficients[i - j].

    Attributes:
        coefficients: first column, of any length below the number of steps; zero behind.
        steps: where given, every column is scaled to norm 1 in the matrix of that many steps, which is the longest then.

    Raises:
        AccountantError: code STRATEGY, coefficients are not finite, or the first is not positive.
    """

    coefficients: tuple[float, ...]
    steps: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", checked_column(self.coefficients))
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise AccountantError(CODE, f"columns are normalised for 1 step or more, got {self.steps!r}")

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    @property
    def longest(self) -> int | None:
        return self.steps

    def column(self, steps: int) -> np.ndarray:
        """Returns the first column before it is scaled, shape (steps,)."""
        import numpy as np

        require(self, steps)
        held = np.zeros(steps)
        held[: len(self.coefficients)] = self.coefficients[:steps]
        return held

    def scales(self, steps: int) -> np.ndarray:
        """Returns what each column is multiplied with, shape (steps,)."""
        import numpy as np

        require(self, steps)
        if self.steps is None:
            return np.ones(steps)
        return 1.0 / np.sqrt(_tails(self.column(self.steps) ** 2)[:steps])

    def matrix(self, steps: int) -> np.ndarray:
        return moved_down(self.column(steps)) * self.scales(steps)

    def common(self, steps: int) -> np.ndarray | None:
        return self.column(steps) if self.steps is None else None

    def row(self, step: int, steps: int) -> np.ndarray:
        return self.column(steps)[step::-1] * self.scales(steps)[: step + 1]

    def gram(self, steps: int, lag: int) -> np.ndarray:
        column, scales = self.column(steps), self.scales(steps)
        product = _tails(column[lag:] * column[: steps - lag])
        return product * scales[: steps - lag] * scales[lag:]


@dataclass(frozen=True)
class BandedInverse(OneColumn):
    """Has a Toeplitz inverse of few diagonals: C^-1[i, j] = coefficients[i - j], and C all diagonals.

    Raises:
        AccountantError: code STRATEGY, as `Toeplitz`.
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", checked_column(self.coefficients))

    @property
    def made_of(self) -> int:
        return len(self.coefficients) - 1

    def column(self, steps: int) -> np.ndarray:
        """Returns the first column of C, shape (steps,), by the recurrence of power series, oldest terms first."""
        require(self, steps)
        return _turned_over(self.coefficients, steps)

    def slack(self, steps: int) -> float:
        column = self.column(steps)
        try:
            total, turned = (math.fsum(map(abs, values)) for values in (column.tolist(), self.coefficients))
        except OverflowError:  # a column that grows beyond float64
            return math.inf
        # c' - c = -c' * (w * c - 1), as power series: what rounding leaves of w * c - 1 is no more than that of its sums.
        apart = (len(self.coefficients) + 2) * 2.0**-52 * turned * total
        return 2.0 * apart * total * math.sqrt(steps) / float(column[0])


@dataclass(frozen=True, eq=False)
class Banded(Strategy):
    """Has columns of its own for every step: C[j + r, j] = rows[j][r].

    Attributes:
        rows: for every column what stands from the diagonal down, the same number in each, shape (steps, bands); what would lie
            below the matrix of that many steps, which is the longest, is zero.
        normalized: whether every column is scaled to norm 1.

    Raises:
        AccountantError: code STRATEGY, columns of unequal lengths, numbers that are not finite, or a diagonal that is not
            positive.
    """

    rows: Any
    normalized: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _checked_columns(self.rows))

    @property
    def bands(self) -> int:
        return int(self.rows.shape[1])

    @property
    def longest(self) -> int:
        return len(self.rows)

    @cached_property
    def _factors(self) -> np.ndarray:
        import numpy as np

        total = np.zeros(len(self.rows))
        for r in range(self.bands):  # from the diagonal down
            total += self.rows[:, r] * self.rows[:, r]
        return 1.0 / np.sqrt(total) if self.normalized else np.ones(len(total))

    def columns(self, steps: int) -> np.ndarray:
        """Returns the columns from the diagonal down, scaled, shape (steps, bands)."""
        import numpy as np

        require(self, steps)
        below = np.add.outer(np.arange(steps), np.arange(self.bands))
        return np.where(below < steps, self.rows[:steps] * self._factors[:steps, None], 0.0)

    def matrix(self, steps: int) -> np.ndarray:
        import numpy as np

        held = np.zeros((steps, steps))
        columns = self.columns(steps)
        for r in range(min(self.bands, steps)):
            place = np.arange(steps - r)
            held[place + r, place] = columns[: steps - r, r]
        return held

    def row(self, step: int, steps: int) -> np.ndarray:
        import numpy as np

        require(self, steps)
        held = np.zeros(step + 1)
        for r in range(min(self.bands, step + 1)):
            held[step - r] = self.rows[step - r, r] * self._factors[step - r]
        return held

    def gram(self, steps: int, lag: int) -> np.ndarray:
        import numpy as np

        require(self, steps)
        total, rows = np.zeros(steps - lag), self.rows
        for r in range(min(self.bands, steps) - lag):  # rows j + lag + r of all columns j at once, in ascending order
            count = min(steps - lag - r, steps - lag)
            total[:count] += rows[:count, r + lag] * rows[lag : lag + count, r]
        return np.asarray(total * self._factors[: steps - lag] * self._factors[lag:steps])


@dataclass(frozen=True)
class Buffered(OneColumn):
    """Has the first column 1, then sum_j scales[j] decays[j]^(i - 1) in row i: a buffer for every decay makes noise of it.

    Raises:
        AccountantError: code STRATEGY, as many scales as decays, decays in (0, 1), scales positive and at most 1 together,
            so that no coefficient exceeds the one before.
    """

    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        decays, scales = (tuple(float(value) for value in values) for values in (self.decays, self.scales))
        if not len(decays) == len(scales):
            raise AccountantError(CODE, f"there are {len(decays)} decays and {len(scales)} scales, expected as many")
        if (
            not all(0.0 < decay < 1.0 for decay in decays)
            or not all(scale > 0.0 for scale in scales)
            or math.fsum(scales) > 1.0
        ):
            raise AccountantError(CODE, "decays lie between 0 and 1, and scales are positive and at most 1 together")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "scales", scales)

    @property
    def made_of(self) -> int:
        return len(self.decays)

    def column(self, steps: int) -> np.ndarray:
        """Returns the first column, shape (steps,): powers by multiplication, one after the other."""
        require(self, steps)
        return _of_buffers(self.decays, self.scales, steps)

    def slack(self, steps: int) -> float:
        return (2 * steps + 2 * len(self.decays)) * 2.0**-53  # of positive terms, each of which is rounded as often at most


@dataclass(frozen=True, eq=False)
class Dense(Strategy):
    """Has any lower triangular matrix C of its number of steps, which is the longest.

    Attributes:
        rows: C. inverse: C^-1, of which noise is made; computed when it is asked for where it is left out.
        share: the slack that is counted with, whatever the inverse is: who makes noise has to meet it. That of the inverse
            where left out.

    Raises:
        AccountantError: code STRATEGY, not square, not finite, something above the diagonal, or a diagonal that is not
            positive; or the two are not inverse to each other.
    """

    rows: np.ndarray
    inverse: np.ndarray | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", checked_matrix(self.rows))
        if self.inverse is not None:
            object.__setattr__(self, "inverse", checked_matrix(self.inverse))
            if self.inverse.shape != self.rows.shape:
                raise AccountantError(CODE, f"a matrix of {len(self.rows)} steps has an inverse of {len(self.inverse)}")
        if self.share is None:
            self._require_inverse()

    @classmethod
    def of_inverse(cls, inverse: Any) -> Dense:
        """Returns the strategy of which C^-1 is given: what noise is made of, row by row."""
        held = checked_matrix(inverse)
        return cls(_turned(held), held)

    @cached_property
    def inverted(self) -> np.ndarray:
        """Returns C^-1, of which noise is made. Raises AccountantError: code STRATEGY, float64 has none."""
        return _turned(self.rows) if self.inverse is None else self.inverse

    @cached_property
    def apart(self) -> float:
        """Returns a bound of the norm of C^-1 C - 1, which is not zero in float64."""
        import numpy as np

        rows, inverse = self.rows, self.inverted
        apart = np.linalg.norm(inverse @ rows - np.eye(len(rows)))
        return float(apart + len(rows) * 2.0**-52 * np.linalg.norm(np.abs(inverse) @ np.abs(rows)))

    def _require_inverse(self) -> None:
        if not self.apart <= 1e-9:
            raise AccountantError(CODE, "the inverse of a strategy is not that of its matrix, or is not known to ten digits")

    @property
    def bands(self) -> int:
        return self._reach

    @cached_property
    def _reach(self) -> int:
        import numpy as np

        below, right = np.nonzero(self.rows)
        return int((below - right).max()) + 1

    @property
    def longest(self) -> int:
        return len(self.rows)

    def matrix(self, steps: int) -> np.ndarray:
        require(self, steps)
        return self.rows[:steps, :steps]

    def gram(self, steps: int, lag: int) -> np.ndarray:
        import numpy as np

        held, total = self.matrix(steps), np.zeros(steps - lag)
        for row in range(lag, steps):  # in ascending order, which no library chooses
            total[: row - lag + 1] += held[row, lag : row + 1] * held[row, : row - lag + 1]
        return total

    def slack(self, steps: int) -> float:
        return self.known_slack(steps) if self.share is None else self.share

    def known_slack(self, steps: int) -> float:
        """Returns the slack that the inverse has. Raises AccountantError: code STRATEGY, it is not known to ten digits."""
        import numpy as np

        self._require_inverse()
        # C' = C (1 + E)^-1. Of a set of k columns C u moves by 2 |E| |C| sqrt(k) more at most, and what is counted of it is
        # sqrt(k) times the least column norm or more. A row of C u moves by 2 |E| sqrt(k) times its norm more at most, which is
        # sqrt(n) times its largest number or less; and |C| is sqrt(n) times the least column norm or more.
        least = math.sqrt(float(self.norms_squared(steps).min()))
        return 2.0 * self.apart * float(np.linalg.norm(self.matrix(steps))) * math.sqrt(steps) / least


@lru_cache(maxsize=8)
def _of_buffers(decays: tuple[float, ...], scales: tuple[float, ...], steps: int) -> np.ndarray:
    """Returns the first column of buffers, not to be written to."""
    import numpy as np

    held = np.zeros(steps)
    held[0] = 1.0
    for decay, scale in zip(decays, scales, strict=True):
        powers = np.full(steps - 1, decay)
        powers[:1] = scale
        held[1:] += np.multiply.accumulate(powers)
    held.setflags(write=False)
    return held


@lru_cache(maxsize=8)
def _turned_over(coefficients: tuple[float, ...], steps: int) -> np.ndarray:
    """Returns the first column of the inverse of a Toeplitz matrix, not to be written to."""
    import numpy as np

    turned = np.array(coefficients)
    first, behind = turned[0], turned[1:]
    held = np.zeros(steps + len(behind))
    held[0] = 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        for place in range(steps):  # no sum in one call, whose order would be the library's
            held[place] /= first
            held[place + 1 : place + len(turned)] -= behind * held[place]
    held.setflags(write=False)
    return held[:steps]


def digest(strategy: Strategy) -> bytes:
    """Returns SHA-256 over the kind of a strategy and its numbers, as float64, big-endian: of what its noise is made of."""
    import numpy as np

    found = hashlib.sha256(f"dptrain strategy {type(strategy).__name__}".encode())
    for item in fields(strategy):
        value = getattr(strategy, item.name)
        held = np.array([] if value is None else value, dtype=">f8")
        found.update(f" {item.name} {held.shape} ".encode() + held.tobytes())
    return found.digest()


def identity() -> Toeplitz:
    """Returns the strategy of independent noise."""
    return Toeplitz((1.0,))


def checked_column(values: Any) -> tuple[float, ...]:
    """Returns numbers of a column as floats. Raises AccountantError: code STRATEGY, no finite numbers, or no positive first."""
    import numpy as np

    try:
        held = tuple(float(value) for value in np.asarray(values, dtype=np.float64).reshape(-1)) if np.ndim(values) == 1 else ()
    except (TypeError, ValueError):
        held = ()
    if not held or not all(map(math.isfinite, held)):
        raise AccountantError(CODE, "coefficients are a list of finite numbers, from the diagonal down")
    if held[0] <= 0.0:
        raise AccountantError(CODE, f"the diagonal of a strategy is positive, got {held[0]!r}; else it has no inverse")
    _require_size(held[0], max(map(abs, held)))
    return held


def _checked_columns(values: Any) -> np.ndarray:
    """Returns columns from the diagonal down, shape (steps, bands), not to be written to.

    Raises:
        AccountantError: code STRATEGY, they are of no banded strategy.
    """
    import numpy as np

    try:
        held = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        held = np.zeros(0)
    if held.ndim != 2 or not held.size:
        raise AccountantError(CODE, "a banded strategy has a column for every step, all of one length")
    inside = np.add.outer(np.arange(len(held)), np.arange(held.shape[1])) < len(held)
    if not np.isfinite(held).all():
        raise AccountantError(CODE, "coefficients are a list of finite numbers, from the diagonal down")
    if (held[:, 0] <= 0.0).any():
        raise AccountantError(CODE, f"the diagonal of a strategy is positive, got {held[:, 0].min():g}; else it has no inverse")
    _require_size(float(held[:, 0].min()), float(np.abs(held).max()))
    held = np.where(inside, held, 0.0)
    held.setflags(write=False)
    return held


def checked_matrix(values: Any) -> np.ndarray:
    """Returns a matrix as float64, not to be written to. Raises AccountantError: code STRATEGY, it is no strategy."""
    import numpy as np

    try:
        held = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise AccountantError(CODE, "a strategy is a square matrix of numbers") from None
    if held.ndim != 2 or held.shape[0] != held.shape[1] or not held.size:
        raise AccountantError(CODE, f"a strategy is a square matrix, got shape {held.shape}")
    if not np.isfinite(held).all():
        raise AccountantError(CODE, "a strategy holds finite numbers alone")
    above = np.argwhere(np.triu(held, 1))
    if len(above):
        row, column = above[0]
        raise AccountantError(CODE, f"a strategy is lower triangular, and row {row}, column {column} is not zero")
    diagonal = np.diagonal(held)
    if (diagonal <= 0.0).any():
        row = int(np.argmax(diagonal <= 0.0))
        raise AccountantError(CODE, f"the diagonal of a strategy is positive, got {diagonal[row]:g} in row {row}")
    _require_size(float(diagonal.min()), float(np.abs(held).max()))
    held.setflags(write=False)
    return held


def _turned(matrix: np.ndarray) -> np.ndarray:
    """Returns the inverse of a lower triangular matrix. Raises AccountantError: code STRATEGY, float64 has none."""
    import numpy as np

    try:
        return checked_matrix(np.tril(np.linalg.inv(matrix)))
    except np.linalg.LinAlgError as error:
        raise AccountantError(CODE, "the matrix of a strategy is next to singular: float64 has no inverse of it") from error


def _require_size(least: float, most: float) -> None:
    """Raises AccountantError: code STRATEGY, numbers whose squares float64 would lose."""
    if least < SMALLEST or most > LARGEST:
        told = f"a diagonal of {SMALLEST:g} or more and nothing above {LARGEST:g}, got {least:g} and {most:g}"
        raise AccountantError(CODE, f"a strategy has {told}; scale it, which changes no noise")


def moved_down(column: np.ndarray) -> np.ndarray:
    """Returns the lower triangular Toeplitz matrix of a first column, shape (n, n)."""
    import numpy as np

    age = np.subtract.outer(np.arange(len(column)), np.arange(len(column)))
    return np.where(age >= 0, column[np.maximum(age, 0)], 0.0)


def _tails(terms: np.ndarray) -> np.ndarray:
    """Returns sums of the terms that stay inside the matrix, by column: of the first n - j, for column j."""
    import numpy as np

    return np.cumsum(terms)[::-1]
