"""The statement for those who withdrew, and what becomes of a content: true sentences, bounds that grow with the group."""

import hashlib

import pytest

from attest.descriptor import SignedBounds
from attest.schema.plain import commit_content
from ledger.accountants import epsilon_group, epsilon_occurrences
from ledger.errors import LeafRefused, LedgerError
from ledger.log import Ledger
from ledger.views.trace import Wanted, trace, withdrawal_statement
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy


def bodies(ledger):
    with ledger.rows() as rows:
        return [row.body for row in rows]


def test_what_was_spent_stays_spent_and_no_unlearning_is_claimed(run):
    run.admit(admission(1), admission(2))
    run.steps(2)
    run.withdraw(2)
    run.withdraw(99)
    run.steps(2)
    statement = withdrawal_statement(run.ledger.state)
    mine, stranger = statement.rows
    assert mine.epsilon == run.ledger.epsilon(descriptor(2)) < run.ledger.epsilon(descriptor(1))
    assert mine.steps == 8 and "No unlearning was performed" in mine.sentences[0]
    assert (stranger.class_name, stranger.epsilon, statement.members) == (None, None, 1)
    assert statement.epsilon == pytest.approx(mine.epsilon, rel=1e-3)


def test_the_sentence_never_says_less_than_the_epsilon(run):
    run.admit(admission(1))
    run.steps(1)
    run.withdraw(1)
    (row,) = withdrawal_statement(run.ledger.state).rows
    told = float(row.sentences[0].split("(")[1].split(",")[0])
    assert row.epsilon <= told <= row.epsilon + 2e-6


def test_a_time_that_may_depend_on_the_model_is_given_the_epsilon_of_the_whole_horizon(run):
    run.admit(admission(1))
    run.steps(1)
    run.withdraw(1)
    (row,) = withdrawal_statement(run.ledger.state).rows
    expenditure = run.ledger.state.expenditure
    assert row.planned == expenditure.of_group(0, expenditure.multipliers(0, SignedBounds(10**6, 10**6)), (50,)) > row.epsilon


@pytest.mark.slow
def test_the_bound_for_a_set_grows_with_it_and_is_that_of_a_group(run):
    run.admit(*(admission(n) for n in range(1, 7)))
    run.steps(10)
    found = []
    for n in range(1, 7):
        run.withdraw(n)
        found.append(withdrawal_statement(run.ledger.state).epsilon)
    assert found == sorted(set(found))
    z = run.ledger.state.expenditure.multipliers(0, SignedBounds(10**6, 10**6))[0]
    assert found[-1] == epsilon_group(z, 0.02, 40, 6, 1e-6) > 6 * found[0] * 0.9
    some = withdrawal_statement(run.ledger.state, [descriptor(1), descriptor(3)])
    assert (some.members, some.epsilon) == (2, found[1])
    with pytest.raises(LeafRefused, match="UNKNOWN"):
        withdrawal_statement(run.ledger.state, [descriptor(50)])


def test_where_occurrences_are_public_the_mus_add_up(path):
    policy = signed_policy(disclosure="occurrences_public")
    with Ledger.create(path, header_spec(policy), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2))
        window = run.charge()
        for step, drawn in zip(range(1, 5), ([0], [0, 1], [], [0]), strict=True):
            ledger.draw(step, drawn, now=run.tick())
        ledger.settle(window, 4, now=run.tick())
        run.withdraw(1)
        run.withdraw(2)
        statement = withdrawal_statement(ledger.state)
        losses = [ledger.state.contributions[descriptor(n)].loss for n in (1, 2)]
        together = epsilon_occurrences(sum(loss**0.5 for loss in losses) ** 2, 1e-6, "pld")
        assert statement.epsilon == together > max(row.epsilon for row in statement.rows)
        assert all(row.planned is None and "no horizon" in row.sentences[1] for row in statement.rows)


def test_content_and_nonce_find_where_it_was_admitted_and_what_it_could_touch(run):
    content, nonce = hashlib.sha256(b"a scan").digest(), b"n" * 16
    run.admit(admission(1))
    run.steps(1)
    run.admit(admission(2, "sensitive", anchor=commit_content(content, nonce)))
    run.steps(2)
    run.withdraw(2)
    run.steps(1)
    wanted = Wanted.of_content(content, nonce)
    found = trace(run.ledger.state, bodies(run.ledger), wanted)
    assert found.admit.descriptor_hash == descriptor(2) and found.blocks == ("layer.2",)
    assert [(window.first_step, window.last_step) for window in found.windows] == [(5, 8), (9, 12)]
    assert (
        found.steps
        == 8
        == run.ledger.state.expenditure.steps(run.ledger.state.contributions[descriptor(2)], run.ledger.state.charged_phases)
    )
    assert found.withdraw is not None and found.epsilon == run.ledger.epsilon(descriptor(2))
    assert trace(run.ledger.state, [b"", None, *bodies(run.ledger)], wanted) == found, "pruned bodies are skipped"
    assert trace(run.ledger.state, bodies(run.ledger), Wanted(descriptor_hash=descriptor(2))) == found


@pytest.mark.parametrize(("content", "nonce"), [(b"another scan", b"n" * 16), (b"a scan", b"m" * 16)])
def test_without_the_nonce_or_the_content_nothing_is_found(run, content, nonce):
    own = commit_content(hashlib.sha256(b"a scan").digest(), b"n" * 16)
    run.admit(admission(1, anchor=own))
    with pytest.raises(LedgerError) as caught:
        trace(run.ledger.state, bodies(run.ledger), Wanted.of_content(hashlib.sha256(content).digest(), nonce))
    assert caught.value.code == "NOT_FOUND"
