"""Accounting of noise families beside the Gaussian, and the one table of what goes with what.

What a noise multiplier z means: for ``laplace`` the scale of the noise over the L1 clip norm, for ``discrete_gaussian`` its
parameter sigma over the L2 clip norm, for ``skellam`` its standard deviation over the L2 clip norm; all on the sum, block by
block.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Final, Protocol

from ledger.errors import AccountantError

GAUSSIAN: Final = "gaussian"
SKELLAM_BITS: Final = 16
"""b of the lattice s * 2^-b on which Skellam noise is drawn (docs/mechanism, Theorem 11). All of its magnitudes have a place
in a table, so it is coarser than that of the other families; truncation costs about sqrt(d / 3) of 2^16 / z steps of a clipped
gradient."""

SKELLAM_VARIANCE: Final = 1 << 2 * SKELLAM_BITS
"""In squared lattice steps."""

LAPLACE_INTERVAL: Final = 1e-4
"""Grid of privacy losses of Laplace noise down to a multiplier of 0.1; coarser as 1/z below, as losses reach 1/z."""

LAPLACE_POINTS: Final = 1 << 22
"""Most points of a composed grid; what would have more is computed on a coarser one, which is an upper bound too."""

FFT_ERROR: Final = 1e-15
"""What dp-accounting's own composition may lose of delta per step, fourteen times the most that was measured (7e-17)."""

_REAL_ORDERS: Final = tuple(1.0 + 2.0 ** (k / 16) for k in range(-6 * 16, 22 * 16 + 1))
_WHOLE_ORDERS: Final = (*range(2, 257), *(round(2 ** (8 + k / 16)) for k in range(1, 4 * 16 + 1)))


class Steps(Protocol):
    """A phase: so many steps at one noise multiplier and sampling rate."""

    @property
    def noise_multiplier(self) -> float: ...
    @property
    def sampling_rate(self) -> float: ...
    @property
    def steps(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Combinations:
    """What a family can be combined with: the choices that are accounted for, the usual one first."""

    accountants: tuple[str, ...]
    exactness: tuple[str, ...]
    injections: tuple[str, ...]
    disclosures: tuple[str, ...]
    why: dict[str, str]


NOT_AMPLIFIED: Final = ("discrete_gaussian", "skellam")
"""Families whose accountant counts nothing on draws that stay secret."""

_NO_AMPLIFICATION: Final = "no amplification by sampling is shown for its integers, so only Rényi divergences are composed"

TABLE: Final[dict[str, Combinations]] = {
    GAUSSIAN: Combinations(
        ("pld", "rdp", "moments", "prv"),
        ("fast", "certified"),
        ("scheduled", "per_microbatch", "per_sample"),
        ("secret_poisson", "occurrences_public"),
        {},
    ),
    "laplace": Combinations(
        ("pld",),
        ("certified",),
        ("scheduled",),
        ("secret_poisson",),
        {
            "accountant": "its amplification by sampling is accounted for by privacy loss distributions",
            "exactness": "its sensitivity is an L1 norm, which is clipped and certified on integers alone; clipping the L2 norm"
            " would fall short by a factor of up to sqrt(d)",
            "injection": "a sum of Laplace draws is not a Laplace draw",
            "disclosure": "the sum of 1/z^2 over public occurrences does not determine its epsilon",
        },
    ),
    "discrete_gaussian": Combinations(
        ("rdp",),
        ("certified",),
        ("scheduled",),
        ("secret_poisson", "occurrences_public"),
        {
            "accountant": _NO_AMPLIFICATION,
            "exactness": "it is added to integers, which contributions are at that level alone",
            "injection": "a sum of discrete Gaussian draws is not a discrete Gaussian draw, only close to one",
        },
    ),
    "skellam": Combinations(
        ("rdp",),
        ("certified",),
        ("scheduled", "per_microbatch"),
        ("secret_poisson", "occurrences_public"),
        {
            "accountant": _NO_AMPLIFICATION,
            "exactness": "it is added to integers, which contributions are at that level alone",
            "injection": "its variance is tabulated beforehand, and would follow who is drawn",
        },
    ),
}
"""Every combination that a policy may ask for. One more: ``per_sample`` goes with ``fast`` alone, whose lattice may move."""


def refusal(
    family: str, accountant: str, exactness: str, injection: str, disclosure: str, *, budgets: bool = False
) -> str | None:
    """Returns why these settings have no accounting together, with the nearest that do, or None if they have.

    Args: the fields of a policy that name them; budgets: whether the clip norm is divided among blocks.
    """
    combinations = TABLE.get(family)
    if combinations is None:
        return f"noise.family {family!r} has no accounting in this version, expected {_or(TABLE)}"
    asked = (
        ("accountant", accountant, combinations.accountants),
        ("exactness", exactness, combinations.exactness),
        ("injection", injection, combinations.injections),
        ("disclosure", disclosure, combinations.disclosures),
    )
    for name, found, possible in asked:
        if found not in possible:
            key = "noise.injection" if name == "injection" else name
            reason = f" ({combinations.why[name]})" if name in combinations.why else ""
            return (
                f"noise.family {family!r} goes with {key} {_or(possible)}, not with {found!r}{reason}; "
                f"{nearest(family, accountant, exactness, injection, disclosure)}"
            )
    if injection == "per_sample" and exactness != "fast":
        return (
            f"noise.injection 'per_sample' goes with exactness 'fast', not with {exactness!r}, whose lattice is that of"
            " scheduled noise; set exactness = 'fast', or noise.injection = 'scheduled'"
        )
    if budgets and family != GAUSSIAN:
        return (
            f"noise.budgets goes with noise.family {GAUSSIAN!r}, not with {family!r}: what divided clip norms are worth is"
            f" shown for Gaussian noise alone; leave budgets out, or set noise.family = {GAUSSIAN!r}"
        )
    return None


def nearest(family: str, accountant: str, exactness: str, injection: str, disclosure: str) -> str:
    """Returns the settings of the family that differ least from these, as a sentence of what to set."""
    combinations = TABLE[family]
    changes = [
        f"{key} = {possible[0]!r}"
        for key, found, possible in (
            ("accountant", accountant, combinations.accountants),
            ("exactness", exactness, combinations.exactness),
            ("noise.injection", injection, combinations.injections),
            ("disclosure", disclosure, combinations.disclosures),
        )
        if found not in possible
    ]
    return f"set {' and '.join(changes)}, or noise.family = {GAUSSIAN!r}"


def epsilon_of_phases(
    family: str,
    phases: Sequence[Steps],
    delta: float,
    accountant: str,
    *,
    replace: bool = False,
) -> float:
    """Returns epsilon of a run in phases under a family beside the Gaussian.

    Guarantee:
        An upper bound at ``delta`` under zero-out adjacency, both directions; with ``replace``, under content replacement.
        Laplace is amplified by sampling, but not under replacement; the discrete Gaussian and Skellam never are.

    Args:
        phases: any order, z >= 0. delta: at least 1e-12.

    Raises:
        AccountantError: no such family, or an accountant that does not account for it.
    """
    check(family, accountant)
    held = [p for p in phases if p.steps > 0 and p.sampling_rate > 0.0]
    if any(p.noise_multiplier <= 0.0 for p in held):
        return math.inf
    if not held:
        return 0.0
    if family == "laplace":
        return _laplace(
            _merged((p.noise_multiplier, 1.0 if replace else p.sampling_rate, p.steps) for p in held), delta, replace
        )
    loss = math.fsum(p.steps / p.noise_multiplier**2 for p in held)
    return _of_loss(family, loss * (4.0 if replace else 1.0), delta)


def epsilon_capped(
    family: str, phases: Sequence[Steps], occurrences: int, delta: float, accountant: str, *, replace: bool = False
) -> float:
    """Returns epsilon where the contribution takes part in at most ``occurrences`` of the steps, and who does stays secret.

    Guarantee:
        An upper bound as `epsilon_of_phases`: the smaller of that and of the cap's worth of dearest steps, each in full
        (hockey-stick and Rényi divergences are jointly quasi-convex over the patterns of participation, which do not depend on
        its content).
    """
    left, dearest = occurrences, []
    for phase in sorted(phases, key=lambda p: p.noise_multiplier):
        if phase.sampling_rate > 0.0 and phase.steps > 0 and left > 0:
            dearest.append(_Steps(phase.noise_multiplier, 1.0, min(left, phase.steps)))
            left -= dearest[-1].steps
    full, capped = (epsilon_of_phases(family, steps, delta, accountant, replace=replace) for steps in (phases, dearest))
    return min(full, capped)


def epsilon_occurrences(family: str, loss: float, delta: float, accountant: str) -> float:
    """Returns epsilon of public occurrences whose 1/z^2 add up to ``loss``.

    Raises:
        AccountantError: for a family whose epsilon is no function of that sum.
    """
    check(family, accountant)
    if "occurrences_public" not in TABLE[family].disclosures:
        sentence = refusal(family, accountant, "certified", "scheduled", "occurrences_public")
        raise AccountantError("FAMILY", sentence or "")
    return _of_loss(family, float(loss), delta) if loss > 0.0 else 0.0


def check(family: str, accountant: str) -> None:
    """Raises AccountantError for a family without formulas here, or an accountant that does not go with it."""
    if family == GAUSSIAN or family not in TABLE:
        raise AccountantError("FAMILY", f"no formula here for noise family {family!r}, expected {_or(list(TABLE)[1:])}")
    if accountant not in TABLE[family].accountants:
        sentence = f"noise family {family!r} is accounted by {_or(TABLE[family].accountants)}, not by {accountant!r}"
        raise AccountantError("FAMILY", f"{sentence}: {TABLE[family].why['accountant']}")


def describe(family: str, accountant: str) -> tuple[str, str, str, str]:
    """Returns (name, library, library version, parameters) of the accountant, for the ledger's header."""
    check(family, accountant)
    version = metadata.version("dp-accounting")
    if family == "laplace":
        parameters = (
            f"family=laplace interval={LAPLACE_INTERVAL:g} relation=ADD_OR_REMOVE_ONE amplification=poisson rounding=up-1e-6"
        )
        return accountant, "dp-accounting", version, parameters
    curve = (
        "zcdp=1/(2z^2)" if family == "discrete_gaussian" else f"variance=2^{SKELLAM_VARIANCE.bit_length() - 1} integer-orders"
    )
    return accountant, "own", "1", f"family={family} {curve} amplification=none conversion=Canonne2020-12 rounding=up-1e-6"


def discrete_gaussian_rdp(order: float, loss: float) -> float:
    """Rényi divergence of discrete Gaussian releases at most: order/2 times the sum of 1/z^2, that is (loss/2)-zCDP.

    Source: Canonne, Kamath and Steinke (2020), Theorem 14: added to integers whose difference q has |q|_2 <= sigma/z.
    """
    return order * loss / 2.0


def skellam_rdp(order: int, loss: float) -> float:
    """Rényi divergence of Skellam releases at most, for an integer order above 1.

    Source: Agarwal, Kairouz and Liu (2021), Theorem 3.5: a D2^2 / (2v) + min(((2a - 1) D2^2 + 6 D1) / (4 v^2), 3 D1 / (2v)) for
    variance v and integers whose difference has norms D1 and D2. Integers have D1 <= D2^2, and D2^2 <= v / z^2 here, so both
    are taken at v / z^2, which makes the bound proportional to the sum of 1/z^2.
    """
    v = float(SKELLAM_VARIANCE)
    return loss * (order / 2.0 + min((2.0 * order + 5.0) / (4.0 * v), 1.5))


@dataclass(frozen=True, slots=True)
class _Steps:
    noise_multiplier: float
    sampling_rate: float
    steps: int


def _of_loss(family: str, loss: float, delta: float) -> float:
    if family == "discrete_gaussian":
        return _of_curve(_REAL_ORDERS, lambda order: discrete_gaussian_rdp(order, loss), delta)
    return _of_curve(_WHOLE_ORDERS, lambda order: skellam_rdp(int(order), loss), delta)


def _of_curve(orders: Iterable[float], divergence: Callable[[float], float], delta: float) -> float:
    """Epsilon of a Rényi curve: min over orders a of D_a + log(1 - 1/a) - log(delta a) / (a - 1), and at least 0.

    Source: Canonne, Kamath and Steinke (2020), Proposition 12. Orders up to 1.01 are left out: log(1 - 1/a) is inexact there.
    """
    best = math.inf
    for order in orders:
        if order > 1.01:
            value = divergence(order) + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0)
            best = min(best, value)
    return max(0.0, best)


def _merged(phases: Iterable[tuple[float, float, int]]) -> tuple[tuple[float, float, int], ...]:
    steps: dict[tuple[float, float], int] = {}
    for z, q, count in phases:
        steps[z, q] = steps.get((z, q), 0) + count
    return tuple((z, q, count) for (z, q), count in sorted(steps.items()))


@lru_cache(maxsize=4096)
def _laplace(phases: tuple[tuple[float, float, int], ...], delta: float, replace: bool) -> float:
    """Laplace releases, each dominated by the pair Laplace(0, z) and Laplace(1, z) sampled at rate q (docs/mechanism,
    Theorem 9).

    Under replacement two payloads are 2/z apart, and what sampling would add is not counted. Never above pure composition, nor
    above the Rényi bound without sampling. The library composes by a Fourier transform to the power of the number of steps,
    whose rounding moves delta by up to 7e-17 per step in either sense: so it is asked for a delta smaller by `FFT_ERROR` per
    step, and not at all where that is a tenth of delta.
    """
    sensitivity = 2.0 if replace else 1.0
    bounds = [sensitivity / z for z, _, _ in phases]
    steps = [count for _, _, count in phases]
    pure = math.fsum(count * bound for count, bound in zip(steps, bounds, strict=True))
    without = _of_curve(_REAL_ORDERS, lambda order: laplace_rdp(order, bounds, steps), delta)
    lost = FFT_ERROR * sum(steps)
    if lost > 0.1 * delta:
        return min(pure, without)
    # Losses add up to within eight standard deviations of their mean (Hoeffding, 1e-15 on either side), or to pure at most.
    width = min(2.0 * pure, 17.0 * math.sqrt(math.fsum(n * b * b for n, b in zip(steps, bounds, strict=True))))
    interval = max(LAPLACE_INTERVAL, LAPLACE_INTERVAL * 0.1 * max(bounds), width / LAPLACE_POINTS)
    # The library brings scipy, a second of start-up that commands which account for nothing need not wait for.
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    for z, q, count in phases:
        event = dp_accounting.LaplaceDpEvent(z / sensitivity)
        accountant.compose(event if q == 1.0 else dp_accounting.PoissonSampledDpEvent(q, event), count)
    return max(0.0, min(float(accountant.get_epsilon(delta - lost)), pure, without))


def laplace_rdp(order: float, bounds: Sequence[float], steps: Sequence[int]) -> float:
    """Rényi divergence of Laplace releases without sampling, shifts over scales being ``bounds``.

    Source: Mironov (2017), Table II: log(a/(2a-1) e^((a-1) b) + (a-1)/(2a-1) e^(-a b)) / (a - 1); at most a b^2 / 2, and b.
    """
    total = 0.0
    for bound, count in zip(bounds, steps, strict=True):
        if (order - 1.0) * bound > 600.0 or order * bound < 1e-6:
            total += count * min(bound, 0.5 * order * bound * bound)
            continue
        grown = order * math.expm1((order - 1.0) * bound) + (order - 1.0) * math.expm1(-order * bound)
        total += count * min(bound, math.log1p(grown / (2.0 * order - 1.0)) / (order - 1.0) + 1e-15)
    return total


def _or(names: Iterable[str]) -> str:
    return " or ".join(map(repr, names))
