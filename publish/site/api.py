"""Writes the pages of the API: for each door its public names, whose docstrings mkdocstrings reads without running them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

DOORS: Final[dict[str, tuple[str, ...]]] = {
    "dptrain": ("dptrain", "dptrain.gradients", "dptrain.noise", "dptrain.tasks"),
    "ledger": ("ledger.audit", "ledger.release", "ledger.accountants", "ledger.log", "ledger.leaves", "ledger.report"),
    "attest": ("attest.keys", "attest.corpus", "attest.policy", "attest.registry", "attest.gate", "attest.schedule"),
}
"""Doors that programs of others come in by; those of the machinery (`ledger.replay`) are left to its readers."""

SMALL: Final[dict[str, tuple[str, ...]]] = {
    "dptrain": (
        "dptrain.integrations.transformers.PrivateTrainer", "dptrain.integrations.trl.PrivateSFTTrainer",
        "dptrain.noise.correlated.toeplitz", "dptrain.noise.correlated.sensitivity", "dptrain.noise.correlated.blt",
        "dptrain.noise.correlated.dense", "dptrain.errors",
    ),
    "ledger": ("ledger.merkle", "ledger.note", "ledger.errors"),
    "attest": (
        "attest.cbor.encode", "attest.cbor.decode", "attest.sign1.sign", "attest.sign1.verify", "attest.descriptor",
        "attest.errors",
    ),
}  # fmt: skip
"""Names beside the doors that programs of others use: modules, or single functions."""


class NotFound(LookupError):
    """A public name is defined nowhere that can be read without running it."""


def names_of(door: str) -> dict[str, str]:
    """Returns the public names of a door, each with where it is defined. Raises NotFound."""
    tree = ast.parse(_file(door).read_text(encoding="utf-8"))
    public = next((_texts(node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_all(node)), [])
    return {name: defined(door, name) for name in public if not name.startswith("__")}


def defined(module: str, name: str) -> str:
    """Returns the path of the class, function or value that a module offers under a name, through the imports of doors."""
    if (_file(module).parent / name).is_dir() or (_file(module).parent / f"{name}.py").is_file():
        return f"{module}.{name}"
    tree = ast.parse(_file(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("attest", "ledger", "dptrain"):
            for one in node.names:
                if (one.asname or one.name) == name:
                    return defined(node.module, one.name)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return f"{module}.{name}"
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(one, ast.Name) and one.id == name for target in targets for one in ast.walk(target)):
            return f"{module}.{name}"
    raise NotFound(f"{module} offers {name}, which is defined nowhere that can be read")


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def _texts(node: ast.expr) -> list[str]:
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def _file(module: str) -> Path:
    place = ROOT.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def pages() -> dict[str, str]:
    """Returns a page for each package, by its path in the site."""
    return {f"reference/api-{package}.md": "\n".join(_page(package)) for package in DOORS}


def _page(package: str) -> Iterator[str]:
    yield from (f"# API of `{package}`", "")
    for door in DOORS[package]:
        yield from (f"## {door}", "")
        for path in dict.fromkeys(names_of(door).values()):
            yield from _entry(path, level=3)
    yield from ("## Beside the doors", "")
    for path in SMALL[package]:
        yield from _entry(path, level=3)


def _entry(path: str, *, level: int) -> Iterator[str]:
    yield f"::: {path}"
    yield from ("    options:", f"      heading_level: {level}", "")
