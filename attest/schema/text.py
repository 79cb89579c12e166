"""The text form of declared documents: TOML, which a person writes and reads again, and JSON, which programs read."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from attest.errors import Refused
from attest.schema.declare import Declared, declarations, told_of
from attest.schema.kinds import Reading, Sections, Told

_MAX_TEXT = 1 << 20


def parse_document(cls: type, text: Any, *, what: str, error: Refused) -> Any:
    """Reads a document that a person wrote in TOML. Numbers are read exactly; no float is formed."""
    if type(text) is not str:
        raise error("TYPE", f"{what} is {type(text).__name__}, expected text")
    if len(text) > _MAX_TEXT:
        raise error("SIZE", f"{what} text has {len(text)} characters, expected at most {_MAX_TEXT}")
    try:
        table = tomllib.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as refused:
        raise error("TOML", f"{what} is not valid TOML: {refused}") from refused
    return read_table(cls, table, what, Reading(error, places(cls)))


def read_table(cls: type, table: Mapping[str, Any], where: str, reading: Reading, outer: Told | None = None) -> Any:
    """Reads a document from a table of TOML. `outer`: name of the document in the one around it."""
    items = [item for item in declarations(cls) if item.written]
    shown = None
    if hasattr(cls, "TELLS"):
        shown = next((table.get(item.key) for item in items if item.name == cls.TELLS[0]), None)
    implied = cls.implied(table, reading) if hasattr(cls, "implied") else {}
    needed = [item.key for item in items if item.required and item.name not in implied and not item.kind.spread]
    check_keys(table, tops(cls), _in(needed, ""), where, reading)
    inner = {name: _subtable(cls, table, name, _in(needed, name), reading) for name in subtables(cls)}
    values = dict(implied)
    for item in items:
        key = item.key
        place, _, last = key.rpartition(".")
        own = inner.get(place, table)
        other = (item.beside or item.key).rpartition(".")[2]
        if (last in own) != (other in own):
            raise reading.error("KEY", f"[{place}] takes {other} with {last}; give both, or leave both out")
        if item.name in implied:
            continue
        told = told_of(cls, key, shown, outer)
        if item.kind.spread:
            own = inner.get(key, table)
            found = {name: own[name] for name in item.kind.spread if name in own}
            if found:
                values[item.name] = item.kind.read(found, told, reading)
        elif last in own:
            values[item.name] = item.kind.read(own[last], told, reading)
    return cls(**values)


def keys(cls: type) -> tuple[str, ...]:
    """Returns the keys of a document as a person writes them, those of its tables behind name and dot."""
    found = []
    for item in declarations(cls):
        if item.written:
            prefix = f"{item.key}." if item.key else ""
            found += [f"{prefix}{name}" for name in item.kind.spread] if item.kind.spread else [item.key]
    return tuple(found)


def subtables(cls: type) -> tuple[str, ...]:
    """Returns the names of the tables in which a document has keys."""
    return tuple(dict.fromkeys(key.rpartition(".")[0] for key in keys(cls) if "." in key))


def tops(cls: type) -> tuple[str, ...]:
    """Returns the keys and names of tables that stand in the table of a document itself."""
    return tuple(dict.fromkeys(key.split(".")[0] for key in keys(cls)))


def places(cls: type) -> dict[str, tuple[str, ...]]:
    """Returns the keys of a whole document by the place that they belong to."""
    items = [item for item in declarations(cls) if item.written and "." not in item.key]
    plain = [item.key for item in items if (item.kind.tables is None and not item.kind.spread) or item.kind.short]
    found = {"above the first table": tuple(plain)}
    for name in subtables(cls):
        found[f"into [{name}]"] = tuple(_in(keys(cls), name))
    for item in items:
        if item.kind.tables is not None:
            found[f"into [[{item.key}]]"] = tops(item.kind.tables)
    return found


def _in(dotted: Iterable[str], place: str) -> list[str]:
    """Returns the last parts of the keys that stand in one table; the empty place is that of the document."""
    return [key.rpartition(".")[2] for key in dotted if key.rpartition(".")[0] == place]


def _subtable(cls: type, table: Mapping[str, Any], name: str, needed: Iterable[str], reading: Reading) -> Mapping[str, Any]:
    value = table.get(name, {})
    if type(value) is not dict:
        raise reading.error("TYPE", f"{name} is not a table; write [{name}] followed by its keys")
    check_keys(value, _in(keys(cls), name), needed, f"[{name}]", reading)
    return value


def check_keys(table: Mapping[str, Any], known: Iterable[str], needed: Iterable[str], where: str, reading: Reading) -> None:
    """Refuses unknown keys of a table, with the nearest known one or where they belong, and missing ones."""
    names = list(known)
    for key in table:
        if key not in names:
            elsewhere = [place for place, there in reading.places.items() if key in there]
            if elsewhere:
                told = " or ".join(elsewhere)
                raise reading.error("KEY", f"{where} has the key {key!r}, which belongs {told}; move it there")
            near = difflib.get_close_matches(key[:80], names, n=1, cutoff=0.0)
            sentence = f"{where} has the unknown key {ascii(key)[:80]}; the nearest known key is {near[0]!r}"
            raise reading.error("KEY", sentence)
    missing = [name for name in needed if name not in table]
    if missing:
        raise reading.error("KEY", f"{where} lacks {', '.join(missing)}")


def write_document(document: Any) -> str:
    """Writes a document as a person would: every field, but for those that are left out of its bytes.

    What no text can say (a span of time that is not whole days, a fraction without finite decimals) is written as near as can
    be, with a remark.
    """
    tables: Sections = [("", [])]
    for item, value in _stated(document):
        sections = item.kind.sections(item.key, value)
        if sections:
            tables += sections
            continue
        place, _, last = item.key.rpartition(".")
        place = item.key if item.kind.spread else place
        head = f"[{place}]" if place else ""
        lines = next((lines for name, lines in tables if name == head), None)
        if lines is None:
            tables.append((head, lines := []))
        lines += _lines(item, value, last)
    return "\n".join("\n".join([*([head] if head else []), *lines]) + "\n" for head, lines in tables)


def write_lines(document: Any) -> list[str]:
    """Writes the fields of a document that is a table, one on a line."""
    lines = []
    for item, value in _stated(document):
        lines += _lines(item, value, item.key)
    return lines


def write_inline(document: Any) -> tuple[str, str]:
    """Writes a document on one line, in braces, and returns with it a remark on what the line does not say."""
    parts, remarks = [], []
    for item, value in _stated(document):
        parts += [f"{name} = {text}" for name, text in item.kind.pairs(item.key, value)]
        remark = item.kind.remark(value)
        remarks += [remark] if remark else []
    return "{ " + ", ".join(parts) + " }" if parts else "{}", ", ".join(remarks)


def _stated(document: Any) -> list[tuple[Declared, Any]]:
    hidden = document.hidden() if hasattr(document, "hidden") else ()
    found = []
    for item in declarations(type(document)):
        value = getattr(document, item.name)
        if item.written and value is not None and item.name not in hidden and not (item.optional and item.at_default(value)):
            found.append((item, value))
    return found


def _lines(item: Declared, value: Any, key: str) -> list[str]:
    remark = item.kind.remark(value)
    return [f"{name} = {text}" + (f"  # {remark}" if remark else "") for name, text in item.kind.pairs(key, value)]


def as_json(document: Any) -> dict[str, Any]:
    """Returns a document as JSON shows it: every field, None where it has none or where its value says nothing."""
    hidden = document.hidden() if hasattr(document, "hidden") else ()
    shown: dict[str, Any] = {}
    for item in declarations(type(document)):
        shown |= item.kind.json_pairs(item.name, None if item.name in hidden else getattr(document, item.name))
    return shown


def stated_json(document: Any) -> dict[str, Any]:
    """Returns what a document states as JSON shows it, by the keys that a person writes."""
    shown: dict[str, Any] = {}
    for item, value in _stated(document):
        shown |= item.kind.json_pairs(item.name, value) if item.kind.spread else {item.key: item.kind.json(value)}
    return shown
