"""The manual: a page for every command, examples that run, nothing broken at 80 columns, and man pages that groff takes."""

import shlex
import shutil
import subprocess

import pytest
import typer

from dptrain.cli.app import app
from dptrain.cli.man import write_pages
from dptrain.cli.manual import LEDGER_PEOPLE, PEOPLE, WIDTH, pages, wrapped

ROOT = typer.main.get_command(app)


def tree(command, path=()):
    yield path, command
    for name, item in getattr(command, "commands", {}).items():
        yield from tree(item, (*path, name))


COMMANDS = {" ".join(path): command for path, command in tree(ROOT)}


def test_every_command_has_a_page_and_every_page_a_command():
    assert set(pages()) == set(COMMANDS)
    for group, people in ((ROOT, PEOPLE), (COMMANDS["ledger"], LEDGER_PEOPLE)):
        assert [name for names in people.values() for name in names] == list(group.commands)


def test_commands_of_the_ledger_stand_under_those_who_use_them(shell):
    shown = shell.run("ledger", "--help").stdout
    places = [
        shown.index(f" {word} ")
        for word in ("For who keeps the ledger", "retain", "For auditors", "cosign", "For contributors")
    ]
    assert places == sorted(places) and "─ Commands ─" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_says_when_what_and_what_else(name):
    page = pages()[name]
    assert page.when and page.refused and page.examples and page.see
    assert all(other in COMMANDS and other != name for other in page.see)
    if not hasattr(COMMANDS[name], "commands"):
        assert page.reads and page.writes


@pytest.mark.parametrize(("name", "example"), [(name, text) for name, page in pages().items() for text in page.examples])
def test_an_example_is_a_command_with_options_that_exist(name, example):
    words = shlex.split(example)
    assert words.pop(0) == "dptrain"
    command, path = ROOT, []
    while words and words[0] in getattr(command, "commands", {}):
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    assert " ".join(path).startswith(name)
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in words if word.startswith("--")} <= known
    required = {parameter.opts[0] for parameter in command.params if parameter.required and parameter.opts[0].startswith("--")}
    assert required <= set(words)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_broken_at_80_columns(name, shell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = shell.run(*name.split(), "--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for example in pages()[name].examples:
        for line in wrapped(example).splitlines():
            assert len(line) <= WIDTH
            assert line.strip() in shown


def test_a_wrapped_example_is_the_same_command_for_a_shell():
    for page in pages().values():
        for example in page.examples:
            assert shlex.split(wrapped(example).replace("\\\n", "")) == shlex.split(example)


def test_man_pages_hold_the_same_text(tmp_path):
    written = write_pages(tmp_path / "man")
    assert len(written) == len(COMMANDS)
    sign = (tmp_path / "man" / "dptrain-attest-sign.1").read_text()
    for heading in ("NAME", "SYNOPSIS", "WHEN TO USE IT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f".SH {heading}\n" in sign
    assert "\\-\\-noise\\-multiplier DECIMAL" in sign
    groff = shutil.which("groff")
    if groff is not None:
        for page in written:
            done = subprocess.run([groff, "-man", "-ww", "-z", str(page)], capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, ""), page.name
