"""Kinds of the fields of leaves and of what stands beside them, and the base of all that is declared with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

from attest.errors import AttestError
from attest.fixed_point import PICO
from attest.schema import Declared, check_fields, declared, derived, plain
from attest.schema.cards import card_of
from attest.schema.plain import EARLIEST, MAX_TIME
from attest.schema.quick import Blob, Count, Real, Spelled, Text, Truth
from ledger.errors import AccountantError, LeafRefused, NoteError, TrustError

MAX_UINT: Final = (1 << 63) - 1
REASON: Final = 200
"""Most characters of a reason in words: why statement A is weaker, or why the clock was set back."""

UINT: Final = Count(0, MAX_UINT, "uint63")
ABOVE_0: Final = Count(1, MAX_UINT, "above0")
MICRO: Final = Count(0, MAX_UINT, "uint63", "1e-6")
MICRO_ABOVE_0: Final = Count(1, MAX_UINT, "above0", "1e-6")
PICO_BELOW_1: Final = Count(0, PICO - 1, f"0..{PICO - 1}", "1e-12")
MOMENT: Final = Count(EARLIEST, MAX_TIME - 1, "leaf-time")
"""The time of a leaf: in seconds since 1970, not before `attest.schema.plain.EARLIEST`, and before the year 10000."""

REAL: Final = Real()
TRUTH: Final = Truth()
SHA256: Final = Blob("sha256", 32)
SIGNATURE: Final = Blob("bstr .size 64", 64)
RUN_ID: Final = Blob("bstr .size 16", 16)
RAW_KEY: Final = Blob("raw-key", 32)
KEY_ID: Final = Blob("bstr .size 8", 8)
ID: Final = Spelled(plain.IDENTIFIER.pattern, "an identifier: 1 to 64 of the characters a-z 0-9 . _ / -", "id")


def words(longest: int, cddl: str = "") -> Spelled:
    """Returns the kind of printable ASCII of 1 to `longest` characters, by its name in CDDL."""
    return Spelled(f"[ -~]{{1,{longest}}}", f"1 to {longest} printable ASCII characters", cddl or f"words{longest}")


WORDS: Final = words(200)
TEXT: Final = Text()
ORIGIN: Final = words(200, "origin")
LOG_VKEY: Final = words(400, "log-vkey")


class Checked:
    """Has declared fields, which are checked when it is made. Raises LeafRefused: code TYPE, RANGE or ORDER, or that of a rule
    of its own."""

    __slots__ = ()
    CDDL: ClassVar[str] = ""
    OF: ClassVar[str] = ""
    DERIVED: ClassVar[tuple[Declared, ...]] = ()
    _repr_html_ = card_of

    def __init_subclass__(cls) -> None:
        """Names it in sentences by its name in CDDL, which of a leaf is that of its class, and says the kind of a leaf."""
        cls.CDDL = cls.__dict__.get("CDDL", cls.__name__.lower())
        cls.OF = f" of {cls.CDDL}"
        kind = cls.__dict__.get("KIND")
        if kind is not None and not any(item.name == "kind" for item in cls.DERIVED):
            cls.DERIVED = (derived(1, "kind", str(kind), "Kind of the leaf."), *cls.DERIVED)

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)


@dataclass(frozen=True, slots=True)
class Entry(Checked):
    """A leaf after the header. The order of its fields is its wire format: keys 0, 2, 3, 4, ...; key 1 is its kind."""

    seq: int = declared(0, ABOVE_0, "Position in the ledger.")
    time: int = declared(2, MOMENT, "Seconds since 1970, by the writer's clock.")


def check_limit(epsilon_micro: int, delta_pico: int) -> None:
    """Refuses a signed limit of epsilon without its delta, or the delta without it; 0 and 0 stand for no limit."""
    if bool(epsilon_micro) is not bool(delta_pico):
        found = f"got {epsilon_micro} and {delta_pico}"
        raise LeafRefused("RANGE", f"a limit of epsilon holds at a delta: expected both or none, {found}")


@contextmanager
def as_leaf(code: str = "", what: str = "") -> Iterator[None]:
    """Turns the refusal of a part into that of its leaf: under its own code where none is given, behind what the part is."""
    try:
        yield
    except (AttestError, AccountantError, NoteError, TrustError) as error:
        raise LeafRefused(code or error.code, what + error.sentence) from error
