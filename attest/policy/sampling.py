"""The sampling of a policy: the scheme by which a step comes by its contributions, with its parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Final

from attest.descriptor import MAX_COUNT
from attest.errors import PolicyRefused
from attest.policy.classes import Section
from attest.policy.mechanism import check_word
from attest.schema import declared
from attest.schema.cards import card_of
from attest.schema.groups import Many
from attest.schema.kinds import Flag, Whole

POISSON: Final = "poisson"
CYCLIC: Final = "cyclic"
SHUFFLED: Final = "shuffled"
CYCLIC_POISSON: Final = "cyclic_poisson"

SECRET_POISSON: Final = "secret_poisson"
OCCURRENCES_PUBLIC: Final = "occurrences_public"
SECRET_DRAWS: Final = "secret_draws"
DISCLOSURES: Final = {
    SECRET_POISSON: "who was drawn stays secret, and the accounting counts on it",
    OCCURRENCES_PUBLIC: "the ledger tells who was drawn, and every occurrence counts in full",
    SECRET_DRAWS: "who was drawn by another scheme stays secret, and the accounting counts on it",
}

_MAX_STEPS: Final = 10**9


class _Parameters(Section):
    """Parameters of a word of `SamplingRule.PARAMETERS`."""

    __slots__ = ()
    PREFIX: ClassVar = "sampling.parameters."


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups(_Parameters):
    """Parameters of `cyclic_poisson`."""

    CDDL: ClassVar = "groups"

    groups: int = declared(
        1,
        Whole(2, _MAX_STEPS, f"2..{_MAX_STEPS}"),
        "Groups of each class: number j of it in the order of admission, from 0, is in group j mod groups; step t draws from"
        " group (t - 1) mod groups, at the class's rate.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncation(_Parameters):
    """Parameters of `truncated_poisson`."""

    CDDL: ClassVar = "truncation"

    most: int = declared(1, Whole(1, MAX_COUNT, "count"), "Most contributions of a step; of more that many are kept at random.")
    contributions: int = declared(2, Whole(1, MAX_COUNT, "count"), "Public number of contributions that are drawn from.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bins(_Parameters):
    """Parameters of `balls_in_bins`."""

    CDDL: ClassVar = "bins"

    bins: int = declared(
        1,
        Whole(2, _MAX_STEPS, f"2..{_MAX_STEPS}"),
        "Bins; each contribution is put into one at random, and step t takes bin t mod bins.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Separation(_Parameters):
    """Parameters of `b_min_sep`."""

    CDDL: ClassVar = "separation"

    separation: int = declared(
        1, Whole(2, _MAX_STEPS, f"2..{_MAX_STEPS}"), "Steps from one draw of a contribution to the first that may be its next."
    )
    warm: bool = declared(
        2, Flag("true"), "Whether the first steps draw as if the run had begun long before.", default=False, optional=True
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes(_Parameters):
    """Parameters of `fixed_size_cyclic`."""

    CDDL: ClassVar = "sizes"

    sizes: tuple[int, ...] = declared(
        1,
        Many(Whole(1, MAX_COUNT, "count"), 1, 256, "sizes", distinct=False),
        "Contributions of each class in a step, in the policy's order of classes; its sampling rate is then the most that they"
        " may be of all.",
        rule="as many as classes",
    )


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """The scheme by which a step comes by its contributions.

    Args:
        name: Word of `PARAMETERS`: `poisson` draws each by itself; `cyclic`, `shuffled` and `fixed_size_cyclic` let everybody
            take turns in an order that everybody may know; the others draw in secret.
        parameters: What the word takes; None where it takes none.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    PARAMETERS: ClassVar[Mapping[str, type | None]] = {
        POISSON: None,
        CYCLIC: None,
        SHUFFLED: None,
        CYCLIC_POISSON: Groups,
        "truncated_poisson": Truncation,
        "balls_in_bins": Bins,
        "b_min_sep": Separation,
        "fixed_size_cyclic": Sizes,
    }
    TURNS: ClassVar = (CYCLIC, SHUFFLED, "fixed_size_cyclic")

    name: str = POISSON
    parameters: Any = None

    _repr_html_ = card_of

    def __post_init__(self) -> None:
        check_word(self, "sampling.order")

    @property
    def turns(self) -> bool:
        """Tells whether contributions take turns, in an order that everybody may know."""
        return self.name in self.TURNS

    @property
    def groups(self) -> int:
        """Returns the groups of contributions of which a step draws from one, in turn; 1 where it draws from all."""
        return self.parameters.groups if self.name == CYCLIC_POISSON else 1

    def most_steps(self, steps: int) -> int:
        """Returns the most of so many steps in a row that may draw one contribution."""
        return -(-steps // self.groups)

    def mean_rate(self, rate: Fraction) -> Fraction:
        """Returns the mean number of times that a step draws a contribution of a class of this rate."""
        return rate / self.groups

    def check_beside(self, disclosure: str, rates: Iterable[tuple[str, Fraction]]) -> None:
        """Refuses a scheme that does not go with what else a policy says. Raises PolicyRefused: code RANGE; says what would do,
        and of a rate the nearest that have a period."""
        rates = tuple(rates)
        if self.turns and disclosure != OCCURRENCES_PUBLIC:
            raise PolicyRefused(
                "RANGE",
                f"sampling.order {self.name!r} is counted occurrence by occurrence, since no amplification is proved for it;"
                f" set disclosure = {OCCURRENCES_PUBLIC!r} or use sampling.order = {POISSON!r}",
            )
        secret = SECRET_POISSON if self.name == POISSON else SECRET_DRAWS
        if disclosure not in (OCCURRENCES_PUBLIC, secret):
            raise PolicyRefused(
                "RANGE",
                f"disclosure {disclosure!r} does not go with sampling.order {self.name!r}; set {secret!r} or"
                f" {OCCURRENCES_PUBLIC!r}",
            )
        if type(self.parameters) is Sizes and len(self.parameters.sizes) != len(rates):
            found = len(self.parameters.sizes)
            sentence = f"sampling.parameters.sizes are {found}, expected one for each of {len(rates)} classes"
            raise PolicyRefused("RANGE", sentence)
        if self.name not in (CYCLIC, SHUFFLED):
            return
        for name, rate in rates:
            if rate.numerator != 1:
                raise PolicyRefused(
                    "RANGE",
                    f"sampling_rate of class {name} is {rate}, and with sampling.order {self.name!r} a contribution"
                    f" takes part once in every 1/sampling_rate steps, a whole number; {_nearest(rate)}",
                )


def period(rate: Fraction) -> int:
    """Returns the steps P in which a contribution of this rate takes part once under an order. Raises PolicyRefused: code
    RANGE, the rate is not 1/P."""
    if rate.numerator != 1:
        raise PolicyRefused("RANGE", f"a rate of {rate} has no period; {_nearest(rate)}")
    return rate.denominator


def _nearest(rate: Fraction) -> str:
    """Returns the rates 1/P below and above, as policy.toml takes them."""
    less, more = Fraction(1, int(1 / rate) + 1), Fraction(1, int(1 / rate))
    return f'the nearest that have one are "{less}" and ' + (f'"{more}"' if more < 1 else "1")
