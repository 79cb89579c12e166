"""`dptrain ledger monitor`: what a cron job of a contributor is told."""

import shutil
from pathlib import Path

import pytest

from tests.worlds.commands import record

WATCH = ("ledger", "monitor", "export", "--key", "ledger.pub", "--attestations", "corpus/notes.jsonl.attest")


@pytest.fixture
def run(shell, corpus):
    """A finished run over five notes, and an export of it."""
    corpus()
    record(shell)
    shell.run("ledger", "export", "ledger.db", "export")


def test_a_contributor_is_told_of_each_contribution_and_the_exit_code_is_0(shell, run):
    shown = shell.run(*WATCH, "--pub", "alice.pub", "--remember", "seen").stdout
    assert shown.count("admitted in clinic-notes-2026/ledger") == 5 and "no alarm" in shown
    assert "signed and recorded: class sensitive, clip norm 0.5, noise 1.2" in shown and "spent: epsilon" in shown
    told = shell.json(*WATCH, "--remember", "seen")
    assert [row["name"] for row in told["contributions"]] == [f"notes.jsonl.attest, {n}" for n in range(1, 6)]
    assert (told["alarms"], told["exit_code"], told["ledgers"][0]["verdict"]) == ([], 0, "TOLD")


def test_a_withdrawal_that_was_sent_and_not_entered_is_exit_code_3(shell, run):
    made = shell.json("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "alice.key", "--record", "2")
    sent = ("--withdrawals", "withdrawals")
    assert "you withdrew it" in shell.run(*WATCH, *sent).stdout
    later = ("--now", "+8d")
    told = shell.json(*WATCH, *sent, *later, code=3)
    assert [alarm["code"] for alarm in told["alarms"]] == ["WITHDRAWAL_MISSING"] and told["exit_code"] == 3
    assert shell.json(*WATCH, *sent, "--now", "+1d", "--delay", "12h", code=3)["alarms"]
    shell.run(
        *("ledger", "withdraw", "ledger.db", made["withdrawals"][0]["path"], "--registry", "registry.cbor"),
        *("--attestations", "corpus/notes.jsonl.attest"),
    )
    shutil.rmtree("export")
    shell.run("ledger", "export", "ledger.db", "export")
    shown = shell.run(*WATCH, *sent, *later).stdout
    assert "consent" in shown and "no alarm" in shown


def test_what_was_admitted_and_is_in_no_attestation_given_is_exit_code_5(shell, run):
    shell.run("attest", "keygen", "carol")
    shell.write("one.jsonl", '{"text": "another"}\n')
    shell.run(
        *("attest", "sign", "one.jsonl", "--key", "carol.key", "--class", "sensitive"),
        *("--policy", "policy.cose", "--owner-key", "owner.pub"),
    )
    words = ("ledger", "monitor", "export", "--key", "ledger.pub", "--attestations", "one.jsonl.attest")
    assert shell.json(*words)["contributions"][0]["seq"] is None
    told = shell.json(*words, "--pub", "alice.pub", code=5)
    assert [alarm["code"] for alarm in told["alarms"]] == ["UNSIGNED"] * 5


def test_a_cut_tail_is_exit_code_6_and_a_broken_export_1(shell, run):
    shutil.copytree("export", "old")
    made = shell.json("attest", "withdraw", "corpus/notes.jsonl.attest", "--key", "owner.key", "--record", "1")
    shell.run("ledger", "withdraw", "ledger.db", made["withdrawals"][0]["path"])
    shutil.rmtree("export")
    shell.run("ledger", "export", "ledger.db", "export")
    shell.run(*WATCH, "--remember", "seen")
    old = ("ledger", "monitor", "old", *WATCH[3:])
    told = shell.json(*old, "--remember", "seen", code=6)
    assert [alarm["code"] for alarm in told["alarms"]] == ["BEHIND"]
    Path("old/policy").write_text("quorum none\n")
    assert "POLICY_FILE" in shell.run(*old, code=1).stdout


def test_a_folder_of_withdrawals_that_holds_anything_else_is_wrong_use(shell, run):
    """A file that was passed over would hide an alarm."""
    shell.write("withdrawals/mine.cose", "no withdrawal")
    shell.run(*WATCH, "--withdrawals", "withdrawals", code=2)
