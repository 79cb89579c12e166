"""Writes the reference of the command line from the commands themselves: what `--help` says, as a page."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from publish.site.errors import shown


def pages() -> dict[str, str]:
    """Returns one page for the commands at the top, and one for each group, by their paths in the site."""
    from dptrain.cli.app import app

    root: Any = typer.main.get_command(app)
    groups = {name: group for name, group in root.commands.items() if hasattr(group, "commands")}
    alone = {name: command for name, command in root.commands.items() if name not in groups}
    made = {"reference/commands.md": _page("dptrain", root, alone, groups)}
    for name, group in groups.items():
        made[f"reference/commands-{name}.md"] = _page(f"dptrain {name}", group, group.commands, {})
    return made


def _page(name: str, group: Any, commands: dict[str, Any], groups: dict[str, Any]) -> str:
    lines = [f"# {'Command line' if groups else name}", "", *_told(group.help), ""]
    if groups:
        links = ", ".join(f"[`{name} {one}`](commands-{one}.md)" for one in groups)
        lines += [f"Groups of commands have pages of their own: {links}.", ""]
    for word, command in commands.items():
        if not command.hidden:
            lines += _command(f"{name} {word}", command)
    return "\n".join(lines)


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    usage = " ".join([name, *(_argument(one) for one in arguments), "[OPTIONS]"])
    yield from (f"## {name}", "", "```text", usage, "```", "", *_told(command.help), "")
    for one in [*arguments, *options]:
        default = f" Default: `{one.default}`." if _says_its_default(one) else ""
        required = " Required." if one.required and one in options else ""
        told = f"{shown(one.help)}" if getattr(one, "help", None) else ""
        yield f"`{_named(one)}`"
        yield f":   {told}{required}{default}".rstrip() if told or required or default else ":   &nbsp;"
        yield ""


def _says_its_default(one: Any) -> bool:
    return one.default not in (None, False, True, ()) and isinstance(one.default, str | int | float) and bool(str(one.default))


def _argument(one: Any) -> str:
    name = (one.metavar or one.name.upper()).strip("{}[]")
    return f"{name}..." if one.nargs == -1 else name if one.required else f"[{name}]"


def _named(one: Any) -> str:
    if one.param_type_name == "argument":
        return _argument(one)
    words = ", ".join([*one.opts, *one.secondary_opts])
    value = "" if getattr(one, "is_flag", False) else f" {one.metavar or one.type.name.upper()}"
    return f"{words}{value}"


def _told(text: str | None) -> Iterator[str]:
    """Yields the paragraphs of a help text, and its example as a block."""
    for paragraph in (text or "").replace("\b", "").split("\n\n"):
        before, sign, example = paragraph.partition("Example: ")
        flat = " ".join(before.split())
        if flat:
            yield from (re.sub(r"<(?=\w)", "&lt;", flat), "")
        commands = re.findall(r"`([^`]+)`", example) or [example] if sign else []
        if commands:
            yield from ("```sh", *commands, "```", "")
