"""Who is in a pool and in which group, and under which terms: the register, without a ledger around it.

Contributions share one object of terms only where every term is alike.
"""

import random
import tracemalloc
from dataclasses import fields, replace

import pytest

from attest.descriptor import PUBLIC_BOUNDS
from ledger.errors import LeafRefused
from ledger.leaves import Admit
from ledger.merkle import root
from ledger.replay import contributions
from ledger.replay.contributions import Contribution, Moment, Terms, stand_in_name
from ledger.replay.register import Register
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
        drawn.count(0.25)
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
    second.count(0.5)
    register.groups.draw()
    register.withdraw(second, LEFT)
    assert present(register) == [(*members_root(second), False)], "the sum of another noise is of another group"


def test_who_left_and_spends_more_changes_the_row_of_those_with_whom_it_left():
    register = Register(signed_policy().policy.classes, occurrences_public=True)
    first, second = (admitted(register, seq) for seq in (1, 2))
    for drawn in (first, second):
        drawn.count(0.25)
    register.groups.draw()
    for drawn in (first, second):
        register.withdraw(drawn, LEFT)
    assert present(register) == [(*members_root(first, second), False)]
    register.groups.close_epoch((8, 0), whole=True)
    register.spend(0, 2, (0.5, 0.0), lambda terms: 1.0)
    assert present(register, (8, 0)) == [(*members_root(None, second), False), (*members_root(first), False)]
    register.groups.close_epoch((8, 0), whole=True)
    register.spend(0, 2, (0.0, 0.5), lambda terms: 1.0)
    assert present(register, (8, 0)) == [(*members_root(first, second), False)], "an empty group has no row"


def test_contributions_are_numbered_from_0_and_no_other_number_is_one():
    register = Register(signed_policy().policy.classes)
    first, second = admitted(register, 1), admitted(register, 2)
    assert register.numbered([1, 0]) == [second, first]
    for number in (2, -1):
        with pytest.raises(LeafRefused) as found:
            register.numbered([0, number])
        assert found.value.code == "DRAW"


@pytest.mark.parametrize("collide", [False, True])
def test_contributions_are_found_by_their_hashes_as_in_a_dict_through_growth_and_renaming(monkeypatch, collide):
    """Names whose hashes collide are told apart, and a name that was given up is not found."""
    if collide:
        monkeypatch.setattr(contributions, "hash", lambda name: 1000 * (name[0] % 2), raising=False)
    register, known, chance = Register(signed_policy().policy.classes), {}, random.Random(7)
    spec = admission(1)
    one = Admit(1, START, *(getattr(spec, field.name) for field in fields(Admit)[2:]))
    for seq in range(1, 300):
        unnamed = chance.random() < 0.3
        name = stand_in_name(seq) if unnamed else chance.randbytes(32)
        register.admit(replace(one, seq=seq, descriptor_hash=name), 0, LEFT, unnamed=unnamed)
        known[seq] = name
        if unnamed and chance.random() < 0.5:
            told = chance.randbytes(32)
            register.name(register.by_hash[name], told)
            assert name not in register.by_hash and register.by_hash.get(name) is None
            known[seq] = told
        assert register.by_hash.get(chance.randbytes(32)) is None
    for number, (seq, name) in enumerate(known.items()):
        found = register.by_hash[name]
        assert (found.seq, found.descriptor_hash, found.slot) == (seq, name, number)
        assert found == register.by_number[number] != register.by_number[number - 1]
    assert list(register.by_hash) == list(known.values()) == [found.descriptor_hash for found in register.by_hash.values()]
    assert dict(register.by_hash.items()) == {found.descriptor_hash: found for found in register.by_number}
    assert [found.seq for found in register.by_number[-2:]] == [298, 299]
    assert sum(found.unnamed for found in register.by_number) == register.unnamed[0] > 0
    with pytest.raises(KeyError):
        register.by_hash[bytes(32)]


def test_an_index_takes_at_most_16_bytes_a_name_and_is_not_made_anew_for_every_name_that_changes(monkeypatch):
    names, index, made = bytearray(), contributions.Index(), []
    for number in range(1 << 10):
        names += number.to_bytes(32, "big")
        index.add(number.to_bytes(32, "big"), number, names)
        assert 4 * len(index._table) <= max(32, 16 * (number + 1))
    real = contributions.Index._resize
    monkeypatch.setattr(contributions.Index, "_resize", lambda self, size: (made.append(size), real(self, size))[1])
    for number in range(1 << 10):
        names[32 * number : 32 * number + 32] = told = (number + 5000).to_bytes(32, "big")
        index.add(told, number, names)
        assert index.find(told, names) == number
    assert len(made) <= 3, made


def test_what_is_written_of_a_contribution_is_read_of_it_and_of_no_other():
    register = Register(signed_policy().policy.classes, occurrences_public=True)
    first, second, third = (admitted(register, seq) for seq in (1, 2, 3))
    second.count(0.25)
    second.count(0.5)
    register.withdraw(third, LEFT)
    fourth = admitted(register, 4)
    assert [one.occurrences for one in register.by_number] == [0, 2, 0, 0]
    assert [one.loss for one in register.by_number] == [0.0, 0.75, 0.0, 0.0]
    assert [one.until for one in register.by_number] == [None, None, LEFT, None]
    fourth.count(1.0)
    assert (fourth.occurrences, fourth.loss, first.occurrences, second.loss) == (1, 1.0, 0, 0.75)


def test_a_contribution_takes_less_than_180_bytes_of_a_register_without_the_upper_levels_of_its_trees():
    """An object for each with its own numbers, and a dict, took 400."""
    spec, kept = admission(1), []
    one = Admit(1, START, *(getattr(spec, field.name) for field in fields(Admit)[2:]))
    for count in (1 << 12, 1 << 14):
        tracemalloc.start()
        try:
            register = Register(signed_policy().policy.classes)
            for seq in range(1, count + 1):
                register.admit(replace(one, seq=seq, descriptor_hash=seq.to_bytes(32, "big")), 0, LEFT)
            kept.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert (kept[1] - kept[0]) / ((1 << 14) - (1 << 12)) < 180, kept
