"""Writes text that others wrote into Markdown and YAML so that it is shown and does nothing.

Guarantee: no character of the text opens or closes anything: no HTML, link, image, code, table cell, heading, list, comment or
fence, no value or document of YAML. Every character is seen (`attest.schema.plain.visible`), and the text stays on its line.
Source: CommonMark 0.31, 2.4 (backslash escapes), 2.5 (entities), 6.1 (code spans); GitHub Flavored Markdown, 4.10 and 6.9; YAML
1.2.2, 7.3.1 (double-quoted scalars).
"""

import re
from typing import Final

from attest.schema.plain import visible

_ENTITIES: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}
_SPECIAL: Final = re.compile(r"[\\`*_\[\]{}#|~$!^]")
_LINK: Final = re.compile(r"(?<![0-9]):(?=\S)|:(?=[^\s0-9])|(?<=[wW]{3})\.")
_START: Final = re.compile(r"^(?:([0-9]{1,9})([.)])|([-+=]))")
_TICKS: Final = re.compile(r"`+")


def text(words: str) -> str:
    """Returns words as running text of Markdown, on one line."""
    shown = visible(words.replace("\n", " "))
    shown = "".join(_ENTITIES.get(char, char) for char in _SPECIAL.sub(r"\\\g<0>", shown))
    shown = _LINK.sub(r"\\\g<0>", shown)
    return _START.sub(lambda match: f"{match[1]}\\{match[2]}" if match[1] else f"\\{match[3]}", shown)


def code(words: str) -> str:
    """Returns words as a code span, which may stand in a cell of a table too."""
    shown = visible(words, plain=True).replace("|", "\\x7c")
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(shown)), default=0))
    pad = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) or not shown else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def scalar(words: str) -> str:
    """Returns words as a double-quoted scalar of YAML, in ASCII."""
    return '"' + "".join(map(_escaped, words)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if " " <= char <= "~":
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}"
