"""What the audit finds out for the report: the distribution of epsilon, withdrawals, signers, and noise per block."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.audit import Signer, WithdrawalCount, verify_export, withdrawals
from ledger.log import Ledger
from ledger.note import NoteSigner
from ledger.replay.influence import class_costs
from ledger.views.summary import SPREAD_BINS, block_multipliers, spread_of, undominated
from tests.worlds.ledgers import (
    OTHER_KEY,
    SIGNER,
    START,
    Driver,
    admission,
    descriptor,
    header_spec,
    parameter,
    signed_policy,
    stack_of,
)


@pytest.fixture
def audited(run, tmp_path):
    run.whole_run()
    return verify_export(run.ledger.export(tmp_path / "export"), [SIGNER.vkey])


@given(st.dictionaries(st.floats(0, 1e6), st.integers(1, 50), min_size=1, max_size=30))
def test_a_spread_counts_every_contribution_once_and_its_quartiles_are_values_that_so_many_reach(epsilons):
    found = spread_of(epsilons)
    everyone = sorted(value for value, count in epsilons.items() for _ in range(count))
    assert found.contributions == len(everyone) == sum(found.counts) and len(found.counts) == SPREAD_BINS
    assert (found.least, found.most) == (everyone[0], everyone[-1])
    for part, value in ((1, found.quarter), (2, found.median), (3, found.three_quarters)):
        assert value == everyone[-(-part * len(everyone) // 4) - 1]


GROUP = st.tuples(st.tuples(*[st.sampled_from((1.0, 1.5, 2.0))] * 2), st.tuples(*[st.integers(0, 3)] * 2))


@given(st.lists(GROUP, min_size=1, max_size=12))
def test_whatever_costs_less_behind_more_noise_in_fewer_steps_is_largest_among_those_returned(groups):
    found = undominated(groups)
    assert set(found) <= set(groups) and undominated(found) == found
    for cost in (
        lambda group: sum(count / z**2 for z, count in zip(*group, strict=True)),
        lambda group: max(count**0.5 / z for z, count in zip(*group, strict=True)),
    ):
        assert max(map(cost, found)) == max(map(cost, groups))


def test_the_figure_for_content_replaced_bounds_every_contribution_and_not_only_the_one_that_spent_most(tmp_path):
    """More steps behind more noise may cost less than one step against a null, and more against other content."""
    loud, other = signed_policy().policy.classes
    policy = signed_policy(classes=(replace(loud, sampling_rate=Fraction(1, 2)), other))
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1, clip_micro=500_000, sigma_micro=2_000_000))
        driver.steps(1, 4)
        driver.steps(1, 3)
        driver.admit(admission(2))
        driver.steps(1, 1)
        driver.epoch()
        ledger.finish(now=driver.tick())
        ledger.export(tmp_path / "export")
        first, both = (class_costs(ledger.state, admitted=count, final=True)[0] for count in (1, 2))
    shown = verify_export(tmp_path / "export", [SIGNER.vkey]).classes[0]
    assert (shown.epsilon, shown.epsilon_replace) == both
    assert first[0] < both[0] and first[1] == both[1], "it spent less, and stands for more"


def test_bins_have_their_lower_end_and_the_last_has_both():
    assert spread_of({0.0: 3, 1.0: 2, 2.0: 5}).counts == (3, *[0] * 9, 2, *[0] * 8, 5)
    assert spread_of({0.0: 4}).counts == (4, *[0] * 19)


def test_the_spread_of_a_class_has_withdrawn_contributions_and_what_each_spent(run, audited):
    for summary in audited.classes:
        state = run.ledger.state
        spent = [run.ledger.epsilon(key) for key, it in state.contributions.items() if it.terms.class_name == summary.name]
        assert summary.spread.contributions == len(spent) == summary.active + summary.withdrawn
        assert (summary.spread.least, summary.spread.most) == (min(spent), max(spent)) == (min(spent), summary.epsilon)


def test_a_class_without_contributions_has_no_spread(run):
    run.admit(admission(1))
    from ledger.views.summary import class_summaries

    assert [summary.spread is None for summary in class_summaries(run.ledger.state)] == [False, True]


def test_withdrawals_are_counted_by_class_and_reason_and_told_with_what_stays_spent(run, audited):
    assert audited.withdrawal_counts == (
        WithdrawalCount("open", "contributor", 1),
        WithdrawalCount(None, "contributor", 1),
    )
    first, unknown = audited.withdrawals
    assert (first.class_name, first.steps, first.epsilon) == ("open", 8, run.ledger.epsilon(descriptor(2)))
    assert first.descriptor_hash == descriptor(2).hex() and first.time > START
    assert (unknown.class_name, unknown.steps, unknown.epsilon) == (None, None, None)


def test_only_the_last_withdrawals_are_told_one_by_one_and_all_are_counted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(withdrawals, "MAX_LISTED", 3)
    run.admit(*(admission(n) for n in range(9)))
    for n in range(9):
        run.withdraw(n)
    report = verify_export(run.ledger.export(tmp_path / "export"), [SIGNER.vkey])
    assert [row.descriptor_hash for row in report.withdrawals] == [descriptor(n).hex() for n in (6, 7, 8)]
    assert [row.count for row in report.withdrawal_counts] == [9]


def test_signers_are_the_pinned_keys_that_signed_and_the_log_is_told_apart(run, tmp_path):
    run.whole_run()
    export = run.ledger.export(tmp_path / "export")
    other = NoteSigner(SIGNER.name, OTHER_KEY)
    found = verify_export(export, [SIGNER.vkey, other.vkey]).signers
    assert found == (Signer(SIGNER.name, SIGNER.verifier.key_id.hex(), None, True),)


def test_epochs_say_where_and_when_they_were_recorded_and_how_many_were_in_the_pool(audited):
    first, second = audited.epochs
    assert 0 < first.seq < second.seq < audited.size and START < first.time < second.time
    assert (first.active, first.withdrawn, second.active, second.withdrawn) == ((2, 2), (0, 0), (2, 2), (1, 0))
    assert first.model_digest == "07" * 32


def test_the_multiplier_of_a_block_is_its_noise_by_the_clip_norm_and_at_least_what_was_signed(run):
    # open: sigma 1, C 1; sensitive: sigma 3, C 0.5. The shared block has std 1.5.
    assert block_multipliers(run.ledger.header) == ((1.0, None), (1.0, None), (1.5, 3.0), (None, None))


def test_noise_that_others_need_counts_for_a_class_with_a_smaller_clip_norm():
    plain = signed_policy().policy.classes
    policy = signed_policy(classes=(replace(plain[0], noise_multiplier_micro=4_000_000), plain[1]))
    stack = stack_of(2, parameter("layers.0.weight", 1), parameter("layers.1.weight", 1))
    header = header_spec(policy, stack=stack).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    assert block_multipliers(header) == ((4.0, None), (4.0, 8.0))


def test_noise_that_follows_its_draw_has_the_signed_multiplier(tmp_path):
    policy = signed_policy(noise_injection="per_sample", disclosure="occurrences_public")
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        assert block_multipliers(ledger.header)[2] == (1.0, 3.0)


def test_with_budgets_the_clip_norm_of_a_block_is_its_part():
    policy = signed_policy(noise_budgets=(1_000_000, 1_000_000, 2_000_000))
    rules = policy.policy.classes
    rules = (rules[0], replace(rules[1], depth=replace(rules[1].depth, head=False)))
    policy = signed_policy(noise_budgets=(1_000_000, 1_000_000, 2_000_000), classes=rules)
    stack = stack_of(1, parameter("layers.0.weight", 100), parameter("head.weight", 100))
    header = header_spec(policy, stack=stack).header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    stds = [block.std for block in header.blocks]
    assert [block.share for block in header.blocks] == [1_000_000, 2_000_000]
    (open_2, sensitive_2), (open_head, sensitive_head) = block_multipliers(header)
    assert sensitive_head is None and sensitive_2 == pytest.approx(stds[0] / 0.5)
    assert open_2 == pytest.approx(max(1.0, stds[0] * 5**0.5)) and open_head == pytest.approx(max(1.0, stds[1] * 5**0.5 / 2))
    together = (1 / (stds[0] * 5**0.5) ** 2 + 1 / (stds[1] * 5**0.5 / 2) ** 2) ** -0.5
    assert together >= 1.0 - 1e-9  # what the shares are for: both blocks together keep the signed multiplier
