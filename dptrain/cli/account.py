"""`dptrain account`: epsilon from a noise multiplier. The inverse is in `calibrate`."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from dptrain.cli import account_show as show
from dptrain.cli.account_options import Accountant, Compare, Delta, Family, NoiseMultiplier, SamplingRate, Steps, phases_of
from dptrain.cli.calibrate import calibrate
from dptrain.cli.options import PlotFile, require_plot
from dptrain.cli.output import JsonFlag, counting, print_json
from dptrain.planning import curves
from dptrain.progress import progress_bar
from ledger import accountants


class Over(StrEnum):
    """What `--curve` varies."""

    STEPS = "steps"
    DELTA = "delta"


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
    """Compute epsilon of a run of Poisson-sampled noise, of one level or in phases.

    The first epsilon holds when one contribution is replaced by an empty one of the same public shape (zero-out), the
    second when its content is replaced by any other content. Epsilons are shown rounded up.
    """
    phases = phases_of(noise_multiplier, sampling_rate, steps, phase or [])
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
    drawn = None
    if curve is not None:
        with progress_bar("points of the curve", lambda: curves.values_of(names)) as progress:
            drawn = curves.curve(phases, delta, names, family, over=curve.value, progress=progress)
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


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command()(account)
    app.command()(calibrate)
