"""Learns from probes where rows lie in the draws of a forward, and what it decides by content.

Attention on a processor draws (rows, heads, T, T), a recurrent network (T, rows, D) even if it takes rows first, torch's own
attention (rows * heads, T, T). Passes over two different numbers of synthetic rows show which dimension is the row; what no
pass can show is refused by name.

A truth is told by its number in its module where the probes read so many of that module in every microbatch. Where the number
follows the rows (a loop over them), the n-th truth is another row's in other company: then all of the module are told alike, or
none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from dptrain.sandbox.draws import Request

Place = tuple[str, int]
"""A module's path, and which of its draws in a microbatch."""

INDEX = "index"
"""In the place of a kind of draw: an index that may be out of range."""


@dataclass(frozen=True)
class Layout:
    """Where rows lie in a draw.

    Attributes:
        dim: the dimension of the rows; None for a draw that everybody shares.
        each: how many entries of that dimension belong to a row; they lie side by side. seen: a shape in which it was learnt.
    """

    dim: int | None
    each: int = 1
    seen: torch.Size | None = field(default=None, compare=False)

    def row_shape(self, shape: Sequence[int]) -> torch.Size:
        """Shape of what one row has of a draw of this shape."""
        assert self.dim is not None
        return torch.Size((*shape[: self.dim], self.each, *shape[self.dim + 1 :]))

    def holds(self, shape: Sequence[int], rows: int) -> bool:
        """Tell if an index of this shape has all the rows where it should."""
        return self.dim is None or (len(shape) > self.dim and shape[self.dim] == rows * self.each)

    def fits(self, shape: Sequence[int], rows: int) -> bool:
        """Tell if a draw of this shape has the rows in place, and is no larger otherwise than learnt; a shared one must be
        equal.

        A shorter one may belong to fewer of something (special tokens), and by its place to another row's.
        """
        if self.seen is None:
            return self.holds(shape, rows)
        if self.dim is None:
            return torch.Size(shape) == self.seen
        most = self.shape_for(self.seen, rows)
        return self.holds(shape, rows) and len(shape) == len(most) and all(a <= b for a, b in zip(shape, most, strict=True))

    def whole(self, shape: torch.Size) -> torch.Size:
        """Shape of a row in which its numbers are counted; they are the same in a shorter one (padding was cut, say)."""
        if self.seen is None:
            return shape
        return self.seen if self.dim is None else self.row_shape(self.seen)

    def shape_for(self, shape: Sequence[int], rows: int) -> torch.Size:
        """Shape that a draw of this shape has for another number of rows."""
        return torch.Size(shape) if self.dim is None else Layout(self.dim, rows * self.each).row_shape(shape)


@dataclass(frozen=True)
class _Seen:
    rows: int
    request: Request

    @property
    def kind(self) -> str:
        return self.request.kind

    @property
    def shape(self) -> torch.Size:
        return self.request.shape


SHARED = Layout(None)


class Layouts:
    """The layouts that passes over synthetic rows have shown of every draw.

    Guarantee: a draw has a layout only if two passes with different numbers of rows agree on one and on no other. Whether rows
    are in front or behind within a dimension (heads beside rows) no shape shows; the probes compare the same contribution in
    different company for that.
    """

    def __init__(self) -> None:
        self._passes: list[dict[Place, _Seen]] = []
        self._known: dict[Place, tuple[Layout, Request]] = {}
        self.refused: dict[Place, str] = {}
        """Draws without a layout: what was seen of each, in words."""

    @property
    def learnt(self) -> bool:
        """Tell if two passes were seen."""
        return len(self._passes) >= 2

    def expected(self, rows: int) -> dict[Place, Request]:
        """Return what a forward over so many rows asks for, in its order."""
        return {
            place: replace(request, shape=layout.shape_for(request.shape, rows))
            for place, (layout, request) in self._known.items()
            if request.kind != INDEX
        }

    def watch(self) -> None:
        """Begins a pass."""
        self._passes.append({})

    def see(self, place: Place, rows: int, asked: Request) -> None:
        """Writes down a draw of the pass under way."""
        self._passes[-1][place] = _Seen(rows, asked)

    def see_index(self, place: Place, rows: int, index: torch.Tensor) -> None:
        """Writes down an index whose rows may have to be marked."""
        self.see(place, rows, Request(INDEX, (), index.shape, torch.bool, index.device))

    def decide(self) -> None:
        """Compares the last two passes; what earlier ones showed stays, where these do not show something else."""
        first, second = self._passes[-2:]
        for place in {**first, **second}:
            found, words = _decide(first.get(place), second.get(place))
            if found is not None and place in self._known:
                before, asked = self._known[place]
                again = second[place].request
                if (before, asked.kind, before.whole(asked.shape)) != (found, again.kind, found.whole(again.shape)):
                    found, words = None, f"it drew {_shape(second[place])}, and something else where a number fell otherwise"
            if found is None:
                self.refused[place] = words
                self._known.pop(place, None)
            elif place not in self.refused:
                self._known[place] = found, second[place].request

    def of(self, place: Place) -> Layout | None:
        """The layout of a draw, or None if it has none."""
        return self._known[place][0] if place in self._known else None


def _decide(a: _Seen | None, b: _Seen | None) -> tuple[Layout | None, str]:
    if a is None or b is None:
        rows = [seen.rows for seen in (a, b) if seen is not None]
        return None, f"it drew for {rows[0]} rows and not for another number of them"
    words = f"it drew {_shape(a)} for {a.rows} rows and {_shape(b)} for {b.rows}"
    if a.kind != b.kind or len(a.shape) != len(b.shape):
        return None, words
    differ = [dim for dim, (one, other) in enumerate(zip(a.shape, b.shape, strict=True)) if one != other]
    if not differ:
        return Layout(None, seen=a.shape), ""
    dim = differ[0]
    each, rest = divmod(a.shape[dim], a.rows)
    if len(differ) > 1 or rest or each == 0 or b.shape[dim] != each * b.rows:
        return None, words
    return Layout(dim, each, a.shape), ""


def _shape(seen: _Seen) -> str:
    return "x".join(map(str, seen.shape)) or "one number"


Answer = bool | None
"""An answer that is given; None where it goes by content."""


@dataclass
class _Module:
    """The truths of one module in the probes: by microbatch, in order, whether each follows content, and its value."""

    passes: dict[int, list[tuple[bool, bool]]] = field(default_factory=dict)

    def counted(self, sides: Mapping[int, str]) -> bool:
        """Tell if every microbatch had as many: all those in which numbers that decide for all samples fell on one side."""
        ran = {sides[number] for number in self.passes}
        return len({len(self.passes.get(number, ())) for number, side in sides.items() if side in ran}) == 1

    def answers(self, counted: bool) -> list[Answer]:
        """Return the answer to every truth, or to the only one where they are not counted."""
        if counted:
            return [_told(seen) for seen in zip(*self.passes.values(), strict=True)]
        every = [each for seen in self.passes.values() for each in seen]
        return [_told(every) if all(content for content, _ in every) else None]


def _told(seen: Sequence[tuple[bool, bool]]) -> Answer:
    answers = {answer for _, answer in seen}
    return answers.pop() if len(answers) == 1 and any(content for content, _ in seen) else None


class Truths:
    """Truths of all modules, by path."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._sides: dict[int, str] = {}
        self._answers: dict[str, tuple[bool, list[Answer]]] = {}

    def begin(self, number: int, side: str) -> None:
        """Begins microbatch ``number`` of the probes, in which single numbers fall on this side."""
        self._sides[number] = side
        self._answers.clear()

    def see(self, number: int, path: str, content: bool, answer: bool) -> None:
        """Notes a truth that microbatch ``number`` of the probes read, and whether it follows content."""
        self._modules.setdefault(path, _Module()).passes.setdefault(number, []).append((content, answer))

    def known(self, path: str) -> bool:
        """Tell if truths of this module are answered one by one, or all alike."""
        return path in self._modules and (self._found(path)[0] or self.told(path, 0) is not None)

    def told(self, path: str, number: int) -> Answer:
        """Return the answer to the truth of this number, None for its own."""
        if path not in self._modules:
            return None
        counted, answers = self._found(path)
        if not counted:
            return answers[0]
        return answers[number] if number < len(answers) else None

    def _found(self, path: str) -> tuple[bool, list[Answer]]:
        """Tell if truths of a module are counted, and return the answers; found anew after a probe."""
        if path not in self._answers:
            module = self._modules[path]
            counted = module.counted(self._sides)
            self._answers[path] = counted, module.answers(counted)
        return self._answers[path]

    @property
    def decided(self) -> Mapping[str, bool]:
        """Modules of which a truth is told, and what."""
        found = {}
        for path in self._modules:
            told = [answer for answer in self._found(path)[1] if answer is not None]
            if told:
                found[path] = told[-1]
        return found
