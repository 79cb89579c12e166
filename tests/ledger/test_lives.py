"""Random lives of a ledger: whatever happens in whatever order, a naive count of the charges is what is recorded."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spends import told

from ledger import accountants
from ledger.audit import verify_export
from ledger.leaves import decode_leaf
from ledger.log import Ledger
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy

POLICY = signed_policy(steps=400, redo_steps=400)
EVENTS = st.lists(
    st.sampled_from(["admit", "admit", "charge", "charge", "abandon", "withdraw", "epoch", "restart", "reopen"]),
    min_size=1,
    max_size=14,
)


class NaiveCount:
    """Counts, for every contribution by itself, the steps charged while it was in the pool."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.active: set[int] = set()

    def admit(self, n: int) -> None:
        self.steps[n] = 0
        self.active.add(n)

    def charge(self, steps: int) -> None:
        for n in self.active:
            self.steps[n] += steps


@settings(max_examples=25, deadline=None)
@given(EVENTS, st.data())
@pytest.mark.slow
def test_recorded_expenditure_is_the_naive_count_of_charged_steps(events, data):
    naive = NaiveCount()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        run = Driver(Ledger.create(path, header_spec(POLICY), SIGNER, now=START))
        for event in events:
            if event == "admit":
                n = len(naive.steps)
                run.admit(admission(n, "open" if n % 2 else "sensitive"))
                naive.admit(n)
            elif event == "charge":
                steps = data.draw(st.integers(1, 4))
                run.steps(1, steps)
                naive.charge(steps)
            elif event == "abandon":
                run.charge(3)
                naive.charge(3)
                run.ledger.resume(run.ledger.state.position, run.ledger.pin(), now=run.tick())
            elif event == "withdraw" and naive.steps:
                n = data.draw(st.integers(0, len(naive.steps) - 1))
                run.withdraw(n)
                naive.active.discard(n)
            elif event == "epoch":
                run.epoch()
            elif event == "restart":
                run.ledger.resume(0, None, now=run.tick())
            elif event == "reopen":
                position, pin = run.ledger.state.position, run.ledger.pin()
                run.ledger.close()
                run.ledger = Ledger.open(path, SIGNER)
                run.ledger.resume(position, pin, now=run.tick())
        run.epoch()
        run.ledger.finish(now=run.tick())
        export = run.ledger.export(Path(folder) / "export")
        with run.ledger.rows() as rows:
            leaves = [decode_leaf(row.body) for row in rows]
        run.ledger.close()
        last = told(leaves)
        for n, steps in naive.steps.items():
            spend = last[descriptor(n)]
            z, q = (1.0, 0.02) if n % 2 else (3.0, 0.01)
            exact = accountants.epsilon(z, q, steps, 1e-6)
            assert spend.steps == steps and exact <= spend.epsilon_micro / 1e6 <= exact + 2e-6
        assert verify_export(export, [SIGNER.vkey]).findings == ()
