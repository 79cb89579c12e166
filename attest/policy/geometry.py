"""The geometry of blocks: the space in which contributions are clipped and noised, other than that of the coordinates."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attest.documents import check_fields, declared
from attest.documents.groups import Many
from attest.errors import PolicyRefused
from attest.policy.depth import ADAPTER_NAME
from attest.policy.mechanism import check_word


@dataclass(frozen=True, slots=True)
class GeometryRule:
    """The geometry of the blocks of some adapters.

    Every other block is Euclidean: its coordinates are clipped and noised as they are.

    Args:
        name: Word of `PARAMETERS`. `lora_tangent`: each pair of LoRA factors moves along the tangent space of their product, in
            an orthonormal chart of it.
        parameters: What the word takes; None where it takes none.
        adapters: Adapters whose pairs have it; None for all adapters.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    PREFIX: ClassVar = "geometry."
    PARAMETERS: ClassVar[Mapping[str, type | None]] = {"lora_tangent": None}

    name: str
    parameters: Any = None
    adapters: tuple[str, ...] | None = declared(
        3,
        Many(ADAPTER_NAME, 1, 256, "names of adapters", ascending=True, named="adapter-names"),
        "Adapters whose pairs have this geometry, ascending; left out for all adapters.",
        default=None,
        nil=True,
    )

    def __post_init__(self) -> None:
        check_word(self, "geometry")
        check_fields(self, PolicyRefused)


def check_geometry(rules: tuple[GeometryRule, ...]) -> None:
    """Refuses two geometries for one adapter.

    Raises:
        PolicyRefused: Code RANGE.
    """
    for one, other in itertools.combinations(rules, 2):
        if one.adapters is None or other.adapters is None or not set(one.adapters).isdisjoint(other.adapters):
            raise PolicyRefused("RANGE", "two [[geometry]] tables speak of one adapter; name each in one of them")
