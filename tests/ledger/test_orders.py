"""Ledgers under a signed order: every DRAW leaf held against who is due, repeated steps against redo_steps, lies found."""

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from attest.policy import NoisePhase, SamplingRule
from attest.schedule.turns import Order, dearest_turns
from ledger import accountants
from ledger.audit import verify_export
from ledger.errors import HorizonExceeded, LeafRefused
from ledger.export import write_export
from ledger.leaves import Draw, Epoch, Spend, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.note import checkpoint_text, sign_note
from ledger.replay import Replay
from ledger.replay.permits import OrderWatch
from ledger.storage.store import Row
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy

ORDERS = ("cyclic", "shuffled")
STEPS, REDO = 12, 3
LENGTHS = (4, 3)
SIGNED = ["open", "open", "sensitive", "open", "sensitive", "open", "open", "sensitive"]


def policy(order, **changes):
    classes = tuple(
        replace(rule, sampling_rate=Fraction(1, length))
        for rule, length in zip(signed_policy().policy.classes, LENGTHS, strict=True)
    )
    fields = {"disclosure": "occurrences_public", "sampling": SamplingRule(order), "steps": STEPS, "redo_steps": REDO}
    return signed_policy(**fields | {"epoch_steps": 12, "classes": classes} | changes)


def new(path, order, caps=0, *, enforced=True, **changes) -> Driver:
    header = header_spec(policy(order, **changes), caps_enforced=enforced)
    made = Driver(Ledger.create(path, header, SIGNER, now=START))
    made.admit(*(admission(n, name, max_occurrences=caps) for n, name in enumerate(SIGNED)))
    return made


@pytest.fixture(params=ORDERS)
def driver(tmp_path, request):
    made = new(tmp_path / "ledger.db", request.param)
    yield made
    made.ledger.close()


def due(driver, step) -> list[int]:
    header = driver.ledger.header
    return Order(header.policy, header.run_id, [["open", "sensitive"].index(name) for name in SIGNED]).due(step)


def window(driver, count=4) -> None:
    opened = driver.charge(count)
    for step in range(opened.first_step, opened.first_step + count):
        driver.ledger.draw(step, due(driver, step), now=driver.tick())
    driver.ledger.settle(opened, count, now=driver.tick())


def occurrences(driver) -> list[int]:
    return [driver.ledger.state.contributions[descriptor(n)].occurrences for n in range(len(SIGNED))]


def refused(call, *arguments, **named):
    with pytest.raises(LeafRefused) as caught:
        call(*arguments, **named)
    return caught.value


def test_a_run_in_order_is_the_gaussian_of_as_many_folds_as_it_has_periods(driver, tmp_path):
    """E-fold: 12 steps are 3 periods of 4 and 4 periods of 3, whatever the order; nothing by sampling, nothing by shuffling."""
    for _ in range(3):
        window(driver)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    assert occurrences(driver) == [{"open": 3, "sensitive": 4}[name] for name in SIGNED]
    for n, name in enumerate(SIGNED):
        folds, z = (3, 1.0) if name == "open" else (4, 3.0)
        expected = accountants.gaussian.epsilon_of_mu(math.sqrt(folds) / z, 1e-6)
        assert driver.ledger.epsilon(descriptor(n)) == pytest.approx(expected, rel=1e-9)
        assert dearest_turns(driver.ledger.header.policy.sampling.name, 12 // folds, [STEPS], [z]).count == folds
    report = verify_export(driver.ledger.export(tmp_path / "export"), [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    assert [found.occurrences for found in report.classes] == [3, 4]
    assert any("order" in note and "once in each period" in note for note in report.notes)


def test_a_draw_that_adds_leaves_out_or_moves_somebody_is_refused(driver):
    driver.charge(4)
    first = due(driver, 1)
    other = next(n for n in range(len(SIGNED)) if n not in first)
    for drawn, told in (
        ([*first, other], "was drawn and is not due"),
        (first[1:], "is due and was not drawn"),
        ([], "is due and was not drawn"),
        (range(len(SIGNED)), "was drawn and is not due"),
    ):
        error = refused(driver.ledger.draw, 1, drawn, now=driver.tick())
        assert error.code == "TURN" and told in error.sentence
    driver.ledger.draw(1, first, now=driver.tick())


def test_the_same_draws_are_nobodys_business_without_an_order(tmp_path):
    made = new(tmp_path / "ledger.db", "poisson")
    made.charge(4)
    made.ledger.draw(1, range(len(SIGNED)), now=made.tick())
    made.ledger.close()


def test_a_withdrawal_leaves_the_turns_of_the_others_alone(driver, tmp_path):
    window(driver)
    gone = due(driver, 6)[0]
    driver.withdraw(gone)
    opened = driver.charge(4)
    for step in range(5, 9):
        own = due(driver, step)
        if gone in own:
            assert refused(driver.ledger.draw, step, own, now=driver.tick()).code in ("WITHDRAWN", "TURN")
        driver.ledger.draw(step, [n for n in own if n != gone], now=driver.tick())
    driver.ledger.settle(opened, 4, now=driver.tick())
    driver.epoch()
    report = verify_export(driver.ledger.export(tmp_path / "export"), [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings


@pytest.mark.parametrize("order", ORDERS)
def test_a_cap_ends_the_turns_and_nobody_stops_before(tmp_path, order):
    made = new(tmp_path / "ledger.db", order, caps=2)
    window(made)
    opened = made.charge(4)
    used = [0] * len(SIGNED)
    for step in range(1, 9):
        for n in due(made, step):
            used[n] += 1
        if step > 4:
            own = [n for n in due(made, step) if used[n] <= 2]
            if own:
                assert refused(made.ledger.draw, step, own[1:], now=made.tick()).code == "TURN"
            if len(own) < len(due(made, step)):
                assert refused(made.ledger.draw, step, due(made, step), now=made.tick()).code in ("CAP", "TURN")
            made.ledger.draw(step, own, now=made.tick())
    made.ledger.settle(opened, 4, now=made.tick())
    assert occurrences(made) == [2] * len(SIGNED)
    made.ledger.close()


def test_a_step_done_again_is_a_further_occurrence_of_the_same_contributions(driver, tmp_path):
    window(driver)
    pin = driver.ledger.pin()
    window(driver)
    driver.ledger.resume(6, driver.ledger.pin(), now=driver.tick())
    opened = driver.charge(2)
    for step in (7, 8):
        driver.ledger.draw(step, due(driver, step), now=driver.tick())
    driver.ledger.settle(opened, 2, now=driver.tick())
    expected = [0] * len(SIGNED)
    for step in (*range(1, 9), 7, 8):
        for n in due(driver, step):
            expected[n] += 1
    assert occurrences(driver) == expected
    window(driver)
    driver.epoch()
    report = verify_export(driver.ledger.export(tmp_path / "export"), [SIGNER.vkey])
    assert report.verdict == "TOLD", report.findings
    assert pin.size < driver.ledger.size


def test_repeated_steps_are_limited_by_redo_steps_and_not_by_what_is_left_of_the_horizon(driver):
    """The bound E + redo_steps of Theorem 12: a run that crashed at its first steps for ever would have a turn each time."""
    for _ in range(REDO):
        driver.charge(1)
        driver.ledger.resume(0, None, now=driver.tick())
    driver.charge(1)
    driver.ledger.resume(0, None, now=driver.tick())
    error = refused(driver.charge, 1)
    assert isinstance(error, HorizonExceeded) and error.code == "HORIZON"
    assert f"{REDO + 1} steps would be charged again, redo_steps of the policy allows {REDO}" in error.sentence
    assert driver.ledger.state.charged == REDO + 1 < STEPS + REDO


def test_without_an_order_only_the_total_counts(tmp_path):
    made = new(tmp_path / "ledger.db", "poisson")
    for _ in range(STEPS):
        made.charge(1)
        made.ledger.resume(0, None, now=made.tick())
    assert made.ledger.state.charged == STEPS
    left = made.ledger.state.order
    assert [left.steps_left(0, charged) for charged in (0, STEPS, STEPS + REDO)] == [STEPS + REDO, REDO, 0]
    assert [left.earliest_resume(charged) for charged in (REDO, STEPS)] == [0, STEPS - REDO]
    made.ledger.close()


def test_where_noise_varies_no_phase_is_repeated_for_what_is_left_of_the_others(tmp_path):
    """Else a run that crashes again and again has more steps of least noise than any plan of it counts."""
    made = new(tmp_path / "ledger.db", "poisson", noise_phases=(NoisePhase(STEPS // 2 + 1, 2_000_000),))
    for _ in range(1 + REDO):
        made.charge(1)
        made.ledger.resume(0, None, now=made.tick())
    assert made.ledger.state.order.steps_left(0, made.ledger.state.charged) == 0
    with pytest.raises(HorizonExceeded, match="from a checkpoint at step 1 or later"):
        made.charge(1)
    assert made.ledger.state.charged_phases == (1 + REDO, 0)
    made.ledger.close()


def test_a_cap_that_nobody_enforces_leaves_nobody_out(tmp_path):
    """What a contribution signed at most is then not kept by the sampler, and its turns go on."""
    made = new(tmp_path / "ledger.db", "cyclic", caps=1, enforced=False)
    for _ in range(3):
        window(made)
    assert occurrences(made) == [{"open": 3, "sensitive": 4}[name] for name in SIGNED]
    made.ledger.close()


def test_a_step_that_was_reached_once_is_a_repetition_ever_after(tmp_path):
    """Going back and forth: the way forth again, beyond where the last attempt ended, is repeated too."""
    header = header_spec(policy("poisson", redo_steps=6, noise_phases=(NoisePhase(STEPS, 2_000_000),)))
    watch = OrderWatch(header.header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START))

    def charge(first: int, last: int) -> list[str]:
        return [problem.code for problem in watch.charge(SimpleNamespace(first_step=first, last_step=last), [])]

    assert charge(1, 4) == charge(5, 8) == [] and watch.steps_left(8, 8) == 4
    assert charge(1, 2) == [], "repeats two"
    assert charge(3, 4) == [], "and two more"
    assert watch.earliest_resume(12) == 6 and watch.steps_left(6, 12) == 6 and watch.steps_left(4, 12) == 2
    assert charge(5, 6) == [], "six"
    assert charge(9, 10) == [], "these are new"
    assert charge(10, 11) == ["HORIZON"]


def test_what_is_left_is_what_the_ledger_takes(driver):
    """`steps_left` and `earliest_resume` against trying: from every step to which a run may go back."""
    window(driver)
    window(driver)
    left = driver.ledger.state.order
    assert [left.steps_left(step, 8) for step in range(4, 9)] == [3, 7, 6, 5, 4]
    assert left.earliest_resume(8) == 5
    driver.ledger.resume(5, driver.ledger.pin(), now=driver.tick())
    opened = driver.charge(4)
    assert opened.first_step == 6
    assert left.steps_left(9, 12) == 3 and left.earliest_resume(12) == 9
    assert refused(driver.ledger.resume, 10, driver.ledger.pin(), now=driver.tick()).code == "RESUME"
    for step in (6, 7, 8, 9):
        driver.ledger.draw(step, due(driver, step), now=driver.tick())
    driver.ledger.settle(opened, 4, now=driver.tick())
    driver.ledger.resume(8, driver.ledger.pin(), now=driver.tick())
    assert left.steps_left(8, 12) == 0
    assert isinstance(refused(driver.charge, 1), HorizonExceeded)


def test_nobody_joins_after_the_first_charge(driver):
    driver.charge(1)
    error = refused(driver.admit, admission(50))
    assert error.code == "ADMIT_LATE" and "before the first charge" in error.sentence


def retold(driver, path, change=lambda leaf: leaf):
    """The ledger told again by whoever has the log's key, figures and root recomputed, and what an auditor says of it."""
    with driver.ledger.rows() as rows:
        stored = list(rows)
    run, told = Replay(driver.ledger.header, lambda size: bytes(32)), [stored[0].body]
    for row in stored[1:]:
        leaf = change(decode_leaf(row.body))
        if isinstance(leaf, Spend):
            leaf = replace(leaf, rows=tuple(run.spend_rows()))
        elif isinstance(leaf, Epoch):
            leaf = replace(leaf, classes=run.totals())
        told.append(encode_leaf(leaf))
        run.apply(leaf)
    hashes = [leaf_hash(body) for body in told]
    checkpoint = sign_note(checkpoint_text(SIGNER.name, len(told), root_of_hashes(hashes)), SIGNER)
    rows = [Row(row.seq, row.kind, own, body) for row, own, body in zip(stored, hashes, told, strict=True)]
    return verify_export(write_export(driver.ledger.header, rows, checkpoint, path), [SIGNER.vkey])


def leaves_out(leaf):
    """One occurrence of one contribution that nobody is to know of."""
    return replace(leaf, drawn=leaf.drawn[1:]) if isinstance(leaf, Draw) and leaf.step == 5 else leaf


def adds(leaf):
    others = tuple(sorted(set(range(len(SIGNED))) - set(leaf.drawn))) if isinstance(leaf, Draw) else ()
    return replace(leaf, drawn=tuple(sorted((*leaf.drawn, others[0])))) if others and leaf.step == 5 else leaf


def tells_nothing(leaf):
    return replace(leaf, drawn=()) if isinstance(leaf, Draw) else leaf


def swaps(leaf):
    """What another step had."""
    if isinstance(leaf, Draw) and leaf.step == 5:
        return replace(leaf, drawn=tuple((number + 1) % len(SIGNED) for number in leaf.drawn[:-1]) or (len(SIGNED) - 1,))
    return leaf


@pytest.mark.parametrize("lie", [leaves_out, adds, tells_nothing, swaps])
def test_a_lie_about_turns_under_the_logs_own_key_fails_the_audit(driver, tmp_path, lie):
    """Every figure that follows from the lie is told to match it: without an order the auditor could say nothing."""
    for _ in range(3):
        window(driver)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())
    assert retold(driver, tmp_path / "truth").verdict == "TOLD"
    report = retold(driver, tmp_path / "lie", lie)
    assert report.verdict == "FAILED" and {finding.code for finding in report.findings} == {"TURN"}


def test_without_an_order_such_a_lie_stands(tmp_path):
    """The positive control of the tests above: leaving an occurrence out costs the liar nothing under Poisson draws."""
    made = new(tmp_path / "ledger.db", "poisson")
    for _ in range(3):
        opened = made.charge(4)
        for step in range(opened.first_step, opened.first_step + 4):
            made.ledger.draw(step, (0, 2, 5), now=made.tick())
        made.ledger.settle(opened, 4, now=made.tick())
    made.epoch()
    made.ledger.finish(now=made.tick())
    assert retold(made, tmp_path / "lie", leaves_out).verdict == "TOLD"
    made.ledger.close()


def test_a_lie_about_repeated_steps_fails_the_audit(driver, tmp_path, monkeypatch):
    """A writer that does not count repetitions: the auditor does."""
    from ledger.replay.permits import OrderWatch

    with monkeypatch.context() as patched:
        patched.setattr(OrderWatch, "charge", _uncounted(OrderWatch.charge))
        for _ in range(REDO + 2):
            driver.charge(1)
            driver.ledger.resume(0, None, now=driver.tick())
        window(driver)
        driver.epoch()
        exported = driver.ledger.export(tmp_path / "export")
    report = verify_export(exported, [SIGNER.vkey])
    assert report.verdict == "FAILED" and {finding.code for finding in report.findings} == {"HORIZON"}


def _uncounted(charge):
    def passed(self, *arguments):
        for _ in charge(self, *arguments):
            pass
        return iter(())

    return passed
