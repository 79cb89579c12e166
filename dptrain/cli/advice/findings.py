"""Findings about a policy: a fact or a warning, the settings that would mend it, and how they are shown."""

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, Literal

from attest.policy import Policy
from dptrain.cli.advice.case import Case, CorpusSize
from dptrain.cli.output import console, styled
from dptrain.cli.results import Shown
from dptrain.planning.plan import ClassPlan, ClassTotal, spent_by, total_of
from dptrain.planning.rounding import at_most


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of `policy.toml` and a value that was computed for it, for example `steps` and `2000`."""

    setting: str
    value: str

    def __str__(self) -> str:
        return f"{self.setting} = {self.value}"


@dataclass(frozen=True, slots=True)
class Consequence:
    """One sentence about what follows from a policy.

    Attributes:
        level: `fact`, or `warning` for a likely mistake.
        code: Stable name for scripts.
        class_name: The class it is about, None for the whole policy.
        sentence: For a person.
        changes: Settings that mend a warning, all of them together; empty if no number can.
    """

    level: Literal["fact", "warning"]
    code: str
    class_name: str | None
    sentence: str
    changes: tuple[Change, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the finding for `--json`."""
        return {
            "level": self.level,
            "code": self.code,
            "class": self.class_name,
            "sentence": self.sentence,
            "changes": [{"setting": item.setting, "value": item.value} for item in self.changes],
        }


def fact(code: str, sentence: str, class_name: str | None = None) -> Consequence:
    """Returns what follows, good or bad."""
    return Consequence("fact", code, class_name, sentence)


def warning(code: str, sentence: str, *changes: Change, class_name: str | None = None) -> Consequence:
    """Returns a likely mistake, and what would mend it."""
    return Consequence("warning", code, class_name, sentence, changes)


_CLOSE_ENOUGH = 0.9
"""A suggested multiplier may undershoot its target epsilon by a tenth; `dptrain calibrate` finds the last digit."""


def in_class(name: str, key: str, value: str) -> Change:
    """Returns a setting of one class."""
    return Change(f"{key} of class {name}", value)


def rounded(value: float | Fraction, digits: int, *, up: bool) -> str:
    """Returns a positive number with so many significant digits, rounded in one direction, as TOML takes it."""
    exact = Decimal(value.numerator) / Decimal(value.denominator) if isinstance(value, Fraction) else Decimal(repr(value))
    step = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{exact.quantize(step, ROUND_CEILING if up else ROUND_FLOOR).normalize():f}"


def multiplier_for(target: float, sampling_rate: float, policy: Policy, start: float) -> tuple[str, float]:
    """Returns a noise multiplier that meets a target epsilon over the horizon, and the epsilon that it gives.

    Guarantee: the epsilon of the multiplier returned has been computed and is not above the target.

    Args:
        target: Epsilon that may not be exceeded.
        sampling_rate: Sampling rate it is for.
        policy: Gives steps, delta and accountant.
        start: First guess, above 0.
    """

    def spent(text: str) -> float:
        return spent_by(policy, float(text), sampling_rate, policy.steps)

    # Log epsilon is nearly a line in log z, with a slope between -1 and -2: secant steps, kept inside the bracket.
    low, high, guess, slope = 0.0, math.inf, rounded(start, 3, up=True), -1.3
    previous: tuple[float, float] | None = None
    while True:
        epsilon = spent(guess)
        z = float(guess)
        if epsilon <= target and (epsilon >= _CLOSE_ENOUGH * target or z - low <= 0.02 * z):
            return guess, epsilon
        low, high = (max(low, z), high) if epsilon > target else (low, min(high, z))
        if previous is not None and previous[0] != z and 0 < epsilon < math.inf and 0 < previous[1] < math.inf:
            slope = min(-0.3, math.log(epsilon / previous[1]) / math.log(z / previous[0]))
        previous = z, epsilon
        wanted = z * ((0.96 * target / epsilon) ** (1 / slope) if 0 < epsilon < math.inf else 2.0 if epsilon else 0.5)
        if not low < wanted < high:
            wanted = 2 * low if math.isinf(high) else 0.5 * (low + high)
        guess = rounded(wanted, 3, up=True)


def power_of_ten_below(limit: Fraction) -> str:
    """Returns the largest power of ten that is at most `limit`, written as 1e-7."""
    exponent = 0
    while Fraction(10) ** exponent > limit:
        exponent -= 1
    return f"1e{exponent}"


def total_over_runs(case: Case, planned: ClassPlan) -> Iterator[Consequence]:
    """Finds a limit over all runs, or one that not even this run keeps."""
    total = total_of(case.policy, planned)
    if total is None:
        return
    if total.used > total.limit:
        limit = [] if math.isinf(total.used) else [in_class(planned.name, "max_epsilon_total", rounded(total.used, 3, up=True))]
        yield warning(
            "TOTAL_EXCEEDED",
            f"max_epsilon_total is {total.limit:g}, and this run by itself could use {at_most(total.used)} of it, with all "
            f"{case.policy.redo_steps} steps that may be done again: it cannot begin. More noise, fewer steps or fewer "
            "redo_steps mend it, or a larger limit",
            *limit,
            class_name=planned.name,
        )
        return
    yield fact(
        "TOTAL",
        f"over all runs together a contribution may spend epsilon {total.limit:g} at delta {float(case.policy.delta):g}, "
        f"whatever later policies say: this run could use {at_most(total.used)}, every step that may be done again included, "
        f"and {repeated(total)}. No run begins that could exceed it",
        planned.name,
    )


def repeated(total: ClassTotal) -> str:
    """Tells how many runs like this one fit into a limit, in words."""
    if total.runs is None:
        return "any number of such runs fit"
    if total.runs == 1:
        return "no second run like it fits"
    return f"{total.runs:,} runs like it fit one after the other"


_PAIR = re.compile(r"\((\S+,) (\S+)\)")
"""(epsilon, delta), which stays on one line."""

_WIDEST = 100
"""Columns beyond which lines of prose are hard to follow."""


def check_text(
    rules: Policy, size: CorpusSize | None, refused: tuple[str, ...], found: tuple[Consequence, ...]
) -> Iterator[Shown]:
    """Yields what `policy check` found."""
    yield (f"policy of corpus {rules.corpus}: {rules.steps} steps, delta {float(rules.delta):g}, accountant {rules.accountant}")
    if size is not None:
        missing = "not said" if size.basis == "given" else "0"
        counts = ", ".join(
            f"{rule.name} {size.classes[rule.name]:,}" if rule.name in size.classes else f"{rule.name} {missing}"
            for rule in rules.classes
        )
        yield f"{size.total:,} contributions, {size.basis}{_CAVEAT[size.basis]}: {counts}"
    for name in [*(rule.name for rule in rules.classes), None]:
        group = [item for item in found if item.class_name == name]
        if group:
            yield f"\n{'all classes together' if name is None else f'class {name}'}"
        for item in group:
            yield from _finding_text(item)
    for sentence in refused:
        yield styled("red", "✗", f" {sentence}")
    warnings = sum(item.level == "warning" for item in found)
    if found:
        yield f"\n{warnings or 'no'} likely mistake{'' if warnings == 1 else 's'}"


_CAVEAT = {"given": " by hand", "attested": " (nothing verified)", "admitted": " by the gate"}


def _finding_text(item: Consequence) -> Iterator[Shown]:
    width = min(_WIDEST, console().width) - 4
    sentence = _PAIR.sub("(\\1\u00a0\\2)", item.sentence)
    first, *rest = (
        line.replace("\u00a0", " ") for line in textwrap.wrap(sentence, width, break_long_words=False, break_on_hyphens=False)
    )
    warned = item.level == "warning"
    yield styled("bold yellow", "  ! ", first) if warned else f"  · {first}"
    for line in rest:
        yield f"    {line}"
    for change in item.changes:
        yield styled("bold yellow", "    → ", str(change))
