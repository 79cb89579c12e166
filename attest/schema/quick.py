"""Kinds of values of which very many are read: one test tells whether a value is of the kind, and one code refuses what is not.

They are those of leaves, of which a ledger has millions. No person writes them, so they have no form in TOML.
"""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from attest.errors import Refused
from attest.schema import wire
from attest.schema.groups import Several
from attest.schema.kinds import Kind, Told


class Quick(Kind):
    """Checks a kind that one test tells. `code`: how anything else is refused."""

    fits: Callable[[Any], bool]
    type: type[Any]
    code: str = "TYPE"
    expected: str

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if not self.fits(value):
            raise error(self.code, f"{told}: expected {self.expected}, got {found(value)}")


class Tested(Quick):
    """A quick kind of one of Python's own types, with a test that is an expression; see `Kind`."""

    def __init__(self, cddl: str, expected: str, test: str = "True") -> None:
        self.cddl, self.expected, self.test = cddl, expected, f"type(value) is {self.type.__name__} and {test}"
        self.fits = eval(f"lambda value: {self.test}")


class Count(Tested):
    """Takes a whole number from `low` to `high`, in a unit."""

    type = int
    code = "RANGE"

    def __init__(self, low: int, high: int, cddl: str, unit: str = "") -> None:
        self.unit = unit
        super().__init__(cddl, f"an integer in {low}..{high}" + (f" in {unit}" if unit else ""), f"{low} <= value <= {high}")


class Real(Tested):
    """A finite double of at least 0, signed in the shortest width that holds it."""

    type = float
    code = "RANGE"

    def __init__(self) -> None:
        super().__init__("float", "a finite float of at least 0", f"0.0 <= value <= {sys.float_info.max!r}")


class Truth(Tested):
    """True or false."""

    type = bool

    def __init__(self) -> None:
        super().__init__("bool", "true or false")


class Blob(Tested):
    """A byte string: of any length, of one, or of a length from one to another."""

    type = bytes

    def __init__(self, cddl: str, size: int | None = None, longest: int | None = None) -> None:
        most = size if longest is None else longest
        told = "bytes" if size is None else f"{size} bytes" if most == size else f"{size} to {most} bytes"
        super().__init__(cddl, told, "True" if size is None else f"{size} <= len(value) <= {most}")


class Text(Tested):
    """Text: any, or of 1 character to `longest`."""

    type = str

    def __init__(self, cddl: str = "tstr", longest: int | None = None, code: str = "TYPE") -> None:
        self.code = code
        expected = "text" if longest is None else f"text of 1 to {longest} characters"
        super().__init__(cddl, expected, "True" if longest is None else f"1 <= len(value) <= {longest}")


class Spelled(Quick):
    """Text that a pattern matches whole; `expected` says in words what it matches."""

    type = str

    def __init__(self, pattern: str, expected: str, cddl: str, code: str = "TYPE") -> None:
        matches = re.compile(pattern).fullmatch
        self.cddl, self.expected, self.code = cddl, expected, code
        self.fits = lambda value: type(value) is str and matches(value) is not None


class OneOf(Quick):
    """One of some words."""

    type = str

    def __init__(self, words: Sequence[str], code: str, cddl: str = "") -> None:
        self.code, self.expected = code, " or ".join(words)
        self.cddl = cddl or " / ".join(f'"{word}"' for word in words)
        self.fits = lambda value: type(value) is str and value in words


class Held(Quick):
    """A value of a class that is written and read by functions of its own."""

    def __init__(self, cls: type[Any], cddl: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        self.type, self.cddl, self.expected = cls, cddl, f"a {cls.__name__}"
        self.fits = lambda value: type(value) is cls
        self._encode, self._decode = encode, decode

    def encode(self, value: Any) -> Any:
        return self._encode(value)

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        return self._decode(plain)


class Row(Quick):
    """A document inside of another, signed as an array of its fields; `code` refuses an array that is none."""

    def __init__(self, cls: type[Any], code: str = "SCHEMA") -> None:
        self.type, self.cddl, self.expected, self.code = cls, cls.CDDL, f"a {cls.__name__}", code
        self.fits = lambda value: type(value) is cls

    def encode(self, value: Any) -> Any:
        return wire.encode_row(value)

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        return wire.decode_row(self.type, plain, f"a row in {told}", error, code=self.code)


class Array(Several):
    """Several values of one quick kind, as a tuple.

    Args:
        most: How many there are at most; more are refused with code RANGE.
        ascending: Whether they ascend, none twice; else they are refused with code ORDER.
        named: Name of the list in CDDL, where it is said by itself.
    """

    def __init__(
        self,
        kind: Quick,
        least: int = 0,
        most: int | None = None,
        *,
        ascending: bool = False,
        code: str = "TYPE",
        named: str = "",
    ) -> None:
        self.kind: Quick = kind
        self.code = code
        self._least, self._most, self._ascending = least, most, ascending
        self.unit = kind.unit
        self.cddl = named or f"[{least or ''}*{most or ''} {kind.cddl}]"
        self.fits = lambda value: (
            type(value) is tuple
            and least <= len(value)
            and (most is None or len(value) <= most)
            and all(map(kind.fits, value))
            and (not ascending or all(a < b for a, b in pairwise(value)))
        )

    def check(self, value: Any, told: Told, error: Refused) -> None:
        kind = self.kind
        if type(value) is not tuple or len(value) < self._least or any(type(item) is not kind.type for item in value):
            named = f"at least {self._least} {kind.type.__name__}"
            raise error("TYPE", f"{told}: expected a list of {named}, got {found(value)}")
        if self._most is not None and len(value) > self._most:
            raise error("RANGE", f"{told}: expected at most {self._most} of them, got {len(value)}")
        for item in value:
            kind.check(item, told, error)
        if self._ascending and any(a >= b for a, b in pairwise(value)):
            raise error("ORDER", f"{told}: expected each once, in ascending order")


def found(value: Any) -> str:
    """Says what was found, in at most 80 characters of its own."""
    if type(value) is bytes:
        return f"{len(value)} bytes"
    return f"{value!r:.80}" if value is None or type(value) is int else f"{type(value).__name__} {value!r:.80}"
