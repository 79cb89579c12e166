"""Plain Python values that a forward may read, as a key: where one changes, a graph made before says nothing any more.

What is looked at: of every module and its configuration numbers, switches, names and containers of them, and which hooks it
carries; of a function its defaults, what it closes over, the globals that it names, and the functions among these. What a
function reaches by other ways is not seen; the comparison with the hook form is there for it.
"""

import functools
import types
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)

_LONGEST = 1024
"""Containers with more entries count as data."""

_LIBRARIES = ("torch", "transformers", "peft", "accelerate")
"""Packages whose functions keep no state that anybody changes."""


def of_model(model: nn.Module) -> Iterator[Hashable]:
    """State of all modules."""
    walk = _Walk()
    for name, module in model.named_modules():
        yield name, type(module), tuple(module._forward_hooks), tuple(module._forward_pre_hooks), tuple(module._backward_hooks)
        for key, value in vars(module).items():
            if isinstance(value, PLAIN):
                yield key, value
            elif key[0] != "_":
                yield key, *walk.values(value, 3)


def of_function(function: object) -> Iterator[Hashable]:
    """State of a function."""
    yield from _Walk().values(function, 5)


class _Walk:
    """One way through objects; each is entered once."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}

    def values(self, value: Any, depth: int) -> Iterator[Hashable]:
        if isinstance(value, PLAIN):
            yield value
            return
        if id(value) in self._seen or depth == 0 or isinstance(value, (type, types.ModuleType, torch.Tensor, nn.Module)):
            yield id(value)
            return
        self._seen[id(value)] = value  # kept, so that nothing else can get its id meanwhile
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            yield len(value)
            items = value.items() if isinstance(value, dict) else value
            for item in items if len(value) <= _LONGEST else ():
                for part in item if isinstance(value, dict) else (item,):
                    yield from self.values(part, depth - 1)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                yield from self.values(part, depth)
        elif isinstance(value, types.MethodType):
            for part in (value.__func__, value.__self__):
                yield from self.values(part, depth)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, depth)
        else:
            yield id(value)
            for key, item in getattr(value, "__dict__", {}).items():
                # Of an object of the user's what is plain: objects inside may be anything, the run itself for one.
                if isinstance(item, (*PLAIN, list, tuple, dict)):
                    yield key
                    yield from self._plain(item, 3)

    def _function(self, value: types.FunctionType, depth: int) -> Iterator[Hashable]:
        yield id(value.__code__)
        if (value.__module__ or "").partition(".")[0] in _LIBRARIES:
            return
        for cell in value.__closure__ or ():
            try:
                yield from self.values(cell.cell_contents, depth - 1)
            except ValueError:
                yield None  # not bound yet
        for part in (value.__defaults__, value.__kwdefaults__):
            yield from self.values(part, depth)
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield from self.values(value.__globals__[name], depth - 1)

    def _plain(self, value: Any, depth: int) -> Iterator[Hashable]:
        if isinstance(value, PLAIN):
            yield value
        elif isinstance(value, (list, tuple, dict)) and depth and len(value) <= _LONGEST:
            yield len(value)
            for item in value.items() if isinstance(value, dict) else value:
                yield from self._plain(item, depth - 1)
        else:
            yield id(value)
