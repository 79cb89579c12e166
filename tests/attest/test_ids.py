"""Identifiers, and what names that look alike have in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest.errors import ValueRefused
from attest.schema.plain import check_id, skeleton

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789._/-", min_size=1, max_size=64)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("alice", "a1ice"),
        ("bob", "b0b"),
        ("modern", "modem"),
        ("www", "vvvvvv"),
        ("clinic", "dinic"),
        ("vv.rn", "w-m"),
        ("a-b", "a_b"),
        ("a-b", "a.b"),
        ("a-b", "a--b"),
        ("a/b", "a//b"),
        ("a/b-c", "a/b._c"),
        ("l0", "1o"),
    ],
)
def test_names_that_look_alike_have_one_skeleton(one, other):
    assert skeleton(one) == skeleton(other)


@pytest.mark.parametrize(
    ("one", "other"), [("alice", "alicia"), ("a/b", "a-b"), ("c1", "c2"), ("c10", "c1"), ("ab", "a-b"), ("n", "m"), ("v", "w")]
)
def test_names_that_differ_to_the_eye_have_two(one, other):
    assert skeleton(one) != skeleton(other)


@given(NAMES)
def test_the_skeleton_of_a_skeleton_is_itself(name):
    assert skeleton(skeleton(name)) == skeleton(name)


@given(NAMES, NAMES)
def test_a_skeleton_is_made_part_by_part(one, other):
    """So what looks alike inside a name makes the names look alike: only a run of separators may join at the seam."""
    if {one[-1], other[0]}.isdisjoint("._/-"):
        assert skeleton(one + other) == skeleton(one) + skeleton(other)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_numbers_never_look_alike(one, other):
    assert (skeleton(f"user-{one}") == skeleton(f"user-{other}")) is (one == other)


@given(NAMES)
def test_every_name_of_the_alphabet_is_an_identifier_and_no_other(name):
    assert check_id(name, "name") == name
    for wrong in (name.upper() + "A", f"{name} ", f"{name}\u0430", "", name * 65):
        with pytest.raises(ValueRefused):
            check_id(wrong, "name")
