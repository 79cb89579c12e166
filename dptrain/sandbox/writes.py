"""What a private forward may not write: any tensor that the model keeps.

A forward that writes a table, a counter or running statistics leaves something of a contribution in the model, without noise,
and lets later contributions read it. Such an operation is carried out on a copy that nobody keeps. A checksum at every release
stands behind that, for writes that no operation of torch announces.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dptrain.sandbox.untouched import checksums


def kept_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers, and tensors that modules hold as plain attributes, by name."""
    seen: set[int] = set()
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for holder in (module._parameters, module._buffers, vars(module)):
            for name, value in holder.items():
                for own, tensor in _tensors_in(f"{prefix}{name}", value):
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        yield own, tensor


def _tensors_in(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                yield f"{name}[{place}]", item


class Kept:
    """The tensors of a model that no private forward may write.

    Guarantee: an operation that :meth:`spare` has looked at writes none of them. :meth:`changed` finds every parameter and
    buffer that is new since :meth:`seal`, and every other change of a tensor that is not trained but for one in 2^64, if the
    change does not know the checksum.

    Args:
        trained: ids of the parameters that the optimizer moves; they take no part in the checksum.
    """

    def __init__(self, model: nn.Module, trained: frozenset[int]) -> None:
        self._model = model
        self._trained = trained
        self._names: dict[int, str] = {}
        self._sealed: dict[str, torch.Tensor] = {}
        self._sums = torch.zeros(0, dtype=torch.int64)
        self.counters: dict[int, Any] = {}
        """How often tensors had been written that were spared since, and of which torch counts a write all the same."""
        self.written: str | None = None
        """The first tensor that something tried to write, or wrote."""
        self.look()

    def look(self) -> None:
        """Finds the tensors as they are now: after a change of the model that was meant, and before a step."""
        self._names = {_storage(tensor): name for name, tensor in kept_tensors(self._model) if _storage(tensor)}

    def name_of(self, value: object) -> str | None:
        """The name of the tensor whose memory this one shares, or None."""
        return self._names.get(_storage(value)) if isinstance(value, torch.Tensor) else None

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

    def changed(self) -> bool:
        """Whether a tensor that is not trained is new, not what it was, or no longer the model's; ``written`` names it."""
        now = dict(self._untrained())
        names = [name for name in {**self._sealed, **now} if now.get(name) is not self._sealed.get(name)]
        if not names:
            same = checksums(list(self._sealed.values())) == self._sums
            if bool(same.all()):
                return False
            names = [name for name, kept in zip(self._sealed, same.tolist(), strict=True) if not kept]
        self.written = self.written or names[0]
        return True

    def _untrained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Of plain attributes none: what a module notes there of its last call is its own, unless a later call reads it."""
        for kind in (self._model.named_parameters, self._model.named_buffers):
            for name, tensor in kind():
                if id(tensor) not in self._trained and not tensor.is_meta:
                    yield name, tensor


def given_back(result: Any, places: Mapping[int, torch.Tensor]) -> Any:
    """The result of an operation that wrote a copy, with what the copy stood for in its place."""
    if isinstance(result, torch.Tensor):
        return places.get(id(result), result)
    if isinstance(result, (tuple, list)):
        return type(result)(given_back(item, places) for item in result)
    return result


def _storage(value: object) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    try:
        return value.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return 0
