"""Compares what the house has of circles, upward arrows and full folders with the list of those that are known."""

import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from tests.house import arrows
from tests.house.layers import Drawing
from tests.house.measures import folders_above
from tests.house.modules import Code

LIST = Path(__file__).parent / "known.toml"

Names = Collection[str]
"""The modules or rooms of a circle; of an upward arrow or a folder, that alone."""

REMEDIES = {
    "circles": "move what they share into a module below them, or hand over values in place of the whole object",
    "room_circles": "move what they share into a room below them",
    "upward": "move what is imported to a room below both, or the importer up; if the plan is wrong, change layers.toml",
    "full_folders": "open a folder for what belongs together, or put files of one idea together",
}


def listed() -> dict[str, list[Names]]:
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return {kind: [{one} if isinstance(one, str) else set(one) for one in table[kind]] for kind in REMEDIES}


def found(code: Code, drawing: Drawing) -> dict[str, list[Names]]:
    pairs = arrows.between_rooms(code)
    return {
        "circles": list(arrows.circles(arrows.between_modules(code))),
        "room_circles": list(arrows.circles(pairs)),
        "upward": [{f"{importer} -> {target}"} for importer, target in arrows.upward(pairs, drawing)],
        "full_folders": [{folder} for folder in folders_above(code.modules.values())],
    }


def differences(kind: str, now: Iterable[Names], known: Iterable[Names]) -> list[str]:
    """Sentences on what is new, and on what is listed and has gone or become smaller; none if both are equal.

    Args:
        kind: a key of `REMEDIES`. now: what the code has. known: what the list has.
    """
    now, known = [frozenset(one) for one in now], [frozenset(one) for one in known]
    new = [one for one in now if not any(one <= old for old in known)]
    sentences = [f"new in {kind}: {_spelled(one)}; {REMEDIES[kind]}" for one in new]
    for old in known:
        left = [one for one in now if one <= old]
        if not left:
            sentences.append(f"gone from {kind}: {_spelled(old)}; take it off {LIST.name}, so that it cannot come back")
        elif old not in left:
            rest = " and ".join(map(_spelled, left))
            sentences.append(f"smaller in {kind}: of {_spelled(old)} is left {rest}; write that in its place in {LIST.name}")
    return sentences


def _spelled(names: Names) -> str:
    return ", ".join(sorted(names))
