"""From signed bounds to noise: the arithmetic that training and audit share.

Notation: class k has preset noise multiplier sigma_k and clip norm C_k; a contribution i signed sigma_i and C_i; s_l is
the public standard deviation of the noise on the sum of clipped gradients in block l. Bounds come in units of 1e-6.
Products of bounds are formed in integers and turned into a double once, so that every reader gets the same double.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from attest.errors import ValueRefused
from attest.micro import MICRO, from_micro
from attest.policy import ClassRule, Policy


def class_presets(policy: Policy, names: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Preset (noise multiplier, clip norm), both in 1e-6, of the named classes in the order given.

    Raises:
        PolicyRefused: A name is not a class of the policy.
    """
    rules = [policy.class_rule(name) for name in names]
    return tuple((rule.noise_multiplier_micro, rule.clip_norm_micro) for rule in rules)


def scheduled_std(rules: Iterable[ClassRule]) -> float:
    """Noise standard deviation of a block that these classes may touch: that of its private ones, and 0.0 without any.

    Guarantee: 0.0 means that no private class may touch the block: it is frozen, or public classes alone train it.
    """
    presets = [(rule.noise_multiplier_micro, rule.clip_norm_micro) for rule in rules if not rule.public]
    return block_std(presets) if presets else 0.0


def block_std(presets: Sequence[tuple[int, int]]) -> float:
    """Noise standard deviation of one block: s_l = max over the classes k that touch it of sigma_k * C_k.

    Guarantee: under zero-out adjacency, with gradients clipped to C_k, every class k that touches the block has
    s_l / C_k >= sigma_k up to the rounding of one double; and no smaller schedule has that property, since the
    constraint separates over blocks. Only presets enter, so the schedule is public before the first step.

    Args:
        presets: Pairs (sigma_k, C_k) in 1e-6 of all classes that may touch the block.

    Raises:
        ValueRefused: Code RANGE without presets (a block that no class touches is frozen and has no schedule) or for a
            bound below 1; TYPE for a bound that is not an int.
    """
    if not presets:
        raise ValueRefused("RANGE", "no class touches the block; freeze it and leave it out of the schedule")
    for sigma_micro, clip_micro in presets:
        _check_bound(sigma_micro, "noise multiplier")
        _check_bound(clip_micro, "clip norm")
    return max(sigma * clip for sigma, clip in presets) / (MICRO * MICRO)


def realised_variance(bounds: Iterable[tuple[int, int]]) -> int:
    """Noise variance of a block under injection per sample: V_{t,l} = sum over the contributions drawn of (sigma_j C_j)^2.

    Args:
        bounds: Signed (sigma_j, C_j) in 1e-6 of the contributions drawn that may touch the block.

    Returns:
        The variance in units of 1e-24, exact; 0 without any.
    """
    return sum((sigma * clip) ** 2 for sigma, clip in bounds)


def realised_std(variance: int) -> float:
    """Standard deviation of a variance in units of 1e-24: one rounding, so that every reader gets the same double."""
    return math.sqrt(variance) / (MICRO * MICRO)


def occurrence_loss(clip_micro: int, variance: int) -> float:
    """What one occurrence adds to mu_i^2 under injection per sample: 1/z_{i,t}^2 = C_i^2 / min over its blocks of V_{t,l}.

    Guarantee: at most 1/sigma_i^2, since a contribution that was drawn added its own variance to every block it may touch.

    Args:
        clip_micro: Signed clip norm in 1e-6.
        variance: The smallest realised variance over the blocks it may touch, in units of 1e-24.

    Raises:
        ValueRefused: No variance: the contribution was not drawn, or may touch a block without noise.
    """
    _check_bound(clip_micro, "clip norm")
    if variance < 1:
        raise ValueRefused("RANGE", "a contribution was drawn and a block that it may touch has no noise")
    return float(Fraction(clip_micro * clip_micro * MICRO * MICRO, variance))


def effective_multiplier(sigma_micro: int, clip_micro: int, stds: Iterable[float]) -> float:
    """Noise multiplier that a contribution enjoys: z_i = max(sigma_i, min over its blocks of s_l / C_i).

    Guarantee: valid for dual clipping, which holds the gradient to norm C_i and to whitened norm 1/sigma_i; the first
    gives z_i >= min s_l / C_i, the second z_i >= sigma_i for any public schedule.

    Args:
        sigma_micro: Signed noise multiplier in 1e-6.
        clip_micro: Signed clip norm in 1e-6.
        stds: Standard deviations of the blocks that the contribution may touch.

    Raises:
        ValueRefused: No block, or a block without positive finite noise.
    """
    _check_bound(sigma_micro, "noise multiplier")
    _check_bound(clip_micro, "clip norm")
    smallest = None
    for std in stds:
        if not (math.isfinite(std) and std > 0):
            raise ValueRefused(
                "RANGE", f"noise of a block is {std}, expected a positive number; give every block noise"
            )
        smallest = std if smallest is None else min(smallest, std)
    if smallest is None:
        raise ValueRefused("RANGE", "contribution touches no block, so it has no effective noise multiplier")
    return max(from_micro(sigma_micro), float(Fraction(smallest) * MICRO / clip_micro))


def sufficient_variance(multiplier: float, clip: float) -> float:
    """Per-step variance v_i = (z C_i)^2 that suffices for a contribution at full clip.

    It is a floor for privacy (s_l^2 >= v_i on its blocks, or the contribution is scaled down) and a ceiling on the
    noise that the contribution may ask for.
    """
    _check_positive(multiplier, "noise multiplier")
    _check_positive(clip, "clip norm")
    return (multiplier * clip) ** 2


def waste(effective: float, signed: float) -> float:
    """Waste meter z / sigma: above 1, other classes' noise gives the class more privacy than it asked for."""
    _check_positive(effective, "effective noise multiplier")
    _check_positive(signed, "signed noise multiplier")
    return effective / signed


def _check_bound(value: int, name: str) -> None:
    if type(value) is not int:
        raise ValueRefused("TYPE", f"{name} is {type(value).__name__}, expected an int in units of 1e-6")
    if value < 1:
        raise ValueRefused("RANGE", f"{name} is {value} units of 1e-6, expected at least 1")


def _check_positive(value: float, name: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueRefused("RANGE", f"{name} is {value}, expected a positive finite number")
