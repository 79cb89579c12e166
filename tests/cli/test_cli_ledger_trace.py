"""`dptrain ledger show` of single contributions: by content and nonce, and those that were withdrawn."""

import pytest
from recorded import record

SHOW = ("ledger", "show", "ledger.db")


@pytest.fixture
def attested(shell, corpus):
    """A finished run, and what its first note's attestation says."""
    corpus()
    record(shell)
    return shell.json("attest", "show", "corpus/notes.jsonl.attest", "--record", "1")


def test_a_contributor_finds_what_became_of_a_content(shell, attested):
    asked = (*SHOW, "--content", attested["content_hash"], "--nonce", attested["nonce"])
    answer = shell.json(*asked)
    assert answer["descriptor_hash"] == attested["descriptor_hash"]
    assert (answer["steps"], answer["class"], answer["blocks"]) == (20, "sensitive", ["layer.1", "head"])
    assert answer["epsilon"] == shell.json(*SHOW)["classes"][0]["epsilon"]
    text = shell.run(*asked).stdout
    assert attested["descriptor_hash"] in text and "could touch: layer.1, head" in text


def test_who_has_the_content_alone_finds_nothing(shell, attested):
    shell.run(*SHOW, "--content", attested["content_hash"], code=2)
    wrong = shell.json(*SHOW, "--content", attested["content_hash"], "--nonce", "00" * 16, code=1)
    assert wrong["error"]["code"] == "NOT_FOUND"
    shell.run(*SHOW, "--content", "nowhere.png", "--nonce", "00" * 16, code=2)
    whole = shell.json(*SHOW, "--content", "corpus/notes.jsonl", "--nonce", attested["nonce"], code=2)["error"]
    assert "holds many contributions" in whole["sentence"]


def test_who_withdrew_is_told_what_holds(shell, attested):
    assert shell.run(*SHOW, "--withdrawn").stdout == "nothing was withdrawn\n"
    shell.run("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "alice.key", "--all")
    files = sorted(str(path) for path in (shell.directory / "withdrawals").iterdir())
    proof = ("--attestations", "corpus/notes.jsonl.attest", "--registry", "registry.cbor")
    shell.run("ledger", "withdraw", "ledger.db", *files, *proof)
    answer = shell.json(*SHOW, "--withdrawn")
    assert len(answer["withdrawn"]) == answer["together"]["contributions"] == len(files)
    assert answer["together"]["epsilon"] > answer["withdrawn"][0]["epsilon"]
    text = shell.run(*SHOW, "--withdrawn").stdout
    assert "No unlearning was performed" in text and f"For all {len(files)} together" in text
