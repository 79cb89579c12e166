"""Who is in a pool, under which terms, and whose expenditure an epoch must tell: the register, without a ledger around it.

Contributions share one object of terms only where every term is alike; what one of them carries is its own.
"""

from dataclasses import fields, replace

import pytest
from ledger_runs import START, admission, signed_policy

from attest.descriptor import PUBLIC_CLIP_MICRO, PUBLIC_NOISE_MICRO
from ledger.errors import LeafRefused
from ledger.leaves import Admit
from ledger.merkle import root
from ledger.rules.contributions import Contribution, Register, Terms

CHARGED = (8, 0)


def admitted(register: Register, seq: int, *, charged=CHARGED, attempt=1, class_name="open", **changes) -> Contribution:
    spec = admission(seq, class_name, **changes)
    leaf = Admit(seq, START, *(getattr(spec, field.name) for field in fields(Admit)[2:]))
    register.admit(leaf, leaf.profile_id, charged, attempt)
    return register.by_hash[leaf.descriptor_hash]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"class_name": "sensitive"}, {"class_index": 1, "class_name": "sensitive"}),
        ({"clip_micro": 250_000}, {"clip_micro": 250_000}),
        ({"sigma_micro": 4_000_000}, {"sigma_micro": 4_000_000}),
        ({"max_occurrences": 3}, {"max_occurrences": 3}),
        ({"charged": (8, 4)}, {"charged_before": (8, 4)}),
        ({"attempt": 2}, {"attempt_before": 2}),
        ({"max_epsilon_micro": 9, "max_delta_pico": 7}, {"max_epsilon_micro": 9, "max_delta_pico": 7}),
        ({"max_epsilon_micro": 5, "max_delta_pico": 8}, {"max_epsilon_micro": 5, "max_delta_pico": 8}),
    ],
)
def test_who_was_admitted_under_other_terms_has_them(changes, told):
    """The second of two that differ in one term must not get those of the first."""
    register = Register(signed_policy().policy.classes)
    first = admitted(register, 1, max_epsilon_micro=5, max_delta_pico=7)
    same = admitted(register, 2, max_epsilon_micro=5, max_delta_pico=7)
    other = admitted(register, 3, **{"max_epsilon_micro": 5, "max_delta_pico": 7} | changes)
    assert same.terms is first.terms and other.terms is not first.terms
    for field in fields(Terms):
        if field.name in told:
            assert getattr(other.terms, field.name) == told[field.name], field.name


def test_what_was_spent_before_belongs_to_one_contribution():
    register = Register(signed_policy().policy.classes)
    found = [admitted(register, seq, carried_micro=spent).carried_micro for seq, spent in ((1, 0), (2, 17), (3, 4))]
    assert found == [0, 17, 4]


def members_root(*slots: Contribution | None) -> tuple[int, bytes]:
    """Of a pool in which each slot has a contribution, or had one that was withdrawn."""
    members = [b"" if slot is None else slot.descriptor_hash for slot in slots]
    return len(members) - members.count(b""), root(members)


def test_a_pool_is_the_root_over_all_admissions_with_nothing_where_one_left_at_every_moment():
    """Asked again after each change: what was computed before an admission or a withdrawal no longer counts."""
    register = Register(signed_policy().policy.classes)
    assert register.pool(0) == register.pool(1) == members_root()
    first, second, third = (admitted(register, seq) for seq in (1, 2, 3))
    assert register.pool(0) == members_root(first, second, third)
    other = admitted(register, 4, class_name="sensitive")
    assert register.pool(0) == members_root(first, second, third) and register.pool(1) == members_root(other)
    fourth = admitted(register, 5)
    assert register.pool(0) == members_root(first, second, third, fourth)
    register.withdraw(second, CHARGED, 1)
    assert register.pool(0) == members_root(first, None, third, fourth) and register.pool(1) == members_root(other)
    assert (register.active, register.withdrawn) == ([3, 1], [1, 0])


def test_who_left_has_one_more_expenditure_told_and_public_contributions_none():
    rules = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_CLIP_MICRO, "noise_multiplier_micro": PUBLIC_NOISE_MICRO}
    register = Register((rules[0], replace(rules[1], public=True, **bounds)))
    first, second = admitted(register, 1), admitted(register, 2)
    admitted(register, 3, class_name="sensitive")
    assert [*register.spends_due()] == [first, second] and register.due == 2
    register.withdraw(first, CHARGED, 1)
    assert [*register.spends_due()] == [first, second] and register.due == 2, "the last one of who left is still due"
    register.close_epoch()
    assert [*register.spends_due()] == [second] and register.due == 1
    third = admitted(register, 4)
    assert [*register.spends_due()] == [second, third] and register.due == 2
    assert (first.charged_until, first.attempt_until, second.charged_until, second.attempt_until) == (CHARGED, 1, None, None)


def test_contributions_are_numbered_from_0_and_no_other_number_is_one():
    register = Register(signed_policy().policy.classes)
    first, second = admitted(register, 1), admitted(register, 2)
    assert register.numbered([1, 0]) == [second, first]
    for number in (2, -1):
        with pytest.raises(LeafRefused) as found:
            register.numbered([0, number])
        assert found.value.code == "DRAW"
