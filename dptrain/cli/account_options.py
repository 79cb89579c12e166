"""What `dptrain account` and `dptrain calibrate` share: options, and how a run is described by them."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ledger.accountants import Phase

NoiseMultiplier = Annotated[float | None, typer.Option(help="Noise standard deviation divided by the clip norm.")]
SamplingRate = Annotated[float | None, typer.Option(help="Probability q that a contribution is drawn in a step.")]
Steps = Annotated[int | None, typer.Option(help="Number of logical steps T.")]
Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta)-DP.")]
Accountant = Annotated[str, typer.Option(help="Accountant: pld, rdp, moments or prv.")]
Family = Annotated[str, typer.Option(help="Noise: gaussian, laplace, discrete_gaussian or skellam.")]
Compare = Annotated[bool, typer.Option("--compare", help="All accountants in one table.")]


def phases_of(z: float | None, q: float | None, steps: int | None, texts: Sequence[str]) -> list[Phase]:
    """The phases that were given, or the one of the three options."""
    if texts and (z, q, steps) != (None, None, None):
        raise typer.BadParameter(
            "--phase says multiplier, rate and steps itself; leave out --noise-multiplier, --sampling-rate and --steps"
        )
    if texts:
        return [phase_of(text) for text in texts]
    if z is None or q is None or steps is None:
        require_others({"noise_multiplier": z, "sampling_rate": q, "steps": steps}, None)
    assert z is not None and q is not None and steps is not None
    return [Phase(z, q, steps)]


def phase_of(text: str) -> Phase:
    """A phase from `multiplier,rate,steps`."""
    parts = text.split(",")
    try:
        z, q, steps = float(parts[0]), float(parts[1]), int(parts[2])
        if len(parts) != 3:
            raise ValueError
    except (ValueError, IndexError) as error:
        raise typer.BadParameter(f"{text!r} is no phase; write multiplier,rate,steps, for example 1.1,0.01,500") from error
    return Phase(z, q, steps)


def require_others(given: dict[str, Any], wanted: str | None, *, phases: bool = True) -> None:
    """Says which options are missing, and that the one which is solved for is not given."""
    options = {name: f"--{name.replace('_', '-')}" for name in given}
    missing = [options[name] for name, value in given.items() if value is None and name != wanted]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing{'; or describe the run by --phase' if phases else ''}")
    if wanted is not None and given[wanted] is not None:
        raise typer.BadParameter(f"{options[wanted]} is what is solved for; leave it out, or --solve for another one")
