"""Writes the tables of the guides: keys of a run file, trainers that are refused, and what privacy cost in accuracy."""

import inspect
import json
import re
from pathlib import Path
from typing import Final

from benchmarks.utility import lines_of
from dptrain.integrations.coupled import CAUSES
from dptrain.serve.config import (
    Attested,
    Budgeted,
    FromReferences,
    Gated,
    Generation,
    Limits,
    Listening,
    ServeConfig,
    Table,
)
from dptrain.tasks.runconfig import Classifier, DataConfig, ImageModel, MachineConfig, OptimizerConfig, TextModel
from tests.pages.documents import Pages, table, with_tables
from tests.pages.marked import filled

UTILITY: Final = Path(__file__).resolve().parents[2] / "benchmarks" / "utility.json"

RUN_FILE: Final = {
    "`[model]`": Classifier,
    "`[model]` of texts": TextModel,
    "`[model]` of images": ImageModel,
    "`[data]`": DataConfig,
    "`[optimizer]`": OptimizerConfig,
    "`[run]`": MachineConfig,
}
"""Tables of a run file, by the class that declares their keys."""

SERVER: Final = {
    "": ServeConfig,
    "`[server]`": Listening,
    "`[gate]`": Gated,
    "`[classes.NAME]`": Generation,
    "`[generations.NAME]`": FromReferences,
    "`[generations.NAME.attested]`": Attested,
    "`[budget]`": Budgeted,
    "`[limits]`": Limits,
}
"""Tables of the file of a server, likewise."""

_ATTRIBUTE: Final = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def attributes(cls: type) -> dict[str, str]:
    """Returns what the docstring of a class says of its attributes, by name."""
    told = inspect.cleandoc(str(cls.__doc__)).partition("Attributes:\n")[2]
    said = ((name, " ".join(text.split()).replace("``", "`")) for name, text in _ATTRIBUTE.findall(told))
    return {name: text[0].upper() + text[1:] for name, text in said}


def run_file_table() -> str:
    """Returns the table of the keys of a run file."""
    rows = [(place, f"`{name}`", text) for place, cls in RUN_FILE.items() for name, text in attributes(cls).items()]
    return table(("table", "key", "meaning"), rows)


def server_table() -> str:
    """Returns the table of the keys of a server's file, with the default of each."""
    rows = []
    for place, cls in SERVER.items():
        for name, text in attributes(cls).items():
            field = cls.model_fields[name]
            default = "required" if field.is_required() else _plain(field.get_default(call_default_factory=True))
            rows.append((place, f"`{name.removesuffix('_')}`", default, text))
    return table(("table", "key", "default", "meaning"), rows)


def _plain(value: object) -> str:
    return "" if value is None or value == {} or isinstance(value, Table) else f"`{json.dumps(value)}`"


def refused_table() -> str:
    """Returns the table of the trainers of TRL without a private form, by cause."""
    causes: dict[str, list[str]] = {}
    for name, cause in CAUSES.items():
        causes.setdefault(cause, []).append(f"`{name}`")
    return table(("trainer", "cause"), [(", ".join(names), cause) for cause, names in causes.items()])


def utility_page(page: str) -> str:
    """Returns utility.md with the table of what was measured."""
    rows = json.loads(UTILITY.read_text(encoding="utf-8"))
    return filled(page, "".join(f"{line}\n" for line in lines_of(rows)))


PAGES: Final[Pages] = {
    "operating.md": lambda page: with_tables(page, "The run file", [run_file_table()]),
    "serving.md": lambda page: filled(page, server_table()),
    "trainers.md": lambda page: with_tables(page, "Other trainers of TRL", [refused_table()]),
    "utility.md": utility_page,
}
