"""Holds the noise families and the accountants, by the names that a policy signs, and answers what goes with what.

A family is a `Cost`: what its noise costs, what it is combined with, and where its sums lie. The noise itself is drawn by the
`Mechanism` of that name (`dptrain.noise.mechanism`). An accountant turns releases into an epsilon. Rows that come with dptrain
and rows of other packages are registered by the same two calls; the names of the latter are ``provider.name``.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from attest.policy import Policy
from attest.policy.mechanism import GAUSSIAN, MechanismRule
from attest.policy.rules import ACCOUNTANTS as NAMES
from attest.policy.sampling import CYCLIC, period
from attest.schema.words import NOT_INSTALLED, Words, check_among, is_foreign
from ledger.accountants.phases import Counted, Participation, Phase, Sampled
from ledger.errors import AccountantError

if TYPE_CHECKING:
    from ledger.accountants.correlated.turns import Turns

R = TypeVar("R")
V = TypeVar("V")

LATTICE_BITS: Final = 32
"""b of the lattice ``s * 2^-b`` of Gaussian noise. Integers below 2^52 are exact in float64, which bounds |sum| by 2^20 * s."""

MOST_GROUPS: Final = 4096
"""Most groups that steps draw from in turn, times the phases of the noise that a policy has: a reader keeps as many counts for
each moment at which somebody was admitted; and most steps that may be done again where draws show in rows behind their own."""

HOST: Final = "host"
DEVICE: Final = "device"

OWN_LIBRARIES: Final = ("dptrain", "own", "dp-accounting", "opacus")
"""Libraries that a header names for rows that come with dptrain; a row of another package names its own."""


ACCOUNTANT_VERSION: Final = "ACCOUNTANT_VERSION"
"""Code of the refusal of a header whose accountant is of a version or library that is not known here."""

NOT_HERE: Final = (NOT_INSTALLED, ACCOUNTANT_VERSION)
"""Codes that say nothing against a record: what computes its figures is not installed here, or is of another version."""

RELEASE: Final = r"[0-9]+(\.[0-9]+){1,3}([a-z]{1,4}[0-9]+)?"
"""Version numbers of libraries that others publish; what they compute is recomputed, or held to a bracket, whatever it is."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Says what a header may tell of an accountant.

    Attributes:
        library: who computed.
        version: pattern of its versions; the whole must match.
        parameters: in the words of `ledger.accountants.describe`.
    """

    library: str
    version: str
    parameters: str

    def __str__(self) -> str:
        """Names it as a person writes it; ``*`` stands for a release of a library that others publish."""
        return f"{self.library} {self.version.replace(RELEASE, '*')} {self.parameters}".replace("\\", "")


class Accountant:
    """Turns releases of noise into an epsilon.

    Attributes:
        name: the name that a policy signs.
        sentence: what it composes, in a few words, for notes; of those of the format, the format says it.
        families: the noise families that it accounts for by itself.
        held_to: name of the accountant whose figure an auditor recomputes in the place of its own; empty for its own.
        replaces: whether `sampled` knows content replacement; where not, `pld` gives it.
    """

    name: ClassVar[str]
    sentence: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]] = (GAUSSIAN,)
    held_to: ClassVar[str] = ""
    replaces: ClassVar[bool] = False

    def sampled(self, phases: tuple[Phase, ...], delta: float, family: str, *, replace: bool = False) -> float:
        """Returns epsilon of Poisson-sampled phases in normal form, each with noise.

        Guarantee: An upper bound at ``delta`` under zero-out adjacency, in both directions.
        """
        raise NotImplementedError

    def sampled_at(
        self, phases: tuple[Phase, ...], deltas: tuple[float, ...], family: str, *, replace: bool = False
    ) -> tuple[float, ...] | None:
        """Returns epsilon as `sampled` at each of these deltas, composed once for all; None where `sampled` is as good."""
        return None

    def sampled_over(
        self, runs: tuple[tuple[Phase, ...], ...], delta: float, family: str, *, replace: bool = False
    ) -> tuple[float, ...] | None:
        """Returns epsilon as `sampled` of each of these runs, which share their steps; None where `sampled` is as good."""
        return None

    def counted(self, participation: Counted, delta: float, family: str) -> float:
        """Returns epsilon of releases of which everybody knows that the contribution took part; an upper bound as `sampled`."""
        raise NotImplementedError

    def describe(self) -> tuple[str, str, str]:
        """Returns (library, version, parameters) for the header of a ledger."""
        raise NotImplementedError

    def recorders(self) -> tuple[Recorder, ...]:
        """Returns everything that has recorded epsilons under this name; what `describe` says today by default."""
        library, version, parameters = self.describe()
        return (Recorder(library, _literal(version), parameters),)

    def leeway(self, library: str, version: str) -> float:
        """Returns by how much a figure that this version of a library recorded may exceed the one recomputed."""
        return 0.0

    def caveat(self, phases: tuple[Phase, ...], delta: float) -> str | None:
        """Returns what must be said beside an epsilon of phases in normal form, None if nothing."""
        return None


class Cost:
    """Says what the noise of a family costs, and what it goes with.

    Attributes:
        name: the name that a policy signs.
        sentence: what is particular to the family, in a few words, for notes.
        consequence: what a policy with it should know of its epsilons, for `dptrain policy check`; empty for nothing.
        own: accountants under which `epsilon` has a formula of its own, the usual one first. A family with none needs a
            ``law``, or an accountant that was registered before and lists it in its ``families``.
        exactness, injections, disclosures: what else of a policy it goes with, the usual word first; the rest is refused.
        why: by ``accountant``, ``exactness``, ``injection`` and ``disclosure``, why nothing else goes with it.
        law: the family that its noise has the law of: accountants that list that family account for it as for that one.
        amplified: whether the accounting counts on draws that stay secret. False only where every formula counts every step in
            full.
        budgets: whether the clip norm may be divided among blocks.
        groups: disclosures for which several contributions of one person have a bound together. Over secret draws it is
            computed as for Gaussian noise: name ``secret_poisson`` for that law alone.
        norm: 2 where contributions are clipped in the L2 norm, 1 for the L1 norm.
        deviation: standard deviation of noise whose scale is 1.
        generators: where its noise can be drawn, `HOST` and perhaps `DEVICE`.
        noise: what is added to the sums, for the header; ``{bits}`` stands for b of the lattice.
    """

    name: ClassVar[str]
    sentence: ClassVar[str] = ""
    consequence: ClassVar[str] = ""
    own: ClassVar[tuple[str, ...]] = ()
    exactness: ClassVar[tuple[str, ...]] = ("certified",)
    injections: ClassVar[tuple[str, ...]] = ("scheduled",)
    disclosures: ClassVar[tuple[str, ...]] = ("secret_poisson",)
    why: ClassVar[Mapping[str, str]] = {}
    law: ClassVar[str] = ""
    amplified: ClassVar[bool] = True
    budgets: ClassVar[bool] = False
    groups: ClassVar[tuple[str, ...]] = ()
    norm: ClassVar[int] = 2
    deviation: ClassVar[float] = 1.0
    generators: ClassVar[tuple[str, ...]] = (HOST,)
    noise: ClassVar[str]

    @property
    def accountants(self) -> tuple[str, ...]:
        """Names of the accountants that account for it, the usual one first."""
        law = self.law or self.name
        return (*self.own, *(name for name, row in ACCOUNTANTS.items() if law in row.families and name not in self.own))

    def sensitivity(self, participation: Participation) -> float:
        """Returns how far a contribution moves all releases together, in units of the noise: sqrt of the sum of 1/z^2.

        Every step counts as if the contribution took part. A family whose noise depends on that of other steps says here how
        the pattern of participation enters.
        """
        return math.sqrt(participation.loss)

    def epsilon(self, participation: Participation, delta: float, accountant: str, *, replace: bool = False) -> float:
        """Returns epsilon of a run in which a contribution takes part in this pattern.

        Guarantee: An upper bound at ``delta`` under zero-out adjacency, in both directions; with ``replace``, under content
        replacement. A family that is not amplified counts every step in full.

        Args:
            participation: phases in normal form, each with noise; or what is public.
            delta: at least 1e-12.
            accountant: one of `accountants`.
            replace: content replacement in the place of zero-out.
        """
        row, law = ACCOUNTANTS[accountant], self.law or self.name
        if isinstance(participation, Counted):
            return row.counted(participation, delta, law)
        return row.sampled(participation.phases, delta, law, replace=replace)

    def epsilon_at(
        self, participation: Sampled, deltas: tuple[float, ...], accountant: str, *, replace: bool = False
    ) -> tuple[float, ...] | None:
        """Returns `epsilon` at each of these deltas by `Accountant.sampled_at`; None where `epsilon` is as good."""
        if type(self).epsilon is not Cost.epsilon:
            return None
        return ACCOUNTANTS[accountant].sampled_at(participation.phases, deltas, self.law or self.name, replace=replace)

    def epsilon_over(
        self, runs: tuple[Sampled, ...], delta: float, accountant: str, *, replace: bool = False
    ) -> tuple[float, ...] | None:
        """Returns `epsilon` of each of these runs by `Accountant.sampled_over`; None where `epsilon` is as good."""
        if type(self).epsilon is not Cost.epsilon:
            return None
        phases = tuple(run.phases for run in runs)
        return ACCOUNTANTS[accountant].sampled_over(phases, delta, self.law or self.name, replace=replace)

    def replaces(self, accountant: str) -> bool:
        """Tells whether `epsilon` under this accountant knows content replacement."""
        return accountant in self.own or ACCOUNTANTS[accountant].replaces

    def divergences(self, participation: Participation) -> tuple[float, ...]:
        """Returns the Rényi divergence at every order of `renyi.ORDERS`, an upper bound in both directions. Raises
        AccountantError: code FAMILY; by default no such bound is known, so runs cannot be added up one after the other."""
        raise AccountantError("FAMILY", f"noise family {self.name!r} has no Rényi divergence here, which limits over runs need")

    def describe(self, accountant: str) -> tuple[str, str, str]:
        """Returns (library, version, parameters) for the header of a ledger."""
        return ACCOUNTANTS[accountant].describe()

    def recorders(self, accountant: str) -> tuple[Recorder, ...]:
        """Returns everything that has recorded epsilons by an accountant over this noise."""
        if accountant not in self.own:
            return ACCOUNTANTS[accountant].recorders()
        library, version, parameters = self.describe(accountant)
        return (Recorder(library, _literal(version), parameters),)

    def leeway(self, accountant: str, library: str, version: str) -> float:
        """Returns by how much a figure that was recorded may exceed the one recomputed; nothing under a formula of its own."""
        return 0.0 if accountant in self.own else ACCOUNTANTS[accountant].leeway(library, version)

    def memory(self, policy: Policy) -> int:
        """Returns in how many steps behind its own the sum of a step is felt, because their noise is that of it too; by default
        0. Raises AccountantError: code STRATEGY, nothing says it."""
        return 0

    def turns(self, policy: Policy, length: int) -> "Turns | None":
        """Returns what occurrences add whose noise is that of others too, for who takes part in every ``length``-th step; by
        default None, each adds 1/z^2.

        Raises:
            AccountantError: code STRATEGY, nothing adds them up.
        """
        return None

    def refuse(self, policy: Policy) -> str | None:
        """Says why nothing accounts for a policy with this noise for another reason than these words; None if there is none."""
        return None

    def require(self) -> None:
        """Refuses where a library that its figures need is missing; by default none is needed. Raises AccountantError: code
        NOT_INSTALLED."""

    def lattice_bits(self, coordinates: int, multiplier: float) -> int:
        """Returns b of the lattice ``s * 2^-b`` on which certified sums are integers.

        Truncation then costs 2^-22 to 2^-26 of the clip bound per coordinate.

        Args:
            coordinates: number of scheduled coordinates, d; truncation loses about sqrt(d / 3) steps of a gradient's norm.
            multiplier: the least noise multiplier of any class; the clip bound is about ``2^b / multiplier`` steps.
        """
        base = 22 if coordinates <= 1 << 22 else 24 if coordinates <= 1 << 28 else 26
        return max(1, min(LATTICE_BITS, base + math.floor(math.log2(multiplier))))


_COSTS: dict[str, Cost] = {}
_ACCOUNTANTS: dict[str, Accountant] = {}

TABLE: Final[Mapping[str, Cost]] = MappingProxyType(_COSTS)
"""The noise families, by name."""

ACCOUNTANTS: Final[Mapping[str, Accountant]] = MappingProxyType(_ACCOUNTANTS)
"""The accountants, by name."""


def register_cost(cost: Cost) -> Cost:
    """Adds a noise family, and lets policies name it. Raises ValueError: the name is taken, is none of the format and not of
    the form ``provider.name``; a row of another package names a library of dptrain for a formula of its own; or something is
    missing, which the sentence says how to add."""
    formula = type(cost).epsilon is not Cost.epsilon
    if not MechanismRule.PARAMETERS.specifies(cost.name):
        _refuse_borrowed(cost.name, *(cost.describe(name)[0] for name in (cost.accountants if formula else cost.own)))
    if cost.own and not formula:
        raise ValueError(f"{cost.name!r} has no formula for {_or(cost.own)}: override `epsilon`, or leave `own` empty")
    if not hasattr(cost, "noise"):
        raise ValueError(f"{cost.name!r} lacks `noise`: say in words what is added to the sums")
    if not cost.accountants:
        how = "set `own` and override `epsilon`, set `law`, or register an accountant first that lists it in `families`"
        raise ValueError(f"no accountant accounts for {cost.name!r}: {how}")
    _register(cost.name, cost, _COSTS, MechanismRule.PARAMETERS, None)
    return cost


def register_accountant(accountant: Accountant) -> Accountant:
    """Adds an accountant, and lets policies name it. Raises ValueError: as `register_cost`."""
    for method in ("sampled", "counted", "describe"):
        if getattr(type(accountant), method) is getattr(Accountant, method):
            raise ValueError(f"accountant {accountant.name!r} lacks `{method}`: override it")
    if not NAMES.specifies(accountant.name):
        _refuse_borrowed(accountant.name, accountant.describe()[0])
    _register(accountant.name, accountant, _ACCOUNTANTS, NAMES, accountant.sentence)
    return accountant


def _refuse_borrowed(name: str, *libraries: str) -> None:
    for library in libraries:
        if library in OWN_LIBRARIES:
            raise ValueError(f"{name!r} names the library {library!r} in headers, expected its own: override `describe`")


def _register(name: str, row: R, rows: dict[str, R], words: Words[V], value: V) -> None:
    if name in rows:
        raise ValueError(f"{name!r} is registered already, by {type(rows[name]).__module__}")
    if not words.specifies(name):
        words.provide(name, value)
    rows[name] = row


def provided(accountant: str, family: str) -> tuple[str, ...]:
    """Says of each of the two that does not come with dptrain what it is, for whoever reads the record."""
    both = (("accountant", ACCOUNTANTS[accountant]), ("noise family", TABLE[family]))
    told = ((f"{what} {row.name!r} is no part of dptrain", row) for what, row in both if is_foreign(row.name))
    return tuple(f"{sentence} ({row.sentence})" if row.sentence else sentence for sentence, row in told)


def check_accountant(accountant: str) -> None:
    """Refuses a name that no accountant has. Raises AccountantError: code NOT_INSTALLED, or ACCOUNTANT for no such word."""
    if accountant in NAMES and accountant in ACCOUNTANTS:  # the first one loads what is installed
        return
    if is_foreign(accountant):
        check_among(accountant, NAMES, "accountant", AccountantError)
    raise AccountantError("ACCOUNTANT", f"no accountant is named {accountant!r}; there are {', '.join(ACCOUNTANTS)}")


def check(family: str, accountant: str) -> Cost:
    """Returns the row of a family, if an accountant goes with it. Raises AccountantError: code NOT_INSTALLED, its package or a
    library that it needs is missing; or FAMILY: it is none, or the accountant does not account for it."""
    cost = TABLE.get(family)
    if cost is None and family in MechanismRule.PARAMETERS:  # which loads what is installed
        cost = TABLE.get(family)
    if cost is None:
        if is_foreign(family):
            check_among(family, MechanismRule.PARAMETERS, "noise family", AccountantError)
        others = _or(name for name in TABLE if name != GAUSSIAN)
        raise AccountantError("FAMILY", f"no formula here for noise family {family!r}, expected {others}")
    if accountant not in cost.accountants:
        because = f": {cost.why['accountant']}" if "accountant" in cost.why else ""
        sentence = f"noise family {family!r} is accounted by {_or(cost.accountants)}, not by {accountant!r}"
        raise AccountantError("FAMILY", f"{sentence}{because}")
    cost.require()
    return cost


def refusal(
    family: str, accountant: str, exactness: str, injection: str, disclosure: str, *, budgets: bool = False
) -> str | None:
    """Returns why these settings have no accounting together, with the nearest that do, or None if they have.

    Args: the fields of a policy that name them; budgets: whether the clip norm is divided among blocks.
    """
    cost = TABLE.get(family)
    if cost is None:
        return f"noise.family {family!r} has no accounting in this version, expected {_or(TABLE)}"
    asked = (
        ("accountant", "accountant", accountant, cost.accountants),
        ("exactness", "exactness", exactness, cost.exactness),
        ("injection", "noise.injection", injection, cost.injections),
        ("disclosure", "disclosure", disclosure, cost.disclosures),
    )
    wrong = [(name, key, found, possible) for name, key, found, possible in asked if found not in possible]
    if wrong:
        name, key, found, possible = wrong[0]
        reason = f" ({cost.why[name]})" if name in cost.why else ""
        nearest = " and ".join(f"{key} = {possible[0]!r}" for _, key, _, possible in wrong)
        return (
            f"noise.family {family!r} goes with {key} {_or(possible)}, not with {found!r}{reason}; set {nearest}, or"
            f" noise.family = {GAUSSIAN!r}"
        )
    if injection == "per_sample" and exactness != "fast":
        return (
            f"noise.injection 'per_sample' goes with exactness 'fast', not with {exactness!r}, whose lattice is that of"
            " scheduled noise; set exactness = 'fast', or noise.injection = 'scheduled'"
        )
    if budgets and not cost.budgets:
        return (
            f"noise.budgets goes with noise.family {GAUSSIAN!r}, not with {family!r}: what divided clip norms are worth is"
            f" shown for Gaussian noise alone; leave budgets out, or set noise.family = {GAUSSIAN!r}"
        )
    return None


def refusal_of(policy: Policy) -> str | None:
    """Says why the noise of a policy does not go with what else it says, and what would; None if it does."""
    groups, phases = policy.sampling.groups, max(1, len(policy.noise_phases))
    if groups > 1 and groups * phases > MOST_GROUPS:
        found = f"{groups} groups" + (f" in {phases} phases of the noise" if phases > 1 else "")
        found += ", of each of which a reader of a ledger keeps a count"
        return f"sampling.order {policy.sampling.name!r} has {found}; take {MOST_GROUPS // phases} at most"
    if policy.sampling.groups > 1 and not policy.secret:
        return (
            f"sampling.order {policy.sampling.name!r} goes with disclosure 'secret_draws', not with {policy.disclosure!r}: "
            "where draws are public its groups amplify nothing; set disclosure = 'secret_draws', or sampling.order = 'poisson'"
        )
    told = refusal(
        policy.mechanism.name,
        policy.accountant,
        policy.exactness,
        policy.noise_injection,
        policy.disclosure,
        budgets=policy.noise_budgets is not None,
    )
    return told or TABLE[policy.mechanism.name].refuse(policy)


def turns_under(policy: Policy, rate: Fraction) -> "Turns | None":
    """Returns what occurrences add under a policy where their noise is that of others too; None where each adds 1/z^2.

    Args:
        rate: of the class, by which contributions take turns.

    Raises:
        AccountantError: code STRATEGY, nothing adds them up.
    """
    return TABLE[policy.mechanism.name].turns(policy, period(rate)) if policy.sampling.name == CYCLIC else None


def _literal(version: str) -> str:
    """Returns the pattern of one version alone."""
    return re.escape(version).replace("\\-", "-")  # as a person writes it: outside of brackets it stands for itself


def _or(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))
