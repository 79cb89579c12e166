"""Reads the leaves of a budget log as others count it."""

from array import array

from attest.descriptor import SignedDescriptor
from ledger.audit.given import Leaves
from ledger.audit.texts import ReadTexts, Signed
from ledger.budget.counted import counted_as
from ledger.budget.leaves import Header, Reference, Withdrawn, decode_leaf
from ledger.budget.state import BudgetState


def read_texts(leaves: Leaves) -> ReadTexts:
    """Replays leaves that were verified before."""
    state: BudgetState | None = None
    times, withdrawn, signed = array("q"), list[Withdrawn](), dict[bytes, Signed]()
    for body in leaves:
        leaf = decode_leaf(body)
        times.append(leaf.time)
        if isinstance(leaf, Header):
            state = BudgetState(leaf)
            continue
        assert state is not None
        state.apply(leaf, totals=False)
        withdrawn += [leaf] if isinstance(leaf, Withdrawn) else []
        if isinstance(leaf, Reference):
            said = SignedDescriptor.from_cbor(leaf.descriptor)
            limit = said.max_epsilon_micro or 0, said.max_delta_pico or 0
            signed[leaf.account] = Signed(said.admissibility_class, said.bounds, limit, said.content)
    assert state is not None
    return ReadTexts(counted_as(state, leaves.root_at(leaves.size), withdrawn), leaves, times, signed)
