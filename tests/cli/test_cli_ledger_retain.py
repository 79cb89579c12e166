"""`dptrain ledger retain`: from a summary over two auditors' word to a pruned ledger, and every refusal in between."""

import hashlib
from dataclasses import replace

import pytest

from attest.keys import save_private_key
from dptrain.record.pin import KIND, PIN
from ledger.log import Ledger
from ledger.log.pinned import Pin, sign_pinned
from tests.worlds.attested_ledgers import put_registry
from tests.worlds.checkpoints import checkpoint_of
from tests.worlds.ledgers import LOG_KEY, SIGNER, Driver
from tests.worlds.retained_ledgers import ANNA, BEN, crowded_and_pruned, grown

RETAIN = ("ledger", "retain", "ledger.db")
EXPORT = ("ledger", "export", "ledger.db")
REGISTRY = ("--registry", "registry.cbor")
LONG_AGO = 1_700_000_000


@pytest.fixture
def files(shell):
    """The key of the ledger, and those of two auditors."""
    save_private_key(shell.directory / "ledger.key", LOG_KEY)
    for cosigner in (ANNA, BEN):
        save_private_key(shell.directory / f"{cosigner.name.rpartition('/')[2]}.key", cosigner.key)
    return shell.directory


@pytest.fixture
def run(files):
    """Three closed epochs of a run whose policy keeps one, over signed admissions."""
    grown(files / "ledger.db", attested=True).ledger.close()
    put_registry(files)
    return files


def cosign(shell, export: str, who: str, *options: str, first: bool = True, code: int = 0) -> str:
    """The file of the note, or what is said where nothing is cosigned."""
    note = f"{who}-{export}.note"
    done = shell.run(
        *("ledger", "cosign", export, note, "--key", f"{who}.key", "--name", f"auditor.example/{who}"),
        *("--log-key", SIGNER.vkey, *(["--first"] if first else []), "--summary", *options),
        code=code,
    )
    return done.stderr if code else note


def grow(directory) -> None:
    """One more epoch, by the run itself."""
    with Ledger.open(directory / "ledger.db", SIGNER) as ledger:
        driver = Driver(ledger, now=ledger.state.last_time, streams=500)
        ledger.resume(ledger.state.position, ledger.pin(), now=driver.tick())
        driver.steps(1)
        driver.epoch()


def test_summarise_vouch_and_prune(shell, run):
    told = shell.json(*RETAIN)
    assert told["quorum"] == 2 and told["pruned"] is None
    assert [(row["leaf"], row["first"], row["state"]) for row in told["summaries"]] == [(told["summary"], 1, "waiting")]
    again = shell.run(*RETAIN).stdout
    assert "no epoch is past the horizon" in again and "waiting, vouched for by nobody" in again
    shell.run(*EXPORT, "told")
    assert "BOUNDS_TOLD" in cosign(shell, "told", "anna", code=1)
    shell.run(*EXPORT, "export", *REGISTRY)
    notes = [cosign(shell, "export", who) for who in ("anna", "ben")]
    assert "has 2 cosignatures" in shell.run("ledger", "merge", "export", *notes).stdout
    shell.run("ledger", "prove", "export", "early.proof", "--leaf", "1")
    shown = shell.run("ledger", "verify-proof", "early.proof", "--trust", "export/policy").stdout
    assert "cosigned by auditor.example/anna at" in shown and "not checked" not in shown
    assert "summary-v1" in shell.run("ledger", "verify-proof", "early.proof", "--key", SIGNER.vkey).stdout
    merged = shell.json("ledger", "merge", "ledger.db", *notes)
    assert [item["name"] for item in merged["cosigners"]] == merged["vouchers"] and len(merged["vouchers"]) == 2
    whole = shell.json("ledger", "fsck", "ledger.db")
    assert whole["pruned"] == whole["pruned_before"] == 0
    early = shell.json(*RETAIN, "--prune", code=1)
    assert early["error"]["code"] == "TOO_EARLY"
    grow(run)
    done = shell.json(*RETAIN, "--prune")
    assert done["pruned"] == 3 and done["pruned_before"] == done["summaries"][0]["end"]
    assert [row["state"] for row in done["summaries"]] == ["pruned"]
    assert done["summaries"][0]["vouchers"] == [ANNA.name, BEN.name]
    lean = shell.json("ledger", "fsck", "ledger.db")
    assert lean["verdict"] == "OK" and (lean["pruned"], lean["pruned_before"]) == (3, done["pruned_before"])
    assert lean["epsilons"] == whole["epsilons"] + 3 > 3, "three groups had a row in the last epoch, and no row is gone"
    assert "the bodies of 3 leaves below" in shell.run("ledger", "fsck", "ledger.db").stdout
    shell.run(*EXPORT, "lean", *REGISTRY)
    found = shell.json("ledger", "verify", "lean", "--key", SIGNER.vkey)
    assert found["verdict"] == "SUMMARISED" and "PRUNED" in found["qualifiers"] and found["summaries"][0]["pruned"] == 3
    assert "PRUNED" in shell.run("ledger", "verify", "lean", "--key", SIGNER.vkey).stdout
    assert shell.json("ledger", "prove", "lean", "x.proof", "--leaf", "2", code=1)["error"]["code"] == "PRUNED"
    assert shell.json("ledger", "prove", "ledger.db", "x.proof", "--leaf", "2", code=1)["error"]["code"] == "PRUNED"
    shell.run("ledger", "prove", "lean", "mine.proof", "--leaf", "1")
    shell.run("ledger", "report", "lean", "report.html", "--key", SIGNER.vkey)
    assert "PRUNED" in (run / "report.html").read_text()


def test_a_pruned_ledger_shows_its_run_and_its_contributions(shell, files):
    with crowded_and_pruned(files / "ledger.db", files, people=20).ledger as ledger:
        gone = next(name for name in ledger.state.withdrawals if name in ledger.state.contributions)
    assert shell.json("ledger", "show", "ledger.db")["size"] > 0
    shown = shell.run("ledger", "show", "ledger.db", "--withdrawn").stdout
    assert gone.hex() in shown


def test_nothing_goes_without_auditors_quorum_or_summary(shell, run):
    assert shell.json(*RETAIN, "--prune", code=1)["error"]["code"] == "NO_SUMMARY"
    shell.run(*RETAIN)
    grow(run)
    refused = shell.json(*RETAIN, "--prune", code=1)["error"]
    assert refused["code"] == "UNVOUCHED" and "cosign --summary" in str(refused)


def test_a_policy_without_auditors_says_what_to_sign(shell, files):
    driver = grown(files / "ledger.db", start=LONG_AGO, auditors=(), auditor_quorum=None)
    driver.ledger.close()
    shell.run(*RETAIN)
    refused = shell.json(*RETAIN, "--prune", code=1)["error"]
    assert refused["code"] == "NO_AUDITORS" and "auditor_quorum" in str(refused)


def test_a_policy_that_keeps_everything_is_left_alone(shell, files):
    grown(files / "ledger.db", start=LONG_AGO, retention_epochs=0).ledger.close()
    for options in ((), ("--prune",)):
        assert shell.json(*RETAIN, *options, code=1)["error"]["code"] == "RETENTION"


def test_hashes_go_when_the_policy_lets_them(shell, files):
    crowded_and_pruned(files / "ledger.db", files, people=24, retention_hash_epochs=1).ledger.close()
    shell.run("ledger", "prove", "ledger.db", "before.proof", "--leaf", "1")
    with Ledger.open(files / "ledger.db", SIGNER) as ledger:
        pin = Pin(ledger.header.origin, 6, ledger._file.root_at(6), ledger.header_digest)
        beside = checkpoint_of(ledger, 1) / PIN
    beside.write_bytes(sign_pinned(KIND, replace(pin, root=bytes(32)), [1, 0, "held", 6, bytes(32), None], SIGNER))
    assert shell.json(*RETAIN, "--drop-hashes", code=1)["error"]["code"] == "FORKED"
    beside.write_bytes(sign_pinned(KIND, pin, [1, 0, "held", 6, hashlib.sha256(b"states").digest(), None], SIGNER))
    told = shell.json(*RETAIN, "--drop-hashes")
    assert told["hashes_gone"] > 5 and told["hashes_before"] == told["pruned_before"] == told["summaries"][0]["end"]
    assert [row["state"] for row in told["summaries"]] == ["pruned, hashes too"]
    assert shell.json(*RETAIN, "--drop-hashes", code=1)["error"]["code"] == "NOT_PRUNED"
    assert "not both" in shell.run(*RETAIN, "--drop-hashes", "--prune", code=2).stderr
    assert shell.json("ledger", "fsck", "ledger.db")["verdict"] == "OK"
    shell.run("ledger", "export", "ledger.db", "lean")
    found = shell.json("ledger", "verify", "lean", "--key", SIGNER.vkey)
    assert found["verdict"] == "TOLD" and "PRUNED" in found["qualifiers"]
    assert found["summaries"][0]["hashes_gone"] > told["hashes_gone"]
    assert any("shown only by a proof file made before" in note for note in found["notes"])
    for place in ("lean", "ledger.db"):
        assert shell.json("ledger", "prove", place, "x.proof", "--leaf", "5", code=1)["error"]["code"] == "PRUNED"
        shell.run("ledger", "prove", place, f"{place}.proof", "--leaf", "1")
        shell.run("ledger", "verify-proof", f"{place}.proof", "--key", SIGNER.vkey)


def test_hashes_stay_where_the_policy_says_so(shell, files):
    crowded_and_pruned(files / "ledger.db", files, people=24, retention_hash_epochs=0).ledger.close()
    refused = shell.json(*RETAIN, "--drop-hashes", code=1)["error"]
    assert refused["code"] == "RETENTION" and "kept for ever" in str(refused)


def test_who_stayed_goes_from_a_closed_run_and_is_still_shown_and_withdrawn(shell, run):
    """Proofs are handed out first; what they show is verified after, offline, and a withdrawal brings one."""
    shell.json(*RETAIN)
    shell.run(*EXPORT, "whole", *REGISTRY)
    for who in ("anna", "ben"):
        cosign(shell, "whole", who)
        shell.run("ledger", "merge", "ledger.db", f"{who}-whole.note")
    assert "goes with --prune" in shell.run(*RETAIN, "--who-stays", code=2).output
    assert "RUNNING" in shell.run(*RETAIN, "--prune", "--who-stays", code=1).output
    with Ledger.open(run / "ledger.db", SIGNER) as ledger:
        ledger.finish(now=ledger.state.last_time + 1)
        name = next(iter(ledger.state.contributions)).hex()
    assert "UNVOUCHED" in shell.run(*RETAIN, "--prune", "--who-stays", code=1).output
    shell.run(*EXPORT, "closed", *REGISTRY)
    for who in ("anna", "ben"):
        cosign(shell, "closed", who, first=False)
        shell.run("ledger", "merge", "ledger.db", f"{who}-closed.note")
    shell.run("ledger", "prove", "ledger.db", "one.tlog-proof", "--contribution", name, "--kind", "summary")
    assert shell.json(*RETAIN, "--prune", "--who-stays")["pruned"] == 6
    verify = ("ledger", "verify-proof", "one.tlog-proof", "--key", SIGNER.vkey, "--member", "one.tlog-proof.member")
    told = shell.json(*verify)
    assert told["member"]["contribution"] == name and told["member"]["clip_micro"] == 1_000_000
    shell.run("ledger", "prove", "ledger.db", "again.tlog-proof", "--contribution", name, "--kind", "summary")
    assert (run / "again.tlog-proof.member").read_bytes() == (run / "one.tlog-proof.member").read_bytes()
    (run / "ledger.db.members").unlink()
    shell.run("ledger", "prove", "ledger.db", "no.tlog-proof", "--contribution", name, "--kind", "summary", code=1)
