"""`dptrain check`: what a private run would refuse of a model or a script, with repairs, before there is a policy or data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dptrain.checks.script import read
from dptrain.checks.verdict import Checked, CheckedModel, CheckedScript, Effect, NotChecked, shown
from dptrain.cli.inputs import load_training
from dptrain.cli.options import argument, file_option, option, wrong_if
from dptrain.cli.output import styled
from dptrain.cli.results import Result, Shown, plain

if TYPE_CHECKING:
    from dptrain.checks.model import Optimizer
    from dptrain.checks.subject import Loss

_MARKS = {Effect.REFUSED: ("red", "✗ "), Effect.WEAKENED: ("yellow", "! "), Effect.CHANGED: ("dim", "· ")}


@dataclass(frozen=True)
class Verdict(Result):
    """The result of a check: 0 where a run would take what was checked, 1 where it would refuse or weaken something."""

    checked: Checked
    exit_code: int

    def text(self) -> Iterator[Shown]:
        """Yields what was checked, a finding each with its repair, the verdict, and what to know besides."""
        found = self.checked
        yield found.subject
        if isinstance(found, CheckedModel):
            made = "made up" if found.made_up else "given"
            rows = ", ".join(f"{name} {kind}" for name, kind in found.rows.items())
            yield f"{found.parameters:,} parameters, {found.trained:,} of them trained; rows {made}: {rows}; loss: {found.loss}"
        yield from (styled(*_MARKS[item.effect], shown(item)) for item in found.findings)
        yield styled("bold green" if found.accepted else "bold red", found.verdict())
        if isinstance(found, CheckedModel):
            refused = ((word, code) for word, code in found.under.items() if code)
            yield from (f"under a policy with {_WORDS[word]} it is refused: {code}" for word, code in refused)
        yield from found.notes

    def as_json(self) -> dict[str, Any]:
        """Returns the typed result."""
        found = self.checked
        data = {"kind": "script" if isinstance(found, CheckedScript) else "model", "accepted": found.accepted, **plain(found)}
        return data | ({"mended": found.mended, "repairs": list(found.repairs)} if isinstance(found, CheckedModel) else {})


_WORDS = {"depth": "classes that touch some layers alone", "certified": 'exactness = "certified"'}


def check(
    subject: Annotated[
        str,
        argument(
            "A folder of transformers (config.json, weights or none), package.module:name, file.py:name, or a script.py.",
            metavar="MODEL_OR_SCRIPT",
        ),
    ],
    rows: Annotated[
        Path | None, file_option("ROWS.jsonl", "Rows of yours, a line each with what the model takes by name.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        option("What a row holds, as x=float32:3,32,32 or labels=int64; repeat.", metavar="NAME=TYPE:SIZES"),
    ] = None,
    loss: Annotated[
        str | None, option("Your loss, (model, rows) to one number per example: module:name or file.py:name.", metavar="PLACE")
    ] = None,
    optimizer: Annotated[str, option("A class of torch.optim.", metavar="NAME")] = "AdamW",
    layers: Annotated[
        list[str] | None, option("A layer, or the list of all, as prepare(layers=) takes it; repeat.", metavar="LAYER")
    ] = None,
) -> Verdict:
    """Tell what a private run would refuse of a model or a training script, with the repair of each; no policy, no data.

    A model is started: a run with keys and a policy of its own, in a folder that is thrown away, takes it through `prepare`,
    the probes and one step on made-up rows, on the CPU. So the verdict is that of a run. What a refusal advises (`dptrain.fix`,
    freezing what is named) is tried on a copy, and shown where it helps. In Python: `dptrain.check(model)`.

    A script (Opacus, accelerate, a Trainer, TRL) is read and never run: lines that a run refuses, that weaken it, or that
    become others, each with what to write. It does not see modules beside it, nor the model itself.

    Exit code 0: nothing would be refused. 1: something would, or would be weaker. 2: wrong use, or nothing there to check.

    Example: `dptrain check bert-base/` or `dptrain check train.py` or `dptrain check net.py:make --inputs x=float32:3,32,32`
    """
    script = subject.endswith(".py")
    wrong_if(script and (rows or inputs or loss or layers), "a script is read and not run; --rows and the like go with a model")
    wrong_if(rows and inputs, "give --rows, which have types and sizes, or --inputs, not both")
    try:
        found = read(Path(subject)) if script else _model(subject, rows, inputs, loss, optimizer, layers)
        return Verdict(found, int(not found.accepted))
    except NotChecked as error:
        raise typer.BadParameter(error.sentence) from error


def _model(
    subject: str, rows: Path | None, inputs: list[str] | None, loss: str | None, optimizer: str, layers: list[str] | None
) -> CheckedModel:
    """Makes the model and what goes with it, and takes it through the start of a run."""
    load_training("dptrain.programs").quiet_libraries()
    places = load_training("dptrain.checks.subject")
    checking = load_training("dptrain.checks.model")
    kind: Optimizer | None = getattr(load_training("torch.optim"), optimizer, None)
    wrong_if(not isinstance(kind, type), f"torch.optim has no optimizer {optimizer!r}; name a class, as AdamW")
    given = places.rows_of_file(rows) if rows else places.rows_of_shapes(inputs) if inputs else None
    own: Loss | None = places.attribute(loss) if loss else None
    found: CheckedModel = checking.check(
        subject, given, loss=own, optimizer=kind,
        layers=layers[0] if layers and len(layers) == 1 else layers,
    )  # fmt: skip
    return found
