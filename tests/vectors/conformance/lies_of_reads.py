"""Lies about what the forwards of classes read."""

from typing import Final

from attest import cbor
from attest.schedule.reads import FORWARDS
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import header_says, on_leaves
from tests.vectors.conformance.narrowed import ROWS
from tests.vectors.conformance.written import Pieces

OF: Final = "reads of classes"


def without(pieces: Pieces) -> Pieces:
    """Leaves out the reads of leaf 0."""
    fields = cbor.decode(pieces.bodies[0], max_size=1 << 16)
    return pieces.saying(0, cbor.encode({key: value for key, value in fields.items() if key < 28}))


LIES: Final[dict[str, Lie]] = {
    "reads left out": Lie("leaf 0 says no reads, and the policy has them", OF, on_leaves(without), "READS"),
    "fewer reads than the policy says": Lie(
        "a class is said to read nothing but its adapter, and not the base",
        OF,
        on_leaves(header_says(30, lambda _: [FORWARDS, [["open", [0]], ROWS[1]]])),
        "READS",
    ),
    "reads of another class": Lie(
        "a class is said to read the adapter of another, whose influence it would hide",
        OF,
        on_leaves(header_says(30, lambda _: [FORWARDS, [["open", [1, 3]], ROWS[1]]])),
        "READS",
    ),
    "reads that no policy says": Lie(
        "leaf 0 says that classes read parts of the model, and the policy says nothing of it",
        "poisson",
        on_leaves(lambda pieces: pieces.saying(0, _claiming(pieces.bodies[0]))),
        "READS",
    ),
}


def _claiming(body: bytes) -> bytes:
    fields = cbor.decode(body, max_size=1 << 16)
    claimed = [[name, [0]] for name in ("open", "sensitive")]
    return cbor.encode(fields | {28: [], 29: None, 30: [FORWARDS, claimed]})
