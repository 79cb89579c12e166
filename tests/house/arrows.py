"""Finds circles and upward arrows among modules and among rooms."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from tests.house.layers import Drawing
from tests.house.modules import Code, When

Arrow = tuple[str, str]

ALWAYS: tuple[When, ...] = ("start", "typing", "call")


def between_modules(code: Code, when: Collection[When] = ALWAYS) -> set[Arrow]:
    return {(importer, target) for importer, target, moment in code.arrows if moment in when}


def between_rooms(code: Code, when: Collection[When] = ALWAYS) -> set[Arrow]:
    rooms = {name: module.room for name, module in code.modules.items()}
    pairs = {(rooms[importer], rooms[target]) for importer, target in between_modules(code, when)}
    return {(importer, target) for importer, target in pairs if importer != target}


def circles(arrows: Iterable[Arrow]) -> list[tuple[str, ...]]:
    """The largest sets in which everybody reaches everybody else (strongly connected components of more than one)."""
    targets: dict[str, set[str]] = defaultdict(set)
    for importer, target in arrows:
        targets[importer].add(target)
    reached = {name: _reached(name, targets) for name in list(targets)}
    found = {tuple(sorted(other for other in reached[name] if name in reached.get(other, ()))) for name in reached}
    return sorted(circle for circle in found if len(circle) > 1)


def upward(arrows: Iterable[Arrow], drawing: Drawing) -> list[Arrow]:
    """The arrows between rooms that go up in the drawing; arrows of rooms that have no place in it are left out."""
    ranks = [(importer, target, drawing.rank(importer), drawing.rank(target)) for importer, target in arrows]
    return sorted((importer, target) for importer, target, low, high in ranks if low and high and low < high)


def _reached(start: str, targets: dict[str, set[str]]) -> set[str]:
    """All that `start` leads to; `start` itself where a way leads back."""
    found: set[str] = set()
    ahead = list(targets.get(start, ()))
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead.extend(targets.get(name, ()))
    return found
