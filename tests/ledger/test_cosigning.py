"""Auditors who cosign: what they remember, what they refuse, and the evidence that they keep."""

import fcntl
import shutil
import threading
from pathlib import Path

import pytest

from attest.keys import public_bytes
from ledger.errors import (
    CosignRefused,
    LedgerBehind,
    LedgerCorrupt,
    LedgerError,
    LedgerForked,
    NoteError,
    ProofError,
)
from ledger.log import Ledger
from ledger.merkle import root
from ledger.note import Cosigner, NoteSigner, checkpoint_text, open_note, parse_checkpoint, sign_note
from ledger.proofs import cosigning
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Evidence, Memory, judge, parse_evidence
from tests.worlds.ledgers import OTHER_KEY, OWNER_KEY, SIGNER, START, Driver, admission, header_spec

ANNA = Cosigner("auditor.example/anna", OTHER_KEY)
KEYS = [SIGNER.vkey]


class Run:
    """A run that exports at every epoch, so that auditors see it grow; and its fork, from the first epoch on."""

    def __init__(self, base: Path) -> None:
        with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
            driver = Driver(ledger)
            driver.admit(admission(1))
            driver.steps()
            driver.epoch()
            self.first = ledger.export(base / "first")
        for suffix in ("", ".highwater"):
            shutil.copy(base / f"ledger.db{suffix}", base / f"fork.db{suffix}")
        self.second = self._grow(base / "ledger.db", base / "second", driver, 2)
        self.fork = self._grow(base / "fork.db", base / "fork", driver, 3)
        self.other = self._grow(base / "fork.db", base / "fork-longer", driver, 4)

    @staticmethod
    def _grow(path: Path, export: Path, driver: Driver, n: int) -> Path:
        with Ledger.open(path, SIGNER) as ledger:
            driver.ledger = ledger
            driver.admit(admission(n))
            return ledger.export(export)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def memory(tmp_path) -> Memory:
    return Memory(tmp_path / "memory", ANNA.vkey)


def signed(export: Path, memory: Memory, *, first: bool = False, now: int = START + 100, who: Cosigner = ANNA):
    return cosign_export(export, KEYS, who, memory, now=now, first=first)


def refused(kind, export: Path, memory: Memory, **options) -> LedgerError:
    before = memory.read(SIGNER.name)
    with pytest.raises(kind) as caught:
        signed(export, memory, **options)
    assert memory.read(SIGNER.name) == before, "a refusal changes nothing that is remembered"
    return caught.value


def evidence_of(memory: Memory) -> Evidence:
    (path,) = memory.path(SIGNER.name).parent.glob("*.evidence")
    return parse_evidence(path.read_bytes())


def test_a_growing_ledger_is_cosigned_and_remembered(run, memory):
    done = signed(run.first, memory, first=True)
    assert done.before is None and done.report.verdict == "TOLD"
    assert memory.read(SIGNER.name).note == done.note
    after = signed(run.second, memory, now=START + 200)
    assert after.before.note == done.note and after.before.time == START + 100
    assert [item.timestamp for item in open_note(after.note, [SIGNER.vkey, ANNA.vkey]).signatures] == [None, START + 200]
    assert memory.read(SIGNER.name).checkpoint.size == after.report.size > done.report.size


def test_the_same_checkpoint_may_be_cosigned_again(run, memory):
    signed(run.first, memory, first=True)
    assert signed(run.first, memory, now=START + 300).before.time == START + 100


def test_the_first_time_is_said_once(run, memory):
    assert refused(CosignRefused, run.first, memory).code == "NO_MEMORY"
    signed(run.first, memory, first=True)
    assert refused(CosignRefused, run.second, memory, first=True).code == "NOT_FIRST"


def test_what_the_audit_faults_is_not_cosigned(run, memory, tmp_path):
    export = Path(shutil.copytree(run.first, tmp_path / "export"))
    (export / "tile" / "extra").write_bytes(b"")
    error = refused(CosignRefused, export, memory, first=True)
    assert error.code == "AUDIT_FAILED" and "tile/extra" in error.sentence


def test_a_rollback_is_refused_with_evidence(run, memory):
    signed(run.second, memory, first=True)
    error = refused(LedgerBehind, run.first, memory)
    assert error.code == "BEHIND" and ".evidence" in error.sentence
    found = judge(evidence_of(memory), KEYS)
    assert found.kind == "ROLLBACK" and found.offered.size < found.remembered.size


@pytest.mark.parametrize("which", ["fork", "other"])
def test_a_fork_is_refused_with_evidence_that_stands_alone(run, memory, which):
    """Of the same size, and of a larger one: nobody needs either ledger to see that the log signed both."""
    signed(run.second, memory, first=True)
    error = refused(LedgerForked, getattr(run, which), memory)
    assert error.code == "FORKED" and ".evidence" in error.sentence
    evidence = evidence_of(memory)
    found = judge(evidence, KEYS)
    assert found.kind == "FORK" and (found.offered.size > found.remembered.size) == (which == "other")
    assert parse_evidence(evidence.to_bytes()) == evidence
    refused(LedgerForked, getattr(run, which), memory)
    assert evidence_of(memory) == evidence, "the same evidence again is the same file"


def test_a_fork_seen_before_it_grew_is_no_fork_for_who_saw_only_the_fork(run, memory):
    signed(run.fork, memory, first=True)
    signed(run.other, memory)


def test_honest_checkpoints_cannot_be_made_into_evidence(run, memory):
    done = signed(run.first, memory, first=True)
    later = signed(run.second, memory).note
    old, new = (parse_checkpoint(open_note(note, KEYS).text) for note in (done.note, later))
    for prefix, code in (
        (None, "NO_EVIDENCE"),
        (old.root, "NO_EVIDENCE"),
        (bytes(32), "CONSISTENCY"),
        (new.root, "CONSISTENCY"),
    ):
        with pytest.raises(ProofError) as caught:
            judge(Evidence(done.note, later, prefix, (bytes(32),) * 3), KEYS)
        assert caught.value.code == code
    with pytest.raises(ProofError):
        judge(Evidence(later, later), KEYS)


def test_evidence_counts_only_what_the_logs_key_signed(run, memory):
    signed(run.second, memory, first=True)
    refused(LedgerForked, run.fork, memory)
    evidence = evidence_of(memory)
    stranger = NoteSigner(SIGNER.name, OWNER_KEY)
    with pytest.raises(NoteError):
        judge(evidence, [stranger.vkey])
    forged = sign_note(checkpoint_text(SIGNER.name, 5, root([b"x"])), stranger)
    with pytest.raises(NoteError):
        judge(Evidence(evidence.remembered, forged), KEYS)
    elsewhere = sign_note(checkpoint_text("ledger.example/run2", 5, root([b"x"])), SIGNER)
    with pytest.raises(ProofError, match="EVIDENCE_ORIGIN"):
        judge(Evidence(evidence.remembered, elsewhere), KEYS)


@pytest.mark.parametrize("data", [b"", b"dptrain-ledger-evidence-v1\n\na\n\nb\n\nc\n", "text", bytes(3_000_000)])
def test_other_things_are_no_evidence(data):
    with pytest.raises(ProofError):
        parse_evidence(data)


def test_every_changed_byte_of_evidence_is_refused(run, memory):
    signed(run.second, memory, first=True)
    refused(LedgerForked, run.other, memory)
    evidence = evidence_of(memory)
    lines = evidence.remembered.split(b"\n")
    # The auditor's own line is not the log's, and evidence does not count on it.
    data = Evidence(b"\n".join(lines[:5]) + b"\n", evidence.offered, evidence.prefix, evidence.proof).to_bytes()
    assert judge(parse_evidence(data), KEYS).kind == "FORK"
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises((ProofError, NoteError)):
            judge(parse_evidence(bytes(changed)), KEYS)


def test_a_memory_that_is_not_the_auditors_own_is_refused(run, memory):
    done = signed(run.first, memory, first=True)
    path = memory.path(SIGNER.name)
    log_only = sign_note(open_note(done.note, KEYS).text, SIGNER)
    other = sign_note(checkpoint_text("ledger.example/run2", 1, root([b"x"])), SIGNER)
    for data in (log_only, b"", done.note[:-5], done.note + b"x", other):
        path.write_bytes(data)
        with pytest.raises(LedgerCorrupt) as caught:
            signed(run.second, memory)
        assert caught.value.code == "MEMORY"


def test_the_memory_of_one_log_is_not_put_under_another(run, memory):
    done = signed(run.first, memory, first=True)
    memory.path("ledger.example/run2").write_bytes(done.note)
    with pytest.raises(LedgerCorrupt, match="MEMORY"):
        memory.read("ledger.example/run2")


def test_a_clock_that_ran_back_gives_no_cosignature(run, memory):
    signed(run.first, memory, first=True, now=START + 1000)
    assert refused(CosignRefused, run.second, memory, now=START + 900).code == "CLOCK"
    assert signed(run.second, memory, now=START + 990).note.count(b"\n") == 6
    assert memory.read(SIGNER.name).time == START + 1000


def test_the_owners_key_is_asked_for_where_it_is_given(run, memory):
    with pytest.raises(CosignRefused):
        cosign_export(run.first, KEYS, ANNA, memory, now=START, owner_key=public_bytes(OTHER_KEY), first=True)
    cosign_export(run.first, KEYS, ANNA, memory, now=START, owner_key=public_bytes(OWNER_KEY), first=True)


def test_what_was_cosigned_is_on_disk_before_anybody_sees_it(run, memory, monkeypatch):
    """Where the memory cannot be written there is no cosignature."""
    monkeypatch.setattr("ledger.proofs.memory.atomic_write", _full_disk)
    with pytest.raises(LedgerError, match="MEMORY"):
        signed(run.first, memory, first=True)
    assert memory.read(SIGNER.name) is None


def _full_disk(path, data, mode):
    raise OSError(28, "No space left on device")


def test_an_export_that_changes_under_the_auditor_is_neither_cosigned_nor_accused(run, memory, tmp_path, monkeypatch):
    """Tiles that are swapped after the audit break the proof, and what they would show is nobody's fault."""
    signed(run.first, memory, first=True)
    export = Path(shutil.copytree(run.second, tmp_path / "export"))
    whole = cosigning.verify_export

    def audit_then_change(*arguments, **options):
        report = whole(*arguments, **options)
        (tile,) = (export / "tile" / "0").rglob("*.p/*")
        tile.write_bytes(bytes(len(tile.read_bytes())))
        return report

    monkeypatch.setattr(cosigning, "verify_export", audit_then_change)
    assert refused(LedgerError, export, memory).code == "CHANGED"
    assert not list(memory.path(SIGNER.name).parent.glob("*.evidence"))


def test_only_the_checkpoint_that_was_audited_is_cosigned(run, memory, tmp_path, monkeypatch):
    """Another one by the log, put in its place after the audit, was audited by nobody."""
    export = Path(shutil.copytree(run.first, tmp_path / "export"))
    whole = cosigning.verify_export

    def audit_then_change(*arguments, **options):
        report = whole(*arguments, **options)
        shutil.copy(run.second / "checkpoint", export / "checkpoint")
        return report

    monkeypatch.setattr(cosigning, "verify_export", audit_then_change)
    assert refused(LedgerError, export, memory, first=True).code == "CHANGED"
    assert memory.read(SIGNER.name) is None


def test_two_runs_of_one_auditor_do_not_cross(run, memory, monkeypatch):
    """One that holds the memory makes the other wait; else both might sign what each alone extends."""
    done: list[int] = []
    asked = threading.Event()
    flock = fcntl.flock

    def telling(stream, how):
        if threading.current_thread() is other:
            asked.set()
        flock(stream, how)

    monkeypatch.setattr("ledger.proofs.memory.fcntl.flock", telling)
    other = threading.Thread(target=lambda: done.append(signed(run.first, memory, first=True).report.size))
    with memory.locked():
        other.start()
        assert asked.wait(10.0)
        other.join(timeout=0.2)
        assert other.is_alive() and not done
    other.join(timeout=60.0)
    assert done == [memory.read(SIGNER.name).checkpoint.size]


def test_two_auditors_remember_for_themselves(run, tmp_path):
    ben = Cosigner("auditor.example/ben", OWNER_KEY)
    memories = {who: Memory(tmp_path / who.name, who.vkey) for who in (ANNA, ben)}
    for who, memory in memories.items():
        signed(run.first, memory, first=True, who=who)
    assert memories[ANNA].read(SIGNER.name) != memories[ben].read(SIGNER.name)
