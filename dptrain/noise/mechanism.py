"""Draws the noise of a run: a table of mechanisms, by the family that a policy signs.

A `Mechanism` turns clipped sums into releases. What its noise costs is the `Cost` of that name (`ledger.accountants.table`);
the name joins the two. Rows that come with dptrain and rows of other packages are registered by one call.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

import torch

from attest.policy.mechanism import MechanismRule
from dptrain.errors import UnsupportedPolicy
from dptrain.noise.keystream import ChaChaStream, KeyStream
from ledger.accountants.table import HOST, TABLE


@dataclass(frozen=True, slots=True)
class Step:
    """Says where in a run a sum is released, and with how much noise.

    Attributes:
        number: logical step, 1-based.
        lane: index of the tensor in the schedule.
        std: s > 0, the scheduled scale of the noise on the sum: a standard deviation, for Laplace noise its scale.
        normalizer: the public constant that divides the noised sum.
        draws: how many draws make up the noise, each with its share of the variance; the same number in every release of a run.
        offset: where the sum is part of a tensor, as on several ranks: the number of its first coordinate, flat. A tensor may
            come in several parts, which are the same in every step.
        size: coordinates of the whole tensor; None where the sum is all of it.
    """

    number: int
    lane: int
    std: float
    normalizer: float
    draws: int = 1
    offset: int = 0
    size: int | None = None


class Mechanism(Protocol):
    """Turns clipped sums into releases.

    One that has an attribute ``addressed``, and that is true, draws the noise of a coordinate from its address alone: tensor,
    step and place in the tensor (`Step.offset`). Runs of several ranks take no other. One that keeps a state has a method
    ``load_state_dict``, which makes of the tensors of `state_dict`, of one rank or of several, the state to go on with.
    """

    def init(self, shapes: Sequence[torch.Size]) -> Any:
        """Returns what the mechanism must know of earlier steps, for tensors of these shapes; None if nothing."""

    def release(self, clipped_sum: torch.Tensor, state: Any, step: Step) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place, and returns that very tensor. Another one, or one that was
        not written, is refused: code NOISE_LOST."""

    def state_dict(self, state: Any) -> Mapping[str, torch.Tensor]:
        """Returns the state as tensors, which are kept as keys are; empty if there is none."""

    def destroy(self) -> None:
        """Forgets the key; nothing can be drawn again."""


class Independent:
    """Draws the noise of every step by itself: the part of a mechanism that has no state."""

    addressed = False

    def init(self, shapes: Sequence[torch.Size]) -> None:
        """Returns no state."""

    def state_dict(self, state: None) -> Mapping[str, torch.Tensor]:
        """Returns nothing: no step depends on another one."""
        return {}

    def release(self, clipped_sum: torch.Tensor, state: None, step: Step) -> torch.Tensor:
        """Calls `release_` with the parts of the step."""
        where = {"offset": step.offset, "size": step.size} if self.addressed else {}
        return self.release_(
            clipped_sum, step.std, step.normalizer, step=step.number, lane=step.lane, draws=step.draws, **where
        )

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1, **where: Any
    ) -> torch.Tensor:
        """Turns a clipped sum into its private release, in place, and returns it divided by ``normalizer``.

        Args:
            clipped_sum: float64, contiguous, of any shape. Under ``certified``, divided by ``std * 2^-bits`` and rounded, it is
                the integers exactly. Under ``fast`` it is on no lattice: round it to one before noise is added, as
                `LatticeGaussian` does.
            std, normalizer, step, lane, draws: of the `Step`. Each (step, lane) comes once in an attempt.
            where: offset and size of a step, where noise is addressed.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Source:
    """Gives a mechanism the random numbers of one attempt, and the form of the sums that it is added to.

    Attributes:
        run_id, attempt, key: the address of the stream; the key is used for nothing else.
        bits: b of the lattice ``s * 2^-b`` on which certified sums are integers.
        draws: how many draws make up the noise of a release.
        generator: where noise is drawn, `host` or `device`; the row of the family says which are possible.
        rule, steps: the noise that the policy signs, and the steps of the run, for a family whose noise is correlated between
            steps.
    """

    run_id: bytes
    attempt: int
    key: bytes = field(repr=False)
    bits: int
    draws: int = 1
    generator: str = HOST
    rule: MechanismRule | None = None
    steps: int = 0

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


def initial(mechanism: Mechanism, shapes: Iterable[torch.Size]) -> Any:
    """Returns the state with which a run begins. Raises UnsupportedPolicy: as `kept`."""
    state = mechanism.init(tuple(shapes))
    kept(mechanism, state)
    return state


def kept(mechanism: Mechanism, state: Any) -> Mapping[str, torch.Tensor]:
    """Returns what a mechanism keeps from step to step, as tensors; empty where it draws every step by itself.

    Raises:
        UnsupportedPolicy: code NOISE_STATE, it keeps something, and has nothing that takes it up again.
    """
    found = mechanism.state_dict(state)
    if found and not hasattr(mechanism, "load_state_dict"):
        told = f"the noise keeps {', '.join(found)} from step to step, and {type(mechanism).__name__} has no load_state_dict"
        raise UnsupportedPolicy("NOISE_STATE", f"{told} that takes it up when a run is resumed; write it")
    return found
