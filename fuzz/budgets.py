"""Fuzz targets of what auditors of budget logs read: leaves, and what they do to the state of a log.

Beside what every target holds: an accepted leaf is written in no other way; a leaf that is refused changes nothing; and nobody
is admitted to generation, or withdrawn, but by a leaf that says so.
"""

import tempfile
from pathlib import Path

from attest.descriptor import SignedDescriptor
from fuzz.invariants import Target, require
from ledger.budget.leaves import Header, Leaf, Reference, decode_leaf, encode_leaf
from ledger.budget.state import BudgetState
from ledger.errors import LedgerError
from tests.worlds.budget_lies import lived
from tests.worlds.generating import generated


def _leaves() -> dict[str, list[bytes]]:
    """Returns the leaves of a log of users, and of one of contributions that make texts."""
    found = {}
    for name, make in (("users", lived), ("contributions", generated)):
        with tempfile.TemporaryDirectory() as folder, make(Path(folder) / "b.db") as log:
            found[name] = [row.body for row in log.rows(log.size)]
    return found


LEAVES = _leaves()
FIRST = 6
"""Leaves of the log of contributions that stand before the one that is fuzzed."""


def _held(state: BudgetState) -> tuple[object, ...]:
    accounts = {account: found.spent for account, found in state.accounts.items()}
    return state.size, accounts, dict(state.admitted), dict(state.withdrawn), set(state.open)


def run_budget_leaf(data: bytes) -> None:
    """A leaf of a budget log, read and put behind the first leaves of a log."""
    try:
        leaf: Leaf = decode_leaf(data)
    except LedgerError:
        return
    require(encode_leaf(leaf) == data, "an accepted leaf is written otherwise")
    header = decode_leaf(LEAVES["contributions"][0])
    assert isinstance(header, Header)
    state = BudgetState(header)
    for body in LEAVES["contributions"][1:FIRST]:
        state.apply(decode_leaf(body))
    before, known = _held(state), set(state.admitted)
    try:
        state.apply(leaf)
    except LedgerError:
        require(_held(state) == before, "a refused leaf changed something")
        return
    admitted = set(state.admitted) - known
    require(not admitted or (isinstance(leaf, Reference) and admitted == {leaf.account}), "somebody else was admitted")
    if isinstance(leaf, Reference):
        require(SignedDescriptor.from_cbor(leaf.descriptor).allows("generate"), "admitted who did not sign to generate")
    for account, found in state.accounts.items():
        cap = state.cap(found.unit, account)
        require(cap is None or found.spent <= cap, "a unit is above its cap")


BUDGET_TARGETS: dict[str, Target] = {
    "budget_leaf": Target(run_budget_leaf, [*LEAVES["users"], *LEAVES["contributions"], LEAVES["contributions"][FIRST]], 2000),
}
