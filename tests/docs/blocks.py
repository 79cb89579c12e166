"""Reads the fenced blocks of a page, each with the comments above it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<ticks>`{3,}|~{3,})(?P<language>[^\n`]*)$")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
_EXIT = re.compile(r"# exit code (\d+)[^\n]*\n\Z")
DIRECTIVES = ("world", "file", "exit code", "alone", "not run")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: word behind the fence. text: what it holds, without the indent of the fence. line: of the fence, from 1.
        told: what the comments above it say, by their first word.
        follows: whether nothing but blank lines and comments stands between it and the block before.
    """

    language: str
    text: str
    line: int
    told: dict[str, str]
    follows: bool

    @property
    def exit_code(self) -> int:
        """Exit code that the page states for its last command."""
        stated = self.told.get("exit code") or next(iter(_EXIT.findall(self.text)), "0")
        return int(stated)


def blocks_of(text: str) -> list[Block]:
    """Returns the blocks of a page in order. Raises ValueError: a fence is not closed, or a comment is not understood."""
    found: list[Block] = []
    comments: list[str] = []
    apart = True
    opened: tuple[str, str, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence and fence["ticks"].startswith(opened[1]) and not fence["language"].strip():
                held = "".join(f"{one.removeprefix(opened[0])}\n" for one in inside)
                found.append(Block(opened[2], held, opened[3], _told(comments, opened[3]), not apart))
                opened, inside, comments, apart = None, [], [], False
            else:
                inside.append(line)
        elif fence:
            opened = (fence["indent"], fence["ticks"], fence["language"].strip().partition(" ")[0], number)
        elif line.strip().startswith("<!--"):
            comments += _COMMENT.findall(line)
        elif line.strip():
            comments, apart = [], True
    if opened is not None:
        raise ValueError(f"the fence in line {opened[3]} is not closed")
    return found


def _told(comments: list[str], line: int) -> dict[str, str]:
    told: dict[str, str] = {}
    for comment in comments:
        word, _, rest = comment.partition(":")
        if word in DIRECTIVES:
            told[word] = ", ".join(filter(None, (told.get(word), rest.strip())))
        elif rest and re.fullmatch(r"[a-z ]{1,12}", word):
            raise ValueError(f"the comment {comment!r} above line {line} is none of: {', '.join(DIRECTIVES)}")
    return told


def pages(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yields the pages of the handbook, by their paths below the root, with their text."""
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
