"""The manual: one page per command, hung onto the commands for `--help` and printed for `man` by `dptrain.cli.man`.

The words stand in `manual.toml`; which options belong together stands here.
"""

import shlex
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from typer.core import TyperCommand, TyperGroup, TyperOption

WIDTH = 72
"""Columns of an example, so that none is broken on a terminal of 80."""

PANELS = {
    "Keys": (
        *("--key", "--new-key", "--passphrase", "--passphrase-file", "--new-passphrase-file", "--owner-key", "--owner"),
        *("--log-key", "--ledger-key", "--trust", "--quorum", "--require-quorum"),
    ),
    "Validity": ("--at", "--now", "--not-before", "--days", "--old-until"),
    "Bounds and terms": (
        "--clip-norm",
        "--noise-multiplier",
        "--max-occurrences",
        "--max-examples",
        "--data-class",
        "--principal",
    ),
    "Assumptions": ("--layers", "--contributions", "--seconds-per-step"),
    "To change": ("--target-epsilon", "--solve", "--what-if"),
    "To look closer": ("--gradient-norms", "--measure", "--compare", "--curve"),
    "Output": ("--out", "--limit", "--refusals", "--history", "--plot", "--json"),
}
"""Options that are about the same, under one heading in the help of every command."""

PEOPLE = {
    "For contributors": ("attest",),
    "For corpus owners": ("policy", "registry", "calibrate", "account"),
    "For who trains": ("gate", "plan", "train"),
    "For operators and auditors": ("ledger", "release"),
    "To try it": ("demo",),
}
"""Commands of the root by who needs them, in the order of the help."""

LEDGER_PEOPLE = {
    "For who keeps the ledger": (
        *("show", "withdraw", "export", "merge", "witness-request", "witness-answer"),
        *("retain", "rotate-key", "set-clock", "fsck", "init"),
    ),
    "For auditors": ("verify", "report", "cosign", "auditor-key"),
    "For contributors": ("monitor", "trace", "prove", "verify-proof"),
}
"""Commands of `dptrain ledger` likewise."""

_BY_PEOPLE = {(): PEOPLE, ("ledger",): LEDGER_PEOPLE}

_PANEL_OF = {option: panel for panel, options in PANELS.items() for option in options}


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What the manual says about one command beyond its description and options; see `manual.toml`."""

    when: str
    refused: str
    reads: str = ""
    writes: str = ""
    examples: list[str] = field(default_factory=list)
    see: list[str] = field(default_factory=list)
    codes: str = ""

    def exits(self) -> str:
        """The exit codes, in one sentence."""
        return f"0 done; 1 {self.refused}; 2 wrong use{self.codes and f'; {self.codes}'}."

    def markdown(self) -> str:
        """The page as the end of a command's help."""
        parts = [f"**When to use it.** {self.when}"]
        if self.reads:
            parts.append(f"**Reads** {self.reads}. **Writes** {self.writes}.")
        parts.append(f"**Exit codes.** {self.exits()}")
        parts.append("**Examples**" if len(self.examples) > 1 else "**Example**")
        parts.append("```text\n" + "\n".join(wrapped(text) for text in self.examples) + "\n```")
        parts.append("**See also** " + ", ".join(f"`dptrain {name}`" for name in self.see))
        return "\n\n".join(parts)


@cache
def pages() -> dict[str, Page]:
    """All pages, by the words of the command; the root's is the empty text."""
    text = Path(__file__).with_name("manual.toml").read_text(encoding="utf-8")
    return {name: Page(**fields) for name, fields in tomllib.loads(text).items()}


def attach(group: TyperGroup, path: tuple[str, ...] = ()) -> None:
    """Hang the pages onto a group and every command below it, and sort the options under their headings."""
    page = pages().get(" ".join(path))
    if page is not None:
        group.epilog = page.markdown()
    if path in _BY_PEOPLE:
        _sort_commands(group, _BY_PEOPLE[path])
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            attach(command, (*path, name))
            continue
        page = pages().get(" ".join((*path, name)))
        if page is not None:
            command.epilog = page.markdown()
        if isinstance(command, TyperCommand):
            _sort_options(command)


def wrapped(command: str) -> str:
    """A command on lines of at most `WIDTH` columns that can be copied together; never broken inside a word."""
    lines, line = [], ""
    for words in _options_with_values(command):
        if line and len(line) + 1 + len(words) > WIDTH - 2:
            lines.append(line + " \\")
            line = "    " + words
        else:
            line = f"{line} {words}" if line else words
    return "\n".join([*lines, line])


def _options_with_values(command: str) -> list[str]:
    """The words of a command, an option together with the value that follows it."""
    found: list[str] = []
    for word in command.split(" "):
        alone = not found or found[-1].startswith("--") is False or " " in found[-1] or word.startswith("--")
        if alone:
            found.append(word)
        else:
            found[-1] += f" {word}"
    # A value with blanks would be torn apart; examples have none.
    if shlex.split(command) != command.split(" "):
        raise ValueError(f"example holds quotes or escapes: {command}")
    return found


def _sort_commands(group: TyperGroup, people: dict[str, tuple[str, ...]]) -> None:
    """Puts the commands under the headings of those who need them, in that order."""
    order = [name for names in people.values() for name in names]
    group.commands = dict(sorted(group.commands.items(), key=lambda item: order.index(item[0])))
    for panel, names in people.items():
        for name in names:
            group.commands[name].rich_help_panel = panel


def _sort_options(command: TyperCommand) -> None:
    options = [item for item in command.params if isinstance(item, TyperOption) and not item.hidden]
    if len(options) < 5:
        return
    found: dict[str, list[TyperOption]] = {}
    for option in options:
        panel = next((_PANEL_OF[name] for name in option.opts if name in _PANEL_OF), None)
        if panel is not None and option.rich_help_panel is None and not option.required:
            found.setdefault(panel, []).append(option)
    for panel, together in found.items():
        if len(together) > 1 or panel == "Output":
            for option in together:
                option.rich_help_panel = panel
