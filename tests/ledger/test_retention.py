"""Summaries: what they say, who recomputes it, and which ranges they may speak for."""

from dataclasses import replace

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from ledger.accountants import to_micro_up
from ledger.audit import verify_export
from ledger.errors import LeafRefused
from ledger.leaves import Epoch, SummaryKind, encode_leaf
from ledger.log import Ledger
from ledger.merkle import root as merkle_root
from ledger.replay.summaries import Aggregate, Member, set_root
from tests.ledger.spends import told
from tests.vectors.conformance.correlated import BANDS, drawn, seven, under
from tests.worlds.attested_ledgers import AttestedDriver
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import export_of, forged_export, grown, leaves_of, retaining_spec


@pytest.fixture
def run(path):
    driver = grown(path)
    yield driver
    driver.ledger.close()


def test_a_summary_says_what_its_range_said(run):
    leaf = run.ledger.summarise(now=run.tick())
    leaves = leaves_of(run.ledger)
    epochs = [found for found in leaves if isinstance(found, Epoch)]
    assert (leaf.first, leaf.end, leaf.previous) == (1, epochs[1].seq + 1, None), "all epochs but the last one"
    spends = {name: row.epsilon_micro for name, row in told(leaves[: leaf.end]).items()}
    sums = [sum(spends[descriptor(n)] for n in numbers) for numbers in ((1, 2, 5, 6), (3, 4))]
    assert [row.sum_epsilon_micro for row in leaf.classes] == sums
    assert [row.contributions for row in leaf.classes] == [4, 2]
    assert [row.active for row in leaf.classes] == [2, 1]
    assert [row.charged for row in leaf.classes] == [16, 16]
    assert leaf.kinds[0] == SummaryKind(1, 6) and sum(row.count for row in leaf.kinds) == leaf.end - 1
    assert leaf.classes[1].max_epsilon_micro == max(spends[descriptor(3)], spends[descriptor(4)])


def test_a_summary_adds_up_every_member_of_a_group(path):
    with Ledger.create(path, retaining_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(*map(admission, range(5)))
        driver.steps(1)
        driver.withdraw(3)
        driver.withdraw(4)
        driver.epoch()
        driver.epoch()
        row = ledger.summarise(now=driver.tick()).classes[0]
        each = told(leaves_of(ledger))[descriptor(0)].epsilon_micro
    assert (row.contributions, row.active) == (5, 3)
    assert row.sum_epsilon_micro == 5 * each == 5 * row.max_epsilon_micro > 0


def test_a_summary_says_what_who_left_has_spent_by_its_end_where_that_grew(path):
    """Correlated noise: who left in the first of two epochs pays for steps that are done again in the second, not later."""
    spec = retaining_spec(attested=True, **under(BANDS, steps=24, epoch_steps=4))
    with Ledger.create(path, spec, SIGNER, now=START) as ledger:
        driver = AttestedDriver(ledger, now=START)
        seven(driver)
        drawn(driver)
        pin = ledger.pin()
        driver.withdraw(7)
        drawn(driver)
        driver.epoch()
        (gone,) = (one for one in ledger.state.contributions.values() if not one.active)
        at_first = ledger.state.epsilon(gone)
        found = []
        for _ in range(2):
            ledger.resume(4, pin, now=driver.tick())
            drawn(driver)
            driver.epoch()
            spent = [to_micro_up(ledger.state.epsilon(one)) for one in ledger.state.contributions.values()]
            found.append([(sum(own), max(own)) for own in (spent[:5], spent[5:])])
        rows = ledger.summarise(now=driver.tick()).classes
        assert at_first < ledger.state.epsilon(gone) and [row.contributions for row in rows] == [5, 2]
        assert [(row.sum_epsilon_micro, row.max_epsilon_micro) for row in rows] == found[0]


def test_the_set_root_is_over_all_who_were_admitted_those_alike_and_side_by_side_in_one(run):
    leaf = run.ledger.summarise(now=run.tick())
    alike = {
        (1, 2): (0, 1_000_000, 1_000_000, 0),
        (3,): (1, 500_000, 3_000_000, 0),
        (4,): (1, 250_000, 4_000_000, 7),
        (5, 6): (0, 1_000_000, 1_000_000, 0),
    }
    aggregates = []
    for numbers, signed in alike.items():
        first = run.ledger.state.contributions[descriptor(numbers[0])].seq
        members = [Member(descriptor(n), first + place, admission(n).anchor) for place, n in enumerate(numbers)]
        root = merkle_root([member.to_bytes() for member in members])
        aggregates.append(Aggregate(first, len(numbers), *signed, 0, 0, 0, root))
    assert leaf.set_root == set_root(aggregates)


def test_summaries_follow_one_another(run):
    first = run.ledger.summarise(now=run.tick())
    with pytest.raises(LeafRefused, match="NOTHING_DUE"):
        run.ledger.summarise(now=run.tick())
    run.steps(1)
    run.epoch()
    second = run.ledger.summarise(now=run.tick())
    assert (second.first, second.previous) == (first.end, first.seq)
    run.ledger.finish(now=run.tick())


def test_a_summary_may_follow_the_close(run, tmp_path):
    run.ledger.finish(now=run.tick())
    leaf = run.ledger.summarise(now=run.tick())
    report = verify_export(export_of(run, tmp_path / "export"), [SIGNER.vkey])
    assert (report.verdict, report.size) == ("TOLD", leaf.seq + 1)


def test_a_policy_that_keeps_everything_has_no_summary(path):
    with Ledger.create(path, retaining_spec(retention_epochs=0), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        driver.steps(1)
        driver.epoch()
        with pytest.raises(LeafRefused, match="retention_epochs = 0"):
            ledger.summarise(now=driver.tick())


@pytest.mark.parametrize("horizon", [2, 3, 4])
def test_the_horizon_is_counted_in_closed_epochs(path, horizon):
    driver = grown(path, retention_epochs=horizon)
    with driver.ledger as ledger:
        if horizon == 2:
            leaf = ledger.summarise(now=driver.tick())
            assert isinstance(leaves_of(ledger)[leaf.end - 1], Epoch) and leaves_of(ledger)[leaf.end - 1].number == 1
        else:
            with pytest.raises(LeafRefused, match=f"{horizon - 2} more must close"):
                ledger.summarise(now=driver.tick())


def test_opening_recomputes_a_summary(run, path):
    size = run.ledger.summarise(now=run.tick()).seq + 1
    run.ledger.close()
    with Ledger.open(path, SIGNER, recompute=True) as ledger:
        assert ledger.size == size and len(ledger.state.tally.summaries) == 1


def test_public_classes_and_early_leavers(path):
    """Nobody's epsilon is summed in a public class; its members are in aggregates as any others."""
    rules = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    public = replace(rules[0], **bounds, public=True)
    policy = signed_policy(classes=(public, rules[1]), retention_epochs=1)
    driver = Driver(Ledger.create(path, header_spec(policy), SIGNER, now=START))
    signed = PUBLIC_BOUNDS._asdict()
    driver.admit(admission(1, **signed), admission(2, **signed), admission(3, "sensitive"))
    driver.steps(1)
    driver.withdraw(2)
    driver.epoch()
    driver.steps(1)
    driver.epoch()
    with driver.ledger as ledger:
        leaf = ledger.summarise(now=driver.tick())
        row = leaf.classes[0]
        assert (row.contributions, row.active, row.sum_epsilon_micro, row.max_epsilon_micro) == (2, 1, None, None)
        assert [found.terms[:3] for found, _ in ledger.state.tally.summarised] == [
            (0, *PUBLIC_BOUNDS[:2]),
            (1, 500_000, 3_000_000),
        ]


def test_aggregates_round_trip_and_nothing_else_does():
    record = Aggregate(3, 9, 0, 5, 6, 0, 0, 0, 0, bytes(32))
    assert Aggregate.from_bytes(record.to_bytes()) == record
    for data in (b"", b"\x80", b"\xa0", record.to_bytes() + b"\x00", record.to_bytes()[:-1], bytes(300)):
        with pytest.raises(LeafRefused):
            Aggregate.from_bytes(data)


def test_a_forged_summary_is_refused_by_the_auditor(run, tmp_path):
    leaf = run.ledger.summarise(now=run.tick())
    leaves = leaves_of(run.ledger)
    assert verify_export(forged_export(leaves, tmp_path / "same"), [SIGNER.vkey]).verdict == "TOLD"
    row = leaf.classes[0]
    forged = replace(leaf, classes=(replace(row, sum_epsilon_micro=row.sum_epsilon_micro - 1), *leaf.classes[1:]))
    assert encode_leaf(forged) != encode_leaf(leaf)
    report = verify_export(forged_export([*leaves[:-1], forged], tmp_path / "forged"), [SIGNER.vkey])
    assert report.verdict == "FAILED"
    assert [(found.code, found.where) for found in report.findings] == [("SUMMARY", f"seq {leaf.seq}")]
    assert "sum_epsilon_micro of class 0" in report.findings[0].sentence
