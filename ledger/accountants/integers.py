"""Costs noise of whole numbers, discrete Gaussian and Skellam, by their Rényi curves.

The noise multiplier z is the parameter sigma of the discrete Gaussian, or the standard deviation of Skellam noise, over the L2
clip norm; on the sum, block by block. No amplification by sampling is shown for either, so every step counts in full.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from ledger.accountants.phases import Counted, Participation
from ledger.accountants.renyi import ORDERS
from ledger.accountants.table import Cost, check

SKELLAM_BITS: Final = 16
"""b of the lattice s * 2^-b on which Skellam noise is drawn (docs/mechanism, Theorem 11). All of its magnitudes have a place
in a table, so it is coarser than that of the other families; truncation costs about sqrt(d / 3) of 2^16 / z steps of a clipped
gradient."""

SKELLAM_VARIANCE: Final = 1 << 2 * SKELLAM_BITS
"""In squared lattice steps."""

REAL_ORDERS: Final = tuple(1.0 + 2.0 ** (k / 16) for k in range(-6 * 16, 22 * 16 + 1))
_WHOLE_ORDERS: Final = (*range(2, 257), *(round(2 ** (8 + k / 16)) for k in range(1, 4 * 16 + 1)))


class _OfLoss(Cost):
    """Costs noise whose Rényi curve follows from the sum of 1/z^2 alone."""

    own: ClassVar[tuple[str, ...]] = ("rdp",)
    amplified: ClassVar[bool] = False
    disclosures: ClassVar[tuple[str, ...]] = ("secret_poisson", "occurrences_public")
    curve: ClassVar[str]
    orders: ClassVar[tuple[float, ...]]

    def divergence(self, order: float, loss: float) -> float:
        """Returns the Rényi divergence of releases whose 1/z^2 add up to ``loss``, at most."""
        raise NotImplementedError

    def epsilon(self, participation: Participation, delta: float, accountant: str, *, replace: bool = False) -> float:
        check(self.name, accountant)
        if isinstance(participation, Counted) and not participation.phases:
            loss = participation.loss
        else:
            loss = math.fsum(p.steps / p.noise_multiplier**2 for p in participation.phases if p.steps)
        apart = loss * (4.0 if replace else 1.0)
        return of_curve(self.orders, lambda order: self.divergence(order, apart), delta) if loss else 0.0

    def divergences(self, participation: Participation) -> tuple[float, ...]:
        return tuple(self.divergence(order, participation.loss) for order in ORDERS)

    def describe(self, accountant: str) -> tuple[str, str, str]:
        check(self.name, accountant)
        said = f"family={self.name} {self.curve} amplification=none conversion=Canonne2020-12 rounding=up-1e-6"
        return "own", "1", said


_CONSEQUENCE: Final = (
    "the noise is of the family {}: every epsilon counts all steps in full, as nothing is known of what the secrecy of draws"
    " would take off; Gaussian noise by pld costs less at the same multiplier"
)
_WHY: Final = {
    "accountant": "no amplification by sampling is shown for its integers, so only Rényi divergences are composed",
    "exactness": "it is added to integers, which contributions are at that level alone",
}


class DiscreteGaussian(_OfLoss):
    """Costs discrete Gaussian noise by zero-concentrated differential privacy."""

    name: ClassVar[str] = "discrete_gaussian"
    consequence: ClassVar[str] = _CONSEQUENCE.format("discrete_gaussian")
    sentence: ClassVar[str] = "on integers"
    why: ClassVar[Mapping[str, str]] = {
        **_WHY,
        "injection": "a sum of discrete Gaussian draws is not a discrete Gaussian draw, only close to one",
    }
    groups: ClassVar[tuple[str, ...]] = ("occurrences_public",)
    noise: ClassVar[str] = "discrete Gaussian noise on s*2^-{bits}, sigma = s, drawn exactly,"
    curve: ClassVar[str] = "zcdp=1/(2z^2)"
    orders: ClassVar[tuple[float, ...]] = REAL_ORDERS

    def divergence(self, order: float, loss: float) -> float:
        """Returns `discrete_gaussian_rdp`."""
        return discrete_gaussian_rdp(order, loss)


class Skellam(_OfLoss):
    """Costs Skellam noise of one variance, on one lattice."""

    name: ClassVar[str] = "skellam"
    consequence: ClassVar[str] = _CONSEQUENCE.format("skellam")
    sentence: ClassVar[str] = "on integers, closed under sums"
    injections: ClassVar[tuple[str, ...]] = ("scheduled", "per_microbatch")
    why: ClassVar[Mapping[str, str]] = {
        **_WHY,
        "injection": "its variance is tabulated beforehand, and would follow who is drawn",
    }
    noise: ClassVar[str] = "Skellam noise on s*2^-{bits}, of standard deviation s, drawn exactly,"
    curve: ClassVar[str] = f"variance=2^{SKELLAM_VARIANCE.bit_length() - 1} integer-orders"
    orders: ClassVar[tuple[float, ...]] = _WHOLE_ORDERS

    def divergence(self, order: float, loss: float) -> float:
        """Returns `skellam_rdp` at the next whole order; divergences grow with the order."""
        return skellam_rdp(math.ceil(order), loss)

    def lattice_bits(self, coordinates: int, multiplier: float) -> int:
        """Returns b of the one lattice that is tabulated."""
        return SKELLAM_BITS


def discrete_gaussian_rdp(order: float, loss: float) -> float:
    """Returns the Rényi divergence of discrete Gaussian releases: at most order/2 times the sum of 1/z^2, (loss/2)-zCDP.

    Source: Canonne, Kamath and Steinke (2020), Theorem 14: added to integers whose difference q has |q|_2 <= sigma/z.
    """
    return order * loss / 2.0


def skellam_rdp(order: int, loss: float) -> float:
    """Returns the Rényi divergence of Skellam releases at most, for an integer order above 1.

    Source: Agarwal, Kairouz and Liu (2021), Theorem 3.5: a D2^2 / (2v) + min(((2a - 1) D2^2 + 6 D1) / (4 v^2), 3 D1 / (2v)) for
    variance v and integers whose difference has norms D1 and D2. Integers have D1 <= D2^2, and D2^2 <= v / z^2 here, so both
    are taken at v / z^2, which makes the bound proportional to the sum of 1/z^2.
    """
    v = float(SKELLAM_VARIANCE)
    return loss * (order / 2.0 + min((2.0 * order + 5.0) / (4.0 * v), 1.5))


def of_curve(orders: Iterable[float], divergence: Callable[[float], float], delta: float) -> float:
    """Returns epsilon of a Rényi curve: min over orders a of D_a + log(1 - 1/a) - log(delta a) / (a - 1), and at least 0.

    Source: Canonne, Kamath and Steinke (2020), Proposition 12. Orders up to 1.01 are left out: log(1 - 1/a) is inexact there.
    """
    best = math.inf
    for order in orders:
        if order > 1.01:
            value = divergence(order) + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)
            best = min(best, value)
    return max(0.0, best)
