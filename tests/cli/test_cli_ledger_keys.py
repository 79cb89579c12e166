"""`dptrain ledger rotate-key`: the new key takes over, the old one is refused, an interrupted call is finished by the next."""

import os

import pytest

from attest.keys import load_private_key
from ledger.log import Ledger
from ledger.note import NoteSigner
from tests.worlds.commands import record

ROTATE = ("ledger", "rotate-key", "ledger.db")


@pytest.fixture
def run(shell, corpus):
    """A finished run; returns the directory of its files."""
    corpus()
    record(shell)
    return shell.directory


def vkey(path) -> str:
    with Ledger.open(path.parent / "ledger.db", read_only=True) as log:
        return NoteSigner(log.header.origin, load_private_key(path)).vkey


def test_the_new_key_takes_the_place_of_the_old_and_whoever_pinned_either_verifies(shell, run):
    old = vkey(run / "ledger.key")
    told = shell.json(*ROTATE)
    assert told["retired"] == old and told["key"] == vkey(run / "ledger.key") != old and told["path"].endswith("ledger.key")
    (retired,) = run.glob("ledger.key.retired-*")
    assert vkey(retired) == old and retired.stat().st_mode & 0o077 == 0 and not (run / "ledger.key.next").exists()
    assert (run / "ledger.pub").read_text().splitlines()[0] == told["key"]
    shell.run("ledger", "export", "ledger.db", "export")
    for key in (old, told["key"], "ledger.pub"):
        assert shell.json("ledger", "verify", "export", "--key", key)["verdict"] == "TOLD"
    assert shell.json("ledger", "fsck", "ledger.db")["verdict"] == "OK"
    refused = shell.json("ledger", "export", "ledger.db", "again", "--ledger-key", retired.name, code=1)
    assert refused["error"]["code"] == "WRONG_KEY" and f"leaf {told['leaf']}" in str(refused["error"])


def test_a_public_file_that_is_gone_is_written_with_all_keys_and_what_else_it_held_stays(shell, run):
    old = vkey(run / "ledger.key")
    (run / "ledger.pub").unlink()
    middle = shell.json(*ROTATE)["key"]
    assert (run / "ledger.pub").read_text().splitlines() == [middle, old]
    (run / "ledger.pub").write_text(f"# notes\n\n{middle}\n")
    assert [item["code"] for item in shell.json("ledger", "fsck", "ledger.db", code=1)["findings"]] == ["PUBLIC_KEY"]
    last = shell.json(*ROTATE)["key"]
    assert (run / "ledger.pub").read_text().splitlines() == [last, middle, old, "# notes"]
    assert shell.json("ledger", "fsck", "ledger.db")["keys"] == 3


def test_a_public_file_that_is_no_text_stops_a_change_before_it_is_made(shell, run):
    (run / "ledger.pub").write_bytes(b"\xff\xfe")
    assert shell.json(*ROTATE, code=1)["error"]["code"] == "PUBLIC_KEY"
    assert [item["code"] for item in shell.json("ledger", "fsck", "ledger.db", code=1)["findings"]] == ["PUBLIC_KEY"]
    (run / "ledger.pub").unlink()
    shell.json(*ROTATE)


def test_a_wrong_old_key_is_refused_before_a_new_one_is_made(shell, run):
    shell.run(*ROTATE, "--new-key", "next.key")
    assert shell.json(*ROTATE, code=1)["error"]["code"] == "WRONG_KEY"
    assert not (run / "ledger.key.next").exists()
    assert "--ledger-key last.key" in shell.run(*ROTATE, "--ledger-key", "next.key", "--new-key", "last.key").stdout


def test_a_named_new_key_is_used_where_it_lies(shell, run):
    before = (run / "ledger.key").read_bytes()
    told = shell.json(*ROTATE, "--new-key", "next.key")
    assert vkey(run / "next.key") == told["key"] and (run / "ledger.key").read_bytes() == before
    assert shell.json(*ROTATE, "--new-key", "next.key") == told
    shell.json("ledger", "export", "ledger.db", "export", "--ledger-key", "next.key")


def test_an_interrupted_call_is_finished_by_the_next(shell, run, monkeypatch):
    def cut(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    for place in ("link", "replace"):
        size = Ledger.open(run / "ledger.db", read_only=True).size
        with monkeypatch.context() as patched:
            if place == "link":
                patched.setattr(os, "link", cut)
            else:
                patched.setattr("pathlib.Path.replace", cut)
            shell.run(*ROTATE, code=1)
        told = shell.json(*ROTATE)
        assert told["leaf"] == size and told["key"] == vkey(run / "ledger.key")
        assert Ledger.open(run / "ledger.db", read_only=True).size == size + 1
