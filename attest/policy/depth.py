"""Which blocks of a stack of layers a class may touch."""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from attest.checks import check_int
from attest.errors import PolicyRefused

_MAX_INT = 2**63 - 1
_PATTERN = re.compile(r"[A-Za-z0-9_.*?\[\]!-]{1,128}")
_ADAPTER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_fraction(value: object, name: str) -> Fraction:
    """Refuse anything but a `Fraction` whose parts fit into 64 bits."""
    if type(value) is not Fraction:
        raise PolicyRefused("TYPE", f"{name} is {type(value).__name__}, expected an exact Fraction")
    if value.denominator > _MAX_INT or abs(value.numerator) > _MAX_INT:
        raise PolicyRefused("RANGE", f"{name} has too many digits; write at most 18 decimals")
    return value


@dataclass(frozen=True, slots=True)
class DepthRule:
    """Which blocks of the layer stack a class may touch; exactly one of `band`, `layers`, `patterns`, `adapter` is set.

    Args:
        band: Fractions (from, to) of the depth, 0 at the input side; from < to.
        layers: Indices into the layer stack, ascending.
        patterns: Shell-style patterns of whole parameter names.
        adapter: Name of an adapter; the class touches its parameters only.
        embeddings: Whether the class may touch the embeddings; None leaves it to the depth.
        head: Whether the class may touch the output head; None leaves it to the depth.
        heads: Query heads of attention that the class may touch, ascending; None for all. With a band or layers only.
        experts: Experts that the class may touch, ascending; None for all, and their router. With a band or layers only.
    """

    band: tuple[Fraction, Fraction] | None = None
    layers: tuple[int, ...] | None = None
    patterns: tuple[str, ...] | None = None
    adapter: str | None = None
    embeddings: bool | None = None
    head: bool | None = None
    heads: tuple[int, ...] | None = None
    experts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        chosen = [name for name in ("band", "layers", "patterns", "adapter") if getattr(self, name) is not None]
        if len(chosen) != 1:
            found = " and ".join(chosen) or "none"
            raise PolicyRefused("RANGE", f"depth sets {found}, expected one of from/to, layers, set, adapter")
        for name in ("embeddings", "head"):
            if getattr(self, name) is not None and type(getattr(self, name)) is not bool:
                raise PolicyRefused("TYPE", f"depth.{name} is {type(getattr(self, name)).__name__}, expected true or false")
        if self.band is not None:
            self._check_band(self.band)
        elif self.layers is not None:
            self._check_layers(self.layers)
        elif self.patterns is not None:
            self._check_patterns(self.patterns)
        elif type(self.adapter) is not str or not _ADAPTER.fullmatch(self.adapter):
            raise PolicyRefused("RANGE", f"depth.adapter is {ascii(self.adapter)[:80]}, expected a name such as 'clinic'")
        for name in ("heads", "experts"):
            self._check_mask(getattr(self, name), name)

    @property
    def kind(self) -> Literal["band", "layers", "set", "adapter"]:
        """Which of the four forms this is."""
        if self.band is not None:
            return "band"
        if self.layers is not None:
            return "layers"
        return "set" if self.patterns is not None else "adapter"

    @staticmethod
    def _check_band(band: object) -> None:
        if type(band) is not tuple or len(band) != 2:
            raise PolicyRefused("TYPE", "depth band is not a pair (from, to)")
        low, high = check_fraction(band[0], "depth.from"), check_fraction(band[1], "depth.to")
        if not 0 <= low < high <= 1:
            raise PolicyRefused("RANGE", f"depth runs from {low} to {high}, expected 0 <= from < to <= 1")

    @classmethod
    def _check_layers(cls, layers: object) -> None:
        cls._check_indices(layers, "layers", "layer indices")

    def _check_mask(self, indices: object, name: str) -> None:
        if indices is None:
            return
        if self.patterns is not None or self.adapter is not None:
            raise PolicyRefused(
                "RANGE", f"depth.{name} goes with from/to or layers, whose attention or experts it narrows; leave it out"
            )
        self._check_indices(indices, name, f"numbers of {name}")

    @staticmethod
    def _check_indices(indices: object, name: str, what: str) -> None:
        if type(indices) is not tuple or not 1 <= len(indices) <= 4096:
            raise PolicyRefused("TYPE", f"depth.{name} is not a list of 1 to 4096 {what}")
        for index in indices:
            check_int(index, f"depth.{name} entry", 0, 65535, error=PolicyRefused)
        if any(a >= b for a, b in itertools.pairwise(indices)):
            raise PolicyRefused("RANGE", f"depth.{name} is not strictly ascending; sort it and drop repetitions")

    @staticmethod
    def _check_patterns(patterns: object) -> None:
        if type(patterns) is not tuple or not 1 <= len(patterns) <= 4096:
            raise PolicyRefused("TYPE", "depth.set is not a list of 1 to 4096 name patterns")
        for pattern in patterns:
            if type(pattern) is not str or not _PATTERN.fullmatch(pattern):
                raise PolicyRefused("RANGE", f"depth.set holds {ascii(pattern)[:80]}, expected a pattern like 'vision.*'")
        if len(set(patterns)) != len(patterns):
            raise PolicyRefused("RANGE", "depth.set names a pattern twice")
