"""How much noise stands between one contribution and each block of the model."""

import math

from attest.micro import from_micro
from ledger.leaves import Header


def block_multipliers(header: Header) -> tuple[tuple[float | None, ...], ...]:
    """Returns, per block and class of the policy, the noise multiplier that the class's preset bounds have on that block alone.

    Guarantee:
        In every step a contribution at the preset bounds C and sigma of its class adds to block l at most ``C_l`` in norm, and
        at most ``s_l / sigma``: the noise of the block is at least ``z_l = max(sigma, s_l / C_l)`` times what it adds, and no
        contribution of the class is admitted with more permissive bounds. ``C_l`` is C, or its part by the shares where the
        policy has budgets; s_l that of the phase with least noise. Where the noise of a step follows its draw only sigma is
        known beforehand, and stands for z_l. It is a statement about the direct update of one block: what a whole run reveals,
        other blocks and later states included, is the epsilon of the class and nothing smaller (docs/mechanism).

    Returns:
        A row per block, an entry per class in the policy's order: None where the class may not touch the block, or is public.
    """
    columns = [_multipliers(header, place) for place in range(len(header.policy.classes))]
    return tuple(tuple(column.get(index) for column in columns) for index in range(len(header.blocks)))


def _multipliers(header: Header, place: int) -> dict[int, float]:
    """The same for one class, by the index of the block."""
    rule, touched = header.policy.classes[place], header.profiles[place].blocks
    if rule.public:
        return {}
    sigma, clip = rule.noise_multiplier, from_micro(rule.clip_norm_micro)
    if header.per_sample:
        return dict.fromkeys(touched, sigma)
    own = {index: header.blocks[index] for index in touched}
    whole = math.sqrt(sum(block.share**2 for block in own.values()))
    return {index: max(sigma, block.std / (clip * (block.share / whole if whole else 1.0))) for index, block in own.items()}
