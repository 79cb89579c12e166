"""Imports only point down, between packages and between the rooms of each; the two lower packages live without torch."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import known
from tests.house.layers import ROOT, TABLE, Drawing
from tests.house.modules import Code

# What each package may import beside the standard library and itself.
ALLOWED = {
    "attest": {"cryptography", "numpy"},
    "ledger": {"attest", "cryptography", "sqlalchemy", "psycopg", "dp_accounting", "numpy", "jinja2", "markupsafe"},
}

# Run in a fresh interpreter in which torch cannot be found, whatever is installed.
BLOCK_TORCH = """
import importlib, pkgutil, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch' (blocked)", name="torch")

sys.meta_path.insert(0, NoTorch())
"""


@pytest.fixture(scope="module")
def drawing() -> Drawing:
    return Drawing.of(ROOT)


@pytest.fixture(scope="module")
def product(drawing: Drawing) -> Code:
    return Code(ROOT, drawing.packages)


def run_without_torch(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK_TORCH + program], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_only_point_down(product: Code, package: str) -> None:
    """At module level, in functions and under TYPE_CHECKING."""
    allowed = ALLOWED[package] | {package} | set(sys.stdlib_module_names)
    modules = [module for module in product.modules.values() if module.package == package]
    named = {(module.path, one.name.split(".")[0]) for module in modules for one in module.imports}
    assert [f"{path} imports {name}" for path, name in sorted(named) if name not in allowed] == []


def test_every_room_has_its_place_in_the_drawing(product: Code, drawing: Drawing) -> None:
    rooms = {module.room for module in product.modules.values()}
    assert drawing.without_place(rooms) == [], f"give these rooms a place in {TABLE}"
    assert drawing.without_room(rooms) == [], f"these are in no package; take them off {TABLE}"


@pytest.mark.parametrize("kind", known.REMEDIES)
def test_no_circle_upward_arrow_or_full_folder_but_those_that_are_known(product: Code, drawing: Drawing, kind: str) -> None:
    """The list of known ones only becomes shorter: one that is listed and gone fails too."""
    differences = known.differences(kind, known.found(product, drawing)[kind], known.listed()[kind])
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_every_module_of_the_lower_layers_imports_where_torch_is_missing(package: str) -> None:
    done = run_without_torch(
        f"package = importlib.import_module({package!r})\n"
        "names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.')]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'): importlib.import_module(name)\n"
        "assert names, 'the package is empty'\n"
    )
    assert done.returncode == 0, done.stderr


def test_import_dptrain_does_not_import_torch() -> None:
    done = run_without_torch("import dptrain, dptrain.errors\nassert 'torch' not in sys.modules\n")
    assert done.returncode == 0, done.stderr


def test_the_command_line_starts_where_torch_is_missing() -> None:
    done = run_without_torch("from dptrain.cli import main\nsys.argv = ['dptrain', '--help']\nmain()\n")
    assert done.returncode == 0, done.stderr
    assert "account" in done.stdout


def test_private_training_without_torch_says_what_to_install() -> None:
    done = run_without_torch("from dptrain import PrivateTraining\n")
    assert done.returncode != 0
    assert "pip install 'dptrain[train]'" in done.stderr


def test_no_file_of_the_tests_is_named_like_a_module_of_the_standard_library() -> None:
    """Folders of tests come first on the path, of processes that are started from there too."""
    named = {path.stem: path for path in Path(__file__).parent.rglob("*.py") if path.name not in ("__init__.py", "__main__.py")}
    assert named.keys().isdisjoint(sys.stdlib_module_names), named.keys() & sys.stdlib_module_names


@pytest.mark.parametrize("package", ["attest", "ledger", "dptrain"])
def test_the_page_of_the_architecture_names_every_room(package: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = page.split(f"## The rooms of `{package}/`", 1)[1].split("\n## ", 1)[0]
    cells = " ".join(line for line in part.splitlines() if line.startswith("|"))
    named = {word.strip("/") for word in re.findall(r"`([a-z_0-9/]+)`", cells)}
    paths = [path.relative_to(ROOT / package) for path in (ROOT / package).rglob("*.py")]
    rooms = {path.stem for path in paths if not path.name.startswith("__") and path.parts[0] != "cli"}
    folders = {path.parent.name for path in paths if len(path.parts) > 1 and path.parent.parent.name != "cli"}
    assert rooms | folders <= named, f"not on the page: {sorted((rooms | folders) - named)}"
