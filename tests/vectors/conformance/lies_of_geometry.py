"""Lies about pairs of LoRA factors: which they are, and that there are any."""

from typing import Final

from attest import cbor
from attest.schedule.geometry import FRAMES
from tests.vectors.conformance.geometries import ROWS
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import header_says, on_leaves
from tests.vectors.conformance.written import Pieces

OF: Final = "pairs of LoRA factors"


def without(pieces: Pieces) -> Pieces:
    """Leaves out the pairs of leaf 0."""
    fields = cbor.decode(pieces.bodies[0], max_size=1 << 16)
    return pieces.saying(0, cbor.encode({key: value for key, value in fields.items() if key < 28}))


LIES: Final[dict[str, Lie]] = {
    "pairs left out": Lie("leaf 0 says no pairs, and the policy has a geometry", OF, on_leaves(without), "GEOMETRY"),
    "a pair left out": Lie(
        "one pair is said to have no geometry", OF, on_leaves(header_says(29, lambda _: [FRAMES, ROWS[:1]])), "GEOMETRY"
    ),
    "a rank of one factor": Lie(
        "a rank divides one factor alone",
        OF,
        on_leaves(header_says(29, lambda _: [FRAMES, [[*ROWS[0][:2], 9], ROWS[1]]])),
        "GEOMETRY",
    ),
}
