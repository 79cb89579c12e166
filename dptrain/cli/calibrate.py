"""`dptrain calibrate`: what an epsilon that may not be exceeded allows. The inverse of `account`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from dptrain import sufficient
from dptrain.cli import account_show as show
from dptrain.cli.account_options import (
    Accountant,
    Compare,
    Delta,
    Family,
    NoiseMultiplier,
    SamplingRate,
    Steps,
    phases_of,
    require_others,
)
from dptrain.cli.output import JsonFlag, counting, print_json
from ledger import accountants
from ledger.accountants import AccountantError, Phase


class Wanted(StrEnum):
    """What `--solve` finds."""

    MULTIPLIER = "multiplier"
    STEPS = "steps"
    RATE = "rate"
    OCCURRENCES = "occurrences"


class Disclosure(StrEnum):
    """Whether draws stay secret."""

    SECRET = "secret_poisson"
    PUBLIC = "occurrences_public"


KEYS = {
    Wanted.MULTIPLIER: "noise_multiplier",
    Wanted.STEPS: "steps",
    Wanted.RATE: "sampling_rate",
    Wanted.OCCURRENCES: "occurrences",
}
"""What each is called as an option, and in the answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A target, and by what it is counted."""

    epsilon: float
    delta: float
    family: str
    solve: Wanted


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The epsilon that may not be exceeded.")],
    delta: Delta,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    noise_multiplier: NoiseMultiplier = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(metavar="A,Q,T", help="A phase of a run: A times the multiplier found, rate, steps; repeat in order."),
    ] = None,
    occurrences: Annotated[
        float | None,
        typer.Option(metavar="N", help="How often it is drawn over the run: expected, a rate of N/T; if public, exactly N."),
    ] = None,
    disclosure: Annotated[
        Disclosure, typer.Option(help="Whether draws stay secret, or occurrences are public and count one by one.")
    ] = Disclosure.SECRET,
    clip_norm: Annotated[
        float | None, typer.Option(metavar="C", help="Also the variance of the noise that suffices at this clip norm, (z C)^2.")
    ] = None,
    solve: Annotated[Wanted, typer.Option(help="What to find; the others are given.")] = Wanted.MULTIPLIER,
    accountant: Accountant = "pld",
    family: Family = "gaussian",
    compare: Compare = False,
    json: JsonFlag = False,
) -> None:
    """The smallest noise multiplier that stays within an epsilon, or the most steps, occurrences, or the largest rate.

    The result is rounded to the safe side and its epsilon is computed again, so the target is never exceeded.
    """
    asked = Question(epsilon, delta, family, solve)
    public = disclosure is Disclosure.PUBLIC
    given = {"noise_multiplier": noise_multiplier, "sampling_rate": sampling_rate, "steps": steps}
    _check_use(asked, given, occurrences, phase or [], clip_norm, public=public)
    if occurrences is not None and not public:
        given["sampling_rate"] = _rate(occurrences, steps or 0)
    names = accountants.ACCOUNTANTS if compare else (accountant,)
    with counting("computing epsilon"):
        if public:
            found = {name: _public(asked, noise_multiplier, occurrences, name) for name in names}
        elif phase:
            found = {name: _in_phases(asked, phases_of(None, None, None, phase), name) for name in names}
        else:
            found = {name: _sampled(asked, given, name) for name in names}
    for item in found.values():
        if not public:
            item["occurrences"] = occurrences
        if clip_norm is not None:
            item["sufficient_variance"] = sufficient.variance(item["noise_multiplier"], clip_norm, family)
            item["sufficient_std"] = item["noise_multiplier"] * clip_norm
    shared = {"target_epsilon": epsilon, "delta": delta, "family": family, "solve": solve.value}
    shared |= {"disclosure": disclosure.value, "clip_norm": clip_norm}
    data = {**found.get(accountant, next(iter(found.values()))), **shared, "accountant": accountant}
    if compare:
        data["compare"] = found
    if json:
        print_json(data)
    else:
        show.print_calibration(data, KEYS[solve])


def _check_use(
    asked: Question,
    given: Mapping[str, Any],
    occurrences: float | None,
    phase: list[str],
    clip_norm: float | None,
    *,
    public: bool,
) -> None:
    """Says which options do not go together, or are missing."""
    solve, wanted = asked.solve, KEYS[asked.solve]
    if phase and (solve is not Wanted.MULTIPLIER or occurrences is not None or any(v is not None for v in given.values())):
        raise typer.BadParameter("--phase says rates and steps itself, and finds the multiplier; leave the others out")
    if phase and (public or clip_norm is not None):
        raise typer.BadParameter("--disclosure occurrences_public and --clip-norm go with one level of noise, without --phase")
    if clip_norm is not None and not 0.0 < clip_norm < float("inf"):
        raise typer.BadParameter(f"--clip-norm is a positive number, got {clip_norm:g}")
    if public:
        if given["sampling_rate"] is not None or given["steps"] is not None or solve in (Wanted.STEPS, Wanted.RATE):
            sentence = "public occurrences are counted, whatever rate and steps; give --occurrences to find the multiplier"
            raise typer.BadParameter(f"{sentence}, or --noise-multiplier with --solve occurrences")
        require_others({"noise_multiplier": given["noise_multiplier"], "occurrences": occurrences}, wanted, phases=False)
        return
    if solve is Wanted.OCCURRENCES:
        sentence = "secret draws are covered however many there are; find the largest --solve rate"
        raise typer.BadParameter(f"{sentence}, or count public ones by --disclosure occurrences_public")
    if occurrences is not None:
        if solve is not Wanted.MULTIPLIER or given["sampling_rate"] is not None or given["steps"] is None:
            raise typer.BadParameter("--occurrences with --steps stands for --sampling-rate, and finds the multiplier")
        require_others({"noise_multiplier": given["noise_multiplier"]}, wanted)
    elif not phase:
        require_others(dict(given), wanted)
    if asked.family != "gaussian" and solve is not Wanted.MULTIPLIER:
        raise typer.BadParameter("steps and rates are found for Gaussian noise; leave out --family, or find the multiplier")


def _rate(occurrences: float, steps: int) -> float:
    """The sampling rate of so many expected occurrences."""
    if not 0.0 < occurrences <= steps:
        sentence = f"{occurrences:g} occurrences in {steps} steps; expected more than 0, and one per step at most"
        raise AccountantError("OCCURRENCES", sentence, nearest=float(steps) if occurrences > steps else None)
    return occurrences / steps


def _sampled(asked: Question, given: Mapping[str, Any], accountant: str) -> dict[str, Any]:
    """The answer for a run of one level, drawn in secret."""
    value: float
    if asked.solve is Wanted.MULTIPLIER:
        rate, steps = given["sampling_rate"], given["steps"]
        value = accountants.calibrate(asked.epsilon, rate, steps, asked.delta, accountant, family=asked.family)
    elif asked.solve is Wanted.STEPS:
        z, rate = given["noise_multiplier"], given["sampling_rate"]
        value = accountants.largest_steps(asked.epsilon, z, rate, asked.delta, accountant)
    else:
        value = accountants.largest_rate(asked.epsilon, given["noise_multiplier"], given["steps"], asked.delta, accountant)
    filled = {**given, KEYS[asked.solve]: value}
    run = [Phase(filled["noise_multiplier"], filled["sampling_rate"], filled["steps"])]
    return filled | _reached(asked, run, accountant)


def _in_phases(asked: Question, shape: list[Phase], accountant: str) -> dict[str, Any]:
    """The answer for a run in phases, drawn in secret: one multiplier, by which all are multiplied."""
    factor = accountants.calibrate_phases(asked.epsilon, shape, asked.delta, accountant, family=asked.family)
    run = [replace(item, noise_multiplier=item.noise_multiplier * factor) for item in shape]
    steps = sum(item.steps for item in run)
    return {"noise_multiplier": factor, "sampling_rate": None, "steps": steps} | _reached(asked, run, accountant)


def _reached(asked: Question, run: list[Phase], accountant: str) -> dict[str, Any]:
    """Epsilon of a run, and its phases."""
    epsilon = accountants.epsilon_of_phases(run, asked.delta, accountant, family=asked.family)
    return {"epsilon": epsilon, "phases": [asdict(item) for item in run]}


def _public(asked: Question, multiplier: float | None, occurrences: float | None, accountant: str) -> dict[str, Any]:
    """The answer where occurrences are public: the multiplier for so many, or how many a multiplier allows."""

    def spent(count: int, z: float) -> float:
        return sufficient.spent_on(count, z, asked.delta, accountant, asked.family)

    if multiplier is None:
        count = sufficient.counted(occurrences or 0.0)
        multiplier = sufficient.multiplier_for(asked.epsilon, count, asked.delta, accountant, asked.family)
    else:
        count = sufficient.occurrences_within(asked.epsilon, multiplier, asked.delta, accountant, asked.family)
        if not count:
            nearest = sufficient.micro_up(spent(1, multiplier))
            sentence = f"one public occurrence at a noise multiplier of {multiplier:g} spends {nearest:g} already"
            raise AccountantError("EPSILON", f"{sentence}, above {asked.epsilon:g}", nearest=nearest)
    return {
        "noise_multiplier": multiplier,
        "sampling_rate": None,
        "steps": None,
        "occurrences": count,
        "epsilon": spent(count, multiplier),
        "epsilon_of_one_more": spent(count + 1, multiplier),
        "phases": [],
    }
