"""A user's program is type-checked against the installed wheel: right ones pass, and a misspelt argument is found."""

import inspect
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import get_type_hints

import pytest

from dptrain import PrivateTraining
from dptrain.engine.options import OpenOptions
from publish.lock import ROOT

HEAD = """
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def collate(records: Sequence[Any]) -> dict[str, Tensor]:
    return {"x": torch.zeros(len(records), 4), "y": torch.zeros(len(records), dtype=torch.long)}


def per_example_loss(model: nn.Module, rows: Any) -> Tensor:
    return nn.functional.cross_entropy(model(rows["x"]), rows["y"], reduction="none")


model: nn.Module = nn.Linear(4, 2)
optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = [{"x": [0.0, 1.0, 2.0, 3.0], "y": 0}]
"""
"""Names that the README leaves to its reader."""

WRONG = {
    "an argument of own": ("target_epsilon=8", "target_epsilno=8", "target_epsilno"),
    "an argument of open, handed on by own": ("epochs=4", "epochs=4, progres=False", "progres"),
    "the type of an argument": ("target_epsilon=8", 'target_epsilon="8"', "target_epsilon"),
    "a method": ("private.backward(", "private.backwards(", "backwards"),
    "a name of the package": ("import PrivateTraining", "import PrivateTrainings", "PrivateTrainings"),
}


def of_the_readme() -> str:
    """Returns a program around the README's loop over data of one's own."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    (own,) = (block for block in blocks if "PrivateTraining.own(" in block)
    return HEAD + own


def test_the_options_that_are_handed_on_are_those_of_open() -> None:
    parameters = inspect.signature(PrivateTraining.open).parameters.values()
    named = {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert OpenOptions.__optional_keys__ == named and not OpenOptions.__required_keys__
    declared, hints = get_type_hints(OpenOptions), get_type_hints(PrivateTraining.open)
    assert {name: hint for name, hint in declared.items() if hint != hints[name]}.keys() <= {
        "accelerator"
    }  # Any, or Any | None


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, release_python: Path) -> Path:
    """The interpreter of an empty environment with the wheel of this tree, and torch as it is here."""
    base = tmp_path_factory.mktemp("typed")
    tree = base / "tree"
    for name in ("attest", "ledger", "dptrain"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    build = [release_python, "-m", "build", "--wheel", "--no-isolation", "--outdir", base, tree]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = base.glob("*.whl")
    assert {f"{name}/py.typed" for name in ("attest", "ledger", "dptrain")} <= set(zipfile.ZipFile(wheel).namelist())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base / "venv")], check=True)
    python = base / "venv" / "bin" / "python"
    (site,) = (base / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # As it stands on the path here, behind what was installed; an editable dptrain is on the path by its finder alone.
    here = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "here.pth").write_text("\n".join(dict.fromkeys(here)) + "\n", encoding="utf-8")
    found = subprocess.run([python, "-c", "import dptrain; print(dptrain.__file__)"], capture_output=True, text=True, cwd=base)
    assert found.stdout.startswith(str(site)), found.stdout + found.stderr
    return python


def checked(python: Path, program: str) -> subprocess.CompletedProcess[str]:
    folder = python.parents[2]
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--config-file", "", str(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)


@pytest.mark.slow
def test_the_program_of_the_readme_is_right_under_a_strict_type_checker(installed: Path) -> None:
    done = checked(installed, of_the_readme())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_what_is_misspelt_in_it_is_found(installed: Path, case: str) -> None:
    right, wrong, named = WRONG[case]
    program = of_the_readme()
    assert program.count(right) == 1
    done = checked(installed, program.replace(right, wrong))
    assert done.returncode == 1 and named in done.stdout and "Found 1 error" in done.stdout, done.stdout + done.stderr
