"""Kinds of single values: how each is checked, signed, written by a person, and shown."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple

from attest.errors import Refused, ValueRefused
from attest.fixed_point import to_fraction
from attest.schema.plain import COMMITMENT_SIZE, IDENTIFIER, MAX_TIME, check_bytes, check_id, check_int
from attest.schema.words import check_among

_MAX_INT = 2**63 - 1
_RATIO = re.compile(r"[1-9][0-9]{0,18}/[1-9][0-9]{0,18}")
_DAY = 86400
_EXACT = Context(prec=60)

Sections = list[tuple[str, list[str]]]
"""Tables of TOML: the head of each with its brackets, and its lines."""


class Told(NamedTuple):
    """Names a value in sentences: its key, and whose it is, such as ``depth.layers`` `` of class sensitive``."""

    key: str
    of: str = ""

    def __str__(self) -> str:
        return self.key + self.of

    def inner(self, key: str) -> "Told":
        """Names a value inside of this one."""
        return Told(f"{self.key}.{key}", self.of)


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds what every reader of one text needs. `places`: keys by the table that they belong to, for whoever wrote one into
    another table."""

    error: Refused
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Kind(ABC):
    """Describes values of one kind. A subclass says `cddl`, checks, and reads and writes them.

    Most subclasses are given these attributes and some compute them; a type checker knows no attribute that may be either.

    Attributes:
        cddl: The value in CDDL.
        unit: Unit of a number as it is signed; empty where it has none.
        spread: Keys of a table that make one value together; empty where a value has one key.
        tables: Class of the documents that are written as tables of their own; None where a value stands behind its key.
        short: Key of such a table that may stand for it where it is all that it says: its value then stands behind the key of
            the table. Empty where there is none.
        fits: Tells at once whether a value is of this kind, of documents that are many; None where `test` or `check` does.
        test: The same as an expression in `value`; empty where `fits` or `check` has to be called.
    """

    cddl: str
    unit: str = ""
    spread: tuple[str, ...] = ()
    short: str = ""
    fits: Callable[[Any], bool] | None = None
    test: str = ""

    @property
    def faithful(self) -> bool:
        """Tells whether `decode` takes nothing but what `encode` gives; else what was read is encoded again and compared."""
        return type(self).encode is Kind.encode

    @property
    def tables(self) -> type | None:
        return None

    @abstractmethod
    def check(self, value: Any, told: Told, error: Refused) -> None:
        """Refuses what is no value of this kind, with code TYPE or RANGE."""

    def encode(self, value: Any) -> Any:
        """Returns the plain value that is signed."""
        return value

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        """Reads a plain value; what it does not refuse the check of the document does."""
        return plain

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        """Reads what TOML gives."""
        return found

    def write(self, value: Any) -> str:
        """Writes a value as TOML takes it on one line. Identifiers, names and patterns hold neither quotes nor backslashes."""
        return f'"{value}"' if type(value) is str else str(value).lower()

    def remark(self, value: Any) -> str:
        """Says what the written value does not; empty if it says all."""
        return ""

    def pairs(self, key: str, value: Any) -> list[tuple[str, str]]:
        """Writes a value behind its key, or each part of it behind the keys of `spread`."""
        return [(key, self.write(value))]

    def sections(self, key: str, value: Any) -> "Sections":
        """Writes a value as tables of its own; nothing where it stands behind its key."""
        return []

    def lines(self, value: Any) -> list[str]:
        """Writes a value as the lines of a table; asked of kinds that have `tables` alone."""
        raise NotImplementedError(f"{type(self).__name__} is written behind its key")

    def json(self, value: Any) -> Any:
        """Returns the value as JSON shows it."""
        return value

    def json_name(self, name: str) -> str:
        """Returns the key under which JSON shows the field of this name."""
        return name

    def json_pairs(self, name: str, value: Any) -> dict[str, Any]:
        """Returns what JSON shows of a field."""
        return {self.json_name(name): None if value is None else self.json(value)}


def tester(kind: Kind) -> Callable[[Any], bool] | None:
    """Returns what tells at once whether a value is of a kind; None where `check` alone does."""
    found: Callable[[Any], bool] | None = eval(f"lambda value: {kind.test}") if kind.test else kind.fits
    return found


@dataclass(frozen=True)
class Given(Kind):
    """Stands for what is in the bytes and is no field."""

    cddl: str

    def check(self, value: Any, told: Told, error: Refused) -> None:
        raise NotImplementedError("what is no field has no value to check")


@dataclass(frozen=True)
class Identifier(Kind):
    """An identifier, as `attest.schema.plain.check_id` takes it."""

    cddl: str = "id"

    def fits(self, value: Any) -> bool:
        return type(value) is str and IDENTIFIER.fullmatch(value) is not None

    def check(self, value: Any, told: Told, error: Refused) -> None:
        check_id(value, str(told), error=error)


@dataclass(frozen=True)
class Schema(Kind):
    """The name of the format of a document, of which a reader knows one."""

    name: str

    @property
    def cddl(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return f'"{self.name}"'

    @property
    def test(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return f"type(value) is str and value == {self.name!r}"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not str:
            raise error("TYPE", f"{told} is {type(value).__name__}, expected text")
        if value != self.name:
            raise error("SCHEMA", f"{told} is {ascii(value)[:80]}, expected {self.name!r}")


@dataclass(frozen=True)
class Word(Kind):
    """One of some words. `no_text`: code of the refusal of what is no text."""

    words: Mapping[str, str]
    no_text: str = "RANGE"

    @property
    def cddl(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return " / ".join(f'"{word}"' for word in self.words)

    def check(self, value: Any, told: Told, error: Refused) -> None:
        check_among(value, self.words, told, error, self.no_text)


@dataclass(frozen=True)
class Text(Kind):
    """Takes text of a form. `example`: a text that does, for the sentence."""

    pattern: re.Pattern[str]
    example: str
    cddl: str

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not str or not self.pattern.fullmatch(value):
            raise error("RANGE", f"{told} is {ascii(value)[:80]}, expected {self.example}")


@dataclass(frozen=True)
class Whole(Kind):
    """Takes a whole number from `low` to `high`. `unit`: what is counted, if that is a unit."""

    low: int
    high: int
    cddl: str
    unit: str = ""

    @property
    def test(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return f"type(value) is int and {self.low} <= value <= {self.high}"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        check_int(value, f"{told} in {self.unit}" if self.unit else str(told), self.low, self.high, error=error)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is int and found < 0 <= self.low:
            raise reading.error("RANGE", f"{told} is {found}, expected a count; leave it out for the default")
        return found


@dataclass(frozen=True)
class Scaled(Kind):
    """Takes a decimal, signed as a count of its last place, so that no rounding enters a comparison. `places`: decimals that a
    person may write."""

    low: int
    high: int
    cddl: str = "micro"
    places: int = 6

    @property
    def unit(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return f"1e-{self.places}"

    @property
    def test(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return f"type(value) is int and {self.low} <= value <= {self.high}"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        check_int(value, f"{told} in {self.unit}", self.low, self.high, error=error)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        scaled = exactly(found, told, reading) * 10**self.places
        if scaled.denominator != 1:
            named = {6: "six", 9: "nine"}.get(self.places, str(self.places))
            step = f"0.{'0' * (self.places - 1)}1"
            raise reading.error("RANGE", f"{told}: {found} has more than {named} decimals, expected a multiple of {step}")
        if not -(2**63) <= scaled.numerator < 2**63:
            raise reading.error("RANGE", f"{told}: {found} does not fit into 64 bits at {self.places} decimals")
        return scaled.numerator

    def write(self, value: Any) -> str:
        return plain_decimal(Decimal(value).scaleb(-self.places))

    def json(self, value: Any) -> Any:
        return value / 10**self.places

    def json_name(self, name: str) -> str:
        return name.removesuffix("_micro").removesuffix("_nano")


@dataclass(frozen=True)
class Days(Kind):
    """A span of time: whole days as a person writes it, seconds as it is signed."""

    high: int
    cddl: str = "seconds"
    unit: str = "seconds"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        check_int(value, f"{told.key.removesuffix('_days')}{told.of} in seconds", 1, self.high, error=error)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is not int:
            raise reading.error("TYPE", f"{told} is {type(found).__name__}, expected whole days")
        return found * _DAY

    def write(self, value: Any) -> str:
        return str(value // _DAY)

    def remark(self, value: Any) -> str:
        return f"exactly {value} seconds" if value % _DAY else ""

    def json_name(self, name: str) -> str:
        return f"{name}_seconds"


@dataclass(frozen=True)
class Exact(Kind):
    """A number as an exact fraction, signed as a reduced pair [numerator, denominator].

    Args:
        above: Whether `low` itself is refused.
        below: Whether `high` itself is refused.
        ratio: Whether a person may write a ratio of whole numbers, in quotes.
    """

    low: Fraction
    high: Fraction
    above: bool = False
    below: bool = False
    ratio: bool = False
    cddl: str = "fraction"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not Fraction:
            raise error("TYPE", f"{told} is {type(value).__name__}, expected an exact Fraction")
        if value.denominator > _MAX_INT or abs(value.numerator) > _MAX_INT:
            raise error("RANGE", f"{told} has too many digits; write at most 18 decimals")
        if not self.low <= value <= self.high or (self.above and value == self.low) or (self.below and value == self.high):
            low, high = (f"{'above' if self.above else 'at least'}", f"{'below' if self.below else 'at most'}")
            expected = f"expected {low} {float(self.low):g} and {high} {float(self.high):g}"
            raise error("RANGE", f"{told} is {float(value):g}, {expected}")

    def encode(self, value: Any) -> Any:
        return [value.numerator, value.denominator]

    def decode(self, plain: Any, told: Told, error: Refused) -> Any:
        if type(plain) is not list or [type(part) for part in plain] != [int, int]:
            raise error("TYPE", f"{told} is not a pair of unsigned integers")
        numerator, denominator = plain
        if numerator < 0 or denominator < 1:
            raise error("RANGE", f"{told} is {numerator}/{denominator}, expected a non-negative fraction")
        # A fraction that is not reduced encodes to other bytes than it came from, and `decode_document` refuses those.
        return Fraction(numerator, denominator)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if self.ratio and type(found) is str:
            if not _RATIO.fullmatch(found):
                sentence = f'{told} is {ascii(found)[:60]}, expected a number, or a ratio of whole numbers: "256/60000"'
                raise reading.error("TYPE", sentence)
            return Fraction(found)
        return exactly(found, told, reading)

    def write(self, value: Any) -> str:
        if self.ratio and (value * 10**18).denominator != 1:
            return f'"{value}"'
        return plain_decimal(_written(value))

    def remark(self, value: Any) -> str:
        return "" if self.ratio or Fraction(_written(value)) == value else f"exactly {value}"

    def json(self, value: Any) -> Any:
        return float(value)


@dataclass(frozen=True)
class Octets(Kind):
    """A byte string of one length, shown in hexadecimal digits."""

    length: int
    cddl: str

    @property
    def test(self) -> str:  # type: ignore[override]  # computed here, see Kind
        return f"type(value) is bytes and len(value) == {self.length}"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        check_bytes(value, str(told), self.length, error=error)

    def read(self, found: Any, told: Told, reading: Reading) -> Any:
        if type(found) is not str or not re.fullmatch("[0-9a-f]*", found) or len(found) != 2 * self.length:
            sentence = f"{told} is {ascii(found)[:80]}, expected {2 * self.length} hexadecimal digits in lower case"
            raise reading.error("TYPE", sentence)
        return bytes.fromhex(found)

    def write(self, value: Any) -> str:
        return f'"{value.hex()}"'

    def json(self, value: Any) -> Any:
        return value.hex()

    def json_pairs(self, name: str, value: Any) -> dict[str, Any]:
        return {name: (value or b"").hex()}


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    cddl: str = "bool"

    def check(self, value: Any, told: Told, error: Refused) -> None:
        if type(value) is not bool:
            raise error("TYPE", f"{told} is {type(value).__name__}, expected true or false")


def exactly(found: Any, told: Told, reading: Reading) -> Fraction:
    """Reads a number of TOML as the exact fraction that was written. Raises AttestError: of class `reading.error`, code TYPE or
    RANGE."""
    if type(found) is not int and type(found) is not Decimal:
        raise reading.error("TYPE", f"{told} is {type(found).__name__}, expected a number without quotes")
    try:
        return to_fraction(found)
    except ValueRefused as error:
        raise reading.error(error.code, f"{told}: {error.sentence}") from error


def _written(value: Fraction) -> Decimal:
    return _EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))


def plain_decimal(value: Decimal) -> str:
    """Writes a decimal as TOML takes it, without zeros at its end."""
    short = value.normalize(_EXACT)
    small = short != 0 and short.adjusted() < -4
    # TOML wants digits on both sides of a point.
    return f"{short:e}".replace("E", "e") if small else f"{short:f}"


ID: Final = Identifier()
MOMENT: Final = Whole(0, MAX_TIME - 1, "moment")
COMMITMENT: Final = Octets(COMMITMENT_SIZE, "commitment")
SHA256: Final = Octets(32, "sha256")
RAW_KEY: Final = Octets(32, "raw-key")


def octets(size: int) -> Octets:
    """Returns the kind of byte strings of one length that have no name in CDDL."""
    return Octets(size, f"bstr .size {size}")
