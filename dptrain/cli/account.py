"""`dptrain account` and `dptrain calibrate`: the epsilon of a run, and the noise multiplier that an epsilon needs."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

import typer

from attest.schema.rounding import rounded_up
from dptrain.cli.inputs import PlotFile, require_plot
from dptrain.cli.options import option, wrong_if
from dptrain.cli.output import amount, counted, counting, table
from dptrain.cli.results import Shown, Told
from dptrain.clipping import own_noise
from dptrain.planning import curves
from dptrain.planning.curves import Curve
from dptrain.planning.picture import Glyphs, Line
from dptrain.progress import progress_bar
from ledger import accountants
from ledger.accountants import AccountantError, Phase

NoiseMultiplier = Annotated[float | None, option("Noise standard deviation divided by the clip norm.")]


def _rate(text: str) -> float:
    """Reads a rate: a number, or a ratio of whole numbers."""
    try:
        return float(Fraction(text) if "/" in text else text)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{text!r} is no rate; write 0.01 or 256/60000") from error


SamplingRate = Annotated[
    float | None, option("Probability q that a contribution is drawn in a step: 0.01 or 256/60000.", parser=_rate, metavar="Q")
]
Steps = Annotated[int | None, option("Number of logical steps T.")]
BatchSize = Annotated[float | None, option("Contributions that a step draws on average: B of q = B/N.", metavar="B")]
DatasetSize = Annotated[int | None, option("Contributions in all: N of q = B/N.", metavar="N", min=1)]
Epochs = Annotated[float | None, option("How often each is drawn on average: T = epochs / q, rounded up.", metavar="E")]
Delta = Annotated[float, option("The delta of (epsilon, delta)-DP.")]
Accountant = Annotated[str, option("Accountant: pld, rdp, moments or prv, or provider.name of an installed package.")]
Family = Annotated[str, option("Noise: gaussian, laplace, discrete_gaussian or skellam, or provider.name.")]
Compare = Annotated[bool, option("All accountants in one table.", "--compare")]


def phases_of(z: float | None, q: float | None, steps: int | None, texts: Sequence[str]) -> list[Phase]:
    """Returns the phases that were given, each as `multiplier,rate,steps`, or the one of the three options."""
    if not texts:
        require_others({"noise_multiplier": z, "sampling_rate": q, "steps": steps}, None)
        assert z is not None and q is not None and steps is not None
        return [Phase(z, q, steps)]
    if (z, q, steps) != (None, None, None):
        raise typer.BadParameter(
            "--phase says multiplier, rate and steps itself; leave out --noise-multiplier, --sampling-rate and --steps"
        )
    found = []
    for text in texts:
        try:
            multiplier, rate, count = text.split(",")
            found.append(Phase(float(multiplier), float(rate), int(count)))
        except ValueError as error:
            sentence = f"{text!r} is no phase; write multiplier,rate,steps, for example 1.1,0.01,500"
            raise typer.BadParameter(sentence) from error
    return found


def in_epochs(
    q: float | None, steps: int | None, batch: float | None, size: int | None, epochs: float | None
) -> tuple[float | None, int | None]:
    """Returns rate and steps, from batch size, data set size and epochs where these are given."""
    if (batch, size, epochs) == (None, None, None):
        return q, steps
    wrong_if((batch is None) != (size is None), "--batch-size and --dataset-size go together: the rate is B/N")
    wrong_if(batch is not None and q is not None, "--batch-size and --dataset-size stand for --sampling-rate; leave one out")
    wrong_if(epochs is not None and steps is not None, "--epochs stands for --steps; leave one out")
    if batch is not None and size is not None:
        wrong_if(not 0.0 < batch <= size, f"a batch of {batch:g} of {size} contributions; expected more than 0, and N at most")
        q = batch / size
    if epochs is None:
        return q, steps
    wrong_if(not epochs > 0.0, f"--epochs is {epochs:g}, expected more than 0")
    if q is None:
        raise typer.BadParameter("--epochs needs the rate: give --batch-size and --dataset-size, or --sampling-rate")
    return q, max(1, math.ceil(round(epochs / q, 6)))


def require_others(given: Mapping[str, Any], wanted: str | None, *, phases: bool = True) -> None:
    """Says which options are missing, and that the one which is solved for is not given."""
    options = {name: f"--{name.replace('_', '-')}" for name in given}
    missing = [options[name] for name, value in given.items() if value is None and name != wanted]
    if missing:
        raise typer.BadParameter(f"{' and '.join(missing)} missing{'; or describe the run by --phase' if phases else ''}")
    if wanted is not None and given[wanted] is not None:
        raise typer.BadParameter(f"{options[wanted]} is what is solved for; leave it out, or --solve for another one")


def account_text(data: dict[str, Any]) -> Iterator[Shown]:
    """Yields one figure a line, then the comparison of accountants."""
    rows = [("epsilon", data["epsilon"], f"at delta {data['delta']:g}, zero-out, {data['accountant']}{_noise(data)}")]
    rows.append(("epsilon, content replaced", data["epsilon_replace"], ""))
    if "epsilon_capped" in data:
        rows.append((f"drawn at most {data['max_occurrences']} times", data["epsilon_capped"], "zero-out"))
    if "epsilon_group" in data:
        rows.append((f"{data['group_size']} of one person together", data["epsilon_group"], "zero-out of all of them"))
    if "epsilon_examples" in data:
        rows.append((f"{data['examples']} examples one by one", data["epsilon_examples"], "without one clip for all"))
    width = max(len(name) for name, _, _ in rows)
    for name, value, note in rows:
        yield f"{name:{width}}   {_up(value):>9}   {note}".rstrip()
    if len(data["phases"]) > 1:
        yield f"{counted(len(data['phases']), 'phase')}, {data['steps']:,} steps in all; the order does not matter"
    if data["caveat"]:
        yield data["caveat"]
    if "compare" in data:
        grid = table("accountant", "epsilon", "if content replaced", "by")
        for name, found in data["compare"].items():
            if found["refused"]:
                grid.add_row(name, "-", "-", found["refused"])
            else:
                grid.add_row(name, _up(found["epsilon"]), _up(found["epsilon_replace"]), found["library"])
        yield grid


def curve_text(found: Curve) -> Iterator[Shown]:
    """Yields a bar per point, for the first accountant of the curve; the rest is in the figure and the JSON."""
    name, values = next(iter(found.epsilon.items()))
    most = max((value for value in values if value < float("inf")), default=0.0)

    def draw(glyphs: Glyphs) -> list[Line]:
        lines: list[Line] = [[(f"\n{found.over:>12}   epsilon ({name})", "bold")]]
        for x, value in zip(found.xs, values, strict=True):
            length = round(40 * min(value / most, 1.0)) if most else 0
            shown = amount(x) if found.over == "steps" else f"{x:g}"
            lines.append([(f"{shown:>12}   {_up(value):>9} ", ""), (glyphs.touched * length, "cyan")])
        return lines

    yield draw


def calibration_text(data: dict[str, Any], wanted: str) -> Iterator[Shown]:
    """Yields what was found, and its epsilon."""
    if "compare" in data:
        more = [] if data["clip_norm"] is None else [f"variance at clip norm {data['clip_norm']:g}"]
        grid = table("accountant", wanted.replace("_", " "), "epsilon", *more)
        for name, found in data["compare"].items():
            variance = [_up(found["sufficient_variance"])] if more else []
            grid.add_row(name, _found(found, wanted), _up(found["epsilon"]), *variance)
        yield grid
        return
    name = wanted.replace("_", " ")
    yield f"{name}  {_found(data, wanted)}   epsilon {_up(data['epsilon'])} at delta {data['delta']:g}{_noise(data)}"
    if data["disclosure"] == "occurrences_public":
        count, more = counted(data["occurrences"], "public occurrence"), _up(data["epsilon_of_one_more"])
        yield f"  for {count}; one more makes it {more}: sign max_occurrences = {data['occurrences']}"
    elif data["occurrences"] is not None:
        rate, steps = data["sampling_rate"], data["steps"]
        yield f"  at rate {rate:g} in {steps:,} steps; draws are secret, and however many come are covered"
    if data["clip_norm"] is not None:
        variance, std = _up(data["sufficient_variance"]), _up(data["sufficient_std"])
        yield f"  variance that suffices at clip norm {data['clip_norm']:g}: {variance}, standard deviation {std}"
    if len(data["phases"]) > 1:
        for phase in data["phases"]:
            yield f"  {phase['noise_multiplier']:.6f} at rate {phase['sampling_rate']:g} for {phase['steps']:,} steps"


def _found(data: dict[str, Any], wanted: str) -> str:
    value = data[wanted]
    if wanted == "noise_multiplier":
        return f"{value:.6f}"
    return f"{value:,}" if wanted in ("steps", "occurrences") else f"{value:.9f}".rstrip("0").rstrip(".")


def _noise(data: dict[str, Any]) -> str:
    return "" if data["family"] == "gaussian" else f", {data['family']} noise"


def _up(value: float) -> str:
    return rounded_up(value, 6)


Over = StrEnum("Over", ["STEPS", "DELTA"])
"""Names for what `--curve` varies."""


def account(
    delta: Delta,
    noise_multiplier: NoiseMultiplier = None,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    epochs: Epochs = None,
    phase: Annotated[
        list[str] | None, option("A phase: noise multiplier, rate, steps; repeat in order.", metavar="Z,Q,T")
    ] = None,
    accountant: Accountant = "pld",
    family: Family = "gaussian",
    max_occurrences: Annotated[int | None, option("Also if the contribution is drawn at most N times.", metavar="N")] = None,
    group_size: Annotated[int | None, option("Also for K such contributions of one person together.", metavar="K")] = None,
    examples: Annotated[
        int | None, option("Also if M examples of a contribution were drawn and clipped one by one.", metavar="M")
    ] = None,
    compare: Compare = False,
    curve: Annotated[Over | None, option("Epsilon over the steps of the run, or over delta.")] = None,
    plot: PlotFile = None,
) -> Told:
    """Compute epsilon of a run of Poisson-sampled noise, of one level or in phases.

    The first epsilon holds when one contribution is replaced by an empty one of the same public shape (zero-out), the
    second when its content is replaced by any other content. The first is the one to put beside that of Opacus. Epsilons are
    shown rounded up.

    Example: `dptrain account --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5`
    """
    sampling_rate, steps = in_epochs(sampling_rate, steps, batch_size, dataset_size, epochs)
    phases = phases_of(noise_multiplier, sampling_rate, steps, phase or [])
    wrong_if(plot is not None and curve is None, "--plot draws a curve; say over what: --curve steps or --curve delta")
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
            data |= {"examples": examples, "epsilon_examples": accountants.epsilon_group(z, q, count, examples, delta)}
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
    text = [*account_text(data), *([] if drawn is None else curve_text(drawn))]
    return Told(data, text if plot is None else [*text, f"wrote {plot}"])


Wanted = StrEnum("Wanted", ["MULTIPLIER", "STEPS", "RATE", "OCCURRENCES"])
"""Names for what `--solve` finds."""

Disclosure = StrEnum("Disclosure", {"SECRET": "secret_poisson", "PUBLIC": "occurrences_public"})
"""Names for draws that stay secret, and for occurrences that everybody reads."""

KEYS = {
    Wanted.MULTIPLIER: "noise_multiplier",
    Wanted.STEPS: "steps",
    Wanted.RATE: "sampling_rate",
    Wanted.OCCURRENCES: "occurrences",
}
"""Their names as options, and in the answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """A target, by what it is counted, and what is given: a multiplier, a rate, steps, and expected or public occurrences."""

    epsilon: float
    delta: float
    family: str
    solve: Wanted
    noise_multiplier: float | None
    sampling_rate: float | None
    steps: int | None
    occurrences: float | None

    @property
    def given(self) -> dict[str, Any]:
        """Returns what describes a run of one level."""
        return {"noise_multiplier": self.noise_multiplier, "sampling_rate": self.sampling_rate, "steps": self.steps}


def calibrate(
    epsilon: Annotated[float, option("The epsilon that may not be exceeded.")],
    delta: Delta,
    sampling_rate: SamplingRate = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    dataset_size: DatasetSize = None,
    epochs: Epochs = None,
    noise_multiplier: NoiseMultiplier = None,
    phase: Annotated[
        list[str] | None,
        option("A phase of a run: A times the multiplier found, rate, steps; repeat in order.", metavar="A,Q,T"),
    ] = None,
    occurrences: Annotated[
        float | None, option("How often it is drawn over the run: expected, a rate of N/T; if public, exactly N.", metavar="N")
    ] = None,
    disclosure: Annotated[
        Disclosure, option("Whether draws stay secret, or occurrences are public and count one by one.")
    ] = Disclosure.SECRET,
    clip_norm: Annotated[
        float | None, option("Also the variance of the noise that suffices at this clip norm, (z C)^2.", metavar="C")
    ] = None,
    solve: Annotated[Wanted, option("What to find; the others are given.")] = Wanted.MULTIPLIER,
    accountant: Accountant = "pld",
    family: Family = "gaussian",
    compare: Compare = False,
) -> Told:
    """The smallest noise multiplier that stays within an epsilon, or the most steps, occurrences, or the largest rate.

    The result is rounded to the safe side and its epsilon is computed again, so the target is never exceeded.
    With a policy at hand, `dptrain plan --target-epsilon` says which lines to change.

    Example: `dptrain calibrate --epsilon 8 --batch-size 256 --dataset-size 60000 --epochs 4 --delta 1e-6`
    """
    sampling_rate, steps = in_epochs(sampling_rate, steps, batch_size, dataset_size, epochs)
    asked = Question(epsilon, delta, family, solve, noise_multiplier, sampling_rate, steps, occurrences)
    public = disclosure is Disclosure.PUBLIC
    _check_use(asked, phase or [], clip_norm, public=public)
    if occurrences is not None and not public:
        if steps is None or not 0.0 < occurrences <= steps:
            sentence = f"{occurrences:g} occurrences in {steps} steps; expected more than 0, and one per step at most"
            nearest = float(steps) if steps is not None and occurrences > steps else None
            raise AccountantError("OCCURRENCES", sentence, nearest=nearest)
        asked = replace(asked, sampling_rate=occurrences / steps)
    shape = phases_of(None, None, None, phase) if phase else []
    names = accountants.ACCOUNTANTS if compare else (accountant,)
    with counting("computing epsilon"):
        answer = _public if public else functools.partial(_in_phases, shape) if phase else _sampled
        found = {name: answer(asked, name) for name in names}
    for item in found.values():
        if not public:
            item["occurrences"] = occurrences
        if clip_norm is not None:
            item["sufficient_variance"] = own_noise.variance(item["noise_multiplier"], clip_norm, family)
            item["sufficient_std"] = item["noise_multiplier"] * clip_norm
    shared = {"target_epsilon": epsilon, "delta": delta, "family": family, "solve": solve.value}
    shared |= {"disclosure": disclosure.value, "clip_norm": clip_norm}
    data = {**found.get(accountant, next(iter(found.values()))), **shared, "accountant": accountant}
    if compare:
        data["compare"] = found
    return Told(data, calibration_text(data, KEYS[solve]))


def _check_use(asked: Question, phase: list[str], clip_norm: float | None, *, public: bool) -> None:
    """Says which options do not go together, or are missing."""
    solve, wanted, given, occurrences = asked.solve, KEYS[asked.solve], asked.given, asked.occurrences
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
        require_others(given, wanted)
    if asked.family != "gaussian" and solve is not Wanted.MULTIPLIER:
        raise typer.BadParameter("steps and rates are found for Gaussian noise; leave out --family, or find the multiplier")


def _sampled(asked: Question, accountant: str) -> dict[str, Any]:
    """Returns the answer for a run of one level, drawn in secret."""
    z, rate, steps = asked.given.values()
    if asked.solve is Wanted.MULTIPLIER:
        z = accountants.calibrate(asked.epsilon, rate, steps, asked.delta, accountant, family=asked.family)
    elif asked.solve is Wanted.STEPS:
        steps = accountants.largest_steps(asked.epsilon, z, rate, asked.delta, accountant)
    else:
        rate = accountants.largest_rate(asked.epsilon, z, steps, asked.delta, accountant)
    told = {"noise_multiplier": z, "sampling_rate": rate, "steps": steps}
    return told | _reached(asked, [Phase(z, rate, steps)], accountant)


def _in_phases(shape: list[Phase], asked: Question, accountant: str) -> dict[str, Any]:
    """Returns the answer for a run in phases, drawn in secret: one multiplier, by which all are multiplied."""
    factor = accountants.calibrate_phases(asked.epsilon, shape, asked.delta, accountant, family=asked.family)
    run = [replace(item, noise_multiplier=item.noise_multiplier * factor) for item in shape]
    steps = sum(item.steps for item in run)
    return {"noise_multiplier": factor, "sampling_rate": None, "steps": steps} | _reached(asked, run, accountant)


def _reached(asked: Question, run: list[Phase], accountant: str) -> dict[str, Any]:
    """Returns epsilon of a run, and its phases."""
    epsilon = accountants.epsilon_of_phases(run, asked.delta, accountant, family=asked.family)
    return {"epsilon": epsilon, "phases": [asdict(item) for item in run]}


def _public(asked: Question, accountant: str) -> dict[str, Any]:
    """Returns the answer where occurrences are public: the multiplier for so many, or how many a multiplier allows."""
    how, multiplier = (asked.delta, accountant, asked.family), asked.noise_multiplier
    if multiplier is None:
        count = own_noise.counted(asked.occurrences or 0.0)
        multiplier = own_noise.multiplier_for(asked.epsilon, count, *how)
    else:
        count = own_noise.occurrences_within(asked.epsilon, multiplier, *how)
        if not count:
            nearest = own_noise.micro_up(own_noise.spent_on(1, multiplier, *how))
            sentence = f"one public occurrence at a noise multiplier of {multiplier:g} spends {nearest:g} already"
            raise AccountantError("EPSILON", f"{sentence}, above {asked.epsilon:g}", nearest=nearest)
    return {
        "noise_multiplier": multiplier,
        "sampling_rate": None,
        "steps": None,
        "occurrences": count,
        "epsilon": own_noise.spent_on(count, multiplier, *how),
        "epsilon_of_one_more": own_noise.spent_on(count + 1, multiplier, *how),
        "phases": [],
    }
