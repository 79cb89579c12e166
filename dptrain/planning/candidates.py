"""Compares strategies of correlated noise under a policy, at one epsilon for each of its classes, and chooses one to sign.

One strategy serves all classes. A class of which a step draws the share 1/P takes part once in every P steps, by public turns,
and has the sensitivity of its own period; or steps draw in secret from groups in turn, as many as a strategy has bands, each at
the rate groups/P, which amplifies. The yardstick is the noise in the sums of a run: its root mean square, in clip norms of the
class. Its ratio to that of the best independent noise is largest in some class, and by that strategies are ranked: where blocks
have the largest noise that a class needs, the noise in their sums changes by no larger ratio.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from attest.fixed_point import from_micro
from attest.policy import Policy
from attest.policy.mechanism import GAUSSIAN, MAX_COEFFICIENTS, MechanismRule
from attest.policy.sampling import period
from attest.schema.rounding import rounded_up
from dptrain.noise.correlated import blt, choice, dense, toeplitz
from dptrain.noise.correlated.choice import Arm
from dptrain.noise.correlated.toeplitz import Objective, checked_objective
from dptrain.planning.figures import TABLES, Picture, curve_figure
from dptrain.planning.plan import phases_at, spent
from ledger import accountants
from ledger.accountants.correlated import (
    Banded,
    BandedInverse,
    Dense,
    Participation,
    Strategy,
    Toeplitz,
    identity,
    rule_of,
    sensitivity,
    strategy_of,
)
from ledger.accountants.correlated.strategies import CODE
from ledger.errors import AccountantError

TOEPLITZ, INVERSE, BUFFERED, DENSE = "banded_toeplitz", "banded_inverse", "buffered_toeplitz", "dense"

SIGNED: Final = (TOEPLITZ, INVERSE, BUFFERED)
"""Families whose coefficients a policy holds itself."""

MOST_STEPS: Final = 100_000
MOST_STEPS_OF_MOMENTUM: Final = 20_000
MOST_STEPS_OF_DENSE: Final = {"mean": 128, "max": 32}
"""Steps beyond which a search takes longer than some seconds."""

MOST_STEPS_TO_SIGN: Final = {"mean": 512, "max": 64}
"""Most steps of a dense strategy that is asked for by name: up to half a minute."""

FEW_BANDS: Final = 64
"""Most bands of a matrix that is signed as a banded strategy, which keeps as many numbers; others are signed as dense ones."""

MOST_PRODUCTS: Final = 1 << 24
"""Most steps times bands of a strategy that is searched for."""

MOST_BUFFERS: Final = 4
LEAST_GAIN: Final = 1e-3
"""A buffer more is shown while it lowers the error by this share at least."""

INVERSES: Final = (2, 4, 16, 64, 256)


@dataclass(frozen=True, slots=True)
class Goal:
    """Says what a class needs: epsilon, from turns once in every ``period`` steps.

    Attributes:
        noise_multiplier: of its preset. sampling_rate: the share that a step draws on average.
    """

    name: str
    epsilon: float
    noise_multiplier: float
    sampling_rate: float
    period: int

    @property
    def turns(self) -> Participation:
        """Returns in which steps a contribution takes part."""
        return Participation(self.period, fixed=True)


@dataclass(frozen=True)
class Aim:
    """Says for what a strategy is chosen: the run, what is summed up in it, and the classes.

    Attributes:
        secret: whether the policy keeps draws secret now.
        objective: `mean` or `max` over the sums of the noise's variance. momentum: of the SGD that makes the sums.
    """

    corpus: str
    steps: int
    delta: float
    accountant: str
    secret: bool
    objective: Objective
    momentum: float
    goals: tuple[Goal, ...]

    @functools.cached_property
    def workload(self) -> np.ndarray | None:
        """Returns the first column of what is summed up, shape (steps,); None for prefix sums."""
        return toeplitz.momentum(self.steps, self.momentum) if self.momentum else None

    @property
    def turns(self) -> Participation:
        """Returns the participation of the class with most turns, for which buffers and dense strategies are chosen."""
        return min(self.goals, key=lambda goal: goal.period).turns

    def by_turns(self, strategy: Strategy) -> dict[str, Arm]:
        """Returns what a strategy comes to in each class under public turns."""
        return {
            goal.name: choice.at_epsilon(
                strategy, self.steps, goal.epsilon, self.delta, goal.turns, self.objective, self.workload, self.accountant
            )
            for goal in self.goals
        }

    def by_secret_draws(self, strategy: Strategy, groups: int) -> dict[str, Arm]:
        """Returns what a strategy comes to in each class where steps draw in secret, from groups in turn.

        Raises:
            AccountantError: code STRATEGY, the draws of a group would be more than it has.
        """
        rest = (self.objective, self.accountant, self.workload)
        return {
            goal.name: choice.amplified(
                strategy, self.steps, goal.epsilon, self.delta, groups, self.rate_in_group(goal, groups), *rest
            )
            for goal in self.goals
        }

    def rate_in_group(self, goal: Goal, groups: int) -> float:
        """Returns the rate at which a class is drawn from one of some groups. Raises AccountantError: code STRATEGY."""
        rate = groups * goal.sampling_rate
        if rate > 1.0 + 1e-12:
            told = f"a step draws one in {1 / goal.sampling_rate:g} of class {goal.name}, more than one of {groups} groups has"
            raise AccountantError(CODE, f"{told}; take {int(1 / goal.sampling_rate)} groups at most")
        return min(rate, 1.0)


def aim_of(
    policy: Policy,
    signed: MechanismRule,
    targets: Mapping[str, float],
    objective: Objective = "mean",
    momentum: float = 0.0,
) -> Aim:
    """Returns the aim of a policy.

    Args:
        policy: the rules, under independent noise. signed: the noise that it is written with.
        targets: epsilon by class; of others it is what their preset multiplier gives under the policy as it is written.

    Raises:
        AccountantError: code STRATEGY, noise of another kind, or more steps than are searched over.
        PolicyRefused: code RANGE, a rate that has no period.
    """
    checked_objective(objective)
    told = None
    if signed.name != GAUSSIAN and signed.name not in (*SIGNED, "banded", DENSE):
        told = f"strategies are compared for Gaussian noise, and noise.family is {signed.name!r}; change that first"
    elif policy.noise_injection != "scheduled" or policy.noise_phases:
        told = "strategies go with one draw of noise in every step, the same in all; leave out noise.injection and noise.phase"
    elif policy.steps > (most := MOST_STEPS_OF_MOMENTUM if momentum else MOST_STEPS):
        told = f"the policy has {policy.steps:,} steps, and strategies are searched for over {most:,} at most"
        told += " with momentum; leave it out" if momentum and policy.steps <= MOST_STEPS else ""
    if told is not None:
        raise AccountantError(CODE, told)
    delta = float(policy.delta)
    goals = []
    for rule in policy.classes:
        if rule.public:
            continue
        multiplier, mean = from_micro(rule.noise_multiplier_micro), policy.sampling.mean_rate(rule.sampling_rate)
        goal = Goal(rule.name, targets.get(rule.name, math.nan), multiplier, float(mean), period(mean))
        if rule.name not in targets:
            if signed.name == GAUSSIAN or policy.secret:
                epsilon = spent(policy, phases_at(policy, [multiplier], float(rule.sampling_rate), hasty=True))
            else:
                epsilon = epsilon_of(strategy_of(signed, policy.steps), policy.steps, goal, delta, policy.accountant)
            goal = replace(goal, epsilon=epsilon)
        goals.append(goal)
    return Aim(policy.corpus, policy.steps, delta, policy.accountant, policy.secret, objective, momentum, tuple(goals))


def moved(strategy: Strategy, steps: int, goal: Goal) -> float:
    """Returns by how many clip norms a contribution of a class moves C G, with C scaled to a largest column norm of 1."""
    return sensitivity(strategy, steps, goal.turns).value / math.sqrt(float(strategy.norms_squared(steps).max()))


def epsilon_of(strategy: Strategy, steps: int, goal: Goal, delta: float, accountant: str) -> float:
    """Returns the epsilon of the preset multiplier of a class, all turns together."""
    loss = (moved(strategy, steps, goal) / goal.noise_multiplier) ** 2
    return accountants.epsilon_occurrences(loss, delta, accountant, family=GAUSSIAN)


@dataclass(frozen=True)
class Candidate:
    """Names a strategy that may be taken, and what it keeps.

    Attributes:
        family: word of the policy. size: bands or buffers, 1 of independent noise and 0 of a dense strategy.
        groups: from which steps draw in turn in secret, which amplifies; 0 where contributions take public turns.
        kept: numbers kept for each coordinate between steps.
        strategy: C.
        arms: what it comes to in each class.
        ratios: its error in each class over that of the best independent noise.
    """

    family: str
    size: int
    groups: int
    kept: int
    strategy: Strategy
    arms: Mapping[str, Arm]
    ratios: Mapping[str, float]

    @property
    def name(self) -> str:
        """Returns what a person reads."""
        if self.family == GAUSSIAN:
            return f"independent, {'secret Poisson draws' if self.secret else 'public turns'}"
        if self.family == DENSE:
            return "dense"
        of = f"{self.family}, {self.size} {'buffer' if self.family == BUFFERED else 'band'}{'' if self.size == 1 else 's'}"
        return f"{of}, secret draws of {self.groups} groups" if self.secret else of

    @property
    def secret(self) -> bool:
        """Tells whether draws are secret."""
        return self.groups > 0

    @property
    def worst(self) -> float:
        """Returns the largest ratio of a class."""
        return max(self.ratios.values())


@dataclass(frozen=True)
class Comparison:
    """Says what each strategy comes to at the epsilons of an aim, and what was left out."""

    aim: Aim
    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """Returns the strategy of the least largest ratio."""
        return min(self.candidates, key=lambda item: item.worst)

    @property
    def best_here(self) -> Candidate:
        """Returns the best of those that go with the policy: without secret draws where it has none."""
        possible = (item for item in self.candidates if self.aim.secret or not item.secret)
        return min(possible, key=lambda item: item.worst)

    def as_json(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        places = {id(item): place for place, item in enumerate(self.candidates)}
        return {
            **told(self.aim),
            "strategies": [
                {
                    "family": item.family,
                    "bands": item.size if item.family in (TOEPLITZ, INVERSE) else None,
                    "buffers": item.size if item.family == BUFFERED else None,
                    "draws": "secret" if item.secret else "turns",
                    "groups": item.groups or None,
                    "kept": item.kept,
                    "worst_ratio": item.worst,
                    "classes": {
                        name: {
                            "noise_multiplier": arm.noise_multiplier,
                            "sensitivity": None if item.secret else arm.sensitivity,
                            "rmse": arm.rmse,
                            "step_rmse": arm.step,
                            "ratio": item.ratios[name],
                        }
                        for name, arm in item.arms.items()
                    },
                }
                for item in self.candidates
            ],
            "best": places[id(self.best)],
            "best_here": places[id(self.best_here)],
            "left_out": list(self.left_out),
        }

    def figure(self) -> Picture:
        """Draws the largest ratio over what is kept: a line for every family, independent noise by secret draws across."""
        xs = sorted({1 + item.kept for item in self.candidates})
        if len(xs) == 1:
            xs.append(2)
        series: dict[str, list[float]] = {}
        for item in self.candidates:
            name = item.name if item.family == GAUSSIAN else item.family + (", secret draws of groups" if item.secret else "")
            held = series.setdefault(name, [math.nan] * len(xs))
            for place, x in enumerate(xs):
                if x == 1 + item.kept or (item.family in (GAUSSIAN, DENSE) and x > item.kept):
                    held[place] = item.worst
        return curve_figure(
            xs,
            series,
            title=f"{self.aim.corpus}: noise in the sums of {self.aim.steps:,} steps at equal epsilon",
            x_label="1 + numbers kept for each coordinate: the bands of a strategy",
            y_label="RMSE over that of the best independent noise",
        )

    def tables(self) -> TABLES:
        """Returns the numbers of the figure, a table for every class."""
        head = ["strategy", "kept", "noise multiplier", "sensitivity", "in a step", "RMSE", "ratio"]
        return [
            (
                f"Class {goal.name}: epsilon {rounded_up(goal.epsilon)} at delta {self.aim.delta:g}, {self.aim.accountant}",
                [head, *([item.name, *cells(item, goal.name)] for item in self.candidates)],
            )
            for goal in self.aim.goals
        ]


def cells(item: Candidate, name: str) -> list[str]:
    """Returns what a table shows of a strategy in a class: numbers kept, multiplier, sensitivity, noise in a step and in the
    sums, ratio."""
    arm = item.arms[name]
    moves = "" if item.secret else f"{arm.sensitivity:.4g}"
    noise = f"{arm.step:.4g}", f"{arm.rmse:.4g}"
    return [str(item.kept), rounded_up(arm.noise_multiplier), moves, *noise, f"{item.ratios[name]:.3f}"]


def told(aim: Aim) -> dict[str, Any]:
    """Returns an aim as JSON."""
    return {
        "corpus": aim.corpus,
        "steps": aim.steps,
        "delta": aim.delta,
        "accountant": aim.accountant,
        "objective": aim.objective,
        "momentum": aim.momentum,
        "targets": {
            goal.name: {
                "epsilon": goal.epsilon,
                "preset_multiplier": goal.noise_multiplier,
                "sampling_rate": goal.sampling_rate,
                "period": goal.period,
                "occurrences": goal.turns.times(aim.steps),
            }
            for goal in aim.goals
        },
    }


def compare(aim: Aim) -> Comparison:
    """Returns what the strategies that are searched for come to; dense ones and many bands only over few steps.

    Raises:
        AccountantError: an epsilon that no multiplier meets.
    """
    left_out: list[str] = []
    with np.errstate(over="ignore", invalid="ignore"):  # of columns that a search tries and leaves
        arms = {"secret": aim.by_secret_draws(identity(), 1), "turns": aim.by_turns(identity())}
        least = {goal.name: min(found[goal.name].rmse for found in arms.values()) for goal in aim.goals}

        def candidate(family: str, size: int, kept: int, strategy: Strategy, groups: int = 0) -> Candidate:
            found = aim.by_secret_draws(strategy, groups) if groups else aim.by_turns(strategy)
            ratios = {name: arm.rmse / least[name] for name, arm in found.items()}
            return Candidate(family, size, groups, kept, strategy, found, ratios)

        candidates = [candidate(GAUSSIAN, 1, 0, identity(), 1), candidate(GAUSSIAN, 1, 0, identity())]
        for size in _bands(aim, []):
            if size <= min(goal.period for goal in aim.goals):
                candidates.append(candidate(TOEPLITZ, size, size - 1, searched(aim, TOEPLITZ, size), size))
        for family, sizes in ((TOEPLITZ, _bands(aim, left_out)), (INVERSE, [p for p in INVERSES if p <= aim.steps])):
            candidates += [candidate(family, size, size - 1, searched(aim, family, size)) for size in sizes]
        before = math.inf
        for size in range(1, min(MOST_BUFFERS, aim.steps) + 1):
            found = candidate(BUFFERED, size, size, searched(aim, BUFFERED, size))
            if found.strategy.bands == 1 or found.worst > (1.0 - LEAST_GAIN) * before:
                left_out.append(f"{BUFFERED} of {size} or more: one buffer more gains less than {LEAST_GAIN:.1%}")
                break
            before = found.worst
            candidates.append(found)
        most = MOST_STEPS_OF_DENSE[aim.objective]
        if aim.steps <= most:
            candidates.append(candidate(DENSE, 0, 0, _dense(aim)))
        else:
            left_out.append(f"dense strategies: a search over more than {most} steps takes longer than seconds")
    if aim.momentum:
        left_out.append("buffers chosen for momentum: they are those for sums without it, and measured with it")
    return Comparison(aim, tuple(candidates), tuple(left_out))


def searched(aim: Aim, family: str, size: int) -> Strategy:
    """Returns the strategy of a family that has so many bands or buffers: the best over the steps of the run, or BISR.

    ``size``: 0 of a dense strategy, which has none.

    Raises:
        AccountantError: code STRATEGY, no such size, or a search of more than some minutes.
    """
    if family == DENSE:
        most = MOST_STEPS_TO_SIGN[aim.objective]
        if aim.steps > most:
            told = f"a dense strategy is searched for over {most} steps at most, not over {aim.steps:,}"
            raise AccountantError(CODE, f"{told}; bring one by --matrix, or take bands")
        return _dense(aim)
    if family == INVERSE and not 2 <= size <= aim.steps:
        raise AccountantError(CODE, f"a banded inverse over {aim.steps} steps has 2 to {aim.steps} bands, got {size}")
    if family == TOEPLITZ and size * aim.steps > MOST_PRODUCTS:
        most = MOST_PRODUCTS // aim.steps
        raise AccountantError(CODE, f"{size} bands over {aim.steps:,} steps are not searched for; take {most} at most")
    with np.errstate(over="ignore", invalid="ignore"):
        if family == TOEPLITZ:
            return Toeplitz(tuple(toeplitz.optimal_coefficients(aim.steps, size, aim.objective, aim.workload).tolist()))
        if family == INVERSE:
            return BandedInverse(tuple(toeplitz.banded_inverse_square_root(aim.steps, size, aim.workload).tolist()))
        return blt.optimize(aim.steps, size, aim.objective, aim.turns)


def given(path: Path, steps: int, *, inverse: bool = False) -> Strategy:
    """Returns the strategy of a matrix in a file: `.npy`, or a text of numbers, a row a line.

    Args:
        path: of C, lower triangular, with a row for every step. inverse: whether it is C^-1 that lies there.

    Raises:
        AccountantError: code STRATEGY, no matrix, or none of a strategy of so many steps.
    """
    try:
        if path.suffix == ".npy":
            matrix = np.load(path, allow_pickle=False)
        else:
            matrix = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=2)
    except (OSError, ValueError) as error:
        told = f"cannot read a matrix from {path} ({error}); bring a .npy file, or numbers with a row a line"
        raise AccountantError(CODE, told) from error
    found = Dense.of_inverse(matrix) if inverse else Dense(matrix)
    if found.longest != steps:
        raise AccountantError(CODE, f"the matrix in {path} is of {found.longest} steps, and the policy has {steps}")
    if found.bands == 1:
        told = f"the matrix in {path} is diagonal: noise of its steps is independent, and has no strategy to write"
        raise AccountantError(CODE, f"{told}; keep noise.family = 'gaussian', or bring one with numbers below the diagonal")
    if found.bands <= FEW_BANDS:
        rows = found.rows
        columns = [np.pad(rows[j : j + found.bands, j], (0, max(0, j + found.bands - steps))) for j in range(steps)]
        return Banded(np.array(columns), normalized=False)
    return found


def to_sign(strategy: Strategy, steps: int) -> tuple[MechanismRule, Strategy]:
    """Returns the noise of a policy for a strategy, and the strategy that it says, of whole numbers.

    Raises:
        AccountantError: code STRATEGY, independent noise, or more coefficients than a ledger takes.
    """
    if strategy.bands == 1:
        told = "independent noise is best among what was compared, and has no strategy to write; keep noise.family = 'gaussian'"
        raise AccountantError(CODE, f"{told}, or take a strategy by --family")
    rule = rule_of(strategy)
    return rule, strategy_of(rule, steps)


def costs(aim: Aim, strategy: Strategy, groups: int = 0) -> list[dict[str, Any]]:
    """Returns what a strategy costs each class: at its preset multiplier, and for the epsilon of the aim.

    Args:
        groups: from which steps draw in secret, in turn; 0 for public turns.

    Raises:
        AccountantError: code STRATEGY, no such groups.
    """
    arms = aim.by_secret_draws(strategy, groups) if groups else aim.by_turns(strategy)

    def preset(goal: Goal) -> float:
        if not groups:
            return epsilon_of(strategy, aim.steps, goal, aim.delta, aim.accountant)
        rate, steps = aim.rate_in_group(goal, groups), -(-aim.steps // groups)
        return accountants.epsilon(goal.noise_multiplier, rate, steps, aim.delta, aim.accountant)

    return [
        {
            "class": goal.name,
            "sensitivity": None if groups else moved(strategy, aim.steps, goal),
            "sampling_rate": aim.rate_in_group(goal, groups) if groups else goal.sampling_rate,
            "preset_multiplier": goal.noise_multiplier,
            "epsilon": preset(goal),
            "target_epsilon": goal.epsilon,
            "noise_multiplier": arms[goal.name].noise_multiplier,
            "rmse": arms[goal.name].rmse,
        }
        for goal in aim.goals
    ]


def _bands(aim: Aim, left_out: list[str]) -> Iterator[int]:
    """Yields bands to try: powers of two past the periods, and the periods."""
    periods = {goal.period for goal in aim.goals}
    most = min(MAX_COEFFICIENTS, MOST_PRODUCTS // aim.steps, aim.steps)
    wanted = min(aim.steps, max(8 * min(periods), max(periods)))
    powers = {1 << power for power in range(1, wanted.bit_length())}
    if most < wanted:
        left_out.append(f"more than {most} bands: a search over {aim.steps:,} steps takes longer, or a policy cannot hold them")
    yield from sorted(size for size in powers | periods if 2 <= size <= most)


def _dense(aim: Aim) -> Strategy:
    """Returns the dense optimum for the turns of the class that has most."""
    return dense.optimize(aim.steps, min(aim.turns.gap, aim.steps), aim.objective, aim.workload)
