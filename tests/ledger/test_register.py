"""Who is in a pool and in which group, and under which terms: the register, without a ledger around it.

Contributions share one object of terms only where every term is alike.
"""

from dataclasses import fields, replace

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from ledger.errors import LeafRefused
from ledger.leaves import Admit
from ledger.merkle import root
from ledger.replay.contributions import Contribution, Moment, Register, Terms
from tests.worlds.ledgers import START, admission, signed_policy

CHARGED = (8, 0)
LEFT = Moment(2, 1, CHARGED)


def admitted(register: Register, seq: int, *, class_name="open", window=2, attempt=1, charged=CHARGED, **changes):
    spec = admission(seq, class_name, **changes)
    leaf = Admit(seq, START, *(getattr(spec, field.name) for field in fields(Admit)[2:]))
    register.admit(leaf, leaf.profile_id, Moment(window, attempt, charged))
    return register.by_hash[leaf.descriptor_hash]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"class_name": "sensitive"}, {"class_index": 1, "class_name": "sensitive"}),
        ({"clip_micro": 250_000}, {"clip_micro": 250_000}),
        ({"sigma_micro": 4_000_000}, {"sigma_micro": 4_000_000}),
        ({"max_occurrences": 3}, {"max_occurrences": 3}),
        ({"carried_micro": 3}, {"carried_micro": 3}),
        ({"window": 3, "charged": (8, 4)}, {"since": Moment(3, 1, (8, 4))}),
        ({"attempt": 2}, {"since": Moment(2, 2, CHARGED)}),
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
    register.withdraw(second, LEFT)
    assert register.pool(0) == members_root(first, None, third, fourth) and register.pool(1) == members_root(other)
    assert (register.active, register.withdrawn) == ([3, 1], [1, 0])


def present(register: Register, charged: tuple[int, ...] = (12, 0)) -> list[tuple[int, bytes, bool]]:
    """Members, root and activity of the groups that may have changed, at the charges of `Moment(3, ...)` or other ones."""
    return [(group.count, group.members.root(), group.active) for group in register.groups.changed(charged)]


def test_a_group_is_the_root_over_all_who_joined_with_nothing_where_one_left():
    rules = signed_policy().policy.classes
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    register = Register((rules[0], replace(rules[1], public=True, **bounds)))
    first, second, third = (admitted(register, seq) for seq in (1, 2, 3))
    public = admitted(register, 4, class_name="sensitive")
    assert present(register) == [(*members_root(first, second, third), True)] and public.group is None
    register.withdraw(third, LEFT)
    register.withdraw(first, LEFT)
    register.withdraw(public, LEFT)
    active, left = (1, members_root(None, second, None)[1], True), (*members_root(third, first), False)
    assert present(register) == [active, left], "who left stands in the order of the withdrawals"
    register.groups.close_epoch((8, 0), whole=True)
    assert present(register) == [active], "of who left before nothing changes"
    assert present(register, (8, 0)) == [], "nor, without a charge, of who stays"
    fourth = admitted(register, 5)
    register.withdraw(second, LEFT)
    assert present(register) == [
        (1, members_root(None, None, None, fourth)[1], True),
        (*members_root(third, first, second), False),
    ]
    register.withdraw(fourth, Moment(3, 1, (12, 0)))
    assert [(count, active) for count, _, active in present(register)] == [(3, False), (1, False)], "an empty group has no row"


def test_groups_of_public_draws_are_made_of_who_was_drawn_alike_in_the_order_of_admission():
    register = Register(signed_policy().policy.classes, occurrences_public=True)
    first, second, third = (admitted(register, seq) for seq in (1, 2, 3))
    assert present(register) == [(*members_root(first, second, third), True)]
    for drawn in (third, first):
        drawn.occurrences, drawn.loss = 1, 0.25
    register.groups.draw()
    assert present(register) == [(*members_root(first, third), True), (*members_root(second), True)]
    register.withdraw(third, LEFT)
    register.withdraw(first, LEFT)
    left = (*members_root(third, first), False)
    assert present(register) == [(*members_root(second), True), left], "who left stands in the order of the withdrawals"
    register.groups.close_epoch((8, 0), whole=True)
    assert present(register) == [(*members_root(second), True)], "of who left before nothing changes"
    fourth = admitted(register, 4)
    assert present(register, (8, 0)) == [(*members_root(second, fourth), True)], "the last behind the others, without a draw"
    register.withdraw(fourth, LEFT)
    assert present(register, (8, 0)) == [(*members_root(second), True), (*members_root(fourth), False)]
    register.groups.close_epoch((8, 0), whole=True)
    assert present(register, (8, 0)) == []
    second.occurrences, second.loss = 1, 0.5
    register.groups.draw()
    register.withdraw(second, LEFT)
    assert present(register) == [(*members_root(second), False)], "the sum of another noise is of another group"


def test_contributions_are_numbered_from_0_and_no_other_number_is_one():
    register = Register(signed_policy().policy.classes)
    first, second = admitted(register, 1), admitted(register, 2)
    assert register.numbered([1, 0]) == [second, first]
    for number in (2, -1):
        with pytest.raises(LeafRefused) as found:
            register.numbered([0, number])
        assert found.value.code == "DRAW"
