"""Writes that deal values out over the rows: whose value is taken follows how many places the rows before have marked.

``x[mask] = values`` takes values in order. If the values come of ``x[mask]`` itself, or of another read by the same mask, each
goes back to the row that it was taken from. If they come from elsewhere, as features of pictures do, a row that marks one place
too many takes the next row's, moves all behind it, and nothing fails as long as another row marks one too few. So does a list
of places that ``mask.nonzero()`` made. The probes follow what was picked by which mask, and the write is refused by name.

``masked_scatter`` with values in equal shares needs no refusal: :mod:`dptrain.sandbox.indices` keeps each row's share its own.
Where its values were picked by content there are no equal shares, so that it is refused too.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from dptrain.sandbox.modes import tensors_in

_aten = torch.ops.aten
_PUTS = frozenset((
    _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default, _aten._unsafe_index_put.default,
))  # fmt: skip
_ALONG = frozenset((
    _aten.index_copy.default, _aten.index_copy_.default, _aten.index_add.default, _aten.index_add_.default,
))  # fmt: skip
_SCATTERS = frozenset((_aten.masked_scatter.default, _aten.masked_scatter_.default))
WRITES = _PUTS | _ALONG | _SCATTERS
"""Operations that may deal values out."""

_WRITTEN = "it takes values in order for the places that rows mark"
_SCATTERED = "its masked_scatter takes values that were picked by content, so that rows have no equal shares of them"
_UNSEEN = "it did not do so in the probes at the start, and takes values in order for the places that rows mark"
_ELSEWHERE = "its masked_scatter writes to a tensor without one row per example in dimension 0"

Mask = tuple[object, ...]
"""Names a mask, as far as its memory shows: views of it that only repeat it are the same."""


class Picked:
    """Follows what was picked by masks in one pass of the probes: for each tensor, by which.

    Args:
        content: tells whether a tensor is made of content.
    """

    def __init__(self, content: Callable[[torch.Tensor], bool]) -> None:
        self._content = content
        self._by: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """Holds of which masks a tensor is made."""
        self._known: dict[Mask, tuple[torch.Tensor, frozenset[Mask], list[int]]] = {}
        """Masks, which are held, or their memory would be another's; of which others they are made, and what each row marks."""

    def follow(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        """Notes of what a result was picked. What is written to keeps its own shape, and so its own rows."""
        found = of = frozenset[Mask]()
        kept = args[0] if func in WRITES else None
        for value in tensors_in((args, tuple(kwargs.values()))):
            if value.dtype == torch.bool and value.dim() and self._content(value):
                of |= {self._name(value)}
            known = self._of.get(value) if self._of else None
            if known is not None:
                of |= known
                if value.dim() and (kept is None or value is kept):
                    found |= self._by.get(value, frozenset())
        if func in (_aten.index.Tensor, _aten._unsafe_index.Tensor):
            masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
        else:
            masks = [args[0]] if func is _aten.nonzero.default else [args[1]] if func is _aten.masked_select.default else []
        found |= {self._name(mask) for mask in masks if self._content(mask)}
        for value in tensors_in((result,)) if found or of else ():
            self._of[value] = of
            if found:
                self._by[value] = found

    def dealt(self, func: Any, args: tuple, rows: int) -> str | None:
        """Says how a write deals out values that may be another row's; None where it does not."""
        if func in _SCATTERS:
            target, mask, source = args[:3]
            if not self._content(mask):
                return None
            if self._by.get(source):
                return _SCATTERED
            shape = torch.broadcast_shapes(target.shape, mask.shape)
            return None if shape[:1] == (rows,) else _ELSEWHERE
        places = args[1] if func in _PUTS else [args[2]]
        values = args[2] if func in _PUTS else args[3]
        marked = frozenset[Mask]()
        for index in places:
            if index is not None and self._content(index):
                mask = index.dtype in (torch.bool, torch.uint8)
                marked |= {self._name(index)} if mask else self._by.get(index, frozenset())
        if not marked or (func in _PUTS and shared(args[0], places, values)):
            return None
        by = self._by.get(values, frozenset())
        return None if any(mask == other or self._akin(mask, other) for mask in marked for other in by) else _WRITTEN

    def _akin(self, one: Mask, other: Mask) -> bool:
        """Tells whether one mask is made of the other, and marks as many places of every row, as a list of what that marked."""
        (_, of_one, marks), (_, of_other, others) = self._known[one], self._known[other]
        return (other in of_one or one in of_other) and marks == others

    def _name(self, mask: torch.Tensor) -> Mask:
        if type(mask) is not torch.Tensor or mask.is_nested or mask.is_inference():  # of its memory and values nothing is asked
            self._known[(id(mask),)] = mask, frozenset(), [-len(self._known)]
            return (id(mask),)
        steps = zip(mask.shape, mask.stride(), strict=True)
        name = (mask.data_ptr(), mask._version, *(each for each in steps if each[0] > 1 and each[1]))
        if name not in self._known:
            marks = (mask != 0).flatten(1).sum(1) if mask.dim() > 1 else (mask != 0).sum()[None]
            self._known[name] = mask, self._of.get(mask, frozenset()), marks.tolist()
        return name


class Rooms:
    """Counts the places that the writes of a module chose from, by the number of rows: more for more rows, but not in a loop.

    What is written in one row alone is nobody else's, in whatever order.
    """

    def __init__(self) -> None:
        self._seen: dict[object, dict[int, set[int]]] = {}

    def grows(self, where: object, rows: int, room: int) -> bool:
        """Notes a write, and tells whether there was none of this room among other numbers of rows."""
        seen = self._seen.setdefault(where, {})
        others = [rooms for count, rooms in seen.items() if count != rows]
        seen.setdefault(rows, set()).add(room)
        return any(room not in rooms for rooms in others)


class Dealt:
    """Judges the writes of a run: in the probes by what masks picked, and then by what the probes saw."""

    def __init__(self) -> None:
        self._rooms = Rooms()
        self._own: set[str] | None = None
        """Holds the modules whose writes by masks the probes saw, in which no row takes another's; None before the probes."""

    def begin(self) -> None:
        """Begins a probe."""
        self._own = set() if self._own is None else self._own

    def wrong(
        self,
        func: Any,
        args: tuple,
        picked: Picked | None,
        rows: int,
        place: tuple[str, int | None],
        private: Callable[[], bool],
    ) -> str | None:
        """Says why a write may give a row what is another's; None where the probes show that each row takes its own.

        Args:
            picked: what was picked by masks, in a probe. rows: of the pass. place: the path of the module, and the length of
                rows. private: whether the pass is that of a private microbatch.
        """
        if self._own is None:
            return None
        if picked is None:
            unseen = rows > 1 and place[0] not in self._own and asks(func, args) and private()
            return _UNSEEN if unseen else None
        how = picked.dealt(func, args, rows)
        if asks(func, args):
            self._own.add(place[0])
        # a row alone, as in a loop over them, may be written in any order
        return how if how is not None and self._rooms.grows(place, rows, room(func, args)) else None


def room(func: Any, args: tuple) -> int:
    """Counts the places that a write chooses from."""
    target = args[0]
    if func in _SCATTERS:
        return math.prod(torch.broadcast_shapes(target.shape, args[1].shape))
    if func in _ALONG:
        return int(target.shape[args[1]])
    at, sizes = 0, 1
    for index in args[1]:
        width = index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
        sizes *= 1 if index is None else math.prod(target.shape[at : at + width])
        at += width
    return sizes


def asks(func: Any, args: tuple) -> bool:
    """Tells whether a write takes values in an order that a mask may make: where it shows in what is given."""
    if func not in _PUTS:
        return False
    masks = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return masks and not shared(args[0], args[1], args[2])


def shared(target: torch.Tensor, places: Any, values: torch.Tensor) -> bool:
    """Tells whether all places that are written to are given the same."""
    taken = [dim for dim, index in enumerate(places) if index is not None]
    masks = sum(index.dim() - 1 for index in places if index is not None and index.dtype in (torch.bool, torch.uint8))
    together = taken == list(range(taken[0], taken[-1] + 1))
    behind = target.dim() - len(taken) - masks - (taken[0] if together else 0)
    return values.dim() <= behind or values.shape[values.dim() - behind - 1] == 1
