"""The tree of commands, what each takes and leaves out; and what their exit codes mean."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from dptrain.cli.app import app
from ledger.audit.findings import VERDICTS, exit_code
from ledger.proofs.monitoring import ALARMS, FAILED


def commands() -> Iterator[tuple[str, Any]]:
    """Yields every group and command, by its words from ``dptrain`` on."""
    yield from _below("dptrain", typer.main.get_command(app))


def leaves() -> list[str]:
    """Returns the words of every command that does something, without ``dptrain``."""
    return [words.partition(" ")[2] for words, command in commands() if not hasattr(command, "commands")]


def tree() -> dict[str, Any]:
    """Returns every group and command with the first line of its help, its arguments and its options."""
    return {words: _described(command) for words, command in commands()}


def exits() -> dict[str, Any]:
    """Returns the exit code of each verdict of an audit, as options change it, and of each alarm of ``ledger monitor``."""
    return {
        "verdicts": {
            verdict: {
                "": exit_code(verdict),
                "--require-full": exit_code(verdict, require_full=True),
                "--signature-only": exit_code(verdict, signature_only=True),
            }
            for verdict in VERDICTS
        },
        "alarms": {"any other": FAILED, **{code: word.code for code, word in ALARMS.items()}},
    }


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below(f"{words} {name}", inner)


def _described(command: Any) -> dict[str, Any]:
    taken = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option"]
    return {
        "help": (command.help or "").strip().partition("\n")[0],
        "hidden": command.hidden,
        "arguments": [{"name": item.metavar or item.name.upper()} | _value(item) for item in taken],
        "options": [{"names": [*item.opts, *item.secondary_opts]} | _option(item) for item in options],
    }


def _option(item: Any) -> dict[str, Any]:
    return {"flag": True, "default": bool(item.default)} if item.is_flag else _value(item)


def _value(item: Any) -> dict[str, Any]:
    """Returns what a value may be: required, its default, bounds and choices, and whether it repeats."""
    found = {"required": item.required, "default": _plain(item.default)}
    found |= {bound: getattr(item.type, bound) for bound in ("min", "max") if getattr(item.type, bound, None) is not None}
    if choices := getattr(item.type, "choices", ()):
        found["choices"] = [_plain(choice) for choice in choices]
    return found | ({"many": True} if item.nargs == -1 or item.multiple else {})


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
