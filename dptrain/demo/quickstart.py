"""`dptrain quickstart DATA`: keys, registry, policy, attestations, probe records and a program, all in one directory."""

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from attest.schema.rounding import at_least, at_most
from dptrain.cli.output import amount, console
from dptrain.data.items import contents_of, items_of
from dptrain.engine.private_training import PrivateTraining
from dptrain.errors import ConfigError
from dptrain.programs import guarded, print_json
from ledger import accountants

LABELS: Final = ("label", "labels", "target", "class", "y")
"""Columns that are taken for what is predicted, where nobody says which."""

MOST_LABELS: Final = 1_000
"""Different labels of a classification, at most."""

PROBES: Final = 8
"""Records that are made up for the start-up probes."""

_PROGRAM: Final = '''\
"""Trains a private classifier of {label!r}; made by `dptrain quickstart`. Change model and loss as you like."""

import torch
from accelerate import Accelerator
from torch import nn

from dptrain import PrivateTraining

LABELS = {labels}  # all that occur: they follow from the records, and no epsilon covers that


def collate(examples):  # shapes that follow from no example: texts cut or padded to one length
{collate}
    return {{"x": x, "labels": torch.tensor([LABELS.index(e[{label!r}]) for e in examples])}}


{model}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
accelerator = Accelerator(cpu=not torch.cuda.is_available())  # also under torchrun --nproc_per_node 2
model, optimizer = accelerator.prepare(model, optimizer)
with PrivateTraining.own({data!r}, {numbers}, directory={directory!r}, accelerator=accelerator) as private:
    probe = open({probe!r}, "rb").read().splitlines()
    how = dict(probe=probe, metrics={metrics!r})  # dry_run=True charges nothing
    model, optimizer, steps = private.prepare(model, optimizer, collate, **how)
    for step in steps:
        for rows in step:
            losses = nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")
            private.backward(losses, rows)
        optimizer.step()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), {weights!r})
        print(private.epsilon()["own"], private.export({export!r}), sep="\\n")
'''

_TEXT: Final = '''\
    texts = [" ".join(str(e[key]) for key in {columns}).encode()[:{length}].ljust({length}, b"\\0") for e in examples]
    x = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).reshape(-1, {length}).long()'''

_TEXT_MODEL: Final = '''\
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.inner, self.head = nn.Embedding(256, 64), nn.Linear(64, 64), nn.Linear(64, len(LABELS))

    def forward(self, x):
        return self.head(torch.relu(self.inner(self.bytes(x))).mean(1))


model = Reader()'''

_NUMBERS: Final = "    x = torch.tensor([[float(e[key]) for key in {columns}] for e in examples])"

_NUMBER_MODEL: Final = (
    "model = nn.Sequential(nn.LayerNorm({width}), nn.Linear({width}, 64), nn.ReLU(), nn.Linear(64, len(LABELS)))"
)


@dataclass(frozen=True)
class Columns:
    """Says what the records of a data set hold.

    Attributes:
        label: what is predicted. labels: its values. numbers, texts: the other columns.
    """

    label: str
    labels: tuple[Any, ...]
    numbers: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Quickstart:
    """Holds what was made: see `dptrain quickstart --help`.

    Attributes:
        epsilon: the target, which holds with `redo_steps` steps charged again. epsilon_planned: what a run without any spends.
    """

    directory: str
    program: str
    contributions: int
    label: str
    steps: int
    sampling_rate: float
    noise_multiplier: float
    epsilon: float
    epsilon_planned: float
    redo_steps: int
    delta: float


def main(argv: Sequence[str] | None = None) -> int:
    """Makes a directory from which a private model of one's own data is trained.

    Returns:
        0, or 1 for a refusal.
    """
    parser = argparse.ArgumentParser(prog="dptrain quickstart", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--delta", type=float)
    parser.add_argument("--label")
    parser.add_argument("--by")
    parser.add_argument("--dir", type=Path, default=Path("run"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)

    def work() -> int:
        made = quickstart(
            arguments.data, arguments.dir, epsilon=arguments.epsilon, epochs=arguments.epochs, delta=arguments.delta,
            batch_size=arguments.batch_size, label=arguments.label, by=arguments.by,
        )  # fmt: skip
        if arguments.json:
            print_json(asdict(made))
        else:
            _tell(made)
        return 0

    return guarded(work, as_json=arguments.json)


def quickstart(
    data: Path,
    directory: Path,
    *,
    epsilon: float = 8.0,
    epochs: float = 4.0,
    batch_size: int = 256,
    delta: float | None = None,
    label: str | None = None,
    by: str | None = None,
) -> Quickstart:
    """Makes keys, registry, signed policy, attestations, probe records and ``train.py`` in a directory.

    Args:
        data: a .jsonl, .csv or .parquet file of flat records. label: the column that is predicted. by: the column that says
            whose a record is; no model is shown it. Others as `PrivateTraining.own` has them.

    Raises:
        ConfigError: code DATASET, COLUMNS or OWN, the file is no such table; ONE_OWNER, the directory holds another run.
    """
    found = columns_of(data, label, by)
    program = directory / "train.py"
    if program.exists():
        raise ConfigError("OUTPUT", f"{program} exists; run it, or give another --dir")
    contributions = len({hashlib.sha256(content.line).digest() for content in contents_of(data, by=by)})
    numbers: dict[str, Any] = {"target_epsilon": epsilon, "epochs": epochs, "batch_size": min(batch_size, contributions)}
    numbers |= {name: value for name, value in (("delta", delta), ("by", by)) if value is not None}
    with PrivateTraining.own(data, directory=directory, **numbers) as private:
        policy = private.policy
    rule = policy.classes[0]
    planned = accountants.epsilon(rule.bounds.noise_multiplier, float(rule.sampling_rate), policy.steps, float(policy.delta))
    probe = directory / "probe.jsonl"
    made = [_made_up(found, place) for place in range(PROBES)]
    lines = [json.dumps(record if by is None else [record | {by: "nobody"}]) + "\n" for record in made]
    probe.write_text("".join(lines), encoding="utf-8")
    program.write_text(_program(found, data, directory, numbers), encoding="utf-8")
    return Quickstart(
        directory=str(directory), program=str(program), contributions=contributions, label=found.label,
        steps=policy.steps, sampling_rate=float(rule.sampling_rate), noise_multiplier=rule.bounds.noise_multiplier,
        epsilon=epsilon, epsilon_planned=planned, redo_steps=policy.redo_steps, delta=float(policy.delta),
    )  # fmt: skip


def columns_of(data: Path, label: str | None, by: str | None = None) -> Columns:
    """Reads a table once, and says what its columns are, beside the one by which records are grouped.

    Raises:
        ConfigError: code COLUMNS, records that are not flat and alike, or no column to predict.
    """
    kinds: dict[str, set[type]] = {}
    labels: dict[Any, None] = {}
    for count, row in enumerate(items_of(data), start=1):
        if not isinstance(row, dict) or (kinds and row.keys() != kinds.keys()):
            columns = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            expected = f"the columns {', '.join(kinds)}" if kinds else "a dict"
            raise ConfigError("COLUMNS", f"record {count} has {columns}, expected {expected}")
        for key, value in row.items():
            kinds.setdefault(key, set()).add(type(value))
        label = label or next((key for key in LABELS if key in row), None)
        if label not in row:
            named = label or ", ".join(LABELS)
            told = f"no column is called {named}; --label says which of {', '.join(row)} is predicted"
            raise ConfigError("COLUMNS", f"{told}. For a language model on texts without labels see docs/trainers.md")
        if not isinstance(row[label], str | int):
            found, how = f"{label!r} holds a {type(row[label]).__name__}", "PrivateTraining.own takes other targets"
            raise ConfigError("COLUMNS", f"{found}, expected names or whole numbers of classes; {how}")
        labels[row[label]] = None
        if len(labels) > MOST_LABELS:
            raise ConfigError("COLUMNS", f"{label!r} has over {MOST_LABELS} values, expected classes; --label names another")
    if label is None:
        raise ConfigError("COLUMNS", f"{data} holds no record")
    others = {key: found for key, found in kinds.items() if key not in (label, by)}
    numbers = tuple(key for key, found in others.items() if found <= {int, float, bool})
    texts = tuple(key for key, found in others.items() if str in found)
    if not (numbers or texts):
        raise ConfigError("COLUMNS", f"beside {label!r} no column holds numbers or texts, expected one at least")
    return Columns(label, tuple(sorted(labels, key=str)), numbers, texts)


def _made_up(found: Columns, place: int) -> dict[str, Any]:
    """Makes up a record of these columns; nothing of any record is in it but the labels that there are."""
    words = " ".join(("alpha", "river", "seven", "quiet", "stone")[place % 4 : place % 4 + 1 + place % 3])
    numbers = {key: (place + shift) % 5 - 2.0 for shift, key in enumerate(found.numbers)}
    return numbers | dict.fromkeys(found.texts, words) | {found.label: found.labels[place % len(found.labels)]}


def _program(found: Columns, data: Path, directory: Path, numbers: dict[str, Any]) -> str:
    columns = list(found.texts or found.numbers)
    collate, model = (_TEXT, _TEXT_MODEL) if found.texts else (_NUMBERS, _NUMBER_MODEL)
    place = directory.resolve()
    return _PROGRAM.format(
        label=found.label, labels=list(found.labels), data=str(data.resolve()), directory=str(place),
        collate=collate.format(columns=columns, length=256), model=model.format(width=len(columns)),
        numbers=", ".join(f"{name}={value!r}" for name, value in numbers.items()), probe=str(place / "probe.jsonl"),
        weights=str(place / "model.pt"), metrics=str(place / "metrics.jsonl"), export=str(place / "export"),
    )  # fmt: skip


def _tell(made: Quickstart) -> None:
    out = console()
    out.print(
        f"{amount(made.contributions)} contributions, {made.steps:,} steps at rate {made.sampling_rate:.4g}, noise multiplier "
        f"{at_least(made.noise_multiplier)}: epsilon {at_most(made.epsilon_planned)} at delta {made.delta:g}, and at most "
        f"{at_most(made.epsilon)} if {made.redo_steps} steps are charged again after exceptions"
    )
    out.print(f"train it:   python {made.program}")
    keys = f"--key {made.directory}/ledger.pub --owner-key {made.directory}/keys/owner.pub"
    out.print(f"audit it:   dptrain ledger verify {made.directory}/export {keys}")
    out.print(f"keys lie in {made.directory}/keys: whoever has owner.key can sign for you")
