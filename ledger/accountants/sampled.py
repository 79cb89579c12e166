"""The tilted loss of one sampled Gaussian step, by the trapezoid rule over its noise, with bounds on what that loses.

E e^(s loss) is the integral of phi(x) m(x)^(1+s), or of phi(x) m(x)^(-s) in the other direction, with
m = 1 - q + q e^(x/z - 1/2z^2): analytic and falling quickly, so that a hundred points are right to rounding. Proof in
docs/mechanism, "What pld computes".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ledger.accountants.losses import UNIT

_SPAN: Final = 9.5
_STRIP: Final = 6.0
_DIGITS: Final = 44.0

MOST_POINTS: Final = 1 << 20
"""Laws that need more points, in number as the square of the tilt in the direction that adds, are made by nobody."""


class TooLong(ArithmeticError):
    """A law would need more than `MOST_POINTS` points."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The tilted law of the loss of one step, on the points of the trapezoid rule over its noise.

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
    """A bound on the transform of a tilted law at t and everywhere beyond: the integral over a line beside the real noise."""

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
        """Returns the points of the noise, their spacing, x/z - 1/2z^2, and log m.

        Raises:
            TooLong: there are too many.
        """
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
