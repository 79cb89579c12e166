"""Adds calibrated noise to sums of clipped gradients by itself: without policy, ledger or model, step by step.

    noise = Privatizer(strategy, steps=1000, noise_multiplier=2.0, clip_norm=1.0)
    state = noise.init(model)
    for step in range(1000):
        noisy, state = noise.release(sum_of_clipped_grads, state)

Whatever is made of the noisy sums afterwards, by any optimizer, is post-processing. Independent noise is the strategy
`identity()`; another strategy is another argument, and nothing else changes. What this does not see it cannot promise: that
sums are clipped, who takes part when, and that no sum leaves by another way. A run under a policy keeps these itself.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dptrain.errors import ConfigError, NotPrivateUse
from dptrain.noise.correlated.gaussian import CorrelatedGaussian, Kept
from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import rounding_margin
from dptrain.noise.mechanism import Step
from ledger import accountants
from ledger.accountants.correlated import ONCE, Participation, Strategy, digest, identity, redone, sensitivity

FORM = "NOISE_FORM"
"""Code of sums that are not those of the tensors that the state was made for."""


@dataclass(eq=False)
class State:
    """Says how far a run has come. It is secret, and good for one release: the next one takes the state that this gave.

    Attributes:
        step: steps released. shapes: of the tensors, in their order. spent: whether a release has taken it.
    """

    step: int
    shapes: tuple[torch.Size, ...]
    spent: bool = False
    kept: Any = field(default=None, repr=False)


class Privatizer:
    """Adds noise that is correlated by a strategy to the sums of a fixed number of steps.

    Guarantee: releases of sums to which one contribution adds vectors of norm ``clip_norm`` at most, in steps that its
    participation allows, are `epsilon`-close at delta to those without it, all together (zero-out). Noise is drawn, correlated
    and added in float64, and rounded to the tensor's own type afterwards.

    Args:
        strategy: C; that of independent noise where left out.
        steps: of the run, at most those that the strategy is made for.
        noise_multiplier: deviation of the noise of one occurrence over the clip norm: the strategy is scaled to a largest
            column norm of 1.
        clip_norm: most that a contribution adds to a sum, over all tensors together.
        key: 32 bytes that nobody else knows, for tests; 256 fresh bits of the operating system where left out.

    Raises:
        ConfigError: code NOISE_MULTIPLIER, KEY. AccountantError: code STRATEGY.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        steps: int,
        noise_multiplier: float,
        clip_norm: float = 1.0,
        key: bytes | None = None,
    ) -> None:
        for name, value in (("noise_multiplier", noise_multiplier), ("clip_norm", clip_norm)):
            if not (math.isfinite(value) and value > 0.0):
                raise ConfigError("NOISE_MULTIPLIER", f"{name} is a positive finite number, got {value!r}")
        if key is not None and len(key) != 32:
            raise ConfigError("KEY", f"the key of noise has 32 bytes, got {len(key)}; leave it out for a fresh one")
        self.strategy: Strategy = identity() if strategy is None else strategy
        self.steps = steps
        self.noise_multiplier, self.clip_norm = noise_multiplier, clip_norm
        stream = KeyStream("noise", b"alone", 0, os.urandom(32) if key is None else key)
        self._noise = CorrelatedGaussian(stream, self.strategy, steps)

    def init(self, model: Any) -> State:
        """Returns the state before the first step, for tensors like these.

        Args:
            model: a module, of which the parameters count that want a gradient; or tensors in dicts, lists and tuples.
        """
        if isinstance(model, nn.Module):
            model = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        shapes = tuple(tensor.shape for tensor in _leaves(model))
        if not shapes:
            raise ConfigError(FORM, "there is no tensor to release, expected one or more")
        return State(0, shapes, kept=self._noise.init(shapes))

    def release(self, sum_of_clipped_grads: Any, state: State) -> tuple[Any, State]:
        """Returns the noisy sums, in the same form, and the next state.

        Args:
            sum_of_clipped_grads: tensors in the form of those given to `init`, sums and not means, finite, of any real type
                and on any device. They are left as they are. An empty step gives zeros.
            state: of the last release.

        Raises:
            NotPrivateUse: code STATE_SPENT, the state was used before: noise of one step for two sums tells their difference.
            ConfigError: code NOISE_FORM, other tensors than before; NOISE_SHARDED; STEPS, behind the last step.
        """
        if state.spent:
            told = "noise of one step for two sums would tell their difference; go on from the state that release returned"
            raise NotPrivateUse("STATE_SPENT", f"this state was released from: {told}")
        if state.step >= self.steps:
            raise ConfigError("STEPS", f"all {self.steps} steps are released; plan for more before the first")
        leaves = list(_leaves(sum_of_clipped_grads))
        found = tuple(leaf.shape for leaf in leaves)
        if found != state.shapes:
            raise ConfigError(FORM, f"got tensors of shapes {_told(found)}, expected {_told(state.shapes)}")
        for leaf in leaves:
            if type(leaf).__name__ == "DTensor":
                told = "it lies over several processes, each of which would draw noise of its own; train with PrivateTraining"
                raise ConfigError("NOISE_SHARDED", f"a sum is a DTensor: {told}")
            if not leaf.is_floating_point():
                raise ConfigError(FORM, f"a sum has type {leaf.dtype}, expected real numbers")
        state.spent = True  # before the first number is drawn: a release that fails half-way is not tried again
        std = self.noise_multiplier * self.clip_norm
        noisy = []
        for lane, leaf in enumerate(leaves):
            total = leaf.detach().to("cpu", torch.float64, copy=True).contiguous()
            self._noise.release(total, state.kept, Step(state.step + 1, lane, std, 1.0))
            noisy.append(total.to(leaf.device, leaf.dtype))
        return _rebuilt(sum_of_clipped_grads, iter(noisy)), State(state.step + 1, state.shapes, kept=state.kept)

    def state_dict(self, state: State) -> dict[str, torch.Tensor]:
        """Returns the state as tensors: as secret as a key, since with the releases they tell the next noise.

        The key is not among them. Who goes on in another process does so under a fresh one.
        """
        shapes = [torch.tensor(shape, dtype=torch.int64) for shape in state.shapes]
        held = {"step": torch.tensor(state.step), "strategy": torch.frombuffer(bytearray(self._digest()), dtype=torch.uint8)}
        return held | {f"shape {place}": shape for place, shape in enumerate(shapes)} | dict(self._noise.state_dict(state.kept))

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> State:
        """Returns the state that `state_dict` gave, for the same strategy and number of steps.

        Steps that were released after it was written, and are released again, are releases more: `epsilon` takes them as
        ``lost``.

        Raises:
            ConfigError: code NOISE_FORM, it is no such state, or that of another strategy.
        """
        own = {name: tensor for name, tensor in tensors.items() if name.split(" ")[0] in ("step", "buffers") and " " in name}
        try:
            if bytes(tensors["strategy"].numpy()) != self._digest():
                raise ConfigError(FORM, "the state is that of another strategy or number of steps; make that one for it")
            count = sum(name.startswith("shape ") for name in tensors)
            shapes = tuple(torch.Size(tensors[f"shape {place}"].tolist()) for place in range(count))
            kept: Kept = self._noise.load_state_dict(own)
            step = int(tensors["step"])
        except (KeyError, ValueError) as error:
            raise ConfigError(FORM, f"this is no state of a privatizer: {error}") from error
        sizes = {(lane, 0): math.prod(shape) for lane, shape in enumerate(shapes)} if step else {}
        if {place: held.shape[1] for place, held in kept.buffers.items()} != sizes or set(kept.step.values()) - {step}:
            raise ConfigError(FORM, "the state has buffers of other tensors or steps than it says")
        return State(step, shapes, kept=kept)

    def sensitivity(self, participation: Participation = ONCE) -> float:
        """Returns by how many clip norms a contribution moves C G, with C scaled to a largest column norm of 1."""
        return sensitivity(self.strategy, self.steps, participation).value / self._noise.norm

    def epsilon(
        self,
        delta: float,
        participation: Participation = ONCE,
        *,
        coordinates: int = 1 << 40,
        lost: Sequence[tuple[int, int]] = (),
    ) -> float:
        """Returns epsilon of all steps together, for a contribution of that participation: an upper bound, zero-out adjacency.

        Args:
            delta: in [1e-12, 1). participation: steps in which it may take part.
            coordinates: of all tensors; rounding to the lattice moves each of them by a step at most.
            lost: (begin, end) of steps that were released after the state was saved, and released again.
        """
        squared = sensitivity(self.strategy, self.steps, participation).value ** 2
        if lost:
            squared += redone(self.strategy, self.steps, participation, lost)
        moved = math.sqrt(squared) * (1.0 + rounding_margin(coordinates, self.noise_multiplier)) / self._noise.norm
        return accountants.epsilon(self.noise_multiplier / moved, 1.0, 1, delta)

    def _digest(self) -> bytes:
        return digest(self.strategy) + self.steps.to_bytes(8, "big")


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of dicts, lists and tuples, in their order.

    Raises:
        ConfigError: code NOISE_FORM, something else is among them.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for name in value:
            yield from _leaves(value[name])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        told = "expected tensors in dicts, lists and tuples; zeros for no gradient"
        raise ConfigError(FORM, f"got {type(value).__name__}, {told}")


def _rebuilt(form: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Returns dicts, lists and tuples in a form, with these tensors."""
    if isinstance(form, torch.Tensor):
        return next(tensors)
    if isinstance(form, Mapping):
        return {name: _rebuilt(part, tensors) for name, part in form.items()}
    parts = [_rebuilt(part, tensors) for part in form]
    if isinstance(form, list):
        return parts
    return type(form)(*parts) if hasattr(form, "_fields") else tuple(parts)


def _told(shapes: Sequence[torch.Size]) -> str:
    shown = ", ".join(str(tuple(shape)) for shape in shapes[:4])
    return shown if len(shapes) <= 4 else f"{shown}, .. ({len(shapes)} tensors)"
