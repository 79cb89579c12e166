"""Compares what a page shows with what a block printed.

The rule: line by line, and blanks count as one. A line `...` stands for any lines, `...` within a line for anything. Hashes,
keys, numbers, dates and times may be others of their kind; words, signs, and their order may not. What was printed is what went
to standard output, or that with the errors. Blank lines do not count.
"""

import re

_KINDS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|[ ]?UTC)?)?"), "\N{CALENDAR}"),
    (re.compile(r"\b\d\d:\d\d(?::\d\d)?\b"), "\N{CALENDAR}"),
    (re.compile(r"(?<![\w+/])(?=[\w+/]*\d)[A-Za-z0-9+/]{40,}={0,2}"), "\N{KEY}"),
    (re.compile(r"(?<!\w)[0-9a-f]{8,64}(?:…|\b)"), "\N{KEY}"),
    (re.compile(r"(?<![A-Za-z_])[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?"), "\N{ABACUS}"),
)
"""What may be another of its kind, and the sign that stands for it."""


def even(text: str) -> list[str]:
    """Returns the lines of a text with a sign for what may differ, without blank lines."""
    lines = []
    for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines():
        for pattern, sign in _KINDS:
            line = pattern.sub(sign, line)
        if line.strip():
            lines.append(" ".join(line.split()))
    return lines


def is_shown(shown: str, printed: str) -> bool:
    """Returns whether a page may show this of what was printed."""
    parts = []
    for line in even(shown):
        parts.append(r"(?:.*\n)*?" if line == "..." else r"[^\n]*".join(map(re.escape, line.split("..."))) + r"\n")
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in even(printed))) is not None
