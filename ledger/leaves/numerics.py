"""Derives a run's numerics from its policy: the lattice of the sums, the clip margin, and both in words.

The trainer that keeps a level of exactness, the writer of the header and its auditor take them from this one room. A header
that says otherwise is refused. Four things no policy fixes are the trainer's word: the precision in which gradients were
formed, where the noise was drawn, how the sums of several processes are sent, and whose kernels formed products.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import Final

from attest.policy import Policy
from ledger.accountants.table import DEVICE, HOST, LATTICE_BITS, TABLE
from ledger.errors import LeafRefused

FAST: Final = "fast"
CERTIFIED: Final = "certified"

FLOAT32: Final = "float32"
FLOAT64: Final = "float64"
SUMS32: Final = "float32 sums"

TORCH: Final = "torch"
FASTEST: Final = "fastest"

MARGINS: Final = {FAST: {FLOAT32: 2.0**-9, FLOAT64: 2.0**-40}, CERTIFIED: {FLOAT32: 2.0**-20, FLOAT64: 2.0**-40}}
"""Relative shrink of every clip bound, by level and precision.

At ``fast`` it pays for the rounding of norms, coefficients and sums. A product over the K = N * T positions of a microbatch is
off by about sqrt(K) u times the size of its partial sums, at most N clipped contributions: N sqrt(N T) u stays below 2^-9 up to
N = 64 contributions of T = 512 positions. At ``certified`` it lets the rounding of norms nearly never fail a certificate; no
bound rests on it.
"""

_FAST_NOTE: Final = (
    "fast: clipped sums by float32 GEMMs, rounded once to s*2^-32, {noise} added in float64; clip bounds shrunk "
    "by clip_margin for rounding. Remaining assumption: the rounding of float32 products within a microbatch "
    "stays within that margin"
)

_SUMS64: Final = "; sums over microbatches are float64."

_CERTIFIED_NOTE: Final = (
    "certified: every contribution is truncated to integers on the lattice s*2^-{bits}, and its signed bounds are checked on "
    "them in exact arithmetic before they are added; integer sums are exact, and {noise} is added. "
    "clip_margin aims below the bounds so that checks pass; no bound rests on it. Remaining assumption: the integers of a "
    "contribution depend on no other's content."
)

_DEVICE_NOTE: Final = (
    " Noise is drawn on the device of the sums, by ChaCha20 and float64 functions within 4 units in the last place."
)
"""Stands behind the sentences on sums where noise was not drawn on the host."""

_WIRE_NOTE: Final = (
    " Each of several processes rounds its sums to float32 before they are added in float64; clip bounds are shrunk "
    "further by what that rounding can add."
)
"""Stands behind them where the sums of several processes are sent as float32."""

_SUMS_NOTE: Final = (
    " Each of several processes rounds its sums to float32 before they are added, and those over microbatches, of which each "
    "process keeps a part, are float32 too; clip bounds are shrunk further by what that rounding can add."
)
"""Stands behind them where sums over microbatches are float32 too."""

_PRODUCTS_NOTE: Final = (
    " Float32 products are by oneDNN, and by kernels of dptrain's own, wherever these are the fastest on the processor."
)
"""Stands last, where products were not left to torch's own choice of kernels."""

_WIRES: Final = {FLOAT64: "", FLOAT32: _WIRE_NOTE, SUMS32: _SUMS_NOTE}


@dataclass(frozen=True, slots=True)
class Numerics:
    """The trainer's word on what no policy fixes.

    Attributes:
        precision: in which gradients were formed.
        generator: where the noise was drawn, `HOST` or `DEVICE`.
        wire: how the sums of several processes are sent; `FLOAT64` also where there is one; `SUMS32` where those over
            microbatches are float32 as well.
        products: whose kernels formed float32 products, `TORCH` or `FASTEST`. Clip margins are those of any kernel: the bounds
            of rounding hold for every order of additions.
    """

    precision: str = FLOAT32
    generator: str = HOST
    wire: str = FLOAT64
    products: str = TORCH

    def __post_init__(self) -> None:
        words = (
            ("precision", self.precision, (FLOAT32, FLOAT64)),
            ("generator", self.generator, (HOST, DEVICE)),
            ("wire", self.wire, tuple(_WIRES)),
            ("products", self.products, (TORCH, FASTEST)),
        )
        for what, found, known in words:
            if found not in known:
                raise LeafRefused("RANGE", f"{what}: expected {' or '.join(known)}, got {found!r:.40}")

    def margin(self, policy: Policy) -> float:
        """Returns the clip margin of a run under a policy."""
        return MARGINS[policy.exactness][self.precision]

    def note(self, policy: Policy, coordinates: int) -> str:
        """Returns what the numerics of a run under a policy guarantee and assume, in words; d coordinates are scheduled."""
        family = policy.mechanism.name
        bits = lattice_bits(policy.exactness, family, coordinates, least_multiplier(policy))
        sums = exactness_note(policy.exactness, family, bits, self.wire != SUMS32)
        products = _PRODUCTS_NOTE if self.products == FASTEST else ""
        return sums + (_DEVICE_NOTE if self.generator == DEVICE else "") + _WIRES[self.wire] + products


def told(policy: Policy, coordinates: int, note: str, margin: float) -> Numerics:
    """Returns the trainer's word that a header with this note and clip margin gives.

    Guarantee: Returns only if both are what writers derive from the policy, for one precision, generator, wire and choice of
    kernels.

    Raises:
        LeafRefused: code NUMERICS, no precision, generator, wire or choice of kernels gives them.
    """
    margins = MARGINS[policy.exactness]
    precision = next((name for name, value in margins.items() if value == margin), None)
    if precision is None:
        expected = " or ".join(f"{value!r} ({name})" for name, value in margins.items())
        raise LeafRefused("NUMERICS", f"clip margin {margin!r} is none of exactness {policy.exactness!r}, expected {expected}")
    wires = tuple(_WIRES) if (policy.exactness, precision) == (FAST, FLOAT32) else (FLOAT64,)
    for generator, wire, products in product(TABLE[policy.mechanism.name].generators, wires, (TORCH, FASTEST)):
        found = Numerics(precision, generator, wire, products)
        if found.note(policy, coordinates) == note:
            return found
    expected = Numerics(precision).note(policy, coordinates)
    raise LeafRefused("NUMERICS", f"the exactness note says {note!r:.200}; the policy gives {expected!r}")


def exactness_note(exactness: str, family: str, bits: int, float64_sums: bool = True) -> str:
    """Returns what a level guarantees and assumes, with noise of a family on a lattice ``s * 2^-bits``.

    Args:
        float64_sums: sums over microbatches are float64, and a word of them stands in the note of ``fast``.
    """
    noise = TABLE[family].noise.format(bits=bits)
    if exactness == FAST:
        return _FAST_NOTE.format(noise=noise.removesuffix(f" on s*2^-{bits}")) + (_SUMS64 if float64_sums else ".")
    return _CERTIFIED_NOTE.format(bits=bits, noise=noise)


def sums_margin(contributions: int, least: float, additions: int = 0) -> float:
    """Returns how much a difference of sums of several processes may grow by rounding to float32, in the whitened norm.

    Each sum that is sent, of a process or of one of its microbatches, is off by ``2^-24`` of its size, coordinate by
    coordinate. The sizes of all of them add up to ``n / z`` in the whitened norm at most, as that of every contribution is at
    most one over its multiplier; so it is in both worlds, however contributions are dealt there. Float64 adds what is sent,
    exact to a billionth of that. Where the result is kept as float32, each addition is off by ``2^-24`` of the sum so far,
    ``n / z`` at most.

    Args:
        contributions: n, the most that a step draws. least: z, the least multiplier that any of them is accounted at.
        additions: the most microbatches of a step whose sum is kept as float32; 0 where it is float64.
    """
    return 2.0 * 2.0**-24 * (contributions + 1) * (1 + additions) / least


def most_of(expected: float) -> int:
    """Returns a number of contributions that a step hardly ever exceeds: ten deviations above the average."""
    return math.ceil(expected + 10 * math.sqrt(expected) + 10)


def additions_of(contributions: int, rows: int) -> int:
    """Returns with how many microbatches of a step a run reckons whose sums over them are float32.

    Args:
        contributions: n, the most that a step draws. rows: of all processes together, in one microbatch of each.
    """
    return math.ceil(1.25 * contributions / rows) + 2


def least_multiplier(policy: Policy) -> float:
    """Returns the least noise multiplier that a private contribution can be accounted at; the floor that its class signs."""
    return min(rule.bounds.noise_multiplier for rule in policy.classes if not rule.public)


def lattice_bits(exactness: str, family: str, coordinates: int, multiplier: float) -> int:
    """Returns b of the lattice ``s * 2^-b`` on which sums are integers.

    Args:
        exactness: the level; at ``certified`` the family decides.
        family: of the noise.
        coordinates: number of scheduled coordinates, d.
        multiplier: the least noise multiplier of any class.
    """
    return LATTICE_BITS if exactness == FAST else TABLE[family].lattice_bits(coordinates, multiplier)
