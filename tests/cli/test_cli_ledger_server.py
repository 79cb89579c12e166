"""`dptrain ledger` and `gate` on a ledger in a PostgreSQL database: by URL and state directory, and no password in sight."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.storage.place import Place
from ledger.storage.store import open_store
from tests.worlds.commands import record
from tests.worlds.postgres import Cluster, require_server


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    require_server()
    cluster = Cluster()
    cluster.execute("CREATE ROLE trainer LOGIN PASSWORD 'trainer'")
    yield cluster
    cluster.stop()


@pytest.fixture
def url(server, shell, corpus, request) -> str:
    """A finished run in a schema of its own; its key and high-water file are in state/."""
    corpus()
    found = f"{server.url()}?schema=s{abs(hash(request.node.name)) % 10**8}"
    record(shell, ledger=found, state="state")
    Path("ledger.key").rename("state/ledger.key")
    return found


def test_a_ledger_on_a_server_is_shown_exported_and_verified(shell, server, url):
    assert shell.json("ledger", "show", url)["charged_steps"] == 20
    assert shell.json("ledger", "show", url, "--state", "state")["finished"]
    answer = shell.json("ledger", "export", url, "export", "--state", "state")
    assert shell.json("ledger", "verify", "export", "--key", answer["key"])["verdict"] == "TOLD"


def test_a_withdrawal_is_entered_and_the_gate_knows_it(shell, server, url):
    attestations = "corpus/notes.jsonl.attest"
    made = shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--record", "2")["withdrawals"][0]
    enter = ("ledger", "withdraw", url, made["path"], "--attestations", attestations, "--registry", "registry.cbor")
    assert shell.json(*enter, "--state", "state")["withdrawn"][0]["matched"]
    assert shell.json("gate", "policy.cose", "corpus", "--ledger", url, code=1)["refused"] == {"WITHDRAWN": 1}


def test_fsck_looks_into_the_state_directory_and_says_what_it_cannot_check(shell, server, url):
    Path("ledger.pub").rename("state/ledger.pub")
    answer = shell.json("ledger", "fsck", url, "--state", "state")
    assert (answer["verdict"], answer["pages"], answer["keys"], answer["weights"]) == ("OK", False, 1, 2)
    assert "pg_amcheck" in shell.run("ledger", "fsck", url, "--state", "state").stdout
    weights = next(Path("state/ledger.weights").iterdir())
    data = weights.read_bytes()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    Path("state/ledger.pub").write_text("nobody+00000000+AAAA\n")
    found = shell.json("ledger", "fsck", url, "--state", "state", code=1)["findings"]
    assert {item["code"] for item in found} == {"PUBLIC_KEY", "WEIGHTS"}
    assert {item["file"] for item in found} == {"state/ledger.pub", str(weights)}
    shown = " ".join(shell.run("ledger", "fsck", url).stdout.split())
    assert "were not looked at: give --state" in shown


def test_what_is_missing_is_named_without_the_password(shell, server, url):
    for arguments, code, said in (
        (("ledger", "export", url, "export"), 1, "STATE"),
        (("ledger", "show", url.partition("?")[0]), 1, "there is no ledger at"),
        (("ledger", "show", "mysql://db.example/privacy"), 2, "no place for a ledger"),
        (("ledger", "show", "nowhere.db"), 2, "does not exist"),
        (("ledger", "show", "corpus"), 2, "is a directory"),
        (("ledger", "show", "policy.toml", "--state", "state"), 2, "only a ledger on a server"),
    ):
        result = shell.run(*arguments, code=code)
        words = " ".join(f"{result.stdout} {result.stderr}".replace("│", " ").split())
        assert said in words and server.password not in words, words


def test_a_busy_ledger_names_the_folder_in_the_state_directory(shell, server, url):
    attestations = "corpus/notes.jsonl.attest"
    made = shell.json("attest", "withdraw", attestations, "--key", "alice.key", "--record", "1")["withdrawals"][0]
    held = open_store(Place.of(url), read_only=False)
    try:
        enter = ("ledger", "withdraw", url, made["path"], "--attestations", attestations, "--registry", "registry.cbor")
        error = shell.json(*enter, "--state", "state", code=1)["error"]
    finally:
        held.close()
    assert error["code"] == "LOCKED" and "state/ledger.withdrawals/" in error["sentence"]


def test_tables_are_prepared_for_a_writer_who_then_begins_the_ledger(shell, server, corpus):
    corpus()
    url = f"{server.url()}?schema=prepared"
    answer = shell.json("ledger", "init", url, "--writer", "trainer")
    assert (answer["schema"], answer["writer"]) == ("prepared", "trainer") and server.password not in str(answer)
    mine = f"{server.url(user='trainer:trainer')}?schema=prepared"
    record(shell, ledger=mine, state="state")
    assert shell.json("ledger", "show", mine)["finished"]
    assert shell.json("ledger", "init", url, "--writer", "trainer", code=1)["error"]["code"] == "EXISTS"
    shell.run("ledger", "init", "ledger.db", "--writer", "trainer", code=2)
    assert shell.json("ledger", "init", f"{server.url()}?schema=other", "--writer", "nobody", code=1)["error"]["code"]
