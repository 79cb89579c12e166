"""The fast test for prime order against its definition, in every coset of the torsion subgroup."""

import random
from math import gcd

from hypothesis import given, settings
from hypothesis import strategies as st

from attest import keys
from attest.keys import ed25519
from attest.keys.ed25519 import (
    IDENTITY,
    L,
    P,
    add,
    decompress,
    has_prime_order,
    is_identity,
    multiply,
)


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


def encoded(point):
    x, y, _, _ = affine(point)
    return (y | (x & 1) << 255).to_bytes(32, "little")


@settings(max_examples=200, deadline=None)
@given(st.integers(1, L - 1), st.integers(0, 7))
def test_any_multiple_of_a_key_is_judged_rightly(scalar, k):
    base = decompress(keys.public_bytes(keys.generate()))
    assert base is not None
    assert has_prime_order(encoded(add(multiply(scalar, base), TORSION[k]))) == (k == 0)


def test_every_key_of_the_library_has_prime_order():
    for _ in range(300):
        raw = keys.public_bytes(keys.generate())
        assert has_prime_order(raw) and decompress(raw) != IDENTITY


def test_the_library_tells_one_coset_in_eight_of_prime_order():
    """Of R + k T, with R of prime order and T of order 8, exactly k = 0 passes, by either sign of x."""
    for _, point in zip(range(60), points(3), strict=False):
        prime = multiply(8, point)
        for k, small in enumerate(TORSION):
            raw = encoded(add(prime, small))
            assert has_prime_order(raw) == (k == 0)
            assert has_prime_order(raw[:31] + bytes([raw[31] ^ 0x80])) == (k == 0)


def test_the_library_says_of_any_bytes_what_the_definition_says():
    """Half of all y are those of no point: they are points of the twist, and refused."""
    generator, found = random.Random(4), []
    samples = [generator.randbytes(32) for _ in range(600)]
    edges = [*range(-25, 25), *range(P - 25, P + 25), *range(2**255 - 9, 2**255 + 9)]
    samples += [(y % 2**256).to_bytes(32, "little") for y in edges]
    samples += [encoded(point) for point in TORSION]
    for raw in samples:
        point = decompress(raw)
        by_parts = point is not None and not is_identity(multiply(8, point)) and by_definition(point)
        found.append(by_parts)
        assert has_prime_order(raw) == by_parts
    assert 30 <= sum(found) <= 150
    assert not has_prime_order(b"") and not has_prime_order(bytes(31)) and not has_prime_order(b"\x02" + bytes(32))


def test_the_scalar_is_one_that_x25519_takes_as_it_is_and_no_point_of_the_twist_comes_back():
    scalar, twist = 5 * L - 1, 2 * P + 2 - 8 * L
    assert scalar % 8 == 0 and 2**254 <= scalar < 2**255
    assert gcd(5 * L - 2, twist) == gcd(5 * L, twist) == 1


def test_keys_are_judged_without_x25519_as_with_it(monkeypatch):
    monkeypatch.setattr("attest.keys.ed25519._multiplier", lambda: None)
    sound = decompress(keys.public_bytes(keys.generate()))
    assert has_prime_order(encoded(sound)) is None
    judge = ed25519._weakness.__wrapped__
    assert judge(encoded(sound)) is None and "small-order component" in judge(encoded(add(sound, TORSION[3])))
