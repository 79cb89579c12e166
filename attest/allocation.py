"""Which block gets how much noise: the max rule, budgets per block, what either saves, and what a class wastes.

Notation as in `attest.schedule`; D_k are the blocks that class k may touch, d_l the coordinates of block l. With budgets the
policy gives every block a weight w_l, its share, and divides the clip norm of a contribution by them:
``C_il = C_i u_kl`` with ``u_kl = w_l / sqrt(sum over D_k of w^2)``, so ``sum_l C_il^2 = C_i^2``. Then the whitened norm of a
contribution is at most ``C_i / S_k`` with the *effective noise* of its class,

    S_k = (sum over D_k of u_kl^2 / s_l^2)^(-1/2),

which is never below the least s_l, and takes its place in every formula (docs/mechanism, Theorem 7).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from attest import programme, schedule
from attest.errors import ValueRefused
from attest.micro import MICRO
from attest.policy import ClassRule

_FIXED = 110
"""Bits to which the effective noise of a class is formed in integers."""


class Part(Protocol):
    """What allocation sees of a block."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def coordinates(self) -> int: ...

    @property
    def share(self) -> int:
        """w_l in 1e-6; 0 without budgets."""


class Noised(Part, Protocol):
    """A block that has its noise."""

    @property
    def std(self) -> float: ...


def share_of(places: Iterable[str], budgets: tuple[int, int, int]) -> int:
    """Share of a block that lies at these places, each `embeddings`, `layers` or `head`: the largest weight among theirs."""
    return max(budgets[("embeddings", "layers", "head").index(place)] for place in places)


def effective_std(stds: Sequence[float], shares: Sequence[int] = ()) -> float:
    """Effective noise of a class, from that of its blocks: the least s_l, or S_k with budgets.

    Guarantee: a contribution clipped to C_i, and with budgets to C_i u_kl in every block, has a whitened norm of at most
    C_i / S. The result is rounded down, in integers, so every reader gets the same double and none a larger one.

    Args:
        stds: Standard deviations of the blocks that the class may touch.
        shares: w_l in 1e-6 of the same blocks; empty, or with a 0 among them, without budgets.

    Raises:
        ValueRefused: No block, or a block whose noise is no finite number of at least 0.
    """
    if not stds or not all(math.isfinite(std) and std >= 0.0 for std in stds):
        raise ValueRefused(
            "RANGE", f"noise of the blocks of a class is {list(stds)!r:.80}, expected finite numbers, one at least"
        )
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
    """Effective noise of a class over these blocks, of which only its own count; the least of any block for a public class."""
    own = [part for part in parts if rule.name in part.classes]
    return effective_std([part.std for part in own], [] if rule.public else [part.share for part in own])


def demands(classes: Iterable[ClassRule], parts: Sequence[Part]) -> list[dict[int, Fraction]]:
    """Per private class (sigma_k C_kl)^2 on every block that it may touch, exact; see `attest.programme`.

    Raises:
        ValueRefused: A private class touches no block, or one without a share.
    """
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
        need = Fraction(rule.noise_multiplier_micro * rule.clip_norm_micro, MICRO * MICRO) ** 2
        found.append({index: need * parts[index].share ** 2 / whole for index in own})
    return found


def budget_stds(classes: Iterable[ClassRule], parts: Sequence[Part]) -> programme.Optimum:
    """The noise of every block with budgets: least energy at which every private class has its multiplier.

    Guarantee: for every private class k, ``sum over D_k of C_kl^2 / s_l^2 <= sigma_k^-2`` in exact arithmetic, and the energy
    ``sum_l d_l s_l^2`` is within 1e-6 of the least possible. Only presets, shares and sizes enter.

    Args:
        classes: Of the policy.
        parts: All blocks. One that no private class may touch gets no noise.

    Raises:
        ValueRefused: As `attest.programme.solve`.
    """
    return programme.solve([float(part.coordinates) for part in parts], demands(classes, parts))


def check_budgets(classes: Sequence[ClassRule], budgets: tuple[int, int, int], parts: Sequence[Noised]) -> None:
    """Check a schedule with budgets as an auditor does, who has no model.

    Guarantee: on return every block that a private class may touch has one of the three shares and positive noise, no other
    has either, and what `budget_stds` guarantees holds, the first part in exact arithmetic.

    Raises:
        ValueRefused: With the block or the class that is wrong.
    """
    private = {rule.name for rule in classes if not rule.public}
    for part in parts:
        touched = not private.isdisjoint(part.classes)
        if part.share not in (budgets if touched else (0,)):
            raise ValueRefused(
                "BUDGET", f"block {part.name} has the share {part.share}, expected {budgets if touched else 0} of the policy"
            )
        if touched != (part.std > 0.0):
            raise ValueRefused(
                "BUDGET", f"block {part.name} has noise {part.std}, and {'a' if touched else 'no'} private class"
            )
    wanted = demands(classes, parts)
    stds = [part.std for part in parts]
    for rule, demand in zip((rule for rule in classes if not rule.public), wanted, strict=True):
        if not programme.feasible(stds, [demand]):
            raise ValueRefused(
                "BUDGET", f"the noise of the blocks of class {rule.name} is below what its bounds and shares need"
            )
    best = budget_stds(classes, parts)
    found = noise_energy(parts)
    if found > best.energy * (1.0 + programme.LARGEST_GAP):
        raise ValueRefused("BUDGET", f"noise of energy {found}, where the budgets need {best.energy}")


def noise_energy(parts: Iterable[Noised]) -> float:
    """Expected squared norm of the noise of a step, ``sum_l d_l s_l^2``."""
    own = list(parts)
    return programme.energy([float(part.coordinates) for part in own], [part.std for part in own])


@dataclass(frozen=True, slots=True)
class Energies:
    """Expected squared norm of the noise of one step, by how it is allocated, at the same multiplier of every class.

    Attributes:
        scheduled: What the schedule has.
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
        """Scheduled energy as a part of uniform noise's."""
        return self.scheduled / self.uniform

    @property
    def gap(self) -> float:
        """How far the schedule is from what was shown to be least, relative."""
        return max(0.0, self.scheduled / self.bound - 1.0)


def energies(classes: Sequence[ClassRule], parts: Sequence[Noised]) -> Energies:
    """Energy of a schedule beside that of the max rule and of uniform noise (docs/mechanism, Proposition 3).

    Raises:
        ValueRefused: No block has noise, or as `budget_stds`.
    """
    rules = {rule.name: rule for rule in classes}
    own = [(part.coordinates, schedule.scheduled_std([rules[name] for name in part.classes])) for part in parts]
    loudest = max((std for _, std in own), default=0.0)
    if loudest == 0.0:
        raise ValueRefused("RANGE", "no block has noise: no private class touches any")
    routed = programme.energy([float(size) for size, _ in own], [std for _, std in own])
    budgets = any(part.share for part in parts)
    return Energies(
        scheduled=noise_energy(parts),
        routed=routed,
        uniform=sum(size for size, std in own if std > 0.0) * loudest * loudest,
        bound=budget_stds(classes, parts).bound if budgets else routed,
    )


def wastes(classes: Iterable[ClassRule], parts: Sequence[Noised]) -> dict[str, float]:
    """Waste meter of every private class: the multiplier of a contribution at the class's own bounds, by the one it signed.

    Above 1, noise that other classes need gives the class more privacy than it asked for, paid in usefulness. Classes that
    share blocks waste least with equal products sigma_k C_k.
    """
    found = {}
    for rule in classes:
        if not rule.public:
            signed = (rule.noise_multiplier_micro, rule.clip_norm_micro)
            effective = schedule.effective_multiplier(*signed, [class_std(rule, parts)])
            found[rule.name] = schedule.waste(effective, rule.noise_multiplier)
    return found
