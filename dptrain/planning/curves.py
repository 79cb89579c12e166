"""Computes epsilon over the steps of a run or over delta, and by all accountants."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attest.schema.rounding import rounded_up
from dptrain.planning.figures import TABLES, Picture, curve_figure
from ledger import accountants
from ledger.accountants import MIN_DELTA, AccountantError, Phase

POINTS = 15
"""About how many points a curve has."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Epsilon per accountant, zero-out and for replaced content, over steps or delta."""

    over: Literal["steps", "delta"]
    xs: tuple[float, ...]
    epsilon: dict[str, tuple[float, ...]]
    epsilon_replace: dict[str, tuple[float, ...]]
    terms: str = ""

    def as_json(self) -> dict[str, Any]:
        """Returns what `--json` prints."""
        return {
            "over": self.over,
            "points": [
                {
                    self.over: x,
                    **{
                        name: {"epsilon": values[index], "epsilon_replace": self.epsilon_replace[name][index]}
                        for name, values in self.epsilon.items()
                    },
                }
                for index, x in enumerate(self.xs)
            ],
        }

    def figure(self) -> Picture:
        """Draws a line per accountant; with one alone, also that of replaced content."""
        series: dict[str, Sequence[float]] = dict(self.epsilon)
        if len(series) == 1:
            name = next(iter(series))
            series[f"{name}, content replaced"] = self.epsilon_replace[name]
        return curve_figure(
            self.xs,
            series,
            title=f"Epsilon over {self.over}{self.terms}",
            x_label=self.over,
            y_label="epsilon, zero-out unless said",
        )

    def tables(self) -> TABLES:
        """Returns the points."""
        head = [self.over, *(f"{name}{note}" for name in self.epsilon for note in ("", ", content replaced"))]
        rows = [
            [
                f"{x:g}",
                *(rounded_up(part[name][index], 6) for name in self.epsilon for part in (self.epsilon, self.epsilon_replace)),
            ]
            for index, x in enumerate(self.xs)
        ]
        return [("Epsilon", [head, *rows])]


def curve(
    phases: Sequence[Phase],
    delta: float,
    names: Sequence[str],
    family: str,
    *,
    over: Literal["steps", "delta"],
    progress: Callable[[int], None] | None = None,
) -> Curve:
    """Computes epsilon of the run so far, phase after phase, or of the whole run at other deltas.

    Args:
        phases: The run.
        delta: Of the figure, or one of those shown.
        names: Accountants.
        family: Of the noise.
        over: What varies.
        progress: Is told how many of the `values_of` figures are done.

    Raises:
        AccountantError: As the accountants.
    """
    if over == "steps":
        total = sum(phase.steps for phase in phases)
        xs = sorted({max(1, round(total ** (index / (POINTS - 1)))) for index in range(POINTS)}) if total else [1]
    else:
        decades = range(round(math.log10(MIN_DELTA)), -1)
        xs = sorted({*(float(f"1e{exponent}") for exponent in decades), delta})

    found: dict[tuple[str, bool], list[float]] = {(name, replaced): [] for name in names for replaced in (False, True)}

    def add(name: str, replaced: bool, values: Sequence[float]) -> None:
        for value in values:
            found[name, replaced].append(value)
            if progress is not None:
                progress(sum(map(len, found.values())))

    if over == "delta":
        for name, replaced in found:
            values = list(accountants.epsilon_at_deltas(phases, xs, name, family=family, replace=replaced))
            # That of the run to the last bit, as it is shown beside the curve.
            values[xs.index(delta)] = accountants.epsilon_of_phases(phases, delta, name, family=family, replace=replaced)
            add(name, replaced, values)
    else:
        for name, replaced in found:
            add(name, replaced, accountants.epsilon_at_steps(phases, xs, delta, name, family=family, replace=replaced))
    return Curve(
        over,
        tuple(xs),
        {name: tuple(found[name, False]) for name in names},
        {name: tuple(found[name, True]) for name in names},
        f", at delta {delta:g}" if over == "steps" else "",
    )


def values_of(names: Sequence[str]) -> int:
    """Returns about how many figures a curve is made of."""
    return 2 * POINTS * len(names)


def compared(phases: Sequence[Phase], delta: float, family: str) -> dict[str, dict[str, Any]]:
    """Computes both figures by every accountant, and names whose code that is; or why one has none."""
    found: dict[str, dict[str, Any]] = {}
    for name in accountants.ACCOUNTANTS:
        try:
            library = accountants.describe(name, family)
            own = accountants.epsilon_of_phases(phases, delta, name, family=family)
            replaced = accountants.epsilon_of_phases(phases, delta, name, family=family, replace=True)
        except AccountantError as error:
            found[name] = {"epsilon": None, "epsilon_replace": None, "library": None, "refused": error.sentence}
            continue
        found[name] = {"epsilon": own, "epsilon_replace": replaced, "library": f"{library[1]} {library[2]}", "refused": None}
    return found
