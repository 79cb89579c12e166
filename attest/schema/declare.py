"""Declarations of the fields of a document: label, kind, default, key in TOML, and the sentence that explains it."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass
from functools import cache
from typing import Any, ClassVar, ParamSpec, TypeVar

from attest.errors import AttestError, Refused
from attest.schema.cards import card_of
from attest.schema.kinds import Given, Kind, Told

P = ParamSpec("P")
T = TypeVar("T")
_NOTE = "declared"
_AS_NAMED = "="
_UNIT = re.compile("_(micro|nano|pico)$")


def once_a_class(make: Callable[[type], T]) -> Callable[[type], T]:
    """Lets a function answer for each class once."""
    return cache(make)


@dataclass(frozen=True, slots=True)
class Declared:
    """Holds what is declared of one field.

    Attributes:
        label: Its key in the CBOR map, or its place in the CBOR array, from 1.
        sentence: What it means, for the table in the documentation.
        key: Its key in TOML, behind the name of its table and a dot; of a value that has several keys the name of their table.
            Where none is declared it is the name of the field, without the unit at its end.
        optional: Whether it is left out of the signed bytes where it has its default. Else it is always there, None as null.
        rule: What else binds it, in short, for the CDDL.
        beside: Key of the field that is written exactly where this one is.
        nil: Whether null is a signed value of it.
        needs: Name of the field that is not null where this one is not. Two that need each other are null together.
    """

    label: int
    kind: Kind
    sentence: str = ""
    _: KW_ONLY
    name: str = ""
    key: str = _AS_NAMED
    written: bool = True
    default: Any = dataclasses.field(default_factory=lambda: MISSING)
    optional: bool = False
    shown: str | None = None
    rule: str = ""
    beside: str | None = None
    nil: bool = False
    needs: str | None = None
    secret: bool = False

    @property
    def required(self) -> bool:
        """Tells whether a person has to write it."""
        return self.default is MISSING

    def at_default(self, value: Any) -> bool:
        """Tells whether a value is the default, which bytes leave out where the field is optional."""
        return not self.required and type(value) is type(self.default) and value == self.default


def _as_field(declare: Callable[P, Declared]) -> Callable[P, Any]:
    def declared(*args: P.args, **said: P.kwargs) -> Any:
        """Declares a field of a frozen dataclass; arguments as the attributes of `Declared`."""
        note = declare(*args, **said)
        return dataclasses.field(default=note.default, repr=not note.secret, metadata={_NOTE: note})

    return declared


declared = _as_field(Declared)


def derived(label: int, name: str, cddl: str, sentence: str) -> Declared:
    """Declares what stands in the bytes under a label and is no field, since it is always the same or follows from others.

    A class names them in `DERIVED`.
    """
    return Declared(label, Given(cddl), sentence, name=name, key=name, written=False)


@once_a_class
def declarations(cls: type) -> tuple[Declared, ...]:
    """Returns the declared fields of a class, in the order in which they are written."""
    found = []
    for item in dataclasses.fields(cls):
        note = item.metadata.get(_NOTE)
        if note is not None:
            key = _UNIT.sub("", item.name) if note.key == _AS_NAMED else note.key
            found.append(dataclasses.replace(note, name=item.name, key=key))
    labels = [item.label for item in found]
    if len(set(labels)) != len(labels):
        raise TypeError(f"two fields of {cls.__name__} have one label")
    return tuple(found)


def told_of(cls: type, key: str, shown: Any, outer: Told | None = None) -> Told:
    """Names a field in sentences.

    Args:
        key: Its key.
        shown: What tells this document from others of its class, if `TELLS` of the class names such a field.
        outer: Name of the document in the one around it.
    """
    of = cls.TELLS[1].format(ascii(shown).strip("'")[:80]) if hasattr(cls, "TELLS") else getattr(cls, "OF", "")
    if outer is not None:
        return Told(f"{outer.key}.{key}" if not of else key, of + outer.of)
    return Told(f"{getattr(cls, 'PREFIX', '')}{key}", of)


def check_fields(document: Any, error: Refused, cls: type | None = None) -> None:
    """Checks every field of a document by itself; rules over several fields are the document's own.

    Guarantee: on return every value has exactly the type of its kind and lies in its range, or is None where that is the
    default or null is signed, and what it needs is there.

    Raises:
        Exception: Made by `error`, code TYPE or RANGE, or that of a kind.
    """
    cls = cls or type(document)
    if _fits(cls)(document):
        return
    shown = getattr(document, cls.TELLS[0]) if hasattr(cls, "TELLS") else None
    needed = [item.needs for item in declarations(cls) if item.needs and getattr(document, item.name) is not None]
    for item in sorted(declarations(cls), key=lambda item: item.label):  # of two faults, readers name the same one
        value = getattr(document, item.name)
        if value is None and (item.default is None or item.nil) and item.name not in needed:
            continue
        key = item.name if item.kind.spread else item.key
        item.kind.check(value, told_of(cls, key, shown), error)


class Checked:
    """A declared document whose fields are checked when it is made; a class of them is a frozen dataclass.

    Raises:
        AttestError: Of class `ERROR`, code TYPE or RANGE.
    """

    __slots__ = ()
    ERROR: ClassVar[type[AttestError]]
    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_fields(self, self.ERROR)


def check_by_word(document: Any, error: Refused) -> None:
    """Checks that a document states what goes with one of its words, and nothing that does not.

    Its class says so in `BY_WORD`: the name of the field with the word, and for every word the name of its rule in CDDL and
    what it says of the fields that may be null, ``always`` there or ``never``; of any other it says nothing.

    Raises:
        Exception: Made by `error`, code TYPE for what is missing, SCHEMA for what does not belong there.
    """
    cls = type(document)
    word = getattr(document, cls.BY_WORD[0])
    for name, stated in cls.BY_WORD[1][word][1].items():
        value = getattr(document, name)
        if value is None and stated == "always":
            raise error("TYPE", f"{told_of(cls, name, None)} is null, and {word!r} takes one")
        if value is not None and stated == "never":
            raise error("SCHEMA", f"{told_of(cls, name, None)} is stated, and {word!r} takes none; expected null")


@once_a_class
def _fits(cls: type) -> Callable[[Any], bool]:
    """Returns a function that tells whether all fields of a document of a class fit; False leaves it to their checks.

    It is compiled from the tests of the kinds, as `dataclasses` compiles its methods: a ledger has millions of leaves, and a
    call for each field would take a quarter of the time in which one is read. Declarations alone go into the source, no value.
    """
    names: dict[str, Any] = {}
    tests = []
    for item in declarations(cls):
        nil = item.default is None or item.nil
        if item.kind.fits is None and not item.kind.test:
            if not nil:
                return lambda document: False
            tests.append(f"document.{item.name} is None")
            continue
        names[f"fits_{item.name}"] = item.kind.fits
        test = item.kind.test or f"fits_{item.name}(value)"
        tests.append(f"((value := document.{item.name}) is {'None or' if nil else 'not None and'} {test})")
        if item.needs is not None:
            tests.append(f"(value is None or document.{item.needs} is not None)")
    found: Callable[[Any], bool] = eval(f"lambda document: {' and '.join(tests)}", names)
    return found
