"""`dptrain gate` on corpora that nobody would make on purpose, and with files that it cannot write."""

import json
import os

import pytest

from dptrain.cli import gate as gate_module
from dptrain.progress import attestations_in
from tests.cli.terminals import on_terminal


@pytest.mark.one_in(99)
@pytest.mark.parametrize("name", ["pipe.attest", "corpus/pipe.attest"])
def test_a_named_pipe_does_not_stop_the_count_for_the_bar(shell, corpus, name):
    corpus()
    os.mkfifo(shell.directory / name)
    code, shown = on_terminal(shell.directory, ("gate", "policy.cose", "corpus"), timeout=20)
    assert code == int("corpus/" in name) and "5 admitted" in shown


def test_the_count_for_the_bar_follows_no_links(shell, corpus):
    corpus()
    expected = attestations_in(shell.directory / "corpus")
    assert expected == 5
    shell.write("elsewhere/more.attest", "")
    (shell.directory / "elsewhere" / "more.attest").write_bytes((shell.directory / "corpus/notes.jsonl.attest").read_bytes())
    (shell.directory / "corpus" / "link.attest").symlink_to(shell.directory / "elsewhere" / "more.attest")
    (shell.directory / "corpus" / "elsewhere").symlink_to(shell.directory / "elsewhere")
    assert attestations_in(shell.directory / "corpus") == expected


@pytest.mark.one_in(23)
@pytest.mark.parametrize("path", [".", "../corpus", "./"])
def test_the_corpus_may_be_the_directory_that_one_stands_in(shell, corpus, path):
    corpus()
    arguments = ("gate", "../policy.cose", path, "--owner-key", "../owner.pub")
    code, shown = on_terminal(shell.directory / "corpus", arguments)
    assert code == 0 and "5 admitted" in shown


def test_a_list_of_refusals_that_cannot_be_written_is_told_before_judging(shell, corpus, monkeypatch):
    corpus()
    monkeypatch.setattr(gate_module.Gate, "judge", lambda *args, **options: pytest.fail("judged for nothing"))
    answer = shell.json("gate", "policy.cose", "corpus", "--refusals", "missing/refused.jsonl", code=1)
    assert answer["error"]["code"] == "IO" and "missing" in answer["error"]["sentence"]


def test_an_error_in_the_middle_leaves_no_half_of_an_answer(shell, corpus, monkeypatch):
    corpus()
    shell.write("corpus/stray.txt", "nobody signed this")
    shell.write("refused.jsonl", "as it was")
    original = gate_module.Gate.judge

    def breaks(self, *args, **options):
        yield from list(original(self, *args, **options))[:3]
        raise OSError(5, "Input/output error", "disk")

    monkeypatch.setattr(gate_module.Gate, "judge", breaks)
    answer = shell.json("gate", "policy.cose", "corpus", "--refusals", "refused.jsonl", code=1)
    assert answer == {"error": {"code": "IO", "sentence": "Input/output error: disk"}}
    assert (shell.directory / "refused.jsonl").read_text() == "as it was"
    assert not [name for name in os.listdir(shell.directory) if name.endswith(".tmp")]


def test_names_of_any_bytes_come_through_in_json(shell, corpus):
    corpus()
    names = [b"\xff\xfe", b'quote"back\\slash', b"line\nbreak", "größe".encode(), b"\x1b[31m", b"a\xed\xa0\x80"]
    for name in names:
        with open(os.path.join(os.fsencode(shell.directory), b"corpus", name), "wb") as out:
            out.write(b"x")
    answer = shell.json("gate", "policy.cose", "corpus", "--refusals", "refused.jsonl", code=1)
    assert {os.fsencode(item["source"]) for item in answer["refusals"]} == set(names)
    lines = [json.loads(line) for line in (shell.directory / "refused.jsonl").read_bytes().splitlines()]
    assert lines == answer["refusals"] and len(lines) == len(names)
    assert "UNATTESTED: 6" in shell.run("gate", "policy.cose", "corpus", code=1).stdout
