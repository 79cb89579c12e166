"""The gate says of withdrawals that wait beside a ledger, there or to come, that it does not count them."""

import pytest


def test_withdrawals_that_wait_for_a_run_are_told(shell, corpus):
    corpus()
    folder = shell.directory / "ledger.db.withdrawals"
    folder.mkdir()
    (folder / "one.cose").write_bytes(b"signed elsewhere")
    words = ("gate", "policy.cose", "corpus", "--registry", "registry.cbor", "--owner-key", "owner.pub")
    told = shell.run(*words, "--for", "ledger.db").stderr
    assert "1 withdrawal in" in told and "waits for the run, which enters them before its next window" in told
    (folder / "one.cose").rename(folder / "one.cose.taken")
    assert "withdrawal" not in shell.run(*words, "--for", "ledger.db").stderr


@pytest.mark.parametrize("words", [(), ("--for", "ledger.db")])
def test_nothing_is_told_where_none_waits(shell, corpus, words):
    corpus()
    done = shell.run("gate", "policy.cose", "corpus", "--registry", "registry.cbor", "--owner-key", "owner.pub", *words)
    assert "withdrawal" not in done.stderr
