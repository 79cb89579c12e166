"""The mechanism of a policy: the law of its noise by name, its parameters, and a digest of what these do not hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from attest.documents import check_fields, declared
from attest.documents.groups import Many
from attest.documents.kinds import Flag, Octets, Whole
from attest.errors import PolicyRefused

GAUSSIAN: Final = "gaussian"

GRID_BITS: Final = 20
"""Coefficients of a strategy are whole numbers of 2^-20, so that its sensitivity is computed from what was signed."""

BUFFER_BITS: Final = 40
"""Decays and scales of buffers are whole numbers of 2^-40."""

MAX_COEFFICIENTS: Final = 4096
"""Most coefficients that stand in the policy itself; of more it holds the digest."""

MAX_BANDS: Final = 10**9
_ONE: Final = 1 << GRID_BITS


@dataclass(frozen=True, kw_only=True, slots=True)
class Bands:
    """Parameters of a strategy with bands: `banded_toeplitz`, `banded_inverse` and `banded`."""

    CDDL: ClassVar = "bands"
    PREFIX: ClassVar = "noise.parameters."

    bands: int = declared(1, Whole(2, MAX_BANDS, f"2..{MAX_BANDS}"), "Diagonals that are not zero, the main one among them.")
    coefficients: tuple[int, ...] = declared(
        2,
        Many(Whole(-_ONE, _ONE, "coefficient"), 2, MAX_COEFFICIENTS, "coefficients", empty=True, distinct=False),
        "First column, or that of the inverse for `banded_inverse`, in units of 2^-20; the first coefficient is 2^20.",
        default=(),
        optional=True,
        rule="as many as bands, the first 2^20; not with a digest",
    )
    normalized: bool = declared(
        3,
        Flag("true"),
        "Whether every column of the leading block of `steps` rows is scaled to norm 1.",
        default=False,
        optional=True,
    )

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)
        if self.coefficients and (len(self.coefficients) != self.bands or self.coefficients[0] != _ONE):
            raise PolicyRefused(
                "RANGE",
                f"coefficients are {len(self.coefficients)} and begin with {self.coefficients[0]}, expected as many as bands,"
                f" {self.bands}, and {_ONE} first",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffers:
    """Parameters of `buffered_toeplitz`: its first column is 1, then the sum of scale * decay^(i - 1) in row i."""

    CDDL: ClassVar = "buffers"
    PREFIX: ClassVar = "noise.parameters."

    decays: tuple[int, ...] = declared(
        1,
        Many(Whole(1, (1 << BUFFER_BITS) - 1, f"1..{(1 << BUFFER_BITS) - 1}"), 1, 16, "decays", distinct=False),
        "Decay of each buffer, in units of 2^-40.",
    )
    scales: tuple[int, ...] = declared(
        2,
        Many(Whole(1, 1 << BUFFER_BITS, f"1..{1 << BUFFER_BITS}"), 1, 16, "scales", distinct=False),
        "Scale of each buffer, in units of 2^-40.",
        rule="as many as decays",
    )

    def __post_init__(self) -> None:
        check_fields(self, PolicyRefused)
        if len(self.decays) != len(self.scales):
            raise PolicyRefused("RANGE", f"there are {len(self.decays)} decays and {len(self.scales)} scales, expected as many")


@dataclass(frozen=True, slots=True)
class MechanismRule:
    """The mechanism: what noise is added, and how the noise of one step depends on that of others.

    Args:
        name: Word of `PARAMETERS`. The first four draw the noise of every step by itself. The others are Gaussian, and
            correlated by a strategy C: step t has row t of C^-1 times independent noise, with C scaled to a largest column
            norm of 1.
        parameters: What the word takes; None where it takes none.
        digest: SHA-256 of coefficients that do not fit in: whole numbers of 2^-20, each in four bytes, big-endian, two's
            complement, row by row, of a lower triangle those up to the diagonal.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    PREFIX: ClassVar = "noise."
    PARAMETERS: ClassVar[Mapping[str, type | None]] = {
        GAUSSIAN: None,
        "laplace": None,
        "discrete_gaussian": None,
        "skellam": None,
        "banded_toeplitz": Bands,
        "banded_inverse": Bands,
        "buffered_toeplitz": Buffers,
        "banded": Bands,
        "dense": None,
    }

    STATED: ClassVar[Mapping[str, str]] = {
        GAUSSIAN: "never",
        "laplace": "never",
        "discrete_gaussian": "never",
        "skellam": "never",
        "buffered_toeplitz": "never",
        "banded": "always",
        "dense": "always",
    }
    """Says of a word whether the digest is stated; of other words it is exactly where the coefficients are not."""

    name: str = GAUSSIAN
    parameters: Any = None
    digest: bytes | None = declared(
        3,
        Octets(32, "sha256"),
        "SHA-256 of the coefficients of a strategy that has more than its parameters take, in hexadecimal digits.",
        default=None,
        nil=True,
    )

    def __post_init__(self) -> None:
        check_word(self, "noise.family")
        check_fields(self, PolicyRefused)
        stated = self.STATED.get(self.name)
        coefficients = getattr(self.parameters, "coefficients", ())
        if stated == "always" and coefficients:
            raise PolicyRefused("RANGE", f"noise.family {self.name!r} has its coefficients in a digest; leave out coefficients")
        wanted = stated == "always" or (stated is None and not coefficients)
        if wanted != (self.digest is not None):
            found = "no digest" if self.digest is None else "a digest"
            expected = "one: its coefficients are not among its parameters" if wanted else "none: its parameters say all of it"
            raise PolicyRefused("RANGE", f"noise.family {self.name!r} has {found}, expected {expected}")


def check_word(rule: Any, key: str) -> None:
    """Refuses a name that is none of the words of its rule, or that has not the parameters of its word.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """
    known = rule.PARAMETERS
    if type(rule.name) is not str or rule.name not in known:
        raise PolicyRefused("RANGE", f"{key} is {ascii(rule.name)[:60]}, expected one of {', '.join(known)}")
    wanted = known[rule.name] or type(None)
    if type(rule.parameters) is not wanted:
        found = type(rule.parameters).__name__
        raise PolicyRefused("TYPE", f"parameters of {key} {rule.name!r} are {found}, expected {wanted.__name__}")
