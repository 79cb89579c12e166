"""Adds calibrated noise to sums of clipped gradients by itself: without policy, ledger or model, step by step.

    noise = Privatizer(strategy, steps=1000, noise_multiplier=2.0, clip_norm=1.0)
    state = noise.init(model)
    for step in range(1000):
        noisy, state = noise.release(sum_of_clipped_grads, state)

Whatever is made of the noisy sums afterwards, by any optimizer, is post-processing. Independent noise is the strategy
`identity()`; another strategy is another argument, and nothing else changes. What this does not see it cannot promise: that
sums are clipped, who takes part when, and that no sum leaves by another way. A run under a policy keeps these itself.
"""

import hashlib
import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from dptrain.errors import ConfigError, NotPrivateUse
from dptrain.noise.correlated.gaussian import CorrelatedGaussian, Kept
from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import rounding_margin
from dptrain.noise.mechanism import Step
from ledger import accountants
from ledger.accountants.correlated import Participation, Strategy, digest, identity, redone, sensitivity

FORM: Final = "NOISE_FORM"
"""Code of sums that are not those of the tensors that the state was made for."""

SPENT: Final = "STATE_SPENT"
"""Code of a state that was released from: noise of one step for two sums tells their difference."""

_MOST: Final = 1 << 40
"""Coordinates that epsilon allows for where nobody has said how many there are."""


@dataclass(eq=False)
class State:
    """Says how far a run has come. It is secret, and good for one release: the next one takes the state that this gave.

    Attributes:
        step: steps released. form: of every tensor its name and shape, in the order of names. spent: whether a release took it.
    """

    step: int
    form: tuple[tuple[str, torch.Size], ...]
    spent: bool = False
    kept: Any = field(default=None, repr=False)
    owner: Any = field(default=None, repr=False)
    marks: tuple[bytes, ...] = field(default=(), repr=False)


class Privatizer:
    """Adds noise that is correlated by a strategy to the sums of a fixed number of steps. One object is for one run.

    Guarantee: releases of sums to which one contribution adds vectors of norm ``clip_norm`` at most, in steps that its
    participation allows, are `epsilon`-close at delta to those without it, all together (zero-out). Noise is drawn, correlated
    and added in float64, and rounded to the tensor's own type afterwards.

    The bound is that of sums as real numbers. What rounding makes of them while they are added up is not paid for: add up in
    float64, or in float32 where sums are no more than some thousand clip norms. Sums beyond 2^19 deviations of the noise, where
    nothing that is clipped gets, are cut there.

    Args:
        strategy: C; that of independent noise where left out.
        steps: of the run, at most those that the strategy is made for.
        noise_multiplier: deviation of the noise of one occurrence over the clip norm: the strategy is scaled to a largest
            column norm of 1.
        clip_norm: most that a contribution adds to a sum, over all tensors together.
        key: 32 bytes that nobody else knows and that make the noise of no other run, for tests; 256 fresh bits of the
            operating system where left out.

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
            if not 1e-100 <= value <= 1e100:
                raise ConfigError("NOISE_MULTIPLIER", f"{name} is a positive finite number, got {value!r}")
        if key is not None and len(key) != 32:
            raise ConfigError("KEY", f"the key of noise has 32 bytes, got {len(key)}; leave it out for a fresh one")
        self.strategy: Strategy = identity() if strategy is None else strategy
        self.steps = steps
        self.noise_multiplier, self.clip_norm = float(noise_multiplier), float(clip_norm)
        self._stream = KeyStream("noise", b"alone", 0, os.urandom(32) if key is None else key)
        self._noise = CorrelatedGaussian(self._stream, self.strategy, steps)
        self._released = 0
        self._coordinates: int | None = None

    def init(self, model: Any) -> State:
        """Returns the state before the first step, for tensors like these.

        Args:
            model: a module, of which the parameters count that want a gradient; or tensors in dicts, lists and tuples.

        Raises:
            ConfigError: code NOISE_FORM, something else, or no tensor. NotPrivateUse: code STATE_SPENT, this object has
                released.
        """
        if isinstance(model, nn.Module):
            model = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        form = tuple((name, tensor.shape) for name, tensor in _leaves(model))
        if not form or len(dict(form)) != len(form):
            found = "no tensor to release" if not form else "two tensors of one name"
            raise ConfigError(FORM, f"there is {found}, expected one or more, each with a name of its own")
        return self._state(0, form, self._noise.init(()), (self._mark(),))

    def release(self, sum_of_clipped_grads: Any, state: State) -> tuple[Any, State]:
        """Returns the noisy sums, in the same form, and the next state.

        Args:
            sum_of_clipped_grads: tensors of the names and shapes of those given to `init`, sums and not means, finite, of any
                real type and on any device. They are left as they are. An empty step gives zeros.
            state: of the last release.

        Raises:
            NotPrivateUse: code STATE_SPENT, the state was released from before.
            ConfigError: code NOISE_FORM, other tensors than before, or no state of this object; NOISE_SHARDED; STEPS, behind
                the last step.
        """
        if not isinstance(state, State) or state.owner is not self:
            told = "expected what init, release or load_state_dict of this Privatizer returned"
            raise ConfigError(FORM, f"this is no state to go on from: {told}")
        if state.spent:
            told = "noise of one step for two sums would tell their difference; go on from the state that release returned"
            raise NotPrivateUse(SPENT, f"this state was released from: {told}")
        if state.step >= self.steps:
            raise ConfigError("STEPS", f"all {self.steps} steps are released; plan for more before the first")
        leaves = list(_leaves(sum_of_clipped_grads))
        _require_form([(name, leaf.shape) for name, leaf in leaves], state.form)
        for name, leaf in leaves:
            if any(kind.__name__ == "DTensor" for kind in type(leaf).__mro__):  # by name: its module is large
                told = "it lies over several processes, each of which would draw noise of its own; train with PrivateTraining"
                raise ConfigError("NOISE_SHARDED", f"the sum {name!r} is a DTensor: {told}")
            if not leaf.is_floating_point():
                raise ConfigError(FORM, f"the sum {name!r} has type {leaf.dtype}, expected real numbers")
        if state.step < self._released:
            told = "one Privatizer is one run; make another for another run, or to go on from a saved state"
            raise NotPrivateUse(
                SPENT, f"this Privatizer has released {self._released} steps, and the state {state.step}: {told}"
            )
        state.spent = True  # before the first number is drawn: a release that fails half-way is not tried again
        self._released = state.step + 1
        std = self.noise_multiplier * self.clip_norm
        noisy = {}
        for lane, (name, leaf) in enumerate(leaves):
            total = leaf.detach().to("cpu", torch.float64, copy=True).contiguous()
            self._noise.release(total, state.kept, Step(state.step + 1, lane, std, 1.0))
            noisy[name] = total.to(leaf.device, leaf.dtype)
        return _rebuilt(sum_of_clipped_grads, noisy), self._state(state.step + 1, state.form, state.kept, state.marks)

    def state_dict(self, state: State) -> dict[str, torch.Tensor]:
        """Returns the state as tensors: as secret as the sums, which with the releases they tell.

        The key of this object is among them for a dense strategy alone, whose noise is made of the numbers of all steps. They
        are
        copies: releases behind do not change them.

        Raises:
            NotPrivateUse: code STATE_SPENT, the state was released from.
        """
        if state.spent:
            raise NotPrivateUse(SPENT, "this state was released from; save the one that release returned")
        held = {"step": torch.tensor(state.step), "run": _bytes(self._digest()), "under": _bytes(b"".join(state.marks))}
        names = {f"form {place}": _bytes(name.encode()) for place, (name, _) in enumerate(state.form)}
        shapes = {f"shape {place}": torch.tensor(shape, dtype=torch.int64) for place, (_, shape) in enumerate(state.form)}
        return held | names | shapes | dict(self._noise.state_dict(state.kept))

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> State:
        """Returns the state that the `state_dict` of another one gave: of equal strategy, steps, multiplier and clip norm.

        This one has a key of its own, so that steps that were released after the state was written have other noise now. They
        are releases more: `epsilon` takes them as ``lost``.

        Raises:
            ConfigError: code NOISE_FORM, it is no such state, or that of another run.
            NotPrivateUse: code STATE_SPENT, this object has released already, or has a key that the run had before.
        """
        kinds = ("step", "buffers", "key")
        own = {name: tensor for name, tensor in tensors.items() if name.split(" ")[0] in kinds and " " in name}
        try:
            if _read(tensors["run"]) != self._digest():
                told = "another strategy, number of steps, noise multiplier or clip norm; make a Privatizer with those of then"
                raise ConfigError(FORM, f"the state is that of a run with {told}")
            under = _read(tensors["under"])
            marks = tuple(under[begin : begin + 32] for begin in range(0, len(under), 32))
            if self._mark() in marks:
                told = "steps could have their noise again for other sums; make one without `key`"
                raise NotPrivateUse(SPENT, f"the run of this state had the key of this Privatizer already: {told}")
            count = sum(name.startswith("shape ") for name in tensors)
            form = tuple(
                (_read(tensors[f"form {place}"]).decode(), torch.Size(tensors[f"shape {place}"].tolist()))
                for place in range(count)
            )
            kept: Kept = self._noise.load_state_dict(own)
            step = int(tensors["step"])
        except (KeyError, ValueError) as error:
            raise ConfigError(FORM, f"this is no state of a privatizer: {error}") from error
        sizes = {(lane, 0): math.prod(shape) for lane, (_, shape) in enumerate(form)} if step else {}
        found = {place: held.shape[1] for place, held in kept.saved.items()}
        if found != sizes or kept.loaded != (step if sizes else 0):
            raise ConfigError(FORM, "the state has buffers of other tensors or steps than it says")
        return self._state(step, form, kept, (*marks, self._mark()))

    def sensitivity(self, participation: Participation) -> float:
        """Returns by how many clip norms a contribution moves C G, with C scaled to a largest column norm of 1."""
        return sensitivity(self.strategy, self.steps, participation).value / self._noise.norm

    def epsilon(
        self,
        delta: float,
        participation: Participation,
        *,
        lost: Sequence[tuple[int, int]] = (),
        coordinates: int | None = None,
    ) -> float:
        """Returns epsilon of all steps together, for a contribution of that participation: an upper bound, zero-out adjacency.

        Args:
            delta: in [1e-12, 1).
            participation: steps in which it may take part, known or not: nothing is counted on that is drawn in secret.
            lost: (begin, end) of steps that were released after a state was saved, and again from it: begin is the step of the
                state, end the first that was not released, both from 0.
            coordinates: of all tensors, as rounding to the lattice moves each by a step at most; those given to `init` where
                left out, and before it as many as 2^40.
        """
        squared = sensitivity(self.strategy, self.steps, participation).value ** 2
        if lost:
            squared += redone(self.strategy, self.steps, participation, lost)
        if coordinates is not None and coordinates < 1:
            raise ConfigError("COORDINATES", f"there is 1 coordinate or more, got {coordinates}; leave it out after init")
        count = coordinates or self._coordinates or _MOST
        moved = math.sqrt(squared) * (1.0 + rounding_margin(count, self.noise_multiplier)) / self._noise.norm
        return accountants.epsilon(self.noise_multiplier / moved, 1.0, 1, delta)

    def _state(self, step: int, form: tuple[tuple[str, torch.Size], ...], kept: Any, marks: tuple[bytes, ...]) -> State:
        if step < self._released:
            told = "make another for another run, or to go on from a saved state"
            raise NotPrivateUse(SPENT, f"this Privatizer has released {self._released} steps, and is for one run: {told}")
        self._coordinates = max(self._coordinates or 0, sum(math.prod(shape) for _, shape in form))
        return State(step, form, kept=kept, owner=self, marks=marks)

    def _digest(self) -> bytes:
        """Returns what says which run it is."""
        return digest(self.strategy) + struct.pack(">Qdd", self.steps, self.noise_multiplier, self.clip_norm)

    def _mark(self) -> bytes:
        """Returns what tells a key from others, and nothing else about it."""
        return hashlib.sha256(b"dptrain noise key" + self._stream.master).digest()


def _bytes(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def _read(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.tolist())


def _require_form(found: Sequence[tuple[str, torch.Size]], expected: Sequence[tuple[str, torch.Size]]) -> None:
    """Raises ConfigError: code NOISE_FORM, other names or shapes than those that a state was made for; the first is named."""
    names, wanted = dict(found), dict(expected)
    for name in [*wanted, *names]:
        if names.get(name) != wanted.get(name):
            here, there = (f"shape {tuple(shapes[name])}" if name in shapes else "no such tensor" for shapes in (names, wanted))
            raise ConfigError(FORM, f"the sum {name!r}: got {here}, expected {there}")


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of dicts, lists and tuples with their names; those of dicts in the order of their keys.

    Raises:
        ConfigError: code NOISE_FORM, something else is among them.
    """
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{name}[{place}]")
    else:
        told = "expected tensors in dicts, lists and tuples; zeros for no gradient, list() around an iterator"
        raise ConfigError(FORM, f"{name or 'the sums'}: got {type(value).__name__}, {told}")


def _rebuilt(form: Any, tensors: Mapping[str, torch.Tensor], name: str = "") -> Any:
    """Returns dicts, lists and tuples in a form, with the tensors of these names."""
    if isinstance(form, torch.Tensor):
        return tensors[name]
    if isinstance(form, Mapping):
        return {key: _rebuilt(part, tensors, f"{name}.{key}" if name else str(key)) for key, part in form.items()}
    parts = [_rebuilt(part, tensors, f"{name}[{place}]") for place, part in enumerate(form)]
    if isinstance(form, list):
        return parts
    return type(form)(*parts) if hasattr(form, "_fields") else tuple(parts)
