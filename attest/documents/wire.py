"""The CBOR form of declared documents: maps with unsigned keys, and rows, which are arrays of fields; both read strictly."""

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from attest import cbor
from attest.documents.declare import Declared, declarations, told_of
from attest.documents.kinds import Kind
from attest.errors import CborError, Refused

_ROWS: dict[type, "_Row"] = {}


def encode_document(document: Any, schema: str) -> bytes:
    """Returns the bytes that are signed. Label 1 is the schema."""
    return cbor.encode({1: schema} | encode_map(document))


def encode_map(document: Any) -> dict[int, Any]:
    """Returns a document as a map of plain values: optional fields at their default are left out, None else is null."""
    plain = {}
    for item in declarations(type(document)):
        value = getattr(document, item.name)
        if item.optional and item.at_default(value):
            continue
        plain[item.label] = None if value is None else item.kind.encode(value)
    return plain


def encode_row(document: Any) -> list[Any]:
    """Returns a document as an array of plain values, in the order of its labels."""
    row = row_of(type(document))
    values = list(row.read(document))
    for place, item in row.coded:
        if values[place] is not None:
            values[place] = item.kind.encode(values[place])
    return values


def decode_document(cls: type, data: bytes, *, schema: str, what: str, error: Refused, max_size: int) -> Any:
    """Reads a document strictly.

    Guarantee: an accepted byte string is exactly `encode_document` of the result.

    Args:
        cls: Its class.
        data: The bytes.
        schema: Schema that label 1 has to name.
        what: The document in words, for sentences.
        error: Makes the errors.
        max_size: Most bytes.

    Raises:
        Exception: Made by `error`, with the code of the strict decoder, or SCHEMA, TYPE, RANGE or that of a rule.
    """
    try:
        value = cbor.decode(data, max_size=max_size)
    except CborError as refused:
        raise error(refused.code, f"{what} is not strict CBOR: {refused.sentence}") from refused
    fields = _labelled(value, (1,), declarations(cls), what, error)
    if fields[1] != schema:
        raise error("SCHEMA", f"{what} schema is not {schema!r}; it was written by another version")
    document = decode_fields(cls, fields, error)
    if encode_document(document, schema) != data:
        raise error("CBOR_NONCANONICAL", f"{what} does not encode to the bytes received")
    return document


def decode_map(cls: type, plain: Any, what: str, error: Refused) -> Any:
    """Reads a document that is a map inside of another one."""
    return decode_fields(cls, _labelled(plain, (), declarations(cls), what, error), error)


def decode_row(cls: type, plain: Any, what: str, error: Refused, *, code: str = "TYPE") -> Any:
    """Reads a document that is an array of its fields.

    Args:
        cls: Its class.
        plain: The array.
        what: The document in words, for sentences.
        error: Makes the errors.
        code: How something else than an array of as many values is refused.
    """
    row = row_of(cls)
    if type(plain) is not list or len(plain) != len(row.names):
        raise error(code, f"{what} is not an array of {len(row.names)} values: {', '.join(row.names)}")
    values = list(plain)
    shown = values[row.names.index(cls.TELLS[0])] if hasattr(cls, "TELLS") else None
    for place, item in row.coded:
        if values[place] is not None:
            values[place] = item.kind.decode(values[place], told_of(cls, item.key, shown), error)
    return cls(*values) if row.positional else cls(**dict(zip(row.names, values, strict=True)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """Holds how a class of rows is written and read.

    Attributes:
        names: Its fields in the order of their labels.
        read: Gives their values.
        coded: The fields whose plain values are not their values, with their places.
        positional: Whether the class takes the fields in this order.
    """

    names: tuple[str, ...]
    read: Callable[[Any], Iterable[Any]]
    coded: tuple[tuple[int, Declared], ...]
    positional: bool


def row_of(cls: type) -> _Row:
    """Returns how a class of rows is written and read."""
    known = _ROWS.get(cls)
    if known is not None:
        return known
    items = sorted(declarations(cls), key=lambda item: item.label)
    names = tuple(item.name for item in items)
    coded = tuple((place, item) for place, item in enumerate(items) if type(item.kind).encode is not Kind.encode)
    positional = tuple(item.name for item in dataclasses.fields(cls) if not item.kw_only) == names
    read: Any = attrgetter(*names) if len(names) > 1 else lambda document: [getattr(document, name) for name in names]
    return _ROWS.setdefault(cls, _Row(names, read, coded, positional))


def _labelled(value: Any, more: tuple[int, ...], items: tuple[Declared, ...], what: str, error: Refused) -> dict[Any, Any]:
    always = {*more, *(item.label for item in items if not item.optional)}
    known = always | {item.label for item in items}
    if type(value) is not dict or not always <= set(value) <= known:
        optional = ", ".join(map(str, sorted(known - always)))
        if not always:
            expected = f"with labels out of {optional}"
        else:
            expected = f"with the labels {', '.join(map(str, sorted(always)))}" + (
                f", and perhaps {optional}" if optional else ""
            )
        raise error("SCHEMA", f"{what} is not a map {expected}")
    return value


def decode_fields(cls: type, plain: dict[Any, Any], error: Refused) -> Any:
    """Reads a document from plain values by their labels; labels of no field are left aside."""
    items = declarations(cls)
    shown = None
    if hasattr(cls, "TELLS"):
        shown = next(plain.get(item.label) for item in items if item.name == cls.TELLS[0])
    values: dict[str, Any] = {}
    for item in items:
        if item.label in plain:
            found = plain[item.label]
            if found is None and not item.optional and (item.nil or item.default is None):
                values[item.name] = None
            else:
                values[item.name] = item.kind.decode(
                    found, told_of(cls, item.name if item.kind.spread else item.key, shown), error
                )
    return cls(**values)
