"""Computes epsilon of many sampled Gaussian steps by one short sum over their tilted losses, and bounds all that is lost.

E e^(s loss) is the integral of phi(x) m(x)^(1+s), or of phi(x) m(x)^(-s) in the other direction, with
m = 1 - q + q e^(x/z - 1/2z^2): analytic and falling quickly, so that a hundred points are right to rounding.

With K(s) = log E e^(s loss), the divergence at epsilon is the integral of e^(K(s) - s epsilon) / (s (s + 1)) over any line
Re s = tilt > 0, divided by 2 pi i: 1/(s (s + 1)) is the transform of (1 - e^(epsilon - loss))+. The trapezoid rule gives that
plus the divergence at epsilon + n R, times e^(tilt n R), for all n: it only adds. Some hundred points are enough where a
transform on the grid of losses has 2^17.

To every step a Gaussian of mu^2 = interval^2 / 6 is added, which is what a grid of that interval adds to it on the average: so
figures are those of `tilted` on it, mostly to 4e-7, and upper bounds, since more was released than is. Where the
sum would be long, or figures would differ, `epsilon` says inf.

Proof:
    δ(eps) has, as a function of eps, the two-sided Laplace transform e^K(s)/(s (s + 1)) on Re s > 0, K(s) = log E e^(s loss)
    (it is E of that of (1 - e^(eps - loss))⁺). Poisson's summation formula says that h/2π Σ_k e^(K(s_k) - s_k eps)/(s_k (s_k +
    1)) over s_k = λ + i h k *equals* Σ_n δ(eps + n R) e^(λ n R), R = 2π/h. All terms are divergences, so it is at least
    δ(eps), for every λ and h. What is computed differs from it by three things, all bounded and added.

    * *(a) Cut off.* With f(t) = E e^((λ + it) loss)/E e^(λ loss) = ∫ g(x) e^(it log m(x)) dx of one step, moved to the line
      x + ia: |f(t)| ≤ ∫ |g(x + ia)| e^(-t arg m(x + ia)) dx. This falls with t since the angle is not negative. So it bounds f
      there and beyond, and what is left out is at most its power times Σ 2/t_k². The lines a = 0.15 to 2 are tried. The
      integral is itself taken by the rule of (b).
    * *(b) Quadrature.* E e^(s loss) = ∫ φ(x) m(x)^(1+s) dx, m = 1 - q + q e^(x/z - 1/2z²), and m^(-s) in the other direction,
      by the trapezoid rule over x. For 0 < a ≤ πz/3 and |Im s| ≤ t: |φ(x + ia)| = φ(x) e^(a²/2), m cos(a/2z) ≤ |m(x + ia)| ≤ m
      and |arg m(x + ia)| ≤ a/z. So a spacing d adds at most 2 e^(a²/2 + ta/z - 2πa/d) of E e^(λ loss), times cos(a/2z)^-λ in
      the other direction (Trefethen and Weideman 2014, Theorem 5.1); d makes that 4 e^-44. On the lines of (a) the strip is as
      wide as the line is far, and it adds 2 e^(a² - 2πa/d), times cos(a/z)^-λ. Points left out at the ends have less than
      their last one by g(x)/9.5.
    * *(c) Rounding*, as in part 3 of the proof in `tilted`: e is the sum of what masses (where they are, and in what all are
      divided by), losses times |s|, and sums of n terms (4 n u) are rounded by. Products are off by (|f| + e)^n - |f|^n at
      most. T times what log E e^(λ loss) of one step is off by (`mass_error`) is added to K(λ). λ and R are free: where a
      drawn contribution outweighs all else from one λ on, no R is found, and the transform is asked.

    To every step a Gaussian of mu² = interval²/6 is added. What is composed with more is dominated by no less, so this costs
    nothing of the claim. It is what the grid adds in the mean: a loss at v in a cell, shared between its ends, has gained a
    variance of v (interval - v), interval²/6 over a cell. ∎

    The short sum is asked where q/z is at least an interval, and wide where noise is far below the mean, with a tilt of at
    most 480. There the transform and the short sum mostly agree to 4e-7. They are further apart, by up to some 1e-5, where the
    losses of a step are one or two intervals wide and steps are many, and at deltas above 1e-2. Epsilons from about 550 up,
    whose sums went to a coarser grid, may be 4e-5 lower. All are bounds. The transform is asked otherwise; and where the sum
    is longer than 2^23 terms (fewer than some 8 steps at z near 1), or one step's law would need more than 2^20 points.

    No λ makes the claim fail. One with the mean of the tilted sum near epsilon makes the set-aside a share of about 1e-14 T of
    delta, *whatever delta is*: 3e-11 at z = 1, q = 0.01, T = 1000. Only where a contribution is hardly ever drawn and delta is
    near 1e-11 is it more than 1e-3. In either way of computing, other lengths, tilts and roundings move epsilon by less than
    4e-7, within what auditors allow.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from ledger.accountants.pld.losses import UNIT
from ledger.accountants.pld.tilted import power, tilt_at_epsilon

_SPAN: Final = 9.5
_STRIP: Final = 6.0
_DIGITS: Final = 44.0

MOST_POINTS: Final = 1 << 20
"""Laws that need more points, in number as the square of the tilt in the direction that adds, are made by nobody."""


class TooLong(ArithmeticError):
    """Says that a law would need more than `MOST_POINTS` points."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Holds the tilted law of the loss of one step, on the points of the trapezoid rule over its noise.

    Attributes:
        losses: at the points.
        masses: of the tilted law; they add up to 1.
        log_mass: log E e^(tilt loss).
        mass_error: bound on how far log_mass lies from the exact one.
        error: bound on how far the transform of this law lies from the exact one, over the range that was asked for.
    """

    losses: Any
    masses: Any
    log_mass: float
    mass_error: float
    error: float


@dataclass(frozen=True, slots=True)
class Envelope:
    """Bounds the transform of a tilted law at t and everywhere beyond: the integral over a line beside the real noise."""

    steps: int
    masses: Any
    angles: Any
    lost: float

    def log(self, t: float) -> float:
        """Returns the log of the bound for all steps together; it falls with t."""
        import numpy as np

        return self.steps * math.log(min(1.0, (float(self.masses @ np.exp(-t * self.angles)) + self.lost) * (1.0 + 1e-9)))


@dataclass(frozen=True, slots=True)
class Step:
    """Steps of one phase in one direction.

    The loss is log m, or minus that, of noise x under N(0, 1), with m = 1 - q + q e^(x/z - 1/2z^2).
    """

    z: float
    q: float
    steps: int
    removing: bool

    def tilted(self, tilt: float) -> tuple[Any, Any, float]:
        """Returns losses, masses that add up to 1, and log E e^(tilt loss): for real tilts alone."""
        x, spacing, _, logs = self._points(tilt, 0.0)
        masses, log_mass = self._weighed(x, spacing, logs, tilt)
        return (logs if self.removing else -logs), masses, log_mass

    def log_moments(self, tilts: Sequence[float]) -> Any:
        """Returns log E e^(tilt loss) at ascending real tilts, by the points that the last of them needs."""
        import numpy as np

        x, spacing, _, logs = self._points(tilts[-1], 0.0)
        at = np.array(tilts)[:, None]
        exponents = ((1.0 + at) if self.removing else -at) * logs - 0.5 * x * x
        top = exponents.max(axis=1)
        mass = np.exp(exponents - top[:, None]).sum(axis=1)
        return top + np.log(mass * spacing / math.sqrt(2.0 * math.pi))

    def nodes(self, tilt: float, reach: float) -> Nodes:
        """Returns the tilted law, right for transforms up to ``reach``."""
        import numpy as np

        x, spacing, w, logs = self._points(tilt, reach)
        masses, log_mass = self._weighed(x, spacing, logs, tilt)
        power = 1.0 + tilt if self.removing else -tilt
        share = self.q * np.exp(w - logs)  # how much of m is the shifted part: the derivative of log m is that over z
        moved = np.abs(x) + abs(float(x[0]))  # half of what a point is rounded by, in units of the last place
        inexact = UNIT * (32.0 * np.abs(logs) + 8.0 * share * (moved / self.z + 0.5 / self.z**2))
        relative = UNIT * (16.0 + 2.0 * moved * (2.0 * np.abs(x) + abs(power) * share / self.z))
        turned = float(masses @ inexact)
        cut = (float(masses[0]) + float(masses[-1])) / (_SPAN * spacing)
        weighed = 1.01 * (float(masses @ relative) + abs(power) * turned + cut) + 2.0 * math.exp(-_DIGITS)
        sums = UNIT * (4.0 * len(x) + 64.0)
        # A mass that is off counts where it is and in what all are divided by.
        error = 2.0 * weighed + 1.01 * reach * turned + sums
        mass_error = weighed + sums + 8.0 * UNIT * abs(log_mass)
        return Nodes(logs if self.removing else -logs, masses, log_mass, mass_error, error)

    def envelope(self, tilt: float, shift: float) -> Envelope:
        """Returns what |E e^((tilt + i t) loss)| / E e^(tilt loss) is at most for large t: noise is moved to x + i shift.

        There m has another modulus and an angle, and the integrand the factor e^(-t angle).
        """
        import numpy as np

        aside = min(shift, self.z * math.pi / 3.0)
        x, spacing, w, logs = self._points(tilt, 0.0, aside)
        masses, _ = self._weighed(x, spacing, logs, tilt)
        shifted = self.q * np.exp(w)
        real = 1.0 - self.q + shifted * math.cos(aside / self.z)
        imaginary = shifted * math.sin(aside / self.z)
        power = 1.0 + tilt if self.removing else -tilt
        moved = masses * np.exp(0.5 * aside * aside + power * (0.5 * np.log(real * real + imaginary * imaginary) - logs))
        cut = (float(moved[0]) + float(moved[-1])) / (_SPAN * spacing)
        return Envelope(self.steps, moved, np.arctan2(imaginary, real), 2.0 * cut + 4.0 * math.exp(-_DIGITS))

    def count(self, tilt: float, reach: float) -> int:
        """Returns how many points a transform up to ``reach`` takes."""
        return self._place(tilt, reach)[2]

    def _points(self, tilt: float, reach: float, aside: float | None = None) -> tuple[Any, float, Any, Any]:
        """Returns the points of the noise, their spacing, x/z - 1/2z^2, and log m. Raises TooLong: there are too many."""
        import numpy as np

        low, spacing, count = self._place(tilt, reach, aside)
        if count > MOST_POINTS:
            raise TooLong(f"{count} points at tilt {tilt:g}")
        x = low + spacing * np.arange(count)
        w = x / self.z - 0.5 / self.z**2
        return x, spacing, w, np.log1p(self.q * np.expm1(w))

    def _place(self, tilt: float, reach: float, aside: float | None = None) -> tuple[float, float, int]:
        """Returns first point, spacing and number of points.

        So close that what the rule adds to a transform up to ``reach``, or to an integral over a line ``aside``, is 2 e^-44 of
        the mass, and as far as the mass goes.
        """
        z, q = self.z, self.q
        strip = min(z * math.pi / 3.0, _STRIP) if aside is None else aside
        grown = 0.5 * strip * strip + reach * strip / z if aside is None else strip * strip
        low, high = -_SPAN, _SPAN
        if self.removing:
            high += (1.0 + tilt) / z
        else:
            grown -= tilt * math.log(math.cos((0.5 if aside is None else 1.0) * strip / z))
            centre = q * math.exp(-0.5 / z / z)
            low -= tilt * centre / (1.0 - q + centre) / z
        spacing = 2.0 * math.pi * strip / (_DIGITS + grown)
        return low, spacing, int(min((high - low) / spacing, 1e15)) + 2

    def _weighed(self, x: Any, spacing: float, logs: Any, tilt: float) -> tuple[Any, float]:
        import numpy as np

        exponents = (1.0 + tilt if self.removing else -tilt) * logs - 0.5 * x * x
        top = float(exponents.max())
        masses = np.exp(exponents - top)
        mass = float(masses.sum())
        return masses / mass, top + math.log(mass * spacing / math.sqrt(2.0 * math.pi))


MOST_TERMS: Final = 1 << 23
"""Sums with more terms, over points of the line and of the noise together, are left to the transform."""

MOST_RATE: Final = 0.5
"""Higher sampling rates are left to the transform; at this and below the tails that `Nodes` cuts off fall as it says."""

LEAST_WIDTH: Final = 6.0
LEAST_REACH: Final = 4.0
"""A grid adds that to losses that are smooth to it: where q/z, their width at the mean, is an interval or more, and where they
are narrower than that only for noise this far below the mean. Elsewhere it adds other numbers, and the transform is asked."""

STEEPEST: Final = 4e-7
"""On a grid epsilon goes up and down by tilt interval^2 / 12 with its place between two points; where that is more than what
auditors allow for machines, the transform is asked."""

_IMAGES: Final = 18.0
_TAIL: Final = 28.0
_LOST: Final = 2e-7
_SHIFTS: Final = ((64, (1.0, 2.0)), (3000, (0.5, 1.0)), (math.inf, (0.15, 0.5)))
_TILTS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.6, 2.0, 3.0, 5.0)

Held = Sequence[tuple[float, float, int]]


def epsilon(held: Held, rest: float, interval: float, delta: float) -> float:
    """Returns epsilon of sampled steps and an unsampled Gaussian, the larger of both directions.

    Guarantee: Not below the exact epsilon under zero-out adjacency, whatever was rounded or left out: the divergence at the
    returned value is computed with bounds on all errors, and found at most delta.

    Args:
        held: phases as (z, q, steps), each with 0 < q < 1 and steps >= 1.
        rest: mu of the Gaussian beside them.
        interval: the grid whose figures these are.
        delta: in (0, 1).

    Returns:
        At least 0; inf where the transform is to be asked.
    """
    import numpy as np

    if not _suits(held, interval):
        return math.inf
    with np.errstate(over="ignore", invalid="ignore"):  # what is no number is no bound either
        try:
            return _of_both(held, rest, interval, delta)
        except TooLong:
            return math.inf


def _of_both(held: Held, rest: float, interval: float, delta: float) -> float:
    """Returns the larger of both directions; the one in which the contribution is removed is so nearly always."""
    mu2 = rest * rest + sum(steps for _, _, steps in held) * interval * interval / 6.0
    removed, tilt = _of_direction([Step(z, q, steps, removing=True) for z, q, steps in held], mu2, delta)
    if tilt * interval * interval > 12.0 * STEEPEST:
        return math.inf
    adding = [Step(z, q, steps, removing=False) for z, q, steps in held]
    if math.isinf(removed) or _covers(adding, mu2, delta, tilt, removed):
        return removed
    return max(removed, _of_direction(adding, mu2, delta)[0])


def _suits(held: Held, interval: float) -> bool:
    """Tells whether losses of every step are smooth to the grid, and not sampled so often that it composes them best."""
    return all(
        q <= MOST_RATE and (wide := 2.0 * math.pi * q / (z * interval)) >= LEAST_WIDTH and z * math.log(wide) >= LEAST_REACH
        for z, q, _ in held
    )


def _moments(steps: Sequence[Step], mu2: float, tilt: float) -> tuple[float, float, float]:
    """Returns K(tilt), and mean and standard deviation of the tilted sum of losses."""
    total, mean, variance = 0.5 * tilt * (tilt + 1.0) * mu2, (tilt + 0.5) * mu2, mu2
    for step in steps:
        losses, masses, log_mass = step.tilted(tilt)
        centre = float(masses @ losses)
        total += step.steps * log_mass
        mean += step.steps * centre
        variance += step.steps * float(masses @ (losses - centre) ** 2)
    return total, mean, math.sqrt(variance)


def _covers(steps: Sequence[Step], mu2: float, delta: float, tilt: float, at: float) -> bool:
    """Tells whether Chernoff's bound by one tilt shows a divergence of at most delta; False says nothing (`tilted.covers`)."""
    total = _log_mass(steps, [step.nodes(tilt, 0.0) for step in steps], mu2, tilt)
    log = tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt) + total - tilt * at
    log += 16.0 * UNIT * (1.0 + tilt) * (1.0 + abs(math.log(tilt)) + at)
    return math.exp(min(0.0, log)) * (1.0 + 1e-4) <= delta


def _log_mass(steps: Sequence[Step], laws: Sequence[Nodes], mu2: float, tilt: float) -> float:
    """Returns K(tilt), or more: what one step is off by counts once a step."""
    logs = [0.5 * tilt * (tilt + 1.0) * mu2 * (1.0 + 8.0 * UNIT)]
    logs += [step.steps * (law.log_mass + law.mass_error) for step, law in zip(steps, laws, strict=True)]
    return math.fsum(logs) + 4.0 * UNIT * math.fsum(map(abs, logs))


def _of_direction(steps: Sequence[Step], mu2: float, delta: float) -> tuple[float, float]:
    """Returns epsilon in one direction, inf if not by this sum; and a good tilt for `_covers`."""
    saddle, guess = _saddle(steps, mu2, delta)
    tried, allowed = 0.0, math.inf
    while True:
        tilt, period = _line(steps, mu2, delta, saddle, guess, allowed)
        if tilt == tried or not 0.0 < period < math.inf:  # no period where the saddle lies in a gap between two modes
            return math.inf, saddle
        tried, found = tilt, _sum(steps, mu2, tilt, period)
        if found is None:
            return math.inf, saddle
        epsilon, share = found.solve(delta, max(0.0, guess))
        if share <= _LOST * tilt or not math.isfinite(share) or math.isfinite(allowed):
            return (epsilon if share <= _LOST * tilt else math.inf), saddle
        log = found.log - tilt * guess - math.log(delta)
        allowed = log - math.log(share / (0.5 * _LOST * tilt))  # errors are in proportion to that


def _sum(steps: Sequence[Step], mu2: float, tilt: float, period: float) -> "_Sum | None":
    """Returns the sum on a line, or None where it has too many terms."""
    import numpy as np

    deviation, spacing = _moments(steps, mu2, tilt)[2], 2.0 * math.pi / period
    wanted = _TAIL + math.log1p(3.0 * tilt * (tilt + 1.0) * deviation)
    reach, log_envelope = _far_enough(steps, mu2, tilt, wanted, 1.0 / deviation)
    count = int(min(reach / spacing, 1e15)) + 2
    if count * sum(step.count(tilt, reach) for step in steps) > MOST_TERMS:
        return None
    laws = [step.nodes(tilt, reach) for step in steps]
    product, off = _product(steps, laws, mu2, tilt, spacing, count)
    line = tilt + 1j * spacing * np.arange(count)
    parts = product / (line * (line + 1.0))
    parts[1:] *= 2.0
    lost = 2.0 * float(np.sum(off / np.abs(line * (line + 1.0)))) + (count + 64.0) * UNIT * float(np.sum(np.abs(parts)))
    lost += 2.0 * math.exp(log_envelope(spacing * count)) / (spacing * spacing * (count - 1))
    return _Sum(line, parts, lost, _log_mass(steps, laws, mu2, tilt), spacing)


def _saddle(steps: Sequence[Step], mu2: float, delta: float) -> tuple[float, float]:
    """Returns about the tilt under which the mean of the sum is epsilon, and that mean."""
    tilt = tilt_at_epsilon(lambda tilt: _moments(steps, mu2, tilt), delta)
    return tilt, _moments(steps, mu2, tilt)[1]


def _line(steps: Sequence[Step], mu2: float, delta: float, saddle: float, guess: float, allowed: float) -> tuple[float, float]:
    """Returns a tilt and a period R under which the images of the divergence, at epsilon +- R, are e^-18 of delta.

    By Chernoff's bound with other tilts. A smaller tilt than the saddle's keeps away what lies far above epsilon where few
    steps are sampled, but lets errors grow by e^(K(tilt) - tilt epsilon) / delta, of which the log is to be ``allowed``, if
    any. How tight the sum is depends on the choice, and no more.
    """
    tilts = [saddle * factor for factor in _TILTS]
    moments = sum(step.steps * step.log_moments(tilts) for step in steps)
    logs = [float(k) + at * (0.5 * (at + 1.0) * mu2 - guess) - math.log(delta) for k, at in zip(moments, tilts, strict=True)]
    allowed = max(allowed, logs[_TILTS.index(1.0)])
    best = (math.inf, saddle)
    for place in range(1, len(tilts) - 1):
        if logs[place] <= allowed:
            below = min((_IMAGES + logs[k]) / (tilts[place] - tilts[k]) for k in range(place))
            beyond = min((_IMAGES + logs[k]) / (tilts[k] - tilts[place]) for k in range(place + 1, len(tilts)))
            best = min(best, (max(below, beyond), tilts[place]))
    return best[1], best[0]


def _far_enough(
    steps: Sequence[Step], mu2: float, tilt: float, wanted: float, start: float
) -> tuple[float, Callable[[float], float]]:
    """Returns a place from which on the transform of the tilted sum is at most e^-wanted, and the log of the bound by place.

    The more steps, the closer to the real line lies the better of the lines that are tried.
    """
    count, found = sum(step.steps for step in steps), []
    for shift in next(shifts for most, shifts in _SHIFTS if count <= most):
        envelopes = [step.envelope(tilt, shift) for step in steps]

        def log(t: float, envelopes: Sequence[Envelope] = envelopes) -> float:
            return math.fsum(envelope.log(t) for envelope in envelopes) - 0.5 * mu2 * t * t

        low, high = start, start
        while log(high) > -wanted and high < 1e12 * start:
            low, high = high, 4.0 * high
        while high > 1.1 * low:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if log(middle) > -wanted else (low, middle)
        found.append((high, log))
    return min(found, key=itemgetter(0))


def _product(
    steps: Sequence[Step], laws: Sequence[Nodes], mu2: float, tilt: float, spacing: float, count: int
) -> tuple[Any, Any]:
    """Returns the transform of the tilted sum at ``count`` points of the line, and bounds on the errors.

    Every factor is off by at most ``error``, so a product by at most prod (|f| + e)^n - prod |f|^n; what powers are rounded by
    is less than that (3 u per product, Brent, Percival and Zimmermann 2007).
    """
    import numpy as np

    t = spacing * np.arange(count)
    product = np.exp(-0.5 * mu2 * t * t + 1j * (mu2 * (tilt + 0.5)) * t)
    upper = -0.5 * mu2 * t * t
    change = UNIT * (16.0 + 8.0 * mu2 * t * (t + tilt + 1.0))
    width = math.isqrt(count) + 1
    for step, law in zip(steps, laws, strict=True):
        fine = np.exp(1j * np.outer(spacing * np.arange(width), law.losses))
        wide = np.exp(1j * np.outer(spacing * width * np.arange(-(-count // width)), law.losses))
        found = ((wide * law.masses) @ fine.T).reshape(-1)[:count]
        length = np.abs(found)
        with np.errstate(divide="ignore"):
            upper += step.steps * np.log(length + law.error)
            change += step.steps * np.log1p(law.error / length)
        product *= power(found, step.steps)
    return product, np.exp(np.minimum(upper, 1.0)) * -np.expm1(-change)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Holds the divergence of epsilon, e^(log - tilt epsilon) spacing / 2 pi times a sum of parts, and what was lost."""

    line: Any
    parts: Any
    lost: float
    log: float
    spacing: float

    def solve(self, delta: float, guess: float) -> tuple[float, float]:
        """Returns an epsilon, to 1e-10 the least, at which the divergence is found at most delta, inf if there is none near
        the guess; and the share of delta that errors have there."""
        at = guess
        for _ in range(40):
            value, slope = self._at(at)
            if not value > 0.0 or not slope < 0.0:
                return math.inf, math.inf
            move = math.log(value / delta) * value / slope
            at = max(0.0, at - move)
            if abs(move) <= 1e-11 * max(1.0, at) or (at == 0.0 and value <= delta):
                break
        share = self._errors(at) / delta
        for margin in (0.0, 5e-11, 1e-10, 1e-9, 1e-8, 1e-7, 4e-7):
            found = at + margin * max(1.0, at) if at > 0.0 else margin
            if self._at(found)[0] <= delta:
                return found, share
        return math.inf, share

    def _scale(self, at: float) -> float:
        tilt = float(self.line[0].real)
        log = self.log - tilt * at
        return math.exp(min(700.0, log + 16.0 * UNIT * (8.0 + abs(self.log) + tilt * at))) * self.spacing / (2.0 * math.pi)

    def _errors(self, at: float) -> float:
        import numpy as np

        turned = 8.0 * UNIT * at * float(np.abs(self.parts) @ self.line.imag)
        return self._scale(at) * (self.lost + turned)

    def _at(self, at: float) -> tuple[float, float]:
        """Returns the divergence at most, and about its derivative."""
        import numpy as np

        turned = self.parts * np.exp(-1j * at * self.line.imag)
        scale = self._scale(at)
        return scale * float(turned.real.sum()) + self._errors(at), -scale * float((turned * self.line).real.sum())
