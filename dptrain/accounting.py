"""Adds to `ledger.accountants` what training has: opacus's PRV accountant as the source of `prv`, and what has no accounting.

Importing this imports neither opacus nor torch, so that the command line refuses a policy before anything is signed.
"""

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ledger import accountants
from ledger.accountants import Phase, renyi

if TYPE_CHECKING:
    from attest.policy import Policy

EPS_ERROR: Final = 0.01
"""Half width of the error bars in epsilon that the library is asked for; what it returns is their upper end."""

DELTA_ERROR: Final = 1e-3
"""Share of delta that it may be off by, in the same sense."""

MAX_POINTS: Final = 1 << 22
"""Longer grids are not computed on: seconds and a few hundred megabytes. The top of the bracket counts then."""

LEAST_MULTIPLIER: Final = 0.3
"""Below it losses are too large for the library's domain and its series of fractional orders; the top of the bracket counts."""


def register() -> None:
    """Makes opacus's accountant the source of `prv`. Cheap; opacus is loaded when a value is asked for."""
    accountants.register_prv(epsilon, about)


def about() -> tuple[str, str, str] | None:
    """Returns (library, version, parameters); None if opacus is not installed."""
    from importlib import metadata

    try:
        version = metadata.version("opacus")
    except metadata.PackageNotFoundError:
        return None
    return "opacus", version, f"eps_error={EPS_ERROR} delta_error=delta*{DELTA_ERROR} points<={MAX_POINTS}"  # prv.SOURCES


def epsilon(phases: Sequence[Phase], delta: float) -> float | None:
    """Returns opacus's upper end of epsilon for phases in normal form, None where it has none or would take too long.

    Guarantee:
        A function of its arguments and the library's version alone: what is too long is decided by the size of the grid, not by
        a clock, so that the same schedule has the same value on every machine. No error of the library passes.
        By itself it is no bound: `ledger.accountants.prv` holds it against that of `pld`.
    """
    if min(phase.noise_multiplier for phase in phases) < LEAST_MULTIPLIER or points(phases, delta) > MAX_POINTS:
        return None
    try:
        accountant = _accountant()
    except ImportError:
        return None
    accountant.history = [(phase.noise_multiplier, phase.sampling_rate, phase.steps) for phase in phases]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = float(accountant.get_epsilon(delta, eps_error=EPS_ERROR, delta_error=DELTA_ERROR * delta))
    except (ArithmeticError, MemoryError, RuntimeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _accountant() -> Any:
    """Returns opacus's accountant, by the code that computes its figures fast."""
    import opacus.accountants  # noqa: F401 - says that it is not installed, before what imports it does

    from dptrain.opacus_prv import Accountant

    return Accountant()


def points(phases: Sequence[Phase], delta: float) -> float:
    """Returns about how many points the library's grid will have: twice the Renyi epsilon and 3, by its mesh.

    Source: Gopi, Lee and Wutschitz (2021), Theorem 5.5, and Remark 5.6 on the domain.
    """
    error = DELTA_ERROR * delta
    steps = sum(phase.steps for phase in phases)
    mesh = EPS_ERROR / math.sqrt(steps * math.log(12.0 / error) / 2.0)
    return 2.0 * (renyi.epsilon(phases, error / 4.0) + 3.0) / mesh


def unsupported(policy: "Policy") -> tuple[str, ...]:
    """Says in a sentence what this build does not carry of a policy; empty if it can train under it.

    What a policy may not ask for at all is refused before there is one (`attest.policy.unbuilt`). What is left is carried by
    itself, and may have no accounting together (`ledger.accountants.refusal_of`).
    """
    together = accountants.refusal_of(policy)
    return () if together is None else (f"the policy asks for what has no accounting together: {together}",)
