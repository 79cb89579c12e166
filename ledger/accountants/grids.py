"""Composes loss distributions by dp-accounting, on grids of a bounded number of points.

The library sizes a composed grid by Chernoff's bound with tilts of at most 20 over the points of one step. Over many steps that
grows with their number, where losses spread with its root. So a size is asked for here before anything of it is made. What has
too many points is computed on a coarser grid, which is an upper bound too.
"""

import sys
from importlib.util import find_spec
from typing import Any, Final

from attest.schema.words import NOT_INSTALLED
from ledger.errors import AccountantError

MOST_POINTS: Final = 1 << 22
"""Most points of a grid that is composed."""

TAIL: Final = 1e-15
"""Mass that a composition may move to infinity; the library's own default."""

_SPARSE: Final = 1000
"""Most points of what the library composes without a transform."""


def require(what: str) -> None:
    """Refuses what only the library computes, where it is not installed; it is not loaded for that.

    Args:
        what: the figures that need it, as the subject of a sentence in the plural.

    Raises:
        AccountantError: code NOT_INSTALLED.
    """
    if sys.modules.get("dp_accounting") is None and ("dp_accounting" in sys.modules or find_spec("dp_accounting") is None):
        how = "which is not installed; run: pip install 'dptrain[accounting]'"
        raise AccountantError(NOT_INSTALLED, f"{what} are computed by dp-accounting, {how}")


def repeated(step: Any, times: int) -> Any | None:
    """Returns the distribution of ``times`` independent steps, None where its grid has more than `MOST_POINTS` points.

    It is the library's own to the last bit. The library asks whether (points of a step)^times is small, a power that can have
    gigabytes: here the exponent is at most 10, to the same answer. It would compose a step of one point one by one.
    """
    from dp_accounting.pld import common

    if not 1 < step.size ** min(times, 10) <= _SPARSE:
        step = step.to_dense_pmf()
        low, high = 0, (step.size - 1) * times
        if high >= MOST_POINTS:
            low, high = common.compute_self_convolve_bounds(step._probs, times, TAIL)
        if high - low >= MOST_POINTS:
            return None
    return step.self_compose(times, TAIL)


def together(one: Any, other: Any) -> Any | None:
    """Returns the distribution of two that are independent, None where its grid has more than `MOST_POINTS` points."""
    from dp_accounting.pld import pld_pmf

    return None if one.size + other.size - 1 > MOST_POINTS else pld_pmf.compose_pmfs(one, other, TAIL)
