"""`dptrain ledger witness-request` and `witness-answer`: a ledger is witnessed by files alone, whoever carries them."""

from pathlib import Path

import pytest

from ledger.note import parse_verifier_key
from tests.ledger.tlog_witness import Witness
from tests.worlds.commands import record, run_command


@pytest.fixture
def witness(shell, corpus) -> Witness:
    """A finished run, and a witness that knows its ledger."""
    corpus()
    record(shell)
    key = parse_verifier_key(Path("ledger.pub").read_text().splitlines()[-1])
    found = Witness("witness.example/w1", {key.name: key.public_key})
    shell.write("witness.pub", f"{found.vkey}\n")
    return found


def post(witness: Witness, body: str, answer: str) -> None:
    Path(answer).write_bytes(witness.curl(Path(body).read_bytes()))


def test_a_ledger_is_witnessed_and_its_exports_have_the_cosignature(shell, witness):
    told = shell.run("ledger", "witness-request", "ledger.db", "w.body").stdout
    assert "curl -i --data-binary @w.body" in told and "witness-answer ledger.db w.body answer" in told
    post(witness, "w.body", "w.answer")
    done = shell.json("ledger", "witness-answer", "ledger.db", "w.body", "w.answer", "--key", "witness.pub")
    assert [row["name"] for row in done["cosigners"]] == [witness.name] and done["size"] == witness.latest.popitem()[1][0]
    shell.run("ledger", "export", "ledger.db", "export")
    report = shell.json("ledger", "verify", "export", "--key", "ledger.pub", "--key", "witness.pub")
    assert witness.name in [row["name"] for row in report["signers"]]


def test_a_conflict_says_from_where_to_ask_again(shell, witness):
    shell.run("ledger", "export", "ledger.db", "export")
    shell.run("ledger", "witness-request", "export", "one.body")
    post(witness, "one.body", "one.answer")
    taken = shell.run("ledger", "witness-answer", "export", "one.body", "one.answer", "--key", "witness.pub").stdout
    size = witness.latest.copy().popitem()[1][0]
    assert f"next time: --since {size}" in taken and "cosigned by witness.example/w1" in taken
    post(witness, "one.body", "again.answer")
    told = shell.json("ledger", "witness-answer", "export", "one.body", "again.answer", code=1)["error"]
    assert told["code"] == "WITNESS_CONFLICT" and f"--since {size}" in told["sentence"]
    shell.run("ledger", "witness-request", "export", "two.body", "--since", str(size))
    post(witness, "two.body", "two.answer")
    shell.run("ledger", "witness-answer", "export", "two.body", "two.answer", "--key", "witness.pub")
    assert shell.json("ledger", "witness-request", "export", "x", "--since", "999", code=1)["error"]["code"] == "CONSISTENCY"


def test_a_line_by_a_key_that_nobody_named_is_told_and_changes_nothing(shell, witness):
    shell.run("ledger", "export", "ledger.db", "export")
    before = Path("export/checkpoint").read_bytes()
    shell.run("ledger", "witness-request", "export", "w.body")
    post(witness, "w.body", "w.answer")
    told = shell.json("ledger", "witness-answer", "export", "w.body", "w.answer", code=1)["error"]
    assert told["code"] == "WITNESS_KEY" and witness.name in told["sentence"] and witness.id.hex() in told["sentence"]
    assert Path("export/checkpoint").read_bytes() == before


def test_request_and_answer_go_through_pipes(shell, witness):
    shell.run("ledger", "export", "ledger.db", "export")
    body = run_command(["ledger", "witness-request", "export", "-"]).stdout_bytes
    shell.run("ledger", "witness-request", "export", "w.body")
    assert body == Path("w.body").read_bytes()
    shell.run("ledger", "witness-request", "export", "-", "--json", code=2)
    words = ["ledger", "witness-answer", "export", "w.body", "-", "--key", "witness.pub"]
    done = run_command(words, input=witness.curl(body))
    assert done.exit_code == 0 and "cosigned by witness.example/w1" in done.stdout
    shell.run("ledger", "witness-answer", "export", "w.body", "nowhere", code=2)
