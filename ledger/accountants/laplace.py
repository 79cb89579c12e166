"""Costs Laplace noise: its loss distributions amplified by sampling, and its Rényi divergence.

The noise multiplier z is the scale of the noise over the L1 clip norm, on the sum, block by block.

Proof:
    Rounding after adding is post-processing (Theorem 2). So take real Laplace noise, in units of its scale: 2^-b k = h with
    ‖h‖₁ ≤ 1/z_i. Write H_γ(h) = ∫ max(q_h - γ p, 0) for the product laws q_h around h and p around 0; h ≥ 0 by symmetry. With
    u_j the noise of coordinate j, log q_h/p = Σ ℓ_j with ℓ_j = h_j if u_j ≥ 0, h_j + 2 u_j if -h_j < u_j < 0, and -h_j below.
    As ∂q_h/∂h_j = sign(u_j) q_h, ∂H/∂h_j is half of P(S | u_j > 0) - P(S | u_j < 0), where S says that Σ ℓ_j > log γ.

    *Longer is worse:* this is not negative, since ℓ_j is largest at u_j > 0.

    *On one coordinate is worse:* take two of them, h_1 ≥ h_2, and the others given; let c be log γ less their ℓ. Moving shift
    from h_2 to h_1 changes H by (∂_1 - ∂_2) H. That is the mean of (B - A)/2 with B = P(S | u_1 > 0 > u_2) = P(h_1 + max(h_2 -
    2E, -h_2) > c) and A = P(h_2 + max(h_1 - 2E, -h_1) > c), E exponential; the terms of equal signs cancel. Where the maximum
    is attained by its first argument both are P(h_1 + h_2 - 2E > c). B is 1 if c < h_1 - h_2, A only if c < h_2 - h_1, and A =
    1 implies B = 1. So B ≥ A: H grows until all shift lies on one coordinate.

    Domination for all γ passes to sampled pairs, in each direction (Zhu, Dong and Wang 2022, Theorem 11), and composes. ∎

    For two coordinates with shifts a ≤ b, c = a + b, and ε = log γ: H = 1 - (1 + a/2) e^((ε-c)/2) for 0 ≤ ε ≤ b - a, 1 - (1 +
    (c-ε)/4) e^((ε-c)/2) up to c, and 0 beyond, against 1 - e^((ε-c)/2) of one coordinate. The tests hold both to the integral
    over the plane.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace as _with
from functools import lru_cache
from importlib import metadata
from typing import ClassVar, Final

from ledger.accountants import grids
from ledger.accountants.integers import REAL_ORDERS, of_curve
from ledger.accountants.phases import Counted, Participation, Phase, merged
from ledger.accountants.renyi import ORDERS
from ledger.accountants.table import LATTICE_BITS, RELEASE, Cost, Recorder, check, refusal
from ledger.errors import AccountantError

L1_BITS: Final = 30
"""b of the lattice, before the floor of log2 of the multiplier: a bound of 2^30 steps over d coordinates."""

LAPLACE_INTERVAL: Final = 1e-4
"""Grid of privacy losses of Laplace noise down to a multiplier of 0.1; coarser as 1/z below, as losses reach 1/z."""

MOST_LOSS: Final = 700.0
"""Steps that are sampled and lose more than that are not composed: e^loss is beyond a double."""

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

    def require(self) -> None:
        grids.require("figures of Laplace noise")

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

    That is Theorem 9 of docs/mechanism, proved at the top of this file.

    Under replacement two payloads are 2/z apart, and what sampling would add is not counted. Never above pure composition, nor
    above the Rényi bound without sampling. The library composes by a Fourier transform to the power of the number of steps,
    whose rounding moves delta by up to 7e-17 per step in either sense: so it is asked for a delta smaller by `FFT_ERROR` per
    step, and not at all where that is a tenth of delta, nor where steps of a few points take too long a grid.
    """
    sensitivity = 2.0 if replace else 1.0
    bounds, steps = [sensitivity / p.noise_multiplier for p in phases], [p.steps for p in phases]
    pure = math.fsum(count * bound for count, bound in zip(steps, bounds, strict=True))
    without = of_curve(REAL_ORDERS, lambda order: laplace_rdp(order, bounds, steps), delta)
    lost = FFT_ERROR * sum(steps)
    if lost > 0.1 * delta or any(p.sampling_rate < 1.0 and b > MOST_LOSS for p, b in zip(phases, bounds, strict=True)):
        return min(pure, without)
    # Losses add up to within eight standard deviations of their mean (Hoeffding, 1e-15 on either side), or to pure at most.
    width = min(2.0 * pure, 17.0 * math.sqrt(math.fsum(n * b * b for n, b in zip(steps, bounds, strict=True))))
    interval = max(LAPLACE_INTERVAL, LAPLACE_INTERVAL * 0.1 * max(bounds), width / grids.MOST_POINTS)
    while (found := _on_grid(phases, sensitivity, interval, delta - lost)) == math.inf and interval <= max(bounds):
        interval *= 2.0
    return max(0.0, min(found, pure, without))


def _on_grid(phases: Sequence[Phase], sensitivity: float, interval: float, delta: float) -> float:
    """Returns epsilon on one grid, the larger of both directions; inf where that has more than `grids.MOST_POINTS` points.

    The calls are those of the library's `PLDAccountant`, and so are the figures.
    """
    # The library brings scipy, a second of start-up that commands which account for nothing need not wait for.
    import numpy as np
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, LaplacePrivacyLoss

    found = 0.0
    for direction in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        whole = pld_pmf.create_pmf({0: 1}, interval, 0.0, True)
        for p in phases:
            q = p.sampling_rate
            # What is not sampled costs as much in the other direction.
            way = direction if q < 1.0 else AdjacencyType.REMOVE
            mechanism = LaplacePrivacyLoss(p.noise_multiplier / sensitivity, sampling_prob=q, adjacency_type=way)
            ends = mechanism.connect_dots_bounds()
            low, high = math.floor(ends.epsilon_lower / interval), math.ceil(ends.epsilon_upper / interval)
            deltas = mechanism.get_delta_for_epsilon(np.arange(low, high + 1) * interval)
            step = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)
            if (grown := grids.repeated(step, p.steps)) is None or (whole := grids.together(whole, grown)) is None:
                return math.inf
        found = max(found, float(whole.get_epsilon_for_delta(delta)))
        if all(p.sampling_rate == 1.0 for p in phases):
            break
    return found


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
