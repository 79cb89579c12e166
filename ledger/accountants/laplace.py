"""Costs Laplace noise: its loss distributions amplified by sampling, and its Rényi divergence.

The noise multiplier z is the scale of the noise over the L1 clip norm, on the sum, block by block.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace as _with
from functools import lru_cache
from importlib import metadata
from typing import ClassVar, Final

from ledger.accountants.integers import REAL_ORDERS, of_curve
from ledger.accountants.phases import Counted, Participation, Phase, merged
from ledger.accountants.renyi import ORDERS
from ledger.accountants.table import LATTICE_BITS, RELEASE, Cost, Recorder, check, refusal
from ledger.errors import AccountantError

L1_BITS: Final = 30
"""b of the lattice, before the floor of log2 of the multiplier: a bound of 2^30 steps over d coordinates."""

LAPLACE_INTERVAL: Final = 1e-4
"""Grid of privacy losses of Laplace noise down to a multiplier of 0.1; coarser as 1/z below, as losses reach 1/z."""

LAPLACE_POINTS: Final = 1 << 22
"""Most points of a composed grid; what would have more is computed on a coarser one, which is an upper bound too."""

FFT_ERROR: Final = 1e-15
"""Allowance for delta that dp-accounting's composition may lose per step, fourteen times the most that was measured (7e-17)."""


class Laplace(Cost):
    """Costs Laplace noise by `pld`."""

    name: ClassVar[str] = "laplace"
    sentence: ClassVar[str] = "clipped in the L1 norm"
    consequence: ClassVar[str] = (
        "the noise is Laplace's: every clip norm bounds the sum of the magnitudes of a gradient (L1), which a gradient of "
        "many coordinates reaches far sooner than its length (L2); a noise multiplier is the scale of the noise over it"
    )
    own: ClassVar[tuple[str, ...]] = ("pld",)
    why: ClassVar[Mapping[str, str]] = {
        "accountant": "its amplification by sampling is accounted for by privacy loss distributions",
        "exactness": "its sensitivity is an L1 norm, which is clipped and certified on integers alone; clipping the L2 norm"
        " would fall short by a factor of up to sqrt(d)",
        "injection": "a sum of Laplace draws is not a Laplace draw",
        "disclosure": "the sum of 1/z^2 over public occurrences does not determine its epsilon",
    }
    norm: ClassVar[int] = 1
    deviation: ClassVar[float] = math.sqrt(2.0)
    noise: ClassVar[str] = "Laplace noise of scale s, rounded to s*2^-{bits} and drawn exactly,"

    def sensitivity(self, participation: Participation) -> float:
        """Returns how far a contribution moves all releases together in the L1 norm, in scales: the sum of 1/z."""
        return math.fsum(p.steps / p.noise_multiplier for p in self._phases(participation))

    def epsilon(self, participation: Participation, delta: float, accountant: str, *, replace: bool = False) -> float:
        """Returns epsilon of a run; see `Cost.epsilon`. Sampling amplifies it, but not under replacement. Raises
        AccountantError: code FAMILY, of public occurrences only the sum of 1/z^2 is known, which does not determine it."""
        check(self.name, accountant)
        phases = self._phases(participation)
        return _laplace(merged(_with(p, sampling_rate=1.0) if replace else p for p in phases), delta, replace)

    def divergences(self, participation: Participation) -> tuple[float, ...]:
        return tuple(math.fsum(p.steps * _step(order, p) for p in self._phases(participation)) for order in ORDERS)

    def describe(self, accountant: str) -> tuple[str, str, str]:
        check(self.name, accountant)
        parameters = (
            f"family=laplace interval={LAPLACE_INTERVAL:g} relation=ADD_OR_REMOVE_ONE amplification=poisson rounding=up-1e-6"
        )
        return "dp-accounting", metadata.version("dp-accounting"), parameters

    def recorders(self, accountant: str) -> tuple[Recorder, ...]:
        """Returns the library at any of its versions, which is recomputed whatever it was."""
        library, _, parameters = self.describe(accountant)
        return (Recorder(library, RELEASE, parameters),)

    def lattice_bits(self, coordinates: int, multiplier: float) -> int:
        """Returns b of the lattice; the norm is a sum of magnitudes, so its bound in steps decides, and not d."""
        return max(1, min(LATTICE_BITS, L1_BITS + math.floor(math.log2(multiplier))))

    def _phases(self, participation: Participation) -> list[Phase]:
        if isinstance(participation, Counted) and participation.loss and not participation.phases:
            raise AccountantError("FAMILY", refusal(self.name, "pld", "certified", "scheduled", "occurrences_public") or "")
        return [phase for phase in participation.phases if phase.steps]


@lru_cache(maxsize=4096)
def _laplace(phases: tuple[Phase, ...], delta: float, replace: bool) -> float:
    """Returns epsilon of Laplace releases, each dominated by the pair Laplace(0, z) and Laplace(1, z) sampled at rate q.

    That is Theorem 9 of docs/mechanism.

    Under replacement two payloads are 2/z apart, and what sampling would add is not counted. Never above pure composition, nor
    above the Rényi bound without sampling. The library composes by a Fourier transform to the power of the number of steps,
    whose rounding moves delta by up to 7e-17 per step in either sense: so it is asked for a delta smaller by `FFT_ERROR` per
    step, and not at all where that is a tenth of delta.
    """
    sensitivity = 2.0 if replace else 1.0
    bounds, steps = [sensitivity / p.noise_multiplier for p in phases], [p.steps for p in phases]
    pure = math.fsum(count * bound for count, bound in zip(steps, bounds, strict=True))
    without = of_curve(REAL_ORDERS, lambda order: laplace_rdp(order, bounds, steps), delta)
    lost = FFT_ERROR * sum(steps)
    if lost > 0.1 * delta:
        return min(pure, without)
    # Losses add up to within eight standard deviations of their mean (Hoeffding, 1e-15 on either side), or to pure at most.
    width = min(2.0 * pure, 17.0 * math.sqrt(math.fsum(n * b * b for n, b in zip(steps, bounds, strict=True))))
    interval = max(LAPLACE_INTERVAL, LAPLACE_INTERVAL * 0.1 * max(bounds), width / LAPLACE_POINTS)
    # The library brings scipy, a second of start-up that commands which account for nothing need not wait for.
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    for p in phases:
        event = dp_accounting.LaplaceDpEvent(p.noise_multiplier / sensitivity)
        sampled = event if p.sampling_rate == 1.0 else dp_accounting.PoissonSampledDpEvent(p.sampling_rate, event)
        accountant.compose(sampled, p.steps)
    return max(0.0, min(float(accountant.get_epsilon(delta - lost)), pure, without))


def laplace_rdp(order: float, bounds: Sequence[float], steps: Sequence[int]) -> float:
    """Returns the Rényi divergence of Laplace releases without sampling, shifts over scales being ``bounds``.

    Source: Mironov (2017), Table II: log(a/(2a-1) e^((a-1) b) + (a-1)/(2a-1) e^(-a b)) / (a - 1); at most a b^2 / 2, and b.
    """
    total = 0.0
    for bound, count in zip(bounds, steps, strict=True):
        if (order - 1.0) * bound > 600.0 or order * bound < 1e-6:
            total += count * min(bound, 0.5 * order * bound * bound)
            continue
        grown = order * math.expm1((order - 1.0) * bound) + (order - 1.0) * math.expm1(-order * bound)
        total += count * min(bound, math.log1p(grown / (2.0 * order - 1.0)) / (order - 1.0) + 1e-15)
    return total


def _step(order: float, phase: Phase) -> float:
    """Returns the divergence of one step.

    Source: Sampled at rate q, a step of pure epsilon b is of pure epsilon log(1 + q (e^b - 1)), in both directions (Balle,
    Barthe and Gaboardi 2018, Theorem 8), and pure epsilon e has divergence at most e and order e^2 / 2 (Bun and Steinke 2016,
    Proposition 3.3). Nor is it more than the unsampled one.
    """
    bound = 1.0 / phase.noise_multiplier
    pure = math.log1p(phase.sampling_rate * math.expm1(bound)) if bound < 600.0 else bound
    return min(pure, 0.5 * order * pure * pure, laplace_rdp(order, [bound], [1]))
