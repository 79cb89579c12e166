"""Show the result of a command as text or as one JSON object; the one renderer of all commands.

A command returns a frozen dataclass derived from `Result`, and `RootGroup` renders it. Its fields, in their order, are
the JSON. Its `text` yields what a person reads.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from dptrain.cli.output import console, print_picture, print_table
from dptrain.planning.picture import Glyphs, Line
from dptrain.programs import print_json

Picture = Callable[[Glyphs], list[Line]]
"""Draws with the characters that the screen takes."""

Shown = str | Text | Table | Picture
"""A line or a paragraph, a table, or a picture."""

_KEY = "json"


class Result:
    """The typed result of a command."""

    @property
    def exit_code(self) -> int:
        """Returns the exit code of the command."""
        return 0

    def text(self) -> Iterable[Shown]:
        """Yields what a person reads."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Returns what a program reads: the fields, by default."""
        return plain(self)

    def print_json(self) -> None:
        """Prints the JSON object."""
        print_json(self.as_json())

    def print(self, *, as_json: bool) -> None:
        """Prints the result.

        Args:
            as_json: as one JSON object and nothing else.
        """
        if as_json:
            self.print_json()
        else:
            print_text(self.text())


def print_text(parts: Iterable[Shown]) -> None:
    """Prints lines, tables and pictures."""
    for part in parts:
        if isinstance(part, Table):
            print_table(part)
        elif isinstance(part, str | Text):
            console().print(part)
        else:
            print_picture(part)


def key(name: str | None, default: Any = MISSING) -> Any:
    """Declares a field with another name in JSON, or with None a field for people alone."""
    return field(default=default, metadata={_KEY: name})


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: bytes in hex, files by name, and dataclasses field by field."""
    if is_dataclass(value):
        names = [(item.metadata.get(_KEY, item.name), item.name) for item in fields(value)]
        return {name: plain(getattr(value, own)) for name, own in names if name is not None}
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, Path) else value


def pick(value: Any, names: str, **others: str) -> dict[str, Any]:
    """Returns some attributes of a value as JSON.

    Args:
        value: any object.
        names: attributes, set off by blanks.
        others: further attributes by the name that they have in JSON.
    """
    return {name: plain(getattr(value, name)) for name in names.split()} | {
        name: plain(getattr(value, own)) for name, own in others.items()
    }


@dataclass(frozen=True)
class Told(Result):
    """The result of most commands: what a program reads, and what a person reads.

    Attributes:
        data: the JSON object.
        parts: lines, tables and pictures; asked for only where a person reads.
        code: the exit code.
    """

    data: dict[str, Any]
    parts: Iterable[Shown]
    code: int = 0

    @property
    def exit_code(self) -> int:
        return self.code

    def text(self) -> Iterable[Shown]:
        return self.parts

    def as_json(self) -> dict[str, Any]:
        return self.data
