"""`dptrain ledger show` of single contributions: by content and nonce, and those that were withdrawn."""

import pytest

from tests.worlds.commands import record

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


@pytest.mark.slow
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


def test_an_export_gives_the_ledgers_answers_to_who_has_no_ledger(shell, attested):
    shell.run("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "alice.key", "--record", "2")
    files = [str(path) for path in (shell.directory / "withdrawals").iterdir()]
    proof = ("--attestations", "corpus/notes.jsonl.attest", "--registry", "registry.cbor")
    shell.run("ledger", "withdraw", "ledger.db", *files, *proof)
    shell.run("ledger", "export", "ledger.db", "export")
    asked = ("--content", attested["content_hash"], "--nonce", attested["nonce"])
    there = ("ledger", "show", "export", "--key", "ledger.pub")
    for what in ((), asked, ("--withdrawn",)):
        assert shell.json(*there, *what) == shell.json(*SHOW, *what)
    assert shell.json(*there, "--owner-key", "owner.pub")["owner"] == shell.json(*SHOW)["owner"]
    unknown = shell.json(*there, "--content", attested["content_hash"], "--nonce", "00" * 16, code=1)
    assert unknown["error"]["code"] == "NOT_FOUND"


def test_an_export_is_asked_nothing_unless_it_passes_its_audit(shell, attested):
    shell.run("ledger", "export", "ledger.db", "export")
    asked = ("--content", attested["content_hash"], "--nonce", attested["nonce"])
    unkeyed = shell.json("ledger", "show", "export", *asked, code=2)["error"]
    assert "give the ledger's public key with --key" in unkeyed["sentence"]
    checked = shell.json(*SHOW, "--key", "ledger.pub", code=2)["error"]
    assert "ledger fsck" in checked["sentence"]
    other = shell.json("ledger", "show", "export", "--key", "ledger.pub", "--owner-key", "alice.pub", *asked, code=1)["error"]
    assert other["code"] == "FAILED" and "OWNER" in other["sentence"]
    bundle = next(path for path in (shell.directory / "export" / "tile" / "entries").rglob("*") if path.is_file())
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    for what in ((), asked, ("--withdrawn",)):
        changed = shell.json("ledger", "show", "export", "--key", "ledger.pub", *what, code=1)["error"]
        assert changed["code"] == "FAILED" and "tile/entries" in changed["sentence"]
