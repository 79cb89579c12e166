"""Lies of omission in a signed ledger, caps over attempts, literal noise: what rests on one line of the replay."""

import hashlib
from dataclasses import replace
from fractions import Fraction

import pytest

from attest.policy import ClassRule, DepthRule
from ledger import accountants
from ledger.errors import LeafRefused
from ledger.leaves import Charge, Epoch, Leaf, Spend, decode_leaf
from ledger.log import Ledger
from ledger.replay import Replay
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy


@pytest.fixture
def leaves(tmp_path):
    """Two contributions of one class and one of another, two windows, an epoch, two more, an epoch, the close."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2), admission(3, "sensitive"))
        for _ in range(2):
            run.steps(2)
            run.epoch()
        ledger.finish(now=run.tick())
        with ledger.rows() as rows:
            return [decode_leaf(row.body) for row in rows]


def codes(leaves: list[Leaf]) -> set[str]:
    """What the replay says of leaves that are renumbered as a liar would."""
    run = Replay(leaves[0], lambda size: hashlib.sha256(b"%d" % size).digest())
    found = set()
    for seq, leaf in enumerate(leaves[1:], start=1):
        found |= {problem.code for problem in run.apply(replace(leaf, seq=seq))}
    return found


def test_an_honest_ledger_has_no_problem(leaves):
    assert codes(leaves) == set()


@pytest.mark.parametrize("which", ["the last", "all", "the last of the last epoch", "all of the last epoch"])
def test_expenditures_that_an_epoch_leaves_out_are_missed(leaves, which):
    """An epoch that says nothing of a contribution hides its epsilon; totals alone need not change."""
    ends = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Epoch)]
    end = ends[-1] if "last epoch" in which else ends[0]
    begin = max((place for place in ends if place < end), default=0)
    (spend,) = (place for place in range(begin, end) if isinstance(leaves[place], Spend))
    rows = leaves[spend].rows
    assert [row.count for row in rows] == [2, 1]
    left = [replace(leaves[spend], rows=rows[:-1])] if which.startswith("the last") else []
    assert "EPOCH_ORDER" in codes([*leaves[:spend], *left, *leaves[spend + 1 :]])


def test_a_writer_that_was_fenced_off_does_not_come_back(leaves):
    windows = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Charge)]
    taken_over = [replace(leaf, fence=leaf.fence + 1) if place == windows[1] else leaf for place, leaf in enumerate(leaves)]
    assert codes(taken_over) == {"FENCE"}
    ever_since = [replace(leaf, fence=leaf.fence + 1) if place in windows[1:] else leaf for place, leaf in enumerate(leaves)]
    assert codes(ever_since) == set()


def often_drawn():
    """The policy of these tests with a class that is drawn every other step, so that sampling hardly helps."""
    rule = ClassRule(
        name="open",
        clip_norm_micro=1_000_000,
        noise_multiplier_micro=1_000_000,
        sampling_rate=Fraction(1, 2),
        depth=DepthRule(band=(Fraction(0), Fraction(1))),
    )
    return signed_policy(classes=(rule, *signed_policy().policy.classes[1:]))


def test_every_attempt_that_was_charged_spends_a_cap_anew(tmp_path):
    """At a rate where sampling hardly helps, a cap of one costs one, two and three full occurrences after as many attempts.

    A contribution that was admitted or withdrawn on the way is counted in the attempts that it was there for.
    """
    policy = often_drawn()
    capped = {"max_occurrences": 1, "sigma_micro": 20_000_000}

    def expected(steps: int, occurrences: int) -> float:
        found = accountants.epsilon_of_phases_capped([accountants.Phase(20.0, 0.5, steps)], occurrences, 1e-6)
        assert found == accountants.epsilon_occurrences(occurrences / 400.0, 1e-6) < accountants.epsilon(20.0, 0.5, steps, 1e-6)
        return found

    with Ledger.create(tmp_path / "ledger.db", header_spec(policy, caps_enforced=True), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1, **capped), admission(2, **capped))
        run.steps(4)
        assert ledger.epsilon(descriptor(1)) == expected(16, 1)
        ledger.resume(16, ledger.pin(), now=run.tick())
        run.admit(admission(4, **capped))
        assert ledger.epsilon(descriptor(1)) == expected(16, 1), "an attempt that charged nothing drew nobody"
        run.steps(4)
        assert ledger.epsilon(descriptor(1)) == expected(32, 2)
        run.withdraw(2)
        ledger.resume(32, ledger.pin(), now=run.tick())
        run.steps(2)
        assert ledger.epsilon(descriptor(1)) == expected(40, 3)
        assert ledger.epsilon(descriptor(2)) == expected(32, 2), "what came after its withdrawal costs it nothing"
        assert ledger.epsilon(descriptor(4)) == expected(24, 2), "nor does what came before its admission"


def test_a_cap_that_nobody_enforces_lowers_nothing(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(often_drawn()), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1, max_occurrences=1, sigma_micro=20_000_000))
        run.steps(4)
        whole = accountants.epsilon(20.0, 0.5, 16, 1e-6)
        once = accountants.epsilon_of_phases_capped([accountants.Phase(20.0, 0.5, 16)], 1, 1e-6)
        assert ledger.epsilon(descriptor(1)) == whole > once


def test_under_literal_noise_nobody_is_promised_more_than_was_signed(tmp_path):
    """What others bring to a step is known afterwards; the schedule's maximum, 6 times this clip norm, is no promise."""
    policy = signed_policy(disclosure="occurrences_public", noise_injection="per_sample")
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
        state = ledger.state
        assert state.expenditure.of_contribution(state.contributions[descriptor(1)]) == (4.0,)
    with Ledger.create(tmp_path / "other.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1, "sensitive", clip_micro=250_000, sigma_micro=4_000_000))
        state = ledger.state
        assert state.expenditure.of_contribution(state.contributions[descriptor(1)]) == (6.0,)


@pytest.mark.parametrize(("clip", "refused"), [(99_999, True), (100_000, False), (1_000_000, False), (1_000_001, True)])
def test_clip_norms_lie_between_the_policys_least_and_the_class_s_own(tmp_path, clip, refused):
    """Both ends belong to what may be signed."""
    policy = signed_policy(min_clip_norm_micro=100_000)
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        if refused:
            with pytest.raises(LeafRefused, match=r"CLIP: .*outside 100000\.\.1000000"):
                Driver(ledger).admit(admission(1, clip_micro=clip))
        else:
            Driver(ledger).admit(admission(1, clip_micro=clip))
