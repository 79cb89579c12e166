"""The fast test for prime order against its definition, in every coset of the torsion subgroup."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from attest import keys
from attest.curve25519 import IDENTITY, L, P, add, decompress, in_prime_subgroup, is_identity, multiply


def points(seed):
    """Points of the curve at random, of any order."""
    generator = random.Random(seed)
    while True:
        point = decompress(generator.randbytes(32))
        if point is not None:
            yield point


def torsion():
    """The eight points whose order divides 8, as multiples of one of order 8."""
    for point in points(8):
        generator = multiply(L, point)
        if not is_identity(multiply(4, generator)):
            return [multiply(k, generator) for k in range(8)]
    raise AssertionError("there are points of order 8")


TORSION = torsion()


def affine(point):
    x, y, z, _ = point
    inverse = pow(z, -1, P)
    return x * inverse % P, y * inverse % P, 1, x * y * inverse * inverse % P


def by_definition(point):
    return is_identity(multiply(L, point))


def test_the_torsion_subgroup_is_cyclic_of_order_eight():
    assert is_identity(TORSION[0]) and is_identity(add(TORSION[1], TORSION[7])) and len({affine(p) for p in TORSION}) == 8
    assert affine(TORSION[4])[:2] == (0, P - 1)


def test_one_coset_in_eight_has_prime_order():
    """Of R + k T, with R of prime order and T of order 8, exactly k = 0 passes."""
    for _, point in zip(range(60), points(1), strict=False):
        prime = multiply(8, point)
        for k, small in enumerate(TORSION):
            mixed = add(prime, small)
            assert in_prime_subgroup(mixed) == in_prime_subgroup(affine(mixed)) == (k == 0)


def test_the_answer_is_that_of_the_definition():
    found = [(in_prime_subgroup(point), by_definition(point)) for _, point in zip(range(300), points(2), strict=False)]
    assert all(fast == slow for fast, slow in found)
    assert 20 <= sum(fast for fast, _ in found) <= 60


@settings(max_examples=200, deadline=None)
@given(st.integers(1, L - 1), st.integers(0, 7))
def test_any_multiple_of_a_key_is_judged_rightly(scalar, k):
    base = decompress(keys.public_bytes(keys.generate()))
    assert base is not None
    assert in_prime_subgroup(add(multiply(scalar, base), TORSION[k])) == (k == 0)


def test_every_key_of_the_library_has_prime_order():
    for _ in range(300):
        point = decompress(keys.public_bytes(keys.generate()))
        assert point is not None and in_prime_subgroup(point) and point != IDENTITY
