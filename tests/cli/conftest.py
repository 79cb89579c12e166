"""Fixtures of the command line's tests: a directory in which commands are run, as a person would."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.commands import POLICY, Shell


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
