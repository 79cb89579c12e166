"""Honest exports of the accountant prv, with and without the figures of a library."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.accountants import Phase, core, epsilon_of_phases, prv
from tests.vectors.conformance.honest import Run, drawing, plain, some
from tests.vectors.conformance.written import Files


@dataclass(frozen=True)
class PrvRun(Run):
    """A run of the accountant `prv`.

    Attributes:
        above: how much more than `pld` a library gives that is plugged in; None for none.
    """

    above: float | None = None

    def files(self) -> Files:
        plugged = [] if self.above is None else [(self._value, lambda: ("opacus", "1.5.3", prv.SOURCES["opacus"]))]
        before, prv._plugged[:] = list(prv._plugged), plugged
        core.cached.cache_clear()
        try:
            return super().files()
        finally:
            prv._plugged[:] = before
            core.cached.cache_clear()

    def _value(self, phases: Sequence[Phase], delta: float) -> float:
        assert self.above is not None
        return epsilon_of_phases(phases, delta) + self.above


RUNS: Final[dict[str, Run]] = {
    "prv": PrvRun("the accountant prv, without a library", plain, {"accountant": "prv"}),
    "prv of a library": PrvRun(
        "the accountant prv by the figures of a library", plain, {"accountant": "prv"}, above=0.004
    ),
    "prv and public draws": PrvRun(
        "the accountant prv where draws are public", drawing(some), {"accountant": "prv", "disclosure": "occurrences_public"}
    ),
}
"""Honest exports by name."""
