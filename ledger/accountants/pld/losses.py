"""Loss distributions of single sampled Gaussian steps on a grid, with bounds on what was rounded. `tilted` composes them.

Losses between two points of the grid are split between these so that both worlds keep their mass (Doroshenko, Ghazi, Kamath,
Kumar and Manurangsi 2022, "connect the dots"), which dominates the step. Every mass is an integral of a positive function, so
that none is a difference, and has a small *relative* error: proof in `tilted`.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

UNIT: Final = 2.0**-53
"""Unit roundoff of IEEE doubles."""

SPAN: Final = 11.0
"""Noise beyond so many standard deviations counts as an infinite loss."""

BEYOND: Final = 4e-28
"""More than the probability of that, on both sides together (1.92e-28 each)."""

_RADIUS: Final = 0.1
_NODES: Final = 6
_BLOCK: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class OneStep:
    """Loss distribution of one step: mass ``probs[i]`` at the loss (lower + i) * interval + shift.

    Attributes:
        lower: index of the first point of the grid.
        probs: masses; the exact ones differ from them by a factor within 1 +- ``slack``.
        infinity: mass at infinity, at least.
        slack: bound on the relative error of a mass.
        shift: what losses on the grid may lie too low by.
    """

    lower: int
    probs: Any
    infinity: float
    slack: float
    shift: float


def extent(z: float, q: float, replace: bool = False) -> tuple[float, float]:
    """Returns the least and the greatest finite loss of a step: where noise is `SPAN` standard deviations away."""
    rate, centre = 1.0 / z, 0.5 / z / z

    def loss(w: float) -> float:
        w -= centre
        if q == 1.0:
            return w
        return math.log1p(q * math.expm1(w)) if w < 1.0 else w + math.log(q) + math.log1p((1.0 - q) / q * math.exp(-w))

    top = loss((SPAN + rate) * rate)
    if not replace:
        return loss(-SPAN * rate), top
    return -top + loss(-(SPAN + rate) * rate), top - loss(-(SPAN + rate) * rate)


def one_step(z: float, q: float, interval: float, replace: bool = False) -> tuple[OneStep, ...]:
    """Returns distributions that dominate one Gaussian step with noise multiplier z sampled at rate q, one per direction.

    Guarantee: The exact loss distribution of N(0, z^2) against N(1, z^2) sampled at rate q, in the direction of removing and of
    adding, is dominated by the exact masses of which ``probs`` are roundings; so it is for any number of steps. With
    ``replace`` both worlds are sampled, and lie on either side of 0: one direction, as it is its own reverse.

    Source: Doroshenko et al. (2022), Theorem 3.3, with masses as integrals of hat functions in e^loss.
    """
    import numpy as np

    rate, centre = 1.0 / z, 0.5 / z / z
    first, last = extent(z, q, replace)
    low, high = math.floor(first / interval) - 1, math.ceil(last / interval) + 1
    points = np.arange(low, high + 1) * interval
    where = z * (_at_replace(points, q, centre) if replace else _at(points, q) + centre)
    bottom = int(np.count_nonzero(np.isneginf(where))) - 1
    gap = 0.0
    if bottom >= 0:  # the lowest point lies below log(1 - q), where no loss does
        low, points, where = low + bottom, points[bottom:], where[bottom:]
        gap = max(0.0, -(math.expm1(points[0]) + q) if points[0] > -0.5 else (1.0 - q) - math.exp(points[0]))
    if replace:
        weights = np.logaddexp(math.log1p(-q), math.log(q) + where * rate - centre) if q < 1.0 else where * rate - centre
    else:
        weights = points
    removing, adding = np.zeros(len(points)), np.zeros(len(points))
    for start in range(0, len(points) - 1, _BLOCK):
        part = slice(start, min(start + _BLOCK, len(points) - 1) + 1)
        with np.errstate(over="ignore", invalid="ignore"):
            masses = _hats(where[part], weights[part], z, q, gap if start == 0 and bottom >= 0 else None, replace)
        removing[part] += masses[0]
        adding[part] += masses[1]
    reach = SPAN + rate
    slack = UNIT * (128.0 + 8.0 * reach * reach)
    shift = 16.0 * UNIT * (4.0 + 2.0 * reach * rate + abs(math.log(q)))
    if not math.isfinite(float(np.sum(removing) + np.sum(adding))):  # content replaced at multipliers near 0.02
        removing, adding, lost = np.nan_to_num(removing, posinf=0.0), np.nan_to_num(adding, posinf=0.0), 1.0
    else:
        lost = BEYOND
    steps = (OneStep(low, removing, lost, slack, shift), OneStep(1 - low - len(points), adding[::-1], lost, slack, shift))
    return steps[:1] if replace else steps


def _at(losses: Any, q: float) -> Any:
    """Returns log((e^loss - (1 - q)) / q), -inf where that is no number: the loss before sampling."""
    import numpy as np

    if q == 1.0:
        return losses
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = np.log1p(np.maximum(-1.0, np.expm1(np.minimum(losses, 30.0)) / q))
        ends = losses - math.log(q) + np.log1p(np.maximum(-1.0, -(1.0 - q) * np.exp(-losses)))
    return np.where((losses > -0.5) & (losses < 30.0), middle, ends)


def _at_replace(losses: Any, q: float, centre: float) -> Any:
    """Returns w with (1 - q + q e^(w - c)) / (1 - q + q e^(-w - c)) = e^loss: loss/2 + asinh(e^c (1 - q)/q sinh(loss/2))."""
    import numpy as np

    if q == 1.0:
        return losses / 2.0
    half = np.abs(losses) / 2.0
    with np.errstate(divide="ignore"):
        log_sinh = half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
    grown = centre + math.log1p(-q) - math.log(q) + log_sinh
    return losses / 2.0 + np.sign(losses) * np.logaddexp(grown, 0.5 * np.logaddexp(2.0 * grown, 0.0))


def _hats(where: Any, weights: Any, z: float, q: float, gap: float | None, replace: bool) -> tuple[Any, Any]:
    """Returns the masses that the cells between points leave at these, under both worlds.

    A cell's mass is shared between its ends, in proportion to how far e^loss is from either. Integrals are by Gauss's rule of
    six nodes on pieces so short that it is exact to 1e-15 of the value (Trefethen 2013, Theorem 19.3, on the ellipse rho = 60).

    Args:
        where: the points, in standard deviations of the noise.
        weights: log of what the density under 0 is multiplied with at a point.
        gap: for a lowest point below all losses, 1 - q - e^(its loss); None elsewhere.
    """
    import numpy as np

    rate, centre = 1.0 / z, 0.5 / z / z
    left = np.clip(where[:-1], -SPAN - (rate if replace else 0.0), SPAN + rate)
    right = np.clip(where[1:], -SPAN - (rate if replace else 0.0), SPAN + rate)
    steepest = np.maximum(np.abs(left), np.abs(right)) + 1.0 + 2.0 * rate
    pieces = np.ceil((right - left) * steepest / (2.0 * _RADIUS)).astype(np.int64)
    cell = np.repeat(np.arange(len(left)), pieces)
    place = np.arange(len(cell)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    width = ((right - left) / np.maximum(pieces, 1))[cell]
    nodes, shares = np.polynomial.legendre.leggauss(_NODES)
    s = (left[cell] + place * width)[:, None] + width[:, None] * (0.5 * (nodes + 1.0))
    share = width[:, None] * (0.5 * shares) / math.sqrt(2.0 * math.pi)
    low, high = where[:-1][cell][:, None], where[1:][cell][:, None]
    if replace:
        up, down, whole = (_excess(*ends, z, q, low) for ends in ((s, low), (high, s), (high, low)))
    else:
        # Divided by e^((high - low) rate), so that nothing overflows.
        ahead = (high - s) * rate
        up, down = np.exp(-ahead) * -np.expm1((low - s) * rate), -np.expm1(-ahead)
        whole = -np.expm1((low - high) * rate)
        if gap is not None:
            lowest = cell == 0
            end = q * np.exp(high[lowest] * rate - centre)
            up[lowest], whole[lowest] = gap + end * np.exp(-ahead[lowest]), gap + end
            down[lowest] *= end
    up, down = share * up / whole, share * down / whole
    squares = 0.5 * s * s
    count = len(where)
    masses = []
    for scale in (weights, np.zeros(count)):
        below = down * np.exp(scale[:-1][cell][:, None] - squares)
        above = up * np.exp(scale[1:][cell][:, None] - squares)
        masses.append(
            np.bincount(cell, below.sum(axis=1), minlength=count) + np.bincount(cell + 1, above.sum(axis=1), minlength=count)
        )
    return masses[0], masses[1]


def _excess(above: Any, below: Any, z: float, q: float, scale: Any) -> Any:
    """Returns N(x) D(y) - N(y) D(x) for x above y, up to a factor of the cell; N, D = 1 - q + q e^(+-x - c). No differences."""
    import numpy as np

    x, y, m, c = above / z, below / z, np.abs(scale) / z, 0.5 / z / z
    return (1.0 - q) * (np.exp(y - m) + np.exp(-x - m)) * np.expm1(x - y) + 2.0 * q * np.exp(-c - m) * np.sinh(x - y)
