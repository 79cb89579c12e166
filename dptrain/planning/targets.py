"""Searches for the settings that reach a target epsilon, by bisection over what it grows or falls with."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Literal

from attest import schedule
from attest.descriptor import MAX_COUNT
from attest.fixed_point import MICRO, from_micro
from attest.policy import ClassRule, Policy
from attest.policy.mechanism import MAX_STEPS
from attest.policy.sampling import period
from attest.schema.cards import card_of
from attest.schema.rounding import rounded_up
from dptrain.errors import ConfigError, TargetUnreachable
from dptrain.planning.plan import make_plan, phases_at, spent
from ledger.accountants.solvers import search

_FAR: Final = 1e3
"""Logarithm of how far an epsilon of 0 or without bound is from its target."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a search ended.

    Attributes:
        value: The integer whose epsilon has been computed.
        epsilon: Its epsilon; at most the target if `met`.
        met: False if no integer of the range meets the target: `value` is then the end of the range that comes nearest.
    """

    value: int
    epsilon: float
    met: bool

    _repr_html_ = card_of


def nearest_within(epsilon: Callable[[int], float], target: float, start: int, *, safe_end: int, unsafe_end: int) -> Found:
    """Finds the integer nearest to the unsafe end whose epsilon is at most the target.

    Guarantee: the epsilon of the integer returned has been computed and is not above the target, if `met`.

    Args:
        epsilon: Of an integer; it grows from the safe end to the unsafe one.
        target: What may not be exceeded, above 0.
        start: First guess, within the range.
        safe_end: Where epsilon is least.
        unsafe_end: Where it is largest; both ends are at least 1.
    """
    values: dict[int, float] = {}

    def log_ratio(at: int) -> float:
        if at not in values:
            values[at] = epsilon(at)
        if not 0.0 < values[at] < math.inf:
            return -_FAR if values[at] == 0.0 else _FAR
        return math.log(values[at] / target)

    found = search(log_ratio, start, safe_end=safe_end, unsafe_end=unsafe_end)
    at = safe_end if found is None else found
    return Found(at, values[at], found is not None)


Quantity = Literal["multiplier", "steps", "rate", "normalizer"]
"""Quantities that may be solved for."""

RATE_GRID = 10**9
"""Sampling rates are found on a grid of 1e-9."""

_MOST = 10**6 * MICRO


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a policy that changes.

    Attributes:
        where: Name of the class, or "" for the top of the policy.
        key: Of the line.
        old: What stands there. new: What would keep within the target.
    """

    where: str
    key: str
    old: str
    new: str

    _repr_html_ = card_of

    @property
    def assignment(self) -> str:
        """Returns the change as `--what-if` takes it."""
        return f"class.{self.where}.{self.key}={self.new}" if self.where else f"{self.key}={self.new}"

    @staticmethod
    def value(text: str) -> float:
        """Returns a number of the policy, which may be one over another in quotes."""
        return float(Fraction(text.strip('"')))


@dataclass(frozen=True, slots=True)
class Reached:
    """Holds the epsilon of a contribution at a class's presets under the policy found, computed again by the whole plan."""

    name: str
    target: float | None
    epsilon_before: float
    epsilon: float
    waste: float

    _repr_html_ = card_of


@dataclass(frozen=True, slots=True)
class Solution:
    """A policy that keeps within its targets.

    Attributes:
        lines: What to change; none if the policy keeps within them by the same lines already.
        classes: Epsilon of every private class, before and after.
        policy: The policy with these lines.
    """

    solve: str
    lines: tuple[Line, ...]
    classes: tuple[Reached, ...]
    policy: Policy

    _repr_html_ = card_of

    def as_json(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        return {
            "solve": self.solve,
            "lines": [
                {"class": line.where or None, "key": line.key, "old": line.value(line.old), "new": line.value(line.new)}
                for line in self.lines
            ],
            "classes": [asdict(item) for item in self.classes],
        }


def solve(policy: Policy, goals: Mapping[str, float], quantity: Quantity, layers: int) -> Solution:
    """Finds the least change of one quantity that keeps every class of `goals` within its epsilon.

    Guarantee: the epsilon of every class with a target has been computed again, by the plan of the policy found, and is not
    above the target. Targets are about zero-out adjacency, a contribution at the presets of its class, and the planned horizon
    without the steps that may be done again.

    Args:
        policy: The rules.
        goals: Epsilon per private class.
        quantity: `multiplier`: the smallest noise multiplier per class, counted without what other classes' noise adds;
            `rate`: the largest sampling rate per class; `steps`: the largest horizon under which all of them hold.
        layers: Layers of the model.

    Raises:
        TargetUnreachable: No value reaches a target; says the nearest that can be reached.
    """
    for name, goal in goals.items():
        if policy.class_rule(name).public:
            raise ConfigError("TARGET", f"class {name} is public: no epsilon is promised to it, and none can be a target")
        if not 0.0 < goal < float("inf"):
            raise ConfigError("TARGET", f"the target epsilon of class {name} is {goal:g}, expected a positive finite number")
    planned = make_plan(policy, layers, hasty=True).classes
    before = {item.name: item.preset.epsilon for item in planned}
    multipliers = {item.name: item.preset.multipliers for item in planned}
    if quantity == "steps":
        found, lines = _steps(policy, goals, multipliers)
    else:
        found, lines = policy, []
        for name, goal in goals.items():
            rule = policy.class_rule(name)
            if quantity == "multiplier":
                changed, line = _multiplier(policy, rule, goal)
            else:
                changed, line = _rate(policy, rule, goal, multipliers[name])
            found = with_class(found, changed)
            lines.append(line)
    for attempt in range(4):
        after = {item.name: item.preset for item in make_plan(found, layers, hasty=True).classes}
        above = [name for name, goal in goals.items() if after[name].epsilon > goal]
        if not above:
            break
        # The last bit of a product of scale and noise may lie below that of the multiplier alone: one unit in 1e-6 more.
        if quantity != "multiplier" or attempt == 3:
            most = after[above[0]].epsilon
            raise TargetUnreachable("TARGET", f"class {above[0]} would spend {most:.9g}, above its target", nearest=most)
        for name in above:
            rule = found.class_rule(name)
            found = with_class(found, replace(rule, noise_multiplier_micro=rule.noise_multiplier_micro + 1))
        lines = [replace(line, new=decimal(found.class_rule(line.where).noise_multiplier_micro, 6)) for line in lines]
    reached = tuple(Reached(name, goals.get(name), old, after[name].epsilon, after[name].waste) for name, old in before.items())
    return Solution(quantity, tuple(line for line in lines if line.old != line.new), reached, found)


def solve_normalizer(policy: Policy, counts: Mapping[str, int], layers: int) -> Solution:
    """Returns the normalizer that is the expected number of contributions per step; it touches no guarantee.

    Args:
        counts: Contributions per class; a class that is missing has none.

    Raises:
        ConfigError: Code NORMALIZER if nothing is drawn at all.
    """
    expected = sum(policy.sampling.mean_rate(rule.sampling_rate) * counts.get(rule.name, 0) for rule in policy.classes)
    if not expected:
        raise ConfigError("NORMALIZER", "a step draws nobody from these contributions, so no normalizer follows from them")
    value = min(max(1, round(expected)), MAX_COUNT)
    found = replace(policy, normalizer=value)
    line = Line("", "normalizer", str(policy.normalizer), str(value))
    planned = make_plan(policy, layers, hasty=True).classes
    reached = tuple(Reached(item.name, None, item.preset.epsilon, item.preset.epsilon, item.preset.waste) for item in planned)
    return Solution("normalizer", (line,) if line.old != line.new else (), reached, found)


def with_class(policy: Policy, rule: ClassRule) -> Policy:
    """Returns the policy with another rule for a class of the same name."""
    return replace(policy, classes=tuple(rule if item.name == rule.name else item for item in policy.classes))


def with_steps(policy: Policy, steps: int) -> Policy:
    """Returns the policy with another horizon; redo_steps and epoch_steps follow where they stand at their defaults."""
    redo = steps if policy.redo_steps == policy.steps else policy.redo_steps
    epoch = max(1, steps // 10) if policy.epoch_steps == max(1, policy.steps // 10) else policy.epoch_steps
    return replace(policy, steps=steps, redo_steps=redo, epoch_steps=epoch)


def decimal(value: int, digits: int) -> str:
    """Returns an integer count of 10**-digits as TOML takes it."""
    text = f"{Decimal(value).scaleb(-digits):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def rate_text(rate: Fraction) -> str:
    """Returns a sampling rate as TOML takes it: its decimals or, of one over a number that has none, both in quotes."""
    scaled = rate * 10**18
    return decimal(int(scaled), 18) if scaled.denominator == 1 or rate.numerator != 1 else f'"{rate}"'


def _multiplier(policy: Policy, rule: ClassRule, goal: float) -> tuple[ClassRule, Line]:
    """Returns the smallest multiplier with which the class's own noise keeps within the goal.

    In a phase of scale a the blocks of the class have a times the noise that it asks for, and so it has a times the multiplier.
    """
    scales = [scale / MICRO for scale in schedule.Phases.of(policy).scales]

    def epsilon(micro: int) -> float:
        return _spent(policy, [scale * from_micro(micro) for scale in scales], float(rule.sampling_rate))

    low = max(1, policy.min_noise_multiplier_micro)
    found = nearest_within(epsilon, goal, max(rule.noise_multiplier_micro, low), safe_end=_MOST, unsafe_end=low)
    _require(found, goal, rule.name, f"a noise multiplier of {from_micro(found.value):g}, the largest that is tried,", "")
    line = Line(rule.name, "noise_multiplier", decimal(rule.noise_multiplier_micro, 6), decimal(found.value, 6))
    return replace(rule, noise_multiplier_micro=found.value), line


def _rate(policy: Policy, rule: ClassRule, goal: float, multipliers: Sequence[float]) -> tuple[ClassRule, Line]:
    """Returns the largest sampling rate with which the class keeps within the goal."""

    def epsilon(units: int) -> float:
        return _spent(policy, multipliers, units / RATE_GRID)

    if policy.sampling.turns:
        return _period(policy, rule, goal, multipliers)
    start = min(max(int(rule.sampling_rate * RATE_GRID), 1), RATE_GRID)
    found = nearest_within(epsilon, goal, start, safe_end=1, unsafe_end=RATE_GRID)
    what = f"a sampling rate of {found.value / RATE_GRID:g}, the smallest that is tried,"
    _require(found, goal, rule.name, what, "; more noise or fewer steps come nearer")
    line = Line(rule.name, "sampling_rate", decimal(int(rule.sampling_rate * 10**18), 18), decimal(found.value, 9))
    return replace(rule, sampling_rate=Fraction(found.value, RATE_GRID)), line


def _period(policy: Policy, rule: ClassRule, goal: float, multipliers: Sequence[float]) -> tuple[ClassRule, Line]:
    """Returns the shortest period that keeps within the goal under an order, up to one that is the whole horizon."""
    start = period(rule.sampling_rate)
    most = max(policy.steps, start)
    found = nearest_within(lambda length: _spent(policy, multipliers, 1 / length), goal, start, safe_end=most, unsafe_end=1)
    what = f"one turn in {found.value:,} steps, the fewest that are tried,"
    _require(found, goal, rule.name, what, "; more noise or fewer steps come nearer")
    rate = Fraction(1, found.value)
    return replace(rule, sampling_rate=rate), Line(rule.name, "sampling_rate", rate_text(rule.sampling_rate), rate_text(rate))


def _steps(policy: Policy, goals: Mapping[str, float], multipliers: Mapping[str, Sequence[float]]) -> tuple[Policy, list[Line]]:
    """Returns the largest horizon under which every class with a goal keeps within it."""

    def each(steps: int) -> dict[str, float]:
        other = with_steps(policy, steps)
        return {name: _spent(other, multipliers[name], float(policy.class_rule(name).sampling_rate)) for name in goals}

    low = policy.noise_phases[-1].first_step if policy.noise_phases else 1

    def furthest(steps: int) -> float:
        return max(value / goals[name] for name, value in each(steps).items())

    found = nearest_within(furthest, 1.0, policy.steps, safe_end=low, unsafe_end=MAX_STEPS)
    if not found.met:
        spent_then = each(low)
        name = max(goals, key=lambda name: spent_then[name] / goals[name])
        what = "one step alone" if low == 1 else f"a horizon of {low} steps, which the phases of the policy need,"
        _require(Found(low, spent_then[name], False), goals[name], name, what, "; more noise or a smaller rate come nearer")
    return with_steps(policy, found.value), [Line("", "steps", str(policy.steps), str(found.value))]


def _spent(policy: Policy, multipliers: Sequence[float], rate: float) -> float:
    """Returns the epsilon at these multipliers, one per phase of the policy."""
    return spent(policy, phases_at(policy, multipliers, rate, hasty=True))


def _require(found: Found, goal: float, name: str, what: str, instead: str) -> None:
    if not found.met:
        raise TargetUnreachable(
            "TARGET",
            f"class {name} cannot have an epsilon of {goal:g} or less this way: {what} spends {rounded_up(found.epsilon, 6)},"
            f" the nearest that can be reached{instead}",
            nearest=found.epsilon,
        )
