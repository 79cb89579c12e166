"""How statement A (direct isolation) stands in a run, as its trainer recorded it.

The header says whether the optimizer keeps A, and every EPOCH leaf whether A held in every step until then. Neither can be
recomputed from a ledger: gradients are in none. What is held here is that the record never contradicts itself, or its policy.
"""

from collections.abc import Iterator

from ledger.errors import LeafRefused
from ledger.leaves import HELD, Epoch, Header


class Isolation:
    """What the leaves so far say of statement A.

    Guarantee:
        Once weakened, A stays weakened, by the first reason that was recorded: a leaf that says otherwise is a problem. So is
        one that says it is weakened where the policy requires A.

    Attributes:
        told: `HELD`, or why A does not hold.
        until: last step of the model for which an EPOCH leaf says so; 0 before the first.
    """

    def __init__(self, header: Header) -> None:
        """Starts with what the header says of the optimizer."""
        self.told, self.until = header.isolation, 0
        self._required = header.policy.isolation_required

    @property
    def held(self) -> bool:
        """Whether nothing weakened it so far."""
        return self.told == HELD

    @property
    def sentence(self) -> str:
        """The same for people."""
        if not self.held:
            return f"weakened, as the trainer recorded: {self.told}"
        if not self.until:
            return "its optimizer keeps it, as the trainer recorded; no epoch says more yet"
        return f"held up to step {self.until}, as the trainer recorded"

    def epoch(self, leaf: Epoch) -> Iterator[LeafRefused]:
        """Takes an EPOCH leaf; yields what is wrong with what it says."""
        if not self.held and leaf.isolation != self.told:
            yield LeafRefused("ISOLATION", f"A was recorded as weakened ({self.told}), the leaf says: {leaf.isolation}")
        elif self.held:
            self.told = leaf.isolation
        if self._required and leaf.isolation != HELD:
            yield LeafRefused("ISOLATION_REQUIRED", f"the policy requires A, and the trainer recorded: {leaf.isolation}")
        self.until = leaf.step

    def resume(self, from_step: int) -> None:
        """Goes back to a step: of later ones of another attempt the EPOCH leaves before it say nothing."""
        self.until = min(self.until, from_step)
