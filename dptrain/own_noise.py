"""The noise that one contribution's own bounds would need: its sufficient variance v_i = (z* C_i)^2.

The schedule of a class carries no count of occurrences, since it is public and the same for everybody in the class
(docs/guarantee.md). This figure is of one contribution: what it signed, how often it is expected to be drawn, and from these
the least multiplier z* that keeps it. Everything it takes stands in the descriptor or the ADMIT leaf, and in the signed policy,
so whoever has these computes the same figure. Without torch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from attest.descriptor import Terms
from attest.micro import PICO, from_micro
from attest.policy import Policy
from dptrain import sufficient
from ledger import accountants
from ledger.errors import AccountantError
from ledger.leaves import Admit


@dataclass(frozen=True, slots=True)
class OwnBounds:
    """Holds what a contribution signed of its noise, and how the policy draws it.

    Attributes:
        clip_micro: signed clip norm C_i in 1e-6.
        sigma_micro: signed noise multiplier sigma_i in 1e-6.
        cap: signed cap on occurrences, 0 for none.
        epsilon_micro: signed limit of its epsilon in 1e-6, 0 for none.
        delta_pico: the delta of that limit in 1e-12.
        rate: sampling rate q of its class.
        steps: horizon T.
        disclosure: of the policy.
        accountant: of the policy.
        family: of the policy's noise.
    """

    clip_micro: int
    sigma_micro: int
    cap: int
    epsilon_micro: int
    delta_pico: int
    rate: Fraction
    steps: int
    disclosure: str
    accountant: str
    family: str

    @property
    def expected(self) -> float:
        """Returns the expected occurrences over the horizon, n_i: q T, or the signed cap if that is smaller."""
        drawn = self.rate * self.steps
        return float(min(drawn, self.cap) if self.cap else drawn)


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


def own_bounds(
    policy: Policy, class_name: str, clip_micro: int, sigma_micro: int, cap: int = 0, limit: tuple[int, int] = (0, 0)
) -> OwnBounds | None:
    """Returns the bounds of a contribution under a policy; None in a public class, which promises nothing.

    Args:
        policy: the rules.
        class_name: class of the contribution.
        clip_micro: signed clip norm in 1e-6.
        sigma_micro: signed noise multiplier in 1e-6.
        cap: signed cap on occurrences, 0 for none.
        limit: signed limit of epsilon over all runs in 1e-6, and its delta in 1e-12; 0 and 0 for none.

    Raises:
        PolicyRefused: the policy has no such class.
    """
    rule = policy.class_rule(class_name)
    if rule.public:
        return None
    how = (rule.sampling_rate, policy.steps, policy.disclosure, policy.accountant, policy.mechanism.name)
    return OwnBounds(clip_micro, sigma_micro, cap, *limit, *how)


def signed_bounds(signed: Terms, policy: Policy) -> OwnBounds | None:
    """Returns `own_bounds` of a descriptor."""
    limit = (signed.max_epsilon_micro or 0, signed.max_delta_pico or 0)
    bounds = (signed.clip_norm_micro, signed.noise_multiplier_micro, signed.max_occurrences or 0, limit)
    return own_bounds(policy, signed.admissibility_class, *bounds)


def admitted_bounds(leaf: Admit, policy: Policy) -> OwnBounds | None:
    """Returns `own_bounds` of an ADMIT leaf."""
    limit = (leaf.max_epsilon_micro, leaf.max_delta_pico)
    return own_bounds(policy, leaf.class_name, leaf.clip_micro, leaf.sigma_micro, leaf.max_occurrences, limit)


@lru_cache(maxsize=4096)
def own_noise(bounds: OwnBounds) -> OwnNoise:
    """Returns the noise that suffices for what a contribution signed, whatever its class is given.

    Guarantee: noise of this variance in every step, on all blocks of the contribution, keeps its signed multiplier at full
    clip; and its signed limit of epsilon at the delta of that limit, over the horizon of this run as if it were the only one.
    With secret draws that holds however often it is really drawn; where occurrences are public, for as many as expected,
    rounded up.

    With secret draws and a cap the smaller of two multipliers suffices, each of which does by itself: that of draws at rate q
    without a cap, and that of as many occurrences as the cap without sampling (Lemma 2 of docs/mechanism). A rate of cap / T
    would not: up to the cap draws come at rate q.

    Args:
        bounds: what it signed, and how it is drawn.

    Raises:
        AccountantError: the limit needs a multiplier above 1e6, or the family has no variance to speak of (laplace).
    """
    signed = from_micro(bounds.sigma_micro)
    needed = _for_limit(bounds) if bounds.epsilon_micro else 0.0
    multiplier = max(signed, needed)
    variance = sufficient.variance(multiplier, from_micro(bounds.clip_micro), bounds.family)
    return OwnNoise(bounds.expected, multiplier, variance, needed > signed)


def strictest(limits: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the limits of epsilon, with their deltas, that no other one implies; sorted, and nothing for no limit."""
    found: list[tuple[int, int]] = []
    for epsilon, delta in sorted(limit for limit in set(limits) if limit[0]):
        if all(delta < other for _, other in found):
            found.append((epsilon, delta))
    return found


def _for_limit(bounds: OwnBounds) -> float:
    """Returns the least multiplier that keeps the signed limit."""
    target, delta = from_micro(bounds.epsilon_micro), bounds.delta_pico / PICO
    name, family = bounds.accountant, bounds.family
    if bounds.disclosure == "occurrences_public":
        return sufficient.multiplier_for(target, math.ceil(bounds.expected), delta, name, family)
    capped = math.inf
    if bounds.cap:
        try:
            capped = sufficient.multiplier_for(target, min(bounds.cap, bounds.steps), delta, name, family)
        except AccountantError:
            capped = math.inf  # what sampling makes of it may do
    try:
        return min(capped, accountants.calibrate(target, float(bounds.rate), bounds.steps, delta, name, family=family))
    except AccountantError:
        if capped == math.inf:
            raise
        return capped
