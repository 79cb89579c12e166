"""`dptrain account` and `dptrain calibrate`: epsilon from a noise multiplier, and the inverse."""

from typing import Annotated

import typer

from dptrain.cli.output import JsonFlag, console, number, print_json
from ledger import accountants

SamplingRate = Annotated[float, typer.Option(help="Probability q that a contribution is drawn in a step.")]
Steps = Annotated[int, typer.Option(help="Number of logical steps T.")]
Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta)-DP.")]
Accountant = Annotated[str, typer.Option(help="Accountant; this build has pld.")]


def account(
    noise_multiplier: Annotated[float, typer.Option(help="Noise standard deviation divided by the clip norm.")],
    sampling_rate: SamplingRate,
    steps: Steps,
    delta: Delta,
    accountant: Accountant = "pld",
    json: JsonFlag = False,
) -> None:
    """Epsilon of a Poisson-sampled Gaussian mechanism.

    The first epsilon holds when one contribution is replaced by an empty one of the same public shape (zero-out), the
    second when its content is replaced by any other content.
    """
    own = accountants.epsilon(noise_multiplier, sampling_rate, steps, delta, accountant)
    replaced = accountants.epsilon_replace(noise_multiplier, sampling_rate, steps, delta)
    if json:
        print_json(
            {
                "epsilon": own,
                "epsilon_replace": replaced,
                "noise_multiplier": noise_multiplier,
                "sampling_rate": sampling_rate,
                "steps": steps,
                "delta": delta,
                "accountant": accountant,
                "adjacency": "zero-out",
            }
        )
        return
    out = console()
    out.print(f"epsilon                      {number(own, 6)}   at delta {delta:g}, zero-out")
    out.print(f"epsilon, content replaced    {number(replaced, 6)}")


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The epsilon that may not be exceeded.")],
    sampling_rate: SamplingRate,
    steps: Steps,
    delta: Delta,
    accountant: Accountant = "pld",
    json: JsonFlag = False,
) -> None:
    """The smallest noise multiplier that stays within an epsilon.

    The result is rounded up and its epsilon is computed again, so the target is never exceeded.
    """
    multiplier = accountants.calibrate(epsilon, sampling_rate, steps, delta, accountant)
    reached = accountants.epsilon(multiplier, sampling_rate, steps, delta, accountant)
    if json:
        print_json(
            {
                "noise_multiplier": multiplier,
                "epsilon": reached,
                "target_epsilon": epsilon,
                "sampling_rate": sampling_rate,
                "steps": steps,
                "delta": delta,
                "accountant": accountant,
            }
        )
        return
    console().print(f"noise multiplier  {multiplier:.6f}   epsilon {number(reached, 6)} at delta {delta:g}")


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command()(account)
    app.command()(calibrate)
