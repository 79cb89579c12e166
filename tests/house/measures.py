"""Counts the state of the house: size, circles, upward arrows, rooms too large or too small, presentation, surface, prose."""

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.house import arrows, prose
from tests.house.layers import Drawing
from tests.house.modules import Code, Module

ROOMS_OF_A_FOLDER = 12
"""Files of one folder, its door not counted."""
SHORT, LONG = 60, 600
"""Lines of a file below and above which it has to say why."""


@dataclass(frozen=True)
class Found:
    """One number and, where it counts things, which they are; None where it cannot be told of this part of the product."""

    value: int | float | None
    names: tuple[str, ...] = ()

    @classmethod
    def these(cls, names: Iterable[str]) -> "Found":
        listed = tuple(names)
        return cls(len(listed), listed)


class Part:
    """Some packages of a source tree, and what is counted of them."""

    def __init__(self, code: Code, drawing: Drawing, packages: Collection[str]) -> None:
        self.code, self.drawing, self.packages = code, drawing, packages
        self.modules = [module for module in code.modules.values() if module.package in packages]

    @cached_property
    def lines(self) -> int:
        return sum(module.lines for module in self.modules)

    def rooms(self) -> int:
        return len({room for pair in self.room_arrows for room in pair})

    @cached_property
    def room_arrows(self) -> set[arrows.Arrow]:
        return self._inside(arrows.between_rooms(self.code))

    def circles(self, *when: str) -> Found:
        """Circles between modules. With nothing named: by imports of all kinds."""
        found = arrows.circles(self._inside(arrows.between_modules(self.code, when or arrows.ALWAYS)))
        return Found.these(map(", ".join, found))

    def room_circles(self) -> Found:
        return Found.these(map(", ".join, arrows.circles(self.room_arrows)))

    def upward(self) -> Found:
        return Found.these(f"{importer} -> {target}" for importer, target in arrows.upward(self.room_arrows, self.drawing))

    def without_place(self) -> Found:
        return Found.these(self.drawing.without_place(module.room for module in self.modules))

    def full_folders(self) -> Found:
        return Found.these(f"{folder} ({files})" for folder, files in folders_above(self.modules).items())

    def short_files(self) -> Found:
        return self._files(lambda module: module.lines < SHORT and not module.is_door)

    def short_doors(self) -> Found:
        return self._files(lambda module: module.lines < SHORT and module.is_door)

    def long_files(self) -> Found:
        return self._files(lambda module: module.lines > LONG)

    def with_one_importer(self) -> Found:
        """Modules that exactly one other module of all packages imports, doors among both."""
        importers = Counter(target for _, target in arrows.between_modules(self.code))
        return Found.these(module.name for module in self.modules if importers[module.name] == 1)

    def presentation(self) -> Found:
        """Percent of the lines, and the lines of each folder that is presentation."""
        shown: Counter[str] = Counter()
        for module in self.modules:
            if self.drawing.presents(module.name):
                shown[module.folder] += module.lines
        share = round(100 * shown.total() / self.lines, 1) if self.lines else None
        return Found(share, tuple(f"{folder}: {lines}" for folder, lines in sorted(shown.items())))

    def in_several_folders(self) -> Found:
        folders = defaultdict(set)
        for module in self.modules:
            if not module.path.stem.startswith("__"):
                folders[module.path.stem].add(module.folder)
        return Found.these(f"{name}: {', '.join(sorted(where))}" for name, where in sorted(folders.items()) if len(where) > 1)

    def public_methods(self) -> Found:
        """Methods and properties of `PrivateTraining`."""
        methods = self._private_training()
        return Found.these(name for name in methods if not name.startswith("_")) if methods else Found(None)

    def parameters_of_open(self) -> Found:
        method = self._private_training().get("open")
        if method is None:
            return Found(None)
        names = [one.arg for one in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)]
        return Found.these(names[1:])

    def _private_training(self) -> dict[str, ast.FunctionDef]:
        for module in self.modules:
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and node.name == "PrivateTraining":
                    return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
        return {}

    def words_a_sentence(self) -> Found:
        """Counts all pages; only the whole product has pages."""
        read = {page: prose.sentences(page.read_text(encoding="utf-8")) for page in prose.pages(self.code.root)}
        counts = [words for words_of_page in read.values() for words in words_of_page]
        if len(self.packages) < len(self.drawing.packages) or not counts:
            return Found(None)
        return Found(_mean(counts), tuple(f"{page.name}: {_mean(words)}" for page, words in read.items() if words))

    def _files(self, holds: Callable[[Module], bool]) -> Found:
        return Found.these(f"{module.path} ({module.lines})" for module in self.modules if holds(module))

    def _inside(self, pairs: Iterable[arrows.Arrow]) -> set[arrows.Arrow]:
        return {pair for pair in pairs if all(name.split(".")[0] in self.packages for name in pair)}


def folders_above(modules: Iterable[Module], files: int = ROOMS_OF_A_FOLDER) -> dict[str, int]:
    """The folders with more than so many files, their doors not counted, and how many each has."""
    folders = Counter(module.folder for module in modules if not module.is_door)
    return {folder: count for folder, count in sorted(folders.items()) if count > files}


@dataclass(frozen=True)
class Measure:
    """One line of the table: its key in JSON, what it says, what it shall become, and how it is counted."""

    key: str
    label: str
    aim: str
    count: Callable[[Part], Found]


MEASURES = (
    Measure("lines", "lines", "", lambda part: Found(part.lines)),
    Measure("files", "files", "", lambda part: Found(len(part.modules))),
    Measure("rooms", "rooms that arrows join", "", lambda part: Found(part.rooms())),
    Measure("room_arrows", "arrows between rooms", "", lambda part: Found(len(part.room_arrows))),
    Measure("circles", "circles between modules", "0", lambda part: part.circles()),
    Measure("circles_start", "  by imports at start alone", "0", lambda part: part.circles("start")),
    Measure("circles_typing", "  and under TYPE_CHECKING", "0", lambda part: part.circles("start", "typing")),
    Measure("circles_call", "  by start and inside functions", "0", lambda part: part.circles("start", "call")),
    Measure("room_circles", "circles between rooms", "0", Part.room_circles),
    Measure("upward", "upward arrows between rooms", "0", Part.upward),
    Measure("without_place", "rooms without a place", "0", Part.without_place),
    Measure("full_folders", f"folders above {ROOMS_OF_A_FOLDER} files", "0", Part.full_folders),
    Measure("short_files", f"files under {SHORT} lines, no doors", "<= 30", Part.short_files),
    Measure("short_doors", f"doors under {SHORT} lines", "", Part.short_doors),
    Measure("long_files", f"files above {LONG} lines", "", Part.long_files),
    Measure("one_importer", "modules with one importer", "<= 60", Part.with_one_importer),
    Measure("presentation", "presentation, % of lines", "<= 20", Part.presentation),
    Measure("methods", "public names of PrivateTraining", "~ 10", Part.public_methods),
    Measure("parameters", "parameters of open", "<= 12", Part.parameters_of_open),
    Measure("questions", "docstrings that ask", "", lambda part: Found.these(prose.questions(part.modules))),
    Measure("sentence", "words a sentence of docs", "", Part.words_a_sentence),
    Measure("several_folders", "names in several folders", "", Part.in_several_folders),
)


def measured(root: Path) -> dict[str, dict[str, Found]]:
    """All measures of a source tree, of the whole product and of each package alone."""
    drawing = Drawing.of(root)
    code = Code(root, drawing.packages)
    parts = {"product": drawing.packages, **{package: [package] for package in drawing.packages}}
    return {
        name: {measure.key: measure.count(Part(code, drawing, packages)) for measure in MEASURES}
        for name, packages in parts.items()
    }


def _mean(counts: list[int]) -> float:
    return round(sum(counts) / len(counts), 1)
