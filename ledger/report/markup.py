"""Pieces of HTML. Every word from outside is made visible and escaped here; only `Html` passes as it is."""

from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from html import escape
from typing import Any, Final

from attest.schema.plain import utc as shown_utc
from attest.schema.plain import visible

LONGEST: Final = 600
"""Characters of one foreign text that are shown; an export made to fill the page must not."""

LONGEST_NAME: Final = 80
"""Characters of a class, reason or column that are shown; identifiers of ours have 64 at most."""

NONE: Final = "\N{EN DASH}"

_FOUR_UP: Final = Context(prec=4, rounding=ROUND_CEILING)
_FOUR_DOWN: Final = Context(prec=4, rounding=ROUND_FLOOR)


class Html(str):
    """Text that is markup already, made here from escaped words."""

    __slots__ = ()


def text(value: object, longest: int = LONGEST) -> Html:
    """Returns a value for people, escaped.

    Guarantee:
        The result has no markup and no character that hides, reorders or overwrites others: control and format characters
        (bidirectional ones too), lone surrogates and unusual spaces are shown by their escape sequences.
    """
    return Html(escape(visible(str(value), longest=longest)))


def code(value: object) -> Html:
    """Returns a hash, a key or a name as it must be compared: in fixed width."""
    return Html(f"<code>{text(value)}</code>")


def utc(seconds: int) -> Html:
    """Returns a time of the ledger; a number that is none is shown as it is."""
    shown = moment(seconds)
    return Html(f"<time datetime='{shown_utc(seconds)}'>{shown}</time>") if shown.endswith("UTC") else text(shown)


def moment(seconds: int) -> str:
    """Returns the same in words alone."""
    shown = shown_utc(seconds)
    return shown.replace("T", " ").replace("Z", " UTC") if shown.endswith("Z") else shown


def rounded_up(value: float) -> Decimal:
    """Returns four significant digits, never below the value: a bound that is shown smaller is no bound."""
    return Decimal(format(_FOUR_UP.create_decimal_from_float(value), "f"))


def rounded_down(value: float) -> Decimal:
    """Returns four significant digits, never above the value: noise that is shown larger was never there."""
    return Decimal(format(_FOUR_DOWN.create_decimal_from_float(value), "f"))


def section(ident: str, title: str, *parts: str) -> str:
    """Returns a section under a heading that the contents can point to."""
    return "\n".join([f"<section id='{ident}'>", f"<h2>{text(title)}</h2>", *(part for part in parts if part), "</section>"])


def soft(sentence: str) -> str:
    """Returns a remark."""
    return f"<p class='soft'>{text(sentence)}</p>"


def details(summary: str, *parts: str) -> str:
    """Returns what is folded on a screen; paper shows it."""
    return f"<details><summary>{text(summary)}</summary>{''.join(parts)}</details>"


def hidden(words: str) -> Html:
    """Returns words for those who hear the page."""
    return Html(f"<span class='hear'>{text(words)}</span>")


def table(
    ident: str,
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    caption_shown: bool = True,
) -> str:
    """Returns a table whose first column names the rows; it scrolls within itself, by keyboard too.

    Args:
        ident: id of the caption, unique in the page.
        caption: what the table shows.
        head: titles of the columns; an `Html` stays as it is, here and in the rows.
        rows: values; None is shown as a dash, numbers stand at the right.
        caption_shown: False where a heading beside it says the same to those who see it.
    """
    body = [list(row) for row in rows]
    numeric = [_is_numeric([row[at] for row in body]) for at in range(len(head))]
    titles = "".join(
        f"<th scope='col'{' class=num' if right else ''}>{_words(title)}</th>"
        for title, right in zip(head, numeric, strict=True)
    )
    lines = "".join(f"<tr>{_row_head(row[0], right=numeric[0])}{''.join(map(cell, row[1:], numeric[1:]))}</tr>" for row in body)
    kind = "" if caption_shown else " class='hear'"
    return (
        f"<div class='scroll' role='group' aria-labelledby='{ident}' tabindex='0'><table>"
        f"<caption id='{ident}'{kind}><span>{text(caption)}</span></caption>"
        f"<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def cell(value: Any, right: bool = True) -> str:
    """Returns one cell of a table; without a value a dash, at the right where the column has numbers."""
    if value is None:
        return f"<td{' class=num' if right else ''}><span aria-hidden='true'>{NONE}</span>{hidden('none')}</td>"
    if is_number(value):
        return f"<td class='num'>{number(value)}</td>"
    return f"<td>{_words(value)}</td>"


def counted(count: int, thing: str, things: str = "") -> str:
    """Returns a number of things; their plural, where it is not made by an s."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def number(value: int | float | Decimal) -> Html:
    """Returns a number: integers and rounded bounds whole, others with four digits."""
    return text(f"{value:.4g}" if isinstance(value, float) else f"{value:,}")


def is_number(value: Any) -> bool:
    """Whether a value is shown as a number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_numeric(values: Sequence[Any]) -> bool:
    """Whether a column has numbers, and dashes at most beside them."""
    return any(map(is_number, values)) and all(is_number(value) or value is None for value in values)


def _row_head(value: Any, *, right: bool) -> str:
    shown = NONE if value is None else number(value) if is_number(value) else _words(value)
    return f"<th scope='row'{' class=num' if right else ''}>{shown}</th>"


def _words(value: Any) -> Html:
    return value if isinstance(value, Html) else text(value)
