"""Show the result of a command as text or as one JSON object, or the error that ended it; the one renderer of all commands.

A command returns a `Result`, and `RootGroup` renders it. Mostly that is a `Told`, which holds the JSON object and what a person
reads. It is a class of its own where others show the result too, or where it is too large to be held.
"""

import difflib
import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from attest.schema.plain import visible
from dptrain.cli.output import print_line, print_picture, print_table, screen_for, styled
from dptrain.planning.picture import Glyphs, Line
from dptrain.programs import REFUSALS, print_json, refusal

Picture = Callable[[Glyphs], list[Line]]
"""Draws with the characters that the screen takes."""

Shown = str | Text | Table | Picture
"""A line or a paragraph, a table, or a picture."""


class Result:
    """The typed result of a command, with its exit code."""

    exit_code: int = 0

    def text(self) -> Iterable[Shown]:
        """Yields what a person reads."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Returns what a program reads."""
        raise NotImplementedError

    def print_json(self) -> None:
        """Prints the JSON object."""
        print_json(self.as_json())

    def print(self, *, as_json: bool) -> None:
        """Prints the result, for a program as one JSON object and nothing else."""
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
            print_line(part)
        else:
            print_picture(part)


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: bytes in hex, files by name, and dataclasses field by field."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
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
    """Returns attributes of a value as JSON: those named, set off by blanks, and others by the name that they have in JSON."""
    chosen = dict.fromkeys(names.split()) | others
    return {name: plain(getattr(value, own or name)) for name, own in chosen.items()}


@dataclass(frozen=True)
class Told(Result):
    """The result of most commands: what a program reads, and what a person reads.

    Attributes:
        data: the JSON object.
        parts: lines, tables and pictures; asked for only where a person reads.
    """

    data: dict[str, Any]
    parts: Iterable[Shown]
    exit_code: int = 0

    def text(self) -> Iterable[Shown]:
        return self.parts

    def as_json(self) -> dict[str, Any]:
        return self.data


_ORDER = [
    "quickstart", "attest", "policy", "registry", "calibrate", "account", "check", "gate", "plan", "train", "generate",
    "ledger", "release", "rights", "serve", "demo",
]  # fmt: skip

_JSON = "dptrain.json"


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    # The error handler sits on the root command, which does not see a subcommand's parameters.
    if value:
        ctx.find_root().meta[_JSON] = True
    return value


JsonFlag = Annotated[
    bool, typer.Option("--json", callback=_remember_json, is_eager=True, help="Print one JSON object and nothing else.")
]


def _take_json(group: TyperGroup) -> None:
    """Gives every command below a group the option `--json`, unless it takes that itself."""
    for command in group.commands.values():
        if isinstance(command, LedgerGroup):
            continue  # it does so itself, once its commands are loaded
        if isinstance(command, TyperGroup):
            _take_json(command)
        elif not any("--json" in parameter.opts for parameter in command.params):
            command.params.append(_json_option())


@functools.cache
def _json_option() -> Any:
    only = typer.Typer(add_completion=False)

    @only.command()
    def asked(json: JsonFlag = False) -> None:
        """Takes this option alone."""

    [option] = typer.main.get_command(only).params
    option.expose_value = False
    return option


class LedgerGroup(TyperGroup):
    """The `dptrain ledger` group, whose rooms are loaded when a command of it is asked for: they take as long as all others."""

    @property
    def commands(self) -> dict[str, Any]:
        """Returns the commands by name."""
        return _ledger_commands()

    @commands.setter
    def commands(self, found: dict[str, Any]) -> None:
        """Leaves out what Typer has found in the group: nothing."""


@functools.cache
def _ledger_commands() -> dict[str, Any]:
    group = typer.main.get_group(importlib.import_module("dptrain.cli.ledger.commands").app)
    _take_json(group)
    return group.commands


class RootGroup(TyperGroup):
    """The `dptrain` command group: renders results, and turns every expected error into one line and exit code 1."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        _take_json(self)

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the commands in the order in which a corpus is set up, trained on and audited."""
        return sorted(self.commands, key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; typed errors and I/O errors end here, anything else is a fault and propagates."""
        try:
            found = super().invoke(ctx)
            if isinstance(found, Result):
                found.print(as_json=ctx.meta.get(_JSON, False))
                if found.exit_code:
                    raise typer.Exit(int(found.exit_code))
            return found
        except REFUSALS as error:
            told = refusal(error)
        except typer.BadParameter as error:
            explain(error)
            error.message = visible(error.message, lines=True)
            if not ctx.meta.get(_JSON):
                raise
            print_json({"error": {"code": "USAGE", "sentence": error.format_message()}})
            raise typer.Exit(2) from error
        if ctx.meta.get(_JSON):
            print_json({"error": told})
        else:
            screen_for(stderr=True).print(styled("bold red", told["code"], f": {visible(told['sentence'])}"))
        raise typer.Exit(1)


WRITTEN_BY = {
    "KEY": "'dptrain attest keygen NAME' writes one",
    "PUB": "'dptrain attest keygen' writes it; its owner hands it out",
    "POLICY": "'dptrain policy init' writes one to start from",
    "POLICY.toml": "'dptrain policy init' writes one to start from",
    "POLICY.cose": "'dptrain policy sign' writes it; the corpus owner hands it out",
    "REGISTRY": "'dptrain registry init' starts one; the corpus owner hands it out",
    "DATA.attest": "'dptrain attest sign DATA' writes it",
    "WITHDRAWAL": "'dptrain attest withdraw' writes it",
    "LEDGER": "training writes it",
    "LEDGER.db": "training writes it",
    "EXPORT": "'dptrain ledger export' writes it",
    "MODEL": "training writes it",
    "RIGHTS": "'dptrain rights sign' writes it",
    "PROOF": "'dptrain ledger prove' writes it",
    "NOTE": "'dptrain ledger cosign' writes it",
    "RUN.toml": "recipes/ has examples",
}
"""Where a file comes from, by the metavar of the parameter that takes it."""


def explain(error: Any) -> None:
    """Extend, in place, the message of a `typer.BadParameter` about a parameter that is missing or names no file."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return
    if not error.message:
        # A parameter that was not given at all: its help says what it is.
        error.message = getattr(parameter, "help", None) or ""
    elif "does not exist" in error.message:
        quoted = error.message.split("'")
        near = _nearest(quoted[1]) if len(quoted) == 3 else None
        hint = f"is {near} meant?" if near else WRITTEN_BY.get(parameter.metavar or "", "")
        error.message = error.message.rstrip(".") + (f"; {hint}" if hint else "")


def _nearest(path: str) -> str | None:
    """Returns a file in the folder of a path whose name is much like that one."""
    folder = Path(path).expanduser().parent
    names = [item.name for item in folder.iterdir() if item.is_file()] if folder.is_dir() else []
    found = difflib.get_close_matches(Path(path).name, names, n=1, cutoff=0.75)
    return str(Path(path).with_name(found[0])) if found else None
