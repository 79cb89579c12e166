"""Reads the drawing of the house: the packages, the layers of each, and the rooms of each layer."""

import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TABLE = Path("tests/house/layers.toml")
ROOT = Path(__file__).resolve().parents[2]


class Drawing:
    """Orders the rooms from the highest layer to the lowest."""

    def __init__(self, text: str) -> None:
        """Reads the table.

        Args:
            text: what layers.toml holds.

        Raises:
            ValueError: if the table names a room twice.
        """
        table = tomllib.loads(text)
        self.packages: list[str] = table["packages"]
        self._presentation: list[str] = table["presentation"]
        # A door lies above all rooms of its package: whoever imports the package may run everything.
        self._ranks = {package: (number, len(table[package])) for number, package in enumerate(self.packages)}
        named = []
        for number, package in enumerate(self.packages):
            for height, layer in enumerate(reversed(table[package])):
                for room in (f"{package}.{name}" for names in layer.values() for name in names):
                    named.append(room)
                    self._ranks[room] = (number, height)
        twice = [room for room, count in Counter(named).items() if count > 1]
        if twice:
            raise ValueError(f"{TABLE} names {', '.join(twice)} more than once; leave the place where it belongs")

    @classmethod
    def of(cls, root: Path) -> "Drawing":
        """The drawing of a source tree; this one's, where that tree is older than its drawing."""
        own = root / TABLE
        return cls((own if own.is_file() else ROOT / TABLE).read_text(encoding="utf-8"))

    def rank(self, room: str) -> tuple[int, int] | None:
        """Package and height of a room, larger ones above smaller ones; None if it has no place."""
        return self._ranks.get(room)

    def presents(self, module: str) -> bool:
        """Tells whether a module shows things to people."""
        return any(f"{module}.".startswith(f"{folder}.") for folder in self._presentation)

    def without_place(self, rooms: Iterable[str]) -> list[str]:
        return sorted(set(rooms) - self._ranks.keys())

    def without_room(self, rooms: Iterable[str]) -> list[str]:
        """Returns the names of the table that the code does not have."""
        return sorted(self._ranks.keys() - set(rooms))
