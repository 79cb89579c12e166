"""The life of a ledger: what may be appended when, and what every refusal leaves behind."""

from dataclasses import replace

import pytest
from spends import rows_of, told

from attest.withdrawal import PASSING, REGISTRY_REASONS
from ledger import accountants, note
from ledger.errors import (
    HorizonExceeded,
    LeafRefused,
    LedgerBusy,
    LedgerClosed,
    LedgerError,
    LedgerWrongRun,
)
from ledger.leaves import Resume, Spend, Withdraw, decode_leaf
from ledger.log import Ledger
from ledger.merkle import root
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy


def leaves(ledger):
    with ledger.rows() as rows:
        return [decode_leaf(row.body) for row in rows]


def test_a_whole_run_is_told_in_order_and_reopens_the_same(run, path):
    run.whole_run()
    size, root, digest = run.ledger.size, run.ledger.root, run.ledger.header_digest
    kinds = [type(leaf).__name__ for leaf in leaves(run.ledger)]
    assert kinds[0] == "Header" and kinds[-1] == "Close" and kinds.count("Epoch") == 2
    assert [sum(row.count for row in leaf.rows) for leaf in leaves(run.ledger) if isinstance(leaf, Spend)] == [4, 5]
    assert run.ledger.state.contributions.keys() == {descriptor(n) for n in range(1, 6)}
    assert run.ledger.state.withdrawals.keys() == {descriptor(2), descriptor(99)}
    assert run.ledger.state.charged == 16 and len(run.ledger.state.windows) == 4
    run.ledger.close()
    with Ledger.open(path, SIGNER, expect_header=digest) as again:
        assert (again.size, again.root, again.header_digest, again.finished) == (size, root, digest, True)
    checkpoint = note.parse_checkpoint(note.open_note(again.checkpoint, [SIGNER.vkey]).text)
    assert (checkpoint.origin, checkpoint.size, checkpoint.root) == (SIGNER.name, size, root)


def test_spend_counts_the_charged_steps_between_admission_and_withdrawal(run):
    run.whole_run()
    last = told(leaves(run.ledger))
    assert [last[descriptor(n)].steps for n in range(1, 6)] == [16, 8, 16, 16, 8]
    # max rule: the shared block carries max(1 * 1, 3 * 0.5) = 1.5, the others 1; contribution 4 signs a clip of 0.25.
    for n, z, q in ((1, 1.0, 0.02), (2, 1.0, 0.02), (3, 3.0, 0.01), (4, 6.0, 0.01), (5, 1.0, 0.02)):
        exact = accountants.epsilon(z, q, last[descriptor(n)].steps, 1e-6)
        assert exact < last[descriptor(n)].epsilon_micro / 1e6 <= exact + 2e-6
        assert run.ledger.epsilon(descriptor(n)) == exact


def test_a_contribution_withdrawn_in_an_earlier_epoch_is_not_listed_again(run):
    run.admit(admission(1), admission(2))
    run.steps()
    run.withdraw(1)
    run.epoch()
    run.steps()
    run.epoch()
    stayed, left = root([b"", descriptor(2)]), root([descriptor(1)])
    rows = [(row.window_until, row.count, row.members_root) for row in rows_of(leaves(run.ledger))]
    assert rows == [(None, 1, stayed), (1, 1, left), (None, 1, stayed)], "whoever left a group leaves an empty place"


def test_noise_stream_ids_are_used_once_even_across_attempts(run):
    run.ledger.charge(1, 4, now=run.tick(), noise_stream=b"n" * 16)
    run.ledger.resume(0, None, now=run.tick())
    with pytest.raises(LeafRefused) as refused:
        run.ledger.charge(1, 4, now=run.tick(), noise_stream=b"n" * 16)
    assert refused.value.code == "NOISE_REUSED"
    assert run.charge().attempt == 1


@pytest.mark.parametrize("first", [0, 2, 4, 6, 9])
def test_windows_must_tile_the_run(run, first):
    run.steps()
    with pytest.raises(LeafRefused):
        run.ledger.charge(first, 4, now=run.tick(), noise_stream=run.stream())
    run.steps()
    assert run.ledger.state.position == 8


def test_a_second_window_waits_for_the_first(run):
    window = run.charge()
    with pytest.raises(LeafRefused) as refused:
        run.ledger.charge(5, 4, now=run.tick(), noise_stream=run.stream())
    assert refused.value.code == "WINDOW_OPEN"
    with pytest.raises(LeafRefused):
        run.epoch()
    run.ledger.settle(window, 4, now=run.tick())
    with pytest.raises(LeafRefused):
        run.ledger.settle(window, 4, now=run.tick())


def test_a_window_longer_than_the_policys_is_refused(run):
    with pytest.raises(LeafRefused):
        run.charge(5)


def test_no_step_past_the_horizon_is_charged(run):
    run.steps(10)
    with pytest.raises(HorizonExceeded):
        run.charge(1)
    assert run.ledger.state.charged == 40


def test_re_executed_steps_count_again_up_to_the_policys_limit(run):
    run.steps(10)
    pin = run.ledger.pin()
    for _ in range(2):
        run.ledger.resume(36, pin, now=run.tick())
        run.steps()
    run.ledger.resume(36, pin, now=run.tick())
    with pytest.raises(HorizonExceeded):
        run.charge(3)
    run.steps(1, 2)
    assert run.ledger.state.charged == 50


def test_a_window_released_in_part_is_charged_whole_and_ends_the_attempt(run):
    run.admit(admission(1))
    run.ledger.settle(run.charge(), 2, now=run.tick())
    assert (run.ledger.state.charged, run.ledger.state.position) == (4, 2)
    with pytest.raises(LeafRefused) as refused:
        run.ledger.charge(3, 4, now=run.tick(), noise_stream=run.stream())
    assert refused.value.code == "ATTEMPT_ENDED"
    run.ledger.resume(2, run.ledger.pin(), now=run.tick())
    run.steps()
    state = run.ledger.state
    assert state.expenditure.steps(state.contributions[descriptor(1)], state.charged_phases) == 8


@pytest.mark.parametrize("variances", [(1.0, 2.2499999), (1.5, 2.25)], ids=["less", "more"])
def test_settling_with_other_noise_than_charged_is_refused(run, variances):
    """Less would break the promise; more could carry what was drawn, since scheduled noise has one value."""
    window = run.charge()
    scheduled = run.ledger.state.scheduled_variances()
    assert scheduled == (1.0, 2.25)
    with pytest.raises(LeafRefused) as refused:
        run.ledger.settle(window, 4, now=run.tick(), variances=variances)
    assert refused.value.code == "VARIANCE"
    run.ledger.settle(window, 4, now=run.tick(), variances=scheduled)


def test_crash_after_charge_counts_in_full(run, path):
    run.admit(admission(1))
    run.steps()
    pin = run.ledger.pin()
    run.charge()
    run.ledger.close()  # the process dies before it settles
    with Ledger.open(path, SIGNER) as ledger:
        after = Driver(ledger, now=run.now + 100)
        assert ledger.state.charged == 8
        with pytest.raises(LeafRefused) as refused:
            after.charge()
        assert refused.value.code == "RESUME_FIRST"
        assert ledger.resume(4, pin, now=after.tick()) == 1
        after.steps()
        after.epoch()
        (spend,) = told(leaves(ledger)).values()
        assert spend.steps == 12
        assert [w.window for w in ledger.state.unsettled] == [2]


def test_resume_needs_a_pin_that_covers_the_step(run):
    early = run.ledger.pin()
    run.steps()
    for from_step, pin in ((4, None), (4, early), (5, run.ledger.pin())):
        with pytest.raises(LeafRefused):
            run.ledger.resume(from_step, pin, now=run.tick())
    run.ledger.resume(4, run.ledger.pin(), now=run.tick())
    assert [leaf.attempt for leaf in leaves(run.ledger) if isinstance(leaf, Resume)] == [1]


def test_admissions_hold_the_policys_bounds(run):
    refused = [
        admission(1, clip_micro=1_000_001),
        admission(1, sigma_micro=999_999),
        admission(1, profile_id=1),
        admission(1, class_name="open", clip_micro=0),
        admission(1, descriptor_hash=b"short"),
        admission(1, sigma_micro=1.0),
        admission(1, max_occurrences=True),
    ]
    for spec in refused:
        with pytest.raises(LeafRefused):
            run.admit(spec)
    run.admit(admission(1))
    with pytest.raises(LeafRefused) as twice:
        run.admit(admission(2), admission(1))
    assert twice.value.code == "REPLAYED"
    assert run.ledger.state.contributions.keys() == {descriptor(1)} and run.ledger.size == 2


def test_B23_withdrawals_bar_admission_and_are_idempotent(run):
    seq = run.withdraw(7)
    assert run.withdraw(7) == seq
    with pytest.raises(LeafRefused) as refused:
        run.admit(admission(7))
    assert refused.value.code == "WITHDRAWN"


def test_many_withdrawals_are_entered_together_once_each_or_not_at_all(run):
    run.admit(*(admission(n) for n in range(1, 6)))
    run.withdraw(2)
    size = run.ledger.size
    wanted = [(descriptor(n), "error", bytes(32)) for n in (1, 2, 3, 3, 99)]
    run.ledger.withdraw_all(wanted, now=run.tick())
    run.ledger.withdraw_all(wanted, now=run.tick())
    run.ledger.withdraw_all([], now=run.tick())
    assert run.ledger.size == size + 3
    assert run.ledger.state.withdrawals.keys() == {descriptor(n) for n in (1, 2, 3, 99)}
    bad = [(descriptor(4), "key-revoked", bytes(32)), (descriptor(5), "no good", bytes(32))]
    with pytest.raises(LeafRefused):
        run.ledger.withdraw_all(bad, now=run.tick())
    assert run.ledger.size == size + 3 and descriptor(4) not in run.ledger.state.withdrawals


@pytest.mark.parametrize("reason", sorted(PASSING))
def test_a_run_takes_out_by_itself_only_what_is_in_its_pool(run, reason):
    """Nobody signs these reasons: entered of anybody else, or after the close, such a leaf is the word of the key alone."""
    run.admit(admission(1), admission(2))
    run.steps()
    run.withdraw(2)
    for n, seq in ((2, 2), (99, None)):
        problems = run.ledger.state.apply(Withdraw(run.ledger.state.size, run.now, descriptor(n), seq, reason, bytes(32)))
        assert {problem.code for problem in problems} == {"WITHDRAW"}
        assert any("in no pool" in problem.sentence for problem in problems)


def test_nothing_is_taken_out_of_a_pool_that_is_closed(run):
    run.admit(admission(1))
    run.steps()
    run.epoch()
    run.ledger.finish(now=run.tick())
    for reason in PASSING:
        with pytest.raises(LeafRefused) as refused:
            run.ledger.withdraw(descriptor(1), reason, bytes(32), now=run.tick())
        assert refused.value.code == "WITHDRAW" and "after the close" in refused.value.sentence


@pytest.mark.parametrize("reason", sorted(REGISTRY_REASONS))
def test_what_the_registry_takes_out_names_the_root_by_which_the_run_goes(run, reason):
    run.admit(admission(1), admission(2))
    first, later = bytes(32), b"\x05" * 32
    run.ledger.withdraw(descriptor(1), reason, first, now=run.tick())
    run.ledger.take_registry(later, now=run.tick())
    with pytest.raises(LeafRefused) as refused:
        run.ledger.withdraw(descriptor(2), reason, first, now=run.tick())
    assert refused.value.code == "WITHDRAWAL_EVIDENCE"
    run.ledger.withdraw(descriptor(2), reason, later, now=run.tick())


def test_withdrawn_contributions_leave_the_pool_at_the_next_charge(run):
    run.admit(admission(1), admission(2))
    run.steps()
    run.withdraw(1)
    run.steps()
    assert [window.classes[0].pool_count for window in run.ledger.state.windows] == [2, 1]
    assert run.ledger.state.windows[0].classes[0].pool_root != run.ledger.state.windows[1].classes[0].pool_root


def test_the_clock_may_stand_still_but_not_run_back(run):
    run.admit(admission(1))
    run.ledger.admit([admission(2)], now=run.now - 60)
    with pytest.raises(LeafRefused) as refused:
        run.ledger.admit([admission(3)], now=run.now - 61)
    assert refused.value.code == "CLOCK"
    times = [leaf.time for leaf in leaves(run.ledger)]
    assert times == sorted(times)
    for now in (True, 1.5, -1, None):
        with pytest.raises(LeafRefused):
            run.ledger.admit([admission(3)], now=now)


def test_an_epoch_names_the_last_released_step(run):
    run.steps()
    with pytest.raises(LeafRefused):
        run.ledger.close_epoch(3, run.digest, isolation=run.isolation, now=run.tick())
    run.epoch()


def test_finishing_needs_every_charge_in_an_epoch(run):
    run.steps()
    with pytest.raises(LeafRefused):
        run.ledger.finish(now=run.tick())
    run.epoch()
    run.ledger.finish(now=run.tick())


def test_after_the_close_only_withdrawals_are_recorded(run, path):
    run.whole_run()
    for append in (run.epoch, run.charge, lambda: run.admit(admission(9)), lambda: run.ledger.finish(now=run.tick())):
        with pytest.raises(LedgerClosed):
            append()
    seq = run.withdraw(3)
    assert seq == run.ledger.size - 1
    checkpoint = note.parse_checkpoint(note.open_note(run.ledger.checkpoint, [SIGNER.vkey]).text)
    assert checkpoint.size == run.ledger.size


def test_a_handle_without_the_key_reads_only(run, path):
    run.whole_run()
    for handle in (Ledger.open(path), Ledger.open(path, SIGNER, read_only=True)):
        with handle as ledger:
            assert ledger.size == run.ledger.size
            with pytest.raises(LedgerClosed):
                ledger.withdraw(descriptor(3), "contributor", bytes(32), now=run.tick())


def test_one_writer_at_a_time(run, path):
    with pytest.raises(LedgerBusy):
        Ledger.open(path, SIGNER)


def test_a_closed_handle_refuses(run):
    run.ledger.close()
    with pytest.raises(LedgerClosed):
        run.admit(admission(1))


def test_a_ledger_is_never_created_over_another(run, path):
    with pytest.raises(LedgerError):
        Ledger.create(path, header_spec(), SIGNER, now=START)


def test_other_key_and_other_header_are_the_wrong_run(run, path):
    run.ledger.close()
    for signer in (note.NoteSigner(SIGNER.name, OTHER_KEY), note.NoteSigner("ledger.example/run2", LOG_KEY)):
        with pytest.raises(LedgerWrongRun):
            Ledger.open(path, signer)
    with pytest.raises(LedgerWrongRun):
        Ledger.open(path, SIGNER, expect_header=bytes(32))


def test_a_pin_of_nonsense_is_refused(run):
    pin = run.ledger.pin()
    for bad in ({"size": "1"}, {"root": bytes(31)}, {"size": 0}, {"origin": ""}, {"header_digest": "00" * 32}):
        with pytest.raises(LeafRefused):
            replace(pin, **bad)


def test_occurrence_caps_count_anew_in_every_attempt(tmp_path):
    policy = signed_policy()
    for enforced in (False, True):
        path = tmp_path / f"{enforced}.db"
        with Ledger.create(path, header_spec(policy, caps_enforced=enforced), SIGNER, now=START) as ledger:
            run = Driver(ledger)
            run.admit(admission(1, max_occurrences=1, sigma_micro=20_000_000), admission(2, sigma_micro=20_000_000))
            run.steps()
            ledger.resume(0, None, now=run.tick())
            run.steps(2)
            capped, uncapped = ledger.epsilon(descriptor(1)), ledger.epsilon(descriptor(2))
            own = accountants.epsilon_of_phases_capped([accountants.Phase(20.0, 0.02, 12)], 2, 1e-6)
            assert capped == (own if enforced else uncapped)
