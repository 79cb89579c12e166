"""`dptrain ledger fsck`: a ledger is held against itself, its signer's record, and what model checkpoints pinned."""

import json
import sqlite3

import pytest
from recorded import record

from ledger import accountants
from ledger.log import Ledger
from ledger.replay import Replay

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


def pin(run, name="pin.json", **changes):
    with Ledger.open(run / "ledger.db", read_only=True) as log:
        data = log.pin().to_dict() | {"step": 20, "attempt": 0} | changes
    path = run / name
    path.write_text(json.dumps(data))
    return path


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
        honest = Replay._account
        lying.setattr(Replay, "_account", lambda self, contribution: (*honest(self, contribution)[:2], None))
        lying.setattr(accountants, "to_micro_up", lambda epsilon: int(epsilon * 1e6) - 10)
        record(shell)
    assert shell.json("ledger", "show", "ledger.db")["finished"]
    error = shell.json(*FSCK, code=1)["error"]
    assert error["code"] == "REPLAY" and "recomputed" in error["sentence"]


def test_pins_of_model_checkpoints_are_compared(shell, run):
    folder = run / "ledger.db.checkpoints" / "step-00000020"
    folder.mkdir(parents=True)
    pin(run).rename(folder / "pin.json")
    assert shell.json(*FSCK)["pins"] == 1
    assert shell.json(*FSCK, "--pin", str(pin(run, size=10**6)), code=1)["error"]["code"] == "BEHIND"
    assert shell.json(*FSCK, "--pin", str(pin(run, root="00" * 32)), code=1)["error"]["code"] == "FORKED"
    assert shell.json(*FSCK, "--pin", str(pin(run, origin="another")), code=1)["error"]["code"] == "WRONG_RUN"
    (run / "pin.json").write_text("{}")
    assert shell.json(*FSCK, "--pin", "pin.json", code=1)["error"]["code"] == "PIN"


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
