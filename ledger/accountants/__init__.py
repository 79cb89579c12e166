"""Privacy accountants: training, planning and auditing compute one number with this one piece of code.

Results are upper bounds under zero-out adjacency: the payload of one contribution is replaced by a null of the same public
shape (equal to add-or-remove-one in every number). The accountant of record is fixed by the policy: `pld` (default), `rdp`,
`moments` or `prv`; what each computes is said in `describe`, and how they lie to each other in docs/mechanism.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from ledger.accountants import core, gaussian, prv, renyi
from ledger.accountants.core import (
    ACCOUNTANTS,
    epsilon,
    epsilon_capped,
    epsilon_occurrences,
    epsilon_of_phases,
    epsilon_of_phases_capped,
    epsilon_replace,
    likely_occurrences,
)
from ledger.accountants.mixtures import epsilon_examples, epsilon_group, epsilon_of_principal
from ledger.accountants.phases import MAX_MULTIPLIER, MAX_STEPS, MIN_DELTA, Phase, check_delta, check_epsilon, merged
from ledger.accountants.pld import composed as pld
from ledger.accountants.solvers import MICRO, calibrate, calibrate_phases, largest_rate, largest_steps
from ledger.accountants.versions import check_recorder, leeway
from ledger.errors import AccountantError

__all__ = [
    "ACCOUNTANTS",
    "MAX_MULTIPLIER",
    "MAX_STEPS",
    "MICRO",
    "MIN_DELTA",
    "AccountantError",
    "Phase",
    "calibrate",
    "calibrate_phases",
    "caveat",
    "check_epsilon",
    "check_recorder",
    "describe",
    "epsilon",
    "epsilon_capped",
    "epsilon_examples",
    "epsilon_group",
    "epsilon_occurrences",
    "epsilon_of_phases",
    "epsilon_of_phases_capped",
    "epsilon_of_principal",
    "epsilon_replace",
    "gaussian",
    "largest_rate",
    "largest_steps",
    "leeway",
    "likely_occurrences",
    "merged",
    "register_prv",
    "to_micro_up",
]

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
    core.check_accountant(accountant)
    if family != "gaussian":
        from ledger.accountants import families

        return families.describe(family, accountant)
    if accountant == "prv":
        return "prv", *prv.describe()
    if accountant == "pld":
        return "pld", "dptrain", pld.KERNEL, pld.PARAMETERS
    return accountant, "dptrain", renyi.KERNEL, renyi.described(accountant)


def caveat(phases: Sequence[Phase], delta: float, accountant: str = "pld") -> str | None:
    """Returns what must be said beside an epsilon of this accountant, None if nothing.

    The moments accountant's figure is valid at every lambda, but at either end of its range the range, not the
    mechanism, decides it; not where its bound on chi^2 does.
    """
    core.check_accountant(accountant)
    normal = merged(phases)
    if accountant != "moments" or not normal or normal[0].noise_multiplier == 0.0:
        return None
    order = renyi.moments(normal, check_delta(delta))[1]
    if order not in (renyi.LAMBDAS[0], renyi.LAMBDAS[-1]):
        return None
    return (
        f"the moments accountant finds its least epsilon at lambda = {order}, the end of its range: the bound holds, but says "
        "more about the range than about the run; compare mechanisms by another accountant"
    )


def register_prv(source: prv.Source, about: Callable[[], tuple[str, str, str] | None]) -> None:
    """Plugs in what computes the values of `prv`; until then they are the top of their bracket, pld + 0.02."""
    prv.register(source, about)
    core.cached.cache_clear()
