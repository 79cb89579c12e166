"""Declares the noise of a policy: its law by name, the geometry of blocks, the phases of a run, and clip budgets of blocks.

A law has parameters, and a digest of what these do not hold. A geometry is the space in which contributions are clipped and
noised, other than that of the coordinates.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from attest.descriptor import MAX_MICRO
from attest.errors import PolicyRefused
from attest.fixed_point import MICRO, from_micro
from attest.policy.classes import ADAPTER_NAME
from attest.schema import check_fields, declared
from attest.schema.cards import card_of
from attest.schema.groups import Many
from attest.schema.kinds import Flag, Octets, Scaled, Whole
from attest.schema.words import Words, check_among

GAUSSIAN: Final = "gaussian"
INTEGERS: Final = ("laplace", "discrete_gaussian", "skellam")
"""Families whose noise is exact on integers of contributions; they take exactness `certified`."""

GRID_BITS: Final = 20
"""Coefficients of a strategy are whole numbers of 2^-20, so that its sensitivity is computed from what was signed."""

BUFFER_BITS: Final = 40
"""Decays and scales of buffers are whole numbers of 2^-40."""

MAX_COEFFICIENTS: Final = 4096
"""Most coefficients that stand in the policy itself; of more it holds the digest."""

COEFFICIENTS: Final = "COEFFICIENTS"
"""Code of coefficients in a file that are missing, or not those of the digest."""

MAX_FILE: Final = 1 << 24
"""Most bytes of coefficients in a file: 2^22 numbers."""

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
    """Says what noise is added, and how the noise of one step depends on that of others.

    Args:
        name: Word of `PARAMETERS`. The first four draw the noise of every step by itself. The others are Gaussian, and
            correlated by a strategy C: step t has row t of C^-1 times independent noise, with C scaled to a largest column
            norm of 1.
        parameters: What the word takes; None where it takes none.
        digest: SHA-256 of coefficients that do not fit in: whole numbers of 2^-20, each in four bytes, big-endian, two's
            complement, row by row, of a lower triangle those up to the diagonal.
        coefficients: These bytes where they are at hand (`with_coefficients`). They are not signed, what they hash to is.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    PREFIX: ClassVar = "noise."
    PARAMETERS: ClassVar[Words[type | None]] = Words({
        GAUSSIAN: None,
        "laplace": None,
        "discrete_gaussian": None,
        "skellam": None,
        "banded_toeplitz": Bands,
        "banded_inverse": Bands,
        "buffered_toeplitz": Buffers,
        "banded": Bands,
        "dense": None,
    })  # fmt: skip

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
    coefficients: bytes | None = field(default=None, repr=False, compare=False)

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_word(self, "noise.family")
        check_fields(self, PolicyRefused)
        stated = self.STATED.get(self.name, "never" if self.name in self.PARAMETERS.provided else None)
        coefficients = getattr(self.parameters, "coefficients", ())
        if stated == "always" and coefficients:
            raise PolicyRefused("RANGE", f"noise.family {self.name!r} has its coefficients in a digest; leave out coefficients")
        wanted = stated == "always" or (stated is None and not coefficients)
        if wanted != (self.digest is not None):
            found = "no digest" if self.digest is None else "a digest"
            expected = "one: its coefficients are not among its parameters" if wanted else "none: its parameters say all of it"
            raise PolicyRefused("RANGE", f"noise.family {self.name!r} has {found}, expected {expected}")
        if self.coefficients is not None:
            self._check_coefficients(self.coefficients)

    @property
    def at_hand(self) -> bool:
        """Tells whether nothing of it lies in a file that is missing."""
        return self.digest is None or self.coefficients is not None

    def with_coefficients(self, data: bytes) -> "MechanismRule":
        """Returns the rule with the coefficients that its digest stands for.

        Raises:
            PolicyRefused: Code `COEFFICIENTS`, it has no digest, or these are others.
        """
        return replace(self, coefficients=bytes(data))

    def _check_coefficients(self, data: bytes) -> None:
        if self.digest is None:
            raise PolicyRefused(
                COEFFICIENTS, f"noise.family {self.name!r} has no digest, and {len(data)} bytes of coefficients"
            )
        found = hashlib.sha256(data).digest()
        if found != self.digest:
            told = f"these {len(data)} bytes have {found.hex()}; take the file that was signed"
            raise PolicyRefused(COEFFICIENTS, f"coefficients of noise.digest {self.digest.hex()} are wanted, {told}")


def check_word(rule: Any, key: str) -> None:
    """Refuses a name that is none of the words of its rule, or that has not the parameters of its word.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """
    known = rule.PARAMETERS
    check_among(rule.name, known, key, PolicyRefused)
    wanted = known[rule.name] or type(None)
    if type(rule.parameters) is not wanted:
        found = type(rule.parameters).__name__
        raise PolicyRefused("TYPE", f"parameters of {key} {rule.name!r} are {found}, expected {wanted.__name__}")


GEOMETRY: Final = "GEOMETRY"
"""Code of a geometry that does not go with what else a policy says."""


@dataclass(frozen=True, slots=True)
class GeometryRule:
    """Says the geometry of the pairs of LoRA factors of some adapters (`attest.schedule.geometry`).

    Everything else is Euclidean: its coordinates are clipped and noised as they are.

    Args:
        name: Word of `PARAMETERS`. `lora_tangent`: each pair of LoRA factors A and B moves along the tangent space of A B^T, in
            orthonormal coordinates of it. Frames of them follow from the factors at the start of a step, which are public.
            So the coordinates are a public linear map of a contribution, clipped by their Euclidean norm and noised as those
            of any other tensor: what is proved of a bound on that norm holds of them as it stands.
        parameters: What the word takes; None where it takes none.
        adapters: Adapters whose pairs have it; None for all adapters.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    PREFIX: ClassVar = "geometry."
    PARAMETERS: ClassVar[Mapping[str, type | None]] = {"lora_tangent": None}

    name: str
    parameters: Any = None
    adapters: tuple[str, ...] | None = declared(
        3,
        Many(ADAPTER_NAME, 1, 256, "names of adapters", ascending=True, named="adapter-names"),
        "Adapters whose pairs have this geometry, ascending; left out for all adapters.",
        default=None,
        nil=True,
    )

    def __post_init__(self) -> None:
        check_word(self, "geometry")
        check_fields(self, PolicyRefused)

    def check_beside(self, mechanism: MechanismRule, exactness: str) -> None:
        """Refuses what a geometry does not go with. Raises PolicyRefused: code GEOMETRY; says why, and what would do."""
        family = mechanism.name
        told = f"geometry {self.name!r} does not go with "
        instead = f"; set noise.family = {GAUSSIAN!r}, or leave geometry out"
        if family in INTEGERS:
            raise PolicyRefused(
                GEOMETRY,
                f"{told}noise.family {family!r}, which takes exactness 'certified': the integers of a contribution would follow"
                f" from frames that each machine computes in floating point{instead}",
            )
        if family != GAUSSIAN and mechanism.PARAMETERS.specifies(family):
            raise PolicyRefused(
                GEOMETRY,
                f"{told}noise.family {family!r}: frames move every step, so there is no one space in which noise of two steps"
                f" cancels{instead}",
            )
        if family != GAUSSIAN:
            raise PolicyRefused(
                GEOMETRY,
                f"{told}noise.family {family!r}: coordinates of tangents are clipped by their Euclidean norm, and only of"
                f" Gaussian noise it is known what that is worth{instead}",
            )
        if exactness == "certified":
            raise PolicyRefused(
                GEOMETRY,
                f"{told}exactness 'certified': the integers of a contribution would follow from frames that each machine"
                " computes in floating point; set exactness = 'fast', or leave geometry out",
            )


MAX_STEPS = 10**9
MAX_PHASES = 64
"""Most phases; each has a multiplier of its own per contribution, and the accountant composes them all."""

MAX_MICROBATCHES = 1 << 16
"""Most noise injections per step; each costs a draw for every scheduled coordinate."""

MAX_BUDGET_MICRO = 10**9
"""Largest budget weight, 1000 in fixed point. Only ratios count; the widest, 10^9, leaves a block next to nothing."""


@dataclass(frozen=True, slots=True)
class NoisePhase:
    """Steps from `first_step` on, up to the next phase or the horizon, have `scale` times the noise of the schedule.

    A scale is at least 1: class presets are the least noise of a run, so that a contribution's signed multiplier holds in every
    phase under flat clipping too.
    """

    CDDL: ClassVar = "noise-phase"
    TELLS: ClassVar = ("first_step", " of the noise phase from step {}")

    first_step: int = declared(1, Whole(1, MAX_STEPS, "positive"), "Logical step, from 1.", key="from_step")
    scale_micro: int = declared(
        2, Scaled(MICRO, MAX_MICRO, f"{MICRO}..{MAX_MICRO}"), "Factor on every standard deviation of the schedule, at least 1."
    )

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        if type(self.scale_micro) is int and self.scale_micro < MICRO:
            raise PolicyRefused(
                "RANGE",
                f"scale of the noise phase from step {self.first_step} is {from_micro(self.scale_micro):g}, expected at least"
                " 1: class presets are the least noise of a run. For less noise later, lower the presets to that, and give the"
                " steps before a larger scale",
            )
        check_fields(self, PolicyRefused)

    @property
    def scale(self) -> float:
        """Returns the factor as a double, for reading; noise is formed from the exact one (`attest.schedule.scaled_std`)."""
        return from_micro(self.scale_micro)
