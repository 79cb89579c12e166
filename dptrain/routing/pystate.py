"""Plain Python values that a forward may read, as a key: where one changes, a graph made before says nothing any more.

What is looked at: of every module and its configuration numbers, switches, names, small arrays and containers of them, and
which hooks it carries; of its class, where it is the user's, the same and what its forward names; of a function its defaults,
what it closes over, the globals that it and the functions written inside it name, and the functions among these; of an object
that one of these reaches its attributes and slots. Objects inside objects and large containers count as what they are, not by
what they hold. The comparison with the hook form is there for what is not seen.
"""

import functools
import sys
import types
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)

_LONGEST = 1024
"""Containers with more entries count as data."""

_ENTRIES = 1 << 14
"""And so do those that come after this many entries of others."""

_BYTES = 1 << 14
"""The largest array that is looked at."""

_NESTED = 16
"""Containers are looked into as deep as this."""

_LIBRARIES = frozenset(("torch", "transformers", "peft", "accelerate", "numpy", *sys.stdlib_module_names)) - {"__main__"}
"""Packages whose functions and classes keep no state that anybody changes."""

_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes in which torch keeps parameters, children and hooks of a module."""


class Same:
    """An object as what it is, held so that no other gets its identity while a key speaks of it."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def of_model(model: nn.Module) -> Iterator[Hashable]:
    """State of all modules."""
    walk = _Walk()
    for name, module in model.named_modules():
        yield name, type(module), tuple(module._forward_hooks), tuple(module._forward_pre_hooks), tuple(module._backward_hooks)
        for key, value in vars(module).items():
            if key in _OF_TORCH and key != "training":
                continue
            if isinstance(value, PLAIN):
                yield key, type(value), value
            else:
                yield key
                yield from walk.values(value, 3)
        yield from walk.of_class(type(module), "forward")


def of_function(function: object) -> Iterator[Hashable]:
    """State of a function."""
    yield from _Walk().values(function, 5)


class _Walk:
    """One way through objects; each is entered once."""

    def __init__(self) -> None:
        self._seen: dict[int, object] = {}
        self._left = _ENTRIES

    def values(self, value: Any, depth: int, nested: int = _NESTED) -> Iterator[Hashable]:
        """Yields what may be read of ``value``; ``depth`` counts functions and objects, ``nested`` containers."""
        if isinstance(value, PLAIN):
            yield type(value)  # 1 is not 1.0 in a product
            yield value
        elif isinstance(value, (np.ndarray, np.generic)):
            yield from _array(value)
        elif id(value) in self._seen or depth == 0 or isinstance(value, (type, torch.Tensor, nn.Module, types.ModuleType)):
            yield Same(value)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            yield from self._container(value, depth, nested)
        else:
            self._seen[id(value)] = value  # kept, so that nothing else can get its id meanwhile
            if isinstance(value, functools.partial):
                for part in (value.func, value.args, value.keywords):
                    yield from self.values(part, depth)
            elif isinstance(value, types.MethodType):
                for part in (value.__func__, value.__self__):
                    yield from self.values(part, depth)
                yield from self.of_class(type(value.__self__), value.__func__.__name__, depth - 1)
            elif isinstance(value, types.FunctionType):
                yield from self._function(value, depth)
            else:
                yield from self._object(value, depth)

    def of_class(self, kind: type, entry: str, depth: int = 3) -> Iterator[Hashable]:
        """Plain attributes of a class of the user's, and what its method ``entry`` and the methods that this names read."""
        bases = [base for base in kind.__mro__ if not _of_a_library(base.__module__)]
        if id(kind) in self._seen or not bases:
            return
        self._seen[id(kind)] = kind
        for base in bases:
            for key, value in vars(base).items():
                if key[:2] != "__" and isinstance(value, (*PLAIN, list, tuple, set, frozenset, dict, np.ndarray)):
                    yield key
                    yield from self._plain(value, _NESTED)
        pending, done = [entry], {entry}
        while pending:
            name = pending.pop()
            for base in bases:
                method = vars(base).get(name)
                for function in _functions_of(method):
                    yield from self.values(function, depth)
                    fresh = [named for named in _names(function.__code__) if named not in done]
                    done.update(fresh)
                    pending += fresh

    def _container(self, value: Any, depth: int, nested: int) -> Iterator[Hashable]:
        self._seen[id(value)] = value
        yield len(value)
        self._left -= len(value)
        if len(value) > _LONGEST or self._left < 0 or not nested:
            yield Same(value)
            return
        for item in value.items() if isinstance(value, dict) else value:
            for part in item if isinstance(value, dict) else (item,):
                yield from self.values(part, depth - 1 if not isinstance(part, _CONTAINERS) else depth, nested - 1)

    def _object(self, value: Any, depth: int) -> Iterator[Hashable]:
        yield Same(value)
        if isinstance(value, _CODELESS):
            return
        slots = ((key, getattr(value, key, None)) for key in _slots(type(value)))
        for key, item in (*getattr(value, "__dict__", {}).items(), *slots):
            # Of an object of the user's what is plain: objects inside may be anything, the run itself for one.
            if isinstance(item, (*PLAIN, *_CONTAINERS, np.ndarray, np.generic)):
                yield key
                yield from self._plain(item, _NESTED)
        yield from self.of_class(type(value), "__call__", depth - 1)

    def _function(self, value: types.FunctionType, depth: int) -> Iterator[Hashable]:
        yield Same(value.__code__)
        if _of_a_library(value.__module__):
            return
        for cell in value.__closure__ or ():
            try:
                yield from self.values(cell.cell_contents, depth - 1)
            except ValueError:
                yield None  # not bound yet
        for part in (value.__defaults__, value.__kwdefaults__, value.__dict__):
            yield from self.values(part, depth)
        names = _names(value.__code__)
        for name in names:
            found = value.__globals__.get(name, self)
            if isinstance(found, types.ModuleType) and not _of_a_library(found.__name__):
                for inner in names:
                    if inner in vars(found):
                        yield from self.values(vars(found)[inner], depth - 1)
            elif found is not self:
                yield from self.values(found, depth - 1)

    def _plain(self, value: Any, nested: int) -> Iterator[Hashable]:
        if isinstance(value, PLAIN):
            yield type(value)
            yield value
        elif isinstance(value, (np.ndarray, np.generic)):
            yield from _array(value)
        elif isinstance(value, _CONTAINERS) and nested and id(value) not in self._seen and self._fits(value):
            self._seen[id(value)] = value
            yield len(value)
            for item in value.items() if isinstance(value, dict) else value:
                yield from self._plain(item, nested - 1)
        else:
            yield Same(value)

    def _fits(self, value: Any) -> bool:
        self._left -= len(value)
        return len(value) <= _LONGEST and self._left >= 0


_CONTAINERS = (list, tuple, set, frozenset, dict)
_CODELESS = (types.BuiltinFunctionType, types.CodeType, types.FrameType, types.GeneratorType)


def _array(value: Any) -> Iterator[Hashable]:
    """A small array by its content, another as what it is."""
    if value.nbytes > _BYTES or value.dtype.hasobject:
        yield Same(value)
    else:
        yield value.shape, value.dtype.str, value.tobytes()


def _of_a_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__"):
                yield f"_{base.__name__.lstrip('_')}{name}" if name[:2] == "__" and name[-2:] != "__" else name


def _functions_of(method: object) -> Iterator[types.FunctionType]:
    if isinstance(method, property):
        method = method.fget
    elif isinstance(method, (staticmethod, classmethod)):
        method = method.__func__
    if isinstance(method, types.FunctionType):
        yield method


@functools.lru_cache(maxsize=1024)
def _names_of(code: Same) -> tuple[str, ...]:
    found: dict[str, None] = {}
    pending = [code._value]
    while pending:
        each = pending.pop()
        assert isinstance(each, types.CodeType)
        found.update(dict.fromkeys(each.co_names))
        pending += [const for const in each.co_consts if isinstance(const, types.CodeType)]
    return tuple(found)


def _names(code: types.CodeType) -> tuple[str, ...]:
    """Globals and attributes that a function names, and the functions written inside it."""
    return _names_of(Same(code))
