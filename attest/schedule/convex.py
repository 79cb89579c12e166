"""Solves the convex programme of noise under budgets: least noise energy at which every class keeps its multiplier.

Notation: block l costs ``costs[l]`` per unit of noise variance v_l; class k may touch the blocks in ``demands[k]``, and
``demands[k][l] = (sigma_k C_kl)^2`` with C_kl its clip norm there. The programme is

    minimise  sum_l costs[l] v_l   subject to   sum_l demands[k][l] / v_l <= 1  for every class k,

which is convex. With a multiplier lam_k >= 0 per class its solution is ``v_l = sqrt(q_l / costs[l])``, ``q_l = sum_k lam_k
demands[k][l]``, and its dual is to maximise ``2 sum_l sqrt(costs[l] q_l) - sum_k lam_k``: as many unknowns as classes, however
many blocks there are (Boyd and Vandenberghe 2004, sections 5.5 and 11.3).

Arithmetic is +, -, *, / and square roots of doubles, in one order, so that every machine finds the same numbers; what is
promised of them is checked in integers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from attest.errors import ValueRefused

LARGEST_GAP = 1e-6
"""Relative duality gap beyond which a solution is refused."""

_SMALLEST_BARRIER = 2.0**-36
_NEWTON_STEPS = 60
_FIXED = 100
"""Bits after the binary point of the exact checks."""

_MARGIN = 2.0**-40
"""By how much a solution is rounded up, and a bound that rests on sums of doubles down."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """Holds a solution whose feasibility was checked in integers.

    Attributes:
        stds: square roots of v_l, per block; 0.0 for a block that no class demands anything of.
        bound: no feasible point has less energy than this.
    """

    stds: tuple[float, ...]
    energy: float
    bound: float

    @property
    def gap(self) -> float:
        """Says how far the energy is above the bound, relative to it: the optimum lies between."""
        return max(0.0, self.energy / self.bound - 1.0)


@dataclass(frozen=True, slots=True)
class _Group:
    """Blocks whose demands are multiples of one column: ``root`` is the sum over them of sqrt(costs[l] * multiple)."""

    column: tuple[tuple[int, float], ...]
    root: float


def solve(costs: Sequence[float], demands: Sequence[Mapping[int, Fraction]]) -> Optimum:
    """Solves the programme.

    Guarantee: ``feasible(stds, demands)`` holds, in exact arithmetic; the energy is within `LARGEST_GAP` of the least.

    Args:
        costs: Positive, per block; number of coordinates for the expected squared norm of the noise.
        demands: Per class, its positive demand on every block that it may touch.

    Raises:
        ValueRefused: Code RANGE for a class without blocks or numbers that are not positive; PROGRAMME where the bounds of
            classes are so far apart that doubles do not settle the optimum.
    """
    _check(costs, demands)
    largest = max(value for row in demands for value in row.values())
    rows = [{block: value / largest for block, value in row.items()} for row in demands]
    binding = _binding(rows)
    groups = _groups(costs, [rows[k] for k in binding])
    found = _dual(groups, len(binding))
    scale = math.sqrt(float(largest)) * (1.0 + _MARGIN)
    stds = [0.0] * len(costs)
    touched: dict[int, float] = {}
    for multiplier, k in zip(found, binding, strict=True):
        for block, value in rows[k].items():
            touched[block] = touched.get(block, 0.0) + multiplier * float(value)
    for block in {block for row in rows for block in row}:
        stds[block] = math.sqrt(math.sqrt(touched[block] / costs[block])) * scale
    stds = _made_feasible(stds, demands)
    root = _total(group.root * math.sqrt(_inner(group, found)) for group in groups)
    bound = root * root / _total(found) * float(largest) * (1.0 - _MARGIN)
    optimum = Optimum(tuple(stds), energy(costs, stds), bound)
    if not optimum.gap <= LARGEST_GAP:
        raise ValueRefused(
            "PROGRAMME",
            f"noise under budgets came to within {optimum.gap:.1e} of the optimum, expected {LARGEST_GAP:.0e}; bring "
            "the bounds of classes that share blocks closer together, or leave the budgets out",
        )
    return optimum


def energy(costs: Sequence[float], stds: Sequence[float]) -> float:
    """Returns sum over blocks of costs[l] s_l^2."""
    return _total(cost * std * std for cost, std in zip(costs, stds, strict=True))


def feasible(stds: Sequence[float], demands: Sequence[Mapping[int, Fraction]]) -> bool:
    """Tells whether every class's constraint holds: sum_l demands[k][l] / s_l^2 <= 1. Exact, and never true where it does not.

    Terms are rounded up to 2^-100, so that a sum within that of 1 per block may count as too large.
    """
    squares = {std: Fraction(std) ** 2 for std in set(stds)}
    one = 1 << _FIXED
    for row in demands:
        total = 0
        for block, value in row.items():
            square = squares[stds[block]]
            if square == 0:
                return False
            total -= (-value.numerator * square.denominator << _FIXED) // (value.denominator * square.numerator)
        if total > one:
            return False
    return True


def _total(values: Iterable[float]) -> float:
    """Returns a sum from left to right; what `sum` does with doubles depends on the version of Python."""
    total = 0.0
    for value in values:
        total += value
    return total


def _check(costs: Sequence[float], demands: Sequence[Mapping[int, Fraction]]) -> None:
    if not demands or not all(demands):
        raise ValueRefused("RANGE", "a class touches no block, so there is no noise to find for it")
    for cost in costs:
        if not (math.isfinite(cost) and cost > 0):
            raise ValueRefused("RANGE", f"the cost of a block is {cost}, expected a positive finite number")
    for row in demands:
        if any(value <= 0 for value in row.values()):
            raise ValueRefused("RANGE", "a demand on a block is not positive; leave the block out of the class's profile")


def _binding(rows: Sequence[Mapping[int, Fraction]]) -> list[int]:
    """Returns classes whose constraint does not follow from that of another one, which demands as much wherever they do."""
    kept: list[int] = []
    for k in sorted(range(len(rows)), key=lambda k: (-len(rows[k]), -sum(rows[k].values()), k)):
        row = rows[k]
        if not any(all(block in rows[j] and rows[j][block] >= value for block, value in row.items()) for j in kept):
            kept.append(k)
    return sorted(kept)


def _groups(costs: Sequence[float], rows: Sequence[Mapping[int, Fraction]]) -> list[_Group]:
    found: dict[tuple[tuple[int, Fraction], ...], float] = {}
    for block, cost in enumerate(costs):
        column = [(k, row[block]) for k, row in enumerate(rows) if block in row]
        if column:
            first = column[0][1]
            key = tuple((k, value / first) for k, value in column)
            found[key] = found.get(key, 0.0) + math.sqrt(cost * float(first))
    return [_Group(tuple((k, float(value)) for k, value in key), root) for key, root in found.items()]


def _inner(group: _Group, multipliers: Sequence[float]) -> float:
    return _total(multipliers[k] * value for k, value in group.column)


def _slacks(groups: Sequence[_Group], multipliers: Sequence[float]) -> list[float]:
    """Of every class 1 - sum_l demands[k][l] / v_l at the v_l of these multipliers."""
    slacks = [1.0] * len(multipliers)
    for group in groups:
        share = group.root / math.sqrt(_inner(group, multipliers))
        for k, value in group.column:
            slacks[k] -= share * value
    return slacks


def _dual(groups: Sequence[_Group], classes: int) -> list[float]:
    """Returns the multipliers at which every slack is positive, and slack times multiplier a tiny part of what the class needs
    alone.

    Newton's method on the dual with a logarithmic barrier whose weight falls. It starts where every class has the multiplier
    that it would have alone, at which all constraints hold: others only add noise.
    """
    alone = [0.0] * classes
    for group in groups:
        for k, value in group.column:
            alone[k] += group.root * math.sqrt(value)
    needs = [value * value for value in alone]
    found = list(needs)
    barrier = 1.0
    while barrier > _SMALLEST_BARRIER:
        barrier *= 0.25
        trial = _centred(groups, found, [barrier * need for need in needs])
        if trial is None:
            break
        found = trial
    return found


def _centred(groups: Sequence[_Group], start: Sequence[float], targets: Sequence[float]) -> list[float] | None:
    """Returns the multipliers with multiplier * slack = target for every class, up to a half of it; None where doubles do not
    find them."""
    at = list(start)
    for _ in range(_NEWTON_STEPS):
        slacks = _slacks(groups, at)
        residuals = [x * slack - target for x, slack, target in zip(at, slacks, targets, strict=True)]
        if all(abs(value) <= 0.25 * target for value, target in zip(residuals, targets, strict=True)):
            return at
        direction = _newton(groups, at, residuals, targets)
        if direction is None:
            return None
        slope = _total(r * y for r, y in zip(residuals, direction, strict=True))
        step = min([1.0] + [-0.9 / y for y in direction if y < -0.9])
        for _ in range(40):
            trial = [x * (1.0 + step * y) for x, y in zip(at, direction, strict=True)]
            ahead = _total(
                x * y * (slack - target / new)
                for x, y, slack, target, new in zip(at, direction, _slacks(groups, trial), targets, trial, strict=True)
            )
            if ahead <= -0.5 * slope:  # the function falls along the direction, or has not risen by much
                break
            step *= 0.5
        at = trial
    return None


def _newton(
    groups: Sequence[_Group], at: Sequence[float], residuals: Sequence[float], targets: Sequence[float]
) -> list[float] | None:
    """Newton's direction, relative to the multipliers, by Cholesky; None for a matrix that is singular in doubles."""
    size = len(at)
    matrix = [[0.0] * size for _ in range(size)]
    for group in groups:
        inner = _inner(group, at)
        weight = group.root / (2.0 * inner * math.sqrt(inner))
        scaled = [(k, at[k] * value) for k, value in group.column]
        for i, (k, left) in enumerate(scaled):
            row = matrix[k]
            for j, right in scaled[: i + 1]:
                row[j] += weight * left * right
    for k, target in enumerate(targets):
        matrix[k][k] += target
    for k in range(size):  # in place: the lower triangle becomes the factor
        row = matrix[k]
        for j in range(k):
            other = matrix[j]
            row[j] = (row[j] - _total(row[i] * other[i] for i in range(j))) / other[j]
        pivot = row[k] - _total(value * value for value in row[:k])
        if not pivot > 0.0:
            return None
        row[k] = math.sqrt(pivot)
    found = [-value for value in residuals]
    for k in range(size):
        found[k] = (found[k] - _total(matrix[k][j] * found[j] for j in range(k))) / matrix[k][k]
    for k in reversed(range(size)):
        found[k] = (found[k] - _total(matrix[j][k] * found[j] for j in range(k + 1, size))) / matrix[k][k]
    return found


def _made_feasible(stds: list[float], demands: Sequence[Mapping[int, Fraction]]) -> list[float]:
    """Returns the same, larger by as little as the exact constraints take."""
    growth = _MARGIN
    while not feasible(stds, demands):
        stds = [std * (1.0 + growth) for std in stds]
        growth *= 2.0
    return stds
