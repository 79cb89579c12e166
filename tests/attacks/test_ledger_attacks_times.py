"""Rows A21, B8, B25 and B26 of the attack lists, told of time: leaves, cosignatures and summaries dated as it suits whoever
writes them, a clock that runs ahead, and what was pruned before it was time.

The liar has the log's key, and where it says so those of auditors: every lie is hashed, stored and signed as it should be.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from attest.schema.plain import AHEAD_SECONDS, EARLIEST, MAX_TIME
from ledger.audit import verify_export
from ledger.errors import CosignRefused, LeafRefused, LedgerCorrupt, NoteError, RetentionRefused, TrustError
from ledger.leaves import Leaf, Withdraw, decode_leaf, encode_leaf
from ledger.log import Ledger
from ledger.note import cosign, open_note, sign_note, with_signature
from ledger.proofs.cosigning import Memory, cosign_export
from ledger.proofs.prover import ExportReader
from ledger.proofs.single_leaf import make_proof, verify_proof
from ledger.replay.signer import JUMP_SECONDS
from ledger.retention import summary_keys, vouch
from ledger.trust import auditors_policy
from tests.attacks.test_ledger_attacks_audit import stored
from tests.worlds.ledgers import SIGNER, START, Driver, admission, descriptor, header_spec, signed_policy
from tests.worlds.retained_ledgers import (
    ANNA,
    AUDITORS,
    BEN,
    export_of,
    forged_export,
    grown,
    is_pruned,
    leaves_of,
    retaining_spec,
    vouched_for,
)

NOW = START + 10_000
YEAR = 365 * 86400
KEYS = [SIGNER.vkey]


def shifted(leaves: list[Leaf], seconds: int, first: int = 0) -> list[Leaf]:
    """The leaves, from one on, dated otherwise; their own checks are gone around where no leaf may have such a time."""
    moved = list(leaves)
    for seq in range(first, len(leaves)):
        leaf = replace(leaves[seq])
        object.__setattr__(leaf, "time", leaf.time + seconds)
        moved[seq] = leaf
    return moved


def found(leaves: list[Leaf], directory: Path, now: int = NOW) -> set[tuple[str, str]]:
    """Codes and places of what an auditor finds."""
    return {(item.code, item.where) for item in verify_export(forged_export(leaves, directory), KEYS, now=now).findings}


# --- leaves -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [0, 1, EARLIEST - 1, MAX_TIME, 2**63 - 1], ids=str)
def test_A21_no_leaf_is_dated_before_ledgers_were_or_in_the_year_10000(leaves, time, tmp_path):
    """Every leaf of a ledger dated alike: times that never run back, in the seventies or at the end of time."""
    for leaf in (leaves[0], leaves[1]):
        with pytest.raises(LeafRefused) as caught:
            replace(leaf, time=time)
        assert caught.value.code == "RANGE"
    moved = [shifted([leaf], time - leaf.time)[0] for leaf in leaves]
    with pytest.raises(LeafRefused):
        decode_leaf(encode_leaf(moved[1]))
    assert found(moved, tmp_path / "export") == {("RANGE", "seq 0")}


def test_A21_a_ledger_dated_ahead_of_the_auditors_clock_is_FAILED(leaves, tmp_path):
    assert found(shifted(leaves, 31 * YEAR), tmp_path / "years") == {("CLOCK", "seq 0")}
    last = leaves[-1].time
    export = forged_export(leaves, tmp_path / "export")
    assert verify_export(export, KEYS, now=last - AHEAD_SECONDS).verdict == "TOLD"
    report = verify_export(export, KEYS, now=last - AHEAD_SECONDS - 1)
    (finding,) = report.findings
    first = next(leaf.seq for leaf in leaves if leaf.time == last)
    assert (report.verdict, finding.code, finding.where) == ("FAILED", "CLOCK", f"seq {first}")
    assert report.now == last - AHEAD_SECONDS - 1 and report.last_time == last


def test_A21_the_clock_of_the_machine_is_asked_where_nobody_says_what_time_it_is(leaves, tmp_path, monkeypatch):
    export = forged_export(leaves, tmp_path / "export")
    monkeypatch.setattr("attest.schema.plain.time.time", lambda: START - YEAR)
    assert {finding.code for finding in verify_export(export, KEYS).findings} == {"CLOCK"}
    monkeypatch.setattr("attest.schema.plain.time.time", lambda: float(NOW))
    assert verify_export(export, KEYS).verdict == "TOLD"


def test_A21_time_runs_back_at_a_clock_leaf_alone(run, leaves, tmp_path):
    """Undone, the step is a finding; told by a CLOCK leaf it is a note; by one that says another time before, a finding."""
    assert ("CLOCK", "seq 3") in found(shifted(leaves, -5, first=3), tmp_path / "back")
    run.admit(admission(1))
    run.now += JUMP_SECONDS - 10
    run.admit(admission(2))
    leaf = run.ledger.set_clock("the clock of node 3 was ahead", now=START + 100)
    run.now = START + 100
    run.admit(admission(3))
    told = leaves_of(run.ledger)
    assert (leaf.time, leaf.before) == (START + 100, told[2].time) and leaf == told[3]
    export = export_of(run, tmp_path / "told")
    report = verify_export(export, KEYS, now=START + 200)
    assert report.verdict == "TOLD"
    assert [(row.seq, row.before, row.time, row.reason) for row in report.clock_sets] == [
        (3, leaf.before, leaf.time, leaf.reason)
    ]
    assert any("leaf 3 sets the ledger's clock back" in note and leaf.reason in note for note in report.notes)
    for lie in (replace(leaf, before=leaf.before + 1), replace(leaf, before=leaf.before - 1)):
        assert ("CLOCK", "seq 3") in found([*told[:3], lie, *told[4:]], tmp_path / f"lie{lie.before}", START + 200)
        assert "takes back the time" in stored([*told[:3], lie, *told[4:]], tmp_path / f"lie{lie.before}.db").sentence
    with pytest.raises(LeafRefused):
        replace(leaf, before=leaf.time)


def test_A21_what_a_clock_leaf_did_not_take_back_is_still_held_against_the_auditors_clock(run, tmp_path):
    run.admit(admission(1))
    run.now += JUMP_SECONDS - 10
    run.admit(admission(2))
    run.ledger.set_clock("back, and ahead again", now=START + 100)
    run.now = START + JUMP_SECONDS
    run.admit(admission(3))
    report = verify_export(export_of(run, tmp_path / "export"), KEYS, now=START + 200)
    assert {(item.code, item.where) for item in report.findings} == {("CLOCK", "seq 4")}


def test_A21_the_clock_is_set_back_only_where_the_ledger_cannot_go_on(run):
    run.admit(admission(1))
    for now in (run.now, run.now - 60, run.now + YEAR):
        with pytest.raises(LeafRefused) as caught:
            run.ledger.set_clock("why not", now=now)
        assert caught.value.code == "CLOCK_UNNEEDED"
    for reason in ("", "x" * 201, "two\nlines", "\x1b[2J", "na\u00efve"):
        with pytest.raises(LeafRefused):
            run.ledger.set_clock(reason, now=run.now - 61)
    size = run.ledger.size
    assert run.ledger.set_clock("a minute and a second", now=run.now - 61).seq == size
    assert run.ledger.size == size + 1 == max(run.ledger.checkpoint_sizes)


def test_A21_the_clock_of_a_closed_run_can_be_set_too_and_survives_being_opened(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.whole_run()
        ledger.withdraw(descriptor(1), "contributor", bytes(32), now=START + YEAR)
        with pytest.raises(LeafRefused, match="set-clock"):
            ledger.withdraw(descriptor(5), "contributor", bytes(32), now=START + 500)
        ledger.set_clock("a withdrawal was entered under a clock of next year", now=START + 500)
        ledger.withdraw(descriptor(5), "contributor", bytes(32), now=START + 501)
    with Ledger.open(tmp_path / "ledger.db", SIGNER, recompute=True) as ledger:
        assert ledger.state.last_time == START + 501 and len(ledger.state.timeline.sets) == 1
        assert ledger.state.timeline.at(ledger.size - 2) == START + YEAR


# --- the writer's clock -------------------------------------------------------------------------------------------------


def test_A21_a_clock_that_jumps_ahead_is_asked_about_before_anything_is_written(run):
    run.admit(admission(1))
    size, late = run.ledger.size, run.now + JUMP_SECONDS + 1
    calls = (
        lambda now: run.ledger.charge(1, 4, now=now, noise_stream=run.stream()),
        lambda now: run.ledger.resume(0, None, now=now),
        lambda now: run.ledger.withdraw(descriptor(1), "expired", bytes(32), now=now),
        lambda now: run.ledger.admit([admission(2)], now=now),
    )
    for call in calls:
        with pytest.raises(LeafRefused) as caught:
            call(late)
        assert caught.value.code == "CLOCK_JUMP"
        assert "--clock-jump-ok" in caught.value.sentence and "2025-" in caught.value.sentence
    assert run.ledger.size == size
    run.ledger.accept_clock(late)
    run.ledger.withdraw(descriptor(1), "expired", bytes(32), now=late)
    run.ledger.resume(0, None, now=late)
    with pytest.raises(LeafRefused, match="CLOCK_JUMP"):
        run.ledger.resume(0, None, now=late + JUMP_SECONDS + 1)


def test_A21_a_signed_withdrawal_is_taken_however_long_after_the_last_leaf(run):
    run.admit(admission(1))
    run.ledger.withdraw(descriptor(1), "consent", bytes(32), now=run.now + 3 * YEAR)
    assert isinstance(leaves_of(run.ledger)[-1], Withdraw)


# --- cosignatures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def audited_run(tmp_path):
    """An export whose policy asks for two auditors, and the time of its last leaf."""
    spec = header_spec(signed_policy(auditors=AUDITORS, auditor_quorum=2))
    with Ledger.create(tmp_path / "audited.db", spec, SIGNER, now=START) as ledger:
        driver = Driver(ledger)
        driver.admit(admission(1))
        return export_of(driver, tmp_path / "audited"), driver.now


def forged_cosignature(note: bytes, who, time: int) -> bytes:
    """A cosignature at any time at all, by an auditor who lends the key to it."""
    text = open_note(note, KEYS).text
    signature = who.key.sign(f"cosignature/v1\ntime {time}\n{text}".encode())
    return with_signature(note, who.verifier, time.to_bytes(8, "big") + signature)


@pytest.mark.parametrize("time", [0, EARLIEST, "before", "ahead", MAX_TIME, 10**12, 2**62], ids=str)
def test_B8_a_cosignature_counts_only_between_the_last_leaf_and_the_readers_clock(audited_run, time, tmp_path):
    export, last = audited_run
    now = last + 500
    time = {"before": last - 1, "ahead": now + AHEAD_SECONDS + 1}.get(time, time)
    note = (export / "checkpoint").read_bytes()
    good = forged_cosignature(note, BEN, now)
    (export / "checkpoint").write_bytes(forged_cosignature(good, ANNA, time))
    report = verify_export(export, KEYS, now=now, require_quorum=True)
    assert {item.code for item in report.findings} == {"QUORUM"} and report.quorum_met is False
    assert {signer.name: signer.counts for signer in report.signers} == {SIGNER.name: True, BEN.name: True, ANNA.name: False}
    assert any(ANNA.name in line and "counts for nothing" in line for line in report.notes)
    policy = auditors_policy(SIGNER.vkey, [ANNA.vkey, BEN.vkey], 2)
    with pytest.raises(TrustError) as caught:
        policy.judged_since(policy.open_checkpoint((export / "checkpoint").read_bytes(), now=now), last)
    assert caught.value.code == "QUORUM" and ANNA.name in caught.value.sentence
    for fine in (last, now, now + AHEAD_SECONDS):
        (export / "checkpoint").write_bytes(forged_cosignature(good, ANNA, fine))
        assert verify_export(export, KEYS, now=now, require_quorum=True).verdict == "TOLD"
        opened = policy.open_checkpoint((export / "checkpoint").read_bytes(), now=now)
        assert len(policy.judged_since(opened, last).cosigned) == 2


def test_B8_a_proof_does_not_count_a_cosignature_from_before_its_leaf(audited_run):
    export, last = audited_run
    policy = auditors_policy(SIGNER.vkey, [ANNA.vkey], 1)
    for time, code in ((last - 1, "QUORUM"), (last, None), (last + 7201, "QUORUM")):
        (export / "checkpoint").write_bytes(forged_cosignature(sign_note(_text(export), SIGNER), ANNA, time))
        reader = ExportReader(export)
        proof = make_proof(reader.node, 1, reader.size, reader.checkpoint, reader.leaf(1)).to_bytes()
        if code is None:
            assert verify_proof(proof, policy, now=last + 3600).trusted.cosigned[0].timestamp == time
            continue
        with pytest.raises(TrustError) as caught:
            verify_proof(proof, policy, now=last + 3600)
        assert caught.value.code == code


def _text(export: Path) -> str:
    return open_note((export / "checkpoint").read_bytes(), KEYS).text


def test_B8_an_auditor_whose_clock_lags_a_little_signs_a_time_that_counts(audited_run, tmp_path):
    export, last = audited_run
    done = cosign_export(export, KEYS, ANNA, Memory(tmp_path / "anna", ANNA.vkey), now=last - 60, first=True)
    (line,) = open_note(done.note, [ANNA.vkey]).signatures
    assert line.timestamp == last
    with pytest.raises(CosignRefused, match="ahead of the clock here"):
        memory = Memory(tmp_path / "ben", BEN.vkey)
        cosign_export(export, KEYS, BEN, memory, now=last - AHEAD_SECONDS - 1, first=True)


def test_B8_nobody_cosigns_or_vouches_in_the_year_10000(audited_run):
    note = (audited_run[0] / "checkpoint").read_bytes()
    for time in (MAX_TIME, 10**12, -1):
        with pytest.raises(NoteError):
            cosign(note, ANNA, KEYS, time=time)
        with pytest.raises(NoteError):
            vouch(note, ANNA, KEYS, since=1, time=time)


def test_B6_an_old_export_is_found_out_where_the_reader_asks_how_old_it_may_be(audited_run):
    export, last = audited_run
    assert verify_export(export, KEYS, now=last + YEAR).verdict == "TOLD", "nobody asked"
    assert verify_export(export, KEYS, now=last + 600, max_age=600).verdict == "TOLD"
    assert {item.code for item in verify_export(export, KEYS, now=last + 601, max_age=600).findings} == {"STALE"}
    (export / "checkpoint").write_bytes(forged_cosignature((export / "checkpoint").read_bytes(), ANNA, last + 500))
    assert verify_export(export, [*KEYS, ANNA.vkey], now=last + 601, max_age=600).verdict == "TOLD"
    (export / "checkpoint").write_bytes(forged_cosignature(sign_note(_text(export), SIGNER), ANNA, 2**62))
    report = verify_export(export, [*KEYS, ANNA.vkey], now=last + 601, max_age=600)
    assert {item.code for item in report.findings} == {"STALE"}, "a cosignature that counts for nothing makes nothing fresh"


# --- summaries and pruning ----------------------------------------------------------------------------------------------


def forged_statement(note: bytes, who, since: int, time: int) -> bytes:
    """A statement on summaries at any time at all."""
    from ledger.note import summary_message
    from ledger.retention import summary_key

    text = open_note(note, KEYS).text
    signature = who.key.sign(summary_message(time, since, text))
    return with_signature(note, summary_key(who.verifier), time.to_bytes(8, "big") + since.to_bytes(8, "big") + signature)


@pytest.mark.parametrize("time", [0, "before", 10**12, 2**62], ids=str)
def test_B25_statements_on_summaries_dated_at_will_let_nothing_be_pruned(tmp_path, time):
    driver = grown(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        leaf = ledger.summarise(now=driver.tick())
        note = ledger.checkpoint
        for who in (ANNA, BEN):
            note = forged_statement(note, who, leaf.seq, leaf.time - 1 if time == "before" else time)
        ledger.add_signatures(note, summary_keys(ledger.header))
        driver.steps(1)
        driver.epoch()
        assert ledger.vouchers == {leaf.seq: ()}
        with pytest.raises(RetentionRefused) as caught:
            ledger.prune()
        assert caught.value.code == "UNVOUCHED"


def test_B25_an_export_pruned_on_misdated_statements_is_FAILED(tmp_path):
    """The same statements in an export that was pruned on good ones: the auditor asks when they were made too."""
    driver = grown(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        leaf = ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        ledger.prune()
        export = export_of(driver, tmp_path / "export")
    assert is_pruned(verify_export(export, KEYS))
    vouched = leaf.time
    report = verify_export(export, KEYS, now=vouched - AHEAD_SECONDS - 1)
    assert {"CLOCK", "UNVOUCHED"} <= {item.code for item in report.findings}


def test_B26_what_was_pruned_before_another_epoch_closed_is_found(tmp_path, monkeypatch):
    """The pruner alone kept the wait; now whoever opens or audits what it left asks for it too."""
    driver = grown(tmp_path / "ledger.db")
    with driver.ledger as ledger:
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        with pytest.raises(RetentionRefused, match="TOO_EARLY"):
            ledger.prune()
        monkeypatch.setattr("ledger.log.retaining.waited", lambda *_: True)
        with pytest.raises(LedgerCorrupt) as caught:
            ledger.prune()
        assert caught.value.code == "TOO_EARLY", "tried first, as everything that is pruned"
        monkeypatch.setattr("ledger.retention.waited", lambda *_: True)
        ledger.prune()
        early = export_of(driver, tmp_path / "early")
        monkeypatch.undo()
        assert {item.code for item in verify_export(early, KEYS).findings} == {"TOO_EARLY"}
    with pytest.raises(LedgerCorrupt) as caught:
        Ledger.open(tmp_path / "ledger.db", SIGNER)
    assert caught.value.code == "TOO_EARLY"


def test_B26_a_ledger_whose_clock_was_set_back_can_be_pruned_like_any_other(tmp_path):
    """The one leaf that had the time which the CLOCK leaf takes back is pruned with the rest."""
    driver = Driver(Ledger.create(tmp_path / "ledger.db", retaining_spec(), SIGNER, now=START), now=START)
    with driver.ledger as ledger:
        driver.admit(admission(1), admission(2))
        driver.now += 1000
        driver.admit(admission(3))
        leaf = ledger.set_clock("ahead by a quarter of an hour", now=START + 100)
        driver.now = START + 100
        driver.steps(1)
        driver.withdraw(3)
        driver.epoch()
        driver.steps(1)
        driver.epoch()
        ledger.summarise(now=driver.tick())
        vouched_for(driver, ANNA, BEN)
        driver.steps(1)
        driver.epoch()
        assert ledger.prune() and ledger.pruned_before > leaf.seq
        export = export_of(driver, tmp_path / "export")
    report = verify_export(export, KEYS)
    assert is_pruned(report) and "CLOCK_SET" in report.qualifiers
    assert [row.before for row in report.clock_sets] == [START + 1002]
    with Ledger.open(tmp_path / "ledger.db", SIGNER, recompute=True) as ledger:
        assert ledger.state.timeline.sets == [leaf]
