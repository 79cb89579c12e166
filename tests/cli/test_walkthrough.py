"""The walkthrough is run: every `sh` block of the page, in order, by bash, and its outputs are compared with those shown."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "walkthrough.md"
TORCH = "<!-- what follows needs torch -->"


@dataclass(frozen=True)
class Block:
    """Commands of one block, the exit code that its last line states, and the output that is shown below it."""

    commands: str
    code: int
    shown: str | None


def blocks(text: str) -> list[Block]:
    """The `sh` blocks of a page, each with the `text` block that follows it directly."""
    found = []
    for match in re.finditer(r"^```sh\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL):
        stated = re.search(r"# exit code (\d)\n\Z", match[1])
        found.append(Block(match[1], int(stated[1]) if stated else 0, match[2]))
    return found


def pattern(shown: str) -> re.Pattern[str]:
    """A shown output as a pattern: a line `...` is any lines, `...` in a line anything, blanks of tables any blanks."""
    parts = []
    for line in shown.splitlines():
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            words = [r"[^\n]*".join(re.escape(part) for part in word.split("...")) for word in line.split()]
            parts.append(r"[ ]*" + r"[ ]+".join(words) + r"[ ]*\n")
    return re.compile("".join(parts))


class Terminal:
    """A bash that keeps its directory from block to block."""

    def __init__(self, directory: Path, *, torch: bool) -> None:
        shim = directory / "bin" / "dptrain"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m dptrain "$@"\n')
        shim.chmod(0o755)
        (shim.parent / "python").symlink_to(sys.executable)
        hidden = [] if torch else [str(directory / "without")]
        if not torch:
            (directory / "without").mkdir()
            (directory / "without" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
        self.directory = directory / "work"
        self.directory.mkdir()
        self.state = directory / "pwd"
        self.environment = {
            **{name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS", "VIRTUAL_ENV") if name in os.environ},
            "PATH": f"{shim.parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([*hidden, str(ROOT), *filter(None, sys.path)]),
            "PYTHONUTF8": "1",
            "HOME": str(directory),
            "COLUMNS": "160",
        }

    def run(self, block: Block) -> str:
        """Run a block; requires the exit code that it states, and returns what it printed."""
        stop = "set -e\n" if block.code == 0 else ""
        script = f"trap 'pwd > {self.state}' EXIT\n{stop}{block.commands}"
        done = subprocess.run(
            [shutil.which("bash"), "--norc", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == block.code, f"{block.commands}\nexit code {done.returncode}\n{done.stdout}"
        self.directory = Path(self.state.read_text().strip())
        return done.stdout


def walk(text: str, directory: Path, *, torch: bool) -> Terminal:
    """Run all blocks of a text and compare."""
    terminal = Terminal(directory, torch=torch)
    for block in blocks(text):
        printed = terminal.run(block)
        if block.shown is not None:
            assert pattern(block.shown).fullmatch(printed), f"{block.commands}\nshown:\n{block.shown}\nprinted:\n{printed}"
    return terminal


@pytest.mark.slow
def test_every_command_up_to_the_admitted_corpus_works_without_torch(tmp_path):
    text = PAGE.read_text(encoding="utf-8").split(TORCH)[0]
    assert len(blocks(text)) > 12
    terminal = walk(text, tmp_path, torch=False)
    assert (terminal.directory.parent / "engineer" / "corpus" / "notes.jsonl.attest").is_file()


@pytest.mark.slow
def test_every_command_of_the_page_works_up_to_the_auditors_verdict(tmp_path):
    terminal = walk(PAGE.read_text(encoding="utf-8"), tmp_path, torch=True)
    assert "FULL" in (terminal.directory.parent / "auditor" / "report.html").read_text(encoding="utf-8")
    assert (terminal.directory / "withdrawn.tlog-proof").read_text(encoding="utf-8").startswith("c2sp.org/tlog-proof")


@pytest.mark.parametrize(
    ("shown", "printed", "matches"),
    [
        ("a b\n", "a   b\n", True),
        ("a b\n", "a c\n", False),
        ("id ...\n", "id 5f1c\n", True),
        ("id ...\n", "id 5f1c\nmore\n", False),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("a\n...\nz\n", "a\nz\n", True),
        ("a\n...\n", "b\n", False),
    ],
)
def test_shown_outputs_are_compared_line_by_line(shown, printed, matches):
    assert bool(pattern(shown).fullmatch(printed)) is matches
