"""A bar for a person, silence for a script."""

import io
import re
import sys
import types

import pytest
from rich.console import Console

from attest.keys import save_private_key
from dptrain import progress
from dptrain.cli import output
from dptrain.cli.output import counting
from dptrain.progress import contributions_in, progress_bar, say
from tests.cli.terminals import on_terminal
from tests.worlds.ledgers import LOG_KEY, SIGNER
from tests.worlds.retained_ledgers import grown

BOUNDS = ("--corpus", "clinic-notes-2026", "--clip-norm", "0.5", "--noise-multiplier", "1.2")


@pytest.mark.slow
def test_signing_on_a_terminal_draws_a_bar_with_rate_and_total_and_ends_with_a_sentence(shell):
    shell.run("attest", "keygen", "alice")
    shell.write("notes.jsonl", "".join(f'{{"n": {number}}}\n' for number in range(20_000)))
    sign = ("attest", "sign", "notes.jsonl", "--key", "alice.key", "--class", "sensitive", *BOUNDS)
    code, shown = on_terminal(shell.directory, sign)
    assert code == 0 and "signing" in shown and "/20000" in shown and "/s" in shown
    assert "signed 20,000 contributions as alice" in " ".join(shown.splitlines()[-3:])  # of one line or two


def test_signing_in_a_pipe_draws_nothing(shell):
    shell.run("attest", "keygen", "alice")
    shell.write("notes.jsonl", '{"n": 1}\n' * 1000)
    result = shell.run("attest", "sign", "notes.jsonl", "--key", "alice.key", "--class", "sensitive", *BOUNDS)
    assert result.stderr == "" and len(result.stdout.splitlines()) == 2


@pytest.mark.slow
def test_what_reads_a_whole_ledger_says_on_a_terminal_what_it_is_at(shell):
    grown(shell.directory / "ledger.db", start=1_700_000_000).ledger.close()
    save_private_key(shell.directory / "ledger.key", LOG_KEY)
    shell.run("ledger", "export", "ledger.db", "export")
    for arguments, said in (
        (("ledger", "verify", "export", "--key", SIGNER.vkey), "auditing export"),
        (("ledger", "fsck", "ledger.db"), "checking ledger.db"),
    ):
        code, shown = on_terminal(shell.directory, arguments)
        assert code == 0 and said in shown
        assert shell.run(*arguments).stderr == ""


def test_an_export_says_that_it_reads_and_that_it_writes_and_says_nothing_in_a_pipe(shell, monkeypatch):
    grown(shell.directory / "ledger.db", start=1_700_000_000).ledger.close()
    save_private_key(shell.directory / "ledger.key", LOG_KEY)
    said = []

    def told(what):
        said.append(what)
        return counting(what)

    for module in ("ledger.export", "ledger.place"):
        monkeypatch.setattr(f"dptrain.cli.{module}.counting", told)
    assert shell.run("ledger", "export", "ledger.db", "export").stderr == ""
    assert said == ["reading ledger.db", "exporting ledger.db"]


def test_the_bar_is_drawn_at_most_every_fifth_of_a_second(monkeypatch):
    clock = iter(number / 100 for number in range(10**6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    drawn = []
    monkeypatch.setattr(progress.Progress, "update", lambda self, task, completed, refresh: drawn.append(completed))
    screen = Console(file=io.StringIO(), force_terminal=True)
    with progress_bar("signing", lambda: 100, screen) as callback:
        for count in range(1, 101):
            callback(count)
    assert 4 <= len(drawn) <= 6 and drawn[0] == 1


def test_without_a_terminal_nothing_is_counted():
    def never():
        raise AssertionError("counted for nobody")

    with progress_bar("signing", never, Console(file=io.StringIO())) as callback:
        assert callback is None


@pytest.mark.parametrize(
    ("content", "count"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"a\n\nb\n", 3), (b"x" * (1 << 20) + b"\nb", 2)]
)
def test_lines_are_counted_by_their_ends(tmp_path, content, count):
    (tmp_path / "a.jsonl").write_bytes(content)
    assert contributions_in(tmp_path / "a.jsonl") == count
    (tmp_path / "a.txt").write_bytes(content)
    assert contributions_in(tmp_path / "a.txt") == 1


def test_files_of_a_folder_are_counted_to_the_bottom(tmp_path):
    for name in ("a", "b/c", "b/d/e"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    assert contributions_in(tmp_path / "data") == 3


def test_what_a_class_has_spent_stands_behind_the_title_of_a_bar_and_in_a_line_a_minute(monkeypatch, capsys):
    moments = iter(range(0, 10_000, 50))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(moments))
    screen = Console(file=(drawn := io.StringIO()), force_terminal=True, width=120)
    with progress_bar("training", lambda: 3, screen, told=lambda: "ε 1 of 8") as bar:
        bar(1)
    assert "training  ε 1 of 8" in drawn.getvalue() and capsys.readouterr().err == ""
    with progress_bar("training", lambda: 3_000, Console(file=io.StringIO()), told=lambda: "ε 1 of 8") as line:
        line(1)
        line(2_000)
        line(2_001)
    assert capsys.readouterr().err == "training: 2,000 of 3,000, ε 1 of 8\n"
    with progress_bar("training", lambda: 3, Console(file=io.StringIO()), shown=False, told=lambda: "ε 1") as nothing:
        assert nothing is None


def test_the_program_tells_its_version(shell):
    assert shell.run("--version").stdout.startswith("dptrain ")


class Page:
    """In the place of IPython.display in a notebook: remembers what is shown, under one handle."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def HTML(self, text: str) -> str:
        return text

    def display(self, picture: str, *, display_id: bool) -> "Page":
        assert display_id
        self.shown.append(picture)
        return self

    def update(self, picture: str) -> None:
        self.shown.append(picture)


def in_notebook(monkeypatch, kernel: object) -> Page:
    page = Page()
    shell = types.SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", page)
    monkeypatch.setattr(progress, "_REFRESH", 0.0)
    return page


def test_a_notebook_shows_a_bar_of_its_own_which_stays_and_tells_no_time(monkeypatch, capfd):
    page = in_notebook(monkeypatch, object())
    with progress_bar("a <b> run", lambda: 1200, told=lambda: "open <i> 1.5") as update:
        update(600)
    assert page.shown[0] == '<div>a &lt;b&gt; run <progress value="0" max="1200"></progress> 0 of 1,200</div>'
    last = '<div>a &lt;b&gt; run <progress value="600" max="1200"></progress> 600 of 1,200, open &lt;i&gt; 1.5</div>'
    assert page.shown[1:] == [last, last]
    assert capfd.readouterr() == ("", "")


def test_no_bar_is_shown_in_a_shell_without_a_page_or_where_nobody_wants_one(monkeypatch):
    page = in_notebook(monkeypatch, None)
    with progress_bar("a run", lambda: 3) as update:
        assert update is None
    page = in_notebook(monkeypatch, object())
    with progress_bar("a run", lambda: 3, shown=False) as update:
        assert update is None
    assert page.shown == []


def test_a_sentence_is_broken_between_words_on_a_terminal_and_what_is_copied_is_not(monkeypatch):
    """A command and a hash stay whole; in a pipe nothing is broken at all."""
    digest, command = "ab" * 40, "ask again: dptrain ledger verify run/export --key run/ledger.pub --owner-key owner.pub"
    sentence = f"nobody vouches for what the leaves of this ledger say, whose root is {digest}, nor that all see it"
    for terminal in (True, False):
        screen = Console(file=io.StringIO(), force_terminal=terminal, width=40, soft_wrap=True)
        monkeypatch.setattr(output, "console", lambda screen=screen: screen)
        output.print_line(output.styled("red", sentence))
        output.print_line(command)
        lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", screen.file.getvalue()).splitlines()]
        assert lines[-1] == command and any(digest in line for line in lines)
        assert " ".join(lines[:-1]) == sentence and (len(lines) > 3) == terminal
        assert all(len(line) <= 40 for line in lines[:-1] if digest not in line) or not terminal


def test_what_takes_a_while_is_said_in_one_line_wherever_it_goes_and_never_where_nobody_asked():
    for screen in (Console(file=io.StringIO(), width=20), Console(file=io.StringIO(), width=20, force_terminal=True)):
        say("compiling [bold] the step for microbatches", screen)
        say("nothing", screen, shown=False)
        assert screen.file.getvalue() == "compiling [bold] the step for microbatches\n"
