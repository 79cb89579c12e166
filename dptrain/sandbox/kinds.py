"""Tells operations of torch apart by what they do that a private microbatch may not do as it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from dptrain.sandbox.indices import Total

_aten = torch.ops.aten
READS = {_aten._local_scalar_dense.default, _aten.equal.default}
"""Tell Python a truth, or a number."""


@dataclass(frozen=True)
class Kind:
    """Says of an operation whether it draws, reads or indexes, and what it writes."""

    draws: bool = False
    writes: tuple[tuple[int, str], ...] = ()
    """Place and name of every argument that is written."""
    reads: bool = False
    indexes: bool = False


PLAIN = Kind()
"""The kind of what is let through."""

_STATISTICS = {
    _aten.native_batch_norm.default: (3, 4), _aten.cudnn_batch_norm.default: (3, 4),
    _aten.miopen_batch_norm.default: (3, 4), _aten.batch_norm_update_stats.default: (1, 2),
}  # fmt: skip
"""Places of the running statistics that an operation writes, of which its schema says nothing."""

_TRAINING = 5
"""Place of the argument by which the first three of them do."""

_INDEXES = frozenset(Total(lambda bad: True, lambda bad: True).handlers)


def kind_of(func: Any) -> Kind:
    """Finds the kind of an operation, by its schema and its tags."""
    if func in READS:
        return Kind(reads=True)
    draws = torch.Tag.nondeterministic_seeded in func.tags
    writes = tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    if func in _STATISTICS:
        writes = tuple(zip(_STATISTICS[func], ("running_mean", "running_var"), strict=True))
    indexes = func in _INDEXES
    return Kind(draws=draws, writes=writes, indexes=indexes) if draws or writes or indexes else PLAIN


def writes_now(func: Any, args: tuple, kwargs: dict) -> bool:
    """Tells whether an operation that may write does."""
    if _STATISTICS.get(func) != (3, 4):
        return True
    return bool(args[_TRAINING] if len(args) > _TRAINING else kwargs["training"])


def spread(tainted: WeakTensorKeyDictionary, args: tuple, kwargs: dict, result: Any) -> None:
    """Marks what is made of content as content, and what content is written to."""
    if any(value in tainted for value in tensors_in((args, tuple(kwargs.values())))):
        for value in tensors_in((result,)):
            tainted[value] = True


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yields tensors in lists and tuples within each other."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
