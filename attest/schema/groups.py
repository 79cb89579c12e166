"""Kinds of values that are made of values: lists, tables, parts with names, and a word with its parameters."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from attest.errors import Refused
from attest.schema import text, wire
from attest.schema.declare import declarations
from attest.schema.kinds import Exact, Kind, Reading, Sections, Told, tester
from attest.schema.words import check_among


class Several(Kind):
    """Values of one kind, signed as an array of them; `code` refuses what is none."""

    kind: Kind
    code: str = "TYPE"

    def encode(self, value: Any) -> Any:
        return [self.kind.encode(item) for item in value]

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        if type(plain) is not list:
            raise error(self.code, f"{told} is {type(plain).__name__}, expected an array")
        return tuple(self.kind.decode(item, told, error) for item in plain)


@dataclass(frozen=True)
class Many(Several):
    """Several values of one kind, as a tuple.

    Args:
        empty: Whether the field is an empty tuple where nothing is stated.
        named: Name of the list in CDDL, where it is said once for several fields or stands in an array.
        counted: How another number of them is refused.
    """

    kind: Kind
    least: int
    most: int
    what: str
    ascending: bool = False
    empty: bool = False
    distinct: bool = True
    named: str = ""
    counted: str = "TYPE"

    @property
    def cddl(self) -> str:  # type: ignore[override]  # computed here, see Kind
        if self.named:
            return self.named
        inner = self.kind.cddl
        return f"[{self.least}*{self.most} {f'({inner})' if ' / ' in inner else inner}]"

    @property
    def tables(self) -> type | None:
        return self.kind.tables

    @property
    def short(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return self.kind.short

    @property
    def faithful(self) -> bool:
        return self.kind.faithful

    @cached_property
    def fits(self) -> Callable[[Any], bool] | None:  # type: ignore[override]  # computed here, see Kind
        each, least = tester(self.kind), 0 if self.empty else self.least
        if each is None:
            return None
        return lambda value: (
            type(value) is tuple
            and least <= len(value) <= self.most
            and all(map(each, value))
            and (not self.ascending or all(a < b for a, b in itertools.pairwise(value)))
            and (not self.distinct or len(set(value)) == len(value))
        )

    def check(self, value: Any, told: Told, error: Refused) -> None:
        least = 0 if self.empty else self.least
        if type(value) is not tuple or not least <= len(value) <= self.most:
            found = f"{len(value)} of them" if type(value) is tuple else type(value).__name__
            code = self.counted if type(value) is tuple else "TYPE"
            raise error(code, f"{told} is {found}, expected a list of {self.least} to {self.most} {self.what}")
        for item in value:
            self.kind.check(item, Told(f"{told.key} entry", told.of), error)
        if self.ascending and any(a >= b for a, b in itertools.pairwise(value)):
            raise error("RANGE", f"{told} is not strictly ascending; sort it and drop repetitions")
        if self.distinct and len(set(value)) != len(value):
            raise error("RANGE", f"{told} names one of its {self.what} twice")

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        # What is no array is left to the check of the document, in the order of its fields.
        return super().decode(plain, told, error) if type(plain) is list else plain

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if self.tables is None:
            if type(found) is not list:
                raise reading.error("TYPE", f"{told} is {type(found).__name__}, expected a list in brackets")
            return tuple(self.kind.read(item, told, reading) for item in found)
        if self.short and type(found) is str:
            return (self.kind.read({self.short: found}, Told(f"[[{told}]]"), reading),)
        if type(found) is not list or not found:
            sentence = f"{told} is not an array of tables; write [[{told}]] with double brackets, or leave it out"
            raise reading.error("TYPE", sentence)
        return tuple(self.kind.read(item, Told(f"[[{told}]]"), reading) for item in found)

    def write(self, value: Any) -> str:
        return f"[{', '.join(map(self.kind.write, value))}]"

    def pairs(self, key: str, value: Any) -> list[tuple[str, str]]:
        return self.kind.pairs(key, value[0]) if self._in_short(value) else super().pairs(key, value)

    def sections(self, key: str, value: Any) -> Sections:
        if self.tables is None or self._in_short(value):
            return []
        return [(f"[[{key}]]", self.kind.lines(item)) for item in value]

    def _in_short(self, value: Any) -> bool:
        """Tells whether one word behind the key says all."""
        return bool(self.short) and len(value) == 1 and len(self.kind.lines(value[0])) == 1

    def json(self, value: Any) -> Any:
        return [self.kind.json(item) for item in value]


@dataclass(frozen=True)
class Inline(Kind):
    """A document inside of another, written on one line in braces.

    Args:
        example: How it is written, for the sentence.
        row: Whether an array of its fields is signed, in place of a map.
    """

    cls: type
    cddl: str
    what: str
    example: str = "{ ... }"
    row: bool = False

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not self.cls:
            raise error("TYPE", f"{told} is {type(value).__name__}, expected a {self.cls.__name__}")

    def encode(self, value: Any) -> Any:
        if not self.row:
            return wire.encode_map(value)
        return wire.encode_row(value)

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        read = wire.decode_row if self.row else wire.decode_map
        return read(self.cls, plain, self.what, error)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is not dict:
            raise reading.error("TYPE", f"{told} is not a table such as {self.example}")
        return text.read_table(self.cls, found, str(told), reading, told)

    def write(self, value: Any) -> str:
        return text.write_inline(value)[0]

    def remark(self, value: Any) -> str:
        return text.write_inline(value)[1]

    def json(self, value: Any) -> Any:
        return text.stated_json(value)


@dataclass(frozen=True)
class Tables(Inline):
    """A document inside of another, written as a table of its own under a head in double brackets."""

    @property
    def tables(self) -> type | None:
        return self.cls

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is not dict:
            raise reading.error("TYPE", f"{told.key.strip('[]')} is not a table; write {told} followed by its keys")
        return text.read_table(self.cls, found, str(told), reading)

    def lines(self, value: Any) -> list[str]:
        return text.write_lines(value)

    def json(self, value: Any) -> Any:
        return text.stated_json(value) if self.row else text.as_json(value)


@dataclass(frozen=True)
class Coded(Kind):
    """A document of one of some classes, signed as an array: the code of its class, then its fields."""

    classes: tuple[type, ...]
    cddl: str
    what: str

    @property
    def faithful(self) -> bool:
        return not any(wire.row_of(cls).coded for cls in self.classes)

    def fits(self, value: Any) -> bool:
        return type(value) in self.classes

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) not in self.classes:
            raise error("TYPE", f"{told} is {type(value).__name__}, expected an {self.what}")

    def encode(self, value: Any) -> Any:
        return [value.CODE, *wire.encode_row(value)]

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        if type(plain) is not list or not plain or type(plain[0]) is not int or not 0 <= plain[0] < len(self.classes):
            expected = f"expected an array that begins with 0 to {len(self.classes) - 1}"
            raise error("SCHEMA", f"{self.what} is {ascii(plain)[:60]}, {expected}")
        code, *values = plain
        return wire.decode_row(self.classes[code], values, self.what, error, code="SCHEMA")


@dataclass(frozen=True)
class Parts(Several):
    """A fixed number of values of one kind, each with a name: a tuple, written as a table of the names."""

    names: tuple[str, ...]
    kind: Kind
    cddl: str
    what: str

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not tuple or len(value) != len(self.names):
            raise error("TYPE", f"{told} is not {self.what}")
        for name, item in zip(self.names, value, strict=True):
            self.kind.check(item, told.inner(name), error)

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        if type(plain) is not list or len(plain) != len(self.names):
            raise error("TYPE", f"{told} is not an array of {self.what}")
        return tuple(self.kind.decode(item, told.inner(name), error) for name, item in zip(self.names, plain, strict=True))

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is not dict:
            raise reading.error("TYPE", f"{told} is not a table; write [{told}] followed by its keys")
        text.check_keys(found, self.names, self.names, f"[{told}]", reading)
        return tuple(self.kind.read(found[name], told.inner(name), reading) for name in self.names)

    def sections(self, key: str, value: Any) -> Sections:
        return [(f"[{key}]", [f"{name} = {self.kind.write(item)}" for name, item in zip(self.names, value, strict=True)])]

    def json(self, value: Any) -> Any:
        return {name: self.kind.json(item) for name, item in zip(self.names, value, strict=True)}


@dataclass(frozen=True)
class Band(Several):
    """Two fractions, from less to more, each with a key of its own."""

    keys: tuple[str, str]
    kind: Exact = Exact(Fraction(0), Fraction(1))
    cddl: str = "[fraction, fraction]"

    @property
    def spread(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here, see Kind
        return self.keys

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not tuple or len(value) != 2:
            raise error("TYPE", f"{told} is not a pair ({', '.join(self.keys)})")
        for name, item in zip(self.keys, value, strict=True):
            self.kind.check(item, Told(f"{told.key.rpartition('.')[0]}.{name}".lstrip("."), told.of), error)
        if not value[0] < value[1]:
            low, high = self.keys
            raise error("RANGE", f"{told} runs from {value[0]} to {value[1]}, expected 0 <= {low} < {high} <= 1")

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if len(found) != len(self.keys):
            low, high = self.keys
            raise reading.error("KEY", f"{told.key.strip('.')}{told.of} has only one of {low} and {high}; give both")
        return tuple(self.kind.read(found[name], told.inner(name), reading) for name in self.keys)

    def pairs(self, key: str, value: Any) -> list[tuple[str, str]]:
        return [(name, self.kind.write(item)) for name, item in zip(self.keys, value, strict=True)]

    def remark(self, value: Any) -> str:
        told = [(name, self.kind.remark(item)) for name, item in zip(self.keys, value, strict=True)]
        return ", ".join(f"{name}: {remark}" for name, remark in told if remark)

    def json_pairs(self, name: str, value: Any) -> dict[str, Any]:
        return dict(zip(self.keys, map(self.kind.json, value), strict=True)) if value is not None else {}


@dataclass(frozen=True)
class Named(Kind):
    """A word with its parameters, and what else belongs to it: signed as an array [word, parameters, ...].

    The class of the value has the fields `name` and `parameters` at first, in this order, and perhaps more, which are declared.
    Its `PARAMETERS` maps every word to the class of its parameters, None for a word that takes none.

    Args:
        cddl: Its name in CDDL.
        word: Key of the word, as a person writes it.
        shown: Prefix of the keys under which JSON shows it; the word itself has ``word``.
    """

    cls: Any
    cddl: str
    word: str
    shown: str

    @property
    def spread(self) -> tuple[str, ...]:  # type: ignore[override]  # computed here, see Kind
        return (self.word, "parameters", *(item.key for item in declarations(self.cls)))

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not self.cls:
            raise error("TYPE", f"{told} is {type(value).__name__}, expected a {self.cls.__name__}")

    def encode(self, value: Any) -> Any:
        parameters = {} if value.parameters is None else wire.encode_map(value.parameters)
        more = wire.encode_row(value)
        return [value.name, parameters, *more]

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        items = declarations(self.cls)
        names = ["name", "parameters", *(item.name for item in items)]
        if type(plain) is not list or len(plain) != len(names):
            raise error("TYPE", f"{told} is not an array of {len(names)} values: {', '.join(names)}")
        cls = self._parameters(plain[0], told, error)
        if cls is None and plain[1] != {}:
            raise error("SCHEMA", f"{told} {plain[0]} has parameters, and takes none")
        parameters = None if cls is None else wire.decode_map(cls, plain[1], f"parameters of {told} {plain[0]}", error)
        more = {
            item.name: None if found is None and item.nil else item.kind.decode(found, told.inner(item.key), error)
            for item, found in zip(items, plain[2:], strict=True)
        }
        return self.cls(plain[0], parameters, **more)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if self.word not in found:
            raise reading.error("KEY", f"[{told}] lacks {self.word}, to which {', '.join(found)} would belong")
        cls = self._parameters(found[self.word], told, reading.error)
        parameters = None
        if "parameters" in found:
            inner = told.inner("parameters")
            if cls is None:
                raise reading.error("KEY", f"{told.inner(self.word)} {found[self.word]!r} takes no parameters; leave them out")
            if type(found["parameters"]) is not dict:
                raise reading.error("TYPE", f"{inner} is not a table; write [{inner}] followed by its keys")
            parameters = text.read_table(cls, found["parameters"], f"[{inner}]", reading, inner)
        elif cls is not None:
            parameters = text.read_table(cls, {}, f"[{told}.parameters]", reading, told.inner("parameters"))
        more = {
            item.name: item.kind.read(found[item.key], told.inner(item.key), reading)
            for item in declarations(self.cls)
            if item.key in found
        }
        return self.cls(found[self.word], parameters, **more)

    def _parameters(self, name: Any, told: Told, error: Refused) -> type | None:
        known = self.cls.PARAMETERS
        check_among(name, known, Told(f"{self.shown}.{self.word}", told.of), error)
        found: type | None = known[name]
        return found

    def pairs(self, key: str, value: Any) -> list[tuple[str, str]]:
        found = [(self.word, f'"{value.name}"')]
        if value.parameters is not None:
            found.append(("parameters", text.write_inline(value.parameters)[0]))
        for item in declarations(self.cls):
            more = getattr(value, item.name)
            if more is not None:
                found.append((item.key, item.kind.write(more)))
        return found

    def json(self, value: Any) -> Any:
        shown = {self.word: value.name, "parameters": None if value.parameters is None else text.stated_json(value.parameters)}
        for item in declarations(self.cls):
            more = getattr(value, item.name)
            shown[item.key] = None if more is None else item.kind.json(more)
        return shown

    def json_pairs(self, name: str, value: Any) -> dict[str, Any]:
        return {f"{self.shown}_{key}": shown for key, shown in self.json(value).items()}


@dataclass(frozen=True)
class NamedTables(Named):
    """A `Named` value that is written as a table of its own under a head in double brackets; one that is a word and nothing
    else, as that word."""

    @property
    def tables(self) -> type | None:
        return self.cls

    @property
    def short(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return self.word

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is not dict:
            raise reading.error("TYPE", f"{told.key.strip('[]')} is not a table; write {told} followed by its keys")
        text.check_keys(found, self.spread, (self.word,), str(told), reading)
        return super().read(found, Told(told.key.strip("[]")), reading)

    def pairs(self, key: str, value: Any) -> list[tuple[str, str]]:
        found = super().pairs(key, value)
        return [(key, written) for _, written in found] if key and len(found) == 1 else found

    def lines(self, value: Any) -> list[str]:
        return [f"{name} = {written}" for name, written in self.pairs("", value)]
