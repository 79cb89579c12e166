"""Just enough of edwards25519 to tell a sound Ed25519 public key from a dangerous one (RFC 8032 section 5.1).

Nothing here handles secrets, so plain integer arithmetic is fine; it runs once per key.
"""

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
