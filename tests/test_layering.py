"""Layers only point down: attest <- ledger <- dptrain, and the two lower ones live without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each package may import beside the standard library and itself.
ALLOWED = {
    "attest": {"cbor2", "cryptography", "numpy"},
    "ledger": {"attest", "cryptography", "sqlalchemy", "psycopg", "dp_accounting", "numpy"},
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


def imported_names(package: str) -> Iterator[tuple[Path, str]]:
    """Top-level names imported anywhere in a package: at module level, in functions and under TYPE_CHECKING."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                yield path.relative_to(ROOT), name.split(".")[0]


def run_without_torch(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK_TORCH + program], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_only_point_down(package: str) -> None:
    allowed = ALLOWED[package] | {package} | set(sys.stdlib_module_names)
    upward = [f"{path} imports {name}" for path, name in imported_names(package) if name not in allowed]
    assert upward == []


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
