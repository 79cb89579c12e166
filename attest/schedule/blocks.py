"""Derives the blocks of a model under a policy, and the classes that may touch each: one rule for trainer and auditor.

A *block* is a set of coordinates that every class either may touch or may not. Blocks follow from the signed policy and the
stack that a header names, and from nothing else (docs/formats, "Blocks").
"""

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

from attest.errors import ValueRefused
from attest.policy import ClassRule, DepthRule
from attest.schedule import allocation
from attest.schedule.stack import EMBEDDINGS, HEAD, Division, Kind, Place, Stack, StackTensor, numbers, places_name

FROZEN = " (frozen)"
"""Ends the name of what no class may touch."""

UNTRAINED = " (untrained)"
"""Ends the name of what the operator does not train, whatever the policy lets a class do."""

PUBLIC = " (public)"
"""Ends the name of a block that public classes alone may touch."""

Label = tuple[str, tuple[int, ...]]
"""Names the part of a layer that a block is: ``heads`` or ``experts`` with their numbers, ``attention`` for what heads of
several blocks share, ``router``; an empty name for what no mask divides."""

UNDIVIDED: Label = ("", ())


@dataclass(frozen=True, slots=True)
class Piece:
    """Holds coordinates of one parameter that the same classes may touch.

    Attributes:
        owners: the owners whose coordinates these are, pairs of its division; None for the whole parameter.
        classes: in the policy's order; empty for what nobody may touch.
    """

    tensor: int
    coordinates: int
    owners: frozenset[tuple[int, int]] | None
    classes: tuple[str, ...]
    label: Label


@dataclass(frozen=True, slots=True)
class StackBlock:
    """Describes a block by name.

    Attributes:
        places: where its parameters lie, all of them at all of these.
        adapter: the adapter that they belong to, if the policy binds a class to it; else None.
        classes: the classes that may touch it, in the policy's order; empty for a frozen block.
    """

    name: str
    places: tuple[Place, ...]
    adapter: str | None
    classes: tuple[str, ...]
    pieces: tuple[Piece, ...]

    @property
    def coordinates(self) -> int:
        """Tells how many numbers the block has."""
        return sum(piece.coordinates for piece in self.pieces)

    @property
    def positions(self) -> tuple[int, ...]:
        """Returns the positions of its places, ascending, each once."""
        return tuple(sorted({position for _, position in self.places}))


def derive(classes: Sequence[ClassRule], stack: Stack) -> tuple[StackBlock, ...]:
    """Derives the blocks of a model under the classes of a policy: those that classes touch, in order of depth, then the
    others.

    Guarantee: Every coordinate of every parameter of the stack is in exactly one block. A class is among those of a block only
    if its depth rule permits every place of each parameter in it (every name, for name patterns), and its masks have every
    owner of each coordinate in it. A parameter that is not trained is in a block without classes. The result is a function of
    the depth rules, of which classes are public (names only), and of the stack.
    """
    bound = {rule.depth.adapter for rule in classes if rule.depth.adapter is not None}
    private = {rule.name for rule in classes if not rule.public}
    rules = [(rule, permission(rule.depth, stack)) for rule in classes]
    known: dict[tuple[tuple[Division, ...], tuple[str, ...]], tuple[_Cut, ...]] = {}
    groups: dict[tuple[tuple[int, ...], tuple[Place, ...], str, Label, tuple[str, ...]], list[Piece]] = {}
    frozen: dict[tuple[tuple[int, ...], tuple[Place, ...], str], list[Piece]] = {}
    for place, tensor in enumerate(stack.tensors):
        if not tensor.trained:
            left = Piece(place, tensor.coordinates, None, (), UNDIVIDED)
            frozen.setdefault((tensor.positions, tensor.places, UNTRAINED), []).append(left)
            continue
        adapter = tensor.adapter if tensor.adapter in bound else None
        permitted = [rule for rule, permits in rules if permits(tensor)]
        alike = tensor.divisions, tuple(rule.name for rule in permitted)
        if alike not in known:
            known[alike] = tuple(_cuts(tensor.divisions, permitted))
        for piece in _made(place, tensor, known[alike]):
            if piece.classes:
                key = (tensor.positions, tensor.places, adapter or "", piece.label, piece.classes)
                groups.setdefault(key, []).append(piece)
            else:
                frozen.setdefault((tensor.positions, tensor.places, FROZEN), []).append(piece)
    found = []
    taken: dict[str, int] = {}
    for (_, places, adapter_name, label, names), own in sorted(groups.items()):
        name = places_name(places) + (f" adapter {adapter_name}" if adapter_name else "")
        name += f" {label_name(label)}" if label != UNDIVIDED else ""
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}#{taken[name]}"
        if private.isdisjoint(names):
            name += PUBLIC
        found.append(StackBlock(name, places, adapter_name or None, names, tuple(own)))
    for (_, places, why), own in sorted(frozen.items()):
        found.append(StackBlock(places_name(places) + why, places, None, (), tuple(own)))
    return tuple(found)


def permission(rule: DepthRule, stack: Stack) -> Callable[[StackTensor], bool]:
    """Returns whether a depth rule permits a parameter of this stack, heads and experts aside.

    Guarantee: a band or a list of layers permits a parameter only if it permits every place that uses it; name patterns only if
    each of its names is matched by one of them; an adapter only if all its names lie in that adapter.
    """
    if rule.adapter is not None:
        return lambda tensor: tensor.adapter == rule.adapter
    if rule.patterns is not None:
        matches = re.compile("|".join(map(fnmatch.translate, rule.patterns))).match
        return lambda tensor: all(matches(name) for name in tensor.names)
    layers = {name: layers_of(rule, depth) for name, depth in stack.depths.items()}
    ends = {EMBEDDINGS: permits_embeddings(rule), HEAD: permits_head(rule)}
    return lambda tensor: all(
        ends[position] if position in ends else position in layers[tower] for tower, position in tensor.places
    )


def permits_embeddings(rule: DepthRule) -> bool:
    """Tells whether a band or a list of layers permits what lies below layer 0: as it says, else if its band begins at 0."""
    return rule.embeddings if rule.embeddings is not None else rule.band is not None and rule.band[0] == 0


def permits_head(rule: DepthRule) -> bool:
    """Tells whether a band or a list of layers permits what lies above the last layer: as said, else if its band ends at 1."""
    return rule.head if rule.head is not None else rule.band is not None and rule.band[1] == 1


def layers_of(rule: DepthRule, count: int) -> range | frozenset[int]:
    """Returns the layers that a band or a list of layers permits in a tower of `count` layers."""
    return band_layers(*rule.band, count) if rule.band is not None else frozenset(rule.layers or ())


def band_layers(start: Fraction, stop: Fraction, layers: int) -> range:
    """Returns the layers of a depth band: those whose interval [l/L, (l+1)/L) meets [start, stop)."""
    return range(math.floor(start * layers), math.ceil(stop * layers))


def mask(depth: DepthRule, kind: Kind) -> frozenset[int] | None:
    """Returns the heads or experts that a rule permits, None for all."""
    found = depth.heads if kind == "heads" else depth.experts
    return None if found is None else frozenset(found)


class _Cut(NamedTuple):
    """Cuts a piece off any parameter that is divided so: its weight, of the sum of all weights, and the rest of it."""

    weight: int
    whole: int
    owners: frozenset[tuple[int, int]] | None
    classes: tuple[str, ...]
    label: Label


def pieces(place: int, tensor: StackTensor, rules: Sequence[ClassRule]) -> Iterator[Piece]:
    """Cuts a parameter into what the same classes may touch; every coordinate lies in exactly one piece."""
    return _made(place, tensor, _cuts(tensor.divisions, rules))


def _made(place: int, tensor: StackTensor, cuts: Iterable[_Cut]) -> Iterator[Piece]:
    for cut in cuts:
        yield Piece(place, tensor.coordinates // cut.whole * cut.weight, cut.owners, cut.classes, cut.label)


def _cuts(divided: Sequence[Division], rules: Sequence[ClassRule]) -> Iterator[_Cut]:
    """Cuts any parameter that is divided so."""
    divisions = [d for d in divided if any(mask(rule.depth, d.kind) is not None for rule in rules)]
    if not divisions:
        yield _Cut(1, 1, None, tuple(rule.name for rule in rules), UNDIVIDED)
        return
    if len(divided) > 1:  # tied, and its uses divide it differently: needed whole by each of them
        names = tuple(r.name for r in rules if all(_permits(r, d.kind, _hull(d)) for d in divisions))
        yield _Cut(1, 1, None, names, (_shared(divisions[0].kind), ()))
        return
    division = divisions[0]
    if not division.owners:
        names = tuple(rule.name for rule in rules if mask(rule.depth, division.kind) is None)
        yield _Cut(1, 1, None, names, ("router", ()))
        return
    by_classes: dict[tuple[str, ...], list[tuple[int, int, int]]] = {}
    for entry in division.owners:
        names = tuple(rule.name for rule in rules if _permits(rule, division.kind, entry[:2]))
        by_classes.setdefault(names, []).append(entry)
    for names, entries in by_classes.items():
        own = None if len(by_classes) == 1 else frozenset((first, stop) for first, stop, _ in entries)
        weight = sum(weight for _, _, weight in entries)
        yield _Cut(weight, division.whole, own, names, _label(division, entries, names, rules))


def _permits(rule: ClassRule, kind: Kind, owners: tuple[int, int] | None) -> bool:
    own = mask(rule.depth, kind)
    if own is None or owners is None:
        return own is None
    return owners[1] - owners[0] <= len(own) and own.issuperset(range(*owners))


def _hull(division: Division) -> tuple[int, int] | None:
    """Returns all owners of any coordinate, None for what nobody owns."""
    return (min(e[0] for e in division.owners), max(e[1] for e in division.owners)) if division.owners else None


def _label(
    division: Division, entries: Iterable[tuple[int, int, int]], classes: tuple[str, ...], rules: Sequence[ClassRule]
) -> Label:
    alike = set(range(division.count))  # owners that these classes may touch, and no others
    for rule in rules:
        own = mask(rule.depth, division.kind)
        if own is None:
            alike = alike if rule.name in classes else set()
        else:
            alike = alike & own if rule.name in classes else alike - own
    touched: set[int] = set()
    for first, stop, _ in entries:
        touched.update(range(first, stop))
    return (division.kind, tuple(sorted(alike))) if touched <= alike else (_shared(division.kind), ())


def _shared(kind: Kind) -> str:
    return "attention" if kind == "heads" else "router"


def label_name(label: Label) -> str:
    """Names what of a layer a block is: ``heads 0-3``, ``attention``, ``experts 5``, ``router``, or nothing."""
    what, which = label
    return f"{what} {numbers(which)}" if which else what


def clip_share(block: StackBlock, budgets: tuple[int, int, int]) -> int:
    """Returns the weight w_l of a block that has noise: the largest among those of its places."""
    kinds = {EMBEDDINGS: "embeddings", HEAD: "head"}
    return allocation.share_of([kinds.get(position, "layers") for position in block.positions], budgets)


class Claim(Protocol):
    """Holds what somebody says of a block."""

    @property
    def name(self) -> str: ...

    @property
    def coordinates(self) -> int: ...

    @property
    def classes(self) -> tuple[str, ...]: ...


def check_blocks(classes: Sequence[ClassRule], derived: Sequence[StackBlock], claimed: Sequence[Claim]) -> None:
    """Holds the blocks that a header says against those that follow from the signed policy and the stack.

    Guarantee: on return names, order, coordinates and classes of all blocks are the derived ones.

    Raises:
        ValueRefused: code DEPTH_WIDER, a class is said to touch what its depth rule does not permit; DEPTH_NARROWER, a class is
            said not to touch what it permits; DEPTH_DROPPED, a block is left out; DEPTH_UNKNOWN, one follows from no rule;
            COORDINATES, one has another size; DEPTH_ORDER, they stand in another order.
    """
    told = [(block.name, block.coordinates, block.classes) for block in derived]
    said = [(block.name, block.coordinates, block.classes) for block in claimed]
    if told == said:
        return
    due, found = {row[0]: row for row in told}, {row[0]: row for row in said}
    both = [(due[name], found[name]) for name in found if name in due]
    _compare_classes(both)
    if found.keys() != due.keys():
        _compare_reach(classes, due, found)
    for name in due:
        if name not in found:
            raise ValueRefused("DEPTH_DROPPED", f"block {name} follows from policy and stack, and the header leaves it out")
    for name in found:
        if name not in due:
            raise ValueRefused("DEPTH_UNKNOWN", f"block {name} does not follow from policy and stack")
    for (name, size, _), (_, other, _) in both:
        if other != size:
            raise ValueRefused("COORDINATES", f"block {name} is said to have {other} coordinates, not {size}")
    raise ValueRefused("DEPTH_ORDER", "blocks stand in another order, or twice; expected the order of docs/formats")


_Row = tuple[str, int, tuple[str, ...]]


def _compare_classes(both: Sequence[tuple[_Row, _Row]]) -> None:
    """Compares the classes of blocks that have one name, what is due with what is said."""
    for (name, _, due), (_, _, found) in both:
        wider = next((own for own in found if own not in due), None)
        if wider is not None:
            raise ValueRefused("DEPTH_WIDER", f"class {wider} is said to touch {name}, which its signed depth does not permit")
    for (name, _, due), (_, _, found) in both:
        narrower = next((own for own in due if own not in found), None)
        if narrower is not None:
            sentence = f"class {narrower} is said not to touch {name}, which its signed depth permits"
            raise ValueRefused("DEPTH_NARROWER", sentence)


def _compare_reach(classes: Sequence[ClassRule], due: dict[str, _Row], found: dict[str, _Row]) -> None:
    """Compares how much each class may touch, where blocks have other names: another cut by heads, experts or an adapter."""
    first = next(name for name in (*due, *found) if (name in due) != (name in found))
    for rule in classes:
        expected, size = (sum(row[1] for row in rows.values() if rule.name in row[2]) for rows in (due, found))
        if size == expected:
            continue
        code, what = ("DEPTH_WIDER", "more") if size > expected else ("DEPTH_NARROWER", "less")
        if code == "DEPTH_NARROWER" and due.keys() > found.keys():
            code = "DEPTH_DROPPED"
        raise ValueRefused(
            code,
            f"class {rule.name} is said to touch {size} coordinates, {what} than the {expected} that its signed depth permits "
            f"in this stack (first block that differs: {first})",
        )
