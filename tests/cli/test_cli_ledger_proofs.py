"""`dptrain ledger prove` and `verify-proof`: one file, offline, for ever."""

import time

import pytest

from attest import keys
from ledger.note import Cosigner, NoteSigner, cosign
from ledger.proofs.single_leaf import TlogProof, parse_proof
from tests.worlds.commands import record

CHECK = ("ledger", "verify-proof", "mine.tlog-proof")


@pytest.fixture
def run(shell, corpus):
    """A finished run and its export; returns the ledger's verifier key."""
    corpus()
    vkey = record(shell)
    shell.run("ledger", "export", "ledger.db", "export")
    return vkey


@pytest.fixture
def mine(shell, run):
    """Descriptor hash of the second note."""
    return shell.json("attest", "show", "corpus/notes.jsonl.attest", "--record", "2")["descriptor_hash"]


@pytest.mark.parametrize("source", ["ledger.db", "export"])
def test_a_contributor_gets_what_it_has_spent_as_one_file_that_needs_nothing_else(shell, run, mine, source):
    made = shell.json("ledger", "prove", source, "mine.tlog-proof", "--contribution", mine, "--kind", "spend")
    assert made["member"] == "mine.tlog-proof.member"
    member = ("--member", made["member"])
    answer = shell.json(*CHECK, "--key", "ledger.pub", *member)
    assert answer["verdict"] == "PROVEN" and answer["kind"] == "spend" and answer["leaf"] == made["leaf"]
    assert answer["member"]["contribution"] == mine and answer["member"]["steps"] == 20
    assert answer["member"]["epsilon"] == pytest.approx(
        shell.json("ledger", "show", "ledger.db")["classes"][0]["epsilon"], abs=2e-6
    )
    shown = shell.run(*CHECK, "--key", run, *member).stdout
    assert shown.startswith("PROVEN") and f"contribution: {mine}" in shown and "steps: 20" in shown
    assert shell.json(*CHECK, "--key", run)["member"] is None, "the leaf alone names nobody"
    file = shell.directory / made["member"]
    file.write_bytes(file.read_bytes().replace(mine.encode(), b"ab" * 32))
    assert shell.json(*CHECK, "--key", run, *member, code=1)["error"]["code"] == "INCLUSION"


def test_ledger_and_export_give_the_same_file(shell, run, mine):
    for source in ("ledger.db", "export"):
        shell.run("ledger", "prove", source, f"{source}.tlog-proof", "--contribution", mine)
    first, second = ((shell.directory / f"{source}.tlog-proof").read_bytes() for source in ("ledger.db", "export"))
    assert first == second


def test_the_header_is_shown_in_short(shell, run):
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "0")
    fields = shell.json(*CHECK, "--key", "ledger.pub")["fields"]
    assert fields["owner"] == "owner" and "blocks" not in fields


def test_a_leaf_that_is_not_there_is_refused_and_nothing_is_written(shell, run):
    nobody = "00" * 32
    for source, options, code in (
        ("export", ("--leaf", "1000"), "INDEX"),
        ("ledger.db", ("--leaf", "1000"), "NO_LEAF"),
        ("export", ("--contribution", nobody), "NO_LEAF"),
        ("ledger.db", ("--contribution", nobody), "NO_LEAF"),
    ):
        assert shell.json("ledger", "prove", source, "mine.tlog-proof", *options, code=1)["error"]["code"] == code
    assert not (shell.directory / "mine.tlog-proof").exists()


def test_wrong_use_is_told(shell, run, mine):
    shell.run("ledger", "prove", "export", "p", code=2)
    shell.run("ledger", "prove", "export", "p", "--leaf", "1", "--contribution", mine, code=2)
    shell.run("ledger", "prove", "export", "p", "--leaf", "1", "--kind", "spend", code=2)
    shell.run("ledger", "prove", "export", "p", "--contribution", "not hex", code=2)
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "1")
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "1", code=2)
    shell.run(*CHECK, code=2)
    shell.run(*CHECK, "--key", "ledger.pub", "--trust", "export/policy", code=2)
    shell.run(*CHECK, "--trust", "export/policy", "--quorum", "1", code=2)


def test_the_exports_own_trust_policy_opens_its_proofs(shell, run):
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "3")
    assert shell.json(*CHECK, "--trust", "export/policy")["verdict"] == "PROVEN"


def test_another_key_and_a_changed_file_prove_nothing(shell, run):
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "3")
    other = NoteSigner("clinic-notes-2026/ledger", keys.generate()).vkey
    assert shell.json(*CHECK, "--key", other, code=1)["error"]["code"] == "UNSIGNED"
    path = shell.directory / "mine.tlog-proof"
    path.write_bytes(path.read_bytes().replace(b"index 3", b"index 4"))
    assert "code" in shell.json(*CHECK, "--key", "ledger.pub", code=1)["error"]


def test_a_quorum_of_auditors_is_asked_for(shell, run):
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "3")
    anna = Cosigner("auditor.example/anna", keys.generate())
    asked = ("--key", "ledger.pub", "--key", anna.vkey, "--quorum", "1")
    assert shell.json(*CHECK, *asked, code=1)["error"]["code"] == "QUORUM"
    path = shell.directory / "mine.tlog-proof"
    proof = parse_proof(path.read_bytes())
    now = int(time.time())
    note = cosign(proof.checkpoint, anna, [run], time=now)
    path.write_bytes(TlogProof(proof.index, proof.hashes, note, proof.extra).to_bytes())
    assert shell.json(*CHECK, *asked)["cosigners"] == [{"name": anna.name, "time": now}]
    assert "cosigned by auditor.example/anna" in shell.run(*CHECK, *asked).stdout


def test_a_file_without_its_leaf_takes_it_from_beside(shell, run):
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "3")
    path = shell.directory / "mine.tlog-proof"
    proof = parse_proof(path.read_bytes())
    path.write_bytes(TlogProof(proof.index, proof.hashes, proof.checkpoint).to_bytes())
    (shell.directory / "leaf").write_bytes(proof.extra)
    assert shell.json(*CHECK, "--key", run, code=1)["error"]["code"] == "NO_LEAF"
    assert shell.json(*CHECK, "--key", run, "--leaf", "leaf")["leaf"] == 3


def test_a_leaf_that_no_checkpoint_signs_yet_is_not_proved(shell, run):
    made = shell.json("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", "1")["withdrawals"]
    seq = shell.json("ledger", "withdraw", "ledger.db", made[0]["path"])["withdrawn"][0]["seq"]
    assert shell.json("ledger", "prove", "export", "mine.tlog-proof", "--leaf", str(seq), code=1)["error"]["code"] == "INDEX"
    shell.run("ledger", "prove", "ledger.db", "mine.tlog-proof", "--leaf", str(seq))


@pytest.mark.parametrize(("source", "key"), [("ledger.db", ()), ("export", ("--ledger-key", "ledger.key"))])
def test_a_receipt_says_the_same_to_tools_that_read_cose(shell, run, mine, source, key):
    asked = ("--contribution", mine, "--receipt", "mine.cose", *key)
    made = shell.json("ledger", "prove", source, "mine.tlog-proof", *asked)
    check = ("ledger", "verify-proof", "mine.cose", "--key", "ledger.pub")
    answer = shell.json(*check, "--leaf", "mine.tlog-proof")
    assert (answer["verdict"], answer["leaf"], answer["root"]) == ("PROVEN", made["leaf"], made["root"])
    assert mine in shell.run(*check, "--leaf", "mine.tlog-proof").stdout
    shell.run(*check, code=2)
    (shell.directory / "other").write_bytes(b"\xa0")
    assert shell.json(*check, "--leaf", "other", code=1)["error"]["code"] == "RECEIPT_HEADER"


def test_a_receipt_needs_the_ledgers_own_key(shell, run):
    prove = ("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "1", "--receipt", "mine.cose")
    shell.run(*prove, code=2)
    shell.run("attest", "keygen", "mallory")
    assert shell.json(*prove, "--ledger-key", "mallory.key", code=1)["error"]["code"] == "WRONG_KEY"
    assert not (shell.directory / "mine.cose").exists() and not (shell.directory / "mine.tlog-proof").exists()
