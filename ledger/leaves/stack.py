"""The layer stack of a header as plain values, and back: names in parts, each said once (docs/formats, "Blocks")."""

from collections.abc import Iterator
from typing import Any, Final

from attest.errors import AttestError
from attest.schedule.stack import HEAD, MAX_NAME, NO_TOWER, Division, Kind, Layers, Place, Stack, StackTensor, Tower
from ledger.errors import LeafRefused

_KINDS: Final[tuple[Kind, ...]] = ("heads", "experts")
_HEAD: Final = -2
"""Number by which the wire writes `HEAD`."""

MAX_DIVIDED: Final = 1 << 20
"""Heads and experts of all divisions together, and of all their entries: what a reader does stays in proportion to the leaf."""

MAX_PLACED: Final = 1 << 17
"""Places of all parameters together, likewise."""


def stack_row(stack: Stack) -> list[Any]:
    """Returns the arrays that a header says its stack in: words, towers, divisions, forms and parameters.

    A *word* is what stands between two dots of a name. A name is ``[k, word, ...]``: the first k words of the name before it,
    and then these. A *form* is all of a parameter but its names, and the places that its names do not tell. Words, divisions
    and forms stand in the order of their first use.
    """
    names = _Writer()
    order = {tower.name: place for place, tower in enumerate(stack.towers)}
    towers = [[tower.name, tower.root, [names.code(layer) for layer in tower.layers]] for tower in stack.towers]
    divisions: dict[Division, int] = {}
    forms: dict[tuple[Any, ...], int] = {}
    tensors = []
    for tensor in stack.tensors:
        inside = {stack.layer_of(name) for name in tensor.names}
        outside = tuple(place for place in tensor.places if place not in inside)
        own = tuple(divisions.setdefault(division, len(divisions)) for division in tensor.divisions)
        form = forms.setdefault((tensor.coordinates, tensor.trained, tensor.adapter, outside, own), len(forms))
        tensors.append([form, *map(names.code, tensor.names)])
    return [
        list(names.words),
        towers,
        [[_KINDS.index(d.kind), d.count, [list(entry) for entry in d.owners]] for d in divisions],
        [
            [size, trained, adapter, [[order.get(tower, -1), _HEAD if at == HEAD else at] for tower, at in places], [*own]]
            for size, trained, adapter, places, own in forms
        ],
        tensors,
    ]


def read_stack(value: Any) -> Stack:
    """Reads what `stack_row` wrote.

    Whether words, divisions and forms are in order, and all of them used, is for the caller to find out by writing it again.

    Raises:
        LeafRefused: code STACK, it is nothing of the kind.
    """
    words, tower_rows, division_rows, form_rows, tensor_rows = _array(value, 5)
    names = _Reader([_text(word) for word in _array(words)])
    towers = []
    for row in _array(tower_rows):
        name, root, layers = _array(row, 3)
        towers.append(Tower(_text(name), _text(root), tuple(names.name(layer) for layer in _array(layers))))
    try:
        divisions = [_division(row) for row in _array(division_rows)]
        if sum(item.count + sum(stop - first for first, stop, _ in item.owners) for item in divisions) > MAX_DIVIDED:
            raise LeafRefused("STACK", f"the stack has more than {MAX_DIVIDED} heads and experts")
        forms = [_form(row, towers, divisions) for row in _array(form_rows)]
        layers = Layers(towers)  # places inside them follow from names
        tensors: list[StackTensor] = []
        placed = 0
        for row in _array(tensor_rows):
            tensors.append(_tensor(row, names, forms, layers))
            placed += len(tensors[-1].places)
            if placed > MAX_PLACED:
                raise LeafRefused("STACK", f"the parameters of the stack lie at more than {MAX_PLACED} places together")
        return Stack(tuple(towers), tuple(tensors))
    except AttestError as error:
        raise LeafRefused("STACK", f"the stack in the header is refused: {error.sentence}") from error


def _division(row: Any) -> Division:
    kind, count, owners = _array(row, 3)
    entries = tuple(tuple(_array(entry, 3)) for entry in _array(owners))
    return Division(_KINDS[_index(kind, len(_KINDS))], count, entries)


def _form(row: Any, towers: list[Tower], divisions: list[Division]) -> tuple[Any, ...]:
    coordinates, trained, adapter, outside, own = _array(row, 5)
    places = tuple(_place(place, towers) for place in _array(outside))
    return coordinates, trained, adapter, places, tuple(divisions[_index(item, len(divisions))] for item in _array(own))


def _place(row: Any, towers: list[Tower]) -> Place:
    tower, position = _array(row, 2)
    if type(position) is not int or not _HEAD <= position < HEAD:
        raise LeafRefused("STACK", f"expected a position in a stack, got {position!r:.40}")
    name = NO_TOWER if tower == -1 and type(tower) is int else towers[_index(tower, len(towers))].name
    return name, HEAD if position == _HEAD else position


def _tensor(row: Any, names: "_Reader", forms: list[tuple[Any, ...]], layers: Layers) -> StackTensor:
    if not _array(row):
        raise LeafRefused("STACK", "expected a form and names of a parameter, got an empty array")
    form, *codes = row
    coordinates, trained, adapter, outside, divisions = forms[_index(form, len(forms))]
    own = tuple(names.name(code) for code in codes)
    inside = {place for place in map(layers.of, own) if place is not None}
    places = tuple(sorted({*outside, *inside})) if inside else outside
    return StackTensor(own, coordinates, places, adapter, divisions, trained)


class _Writer:
    """Writes names one after the other."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self._last: list[str] = []

    def code(self, name: str) -> list[int]:
        parts = name.split(".")
        common = next((k for k, (a, b) in enumerate(zip(parts, self._last, strict=False)) if a != b), None)
        k = min(len(parts), len(self._last)) if common is None else common
        self._last = parts
        return [k, *(self.words.setdefault(part, len(self.words)) for part in parts[k:])]


class _Reader:
    """Reads names one after the other."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._last: list[str] = []

    def name(self, code: Any) -> str:
        if type(code) is not list or not code:
            raise LeafRefused("STACK", f"expected a name in parts, got {code!r:.80}")
        k, *rest = code
        if _index(k, len(self._last) + 1) + len(rest) == 0:
            raise LeafRefused("STACK", "a name has no part")
        self._last = [*self._last[:k], *self._parts(rest)]
        name = ".".join(self._last)
        if len(name) > MAX_NAME:
            raise LeafRefused("STACK", f"a name has {len(name)} characters, expected at most {MAX_NAME}")
        return name

    def _parts(self, rest: list[Any]) -> Iterator[str]:
        return (self._words[_index(word, len(self._words))] for word in rest)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise LeafRefused("STACK", f"expected text, got {value!r:.40}")
    return value


def _array(value: Any, width: int | None = None) -> list[Any]:
    if type(value) is not list or (width is not None and len(value) != width) or (width is None and len(value) > 1 << 20):
        told = "an array" if width is None else f"an array of {width} items"
        raise LeafRefused("STACK", f"expected {told} in the stack, got {value!r:.80}")
    return value


def _index(value: Any, size: int) -> int:
    if type(value) is not int or not 0 <= value < size:
        raise LeafRefused("STACK", f"expected an index below {size} in the stack, got {value!r:.40}")
    return value
