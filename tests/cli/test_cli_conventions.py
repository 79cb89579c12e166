"""What holds for every command: help with an example, `--json`, exit codes, no tracebacks for expected errors."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dptrain.cli.app import app


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_the_command_tree_is_complete():
    assert {" ".join(path) for path in COMMANDS} == {
        *(f"attest {verb}" for verb in ("keygen", "sign", "verify", "show", "anchor", "withdraw", "prove", "rotate", "revoke")),
        *(f"registry {verb}" for verb in ("init", "add", "prove", "grant", "rotate", "revoke", "set-clock", "show", "verify")),
        *(f"policy {verb}" for verb in ("init", "check", "noise", "sign", "show")),
        *(f"rights {verb}" for verb in ("sign", "show", "verify")),
        *(f"ledger {verb}" for verb in ("show", "trace", "export", "verify", "prove", "verify-proof", "withdraw", "report")),
        *(f"ledger {verb}" for verb in ("cosign", "merge", "auditor-key", "init", "fsck", "rotate-key", "retain", "set-clock")),
        *(f"ledger {verb}" for verb in ("witness-request", "witness-answer", "monitor")),
        *("check", "gate", "plan", "account", "calibrate", "train", "generate", "release", "serve", "demo", "quickstart"),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example_and_speaks_json(shell, path):
    shown = " ".join(shell.run(*path, "--help").stdout.split())
    assert f"Example: dptrain {' '.join(path)}" in shown
    assert "--json" in shown
    assert COMMANDS[path].help


@pytest.mark.parametrize("path", [path for path in COMMANDS if path not in {("demo",), ("policy", "init")}], ids=" ".join)
def test_missing_arguments_are_wrong_use(shell, path):
    shell.run(*path, code=2)


def test_an_expected_error_is_one_line_on_standard_error(shell):
    shell.write("alice.pub", "not a key\n")
    result = shell.run("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive", code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("FORMAT: ") and result.stderr.count("\n") == 1


def test_a_file_that_cannot_be_written_is_an_expected_error(shell):
    answer = shell.json("policy", "init", "nowhere/policy.toml", code=1)
    assert answer["error"]["code"] == "IO"


def test_an_unexpected_error_is_not_swallowed(shell, monkeypatch):
    monkeypatch.setattr("dptrain.cli.account.accountants.epsilon_of_phases", lambda *_, **__: 1 / 0)
    arguments = ["account", "--noise-multiplier", "1", "--sampling-rate", "0.01", "--steps", "10", "--delta", "1e-5"]
    assert isinstance(shell.run(*arguments, code=1).exception, ZeroDivisionError)


def test_training_commands_without_torch_say_what_to_install(shell, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("dptrain.cli.inputs.importlib.import_module", missing)
    shell.write("run.toml", "")
    for arguments in (("train", "run.toml"), ("demo",)):
        error = shell.json(*arguments, code=1)["error"]
        assert error["code"] == "TRAIN_EXTRA_MISSING" and "pip install 'dptrain[train]'" in error["sentence"]


def test_help_and_completion_load_neither_the_database_nor_the_accountants_libraries():
    script = "import sys, dptrain.cli.app; print([name for name in ('sqlalchemy', 'scipy', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]", done.stderr
