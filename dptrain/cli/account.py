"""`dptrain account` and `dptrain calibrate`: epsilon from a noise multiplier, and the inverse."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from dptrain.cli import account_show as show
from dptrain.cli.options import PlotFile, require_plot
from dptrain.cli.output import JsonFlag, counting, print_json
from dptrain.planning import curves
from ledger import accountants
from ledger.accountants import Phase


class Over(StrEnum):
    """What `--curve` varies."""

    STEPS = "steps"
    DELTA = "delta"


class Wanted(StrEnum):
    """What `dptrain calibrate --solve` finds."""

    MULTIPLIER = "multiplier"
    STEPS = "steps"
    RATE = "rate"


NoiseMultiplier = Annotated[float | None, typer.Option(help="Noise standard deviation divided by the clip norm.")]
SamplingRate = Annotated[float | None, typer.Option(help="Probability q that a contribution is drawn in a step.")]
Steps = Annotated[int | None, typer.Option(help="Number of logical steps T.")]
Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta)-DP.")]
Accountant = Annotated[str, typer.Option(help="Accountant: pld, rdp, moments or prv.")]
Family = Annotated[str, typer.Option(help="Noise: gaussian, laplace, discrete_gaussian or skellam.")]
Compare = Annotated[bool, typer.Option("--compare", help="All accountants in one table.")]


def account(
    delta: Delta,
    noise_multiplier: NoiseMultiplier = None,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    phase: Annotated[
        list[str] | None, typer.Option(metavar="Z,Q,T", help="A phase: noise multiplier, rate, steps; repeat in order.")
    ] = None,
    accountant: Accountant = "pld",
    family: Family = "gaussian",
    max_occurrences: Annotated[
        int | None, typer.Option(metavar="N", help="Also if the contribution is drawn at most N times.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(metavar="K", help="Also for K such contributions of one person together.")
    ] = None,
    examples: Annotated[
        int | None, typer.Option(metavar="M", help="Also if M examples of a contribution were drawn and clipped one by one.")
    ] = None,
    compare: Compare = False,
    curve: Annotated[Over | None, typer.Option(help="Epsilon over the steps of the run, or over delta.")] = None,
    plot: PlotFile = None,
    json: JsonFlag = False,
) -> None:
    """Epsilon of a run of Poisson-sampled noise, of one level or in phases.

    The first epsilon holds when one contribution is replaced by an empty one of the same public shape (zero-out), the
    second when its content is replaced by any other content. Epsilons are shown rounded up.
    """
    phases = _phases(noise_multiplier, sampling_rate, steps, phase or [])
    if plot is not None and curve is None:
        raise typer.BadParameter("--plot draws a curve; say over what: --curve steps or --curve delta")
    require_plot(plot)
    single = len(phases) == 1
    if (group_size or examples) and not (single and family == "gaussian"):
        raise typer.BadParameter(
            "--group-size and --examples go with Gaussian noise of one level, without --phase and --family"
        )
    with counting("computing epsilon"):
        own = accountants.epsilon_of_phases(phases, delta, accountant, family=family)
        replaced = accountants.epsilon_of_phases(phases, delta, accountant, family=family, replace=True)
        data: dict[str, Any] = {
            "epsilon": own,
            "epsilon_replace": replaced,
            "noise_multiplier": phases[0].noise_multiplier if single else None,
            "sampling_rate": phases[0].sampling_rate if single else None,
            "steps": sum(item.steps for item in phases),
            "delta": delta,
            "accountant": accountant,
            "adjacency": "zero-out",
            "family": family,
            "phases": [asdict(item) for item in phases],
            "caveat": accountants.caveat(phases, delta, accountant) if family == "gaussian" else None,
        }
        if max_occurrences is not None:
            capped = accountants.epsilon_of_phases_capped(phases, max_occurrences, delta, accountant, family=family)
            data |= {"max_occurrences": max_occurrences, "epsilon_capped": capped}
        z, q, count = phases[0].noise_multiplier, phases[0].sampling_rate, phases[0].steps
        if group_size is not None:
            together = accountants.epsilon_group(z, q, count, group_size, delta)
            data |= {"group_size": group_size, "epsilon_group": together}
        if examples is not None:
            data |= {"examples": examples, "epsilon_examples": accountants.epsilon_examples(z, q, count, examples, delta)}
        names = accountants.ACCOUNTANTS if compare else (accountant,)
        if compare:
            data["compare"] = curves.compared(phases, delta, family)
        drawn = None if curve is None else curves.curve(phases, delta, names, family, over=curve.value)
        if drawn is not None:
            data["curve"] = drawn.as_json()
    if plot is not None and drawn is not None:
        drawn.figure().write(plot, drawn.tables())
    if json:
        print_json(data)
        return
    show.print_account(data)
    if drawn is not None:
        show.print_curve(drawn)
    if plot is not None:
        show.print_written(plot)


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
    solve: Annotated[Wanted, typer.Option(help="What to find; the two others are given.")] = Wanted.MULTIPLIER,
    accountant: Accountant = "pld",
    family: Family = "gaussian",
    compare: Compare = False,
    json: JsonFlag = False,
) -> None:
    """The smallest noise multiplier that stays within an epsilon, or the most steps or the largest rate.

    The result is rounded to the safe side and its epsilon is computed again, so the target is never exceeded.
    """
    given = {"noise_multiplier": noise_multiplier, "sampling_rate": sampling_rate, "steps": steps}
    wanted = {Wanted.MULTIPLIER: "noise_multiplier", Wanted.STEPS: "steps", Wanted.RATE: "sampling_rate"}[solve]
    if phase and (solve is not Wanted.MULTIPLIER or any(value is not None for value in given.values())):
        raise typer.BadParameter("--phase says rates and steps itself, and finds the multiplier; leave the others out")
    if not phase:
        _require_others(given, wanted)
    if family != "gaussian" and solve is not Wanted.MULTIPLIER:
        raise typer.BadParameter("steps and rates are found for Gaussian noise; leave out --family, or find the multiplier")
    names = accountants.ACCOUNTANTS if compare else (accountant,)
    with counting("computing epsilon"):
        found = {}
        for name in names:
            if phase:
                shape = _phases(None, None, None, phase)
                factor = accountants.calibrate_phases(epsilon, shape, delta, name, family=family)
                run = [replace(item, noise_multiplier=item.noise_multiplier * factor) for item in shape]
                value: float = factor
            else:
                value = _find(given, solve, epsilon, delta, name, family)
                filled = given | {wanted: value}
                run = [Phase(filled["noise_multiplier"], filled["sampling_rate"], filled["steps"])]
            reached = accountants.epsilon_of_phases(run, delta, name, family=family)
            found[name] = {
                "noise_multiplier": value if phase else run[0].noise_multiplier,
                "sampling_rate": None if phase else run[0].sampling_rate,
                "steps": sum(item.steps for item in run),
                "epsilon": reached,
                "phases": [asdict(item) for item in run],
            }
    shared = {"target_epsilon": epsilon, "delta": delta, "family": family, "solve": solve.value}
    first = next(iter(found.values())) if not compare else found[accountant]
    data = {**first, **shared, "accountant": accountant}
    if compare:
        data["compare"] = found
    if json:
        print_json(data)
    else:
        show.print_calibration(data, wanted)


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command()(account)
    app.command()(calibrate)


def _phases(z: float | None, q: float | None, steps: int | None, texts: Sequence[str]) -> list[Phase]:
    """The phases that were given, or the one of the three options."""
    if texts and (z, q, steps) != (None, None, None):
        raise typer.BadParameter(
            "--phase says multiplier, rate and steps itself; leave out --noise-multiplier, --sampling-rate and --steps"
        )
    if texts:
        return [_phase(text) for text in texts]
    if z is None or q is None or steps is None:
        _require_others({"noise_multiplier": z, "sampling_rate": q, "steps": steps}, None)
    assert z is not None and q is not None and steps is not None
    return [Phase(z, q, steps)]


def _phase(text: str) -> Phase:
    parts = text.split(",")
    try:
        z, q, steps = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3:
            raise ValueError
    except (ValueError, IndexError) as error:
        raise typer.BadParameter(f"{text!r} is no phase; write multiplier,rate,steps, for example 1.1,0.01,500") from error
    return Phase(z, q, steps)


def _require_others(given: dict[str, Any], wanted: str | None) -> None:
    options = {name: f"--{name.replace('_', '-')}" for name in given}
    missing = [options[name] for name, value in given.items() if value is None and name != wanted]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing; or describe the run by --phase")
    if wanted is not None and given[wanted] is not None:
        raise typer.BadParameter(f"{options[wanted]} is what is solved for; leave it out, or --solve for another one")


def _find(given: dict[str, Any], solve: Wanted, epsilon: float, delta: float, accountant: str, family: str) -> float:
    if solve is Wanted.MULTIPLIER:
        return accountants.calibrate(epsilon, given["sampling_rate"], given["steps"], delta, accountant, family=family)
    if solve is Wanted.STEPS:
        return accountants.largest_steps(epsilon, given["noise_multiplier"], given["sampling_rate"], delta, accountant)
    return accountants.largest_rate(epsilon, given["noise_multiplier"], given["steps"], delta, accountant)
