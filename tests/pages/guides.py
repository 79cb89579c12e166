"""Writes the tables of the guides for engineers and operators: the keys of a run file, and the trainers that are refused."""

import inspect
import re
from typing import Final

from dptrain.integrations.coupled import CAUSES
from dptrain.tasks.runconfig import Classifier, DataConfig, ImageModel, MachineConfig, OptimizerConfig, TextModel
from tests.pages.documents import Pages, table, with_tables

RUN_FILE: Final = {
    "`[model]`": Classifier,
    "`[model]` of texts": TextModel,
    "`[model]` of images": ImageModel,
    "`[data]`": DataConfig,
    "`[optimizer]`": OptimizerConfig,
    "`[run]`": MachineConfig,
}
"""Tables of a run file, by the class that declares their keys."""

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


def refused_table() -> str:
    """Returns the table of the trainers of TRL without a private form, by cause."""
    causes: dict[str, list[str]] = {}
    for name, cause in CAUSES.items():
        causes.setdefault(cause, []).append(f"`{name}`")
    return table(("trainer", "cause"), [(", ".join(names), cause) for cause, names in causes.items()])


PAGES: Final[Pages] = {
    "operating.md": lambda page: with_tables(page, "The run file", [run_file_table()]),
    "trainers.md": lambda page: with_tables(page, "Other trainers of TRL", [refused_table()]),
}
