"""Findings about a policy: a fact or a warning, the settings that would mend it, and how they are shown."""

import itertools
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from typing import Any, Literal

from attest.policy import Policy
from dptrain.cli.advice.case import CorpusSize
from dptrain.cli.output import console, styled
from dptrain.cli.results import Shown, pick
from dptrain.planning.plan import ClassTotal, spent_by


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
        sentence: For a person.
        changes: Settings that mend a warning, all of them together; empty if no number can.
        class_name: The class it is about, None for the whole policy.
    """

    level: Literal["fact", "warning"]
    code: str
    sentence: str
    changes: tuple[Change, ...] = ()
    class_name: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Returns the finding for `--json`."""
        return pick(self, "level code sentence changes", **{"class": "class_name"})


def fact(code: str, sentence: str) -> Consequence:
    """Returns what follows, good or bad."""
    return Consequence("fact", code, sentence)


def warning(code: str, sentence: str, *changes: Change) -> Consequence:
    """Returns a likely mistake, and what would mend it."""
    return Consequence("warning", code, sentence, changes)


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

    # Log epsilon is nearly a line in log z, with a slope between -1 and -2: secant steps, kept inside the bracket.
    low, high, guess, slope = 0.0, math.inf, rounded(start, 3, up=True), -1.3
    previous: tuple[float, float] | None = None
    while True:
        z = float(guess)
        epsilon = spent_by(policy, z, sampling_rate, policy.steps)
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
    return f"1e{next(power for power in itertools.count(0, -1) if Fraction(10) ** power <= limit)}"


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
