"""Pays for texts from a budget log: T tokens before the first forward pass, of each unit that a text has references of."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dptrain.errors import ConfigError, NotPaid
from dptrain.inference.invisibleink.plan import NAME, Plan
from ledger.budget import Unit
from ledger.budget.leaves import CONTRIBUTION
from ledger.budget.log import BudgetLog, Reservation

if TYPE_CHECKING:
    from dptrain.inference.release import Receipt


@dataclass(frozen=True)
class Paid:
    """Shows that tokens were paid for, by every unit.

    Attributes:
        releases: tokens. reservation: of all units.
    """

    releases: int
    reservation: Reservation


@dataclass(frozen=True)
class BudgetMeter:
    """Reserves for the units of one text: one that pays for all of it, such as the corpus, or every contribution that it has a
    reference of.

    Guarantee: `reserve` returns only when the reservation of all units is durable and their budgets hold it; where one does
    not, none of the others has paid. Contributions pay by one leaf.

    The header of the log has the mechanism of `dptrain.inference.invisibleink.plan.mechanism`. With retrieval each query may
    touch every document, so the corpus pays, never a session or a single one.

    Attributes:
        log: open. units: each once; one alone, or contributions. request: 16 bytes by which the reservation is found in the
            log, random without; a meter that has them pays for one text at a time.
    """

    log: BudgetLog
    units: Sequence[Unit]
    request: bytes | None = None

    def __post_init__(self) -> None:
        if not self.units or len(set(self.units)) != len(self.units):
            raise ConfigError("UNITS", f"{len(self.units)} units pay for a text, expected one or more, each once")
        if len(self.units) > 1 and (other := next((one.kind for one in self.units if one.kind != CONTRIBUTION), None)):
            raise ConfigError("UNITS", f"a {other} pays for a text beside others; give one unit, or contributions alone")

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Paid:
        """Reserves. ``mechanism`` is in words what the header has a name for; its clip norm is in the charge.

        Raises:
            BudgetExhausted: a cap would be passed; nothing is charged. Else as `BudgetLog.reserve`.
            ConfigError: code CORPUS_PAYS, references are retrieved and another unit than a corpus pays.
        """
        if " retrieval " in mechanism and any(unit.kind != "corpus" for unit in self.units):
            raise ConfigError("CORPUS_PAYS", "references that are retrieved are paid for by their corpus; give that unit")
        if self.units[0].kind == CONTRIBUTION:
            return Paid(releases, self.log.reserve_text(self.units, NAME, releases, rho_nano=nano_rho, request=self.request))
        return Paid(releases, self.log.reserve(self.units[0], NAME, releases, rho_nano=nano_rho, request=self.request))

    def settle(self, receipt: object, computed: int) -> None:
        """Ends the reservation of a text, with the next turn of the log; what was never computed comes back then.

        Raises:
            NotPaid: code RECEIPT, the receipt is not one of `reserve`.
        """
        if not isinstance(receipt, Paid):
            raise NotPaid("RECEIPT", f"a text is settled with the receipt that it was paid with, got {type(receipt).__name__}")
        self.log.settle_later(receipt.reservation, computed)


class PaidBefore:
    """Gives one text the receipt of what was paid before its references were looked at, or made into prompts.

    Guarantee: the receipt is given out once, whatever becomes of the text, and however many threads ask: a second text of it
    would be drawn and paid by nobody.

    Attributes:
        meter: made the receipt, and ends it. receipt: of the text.
    """

    def __init__(self, meter: Any, receipt: Any) -> None:
        self.meter, self.receipt = meter, receipt
        self._given = threading.Lock()  # is taken once, and never let go

    def reserve(self, releases: int, *, mechanism: str, nano_rho: int) -> Any:
        """Returns the receipt; the text holds its number of tokens against its own.

        Raises:
            NotPaid: code RECEIPT, a text has it.
        """
        if not self._given.acquire(blocking=False):
            raise NotPaid("RECEIPT", "this receipt was given to a text before, which it paid for; reserve for another text")
        return self.receipt

    def settle(self, receipt: Any, computed: int) -> None:
        """Ends the reservation, as the meter that made it."""
        self.meter.settle(receipt, computed)


def paid_for(meter: Any, plan: Plan) -> "Receipt":
    """Reserves all tokens of a text, and returns the receipt.

    Guarantee: returns only with a receipt of T tokens or more, so that nothing is looked at, or computed, on less.

    Raises:
        NotPaid: code RECEIPT, the meter gave another, or none. What the meter raises passes through.
    """
    receipt: Receipt = meter.reserve(plan.tokens, mechanism=plan.mechanism, nano_rho=plan.nano_rho)
    paid = getattr(receipt, "releases", None)
    if isinstance(paid, bool) or not isinstance(paid, int) or paid < plan.tokens:
        raise NotPaid(
            "RECEIPT",
            f"the meter gave {receipt!r}, expected a receipt of {plan.tokens} tokens; nothing is computed before a budget "
            "holds it",
        )
    return receipt
