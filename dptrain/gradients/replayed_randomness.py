"""Random numbers that a module draws in its forward, remembered so that another run of it uses the same.

The forward draws as torch always does: its values, their distribution and the state of the generator afterwards are those of
a module without hooks. What was drawn is written down beside it, and a run for one contribution is given its own rows of
that. Drawn numbers do not depend on data, so a contribution's gradient stays a function of its own rows and of them.
"""

import pickle
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.hooks import RemovableHandle

_aten = torch.ops.aten
_BERNOULLI = {_aten.bernoulli_.float, _aten.bernoulli.p, _aten.native_dropout.default}
_UNIFORM = {_aten.rand.default, _aten.rand_like.default, _aten.uniform_.default}
_NORMAL = {_aten.randn.default, _aten.randn_like.default, _aten.normal_.default}
_KINDS = {op: kind for kind, ops in (("keep", _BERNOULLI), ("uniform", _UNIFORM), ("normal", _NORMAL)) for op in ops}
"""Operations that draw one number per element of one tensor, and nothing else; a replayed one may be another of its kind,
since under vmap dropout is made of other operations."""


class Unmatched(RuntimeError):
    """What was drawn in the forward does not fit what another run asks for."""


@dataclass(frozen=True)
class Draw:
    """One tensor of random numbers: what kind, with which parameters, and the numbers (a dropout's mask as booleans)."""

    kind: str
    numbers: tuple[float, ...]
    value: torch.Tensor


class Tape:
    """Writes down the draws of a module's forward.

    Guarantee: an operation that is not known to draw one number per element is written down as of kind ``""``, which no run
    can be given again. A module that drew nothing in the first microbatch in this mode of training is not watched in later
    ones.
    """

    def __init__(self) -> None:
        self._mode: _Recorder | None = None
        self._entered = ExitStack()
        self._silent: dict[bool, int] = {}
        self._found: tuple[Draw, ...] = ()

    def watch(self, module: nn.Module, recording: Callable[[], int]) -> list[RemovableHandle]:
        """Hooks around the forward of ``module``, active where ``recording`` gives the number of a microbatch, not zero."""
        return [
            module.register_forward_pre_hook(partial(self._begin, recording)),
            module.register_forward_hook(partial(self._end, recording), always_call=True),
        ]

    def _begin(self, recording: Callable[[], int], module: nn.Module, args: tuple) -> None:
        self.stop()
        self._found = ()
        serial = recording()
        if serial and self._silent.get(_training(module), serial) >= serial:
            self._mode = _Recorder()
            self._entered.enter_context(plain_attention(module))
            self._entered.enter_context(self._mode)

    def _end(self, recording: Callable[[], int], module: nn.Module, args: tuple, output: object) -> None:
        mode = self._mode
        self.stop()
        if mode is None or output is None:  # None: the forward raised
            return
        self._found = tuple(mode.draws)
        training = _training(module)
        if self._found:
            self._silent.pop(training, None)
        else:
            self._silent.setdefault(training, recording())

    def __getstate__(self) -> dict[str, object]:
        """A copy of a prepared model has nothing of a forward under way."""
        return {**vars(self), "_mode": None, "_entered": None, "_found": ()}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._entered = ExitStack()

    def stop(self) -> None:
        """Ends a forward that was broken off where no hook runs (by the keyboard, say), if it is the innermost."""
        mode, self._mode = self._mode, None
        if mode is not None and _get_current_dispatch_mode() is mode:
            self._entered.close()
        self._entered = ExitStack()

    def take(self) -> tuple[Draw, ...]:
        """What the forward that just ended drew, forgotten here."""
        found, self._found = self._found, ()
        return found


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if _random(func, args, kwargs or {}):
            kind = _KINDS.get(func, "")
            drawn = (out[1] if func is _aten.native_dropout.default else out) if kind else torch.empty(0)
            value = drawn.detach().to(torch.bool) if kind == "keep" else drawn.detach().clone()
            self.draws.append(Draw(kind, _numbers(func, kind, args), value))
        return out


class Replay(TorchDispatchMode):
    """Gives every draw of another run the numbers written down, or raises :class:`Unmatched`; see :func:`rows_of`.

    Args:
        fit: the recorded draw and the shape asked for, to the value.
    """

    def __init__(self, draws: Sequence[Draw], fit: Callable[[torch.Tensor, torch.Size], torch.Tensor]) -> None:
        super().__init__()
        self._draws = iter(draws)
        self._fit = fit

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if error[0] is None and next(self._draws, None) is not None:
            raise Unmatched("it drew fewer random numbers than the first time")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not _random(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        draw = next(self._draws, None)
        kind = _KINDS.get(func)
        if draw is None or kind is None or draw.kind != kind or draw.numbers != _numbers(func, kind, args):
            raise Unmatched(f"it asked for other random numbers than the first time ({func})")
        if isinstance(args[0], torch.Tensor):
            value = self._fit(draw.value, args[0].shape)
            if func is _aten.native_dropout.default:
                return args[0] * value * (1.0 / draw.numbers[0]), value
            # In place where the operation is, else a tensor of its own.
            target = args[0] if func._schema.is_mutable else torch.empty_like(args[0])
            return target.copy_(value)
        return self._fit(draw.value, torch.Size(args[0])).clone()


def rows_of(start: int, examples: int, rows: int) -> Callable[[torch.Tensor, torch.Size], torch.Tensor]:
    """The part of a draw that belongs to ``examples`` rows from ``start`` of ``rows``.

    The example is in dimension 0, alone or in front of what it is counted with (attention of torch itself draws for
    examples times heads). A draw of the shape asked for belongs to the whole microbatch  in
    common.
    """

    def fit(value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        if shape == value.shape:
            return value
        if not shape or shape[1:] != value.shape[1:] or shape[0] * rows != value.shape[0] * examples:
            raise Unmatched(f"random numbers of shape {tuple(value.shape)} have no rows of {rows} examples in dimension 0")
        each = value.shape[0] // rows
        return value.narrow(0, start * each, examples * each)

    return fit


def every_row(rows: int) -> Callable[[torch.Tensor, torch.Size], torch.Tensor]:
    """Draws under vmap over ``rows`` examples: the shape asked for has them in front, and one example in the next."""

    def fit(value: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        each = value.shape[0] // rows if value.dim() else 0
        if shape != (rows, each, *value.shape[1:]) or each * rows != value.shape[0]:
            raise Unmatched(f"random numbers of shape {tuple(value.shape)} have no rows of {rows} examples in dimension 0")
        return value.reshape(shape)

    return fit


def _random(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether an operation draws; a fused attention without dropout, which is marked as if it did, does not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value))
    return True


def _numbers(func: Any, kind: str, args: tuple) -> tuple[float, ...]:
    """Parameters of a distribution, as far as they differ from call to call: the share kept, or the bounds."""
    if func is _aten.native_dropout.default:
        return (1.0 - args[1],)
    if not kind or not isinstance(args[0], torch.Tensor):
        return ()
    return tuple(float(x) for x in args[1:] if isinstance(x, (int, float)))


def host_random_state() -> tuple[object, bytes]:
    """Where the common generators of Python and numpy stand; what they draw is not written down."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


def _training(module: nn.Module) -> bool:
    return any(child.training for child in module.modules())


def plain_attention(module: nn.Module) -> AbstractContextManager[object]:
    """Attention in plain operations: the fused kernels of a GPU drop inside, where nothing sees the mask."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    return nullcontext() if on_cpu else sdpa_kernel([SDPBackend.MATH])
