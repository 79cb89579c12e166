"""Plays a rehearsal: one program is the corpus owner and every contributor, on data that is public anyway.

For the demo, the recipes and tests. In a real run each of these keys lies on another machine; see docs/walkthrough.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dptrain.engine.one_owner import Contributor
from ledger.accountants import calibrate


@dataclass(frozen=True)
class Tier:
    """An admissibility class as a corpus owner thinks of it: what may be spent, and how deep it may reach.

    Attributes:
        name: name of the class. epsilon: of one contribution, over the whole run. start: depth at which its band begins.
        clip_norm: of the class; None for the one at which all such classes ask for equally much noise.
    """

    name: str
    epsilon: float
    start: str
    clip_norm: float | None = None


def policy_text(
    corpus: str,
    tiers: Sequence[Tier],
    *,
    steps: int,
    rate: float,
    normalizer: int,
    clip_norm: float,
    delta: float,
    epochs: int = 5,
) -> str:
    """A policy whose classes spend the epsilons of their tiers.

    Tiers without a clip norm get one product of clip norm and noise multiplier: one level of noise on every block serves them
    all, and none of them is protected (and disturbed) more than it signed for. What such a tier pays for its smaller epsilon
    is a smaller clip norm. A tier that names its clip norm pays with louder noise instead, in its band alone.

    Args:
        corpus: identifier of the corpus. tiers: its classes. steps: horizon. rate: probability that a contribution is drawn.
        normalizer: public divisor of noised sums. clip_norm: of the tier with the largest epsilon,
            where tiers name none. delta: of the guarantee.
        epochs: signed checkpoints over the run.
    """
    multipliers = [calibrate(tier.epsilon, rate, steps, delta) for tier in tiers]
    least = min(multipliers)
    norms = [
        clip_norm * least / multiplier - 1e-6 if tier.clip_norm is None else tier.clip_norm
        for tier, multiplier in zip(tiers, multipliers, strict=True)
    ]
    lines = [
        f'corpus = "{corpus}"',
        f"delta = {delta:g}",
        f"steps = {steps}",
        f"normalizer = {normalizer}",
        f"epoch_steps = {max(1, steps // epochs)}",
    ]
    for tier, multiplier, norm in zip(tiers, multipliers, norms, strict=True):
        lines += [
            "",
            f"[[class]]                      # epsilon {tier.epsilon:g} per contribution over the whole run",
            f'name = "{tier.name}"',
            f"clip_norm = {norm:.6f}",
            f"noise_multiplier = {multiplier + 1e-6:.6f}",
            f"sampling_rate = {rate:g}",
            f"depth = {{ from = {tier.start}, to = 1.0 }}",
        ]
    return "\n".join(lines) + "\n"


def shares(records: Sequence[Any], tiers: Sequence[Tier], weights: Sequence[float], per_tier: int) -> list[Contributor]:
    """Deals records out to ``per_tier`` contributors in each tier; tier k gets the fraction ``weights[k]``."""
    found: list[Contributor] = []
    start = 0
    for index, (tier, weight) in enumerate(zip(tiers, weights, strict=True)):
        end = len(records) if index == len(tiers) - 1 else start + round(weight * len(records))
        for place in range(per_tier):
            own = records[start + place : end : per_tier]
            found.append(Contributor(f"contributor-{len(found) + 1:02d}", tier.name, own))
        start = end
    return found
