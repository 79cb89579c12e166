"""Whether statement A has held so far: one word for the run, which only ever becomes weaker."""

import warnings

from dptrain.errors import NotPrivateUse
from ledger.leaves import HELD


class IsolationNotice(UserWarning):
    """Statement A does not hold of this run any more, or never did; every epsilon is as before."""


class Isolation:
    """What this run may say of statement A (docs/guarantee.md).

    Guarantee:
        Once weakened it stays weakened, by the first reason. Where the policy requires A, whatever weakens it raises instead,
        so that ``told`` is ``HELD`` as long as the run goes on.

    Attributes:
        told: ``HELD``, or the first reason why statement A is weaker: what the ledger records.
    """

    def __init__(self, *, required: bool) -> None:
        """Starts with nothing known against it.

        Args:
            required: whether the signed policy requires statement A.
        """
        self.told = HELD
        self._required = required

    @property
    def held(self) -> bool:
        """Whether nothing weakened it so far."""
        return self.told == HELD

    def weaken(self, reason: str, instead: str) -> None:
        """Takes note that statement A does not hold from here on; says so once.

        Args:
            reason: what happened, for the record. instead: what keeps A.

        Raises:
            NotPrivateUse: code ISOLATION, the policy requires statement A.
        """
        if self._required:
            raise NotPrivateUse(
                "ISOLATION",
                f"{reason}: with that a contribution may move blocks outside those of its class within a step, and the policy "
                f"requires that none does ([isolation] required = true); {instead}",
            )
        if not self.held:
            return
        self.told = reason
        warnings.warn(
            f"statement A (direct isolation) does not hold of this run: {reason}. With that a contribution may move blocks "
            "outside those of its class within a step; epsilon is not touched. The ledger records it, and every release will "
            f"say so; to keep A, {instead}",
            IsolationNotice,
            stacklevel=3,
        )

    def carry(self, *told: str) -> None:
        """Goes on from what ledger and checkpoint of a resumed run say."""
        self.told = next((word for word in (self.told, *told) if word != HELD), HELD)
