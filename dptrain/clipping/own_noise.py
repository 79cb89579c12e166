"""Compute the noise that one contribution's own bounds need: its sufficient variance v_i = (z* C_i)^2.

The noise that suffices for a contribution at full clip has the variance v_i per step. It is a floor for privacy: the effective
noise of its class must reach it, or the contribution is scaled down. It is a ceiling on what the contribution may force:
classes take their noise from presets, and a contributor who asks for more is clipped to less.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from attest.descriptor import SignedBounds
from attest.fixed_point import MICRO, PICO, from_micro
from attest.policy import Policy
from attest.schedule import sufficient_variance
from ledger import accountants
from ledger.errors import AccountantError
from ledger.replay.budgets import foreseen_loss, shows_later, with_copies

_LARGEST = 1_000_000 * MICRO
"""Multipliers of record stay below 1e6."""


def variance(multiplier: float, clip_norm: float, family: str = "gaussian") -> float:
    """v = (z C)^2, the variance that suffices for a contribution at full clip.

    Raises:
        AccountantError: under laplace, whose multiplier is no standard deviation.
    """
    if accountants.TABLE[family].norm == 1:
        sentence = f"a multiplier of {family} is the scale of its noise over an L1 norm, and says nothing of this variance"
        raise AccountantError("FAMILY", f"{sentence}; take gaussian, discrete_gaussian or skellam")
    return sufficient_variance(multiplier, clip_norm)


def occurrences_within(
    epsilon: float, multiplier: float, delta: float, accountant: str = "pld", family: str = "gaussian"
) -> int:
    """Return how many public occurrences a target epsilon pays for: the cap to sign where more than expected may come.

    Guarantee: the epsilon of that many has been computed and is not above the target; that of one more is.

    Raises:
        AccountantError: arguments that are no such numbers, or a family whose epsilon is no function of 1/z^2 (laplace).
    """
    accountants.check_epsilon(epsilon)
    if not (math.isfinite(multiplier) and multiplier > 0.0):
        raise AccountantError("NOISE_MULTIPLIER", f"the noise multiplier is a positive finite number, got {multiplier!r}")

    def fits(count: int) -> bool:
        return spent_on(count, multiplier, delta, accountant, family) <= epsilon

    high = 1
    while fits(high):
        if high >= 1 << 40:
            return high  # more than any run has steps
        high *= 2
    return bisect_left(range(high), True, high // 2 + 1, key=lambda count: not fits(count)) - 1


def multiplier_for(epsilon: float, count: int, delta: float, accountant: str = "pld", family: str = "gaussian") -> float:
    """Smallest multiplier on a grid of 1e-6 at which so many public occurrences cost no more than epsilon.

    Guarantee, errors: as `occurrences_within`, or a target that no multiplier below 1e6 meets, with the nearest that one does.
    """
    accountants.check_epsilon(epsilon)
    if type(count) is not int or count < 1:
        raise AccountantError("OCCURRENCES", f"public occurrences are a positive integer, got {count!r}", nearest=1.0)
    return _multiplier_for(epsilon, count, delta, accountant, family)


def _multiplier_for(epsilon: float, count: float, delta: float, accountant: str, family: str) -> float:
    """Returns the same for occurrences that add up to ``count`` at a multiplier of 1."""

    def fits(micro: int) -> bool:
        return spent_on(count, micro / MICRO, delta, accountant, family) <= epsilon

    low, high = 0, MICRO
    while not fits(high):
        low, high = high, 2 * high
        if high > _LARGEST:
            nearest = micro_up(spent_on(count, _LARGEST / MICRO, delta, accountant, family))
            raise AccountantError(
                "EPSILON",
                f"no noise multiplier below 1e6 keeps {count} public occurrences within epsilon {epsilon}; the nearest to be "
                f"reached is {nearest:g}",
                nearest=nearest,
            )
    return bisect_left(range(high), True, low + 1, key=fits) / MICRO


def counted(expected: float) -> int:
    """A number of public occurrences; AccountantError, with the next whole one, unless it is whole and positive."""
    if not 0.0 < expected < math.inf or expected != math.floor(expected):
        nearest = float(max(1, math.ceil(expected))) if math.isfinite(expected) else None
        sentence = f"public occurrences are counted one by one, and {expected!r} is no count"
        raise AccountantError("OCCURRENCES", f"{sentence}; take {nearest:g}" if nearest else sentence, nearest=nearest)
    return int(expected)


def micro_up(epsilon: float) -> float:
    """An epsilon rounded up to 1e-6, for a sentence."""
    return epsilon if math.isinf(epsilon) else math.ceil(epsilon * MICRO) / MICRO


def spent_on(count: float, multiplier: float, delta: float, accountant: str = "pld", family: str = "gaussian") -> float:
    """Epsilon of so many public occurrences at one multiplier; errors as `ledger.accountants.epsilon_occurrences`."""
    return accountants.epsilon_occurrences(count / multiplier**2, delta, accountant, family=family)


@dataclass(frozen=True, slots=True)
class OwnBounds:
    """Holds what a contribution signed of its noise, and how the policy draws it.

    Attributes:
        bounds: signed bounds.
        limit: signed limit of its epsilon in 1e-6, and its delta in 1e-12; zeros for none.
        rate: sampling rate q of its class.
        steps: horizon T; of draws from groups in turn the steps of one group.
        disclosure: of the policy.
        accountant: of the policy.
        family: of the policy's noise.
        turns: under a signed order what its turns add up to at a multiplier of 1, with all steps done again that may be; None
            where each step draws.
        redo: steps that may be done again.
        copies: whether secret draws show in rows behind their own, which are done again too (correlated noise).
    """

    bounds: SignedBounds
    limit: tuple[int, int]
    rate: Fraction
    steps: int
    disclosure: str
    accountant: str
    family: str
    turns: float | None = None
    redo: int = 0
    copies: bool = False

    @property
    def expected(self) -> float:
        """Returns the expected occurrences over the horizon, n_i: q T, or the signed cap if that is smaller."""
        drawn, cap = self.rate * self.steps, self.bounds.max_occurrences
        return float(min(drawn, cap) if cap else drawn)


@dataclass(frozen=True, slots=True)
class OwnNoise:
    """Says what suffices for one contribution.

    Attributes:
        expected: occurrences over the horizon, n_i.
        multiplier: z*, the larger of the signed multiplier and what the signed limit of epsilon needs.
        variance: v_i = (z* C_i)^2, per step and coordinate, on the sum of clipped gradients.
        limited: whether the limit of epsilon needs more than the signed multiplier.
    """

    expected: float
    multiplier: float
    variance: float
    limited: bool


def own_bounds(policy: Policy, class_name: str, bounds: SignedBounds, limit: tuple[int, int] = (0, 0)) -> OwnBounds | None:
    """Returns the bounds of a contribution under a policy; None in a public class, which promises nothing.

    Args:
        policy: the rules.
        class_name: class of the contribution.
        bounds: what it signed.
        limit: signed limit of epsilon over all runs in 1e-6, and its delta in 1e-12; 0 and 0 for none.

    Raises:
        PolicyRefused: the policy has no such class.
    """
    rule = policy.class_rule(class_name)
    if rule.public:
        return None
    steps = policy.sampling.most_steps(policy.steps)
    how = (rule.sampling_rate, steps, policy.disclosure, policy.accountant, policy.mechanism.name)
    redo, turns = policy.redo_steps, None
    if policy.sampling.turns:
        turns = foreseen_loss(policy, rule.sampling_rate, [policy.steps], [1.0], cap=bounds.max_occurrences, redo=redo)
    return OwnBounds(bounds, limit, *how, turns, redo, shows_later(policy))


@lru_cache(maxsize=4096)
def own_noise(own: OwnBounds) -> OwnNoise:
    """Returns the noise that suffices for what a contribution signed, whatever its class is given.

    Guarantee: noise of this variance in every step, on all blocks of the contribution, keeps its signed multiplier at full
    clip; and its signed limit of epsilon at the delta of that limit, over this run as if it were the only one, if all steps
    that may be done again are. With secret draws that holds however often it is really drawn, and under a signed order for
    everybody; where random draws are public, for as many as expected, rounded up.

    With secret draws and a cap the smaller of two multipliers suffices, each of which does by itself: that of draws at rate q
    without a cap, and that of as many occurrences as the cap without sampling (Lemma 2 of docs/mechanism). A rate of cap / T
    would not: up to the cap draws come at rate q. Where steps may be done again a cap counts anew in every attempt, and only
    the first multiplier is taken.

    Args:
        own: what it signed, and how it is drawn.

    Raises:
        AccountantError: the limit needs a multiplier above 1e6, or the family has no variance to speak of (laplace).
    """
    signed = own.bounds.noise_multiplier
    needed = _for_limit(own) if own.limit[0] else 0.0
    multiplier = max(signed, needed)
    per_step = variance(multiplier, own.bounds.clip_norm, own.family)
    return OwnNoise(own.expected, multiplier, per_step, needed > signed)


def strictest(limits: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the limits of epsilon, with their deltas, that no other one implies; sorted, and nothing for no limit."""
    found: list[tuple[int, int]] = []
    for epsilon, delta in sorted(limit for limit in set(limits) if limit[0]):
        if all(delta < other for _, other in found):
            found.append((epsilon, delta))
    return found


def _for_limit(own: OwnBounds) -> float:
    """Returns the least multiplier that keeps the signed limit."""
    target, delta = from_micro(own.limit[0]), own.limit[1] / PICO
    name, family, cap = own.accountant, own.family, own.bounds.max_occurrences
    if own.disclosure == "occurrences_public":
        drawn = own.rate * (own.steps + own.redo)
        count = own.turns or math.ceil(min(drawn, cap) if cap else drawn)
        return _multiplier_for(target, count, delta, name, family)
    capped, phases = math.inf, [accountants.Phase(1.0, float(own.rate), own.steps + own.redo)]
    if own.copies:
        phases = with_copies(phases, own.redo)
    if cap and not own.redo:
        try:
            capped = multiplier_for(target, min(cap, own.steps), delta, name, family)
        except AccountantError:
            capped = math.inf  # what sampling makes of it may do
    try:
        return min(capped, accountants.calibrate_phases(target, phases, delta, name, family=family))
    except AccountantError:
        if capped == math.inf:
            raise
        return capped
