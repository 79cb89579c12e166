"""Find writes of a private forward to tensors that the model keeps, and take them back.

A forward that writes a table, a counter or running statistics leaves something of a contribution in the model, without noise,
and lets later contributions read it. Such an operation is carried out on a copy that nobody keeps. A checksum at every release
stands behind that, for writes that no operation of torch announces.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from dptrain.blocks.shards import local
from dptrain.sandbox.untouched import checksums

DEPTH = 4
"""Containers and objects within each other that are looked into."""

ENTRIES = 1024
"""Entries of one container that are looked at; of all that a module holds, `ALL_ENTRIES`."""

ALL_ENTRIES = 1 << 14

_REGISTERED = frozenset(("_parameters", "_buffers", "_modules"))
_CONTAINERS: dict[type, Callable[[Any], Iterator]] = {
    kind: kind.__iter__ for kind in (list, tuple, set, frozenset, deque)
}
_BUILT_IN = frozenset((dict, OrderedDict, *_CONTAINERS))

_CLOSED: tuple[type, ...] = (
    nn.Module, torch.Generator, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, property,
    classmethod, staticmethod,
)  # fmt: skip
"""Types that are not looked into: modules have their own turn, and a function keeps nothing of a model."""

_QUICK = frozenset((bool, int, float, str, bytes, type(None), torch.device, torch.dtype, *_CLOSED[2:]))

Named = tuple[str, torch.Tensor]

CLIPPED = {"Gemma3nTextAltUp": ("prediction_coefs.weight", "altup_coef_clip")}
"""Classes of transformers whose forward clips a weight in place, and the bound by its name in the configuration."""


def kept_tensors(model: nn.Module) -> Iterator[Named]:
    """Parameters and buffers, then the other tensors that modules and their classes hold, by name.

    They lie in attributes, in containers there, and in attributes of plain objects there; `DEPTH` and `ENTRIES` bound the walk.
    """
    modules = [(f"{path}." if path else "", module) for path, module in model.named_modules()]
    walk = _Walk()
    for prefix, module in modules:
        for holder in (module._parameters, module._buffers):
            for name, value in holder.items():
                yield from walk.inside(prefix + name, value)
    for prefix, module in modules:
        walk.left = ALL_ENTRIES
        for name, value in vars(module).items():
            if type(value) not in _QUICK and name not in _REGISTERED and not _empty(value):
                yield from walk.inside(prefix + name, value)
        for kind in type(module).__mro__:
            if kind not in walk.classes:
                walk.classes.add(kind)
                for name, value in vars(kind).items():
                    if type(value) not in _QUICK and not _empty(value):
                        yield from walk.inside(prefix + name, value, objects=False)


def _empty(value: object) -> bool:
    return type(value) in _BUILT_IN and not value


class _Walk:
    """Finds every tensor once, and ends in a circle."""

    def __init__(self) -> None:
        self.left = ALL_ENTRIES
        self.classes: set[type] = {nn.Module, object}
        self._tensors: set[int] = set()
        self._deepest: dict[tuple[int, bool], int] = {}

    def inside(self, name: str, value: object, depth: int = DEPTH, *, objects: bool = True) -> Iterator[Named]:
        """Tensors in a value; with ``objects``, in an object's attributes too, but not in those of an object inside it."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._tensors:
                self._tensors.add(id(value))
                yield name, value
            return
        if isinstance(value, _CLOSED) or self._deepest.get((id(value), objects), 0) >= depth:
            return
        self._deepest[id(value), objects] = depth
        inner = objects
        found = _entries(name, value)
        if found is None and objects:
            found, inner = _fields(name, value), False
        for own, item in islice(found or (), max(0, min(ENTRIES, self.left))):
            self.left -= 1
            if type(item) not in _QUICK:
                yield from self.inside(own, item, depth - 1, objects=inner)


def _entries(name: str, value: object) -> Iterable[tuple[str, object]] | None:
    """Return the entries of a container, read past what a user's class makes of it; None of anything else."""
    if isinstance(value, dict):
        held = list(islice(dict.items(value), ENTRIES))
        return ((f"{name}[{key!r}]" if type(key) in (str, int) else f"{name}[{k}]", item) for k, (key, item) in enumerate(held))
    for kind, entries in _CONTAINERS.items():
        if isinstance(value, kind):
            items = list(islice(entries(value), ENTRIES))
            return ((f"{name}[{place}]", item) for place, item in enumerate(items))
    return None


def _fields(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Attributes and slots of an object, read past what its class makes of them."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = None
    if isinstance(held, dict):
        yield from [(f"{name}.{key}", item) for key, item in islice(held.items(), ENTRIES)]
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            for slot, descriptor in vars(kind).items():
                if isinstance(descriptor, MemberDescriptorType):
                    try:
                        yield f"{name}.{slot}", descriptor.__get__(value)
                    except AttributeError:  # nothing is in it
                        continue


class Kept:
    """The tensors of a model that no private forward may write.

    Guarantee: an operation that :meth:`spare` has looked at writes none of them. :meth:`changed` finds every parameter and
    buffer that is new since :meth:`seal`, and every other change of one that is not trained but for one in 2^64, if the change
    does not know the checksum. So it does for the other tensors that were there at the seal and still are, if they changed
    since the first :meth:`look` after the last release: what the loop writes between steps is no forward's.

    Args:
        trained: ids of the parameters that the optimizer moves; they take no part in the checksum.
    """

    def __init__(self, model: nn.Module, trained: frozenset[int]) -> None:
        self._model = model
        self._trained = trained
        self.rest: Callable[[], None] = lambda: None
        """Brings parameters that lie over several ranks to where they lie between microbatches."""
        self._names: dict[int, str] = {}
        self._alive: list[StorageWeakRef] = []
        """Keep places from being given to others before the next look."""
        self._sealed: dict[str, torch.Tensor] = {}
        self._sums = torch.zeros(0, dtype=torch.int64)
        self._others: dict[int, tuple[StorageWeakRef, int]] = {}
        """Checksums of tensors that are neither parameters nor buffers, by the place of their memory."""
        self._unchanged = False
        """True if nothing had changed at the last release, and no look has come since."""
        self.counters: dict[int, Any] = {}
        """Writes so far of tensors that were spared since, where torch counts a write all the same."""
        self.written: str | None = None
        """The first tensor that something tried to write, or wrote."""
        self._clips: dict[int, float] = {}
        """Holds what listed classes clip a weight to in place, by the place of its memory."""
        self.look()

    def look(self) -> None:
        """Finds the tensors as they are now: after a change of the model that was meant, and before a step."""
        self.rest()
        self._names, self._alive = {}, []
        found = list(kept_tensors(self._model))
        for name, tensor in found:
            storage = _storage(tensor)
            if storage is not None and storage._cdata not in self._names:
                self._names[storage._cdata] = name
                self._alive.append(StorageWeakRef(storage))
        self._clips = {}
        for _, weight, bound in clipped_in_place(self._model.named_modules()):
            storage = _storage(weight)
            if storage is not None and storage.nbytes() == local(weight).nbytes:
                self._clips[storage._cdata] = bound
        if self._unchanged and not _get_current_dispatch_mode_stack():  # else a microbatch is under way
            self._unchanged = False
            self._take_others(self._others, found)

    def clips_nothing(self, func: Any, args: tuple, kwargs: dict) -> bool:
        """Tell if an operation clips a weight to the bounds of its listed class.

        Guarantee: such an operation is left out, and would be the identity whatever content is there: the bound is the
        configuration's, and a weight that lies beyond it is refused at the start of every step
        (:func:`dptrain.routing.couplings.couplings`). Any other write of that weight is spared as ever.
        """
        if func is not torch.ops.aten.clamp_.default or kwargs or len(args) != 3 or not self._clips:
            return False
        storage = _storage(args[0])
        bound = None if storage is None else self._clips.get(storage._cdata)
        if bound is None or not args[0].is_floating_point():
            return False
        return all(type(end) in (int, float) for end in args[1:]) and args[1:] == (-bound, bound)

    def name_of(self, value: object) -> str | None:
        """The name of the tensor whose memory this one shares, or None."""
        storage = _storage(value)
        return None if storage is None else self._names.get(storage._cdata)

    def spare(
        self, written: Sequence[tuple[int, str]], args: tuple, kwargs: dict
    ) -> tuple[tuple, dict, dict[int, torch.Tensor]] | None:
        """Arguments with copies in the place of what would be written, and whose place each copy took; None if nothing is.

        Args:
            written: place and name of every argument that the operation writes.
        """
        places: dict[int, torch.Tensor] = {}
        new_args, new_kwargs = list(args), dict(kwargs)
        for place, argument in written:
            value = args[place] if place < len(args) else kwargs.get(argument)
            several = isinstance(value, (list, tuple))
            copy = [self._copied(each, places) for each in value] if several else self._copied(value, places)
            if place < len(args):
                new_args[place] = copy
            else:
                new_kwargs[argument] = copy
        return (tuple(new_args), new_kwargs, places) if places else None

    def _copied(self, value: Any, places: dict[int, torch.Tensor]) -> Any:
        """The value itself, or a copy of a tensor that may not be written."""
        name = self.name_of(value)
        if name is None:
            return value
        self.written = self.written or name
        if id(value) not in self.counters and not value.is_inference():
            self.counters[id(value)] = torch.autograd._unsafe_preserve_version_counter(value)
        copy = value.detach().clone()
        places[id(copy)] = value
        return copy

    def uncount(self) -> None:
        """Takes back what torch counts as writes of tensors that were spared, as soon as it has counted.

        Else the backward pass refuses them as changed, or the run takes note of parameters that something wrote; and whether
        anything did may follow from content. Later would be too late: autograd would have saved them under the wrong count.
        """
        for counter in reversed(self.counters.values()):
            counter.__exit__()
        self.counters.clear()

    def seal(self) -> None:
        """Takes the checksums that :meth:`changed` compares with."""
        self.look()
        self._sealed = dict(self._untrained())
        self._sums = checksums(list(self._sealed.values()))
        self._take_others(None, kept_tensors(self._model))

    def changed(self) -> bool:
        """Tell if a tensor that is not trained is new, changed, or no longer the model's; ``written`` names it.

        Of tensors that are neither parameters nor buffers: whether one is not what it was.
        """
        self.rest()
        now = dict(self._untrained())
        names = [name for name in {**self._sealed, **now} if now.get(name) is not self._sealed.get(name)]
        if not names:
            same = checksums(list(self._sealed.values())) == self._sums
            names = [name for name, kept in zip(self._sealed, same.tolist(), strict=True) if not kept] or self._changed_others()
        if not names:
            self._unchanged = True
            return False
        self.written = self.written or names[0]
        return True

    def _untrained(self) -> Iterator[Named]:
        for kind in (self._model.named_parameters, self._model.named_buffers):
            for name, tensor in kind():
                if id(tensor) not in self._trained and not tensor.is_meta:
                    yield name, tensor

    def _take_others(self, among: Mapping[int, object] | None, found: Iterable[Named]) -> None:
        """Takes the checksums of the tensors that are neither parameters nor buffers; of ``among`` alone, if given."""
        held = {place: each for place, (_, each) in self._other_memory(found).items() if among is None or place in among}
        sums = checksums(list(held.values())).tolist()
        self._others = {
            place: (StorageWeakRef(each.untyped_storage()), own) for (place, each), own in zip(held.items(), sums, strict=True)
        }

    def _changed_others(self) -> list[str]:
        """Names of those that are not what they were.

        One that is no longer there does not count, nor does a new one: what a module notes of its last call is its own, unless
        a later call reads it.
        """
        if not self._others:
            return []
        now = self._other_memory(kept_tensors(self._model)).items()
        held = [(*each, self._others[place][1]) for place, each in now if place in self._others]
        sums = checksums([each for _, each, _ in held]).tolist()
        return [name for (name, _, before), after in zip(held, sums, strict=True) if after != before]

    def _other_memory(self, kept: Iterable[Named]) -> dict[int, Named]:
        """Names and bytes of all memory that tensors of the model have, but for what is trained and what `_untrained` gives."""
        known = set()
        for tensor in (*self._model.parameters(), *self._model.buffers()):
            storage = _storage(tensor)
            if storage is not None and (id(tensor) in self._trained or tensor.nbytes == storage.nbytes()):
                known.add(storage._cdata)
        found = {}
        for name, tensor in kept:
            storage = _storage(tensor)
            if storage is not None and storage._cdata not in known and _readable(storage):
                known.add(storage._cdata)
                found[storage._cdata] = name, torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return found


def given_back(result: Any, places: Mapping[int, torch.Tensor]) -> Any:
    """The result of an operation that wrote a copy, with what the copy stood for in its place."""
    if isinstance(result, torch.Tensor):
        return places.get(id(result), result)
    if isinstance(result, (tuple, list)):
        return type(result)(given_back(item, places) for item in result)
    return result


def clipped_in_place(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, torch.Tensor, float]]:
    """Weights that forwards of listed classes clip in place, by name, with the bound: those of modules that train."""
    for path, module in modules:
        kind = type(module)
        if module.training and kind.__name__ in CLIPPED and kind.__module__.startswith("transformers."):
            key, option = CLIPPED[kind.__name__]
            weight, bound = attrgetter(key)(module), getattr(module.config, option)
            if isinstance(weight, torch.Tensor) and type(bound) in (int, float):
                yield f"{path}.{key}" if path else key, weight, float(bound)


def _storage(value: object) -> torch.UntypedStorage | None:
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return local(value).untyped_storage()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return None


def _readable(storage: torch.UntypedStorage) -> bool:
    try:
        return storage.device.type != "meta" and storage.data_ptr() != 0
    except RuntimeError:  # a tensor of a class that keeps its numbers elsewhere
        return False
