"""Man pages of all commands, from the same text as `--help`: `python -m dptrain.cli.man DIRECTORY`, or `make man`."""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup

from dptrain.cli.manual import Page, pages, wrapped


def write_pages(directory: Path) -> list[Path]:
    """Write one page per command and group; returns the files."""
    from dptrain.cli.app import app

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for path, command in _walk(typer.main.get_command(app), ()):
        target = directory / f"{'-'.join(('dptrain', *path))}.1"
        target.write_text(render(path, command, pages()[" ".join(path)]), encoding="utf-8")
        written.append(target)
    return written


def render(path: tuple[str, ...], command: Any, page: Page) -> str:
    """One page in the man macros of groff_man(7)."""
    name = "-".join(("dptrain", *path))
    summary, _, rest = (command.help or "").partition("\n\n")
    lines = [f'.TH {name.upper()} 1 "" "dptrain {_version()}" "dptrain manual"', ".SH NAME"]
    lines += [f"{_escaped(name)} \\- {_prose(summary)}", ".SH SYNOPSIS", _synopsis(path, command)]
    lines += [".SH DESCRIPTION", *_paragraphs(f"{summary}\n\n{rest}"), ".SH WHEN TO USE IT", _prose(page.when)]
    if isinstance(command, TyperGroup):
        lines += [".SH COMMANDS", *_commands(command)]
    lines += _parameters(command)
    if page.reads:
        lines += [".SH FILES", f"Reads {_prose(page.reads)}.", ".PP", f"Writes {_prose(page.writes)}."]
    lines += [".SH EXIT STATUS", _prose(page.exits()), ".SH EXAMPLES"]
    for example in page.examples:
        lines += [".PP", ".nf", *(_escaped(line) for line in wrapped(example).splitlines()), ".fi"]
    others = [f".BR {_escaped(_page_of(item))} (1)" for item in page.see]
    lines += [".SH SEE ALSO", ",\n".join(others)]
    return "\n".join(lines) + "\n"


def _walk(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, command in getattr(group, "commands", {}).items():
        yield from _walk(command, (*path, name))


def _synopsis(path: tuple[str, ...], command: Any) -> str:
    words = [item.metavar or item.name.upper() for item in command.params if isinstance(item, TyperArgument)]
    tail = ["COMMAND", "..."] if isinstance(command, TyperGroup) else words
    return f".B {_escaped(' '.join(('dptrain', *path)))}\n[OPTIONS] {_escaped(' '.join(tail))}".rstrip()


def _commands(group: TyperGroup) -> list[str]:
    lines = []
    for name, command in group.commands.items():
        lines += [".TP", f".B {_escaped(name)}", _prose((command.help or "").partition("\n\n")[0])]
    return lines


def _parameters(command: Any) -> list[str]:
    lines: list[str] = []
    panels: dict[str, list[Any]] = {}
    for item in command.params:
        if not getattr(item, "hidden", False):
            default = "Arguments" if isinstance(item, TyperArgument) else "Options"
            panels.setdefault(getattr(item, "rich_help_panel", None) or default, []).append(item)
    for panel, items in panels.items():
        lines.append(f'.SH "{panel.upper()}"')
        for item in items:
            head = item.metavar or item.name.upper() if isinstance(item, TyperArgument) else _option(item)
            note = "" if not item.required else " Required."
            lines += [".TP", f".B {_escaped(head)}", _prose(getattr(item, "help", "") or "") + note]
    return lines


def _option(item: Any) -> str:
    value = "" if item.is_flag else f" {item.metavar or item.name.upper()}"
    return ", ".join(item.opts) + value


def _paragraphs(text: str) -> list[str]:
    found = [_prose(part) for part in text.split("\n\n") if part.strip()]
    return [line for part in found for line in (".PP", part)]


def _prose(text: str) -> str:
    """Text of the help, with `code` in bold and no markup of its own."""
    plain = _escaped(" ".join(text.split()))
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", plain)


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.split("\n"))


def _page_of(name: str) -> str:
    return "-".join(("dptrain", *name.split()))


def _version() -> str:
    try:
        return metadata.version("dptrain")
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m dptrain.cli.man DIRECTORY")
    print(
        f"{len(write_pages(Path(sys.argv[1])))} man pages in {sys.argv[1]}; read one with: man -l {sys.argv[1]}/dptrain-gate.1"
    )
