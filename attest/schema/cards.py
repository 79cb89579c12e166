"""Shows a value in a notebook: its fields as a small table of HTML, in which nothing that others wrote can do anything.

A class of public values says ``_repr_html_ = card_of``; what is no dataclass gives its rows to `card`.
"""

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from attest.schema.plain import visible

LONGEST: Final = 200
"""Characters of one text that are shown."""

MOST: Final = 20
"""Rows of a table that are shown; how many more there are is told."""

LINES: Final = 60
"""Lines of a listing that are shown; how many more there are is told."""

DIGEST: Final = 8
"""Bytes that are shown of longer ones."""


def card(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Returns a table of names and values under a title.

    Guarantee: the result has no markup but that of its own tables, and no character that hides or reorders others: every text
    goes through `attest.schema.plain.visible` and is escaped.

    Args:
        title: of the table. rows: names and values, of any type; of many the first `MOST` are shown.
    """
    body = _table("", ((name, value) for name, value in rows))
    return f"<div><b>{_text(title)}</b>{body}</div>"


def card_of(value: Any) -> str:
    """Returns the card of a dataclass: its fields but those that its ``repr`` leaves out, as `card` shows them."""
    return card(type(value).__name__, _fields(value))


def by_name(title: str, values: Mapping[str, Any], empty: str) -> str:
    """Returns a table with a row for each name, and the fields of its value in columns, as `card` shows them.

    Args:
        title: of the table. values: dataclasses of one type by name, or None. empty: what is said of None.
    """
    known = next((value for value in values.values() if value is not None), None)
    heads = [""] if known is None else ["", *(name for name, _ in _fields(known))]
    rows = ((name, *((empty,) if value is None else (each for _, each in _fields(value)))) for name, value in values.items())
    return f"<div><b>{_text(title)}</b>{_table(heads, rows)}</div>"


def listing(title: str, text: str) -> str:
    """Returns a text as its author would write it, line by line, under a title; guarantee as `card`.

    Args:
        title: of the text. text: of its lines the first `LINES` are shown.
    """
    lines = text.strip("\n").split("\n")
    shown = [_text(line) for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"{len(lines) - LINES:,} more lines")
    body = "\n".join(shown)
    return f"<div><b>{_text(title)}</b><pre>{body}</pre></div>"


def _fields(value: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr]


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    listed = list(rows)
    shown = ["".join(f"<td>{_value(value)}</td>" for value in row) for row in listed[:MOST]]
    if len(listed) > MOST:
        shown.append(f"<td>{len(listed) - MOST:,} more</td>")
    lines = "".join(f"<tr>{line}</tr>" for line in shown)
    head = "<tr>" + "".join(f"<th>{_text(name)}</th>" for name in heads) + "</tr>" if heads else ""
    return f"<table>{head}{lines}</table>"


def _value(value: Any) -> str:
    """Shows one value: numbers short, bytes by their beginning, records in a table of their own, one level deep."""
    if isinstance(value, bytes):
        return f"<code>{value[:DIGEST].hex()}</code>" + (f"… ({len(value)} bytes)" if len(value) > DIGEST else "")
    if isinstance(value, bool | Fraction) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    if isinstance(value, Mapping):
        return _table((), list(value.items())[: MOST + 1]) if value else "–"
    if isinstance(value, tuple | list) and value and all(map(_is_record, value)) and len({type(one) for one in value}) == 1:
        return _table([name for name, _ in _fields(value[0])], [[each for _, each in _fields(one)] for one in value])
    if isinstance(value, tuple | list):
        more = [f"{len(value) - MOST:,} more"] if len(value) > MOST else []
        return ", ".join([*map(_short, value[:MOST]), *more]) or "–"
    return _short(value)


def _short(value: Any) -> str:
    return _text(value if isinstance(value, str) else repr(value))


def _text(value: str) -> str:
    return html.escape(visible(value, longest=LONGEST))
