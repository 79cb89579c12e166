"""Depths: the blocks of a stack of layers that a class may touch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Final, Literal

from attest.documents import check_fields, declared
from attest.documents.groups import Band, Many
from attest.documents.kinds import Flag, Text, Whole
from attest.errors import PolicyRefused

PATTERN: Final = Text(re.compile(r"[A-Za-z0-9_.*?\[\]!-]{1,128}"), "a pattern like 'vision.*'", "tstr .size (1..128)")
"""A shell-style pattern of the names of parameters."""

ADAPTER_NAME: Final = Text(re.compile(r"[A-Za-z0-9_.-]{1,64}"), "a name such as 'clinic'", "tstr .size (1..64)")
"""The name of an adapter."""

_INDEX: Final = Whole(0, 65535, "0..65535")


@dataclass(frozen=True, slots=True)
class DepthRule:
    """Says which blocks of the layer stack a class may touch; exactly one of `band`, `layers`, `patterns`, `adapter` is set.

    The sentences of the fields say what each means.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """

    CDDL: ClassVar = "depth-rule"
    PREFIX: ClassVar = "depth."
    FORMS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "band": ("embeddings", "head", "heads", "experts"),
        "layers": ("embeddings", "head", "heads", "experts"),
        "patterns": ("embeddings", "head"),
        "adapter": ("embeddings", "head"),
    }
    """Fields of which exactly one is stated, each with those that may stand beside it."""

    band: tuple[Fraction, Fraction] | None = declared(
        1,
        Band(("from", "to")),
        "Fractions of the depth, 0 at the input side; the first below the second.",
        key="",
        default=None,
        optional=True,
    )
    layers: tuple[int, ...] | None = declared(
        2,
        Many(_INDEX, 1, 4096, "layer indices", ascending=True),
        "Indices into the layer stack, ascending.",
        default=None,
        optional=True,
    )
    patterns: tuple[str, ...] | None = declared(
        3,
        Many(PATTERN, 1, 4096, "name patterns"),
        "Shell-style patterns of whole parameter names.",
        key="set",
        default=None,
        optional=True,
    )
    adapter: str | None = declared(
        4, ADAPTER_NAME, "Name of an adapter; the class touches its parameters only.", default=None, optional=True
    )
    embeddings: bool | None = declared(
        5, Flag(), "Whether the class may touch the embeddings; left out, the depth says it.", default=None, optional=True
    )
    head: bool | None = declared(
        6, Flag(), "Whether the class may touch the output head; left out, the depth says it.", default=None, optional=True
    )
    heads: tuple[int, ...] | None = declared(
        7,
        Many(_INDEX, 1, 4096, "numbers of heads", ascending=True),
        "Query heads of attention that the class may touch, ascending; left out for all. With a band or layers only.",
        default=None,
        optional=True,
    )
    experts: tuple[int, ...] | None = declared(
        8,
        Many(_INDEX, 1, 4096, "numbers of experts", ascending=True),
        "Experts that the class may touch, ascending; left out for all, and their router. With a band or layers only.",
        default=None,
        optional=True,
    )

    def __post_init__(self) -> None:
        chosen = [name for name in self.FORMS if getattr(self, name) is not None]
        if len(chosen) != 1:
            found = " and ".join(chosen) or "none"
            raise PolicyRefused("RANGE", f"depth sets {found}, expected one of from/to, layers, set, adapter")
        for name in ("heads", "experts"):
            if getattr(self, name) is not None and name not in self.FORMS[chosen[0]]:
                raise PolicyRefused(
                    "RANGE", f"depth.{name} goes with from/to or layers, whose attention or experts it narrows; leave it out"
                )
        check_fields(self, PolicyRefused)

    @property
    def kind(self) -> Literal["band", "layers", "set", "adapter"]:
        """Tells which of the four forms this is."""
        if self.band is not None:
            return "band"
        if self.layers is not None:
            return "layers"
        return "set" if self.patterns is not None else "adapter"
