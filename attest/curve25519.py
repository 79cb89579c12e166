"""Just enough of edwards25519 to tell a sound Ed25519 public key from a dangerous one (RFC 8032 section 5.1).

Nothing here handles secrets, so plain integer arithmetic is fine. `has_prime_order` has the library do most of it; it answers
with yes or no, and `decompress`, `multiply` and `in_prime_subgroup` find out what is wrong with a key.
"""

from functools import cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

P = 2**255 - 19
"""The field prime."""

L = 2**252 + 27742317777372353535851937790883648493
"""Order of the prime subgroup; the curve has 8 * L points."""

_D = -121665 * pow(121666, -1, P) % P
_SQRT_MINUS_ONE = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]
"""Extended homogeneous coordinates (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z."""

IDENTITY: Point = (0, 1, 1, 0)


def decompress(raw: bytes) -> Point | None:
    """The point that 32 bytes encode, or None if they are no canonical encoding of a point (RFC 8032 section 5.1.3)."""
    encoded = int.from_bytes(raw, "little")
    sign, y = encoded >> 255, encoded & (2**255 - 1)
    if len(raw) != 32 or y >= P:
        return None
    u, v = (y * y - 1) % P, (_D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if (v * x * x + u) % P == 0:
        x = x * _SQRT_MINUS_ONE % P
    if (v * x * x - u) % P != 0 or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


def add(p: Point, q: Point) -> Point:
    """Sum of two points by the complete formulas of RFC 8032 section 5.1.4; also right for p = q."""
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * _D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(scalar: int, point: Point) -> Point:
    """`scalar` times `point` by double and add; variable time, for public values only."""
    result = IDENTITY
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


def is_identity(point: Point) -> bool:
    """Whether the point is the neutral element."""
    return point[0] % P == 0 and (point[1] - point[2]) % P == 0


def in_prime_subgroup(point: Point) -> bool:
    """Whether a point, which must not have small order, lies in the subgroup of prime order L.

    The group is cyclic of order 8 * L, so the subgroup is what can be halved three times. Guarantee: the answer is that of
    `is_identity(multiply(L, point))`, at the cost of three modular powers instead of 250 doublings.

    On the Montgomery form v^2 = u^3 + A u^2 + u (RFC 7748 section 4.1) the point can be halved iff u is a square. A half Q
    is found through the 2-isogeny to w^2 = t (t^2 - 2 A t + A^2 - 4) and its dual, whose composition is doubling; which half
    is of no account, for they differ by the point of order 2, itself four times another. And Q can be halved twice more iff
    its Tate pairing with T = (1, r), a point of order 4, is trivial: iff (v_Q - r u_Q)^2 / u_Q is a fourth power.
    Signs of square roots are of no account either: they turn a point into its negative.
    Source: Pornin, "Point-Halving and Subgroup Membership in Twisted Edwards Curves" (2022), section 3.
    """
    x, y, z, _ = point
    inverse = pow((z - y) * x, -1, P)
    u, v_over_u = (z + y) * x * inverse % P, _V_FACTOR * (z - y) * z * inverse % P
    root_u = _square_root(u)
    if root_u is None:
        return False
    # A preimage of the point under the dual isogeny: one of t and (A^2 - 4) / t is a square, for A^2 - 4 is none.
    t = (2 * u + _A + 2 * v_over_u * root_u) % P
    root_t = _square_root(t)
    if root_t is None:
        t = (_A * _A - 4) * pow(t, -1, P) % P
        root_t = _square_root(t)
        if root_t is None:
            return False
    half = ((t - _A) * _ONE_HALF + root_u * root_t) % P
    # v_Q = u_Q * root_t, and fourth powers are left out.
    return pow(half * (root_t - _ROOT_OF_A_PLUS_2) ** 2, (P - 1) // 4, P) == 1


def has_prime_order(raw: bytes) -> bool | None:
    """Tells whether 32 bytes are the canonical encoding of a point of prime order L; None where the library has no X25519.

    Guarantee: the answer is yes exactly where `decompress` finds a point other than the neutral element and
    `in_prime_subgroup` says yes of it.

    X25519 multiplies a point u of the Montgomery form by a scalar that is a multiple of 8 from 2^254 to 2^255, be it on the
    curve or on its twist, and returns the u of the product (RFC 7748 section 5). Such a scalar is s = 5 L - 1, for L = 5
    modulo 8. Write a point of the curve as A + T with A in the subgroup of order L and T of an order that divides 8. Then
    s (A + T) = -A, whose u is that of A + T only where T = 0: from A + T = A follows T = 0, and from A + T = -A that 2 A = -T
    lies in both subgroups, so that A = T = 0. The library refuses the product 0. A point of the twist has an order that divides
    4 L', L' prime, and comes back as itself or its negative only if 5 L - 2 or 5 L is a multiple of that order. Both numbers
    have no divisor in common with 4 L', so no such point does. And a Montgomery point of the curve is one of edwards25519 with
    u = (1 + y) / (1 - y) (RFC 7748 section 4.1). Its x is 0 only for y = 1 and y = -1, which are refused.

    Args:
        raw: The encoding.
    """
    multiplier = _multiplier()
    if multiplier is None:
        return None
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    if len(raw) != 32 or not 1 < y < P - 1:
        return False
    u = ((1 + y) * pow(1 - y, -1, P) % P).to_bytes(32, "little")
    try:
        return multiplier.exchange(X25519PublicKey.from_public_bytes(u)) == u
    except ValueError:  # The product is 0: the point has small order.
        return False


@cache
def _multiplier() -> X25519PrivateKey | None:
    """The scalar 5 L - 1, which X25519 takes as it is."""
    try:
        return X25519PrivateKey.from_private_bytes((5 * L - 1).to_bytes(32, "little"))
    except UnsupportedAlgorithm:
        return None


def _square_root(value: int) -> int | None:
    """A square root modulo P, or None (RFC 8032 section 5.1.3, step 3)."""
    root = pow(value, (P + 3) // 8, P)
    square = root * root % P
    if square == value % P:
        return root
    return root * _SQRT_MINUS_ONE % P if square == -value % P else None


_A = 486662
_ONE_HALF = pow(2, -1, P)
_ROOT_OF_A_PLUS_2 = _square_root(_A + 2) or 0
_V_FACTOR = _square_root(-(_A + 2) % P) or 0
