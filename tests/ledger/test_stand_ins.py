"""What stands for leaves whose bodies are gone: which records there can be, where one may stand, and what vouches for it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from attest.policy import NoisePhase
from ledger.errors import LeafRefused, ProofError
from ledger.leaves import Header
from ledger.log import Ledger
from ledger.merkle import SlotTree, leaf_hash
from ledger.replay.contributions import stand_in_name
from ledger.replay.summaries import MAX_AGGREGATE_SIZE, Aggregate, Aggregating, Member
from ledger.retention import MEMBER, RetainedReplay, StandIns, vouched_end
from tests.ledger.spends import rows_of, told
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor
from tests.worlds.retained_ledgers import grown, leaves_of, retaining_spec

QUORUM = frozenset({"anna", "ben"})
"""As many auditors as the policy asks for."""

RECORD = Aggregate(1, 3, 0, 1_000_000, 1_000_000, 0, 0, 0, 0, bytes(32))
NAMES = {n: descriptor(n) for n in (1, 2, 3)}


def header(**changes: object) -> Header:
    return retaining_spec(**changes).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)


def replay(**changes: object) -> RetainedReplay:
    return RetainedReplay(header(**changes), lambda size: bytes(32), recompute=False, names=NAMES)


def code(call, *arguments) -> str:
    with pytest.raises(LeafRefused) as found:
        call(*arguments)
    return found.value.code


@pytest.mark.parametrize(
    "changes",
    [
        {"first": 0},
        {"count": 0},
        {"class_index": -1},
        {"clip_micro": -1},
        {"sigma_micro": True},
        {"carried_micro": 1.0},
        {"max_epsilon_micro": 1},
        {"max_delta_pico": 1},
        {"members_root": bytes(31)},
    ],
)
def test_an_aggregate_is_of_admissions_behind_the_header_under_terms_that_there_are(changes):
    assert code(lambda: replace(RECORD, **changes)) in ("RANGE", "TYPE", "LENGTH", "SIZE")
    replace(RECORD, first=8), replace(RECORD, count=1), replace(RECORD, max_epsilon_micro=1, max_delta_pico=1)


def test_longer_bytes_are_not_even_read():
    assert code(Aggregate.from_bytes, bytes(MAX_AGGREGATE_SIZE + 1)) == "SIZE"
    assert code(Aggregate.from_bytes, bytes(MAX_AGGREGATE_SIZE)) != "SIZE"
    most = 2**63 - 1
    assert len(Aggregate(most, most, most, most, most, most, most, most, 10**12 - 1, bytes(32)).to_bytes()) < MAX_AGGREGATE_SIZE


def test_every_leaf_of_an_aggregate_is_restored_at_its_place():
    run = replay()
    found = [run.stand_in(data) for data in (RECORD.to_bytes(), MEMBER, MEMBER)]
    assert [(leaf.seq, leaf.class_name, leaf.descriptor_hash) for leaf, _ in found] == [(n, "open", NAMES[n]) for n in NAMES]
    assert [problems for _, problems in found] == [[]] * 3 and list(run.pruned) == [1, 2, 3]
    assert code(run.stand_in, MEMBER) == "AGGREGATE", "it is of three leaves"


@pytest.mark.parametrize("changes", [{}, {"count": 2}, {"count": 4}, {"clip_micro": 1}, {"class_index": 1}])
def test_an_aggregate_gives_its_root_only_where_all_else_in_it_is_what_its_leaves_give(changes):
    """Also where it says a leaf more than follow one another: nothing else would hold that number against anything."""
    known, made = replace(RECORD, members_root=bytes([7]) * 32, **changes), Aggregating()
    for seq in range(1, 4):
        made.take(RECORD.admission(seq, descriptor(seq), "open", START), 0, known)
    (found,) = made.made()
    assert (found == known) is (not changes) and (found.members_root == known.members_root) is (not changes)


def test_an_aggregate_stands_for_its_own_leaves_in_a_class_that_there_is():
    for changes in ({"first": 2}, {"class_index": 2}, {"class_index": 3}):
        assert code(replay().stand_in, replace(RECORD, **changes).to_bytes()) == "AGGREGATE"
    assert code(replay().stand_in, MEMBER) == "AGGREGATE", "none went before"
    run = replay()
    run.stand_in(RECORD.to_bytes())
    for again in (RECORD, replace(RECORD, first=2, count=2)):
        assert code(run.stand_in, again.to_bytes()) == "AGGREGATE", "the one before goes on"
    replay().stand_in(RECORD.to_bytes())


def test_whom_no_withdrawal_names_is_restored_without_a_name_and_only_a_closed_run_may_have_such():
    run = replay()
    run._names = {}
    leaf, problems = run.stand_in(RECORD.to_bytes())
    assert (leaf.descriptor_hash, problems, run.register.unnamed) == (stand_in_name(1), [], [1, 0])
    assert "the run is not closed" in (run.unvouched(9, QUORUM) or "") and "leaf 1 is gone" in (run.unvouched(1, QUORUM) or "")
    run.closed_at = 5
    assert run.unvouched(9, QUORUM) is None
    for few in (frozenset(), frozenset({"anna"})):
        assert "there until the run was closed" in (run.unvouched(9, few) or "")
    run.register.name(run.contributions[stand_in_name(1)], descriptor(1))
    known = replay()
    known.stand_in(RECORD.to_bytes())
    assert run.register.pool(0) == known.register.pool(0) and run.register.unnamed == [0, 0]
    assert run.contributions.keys() == known.contributions.keys()


def test_each_aggregate_is_given_once_and_the_rest_is_said_in_a_byte():
    stand_ins = StandIns([replace(RECORD, first=9), RECORD])
    assert [stand_ins.at(seq) for seq in (0, 2, 3, 4, 11, 12)] == [
        None, RECORD.to_bytes(), MEMBER, None, replace(RECORD, first=9).to_bytes(), None
    ]  # fmt: skip
    assert stand_ins.unused == 0 and StandIns([RECORD]).unused == 1


def test_a_body_is_vouched_for_below_the_end_and_not_at_it():
    run = replay()
    run.stand_in(RECORD.to_bytes())
    run.withdrawals[descriptor(1)] = 5
    assert run.unvouched(6, QUORUM) is None and "left with leaf 5" in (run.unvouched(5, QUORUM) or "")
    assert "leaf 1 is gone" in (run.unvouched(1, QUORUM) or "")
    run.shown_members.add(1)
    assert run.unvouched(5, QUORUM) is None, "it was shown to be a member"
    del run.withdrawals[descriptor(1)]
    assert "the run is not closed" in (run.unvouched(6, QUORUM) or "")


def test_a_member_is_shown_by_its_path_at_its_own_place_and_nobody_else():
    members = [Member(descriptor(n), n + 1, bytes([n]) * 32) for n in range(5)]
    tree = SlotTree()
    for member in members:
        tree.append(leaf_hash(member.to_bytes()))
    made = Aggregate(1, 5, 0, 1, 1, 0, 0, 0, 0, tree.root())
    for place, member in enumerate(members):
        path = tree.inclusion_proof(place)
        made.require_member(member, path)
        for wrong in (
            replace(member, descriptor_hash=descriptor(9)), replace(member, content_anchor=bytes([9]) * 32),
            replace(member, seq=member.seq % 5 + 1),
        ):  # fmt: skip
            with pytest.raises(ProofError):
                made.require_member(wrong, path)
        with pytest.raises(ProofError):
            replace(made, members_root=bytes(32)).require_member(member, path)
        assert code(made.require_member, replace(member, seq=6), path) == "MEMBER"


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
