"""Gives out the batches of a run's references, in public order, as long as every contribution of a batch can pay for a text."""

import threading
from typing import TYPE_CHECKING, Final

from attest.schema.plain import machine_time
from dptrain.errors import ConfigError
from dptrain.inference.invisibleink.paying import BudgetMeter
from dptrain.inference.invisibleink.plan import Plan
from dptrain.inference.invisibleink.references import Reference, References
from ledger.budget.log import BudgetLog
from ledger.errors import BudgetExhausted, LeafRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dptrain.inference.invisibleink.generator import InvisibleInk, Stream

Batch = tuple[Reference, ...]

_GONE: Final = ("WITHDRAWN", "EXPIRED")
"""Codes of a log that has a contribution no more which had one when its batch was taken."""


class Pool:
    """Takes batches in turn; threads share it, and processes may share its log.

    Guarantee: which batch comes next follows from ids, labels, salt and the log, all of them public to who holds the log; no
    payload decides it. A batch of which one contribution cannot pay for T tokens, or is gone, is passed over, whole.

    Args:
        references: all of the run. plan: the numbers. log: pays. salt: as `References.batches`.

    Raises:
        ConfigError: as `References.batches`.
    """

    def __init__(self, references: References, plan: Plan, log: BudgetLog, salt: bytes) -> None:
        self.references, self.plan, self.log = references, plan, log
        self._batches = references.batches(plan.batch, salt)
        self._gone = frozenset(one.id for one in references.gone)
        self._next = dict.fromkeys(self._batches, 0)
        self._lock = threading.Lock()

    @property
    def sizes(self) -> dict[str | None, int]:
        """Returns how many batches each label has."""
        return {label: len(found) for label, found in self._batches.items()}

    @property
    def places(self) -> dict[str | None, int]:
        """Returns at which batch each label goes on."""
        with self._lock:
            return dict(self._next)

    def go_on(self, places: "Mapping[str | None, int]") -> None:
        """Goes on at these batches, as an earlier process would have."""
        with self._lock:
            self._next |= {label: places.get(label, 0) % len(found) for label, found in self._batches.items() if found}

    def take(self, label: str | None = None) -> tuple[Batch, BudgetMeter]:
        """Returns the next batch of a label, behind the one that was taken last, and what pays for a text of it.

        Another process may spend the budget of a batch between this and its reservation, or enter a withdrawal, and a
        contribution may end; the reservation refuses then, and `stream` takes the next one where that happens.

        Raises:
            BudgetExhausted: no batch is left whose contributions can all pay for T tokens.
            ConfigError: code LABEL, the references have no such label, or too few of it for a batch.
        """
        found = self._batches.get(label)
        if not found:
            has = ", ".join(repr(one) for one, rows in self._batches.items() if rows)
            raise ConfigError("LABEL", f"no batch of references has the label {label!r:.80}; those that have: {has:.400}")
        batch = self._next_of(label, found)
        if batch is None:
            self.log.refresh()  # what was given back meanwhile
            batch = self._next_of(label, found)
        if batch is None:
            raise self._exhausted(label, found)
        return batch, BudgetMeter(self.log, tuple(one.unit for one in batch))

    def stream(
        self, ink: "InvisibleInk", label: str | None = None, *, labels: "Mapping[str, str] | None" = None
    ) -> "Stream":
        """Returns the iterator of the tokens of the next text of a label, which is paid for; batches that cannot
        pay any more, as another process was faster, are passed over.

        Raises:
            BudgetExhausted, ConfigError: as `take`. Else as `InvisibleInk.stream`.
        """
        while True:
            batch, meter = self.take(label)
            try:
                return ink.stream([one.text for one in batch], meter, labels=labels)
            except (BudgetExhausted, LeafRefused) as error:
                if not self.overtaken(batch, error):
                    raise  # not for want of what this pool looks at

    def overtaken(self, batch: Batch, error: BudgetExhausted | LeafRefused) -> bool:
        """Tells whether a reservation was refused for what happened behind `take`: another process has spent the budget of
        this batch, or a contribution of it was withdrawn or has ended."""
        return (isinstance(error, BudgetExhausted) or error.code in _GONE) and not self.pays(batch)

    def pays(self, batch: Batch) -> bool:
        """Tells whether the budgets hold a text of this batch now."""
        self.log.refresh()
        return self._texts(batch) > 0

    def left(self, label: str | None = None) -> int:
        """Returns how many texts of a label the budgets hold now, where each takes all T tokens; a batch without a cap counts
        once."""
        self.log.refresh()
        return sum(self._texts(batch) for batch in self._batches.get(label) or ())

    def _next_of(self, label: str | None, found: list[Batch]) -> Batch | None:
        """Returns the next batch that can pay, as far as this process has read the log, and moves on behind it."""
        with self._lock:
            for step in range(len(found)):
                place = (self._next[label] + step) % len(found)
                if self._texts(found[place]):
                    self._next[label] = (place + 1) % len(found)
                    return found[place]
        return None

    def _texts(self, batch: Batch) -> int:
        if not self._gone.isdisjoint(one.id for one in batch):
            return 0
        now, state = machine_time(), self.log.state
        each = (state.left(one.unit.kind, self.log.account(one.unit), now=now) for one in batch)
        least = min((left for left in each if left is not None), default=None)
        return 1 if least is None else max(0, least) // self._cost

    @property
    def _cost(self) -> int:
        return self.plan.tokens * self.plan.nano_rho

    def _exhausted(self, label: str | None, found: list[Batch]) -> BudgetExhausted:
        state = self.log.state
        units = [[(one.unit.kind, self.log.account(one.unit)) for one in batch] for batch in found]
        spent = min(max(state.spent(account) for _, account in batch) for batch in units)
        cap = min((cap for one in units[0] if (cap := state.cap(*one)) is not None), default=0)
        whose = "" if label is None else f" of label {label!r:.80}"
        return BudgetExhausted(
            "EXHAUSTED",
            f"none of {len(found)} batches{whose} has contributions that can all pay for {self.plan.tokens} tokens "
            f"({self._cost} of 1e-9 rho each; the least spent of {cap} is {spent}); what is spent does not come back",
            unit="contribution",
            spent=spent,
            cap=cap,
            asked=self._cost,
        )
