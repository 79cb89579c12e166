"""Computes what a run costs: training, planning and auditing take one number from this one piece of code.

Results are upper bounds under zero-out adjacency: the payload of one contribution is replaced by a null of the same public
shape (equal to add-or-remove-one in every number). The accountant of record is fixed by the policy: `pld` (default), `rdp`,
`moments` or `prv`, or one that an installed package has registered; what each computes is said in `describe`, and how they
lie to each other in docs/mechanism. `table` holds accountants and noise families, and what goes with what.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from ledger.accountants import core, gaussian, integers, laplace, prv, renyi
from ledger.accountants.core import (
    check_recorder,
    epsilon,
    epsilon_at_deltas,
    epsilon_at_steps,
    epsilon_occurrences,
    epsilon_of_phases,
    epsilon_of_phases_capped,
    held_to,
    leeway,
    likely_occurrences,
)
from ledger.accountants.correlated import costs as of_correlated
from ledger.accountants.mixtures import epsilon_group, epsilon_of_principal
from ledger.accountants.phases import (
    MAX_MULTIPLIER,
    MAX_STEPS,
    MIN_DELTA,
    Counted,
    Participation,
    Phase,
    Sampled,
    check_delta,
    check_epsilon,
    first_steps,
    merged,
    released_once,
)
from ledger.accountants.pld import composed as pld
from ledger.accountants.solvers import MICRO, calibrate, calibrate_phases, largest_rate, largest_steps
from ledger.accountants.table import (
    ACCOUNTANTS,
    TABLE,
    Accountant,
    Cost,
    Recorder,
    check,
    check_accountant,
    provided,
    refusal,
    refusal_of,
    register_accountant,
    register_cost,
    turns_under,
)
from ledger.errors import AccountantError

__all__ = [
    "ACCOUNTANTS", "MAX_MULTIPLIER", "MAX_STEPS", "MICRO", "MIN_DELTA", "TABLE", "Accountant", "AccountantError", "Cost",
    "Counted", "Participation", "Phase", "Recorder", "Sampled", "calibrate", "calibrate_phases", "caveat", "check_epsilon",
    "check_recorder", "describe", "epsilon", "epsilon_at_deltas", "epsilon_at_steps", "epsilon_group", "epsilon_occurrences",
    "epsilon_of_phases", "epsilon_of_phases_capped", "epsilon_of_principal", "first_steps", "gaussian", "held_to",
    "largest_rate", "largest_steps", "leeway", "likely_occurrences", "merged", "provided", "refusal", "refusal_of",
    "register_accountant", "register_cost", "register_prv",
    "released_once", "to_micro_up", "turns_under",
]  # fmt: skip

for _accountant in (pld.Pld(), renyi.Rdp(), renyi.Moments(), prv.Prv()):
    register_accountant(_accountant)
for _cost in (gaussian.Gaussian(), laplace.Laplace(), integers.DiscreteGaussian(), integers.Skellam(), *of_correlated.COSTS):
    register_cost(_cost)

_MAX_EPSILON_MICRO: Final = (1 << 62) - 1
_GUARD_MICRO: Final = 0.5


def to_micro_up(value: float) -> int:
    """Rounds an epsilon of record up to a multiple of 1e-6.

    A guard of 5e-7 is added first: an auditor's machine may differ from the writer's in the last bits, and must find
    the recorded value neither below its own nor more than 2e-6 above.

    Raises:
        AccountantError: for an infinite value, which cannot be recorded: without noise there is no bound.
    """
    if value == 0.0:
        return 0
    if not value < _MAX_EPSILON_MICRO / MICRO:
        raise AccountantError("UNBOUNDED", f"epsilon {value} cannot be recorded; the noise multiplier is too small")
    return math.ceil(value * MICRO + _GUARD_MICRO)


def describe(accountant: str = "pld", family: str = "gaussian") -> tuple[str, str, str, str]:
    """Returns (name, library, library version, parameters) of an accountant, for the ledger's header."""
    check_accountant(accountant)
    return accountant, *check(family, accountant).describe(accountant)


def caveat(phases: Sequence[Phase], delta: float, accountant: str = "pld") -> str | None:
    """Returns what must be said beside an epsilon of this accountant, None if nothing."""
    check_accountant(accountant)
    normal = merged(phases)
    if not normal or normal[0].noise_multiplier == 0.0:
        return None
    return ACCOUNTANTS[accountant].caveat(normal, check_delta(delta))


def register_prv(source: prv.Source, about: Callable[[], tuple[str, str, str] | None]) -> None:
    """Plugs in what computes the values of `prv`; until then they are the top of their bracket, pld + 0.02."""
    prv.register(source, about)
    core.cached.cache_clear()


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
