"""The layer stack of a model by name: its towers, their layers, and every parameter with the places that use it.

This is what a ledger's header says of a model. `attest.schedule.blocks` makes blocks of it under a signed policy, for the
trainer, who has the model, and for an auditor, who has the header alone (docs/formats, "Blocks").
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

from attest.errors import ValueRefused

SCHEMA: Final = "dptrain.depth/1"
"""Name of the form in which a header says its stack, and of the rule by which a policy selects blocks of it."""

EMBEDDINGS: Final = -1
"""Position of everything below layer 0."""

HEAD: Final = 1 << 30
"""Position of everything above the last layer."""

NO_TOWER: Final = ""
"""Tower of what belongs to none: everything in a model of one stack, and what lies outside the towers of others."""

MAX_NAME: Final = 1024
"""Characters of a parameter's name."""

MAX_OWNERS: Final = 65536
"""Heads of an attention, or experts of a mixture."""

Place = tuple[str, int]
"""A tower and a position in it: `EMBEDDINGS`, the index of a layer, or `HEAD`."""

Kind = Literal["heads", "experts"]


@dataclass(frozen=True, slots=True)
class Tower:
    """One stack of a model.

    Attributes:
        name: `NO_TOWER` where the model is one stack.
        root: prefix of the names of all its modules; empty where the model is one stack.
        layers: names of its layers in order of depth, the input side first.
    """

    name: str
    root: str
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """Divides the coordinates of a parameter among heads or experts.

    Attributes:
        count: how many of them there are in this attention, or in this mixture.
        owners: `(first, stop, weight)`: owners ``first`` to ``stop`` - 1 together own this part of the coordinates, relative to
            the sum of all weights. Ascending, each pair once, weights without a common factor. Empty for what decides between
            experts (their router): nobody owns it.
    """

    kind: Kind
    count: int
    owners: tuple[tuple[int, int, int], ...]

    def __post_init__(self) -> None:
        if self.kind not in ("heads", "experts"):
            raise ValueRefused("STACK", f"coordinates are divided by {self.kind!a:.40}, expected heads or experts")
        if type(self.count) is not int or not 1 <= self.count <= MAX_OWNERS:
            raise ValueRefused("STACK", f"there are {self.count!a:.40} {self.kind}, expected 1 to {MAX_OWNERS}")
        last = (-1, -1)
        for entry in self.owners:
            if type(entry) is not tuple or len(entry) != 3 or any(type(item) is not int for item in entry):
                raise ValueRefused("STACK", f"owners are {entry!a:.60}, expected (first, stop, weight)")
            first, stop, weight = entry
            if not (0 <= first < stop <= self.count and weight >= 1 and (first, stop) > last):
                raise ValueRefused("STACK", f"owners {entry} of {self.count} {self.kind} are out of range or out of order")
            last = (first, stop)
        if self.owners and math.gcd(*(weight for _, _, weight in self.owners)) != 1:
            raise ValueRefused("STACK", "weights of owners have a common factor; divide by it")

    @property
    def whole(self) -> int:
        """Returns the sum of the weights; 1 for what nobody owns."""
        return sum(weight for _, _, weight in self.owners) or 1


@dataclass(frozen=True, slots=True)
class StackTensor:
    """A parameter of a model.

    Attributes:
        adapter: the adapter that all its names lie in; None for a parameter of the model itself.
        divisions: how its coordinates fall to heads or experts; of a tied parameter whose uses do not agree one for each use,
            and it is then needed whole by each. Empty for an ordinary parameter.
        trained: whether the operator trains it where the policy lets a class do so.
    """

    names: tuple[str, ...]
    coordinates: int
    places: tuple[Place, ...]
    adapter: str | None = None
    divisions: tuple[Division, ...] = ()
    trained: bool = True

    @property
    def positions(self) -> tuple[int, ...]:
        """Returns the positions of its places, ascending, each once."""
        return tuple(sorted({position for _, position in self.places}))


class Layers:
    """The layers of a model's towers, found by the names of parameters."""

    def __init__(self, towers: Iterable[Tower]) -> None:
        """Takes the towers, in the order of the stack."""
        self._places = {layer: (tower.name, place) for tower in towers for place, layer in enumerate(tower.layers)}

    def of(self, name: str) -> Place | None:
        """Returns the layer that a parameter of this name lies in, None if it lies in none.

        That is the first layer in order of depth whose name is that of the module that holds the parameter, or of one around.
        The layer of the empty name is the model itself, which is around all.
        """
        found = self._places.get("")
        end = name.find(".")
        while end >= 0:
            place = self._places.get(name[:end])
            if place is not None and (found is None or place[1] < found[1]):
                found = place
            end = name.find(".", end + 1)
        return found


@dataclass(frozen=True, slots=True)
class Stack:
    """The towers of a model and its parameters, ascending by name.

    Guarantee: A parameter whose name lies below a layer is placed in that layer, and one whose names all do, and that belongs
    to no adapter, is placed nowhere else. What lies outside the layers is placed at `EMBEDDINGS`, at `HEAD` or at both, unless
    an adapter has it. No name stands twice. Two models of the same parameters have one stack, in whatever order these came.

    Raises:
        ValueRefused: code STACK, with the parameter that is not so.
    """

    towers: tuple[Tower, ...]
    tensors: tuple[StackTensor, ...]
    _layers: "Layers" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        depths = self._check_towers()
        object.__setattr__(self, "_layers", Layers(self.towers))
        seen: set[str] = set()
        last = ""
        if not self.tensors:
            raise ValueRefused("STACK", "the stack has no parameter, expected one at least")
        for tensor in self.tensors:
            self._check(tensor, depths)
            if not seen.isdisjoint(tensor.names) or any(a >= b for a, b in pairwise((last, *tensor.names))):
                raise ValueRefused("STACK", f"names of parameter {tensor.names[0]!a:.120} stand twice, or are not ascending")
            seen.update(tensor.names)
            last = tensor.names[0]

    @property
    def depths(self) -> dict[str, int]:
        """Returns the number of layers per tower."""
        return {tower.name: len(tower.layers) for tower in self.towers}

    @property
    def names(self) -> frozenset[str]:
        """Returns all names of all parameters."""
        return frozenset(name for tensor in self.tensors for name in tensor.names)

    def layer_of(self, name: str) -> Place | None:
        """Returns the layer that a parameter of this name lies in, None if it lies in none (`Layers.of`)."""
        return self._layers.of(name)

    def _check_towers(self) -> dict[str, int]:
        if not self.towers or len({tower.name for tower in self.towers}) != len(self.towers):
            raise ValueRefused("STACK", "the stack has no tower, or two of one name")
        layers = [layer for tower in self.towers for layer in tower.layers]
        if len(set(layers)) != len(layers) or not all(tower.layers for tower in self.towers):
            raise ValueRefused("STACK", "a tower has no layer, or a layer stands twice")
        for name in (*layers, *(tower.name for tower in self.towers), *(tower.root for tower in self.towers)):
            if type(name) is not str or len(name) > MAX_NAME:
                raise ValueRefused("STACK", f"a layer or tower is named {name!a:.80}, expected at most {MAX_NAME} characters")
        if "" in layers and len(layers) > 1:
            raise ValueRefused("STACK", "a layer has no name: such a one is the whole model, and stands alone")
        return self.depths

    def _check(self, tensor: StackTensor, depths: dict[str, int]) -> None:
        if not tensor.names or any(type(name) is not str or not 0 < len(name) <= MAX_NAME for name in tensor.names):
            sentence = f"a parameter is named {tensor.names!a:.80}, expected names of 1..{MAX_NAME} characters"
            raise ValueRefused("STACK", sentence)
        told = f"parameter {tensor.names[0]!a:.120}"
        if type(tensor.coordinates) is not int or not 0 <= tensor.coordinates < 1 << 63 or type(tensor.trained) is not bool:
            raise ValueRefused("STACK", f"{told} has {tensor.coordinates!a:.40} coordinates, expected a number of them")
        if tensor.adapter is not None and (type(tensor.adapter) is not str or not tensor.adapter):
            raise ValueRefused("STACK", f"{told} is of the adapter {tensor.adapter!a:.60}, expected its name or nothing")
        for division in tensor.divisions:
            if tensor.coordinates % division.whole:
                raise ValueRefused("STACK", f"{told}: {tensor.coordinates} coordinates do not fall to {division.whole} parts")
        places = tensor.places
        if not places or any(a >= b for a, b in pairwise(places)):
            raise ValueRefused("STACK", f"{told} has the places {places!a:.80}, expected them ascending, one at least")
        inside = [self.layer_of(name) for name in tensor.names]
        if not set(places).issuperset(place for place in inside if place is not None):
            raise ValueRefused("STACK", f"{told} lies in a layer by its name and is placed at {places_name(places)}")
        for place in places:
            tower, position = place
            if position in (EMBEDDINGS, HEAD):
                known = tower == NO_TOWER or tower in depths
                fits = tensor.adapter is not None or None in inside
            else:
                known = 0 <= position < depths.get(tower, 0)
                fits = tensor.adapter is not None or place in inside
            if not known:
                raise ValueRefused("STACK", f"{told} is placed at {places_name([place])}, which the stack does not have")
            if not fits:
                raise ValueRefused("STACK", f"{told} is placed at {places_name([place])}, where its names do not lie")


def places_name(places: Sequence[Place]) -> str:
    """Names the block that lies at these places: ``layer.3``, ``embeddings+head``, ``layer.0-11``, ``vision.layer.3``."""
    parts = []
    for name in dict.fromkeys(tower for tower, _ in places):
        positions = sorted(position for tower, position in places if tower == name)
        inner = [position for position in positions if position not in (EMBEDDINGS, HEAD)]
        run = len(inner) > 2 and inner[-1] - inner[0] == len(inner) - 1
        shown = [position_name(p) for p in positions if not run or p not in inner]
        if run:
            shown.insert(int(EMBEDDINGS in positions), f"layer.{inner[0]}-{inner[-1]}")
        parts += [f"{name}.{part}" if name else part for part in shown]
    return "+".join(parts)


def position_name(position: int) -> str:
    """Names a position: ``embeddings``, ``layer.3`` or ``head``."""
    if position == EMBEDDINGS:
        return "embeddings"
    return "head" if position == HEAD else f"layer.{position}"


def numbers(values: Iterable[int]) -> str:
    """Writes a set of numbers (heads, experts): ``0-3``, ``0+2-4``; runs of numbers, cut short where there are many."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    total = sum(b - a + 1 for a, b in runs)
    return "+".join(shown) if len(shown) <= 12 else "+".join([*shown[:10], f"... ({total})"])
