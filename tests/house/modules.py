"""Reads the modules of a source tree and what each imports, from their text alone: nothing is executed."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

When = Literal["start", "typing", "call"]
"""When an import happens: as its module is imported, for type checkers alone, or in a call of a function."""

DOOR = "__init__.py"


@dataclass(frozen=True)
class Import:
    """One name that a module imports: `import name`, or `from name import member`."""

    name: str
    member: str
    when: When


@dataclass(frozen=True)
class Module:
    """One file of a package."""

    name: str
    path: Path
    """Relative to the root of the tree."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        package = self.name if self.is_door else self.name.rpartition(".")[0]
        return tuple(one for node, when in _import_nodes(self.tree, "start") for one in _names(node, when, package))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_door(self) -> bool:
        return self.path.name == DOOR

    @property
    def folder(self) -> str:
        return self.path.parent.as_posix()

    @property
    def package(self) -> str:
        return self.path.parts[0]

    @property
    def room(self) -> str:
        """The folder of the package in which the module lies or, of a module in the package itself, its own name."""
        return ".".join(self.name.split(".")[:2])


class Code:
    """The modules of some packages under a root."""

    def __init__(self, root: Path, packages: Sequence[str]) -> None:
        """Reads all Python files of the packages.

        Args:
            root: folder in which the packages lie. packages: their names.

        Raises:
            FileNotFoundError: if a package is not there.
        """
        self.root = root
        self.modules: dict[str, Module] = {}
        for package in packages:
            if not (root / package / DOOR).is_file():
                raise FileNotFoundError(f"{root} has no package {package}; give the root of a source tree")
            for file in sorted((root / package).rglob("*.py")):
                path = file.relative_to(root)
                name = ".".join(path.parent.parts if path.name == DOOR else path.with_suffix("").parts)
                self.modules[name] = Module(name, path, file.read_text(encoding="utf-8"))

    @cached_property
    def arrows(self) -> frozenset[tuple[str, str, When]]:
        """Holds who imports whom, and when.

        `from folder import module` is an arrow to the module. That Python runs the door of a folder before its modules is no
        arrow, or each package would be one circle.
        """
        found = set()
        for module in self.modules.values():
            for one in module.imports:
                target = self._module_of(one)
                if target and target != module.name:
                    found.add((module.name, target, one.when))
        return frozenset(found)

    def _module_of(self, one: Import) -> str:
        """The module that an import names, or "" where it is none of these packages."""
        name = f"{one.name}.{one.member}"
        while name and name not in self.modules:
            name = name.rpartition(".")[0]
        return name


def _import_nodes(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _import_nodes(child, "call")
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _import_nodes(ast.Module(child.body, []), "typing")
            yield from _import_nodes(ast.Module(child.orelse, []), when)
        elif not isinstance(child, ast.expr):  # which holds no statement
            yield from _import_nodes(child, when)


def _names(node: ast.Import | ast.ImportFrom, when: When, package: str) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, "", when) for alias in node.names)
        return
    name = node.module or ""
    if node.level:
        base = package.split(".")[: len(package.split(".")) - node.level + 1]
        name = ".".join([*base, name] if name else base)
    yield from (Import(name, alias.name, when) for alias in node.names)
