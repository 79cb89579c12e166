"""`dptrain ledger fsck`: a ledger is held against itself, its signer's record, and what model checkpoints pinned."""

import sqlite3
from dataclasses import replace

import pytest

from attest.keys import load_private_key
from dptrain.record.pin import KIND
from ledger.log import Ledger
from ledger.log.pinned import sign_pinned
from ledger.note import NoteSigner
from ledger.replay import Replay
from tests.worlds.checkpoints import checkpoint_of
from tests.worlds.commands import record

FSCK = ("ledger", "fsck", "ledger.db")


@pytest.fixture
def run(shell, corpus):
    """A finished run; returns the directory of its files."""
    corpus()
    record(shell)
    return shell.directory


def change(run, *statements):
    with sqlite3.connect(run / "ledger.db") as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)


def signer_of(run):
    with Ledger.open(run / "ledger.db", read_only=True) as log:
        return NoteSigner(log.header.origin, load_private_key(run / "ledger.key"))


def pin(run, **changes):
    """A pin of the ledger as it is, signed with its key whatever it says."""
    with Ledger.open(run / "ledger.db", read_only=True) as log:
        data = sign_pinned(KIND, replace(log.pin(), **changes), [20, 0, "held", 6, bytes(32), None], signer_of(run))
    path = run / "pin.cose"
    path.write_bytes(data)
    return str(path)


@pytest.fixture
def saved(run):
    """A model checkpoint beside the run."""
    with Ledger.open(run / "ledger.db", signer_of(run)) as log:
        return checkpoint_of(log, 20, run / "ledger.db.checkpoints")


def test_a_whole_ledger_is_ok_and_every_epsilon_was_computed_again(shell, run):
    answer = shell.json(*FSCK)
    assert (answer["verdict"], answer["record"], answer["pins"]) == ("OK", True, 0)
    assert answer["epsilons"] > 0 and answer["signed"] == answer["size"]
    assert shell.run(*FSCK).stdout.startswith("OK")


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("UPDATE entry SET body = zeroblob(length(body)) WHERE seq = 3", "LEAF_HASH"),
        ("DELETE FROM entry WHERE seq = 3", "GAP"),
        ("UPDATE entry SET kind = 2 WHERE seq = 3", "INDEX"),
        ("UPDATE checkpoint SET note = zeroblob(10)", "CHECKPOINT"),
        ("UPDATE head SET frontier = zeroblob(length(frontier))", "HEAD"),
        ("DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)", "TAIL_LOST"),
    ],
)
def test_whatever_was_changed_is_named(shell, run, statement, code):
    change(run, statement)
    assert shell.json(*FSCK, code=1)["error"]["code"] == code


def test_an_understated_epsilon_is_found_though_tree_and_signatures_fit(shell, corpus, monkeypatch):
    """Only the accountant can tell: a writer that counts too little signs a ledger that opens without a complaint."""
    corpus()
    with monkeypatch.context() as lying:
        lying.setattr(Replay, "_least_micro", lambda self, group: None)
        lying.setattr("ledger.replay.replay.to_micro_up", lambda epsilon: int(epsilon * 1e6) - 10)
        record(shell)
    assert shell.json("ledger", "show", "ledger.db")["finished"]
    error = shell.json(*FSCK, code=1)["error"]
    assert error["code"] == "REPLAY" and "recomputed" in error["sentence"]


def test_pins_of_model_checkpoints_are_compared(shell, run, saved):
    assert shell.json(*FSCK)["pins"] == 1
    assert shell.json(*FSCK, "--pin", pin(run))["pins"] == 1
    assert shell.json(*FSCK, "--pin", pin(run, size=10**6), code=1)["error"]["code"] == "BEHIND"
    assert shell.json(*FSCK, "--pin", pin(run, root=bytes(32)), code=1)["error"]["code"] == "FORKED"
    assert shell.json(*FSCK, "--pin", pin(run, origin="another"), code=1)["error"]["code"] == "WRONG_RUN"
    (run / "pin.cose").write_text("{}")
    assert shell.json(*FSCK, "--pin", "pin.cose", code=1)["error"]["code"] == "PIN"


def test_a_changed_model_checkpoint_is_found_and_named(shell, run, saved):
    """Not the ledger, which is whole: the states that the next attempt would begin from."""
    whole = {file.name: file.read_bytes() for file in saved.iterdir()}
    for name, data, code in (
        ("state.pt", b"stateS", "STATE_CHANGED"),
        ("state.pt", b"states and more", "STATE_CHANGED"),
        ("state.pt", None, "STATE_MISSING"),
        ("pin.cose", None, "PIN_MISSING"),
        ("pin.cose", whole["pin.cose"][:-1] + bytes([whole["pin.cose"][-1] ^ 1]), "UNSIGNED"),
    ):
        (saved / name).unlink()
        if data is not None:
            (saved / name).write_bytes(data)
        error = shell.json(*FSCK, code=1)["error"]
        assert error["code"] == code and "step-00000020" in error["sentence"]
        (saved / name).write_bytes(whole[name])
    saved.rename(saved.with_name("step-00000024"))
    assert shell.json(*FSCK, code=1)["error"]["code"] == "CHECKPOINT_MOVED"
    saved.with_name("step-00000024").rename(saved)
    assert shell.json(*FSCK)["pins"] == 1


def test_a_ledger_that_its_signer_remembers_longer_is_refused(shell, run):
    (run / "ledger.db.highwater").unlink()
    assert shell.json(*FSCK)["record"] is False
    shown = shell.run(*FSCK).stdout
    assert "NOT compared with the signer's record: there is no ledger.db.highwater, and no run goes on without it" in shown


def test_a_wrong_file_an_old_copy_and_an_older_key_are_told_apart(shell, run):
    old = (run / "ledger.db").read_bytes()
    shell.run("ledger", "rotate-key", "ledger.db")
    new = (run / "ledger.db").read_bytes()
    (run / "ledger.db").write_bytes(old)
    told = shell.json(*FSCK, code=1)["error"]
    assert told["code"] == "HIGHWATER" and "before its key was changed: put the newer one back" in told["sentence"]
    (run / "ledger.db").write_bytes(new)
    assert shell.json(*FSCK)["verdict"] == "OK"
    shell.run("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", "1")
    shell.run("ledger", "withdraw", "ledger.db", *(str(path) for path in (run / "withdrawals").iterdir()))
    (run / "ledger.db").write_bytes(new)
    told = shell.json(*FSCK, code=1)["error"]
    assert told["code"] == "BEHIND" and "put back one with all of them" in told["sentence"]
    for content in (b"", (run / "policy.toml").read_bytes() * 10):
        (run / "ledger.db").write_bytes(content)
        told = shell.json(*FSCK, code=1)["error"]
        assert told["code"] == "DATABASE" and "another file was put in the ledger's place" in told["sentence"]
