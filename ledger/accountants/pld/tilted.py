"""Sums losses on a grid into an epsilon: an exponentially tilted Fourier transform, with a bound on all that is rounded.

Masses are multiplied by e^(tilt loss) before they are transformed, with a tilt such that epsilon lies near the mean of the
tilted sum, and divided by it after. So what the transform loses is a small share of delta, however small delta is.

What is returned is an upper bound on the exact epsilon, proved below from three facts about
the machine: IEEE double arithmetic; exp, expm1, log, log1p and sinh of numpy to 4 ulp; and that numpy's transform of 2^t
points is t stages of butterflies with twiddle factors to 1 ulp, the model of Higham (2002), Theorem 24.2.

Proof:
    1. *One step.* u is 2^-53. Let U = e^-loss under the world P that the divergence is taken from. The divergence of n steps
       is E (1 - e^eps U_1…U_n)⁺, and x → (1 - c x)⁺ is convex and falling. So a step may be replaced by any with E f(U') ≥ E
       f(U) for all such f, the others being kept.
        - Sharing what lies between two points of the grid between these, with P's mass and the other world's (E U) kept, is
          such a replacement (Jensen; Doroshenko et al. 2022, Theorem 3.3). So is moving mass to larger losses.
        - The mass at a point is the integral of a hat, linear in e^loss, against the Gaussian: no difference of large numbers.
          Six Gauss nodes on pieces of half width r with r (|s| + 1 + 2/z) ≤ 0.1 are off by less than 1e-15 of the value. On
          the Bernstein ellipse rho = 60 the integrand is at most e^8 times its size on the piece, and 66 e^8 60^-12 < 1e-16
          (Trefethen 2013, Theorem 19.3).
        - Exponents are at most (11 + 1/z)², so a mass is right to a factor 1 ± `slack`. Points of the grid are where the loss
          is theirs up to rounding. That is `shift`, added to every loss, and so T `shift` to epsilon. Nodes that were rounded
          move a cell's mass from one end to the other, as points moved by that much would. Noise beyond 11 standard deviations
          (1.92e-28 on a side) is an infinite loss.
    2. *Tilt.* With masses p_i e^(λ l_i)/M that add up to 1, p^(*n) at l is M^n e^(-λ l) times the tilted sum at l, for every
       λ. Factors of `slack`, of the exponents and of M are multiplied in.
    3. *Transform.* Each coefficient is a sum over paths of unit twiddles, t stages deep, so |F̂ - F| ≤ 8 u t Σ|p| (Higham
       2002, Theorem 24.2, whose proof gives ((1 + η)^t - 1) |A_t|…|A_1| |p| componentwise, η < 6.7 u). Powers are taken by
       squaring: 3 u per product (Brent, Percival and Zimmermann 2007). So |F̂^n - F^n| ≤ (|F̂| + e)^n - |F̂|^n =: E_k, from
       the computed F̂. A mass of the sum is off by mean E_k at most, all together by (mean E_k²)^½ in Euclidean norm
       (Parseval). In delta it is off by the smaller of max-error × Σw and norm × |w|₂, with w = M^n e^(-λ l)(1 - e^(eps - l))⁺
       (Hölder). That is added.
    4. *Window.* Sums are formed modulo N. What lies above the window is at most Chernoff's bound, added to delta. What lies
       below it has w = 0 since epsilon is not below the window. Both, folded into it, only add.
    5. *Direction.* The second direction is composed unless min over a tilt of e^(K(λ) - λ eps) λ^λ/(1 + λ)^(1 + λ) ≤ delta
       shows that it costs less. ∎
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.accountants.pld.losses import UNIT, OneStep

FLOOR: Final = -160.0
"""Products of characteristic functions below e^-160 are not formed, and counted as error."""

_BEFORE: Final = 4.0
_AFTER: Final = 8.0
_ENOUGH: Final = 1e-9
_LITTLE: Final = -20.0
_APART: Final = 1 << 20
_ENOUGH_SHARE: Final = 1e-3
_CLOSE_SHARE: Final = 1e-9
_TINY: Final = 1e-30
_NEAR: Final = 1.6
_ROUND: Final = 16


Composed = dict[tuple[Any, ...], tuple["_Sum", float, float]]
"""The last composition of every sum by its parts, with the last delta that it was read at, and epsilon there."""


class Laws:
    """Keeps tilted laws of single steps and the transforms of the newest, for sums of other numbers of these steps.

    Any tilt gives a bound, so a sum may be composed by one that was chosen for a neighbour's; `epsilon` takes it only where
    rounding takes a share of 1e-9 of delta.
    """

    def __init__(self) -> None:
        self._steps: dict[int, OneStep] = {}  # kept alive, so that none of another step gets its id
        self._masses: dict[int, tuple[float, tuple[Any, float, float]]] = {}
        self._logs: dict[tuple[int, float], tuple[float, float]] = {}
        self._transforms: dict[int, tuple[float, int, _Transform]] = {}
        self.tilts: dict[tuple[int, ...], float] = {}

    def tilted(self, part: OneStep, tilt: float, interval: float) -> tuple[Any, float, float]:
        """Returns `_tilt` of a step."""
        name = id(self._steps.setdefault(id(part), part))
        held = self._masses.get(name)
        if held is None or held[0] != tilt:
            held = self._masses[name] = tilt, _tilt(part, tilt, interval)
            self._logs[name, tilt] = held[1][1:]
        return held[1]

    def log(self, part: OneStep, tilt: float, interval: float) -> tuple[float, float]:
        """Returns the log of the mass of `_tilt` of a step, and the bound on its error."""
        name = id(self._steps.setdefault(id(part), part)), tilt
        if name not in self._logs:
            self._logs[name] = _tilt(part, tilt, interval)[1:]
        return self._logs[name]

    def transform(self, part: OneStep, tilt: float, interval: float, size: int) -> "_Transform":
        """Returns `_transformed` of a tilted step."""
        masses = self.tilted(part, tilt, interval)[0]
        held = self._transforms.get(id(part))
        if held is None or held[:2] != (tilt, size):
            held = self._transforms[id(part)] = tilt, size, _transformed(masses, size)
        return held[2]


def epsilon(
    parts: Sequence[tuple[OneStep, int]],
    interval: float,
    delta: float,
    most: int,
    kept: Composed | None = None,
    laws: Laws | None = None,
) -> float:
    """Returns epsilon at delta of a sum of losses: ``steps`` independent ones of every part.

    Guarantee: Not below the exact epsilon of what the parts dominate, whatever was lost to rounding: the divergence at the
    returned value is computed with bounds on all errors, and found at most delta.

    Args:
        parts: distributions on one grid, with their numbers of steps, each >= 1.
        interval: the grid.
        delta: in (0, 1).
        most: longer transforms are not done.
        kept: compositions for other deltas, read here where what they lose to rounding is a share of 1e-9 of this one too.
            Their tilt is another one, which moves the figure by less than 4e-7, mostly by 1e-9. What is composed is kept there.
        laws: tilted steps of other sums, with the tilt of these where it is as good in the same sense.

    Returns:
        At least 0; inf where no finite value was found, or the transform would be longer than ``most``.
    """
    infinite = math.fsum(steps * part.infinity for part, steps in parts) * (1.0 + 1e-9)
    if infinite >= delta:
        return math.inf
    if len(parts) == 1 and parts[0][1] == 1:
        return _alone(parts[0][0], interval, delta - infinite) + parts[0][0].shift
    shift = math.fsum(steps * part.shift for part, steps in parts)
    key = interval, *((id(part), steps) for part, steps in parts)
    if kept is not None and key in kept:
        held, last, at = kept[key]
        found, share = held.solve(delta - infinite, at - math.log((delta - infinite) / last) / held.tilt)
        if share <= _CLOSE_SHARE and found < math.inf:
            kept[key] = held, delta - infinite, found
            return found + shift
    tilt, best = _tilt_for(parts, interval, delta), math.inf
    if laws is not None:
        of = tuple(id(part) for part, _ in parts)
        near = laws.tilts.get(of, tilt)
        if near != tilt and max(near / tilt, tilt / near) <= _NEAR:
            composed = _tilted(parts, interval, delta - infinite, most, near, laws)
            if composed is not None:
                found, share = composed.solve(delta - infinite, composed.mean)
                if share <= _CLOSE_SHARE and found < math.inf:
                    return found + shift
        laws.tilts.pop(of, None)
    for _ in range(3):
        composed = _tilted(parts, interval, delta - infinite, most, tilt, laws)
        if composed is None:
            break
        found, share = composed.solve(delta - infinite, composed.mean)
        if kept is not None and found < math.inf:
            kept[key] = composed, delta - infinite, found
        if laws is not None and share <= _CLOSE_SHARE:
            laws.tilts[of] = tilt
        best = min(best, found)
        if share <= _ENOUGH_SHARE or not 0.0 < found < math.inf:
            break
        # What rounding may add is least where the mean of the tilted sum is epsilon.
        before, tilt = tilt, _tilt_at(parts, interval, found)
        if abs(tilt - before) < 0.01 * before:
            break
    return best + shift


def _alone(part: OneStep, interval: float, delta: float) -> float:
    """Returns epsilon of one step, which needs no transform."""
    import numpy as np

    losses = (part.lower + _indices(part)) * interval
    place = max(0, 1 - part.lower)
    scales = np.full(len(losses) - place, 1.0 + part.slack)
    return _solved(losses[place:], scales, part.probs[place:], (0.0, 0.0), 0.0, delta, 1.0, 1.0)[0]


def covers(parts: Sequence[tuple[OneStep, int]], interval: float, delta: float, at: float) -> bool:
    """Tells whether a bound without a transform shows that the divergence at ``at`` is at most delta; False says nothing.

    Source: (1 - e^-x)^+ <= e^(a x) a^a / (1 + a)^(1 + a) for every a > 0 (Canonne, Kamath and Steinke 2020, Proposition 12).
    """
    at -= math.fsum(steps * part.shift for part, steps in parts)
    infinite = math.fsum(steps * part.infinity for part, steps in parts) * (1.0 + 1e-9)
    if infinite >= delta or at <= 0.0:
        return False
    tilt = _tilt_for(parts, interval, delta)
    log = tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt) + _log_moment(parts, interval, tilt, at)
    log += 16.0 * UNIT * (1.0 + tilt) * (1.0 + abs(math.log(tilt)))
    return math.exp(min(0.0, log)) * (1.0 + 1e-6) <= delta - infinite


def _tilt_for(parts: Sequence[tuple[OneStep, int]], interval: float, delta: float) -> float:
    coarse = [(*_coarse(part, interval), steps) for part, steps in parts]
    return tilt_at_epsilon(lambda tilt: _moments(coarse, tilt), delta)


def tilt_at_epsilon(moments: Callable[[float], tuple[float, float, float]], delta: float) -> float:
    """Returns about the tilt under which the mean of a sum is epsilon: how tight a bound is depends on it, and no more.

    `moments`: log of the mass of the tilted sum, its mean and its standard deviation, by the tilt.
    """

    def log_ratio(tilt: float) -> float:
        total, mean, deviation = moments(tilt)
        inner = _erfcx(tilt * deviation / math.sqrt(2.0)) - _erfcx((tilt + 1.0) * deviation / math.sqrt(2.0))
        return total - tilt * mean + math.log(max(0.5 * inner, 1e-300)) - math.log(delta)

    return _root(log_ratio, 0.1)


def _tilt_at(parts: Sequence[tuple[OneStep, int]], interval: float, loss: float) -> float:
    """Returns about the tilt under which the mean of the sum is ``loss``."""
    coarse = [(*_coarse(part, interval), steps) for part, steps in parts]
    return _root(lambda tilt: 1.0 - _moments(coarse, tilt)[1] / loss, 0.01)


def _moments(coarse: Sequence[tuple[Any, Any, int]], tilt: float) -> tuple[float, float, float]:
    """Returns log of the mass of a tilted sum, its mean and its standard deviation."""
    import numpy as np

    total = mean = variance = 0.0
    for logs, losses, steps in coarse:
        e = logs + tilt * losses
        top = float(e.max())
        w = np.exp(e - top)
        mass = float(w.sum())
        m = float(w @ losses) / mass
        total += steps * (top + math.log(mass))
        mean += steps * m
        variance += steps * float(w @ (losses - m) ** 2) / mass
    return total, mean, math.sqrt(variance)


def _root(falling: Callable[[float], float], close: float) -> float:
    """Returns about where a falling function of the tilt is 0: secants on its logarithm, kept off the ends of the bracket."""
    low, high, place = math.log(1e-3), math.log(1e9), math.log(4.0)
    f_low, f_high = math.inf, -math.inf
    for _ in range(60):
        value = falling(math.exp(place))
        if abs(value) < close:
            break
        if value > 0.0:
            low, f_low = place, value
        else:
            high, f_high = place, value
        if high - low < 1e-3:
            break
        if math.isinf(f_low) or math.isinf(f_high):
            place = min(place + 1.5, 0.5 * (place + high)) if value > 0.0 else max(place - 1.5, 0.5 * (place + low))
        else:
            place = low + min(0.9, max(0.1, f_low / (f_low - f_high))) * (high - low)
    return math.exp(place)


def _coarse(part: OneStep, interval: float) -> tuple[Any, Any]:
    """Returns log masses and losses, of points far from 0 sixteen together."""
    import numpy as np

    inner = slice(max(0, -1024 - part.lower), max(0, 1024 - part.lower))
    logs, losses = [], []
    for place, count in ((slice(0, inner.start), _ROUND), (inner, 1), (slice(inner.stop, None), _ROUND)):
        probs = part.probs[place]
        grouped = np.concatenate([probs, np.zeros(-len(probs) % count)]).reshape(-1, count)
        mass = np.maximum(grouped.sum(axis=1), 1e-300)
        inside = (grouped @ np.arange(count)) / mass
        logs.append(np.log(mass))
        losses.append((part.lower + (place.start or 0) + count * np.arange(len(mass)) + inside) * interval)
    return np.concatenate(logs), np.concatenate(losses)


def _erfcx(x: float) -> float:
    """Returns e^(x^2) erfc(x), roughly."""
    return math.exp(x * x) * math.erfc(x) if x < 5.0 else (1.0 - 0.5 / (x * x)) / (x * math.sqrt(math.pi))


@dataclass(frozen=True, slots=True)
class _Sum:
    """Holds a sum that was composed by one tilt, on its window; ``of`` are its parts."""

    of: Sequence[tuple[OneStep, int]]
    losses: Any
    scales: Any
    masses: Any
    lost: tuple[float, float]
    beyond: float
    mean: float
    tilt: float

    def solve(self, delta: float, guess: float) -> tuple[float, float]:
        """Returns epsilon, and the share of delta that was set aside for rounding there."""
        return _solved(self.losses, self.scales, self.masses, self.lost, self.beyond, delta, guess, self.tilt)


def _tilted(
    parts: Sequence[tuple[OneStep, int]], interval: float, delta: float, most: int, tilt: float, laws: Laws | None = None
) -> _Sum | None:
    """Returns the sum by one tilt, with little above its window against delta; None where it is too long."""
    import numpy as np

    laws = laws or Laws()
    logs = []
    mean = variance = relative = 0.0
    full = 1 + sum(steps * (len(part.probs) - 1) for part, steps in parts)
    for part, steps in parts:
        places = part.lower + _indices(part)
        masses, log, error = laws.tilted(part, tilt, interval)
        logs.append((log, steps))
        centre = float(masses @ places)
        mean += steps * centre
        variance += steps * float(masses @ (places - centre) ** 2)
        relative += steps * error
    deviation = math.sqrt(variance)
    size = 1 << max(4, math.ceil(math.log2(min(full, (_BEFORE + _AFTER) * deviation + 64.0))))
    while True:
        if size > most:
            return None
        whole = size >= full
        start = sum(s * p.lower for p, s in parts) if whole else round(mean - size * _BEFORE / (_BEFORE + _AFTER))
        above = (parts, interval, start + size, tilt, deviation, laws)
        beyond = 0.0 if whole else _beyond(*above, _ENOUGH * delta)
        if beyond <= _ENOUGH * delta and (whole or size >= _APART or _wraps_little(*above)):
            break
        size *= 2
    sums, lost = _convolved([(laws.transform(part, tilt, interval, size), steps) for part, steps in parts], size)
    offset = (start - sum(steps * part.lower for part, steps in parts)) % size
    losses = (start + np.arange(size)) * interval
    # What the exponents here and above were rounded by, and the last sums.
    rounded = 64.0 + sum(steps * abs(log) for log, steps in logs) + tilt * float(np.max(np.abs(losses)))
    weights = math.fsum(steps * log for log, steps in logs) + relative + 16.0 * UNIT * rounded - tilt * losses
    first = int(np.searchsorted(losses, 0.0, side="right"))
    scales = np.exp(np.minimum(weights[first:], 700.0))
    masses = np.roll(sums, -offset)[first:]
    return _Sum(parts, losses[first:], scales, masses, lost, beyond, mean * interval, tilt)


def _indices(part: OneStep) -> Any:
    import numpy as np

    return np.arange(len(part.probs))


def _tilt(part: OneStep, tilt: float, interval: float) -> tuple[Any, float, float]:
    """Returns masses times e^(tilt loss) that add up to 1, the log of what they were divided by, and that of their error.

    The exact masses, tilted and divided by that, are at most e^error times the returned ones; those below 1e-30 aside.
    """
    import numpy as np

    exponent = tilt * ((part.lower + _indices(part)) * interval)
    masses = np.zeros(len(part.probs))
    held = part.probs > 0.0
    logs = exponent[held] + np.log(part.probs[held])
    top = float(np.max(logs))
    masses[held] = np.exp(logs - top)
    total = float(np.sum(masses))
    masses /= total
    log = top + math.log(total)
    largest = float(np.max(np.abs(exponent[masses > _TINY])))
    return masses, log, part.slack + 8.0 * UNIT * (96.0 + 2.0 * largest + abs(log) + abs(top))


def _beyond(
    parts: Sequence[tuple[OneStep, int]],
    interval: float,
    place: int,
    tilt: float,
    deviation: float,
    laws: Laws,
    enough: float,
) -> float:
    """Returns a bound on the probability of a sum of ``place`` intervals or more: Chernoff's, by the first of a few tilts."""
    best = 1.0
    for extra in (_AFTER, 3.0, 1.0, 0.5, 0.25, 2.0 * _AFTER):
        log = _log_moment(parts, interval, tilt + extra / (deviation * interval), place * interval, laws)
        best = min(best, math.exp(min(0.0, log)) * (1.0 + 1e-6))
        if best <= enough:
            break
    return best


def _wraps_little(
    parts: Sequence[tuple[OneStep, int]], interval: float, place: int, tilt: float, deviation: float, laws: Laws
) -> bool:
    """Tells whether the tilted sum has too little above the window to be seen where it wraps round to: it could only add.

    A sum of rarely sampled steps has two modes once it is tilted, and most of its tilted mass may lie far above epsilon.
    """
    here = _log_moment(parts, interval, tilt, place * interval, laws)
    tilts = (tilt + extra / (deviation * interval) for extra in (_AFTER, 3.0, 1.0, 0.5, 0.25, 2.0 * _AFTER))
    return any(_log_moment(parts, interval, steeper, place * interval, laws) - here <= _LITTLE for steeper in tilts)


def _log_moment(
    parts: Sequence[tuple[OneStep, int]], interval: float, tilt: float, at: float, laws: Laws | None = None
) -> float:
    """Returns the log of E e^(tilt (sum - at)), or more."""
    log, size = -tilt * at, tilt * abs(at)
    for part, steps in parts:
        mass, error = _tilt(part, tilt, interval)[1:] if laws is None else laws.log(part, tilt, interval)
        log += steps * (mass + error)
        size += steps * abs(mass)
    return log + (4.0 + 2.0 * len(parts)) * UNIT * size


@dataclass(frozen=True, slots=True)
class _Transform:
    """Holds the transform of masses, the log of the most that a coefficient is, and log1p of the share by which it is off."""

    values: Any
    upper: Any
    change: Any


def _transformed(masses: Any, size: int) -> _Transform:
    """Returns the transform of masses, modulo ``size``."""
    import numpy as np

    padded = np.concatenate([masses, np.zeros(-len(masses) % size)])
    values = np.fft.rfft(padded.reshape(-1, size).sum(axis=0))
    bound = UNIT * (8.0 * math.log2(size) + 8.0 + len(padded) / size) + _TINY * len(masses)
    length = np.abs(values)
    with np.errstate(divide="ignore"):
        return _Transform(values, np.log(length + bound), np.log1p(bound / length))


def _convolved(scaled: Sequence[tuple[_Transform, int]], size: int) -> tuple[Any, tuple[float, float]]:
    """Returns the masses of the sum, modulo ``size``; and bounds on the largest error of a mass, and on their Euclidean norm.

    Every coefficient of a transform of masses that add up to 1 is off by at most 8 u log2(size) (Higham 2002, proof of Theorem
    24.2: 6.7 u per stage), so a product of them by at most prod (|F| + e)^n - prod |F|^n. The inverse averages these, and
    keeps their root mean square (Parseval).
    """
    import numpy as np

    levels = math.log2(size)
    alive = np.arange(size // 2 + 1)
    upper, change, product = np.zeros(len(alive)), np.zeros(len(alive)), np.ones(len(alive), dtype=np.complex128)
    for step, n in scaled:
        upper += n * step.upper[alive]
        change += n * step.change[alive]
        held = upper > FLOOR  # no factor exceeds 1 by more than rounding, so what is below stays there
        alive, upper, change = alive[held], upper[held], change[held]
        product = product[held] * power(step.values[alive], n)
    largest = np.exp(np.minimum(upper, 1.0))
    off = np.full(size // 2 + 1, 2.0 * math.exp(FLOOR))
    off[alive] = largest * -np.expm1(-change)
    spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
    spectrum[alive] = product
    back = UNIT * 8.0 * levels * np.abs(spectrum)  # the inverse transform
    most = 2.0 / size * (float(np.sum(off)) + float(np.sum(back)))
    norm = math.sqrt(2.0 / size) * (float(np.linalg.norm(off)) + float(np.linalg.norm(back)))
    return np.fft.irfft(spectrum, size), (1.01 * most, 1.01 * norm)


def power(base: Any, n: int) -> Any:
    """Returns base^n by squaring: n - 1 products at most, off by 3 u each (Brent, Percival and Zimmermann 2007: sqrt 5 u)."""
    result = None
    while True:
        if n & 1:
            result = base if result is None else result * base
        n >>= 1
        if not n:
            return result
        base = base * base


def _solved(
    losses: Any, scales: Any, masses: Any, lost: tuple[float, float], beyond: float, delta: float, guess: float, slope: float
) -> tuple[float, float]:
    """Returns the least epsilon, to 1e-10, at which the divergence is at most delta, and the share of delta that errors have.

    The divergence is the sum of (1 - e^(epsilon - loss)) scale mass over larger losses; of the errors' part in it, the smaller
    of two bounds counts (Hoelder's inequality, at 1 and infinity, and at 2 and 2).

    Args:
        losses: positive, ascending; not below the first of them is epsilon, but for 0 where the grid begins there.
        lost: bounds on the largest error of a mass, and on the Euclidean norm of all.
        beyond: what is to be added.
        guess: about epsilon.
        slope: about minus the derivative of the log of the divergence.
    """
    import numpy as np

    def terms(at: float) -> tuple[float, float]:
        first = int(np.searchsorted(losses, at, side="right"))
        weights = scales[first:] * -np.expm1(at - losses[first:])
        errors = min(lost[0] * float(np.sum(weights)), lost[1] * float(np.linalg.norm(weights)))
        found = float(np.sum(weights * np.maximum(masses[first:], -lost[0])))
        return found, errors + 64.0 * UNIT * (abs(found) + errors) + beyond

    def log_ratio(at: float) -> float:
        total = sum(terms(at))
        return math.log(total / delta) if total > 0.0 else -math.inf

    if not len(losses):
        return 0.0, 0.0
    low, high = max(0.0, float(losses[0] - (losses[1] - losses[0] if len(losses) > 1 else losses[0]))), float(losses[-1])
    f_low, f_high = log_ratio(low), -math.inf
    if f_low <= 0.0:
        return low, 1.0 if low > 0.0 else 0.0  # epsilon lies below the window
    at = min(max(guess, low), high)
    for turn in range(200):
        if high - low <= 1e-10 * max(1.0, high):
            break
        if not low < at < high:
            at = 0.5 * (low + high)
        value = log_ratio(at)
        if value > 0.0:
            low, f_low = at, value
        else:
            high, f_high = at, value
        if turn % 8 == 7 or math.isinf(f_high):
            at = at + value / slope if math.isfinite(value) else 0.5 * (low + high)
            continue
        # A secant that is moved past the root in turn closes the bracket from both sides.
        at = low + (high - low) * f_low / (f_low - f_high)
        at += (-4e-11 if value > 0.0 else 4e-11) * max(1.0, high) * (-1.0 if turn % 2 else 1.0)
    return high, terms(high)[1] / delta
