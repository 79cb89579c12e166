"""What stands for leaves whose bodies are gone: which records there can be, where one may stand, and what vouches for it."""

from array import array
from dataclasses import replace
from types import SimpleNamespace

import pytest

from attest.policy import NoisePhase
from ledger.errors import LeafRefused
from ledger.leaves import Header
from ledger.log import Ledger
from ledger.retention.anchors import MAX_RECORD_SIZE, AnchorRecord, set_root
from ledger.retention.retained import RetainedReplay
from ledger.retention.statements import vouched_end
from tests.ledger.ledger_runs import SIGNER, START, Driver, admission, descriptor
from tests.ledger.retained_runs import grown, leaves_of, retaining_spec
from tests.ledger.spends import rows_of, told

RECORD = AnchorRecord(descriptor(1), 0, 1, 9, 5, 1_000_000, 1_000_000, 0, 0, 0, 0, bytes(32))


def header(**changes: object) -> Header:
    return retaining_spec(**changes).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def replay(**changes: object) -> RetainedReplay:
    return RetainedReplay(header(**changes), lambda size: bytes(32), recompute=False)


def code(call, *arguments) -> str:
    with pytest.raises(LeafRefused) as found:
        call(*arguments)
    return found.value.code


@pytest.mark.parametrize(
    "changes",
    [
        {"first_seq": 0},
        {"first_seq": 9},
        {"last_seq": 1},
        {"class_index": -1},
        {"clip_micro": -1},
        {"spent_micro": -1},
        {"max_epsilon_micro": 1},
        {"max_delta_pico": 1},
        {"content_anchor": bytes(31)},
    ],
)
def test_a_record_is_of_an_admission_behind_the_header_and_an_expenditure_behind_that(changes):
    assert code(lambda: replace(RECORD, **changes)) in ("RANGE", "TYPE", "LENGTH", "SIZE")
    replace(RECORD, first_seq=8), replace(RECORD, last_seq=2), replace(RECORD, max_epsilon_micro=1, max_delta_pico=1)


def test_longer_bytes_are_not_even_read():
    assert code(AnchorRecord.from_bytes, bytes(MAX_RECORD_SIZE + 1)) == "SIZE"
    assert code(AnchorRecord.from_bytes, bytes(MAX_RECORD_SIZE)) != "SIZE"
    assert len(replace(RECORD, spent_micro=2**63 - 1, last_seq=2**63 - 1, clip_micro=2**63 - 1).to_bytes()) < MAX_RECORD_SIZE


def test_the_root_over_records_does_not_depend_on_the_order_in_which_they_came():
    records = [replace(RECORD, descriptor_hash=descriptor(n), first_seq=n) for n in range(1, 8)]
    assert set_root(records) == set_root(reversed(records)) != set_root(records[:-1])


def test_a_record_stands_at_its_own_place_in_a_class_that_there_is():
    leaf, problems = replay().stand_in(RECORD.to_bytes())
    assert (leaf.seq, leaf.class_name, leaf.descriptor_hash, problems) == (1, "open", descriptor(1), [])
    for changes in ({"first_seq": 2}, {"class_index": 2}, {"class_index": 3}):
        assert code(replay().stand_in, replace(RECORD, **changes).to_bytes()) == "ANCHOR"


def test_no_record_stands_where_occurrences_are_public():
    assert code(replay(disclosure="occurrences_public").stand_in, RECORD.to_bytes()) == "ANCHOR"


def test_a_body_is_vouched_for_below_the_end_and_not_at_it():
    run = replay()
    run.pruned = array("q", [3, 5])
    assert run.unvouched(6) is None and "leaf 5" in (run.unvouched(5) or "")


def test_a_record_is_vouched_for_by_a_summary_below_the_end_that_has_just_this_one():
    run = replay()
    run.stand_in(RECORD.to_bytes())
    assert "no summary" in (run.unvouched(9) or "")
    run.tally.summarised[descriptor(1)] = (9, RECORD)
    assert run.unvouched(9) is None
    assert "no summary" in (run.unvouched(8) or "")
    run.tally.summarised[descriptor(1)] = (9, replace(RECORD, clip_micro=999_999))
    assert "not the record" in (run.unvouched(9) or "")


def test_the_variances_of_an_epoch_without_a_settled_window_are_those_that_were_spent(tmp_path):
    """A run that crashed in its window: it is charged and never settled, and what was spent on it is told all the same."""
    made = grown(tmp_path / "plain.db")
    expected = {(row.min_variance, row.max_variance) for row in made.ledger.summarise(now=made.tick()).classes}
    made.ledger.close()


    driver = Driver(Ledger.create(tmp_path / "ledger.db", retaining_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(3, "sensitive"))
    driver.charge(4)
    driver.ledger.resume(0, None, now=driver.tick())
    driver.epoch()
    driver.steps(1)
    driver.epoch()
    found = driver.ledger.summarise(now=driver.tick())
    assert {(row.min_variance, row.max_variance) for row in found.classes} == expected
    assert [row.occurrences for row in found.classes] == [4, 4]
    driver.ledger.close()


def test_a_summary_tells_the_most_steps_of_anybody_and_not_of_the_last(tmp_path):
    driver = Driver(Ledger.create(tmp_path / "ledger.db", retaining_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(3, "sensitive"))
    driver.steps(1)
    driver.admit(admission(2))
    driver.steps(1)
    driver.epoch()
    driver.epoch()
    found = driver.ledger.summarise(now=driver.tick())
    assert [row.occurrences for row in found.classes] == [8, 8]
    driver.ledger.close()


def test_a_summary_tells_the_largest_epsilon_of_who_left_and_who_stayed(tmp_path):
    driver = Driver(Ledger.create(tmp_path / "ledger.db", retaining_spec(), SIGNER, now=START))
    driver.admit(admission(1), admission(3, "sensitive"))
    driver.steps(2)
    driver.withdraw(1)
    driver.admit(admission(2))
    driver.steps(1)
    driver.epoch()
    spent = {name: row.epsilon_micro for name, row in told(leaves_of(driver.ledger)).items()}
    driver.epoch()
    found = driver.ledger.summarise(now=driver.tick())
    assert found.classes[0].max_epsilon_micro == spent[descriptor(1)] > spent[descriptor(2)]
    assert found.classes[0].sum_epsilon_micro == spent[descriptor(1)] + spent[descriptor(2)]
    driver.ledger.close()


def test_a_summary_tells_the_least_and_the_largest_variance_of_all_its_epochs(tmp_path):
    """Noise that grows in the second epoch, of which only newcomers are there."""
    spec = retaining_spec(noise_phases=(NoisePhase(5, 2_000_000),))
    driver = Driver(Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START))
    driver.admit(admission(1), admission(3, "sensitive"))
    driver.steps(1)
    driver.withdraw(1)
    driver.epoch()
    driver.admit(admission(2))
    driver.steps(1)
    driver.epoch()
    driver.epoch()
    row = driver.ledger.summarise(now=driver.tick()).classes[0]
    assert row.min_variance > 0.0 and row.max_variance == pytest.approx(4.0 * row.min_variance)
    driver.ledger.close()


@pytest.mark.parametrize(
    ("counts", "end"), [((2, 2, 2), 30), ((2, 1, 2), 10), ((1, 2, 2), 0), ((0, 0, 0), 0), ((3, 2, 1), 20), ((), 0)]
)
def test_vouched_ranges_end_before_the_first_for_which_a_quorum_is_missing(counts, end):
    """Auditors of a later range say nothing of an earlier one."""
    summaries = [SimpleNamespace(seq=number, end=10 * number) for number in range(1, len(counts) + 1)]
    names = {leaf.seq: ("anna", "ben", "cleo")[:count] for leaf, count in zip(summaries, counts, strict=True)}
    assert vouched_end(header(), summaries, names) == end
    assert vouched_end(header(retention_epochs=0, auditors=(), auditor_quorum=None), summaries, names) == 0


def test_the_figures_of_a_summary_do_not_depend_on_who_was_admitted_last(tmp_path):
    """The last row of a class is of the least epsilon here, and of neither the least nor the largest variance."""
    spec = retaining_spec(noise_phases=(NoisePhase(5, 2_000_000), NoisePhase(9, 1_500_000)))
    driver = Driver(Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START))
    driver.admit(admission(1), admission(3, "sensitive"))
    driver.steps(1)
    driver.withdraw(1)
    driver.admit(admission(4))
    driver.steps(1)
    driver.admit(admission(2, sigma_micro=9_000_000))
    driver.steps(1)
    driver.epoch()
    rows = [row for row in rows_of(leaves_of(driver.ledger)) if row.profile_id == 0]
    driver.epoch()
    row = driver.ledger.summarise(now=driver.tick()).classes[0]
    driver.ledger.close()
    epsilons = [found.epsilon_micro for found in rows]
    assert [found.window_before for found in rows] == [0, 1, 2] and epsilons[-1] == min(epsilons)
    assert row.max_epsilon_micro == max(epsilons) and row.sum_epsilon_micro == sum(epsilons)
    assert row.max_variance == pytest.approx(4.0 * row.min_variance)
