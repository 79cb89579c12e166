"""`dptrain ledger cosign`, `merge` and `auditor-key`: from two auditors to a proof that asks for both."""

import shutil
from pathlib import Path

import pytest

from attest import keys
from ledger.note import NoteSigner
from tests.worlds.commands import record

COSIGN = ("ledger", "cosign", "export", "anna.note", "--key", "anna.key", "--log-key", "ledger.pub")
AGAIN = ("ledger", "cosign", "export-2", "anna-2.note", "--key", "anna.key", "--log-key", "ledger.pub")


@pytest.fixture
def run(shell, corpus):
    """A finished run, an export of it, and two auditors; returns their verifier keys."""
    corpus()
    record(shell)
    shell.run("ledger", "export", "ledger.db", "export")
    found = {}
    for name in ("anna", "ben"):
        shell.run("attest", "keygen", name)
        found[name] = shell.run("ledger", "auditor-key", f"{name}.pub").stdout.strip()
    shell.write("auditors.pub", "".join(f"{vkey}\n" for vkey in found.values()))
    return found


def withdraw(shell, ledger: str, record: str) -> None:
    made = shell.json("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", record)
    shell.run("ledger", "withdraw", ledger, made["withdrawals"][0]["path"])


def test_two_auditors_cosign_and_proofs_ask_for_both(shell, run):
    first = shell.json(*COSIGN, "--first")
    assert first["key"] == run["anna"] and first["before"] is None
    ben = ("ledger", "cosign", "export", "ben.note", "--key", "ben.key", "--log-key", "ledger.pub", "--first")
    assert f"--key {run['ben']}" in shell.run(*ben).stdout
    merged = shell.json("ledger", "merge", "export", "anna.note", "ben.note", "--key", "auditors.pub")
    assert [item["name"] for item in merged["cosigners"]] == ["anna", "ben"]
    written = Path("export/checkpoint").read_bytes()
    again = shell.json("ledger", "merge", "export", "anna.note", "--key", "auditors.pub")
    assert len(again["cosigners"]) == 2 and Path("export/checkpoint").read_bytes() == written
    assert "cosigned by ben at" in shell.run("ledger", "merge", "export", "ben.note", "--key", "auditors.pub").stdout
    assert shell.json("ledger", "verify", "export", "--key", "ledger.pub")["verdict"] == "TOLD"
    shell.run("ledger", "prove", "export", "mine.tlog-proof", "--leaf", "1")
    shown = shell.run("ledger", "verify-proof", "mine.tlog-proof", "--key", "ledger.pub").stdout
    assert "\n  clip: 0.5\n" in shown and "\n  class name: sensitive\n" in shown
    check = ("ledger", "verify-proof", "mine.tlog-proof", "--key", "ledger.pub", "--key", "auditors.pub", "--quorum", "2")
    assert [item["name"] for item in shell.json(*check)["cosigners"]] == ["anna", "ben"]
    assert shell.json(*check)["ignored"] == [] and "not checked" in shown
    alone = shell.json("ledger", "verify-proof", "mine.tlog-proof", "--key", "ledger.pub")
    assert [(row["name"], row["key_id"]) for row in alone["ignored"]] == [
        (vkey.split("+")[0], vkey.split("+")[1]) for vkey in run.values()
    ]


def test_an_auditor_who_forgot_a_name_or_that_it_is_the_first_is_told_which(shell, run):
    assert "--first" in shell.json(*COSIGN, code=1)["error"]["sentence"]
    shell.run(*COSIGN, "--first", "--name", "auditor.example/anna")
    told = shell.json(*AGAIN[:2], "export", *AGAIN[3:], code=1)["error"]
    assert told["code"] == "MEMORY" and "by auditor.example/anna; give" in told["sentence"] and "--name" in told["sentence"]
    shell.run(*AGAIN[:2], "export", *AGAIN[3:], "--name", "auditor.example/anna")


def test_what_grew_is_cosigned_and_what_shrank_is_refused_with_evidence(shell, run):
    shell.run(*COSIGN, "--first")
    withdraw(shell, "ledger.db", "1")
    shell.run("ledger", "export", "ledger.db", "export-2")
    assert "extends the" in shell.run(*AGAIN).stdout
    back = ("ledger", "cosign", "export", "old.note", "--key", "anna.key", "--log-key", "ledger.pub")
    assert shell.json(*back, code=1)["error"]["code"] == "BEHIND"
    assert not (shell.directory / "old.note").exists()
    (evidence,) = Path("anna.cosigned").glob("*.evidence")
    assert shell.json("ledger", "verify-proof", str(evidence), "--key", "ledger.pub")["verdict"] == "ROLLBACK"


def test_a_fork_is_refused_and_the_evidence_convinces_anybody(shell, run):
    for suffix in ("", ".highwater"):
        shutil.copy(f"ledger.db{suffix}", f"fork.db{suffix}")
    shutil.copy("ledger.key", "fork.key")
    withdraw(shell, "ledger.db", "1")
    withdraw(shell, "fork.db", "2")
    shell.run("ledger", "export", "ledger.db", "export-2")
    shell.run("ledger", "export", "fork.db", "export-3")
    shell.run(*AGAIN, "--first")
    other = ("ledger", "cosign", "export-3", "fork.note", "--key", "anna.key", "--log-key", "ledger.pub")
    assert shell.json(*other, code=1)["error"]["code"] == "FORKED"
    (evidence,) = Path("anna.cosigned").glob("*.evidence")
    answer = shell.json("ledger", "verify-proof", str(evidence), "--key", "ledger.pub")
    assert answer["verdict"] == "FORK" and answer["remembered"] == answer["offered"]
    assert "two histories" in shell.run("ledger", "verify-proof", str(evidence), "--key", "ledger.pub").stdout
    stranger = NoteSigner("clinic-notes-2026/ledger", keys.generate()).vkey
    assert shell.json("ledger", "verify-proof", str(evidence), "--key", stranger, code=1)["error"]["code"] == "UNSIGNED"


def test_an_auditor_says_once_that_it_is_the_first_time(shell, run):
    assert shell.json(*COSIGN, code=1)["error"]["code"] == "NO_MEMORY"
    shell.run(*COSIGN, "--first")
    shell.run(*COSIGN, code=2)
    Path("anna.note").unlink()
    assert shell.json(*COSIGN, "--first", code=1)["error"]["code"] == "NOT_FIRST"
    assert shell.json(*COSIGN)["before"] > 0


def test_what_fails_the_audit_is_not_cosigned(shell, run):
    shell.write("export/tile/extra", "")
    assert shell.json(*COSIGN, "--first", code=1)["error"]["code"] == "AUDIT_FAILED"
    assert not (shell.directory / "anna.cosigned").exists()


def test_notes_of_another_checkpoint_are_not_merged(shell, run):
    shell.run(*COSIGN, "--first")
    withdraw(shell, "ledger.db", "1")
    shell.run("ledger", "export", "ledger.db", "export-2")
    merge = ("ledger", "merge", "export-2", "anna.note", "--key", "auditors.pub")
    assert shell.json(*merge, code=1)["error"]["code"] == "OTHER_TEXT"


def test_an_auditors_key_goes_under_another_name_where_one_is_given(shell, run):
    vkey = shell.json("ledger", "auditor-key", "anna.pub", "--name", "auditor.example/anna")["key"]
    assert vkey.startswith("auditor.example/anna+") and vkey != run["anna"]
    assert shell.json(*COSIGN, "--first", "--name", "auditor.example/anna")["key"] == vkey
    shell.run("ledger", "auditor-key", "anna.pub", "--name", "two words", code=1)


def test_the_ledger_itself_takes_cosignatures_and_later_exports_have_them(shell, run):
    shell.run(*COSIGN, "--first")
    for _ in range(2):
        merged = shell.json("ledger", "merge", "ledger.db", "anna.note", "--key", "auditors.pub")
        assert [item["name"] for item in merged["cosigners"]] == ["anna"]
    shell.run("ledger", "export", "ledger.db", "export-2")
    assert Path("export-2/checkpoint").read_bytes() == Path("anna.note").read_bytes()
    shell.run("ledger", "prove", "ledger.db", "mine.tlog-proof", "--leaf", "1")
    check = ("ledger", "verify-proof", "mine.tlog-proof", "--key", "ledger.pub", "--key", "auditors.pub", "--quorum", "1")
    assert shell.json(*check)["cosigners"] == merged["cosigners"]


def test_lines_of_auditors_whom_nobody_named_are_not_taken_in(shell, run):
    shell.run(*COSIGN, "--first")
    key_id = run["anna"].split("+")[1]
    for place in ("ledger.db", "export"):
        merged = shell.json("ledger", "merge", place, "anna.note")
        assert merged["cosigners"] == [] and merged["ignored"] == [{"path": "anna.note", "name": "anna", "key_id": key_id}]
        told = shell.run("ledger", "merge", place, "anna.note").stdout
        assert f"anna.note has a line by anna, key id {key_id}: not taken over" in told and "--key" in told
        assert shell.json("ledger", "merge", place, "anna.note", "--key", "auditors.pub")["ignored"] == []


def test_a_line_of_an_unknown_key_is_told_by_verify(shell, run):
    shell.run(*COSIGN, "--first")
    shutil.copy("anna.note", "export/checkpoint")
    verify = ("ledger", "verify", "export", "--key", "ledger.pub")
    answer = shell.json(*verify)
    assert answer["verdict"] == "TOLD" and [(row["name"], row["resembles"]) for row in answer["ignored"]] == [("anna", None)]
    assert "note: 1 signature line by keys neither pinned nor named by the policy counts for nothing: anna (key id" in (
        shell.run(*verify).stdout
    )
    assert shell.json(*verify, "--key", "auditors.pub")["ignored"] == []


def test_the_policys_auditors_need_not_be_named_again(shell, run):
    """The same run under a policy that names two auditors: the audit tells of both, and may ask for them."""
    keep = shell.directory / "named"
    keep.mkdir()
    text = Path("policy.toml").read_text()
    named = ", ".join(f'"{vkey}"' for vkey in run.values())
    Path("policy.toml").write_text(
        text.replace("[[class]]", f"[ledger]\nauditors = [{named}]\nauditor_quorum = 2\n[[class]]", 1)
    )
    for path in ("policy.cose", "ledger.db", "ledger.db.highwater", "ledger.db.lock", "ledger.key", "ledger.pub"):
        Path(path).rename(keep / path)
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    shown = shell.json("policy", "show", "policy.cose")["policy"]
    assert shown["auditors"] == list(run.values()) and shown["auditor_quorum"] == 2
    assert named in shell.run("policy", "show", "policy.cose").stdout
    record(shell)
    shell.run("ledger", "export", "ledger.db", "audited")
    verify = ("ledger", "verify", "audited", "--key", "ledger.pub", "--require-quorum")
    assert shell.json(*verify, code=1)["findings"][0]["code"] == "QUORUM"
    for name in run:
        cosign = ("ledger", "cosign", "audited", f"{name}.note", "--key", f"{name}.key", "--log-key", "ledger.pub", "--first")
        assert "--key" not in shell.run(*cosign).stdout
    shell.run("attest", "keygen", "carla")
    carla = ("ledger", "cosign", "audited", "carla.note", "--key", "carla.key", "--log-key", "ledger.pub", "--first")
    assert "the policy names other auditors" in shell.run(*carla).stdout
    shell.run("ledger", "merge", "audited", "anna.note", "ben.note")
    answer = shell.json(*verify)
    assert answer["quorum_met"] and any(note.startswith("cosigned by 2 of the 2 auditors") for note in answer["notes"])
    shell.run("ledger", "prove", "audited", "mine.tlog-proof", "--leaf", "1")
    assert len(shell.json("ledger", "verify-proof", "mine.tlog-proof", "--trust", "audited/policy")["cosigners"]) == 2
