"""Draws the noise of a run: a table of mechanisms, by the family that a policy signs.

A `Mechanism` turns clipped sums into releases. What its noise costs is the `Cost` of that name (`ledger.accountants.table`);
the name joins the two. Rows that come with dptrain and rows of other packages are registered by one call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

import torch

from dptrain.errors import UnsupportedPolicy
from dptrain.noise.keystream import ChaChaStream, KeyStream
from ledger.accountants.table import HOST, TABLE


class Mechanism(Protocol):
    """Turns clipped sums into releases. The noise of a step depends on no other step: nothing of it is kept or resumed."""

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1
    ) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place, and returns it.

        Args:
            clipped_sum: sum over contributions of clipped gradients, any shape, contiguous.
            std: s > 0, the scheduled scale of the noise on the sum: a standard deviation, for Laplace noise its scale.
            normalizer: the public constant that divides the noised sum.
            step: logical step, 1-based. lane: index of the tensor in the schedule.
            draws: how many draws make up the noise, each with its share of the variance; the same number in every release.
        """

    def destroy(self) -> None:
        """Forgets the key; nothing can be drawn again."""


@dataclass(frozen=True, slots=True)
class Source:
    """Gives a mechanism the random numbers of one attempt, and the form of the sums that it is added to.

    Attributes:
        run_id, attempt, key: the address of the stream; the key is used for nothing else.
        bits: b of the lattice ``s * 2^-b`` on which certified sums are integers.
        draws: how many draws make up the noise of a release.
        generator: where noise is drawn, `host` or `device`; the row of the family says which are possible.
    """

    run_id: bytes
    attempt: int
    key: bytes = field(repr=False)
    bits: int
    draws: int = 1
    generator: str = HOST

    def stream(self) -> KeyStream:
        """Returns the stream of noise on the processor."""
        return KeyStream("noise", self.run_id, self.attempt, self.key)

    def device_stream(self) -> ChaChaStream:
        """Returns the stream of noise on the device of the sums."""
        return ChaChaStream("noise on a device", self.run_id, self.attempt, self.key)


Maker = Callable[[Source], Mechanism]

_MAKERS: dict[str, Maker] = {}

MECHANISMS: Final[Mapping[str, Maker]] = MappingProxyType(_MAKERS)
"""Makers of mechanisms, by the name of the family."""


def register_mechanism(name: str) -> Callable[[Maker], Maker]:
    """Registers what makes the mechanism of a family; a decorator of a function of a `Source`.

    Guarantee:
        A family without a `Cost` is refused, so no noise is drawn that nothing accounts for.

    Raises:
        ValueError: the family has no cost (`ledger.accountants.register_cost` comes first), or a mechanism already.
    """

    def register(maker: Maker) -> Maker:
        if name not in TABLE:
            raise ValueError(f"noise family {name!r} has no cost; register one first, with ledger.accountants.register_cost")
        if name in _MAKERS:
            raise ValueError(f"noise family {name!r} has a mechanism already")
        _MAKERS[name] = maker
        return maker

    return register


def mechanism_of(family: str, source: Source) -> Mechanism:
    """Returns the mechanism of a family.

    Raises:
        UnsupportedPolicy: code NOISE_FAMILY, nothing draws noise of this family here, or not on this generator.
    """
    if family not in MECHANISMS:
        told = f"nothing draws noise of family {family!r}, only {', '.join(MECHANISMS)}; import what provides it"
        raise UnsupportedPolicy("NOISE_FAMILY", told)
    if source.generator not in TABLE[family].generators:
        where = " or ".join(TABLE[family].generators)
        raise UnsupportedPolicy("NOISE_FAMILY", f"noise of family {family!r} is drawn on {where}, not on {source.generator!r}")
    return MECHANISMS[family](source)
