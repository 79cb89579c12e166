"""Counts a budget from which contributions pay for texts beside the runs of their corpus: with all that its rules allow.

A budget log is never closed. Whoever counts it counts, for everybody of a class that has a rule of generation there, the most
that the rule lets a contribution spend over all texts: what is charged behind the leaves that were cited, and who is admitted
there later, changes nothing of that. So it does not matter at which size it is cited.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from attest.schema.plain import is_ahead, utc
from ledger.leaves import Previous, Withdraw
from ledger.replay.budgets import Account, Limit, Spending, Use, signed_limit
from ledger.replay.contributions import Signed

WITHDRAWN: Final = "withdrawn-from-texts"
"""Reason that a run enters for who was withdrawn in a budget that it counts, which says no reason; the evidence is the hash of
the leaf there."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Says what the rule of one class of a budget lets each contribution spend. `limit`: what the policy of that rule lets one
    spend over all runs; None for no limit."""

    spending: Spending
    limit: Limit | None


@dataclass(frozen=True, slots=True)
class EarlierTexts:
    """Holds what a budget log lets contributions spend, as far as a header cites it.

    Attributes:
        cited: the log, with the reason `texts`. began: time of its header. last_time: of its last cited leaf.
        previous: what it counts itself; None of a log that counts no run, and so admits nobody who signed a limit over runs.
        allowed: by name of the class.
        admitted: descriptor hashes of the contributions that it names. corpora: theirs.
        withdrawn: what it says of withdrawals, as leaves of a run say it.
    """

    cited: Previous
    began: int
    last_time: int
    previous: tuple[Previous, ...] | None
    allowed: Mapping[str, Allowed]
    admitted: frozenset[bytes] = frozenset()
    corpora: frozenset[str] = frozenset()
    withdrawn: tuple[Withdraw, ...] = ()
    _accounts: dict[tuple[str, tuple[int, int]], Account | None] = field(default_factory=dict, repr=False, compare=False)

    def of(self, signed: Signed) -> Account | None:
        """Returns the account of everybody who signed this class and limit; None where the log takes nobody like that.

        Guarantee: it is no less than what such a contribution spends by texts of this log, whenever that is.
        """
        rule, limit = self.allowed.get(signed.class_name), signed.limit
        if rule is None or (self.previous is None and limit[0]):
            return None
        key = (signed.class_name, limit)
        if key not in self._accounts:
            own = signed_limit(limit)
            limits = (*own, *([] if rule.limit is None else [rule.limit]))
            order = (len(self.previous or ()), self.began)
            taken = not any(Use(one, rule.spending.epsilon(one.pair[1])).too_much() for one in own)
            self._accounts[key] = Account(order, rule.spending, rule.spending, limits) if taken else None
        return self._accounts[key]

    def at(self, cited: Previous, last_time: int | None = None) -> "EarlierTexts":
        """Returns it as a header cites it that read fewer of its leaves. `last_time`: of the last of these; that of its header
        where nobody asks whether it is dated before who cites it."""
        known = tuple(leaf for leaf in self.withdrawn if leaf.seq < cited.size)
        last = self.began if last_time is None else last_time
        return replace(self, cited=cited, last_time=last, withdrawn=known, _accounts={})

    def misdates(self, time: int) -> str | None:
        """Tells why a run that counts this log cannot have begun at a time; None where it can, as clocks may differ."""
        return misdated(self.cited, self.last_time, time)


def misdated(cited: Previous, last: int, time: int) -> str | None:
    """Tells why who began at a time cannot have counted leaves up to one of ``last``; None where it can."""
    if not is_ahead(last, time):
        return None
    return f"it says that it began at {utc(time)}, and counts leaves of {cited.origin} up to one of {utc(last)}"
