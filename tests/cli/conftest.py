"""A directory in which the commands are run, as a person would: everything by file name, nothing by library call."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dptrain.cli.app import app

# The public class is drawn in every step: its epsilon has a closed form, which keeps these tests fast.
POLICY = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 20
normalizer = 4
epoch_steps = 10
window_steps = 5
redo_steps = 10
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = 0.1
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "public"
clip_norm = 0.5
noise_multiplier = 0.8
sampling_rate = 1.0
depth = { from = 0.0, to = 1.0 }
"""


@dataclass(frozen=True)
class Shell:
    """Runs `dptrain` in one directory."""

    directory: Path

    def run(self, *arguments: str, code: int = 0) -> Result:
        """Run a command and require its exit code."""
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run a command with `--json` and read the one object that it prints."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the directory."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """An empty directory."""
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


@pytest.fixture
def policy(shell: Shell) -> Path:
    """An unsigned policy alone."""
    return shell.write("policy.toml", POLICY)


@pytest.fixture
def corpus(shell: Shell) -> Callable[..., None]:
    """Keys, registry, signed policy and a corpus of five notes; `corpus()` signs the notes as alice."""
    shell.run("attest", "keygen", "alice")
    shell.run("attest", "keygen", "owner")
    shell.write("policy.toml", POLICY)
    shell.run("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive")
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    shell.write("corpus/notes.jsonl", "".join(f'{{"text": "note {index}"}}\n' for index in range(5)))

    def sign(*options: str) -> None:
        bounds = options or ("--policy", "policy.cose", "--owner-key", "owner.pub")
        shell.run("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", *bounds)

    return sign
