"""Allocates noise: from signed bounds to the noise of every block, by arithmetic that training and audit share.

Notation: class k has preset noise multiplier sigma_k and clip norm C_k; a contribution i signed sigma_i and C_i; s_l is the
public standard deviation of the noise on the sum of clipped gradients in block l; s_{t,l} that of step t, s_l times the scale
of the phase that t lies in. Bounds and scales come in units of 1e-6. D_k are the blocks that class k may touch, d_l the
coordinates of block l. Products of bounds are formed in integers and turned into a double once, so that every reader gets the
same double.

Without budgets the max rule gives every block its noise. With budgets the policy gives every block a weight w_l, its share, and
divides the clip norm of a contribution by them: ``C_il = C_i u_kl`` with ``u_kl = w_l / sqrt(sum over D_k of w^2)``, so ``sum_l
C_il^2 = C_i^2``. Then the whitened norm of a contribution is at most ``C_i / S_k``. The *effective noise* of its class,

    S_k = (sum over D_k of u_kl^2 / s_l^2)^(-1/2),

which is never below the least s_l, and takes its place in every formula (docs/mechanism, Theorem 7).
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from attest.descriptor import SignedBounds
from attest.errors import ValueRefused
from attest.fixed_point import MICRO
from attest.policy import ClassRule, Policy
from attest.schedule import convex
from attest.schema.cards import card_of


def scheduled_std(rules: Iterable[ClassRule]) -> float:
    """Returns the standard deviation of the noise of a block that these classes may touch; 0.0 without a private one.

    Guarantee: 0.0 means that no private class may touch the block: it is frozen, or public classes alone train it.
    """
    presets = [rule.bounds for rule in rules if not rule.public]
    return block_std(presets) if presets else 0.0


def block_std(presets: Sequence[SignedBounds]) -> float:
    """Returns the noise standard deviation of one block: s_l = max over the classes k that touch it of sigma_k * C_k.

    Guarantee: under zero-out adjacency, with gradients clipped to C_k, every class k that touches the block has s_l / C_k >=
    sigma_k up to the rounding of one double; and no smaller schedule has that property, since the constraint separates over
    blocks. Only presets enter, so the schedule is public before the first step.

    Raises:
        ValueRefused: Code RANGE without presets (a block that no class touches is frozen and has no schedule) or for a bound
            below 1; TYPE for a bound that is not an int.
    """
    if not presets:
        raise ValueRefused("RANGE", "no class touches the block; freeze it and leave it out of the schedule")
    for preset in presets:
        _check(preset)
    return max(preset.sigma_micro * preset.clip_micro for preset in presets) / (MICRO * MICRO)


def phase_std(std: float, scale_micro: int) -> float:
    """Returns the noise standard deviation of a block in a phase: s_{t,l} = scale_t s_l.

    Guarantee: the exact product of the double and the scale, rounded once, so that every reader gets the same double; that of
    scale 1 is the double itself. It grows with either factor, so the smallest over blocks is that of the smallest s_l.

    Args:
        std: s_l, of the schedule; 0.0 of a block without noise stays 0.0.
        scale_micro: Scale of the phase in 1e-6.

    Raises:
        ValueRefused: A scale below 1, or a standard deviation that is negative or not finite.
    """
    if type(scale_micro) is not int or scale_micro < MICRO:
        raise ValueRefused("RANGE", f"scale of a noise phase is {scale_micro} in 1e-6, expected an int of at least {MICRO}")
    if not (math.isfinite(std) and std >= 0):
        raise ValueRefused("RANGE", f"noise of a block is {std}, expected a finite number of at least 0")
    return float(Fraction(std) * scale_micro / MICRO)


@dataclass(frozen=True, slots=True)
class Phases:
    """Divides the steps of a run by how much noise they have. Phases are counted from 0, and there is always one."""

    firsts: tuple[int, ...]
    scales: tuple[int, ...]
    steps: int

    _repr_html_ = card_of

    @classmethod
    def of(cls, policy: Policy) -> "Phases":
        """Returns the phases of a policy: those stated, after one of scale 1 if they leave steps before them."""
        stated = [(phase.first_step, phase.scale_micro) for phase in policy.noise_phases]
        if not stated or stated[0][0] > 1:
            stated.insert(0, (1, MICRO))
        return cls(tuple(first for first, _ in stated), tuple(scale for _, scale in stated), policy.steps)

    def index(self, step: int) -> int:
        """Returns the phase of a step; the last one goes on past the horizon. Raises ValueRefused: code RANGE, there is no step
        before 1."""
        if step < 1:
            raise ValueRefused("RANGE", f"step is {step}, expected at least 1: steps count from 1")
        return bisect_right(self.firsts, step) - 1

    def scale_micro(self, step: int) -> int:
        """Returns the scale of a step in 1e-6."""
        return self.scales[self.index(step)]

    def last_step(self, step: int) -> int:
        """Returns the last step of the phase that a step lies in; the horizon in the last one."""
        after = self.index(step) + 1
        return self.firsts[after] - 1 if after < len(self.firsts) else self.steps

    def count(self, first_step: int, n_steps: int) -> tuple[int, ...]:
        """Says how many of `n_steps` steps from `first_step` on lie in each phase; they add up to `n_steps`."""
        end = first_step + n_steps
        bounds = zip(self.firsts, (*self.firsts[1:], end), strict=True)
        return tuple(max(0, min(end, stop) - max(first_step, start)) for start, stop in bounds)

    @property
    def horizon(self) -> tuple[int, ...]:
        """Returns the steps of the whole run in each phase, none done again."""
        return self.count(1, self.steps)


def phase_multipliers(bounds: SignedBounds, stds: Iterable[float]) -> tuple[float, ...]:
    """Returns a contribution's effective multiplier in each phase, from the noise of its class: z_{i,t} of Theorem 1. Raises
    ValueRefused: as `effective_multiplier`."""
    return tuple(effective_multiplier(bounds, [std]) for std in stds)


def realised_std(variance: int) -> float:
    """Returns the noise of a block under injection per sample, rounded once, so that all readers get one double.

    Args:
        variance: V_{t,l} in units of 1e-24, the sum over the contributions drawn of `SignedBounds.variance`.
    """
    return math.sqrt(variance) / (MICRO * MICRO)


def occurrence_loss(bounds: SignedBounds, variance: int) -> float:
    """Returns what one occurrence adds to mu_i^2 under injection per sample: 1/z_{i,t}^2 = C_i^2 / min over its blocks of
    V_{t,l}.

    Guarantee: at most 1/sigma_i^2, since a contribution that was drawn added its own variance to every block it may touch.

    Args:
        variance: The smallest realised variance over the blocks it may touch, in units of 1e-24.

    Raises:
        ValueRefused: No variance: the contribution was not drawn, or may touch a block without noise.
    """
    _check_bound(bounds.clip_micro, "clip norm")
    if variance < 1:
        raise ValueRefused("RANGE", "a contribution was drawn and a block that it may touch has no noise")
    return float(Fraction((bounds.clip_micro * MICRO) ** 2, variance))


def effective_multiplier(bounds: SignedBounds, stds: Iterable[float]) -> float:
    """Returns the noise multiplier that a contribution enjoys: z_i = max(sigma_i, min over its blocks of s_l / C_i).

    Guarantee: valid for dual clipping, which holds the gradient to norm C_i and to whitened norm 1/sigma_i; the first gives z_i
    >= min s_l / C_i, the second z_i >= sigma_i for any public schedule.

    Args:
        stds: Standard deviations of the blocks that the contribution may touch.

    Raises:
        ValueRefused: No block, or a block without positive finite noise.
    """
    _check(bounds)
    smallest = None
    for std in stds:
        if not (math.isfinite(std) and std > 0):
            raise ValueRefused("RANGE", f"noise of a block is {std}, expected a positive number; give every block noise")
        smallest = std if smallest is None else min(smallest, std)
    if smallest is None:
        raise ValueRefused("RANGE", "contribution touches no block, so it has no effective noise multiplier")
    return max(bounds.noise_multiplier, float(Fraction(smallest) * MICRO / bounds.clip_micro))


def sufficient_variance(multiplier: float, clip: float) -> float:
    """Returns the per-step variance v_i = (z C_i)^2 that suffices for a contribution at full clip.

    It is a floor for privacy (s_l^2 >= v_i on its blocks, or the contribution is scaled down) and a ceiling on the noise that
    the contribution may ask for.
    """
    _check_positive(multiplier, "noise multiplier")
    _check_positive(clip, "clip norm")
    return (multiplier * clip) ** 2


def waste(effective: float, signed: float) -> float:
    """Returns the waste meter z / sigma: above 1, other classes' noise gives the class more privacy than it asked for."""
    _check_positive(effective, "effective noise multiplier")
    _check_positive(signed, "signed noise multiplier")
    return effective / signed


def _check(bounds: SignedBounds) -> None:
    _check_bound(bounds.sigma_micro, "noise multiplier")
    _check_bound(bounds.clip_micro, "clip norm")


def _check_bound(value: int, name: str) -> None:
    if type(value) is not int:
        raise ValueRefused("TYPE", f"{name} is {type(value).__name__}, expected an int in units of 1e-6")
    if value < 1:
        raise ValueRefused("RANGE", f"{name} is {value} units of 1e-6, expected at least 1")


def _check_positive(value: float, name: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueRefused("RANGE", f"{name} is {value}, expected a positive finite number")


_FIXED = 110
"""Bits to which the effective noise of a class is formed in integers."""


class Part(Protocol):
    """Holds what allocation sees of a block."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def coordinates(self) -> int: ...

    @property
    def share(self) -> int:
        """Returns w_l in 1e-6; 0 without budgets."""


class Noised(Part, Protocol):
    """Says of a block that it has its noise."""

    @property
    def std(self) -> float: ...


def share_of(places: Iterable[str], budgets: tuple[int, int, int]) -> int:
    """Returns the share of a block that lies at these places, each `embeddings`, `layers` or `head`: the largest weight among
    theirs."""
    return max(budgets[("embeddings", "layers", "head").index(place)] for place in places)


def effective_std(stds: Sequence[float], shares: Sequence[int] = ()) -> float:
    """Returns the effective noise of a class, from that of its blocks: the least s_l, or S_k with budgets.

    Guarantee: a contribution clipped to C_i, and with budgets to C_i u_kl in every block, has a whitened norm of at most C_i /
    S. The result is rounded down, in integers, so every reader gets the same double and none a larger one.

    Args:
        stds: Standard deviations of the blocks that the class may touch.
        shares: w_l in 1e-6 of the same blocks; empty, or with a 0 among them, without budgets.

    Raises:
        ValueRefused: No block, or a block whose noise is no finite number of at least 0.
    """
    if not stds or not all(math.isfinite(std) and std >= 0.0 for std in stds):
        sentence = f"noise of the blocks of a class is {list(stds)!r:.80}, expected finite numbers, one at least"
        raise ValueRefused("RANGE", sentence)
    least = min(stds)
    if not shares or 0 in shares or least == 0.0:
        return least
    if len(shares) != len(stds):
        raise ValueRefused("RANGE", f"{len(shares)} shares for {len(stds)} blocks, expected as many")
    count: dict[float, int] = {}
    for std, share in zip(stds, shares, strict=True):
        count[std] = count.get(std, 0) + share * share
    whole = sum(count.values())
    weighted = 0  # sum of w_l^2 (least / s_l)^2, rounded up
    for std, squares in count.items():
        ratio = (Fraction(least) / Fraction(std)) ** 2
        weighted -= (-squares * ratio.numerator << _FIXED) // ratio.denominator
    root = math.isqrt((whole << 3 * _FIXED) // weighted)  # S / least, at least 1
    exact = Fraction(least) * Fraction(root, 1 << _FIXED)
    found = float(exact)
    return found if Fraction(found) <= exact else math.nextafter(found, 0.0)


def class_std(rule: ClassRule, parts: Iterable[Noised]) -> float:
    """Returns the effective noise of a class over these blocks, of which only its own count; the least of any block for a
    public class."""
    own = [part for part in parts if rule.name in part.classes]
    return effective_std([part.std for part in own], [] if rule.public else [part.share for part in own])


def demands(classes: Iterable[ClassRule], parts: Sequence[Part]) -> list[dict[int, Fraction]]:
    """Per private class (sigma_k C_kl)^2 on every block that it may touch, exact; see `attest.schedule.convex`. Raises
    ValueRefused: A private class touches no block, or one without a share."""
    found = []
    for rule in classes:
        if rule.public:
            continue
        own = [index for index, part in enumerate(parts) if rule.name in part.classes]
        if not own:
            raise ValueRefused("RANGE", f"class {rule.name} touches no block, so its clip norm cannot be divided")
        bare = next((index for index in own if parts[index].share < 1), None)
        if bare is not None:
            raise ValueRefused("RANGE", f"block {parts[bare].name} has no share of the clip norm of class {rule.name}")
        whole = sum(parts[index].share ** 2 for index in own)
        need = Fraction(rule.bounds.variance, MICRO**4)
        found.append({index: need * parts[index].share ** 2 / whole for index in own})
    return found


def budget_stds(classes: Iterable[ClassRule], parts: Sequence[Part]) -> convex.Optimum:
    """Returns the noise of every block with budgets: least energy at which every private class has its multiplier.

    Guarantee: for every private class k, ``sum over D_k of C_kl^2 / s_l^2 <= sigma_k^-2`` in exact arithmetic, and the energy
    ``sum_l d_l s_l^2`` is within 1e-6 of the least possible. Only presets, shares and sizes enter.

    Args:
        parts: All blocks. One that no private class may touch gets no noise.

    Raises:
        ValueRefused: As `attest.schedule.convex.solve`.
    """
    return convex.solve([float(part.coordinates) for part in parts], demands(classes, parts))


def check_budgets(classes: Sequence[ClassRule], budgets: tuple[int, int, int], parts: Sequence[Noised]) -> None:
    """Checks a schedule with budgets as an auditor does, who has no model.

    Guarantee: on return every block that a private class may touch has one of the three shares and positive noise, no other has
    either, and what `budget_stds` guarantees holds, the first part in exact arithmetic.

    Raises:
        ValueRefused: With the block or the class that is wrong.
    """
    private = {rule.name for rule in classes if not rule.public}
    for part in parts:
        touched = not private.isdisjoint(part.classes)
        if part.share not in (budgets if touched else (0,)):
            sentence = f"block {part.name} has the share {part.share}, expected {budgets if touched else 0} of the policy"
            raise ValueRefused("BUDGET", sentence)
        if touched != (part.std > 0.0):
            sentence = f"block {part.name} has noise {part.std}, and {'a' if touched else 'no'} private class"
            raise ValueRefused("BUDGET", sentence)
    wanted = demands(classes, parts)
    stds = [part.std for part in parts]
    for rule, demand in zip((rule for rule in classes if not rule.public), wanted, strict=True):
        if not convex.feasible(stds, [demand]):
            sentence = f"the noise of the blocks of class {rule.name} is below what its bounds and shares need"
            raise ValueRefused("BUDGET", sentence)
    best = budget_stds(classes, parts)
    found = noise_energy(parts)
    if found > best.energy * (1.0 + convex.LARGEST_GAP):
        raise ValueRefused("BUDGET", f"noise of energy {found}, where the budgets need {best.energy}")


def noise_energy(parts: Iterable[Noised]) -> float:
    """Returns the expected squared norm of the noise of a step, ``sum_l d_l s_l^2``."""
    own = list(parts)
    return convex.energy([float(part.coordinates) for part in own], [part.std for part in own])


@dataclass(frozen=True, slots=True)
class Energies:
    """Compares the expected squared norm of the noise of one step, by how it is allocated, at the same multiplier of every
    class.

    Attributes:
        routed: The max rule, ``sum_l d_l max over the classes that may touch l of (sigma_k C_k)^2``.
        uniform: One level for all blocks that have noise, that of the most demanding class.
        bound: No allocation for the same clipping has less: the max rule's own energy, or the programme's dual bound.
    """

    scheduled: float
    routed: float
    uniform: float
    bound: float

    @property
    def of_uniform(self) -> float:
        """Returns the scheduled energy as a part of uniform noise's."""
        return self.scheduled / self.uniform

    @property
    def gap(self) -> float:
        """Says how far the schedule is from what was shown to be least, relative."""
        return max(0.0, self.scheduled / self.bound - 1.0)


def energies(classes: Sequence[ClassRule], parts: Sequence[Noised]) -> Energies:
    """Returns the energy of a schedule beside that of the max rule and of uniform noise (docs/mechanism, Proposition 3). Raises
    ValueRefused: no block has noise, or as `budget_stds`."""
    rules = {rule.name: rule for rule in classes}
    own = [(part.coordinates, scheduled_std([rules[name] for name in part.classes])) for part in parts]
    loudest = max((std for _, std in own), default=0.0)
    if loudest == 0.0:
        raise ValueRefused("RANGE", "no block has noise: no private class touches any")
    routed = convex.energy([float(size) for size, _ in own], [std for _, std in own])
    budgets = any(part.share for part in parts)
    return Energies(
        scheduled=noise_energy(parts),
        routed=routed,
        uniform=sum(size for size, std in own if std > 0.0) * loudest * loudest,
        bound=budget_stds(classes, parts).bound if budgets else routed,
    )
