"""Completion as bash does it: the script that dptrain prints, sourced by a bash, asked for real lines."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash")

ASK = """
source <(dptrain --show-completion)
ask() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
    _dptrain_completion dptrain
    printf '%s\\n' "${COMPREPLY[@]}"
}
"""


@pytest.fixture
def environment(shell) -> dict[str, str]:
    """An environment in which `dptrain` is a command."""
    shim = shell.write("bin/dptrain", f'#!/bin/sh\nexec {sys.executable} -m dptrain "$@"\n')
    shim.chmod(0o755)
    path = f"{shim.parent}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(shell.directory), "TERM": "dumb"}


@pytest.fixture
def ask(shell, environment):
    """`ask("dptrain", "att")` is what bash proposes for the last word."""

    def propose(*words: str) -> list[str]:
        script = ASK + "ask " + " ".join(f"'{word}'" for word in words)
        done = subprocess.run(
            [BASH, "--norc", "-c", script], env=environment, cwd=shell.directory, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line]

    return propose


@pytest.mark.slow
def test_commands_and_options(ask):
    assert ask("dptrain", "att") == ["attest"]
    assert {"keygen", "sign", "verify", "show", "withdraw"} <= set(ask("dptrain", "attest", ""))
    assert set(ask("dptrain", "registry", "re")) == {"revoke"}
    assert set(ask("dptrain", "attest", "sign", "--no")) == {"--noise-multiplier", "--not-before"}


@pytest.mark.slow
def test_classes_come_from_the_policy_on_the_line_or_the_one_at_hand(ask, shell):
    shell.run("policy", "init", "policy.toml")
    other = (shell.directory / "policy.toml").read_text().replace('"sensitive"', '"secret"')
    shell.write("elsewhere/other.toml", other)
    sign = ("dptrain", "attest", "sign", "notes.jsonl")
    assert ask(*sign, "--class", "") == ["sensitive", "general"]
    assert ask(*sign, "--policy", "elsewhere/other.toml", "--class", "se") == ["secret"]
    assert ask("dptrain", "policy", "check", "policy.toml", "--contributions", "g") == ["general="]


@pytest.mark.slow
def test_names_and_classes_come_from_the_registry_on_the_line(ask, shell, corpus):
    assert ask("dptrain", "registry", "grant", "registry.cbor", "--contributor", "") == ["alice"]
    assert "sensitive" in ask("dptrain", "registry", "grant", "registry.cbor", "--class", "")
    (shell.directory / "policy.toml").unlink()
    assert ask("dptrain", "attest", "sign", "notes.jsonl", "--class", "") == ["sensitive", "public"], "from policy.cose"


@pytest.mark.slow
def test_files_that_are_damaged_complete_to_nothing_and_say_nothing(ask, shell):
    shell.write("policy.toml", "corpus = ")
    shell.write("registry.cbor", "no registry")
    assert ask("dptrain", "attest", "sign", "notes.jsonl", "--class", "") == []
    assert ask("dptrain", "registry", "grant", "registry.cbor", "--contributor", "") == []


def test_the_tab_key_of_an_interactive_bash_completes_a_command(shell, environment):
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-i"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**environment, "PS1": "READY>"},
        cwd=shell.directory,
        start_new_session=True,
        close_fds=True,
    )
    os.close(follower)
    try:
        _until(leader, "READY>")
        os.write(leader, b"source <(dptrain --show-completion)\n")
        _until(leader, "READY>")
        os.write(leader, b"dptrain attest keyg\t")
        _until(leader, "keygen")
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _until(terminal: int, wanted: str, seconds: float = 60.0) -> str:
    seen, deadline = "", time.monotonic() + seconds
    while wanted not in seen:
        left = deadline - time.monotonic()
        assert left > 0, f"waited for {wanted!r}, saw {seen!r}"
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen
