"""Lies about what is for training, beside those of `tests.attacks.test_ledger_attacks_bounds` about what was signed for it."""

from dataclasses import replace
from typing import Final

from attest import cbor
from tests.vectors.conformance.consenting import BESIDE
from tests.vectors.conformance.lies import Lie
from tests.vectors.conformance.lying import header_says, on_leaves
from tests.vectors.conformance.written import Pieces
from tests.worlds.attested_ledgers import attested_policy
from tests.worlds.ledgers import GENERATING

OF: Final = "generation beside training"


def trained(pieces: Pieces) -> Pieces:
    """Says a policy under which the class that leaf 0 leaves out is for training too."""
    fields = cbor.decode(pieces.bodies[0], max_size=1 << 16)
    said = attested_policy(classes=(replace(GENERATING, purposes=("generate", "train")), *BESIDE["classes"][1:]))
    return pieces.saying(0, cbor.encode(fields | {5: said.payload, 6: said.sign1}))


LIES: Final[dict[str, Lie]] = {
    "places as in the policy": Lie(
        "leaf 0 counts a class that is not for training among the places of classes",
        OF,
        on_leaves(header_says(13, lambda groups: [[[n + 1 for n in places], *rest] for places, *rest in groups])),
        "SCHEMA",
    ),
    "a class of training left out": Lie(
        "a class is for training in the policy, and leaf 0 has no block of it", OF, on_leaves(trained), "DEPTH_NARROWER"
    ),
}
