"""Writes and reads declared documents as CBOR: maps with unsigned keys, and rows, which are arrays of fields; both strictly.

`Payload` gives every document that is signed by itself its check, its bytes, and a strict reader of them.
"""

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar, Self

from attest import cbor
from attest.errors import CborError, Refused
from attest.schema.declare import Checked, Declared, declarations, once_a_class, told_of
from attest.schema.kinds import Kind, Told


def encode_document(document: Any, schema: str) -> bytes:
    """Returns the bytes that are signed. Label 1 is the schema."""
    return cbor.encode({1: schema} | encode_map(document))


def encode_map(document: Any, cls: type | None = None) -> dict[int, Any]:
    """Returns a document as a map of plain values: optional fields at their default are left out, None else is null. `cls`:
    whose fields are written, of a document that has those of two; its own class where None."""
    form = map_of(cls or type(document))
    plain = dict(zip(form.labels, form.read(document), strict=True))
    for item in form.optional:
        value = plain[item.label]
        if value is item.default or item.at_default(value):
            del plain[item.label]
    for item in form.coded:
        if plain.get(item.label) is not None:
            plain[item.label] = item.kind.encode(plain[item.label])
    return plain


def encode_row(document: Any) -> list[Any]:
    """Returns a document as an array of plain values, in the order of its labels."""
    row = row_of(type(document))
    values = list(row.read(document))
    for place, item in row.coded:
        if values[place] is not None:
            values[place] = item.kind.encode(values[place])
    return values


def decode_document(
    cls: type,
    data: bytes,
    *,
    what: str,
    error: Refused,
    max_size: int,
    schema: str = "",
    codes: tuple[str, str] = ("SCHEMA", "SCHEMA"),
    make: Callable[..., Any] | None = None,
) -> Any:
    """Reads a document strictly.

    Guarantee: an accepted byte string is exactly what the fields of the result encode to.

    Args:
        cls: Its class, or the class of the fields that stand in the bytes.
        schema: Schema that label 1 has to name; empty where a field does.
        codes: How something else than a map is refused, and a map with other labels than those of the fields.
        make: Makes the document from the values of the fields by name; its class where None.

    Raises:
        Exception: Made by `error`, with the code of the strict decoder, or SCHEMA, TYPE, RANGE or that of a rule.
    """
    try:
        value = cbor.decode(data, max_size=max_size)
    except CborError as refused:
        raise error(refused.code, f"{what} is not strict CBOR: {refused.sentence}") from refused
    plain = _labelled(value, schema, cls, what, error, codes)
    if schema and plain[1] != schema:
        raise error("SCHEMA", f"{what} schema is {ascii(plain[1])[:60]}, expected {schema!r}; another version wrote it")
    document = (make or cls)(**decode_values(cls, plain, error))
    if not _is_encoded(document, cls, plain):
        raise error("CBOR_NONCANONICAL", f"{what} does not encode to the bytes received")
    return document


def _is_encoded(document: Any, cls: type, plain: dict[int, Any]) -> bool:
    """Tells whether the fields of a document encode to the map from which they were read.

    The decoder takes one encoding of a value, and fields have exact types by now: equal maps are equal bytes. Where plain
    values are the values themselves, a map can differ only by a field at its default that it does not leave out.
    """
    form = map_of(cls)
    if any(item.label in plain for item in form.lossy):
        return encode_map(document, cls) == {label: value for label, value in plain.items() if label in form.known}
    return not any(item.label in plain and item.at_default(getattr(document, item.name)) for item in form.optional)


def decode_map(cls: type, plain: Any, what: str, error: Refused) -> Any:
    """Reads a document that is a map inside of another one."""
    return decode_fields(cls, _labelled(plain, "", cls, what, error), error)


def decode_row(cls: type, plain: Any, what: str, error: Refused, *, code: str = "TYPE") -> Any:
    """Reads a document that is an array of its fields. `code`: how something else than an array of as many values is refused.
    """
    row = row_of(cls)
    if type(plain) is not list or len(plain) != len(row.names):
        raise error(code, f"{what} is not an array of {len(row.names)} values: {', '.join(row.names)}")
    if row.positional and not row.coded:
        return cls(*plain)
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
        coded: The fields whose plain values are not their values, with their places.
        positional: Whether the class takes the fields in this order.
    """

    names: tuple[str, ...]
    read: Callable[[Any], Iterable[Any]]
    coded: tuple[tuple[int, Declared], ...]
    positional: bool


@once_a_class
def row_of(cls: type) -> _Row:
    """Returns how a class of rows is written and read."""
    items = sorted(declarations(cls), key=lambda item: item.label)
    names = tuple(item.name for item in items)
    coded = tuple((names.index(item.name), item) for item in _coded(items))
    positional = tuple(item.name for item in dataclasses.fields(cls) if not item.kw_only) == names
    return _Row(names, _reads(names), coded, positional)


@dataclasses.dataclass(frozen=True, slots=True)
class _Map:
    """Holds how a class of maps is written and read.

    Attributes:
        coded: The fields whose plain values are not their values.
        told: Names of these in sentences; None where they say too which document of its class it is.
        lossy: Those of them that may be read from other plain values than they are written as.
        null: Labels under which null may stand for None.
        always: Labels that are never left out.
    """

    labels: tuple[int, ...]
    names: tuple[str, ...]
    read: Callable[[Any], Iterable[Any]]
    coded: tuple[Declared, ...]
    told: tuple[Told, ...] | None
    lossy: tuple[Declared, ...]
    optional: tuple[Declared, ...]
    null: frozenset[int]
    always: frozenset[int]
    known: frozenset[int]


@once_a_class
def map_of(cls: type) -> _Map:
    """Returns how a class of maps is written and read."""
    items = sorted(declarations(cls), key=lambda item: item.label)
    optional = tuple(item for item in items if item.optional)
    null = frozenset(item.label for item in items if not item.optional and (item.nil or item.default is None))
    always = frozenset(item.label for item in items if not item.optional)
    labels, names = tuple(item.label for item in items), tuple(item.name for item in items)
    coded = _coded(items)
    lossy = tuple(item for item in coded if not item.kind.faithful)
    told = None if hasattr(cls, "TELLS") else _told(cls, coded)
    return _Map(labels, names, _reads(names), coded, told, lossy, optional, null, always, frozenset(labels))


def _reads(names: tuple[str, ...]) -> Callable[[Any], Iterable[Any]]:
    """Returns what gives the values of fields of a document."""
    read: Any = attrgetter(*names) if len(names) > 1 else lambda document: [getattr(document, name) for name in names]
    return read


def _coded(items: Iterable[Declared]) -> tuple[Declared, ...]:
    return tuple(item for item in items if type(item.kind).encode is not Kind.encode)


def _labelled(
    value: Any, schema: str, cls: type, what: str, error: Refused, codes: tuple[str, str] = ("SCHEMA", "SCHEMA")
) -> dict[Any, Any]:
    """Refuses what is no map with the labels of a class, and 1 where a schema has to stand there."""
    form = map_of(cls)
    if type(value) is not dict:
        raise error(codes[0], f"{what} is {type(value).__name__}, expected a map")
    always, known = (form.always | {1}, form.known | {1}) if schema else (form.always, form.known)
    if not always <= value.keys() <= known:
        optional = ", ".join(map(str, sorted(known - always)))
        if not always:
            expected = f"with labels out of {optional}"
        else:
            expected = f"with the labels {', '.join(map(str, sorted(always)))}" + (
                f", and perhaps {optional}" if optional else ""
            )
        raise error(codes[1], f"{what} is not a map {expected}")
    return value


def decode_fields(cls: type, plain: dict[Any, Any], error: Refused) -> Any:
    """Reads a document from plain values by their labels; labels of no field are left aside."""
    return cls(**decode_values(cls, plain, error))


def decode_values(cls: type, plain: dict[Any, Any], error: Refused) -> dict[str, Any]:
    """Reads the values of fields by name, as `decode_fields` does; what makes the document checks them."""
    form = map_of(cls)
    values = {name: plain[label] for label, name in zip(form.labels, form.names, strict=True) if label in plain}
    if not form.coded:
        return values
    told = form.told if form.told is not None else _told(cls, form.coded, values.get(cls.TELLS[0]))  # type: ignore[attr-defined]
    for item, name in zip(form.coded, told, strict=True):
        found = values.get(item.name)
        if item.name in values and not (found is None and item.label in form.null):
            values[item.name] = item.kind.decode(found, name, error)
    return values


def _told(cls: type, items: Iterable[Declared], shown: Any = None) -> tuple[Told, ...]:
    """Returns the names of fields in sentences."""
    return tuple(told_of(cls, item.name if item.kind.spread else item.key, shown) for item in items)


class Payload(Checked):
    """A declared document that is signed by itself: a map with its schema at label 1, and its fields from label 2 on.

    A class of them is a frozen dataclass. Rules over several fields go into its `__post_init__`, behind `check_fields`.

    Raises:
        AttestError: Of class `ERROR`, code TYPE or RANGE, or that of a rule of its own.
    """

    __slots__ = ()
    SCHEMA: ClassVar[str]
    CDDL: ClassVar[str]
    WHAT: ClassVar[str]
    MAX_SIZE: ClassVar[int] = cbor.MAX_SIZE
    OF: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """Says in sentences whose field one is."""
        super().__init_subclass__(**options)
        cls.OF = cls.__dict__.get("OF", f" of the {cls.WHAT}")

    def to_cbor(self) -> bytes:
        """Returns the bytes that are signed."""
        return encode_document(self, self.SCHEMA)

    @classmethod
    def from_cbor(cls, data: bytes) -> Self:
        """Reads a document strictly.

        Guarantee: an accepted byte string is exactly `to_cbor()` of the result.

        Raises:
            AttestError: Of class `ERROR`, with the code of the strict decoder, SCHEMA, or one of the class.
        """
        found: Self = decode_document(cls, data, schema=cls.SCHEMA, what=cls.WHAT, error=cls.ERROR, max_size=cls.MAX_SIZE)
        return found
