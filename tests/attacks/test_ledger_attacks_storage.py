"""Rows B1 to B6 and B16 to B18 of the attack list: whoever can write the database, the disk under it, or a backup of it.

Each is tried through the library and, where an operator meets it, through ``dptrain ledger fsck``. The suite of the stores
(`tests/ledger/test_storage.py`) repeats what is tried here on PostgreSQL; what a failing disk does: `tests/fault`.
"""

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ledger.errors import (
    LedgerBehind,
    LedgerBusy,
    LedgerClosed,
    LedgerCorrupt,
    LedgerError,
    LedgerForked,
    LedgerWrongRun,
    StorageFailed,
)
from ledger.log import Ledger
from ledger.merkle import leaf_hash
from ledger.note import Cosigner, NoteSigner, open_note, parse_checkpoint
from ledger.proofs.cosigning import cosign_export
from ledger.proofs.memory import Memory, judge, parse_evidence
from ledger.storage import highwater
from tests.worlds.attested_ledgers import attested_run
from tests.worlds.checkpoints import checkpoint_of
from tests.worlds.commands import run_command
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec

ANNA = Cosigner("auditor.example/anna", OTHER_KEY)
LATER = START + 10**6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A finished run of 22 leaves and two checkpoints."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
    return tmp_path / "ledger.db"


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """Such a run over signed admissions."""
    run = attested_run(tmp_path / "signed.db")
    run.whole_run()
    run.ledger.close()
    return tmp_path / "signed.db"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Driver]:
    """A run of one window, open."""
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        run = Driver(ledger)
        run.admit(admission(1), admission(2, "sensitive"))
        run.steps()
        run.epoch()
        yield run


def attacked(path: Path, *statements: str, triggers: bool = False) -> None:
    """Runs statements on a ledger's file as its attacker, who drops the triggers, and puts them back behind what they did."""
    with closing(sqlite3.connect(path)) as database, database:
        found = [] if triggers else database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in found:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        for _, sql in found if statements else ():
            database.execute(sql)


def bodies(path: Path) -> list[bytes]:
    with closing(sqlite3.connect(path)) as database:
        return [body for (body,) in database.execute("SELECT body FROM entry ORDER BY seq")]


def fsck(path: Path) -> tuple[str, str]:
    """What `dptrain ledger fsck` answers: OK and nothing, or code and sentence of the error, or of the first finding."""
    done = run_command(["ledger", "fsck", str(path), "--json"])
    answer = json.loads(done.stdout)
    if done.exit_code == 0:
        return answer["verdict"], ""
    assert done.exit_code == 1
    told = answer.get("error") or answer["findings"][0]
    return told["code"], told["sentence"]


def corrupt(path: Path) -> LedgerCorrupt:
    """The library and the command say the same, for readers and the signer alike."""
    found = []
    for signer in (None, SIGNER):
        with pytest.raises(LedgerCorrupt) as caught:
            Ledger.open(path, signer)
        found.append(caught.value)
    assert fsck(path) == (found[0].code, found[0].sentence) == (found[1].code, found[1].sentence)
    return found[0]


# --- B1: a row edited --------------------------------------------------------


def test_B1_an_edited_body_of_any_leaf_is_LedgerCorrupt_and_named(path):
    for seq, body in enumerate(bodies(path)):
        changed = bytearray(body)
        changed[len(body) // 2] ^= 1
        attacked(path, f"UPDATE entry SET body = x'{changed.hex()}' WHERE seq = {seq}")
        with pytest.raises(LedgerCorrupt) as caught:
            Ledger.open(path)
        assert (caught.value.code, caught.value.seq) == ("LEAF_HASH", seq)
        if seq % 7 == 0:
            assert corrupt(path).seq == seq
        attacked(path, f"UPDATE entry SET body = x'{body.hex()}' WHERE seq = {seq}")
    assert fsck(path)[0] == "OK"


def test_B1_a_leaf_edited_with_its_hash_contradicts_the_signed_root(path):
    """A time that fits its neighbours: only the tree can tell, and it says between which checkpoints."""
    for seq, body in enumerate(bodies(path)[:10]):
        changed = body.replace(b"\x02\x1a\x6b\x49\xd2", b"\x02\x1a\x6b\x49\xd3", 1)
        if changed == body:
            continue
        columns = f"body = x'{changed.hex()}', leaf = x'{leaf_hash(changed).hex()}'"
        attacked(path, f"UPDATE entry SET {columns} WHERE seq = {seq}")
        assert corrupt(path).code in ("CHECKPOINT", "REPLAY")
        attacked(path, f"UPDATE entry SET body = x'{body.hex()}', leaf = x'{leaf_hash(body).hex()}' WHERE seq = {seq}")
    assert fsck(path)[0] == "OK"


# --- B2: rows deleted, reordered, inserted ----------------------------------


@pytest.mark.parametrize("seq", [0, 1, 7, 17])
def test_B2_a_deleted_row_is_LedgerCorrupt_GAP_and_named(path, seq):
    attacked(path, f"DELETE FROM entry WHERE seq = {seq}")
    error = corrupt(path)
    assert (error.code, error.seq) == ("GAP", seq)


def test_B2_two_rows_that_changed_places_are_LedgerCorrupt(path):
    """Each leaf states its own number, so the first of them is named whatever the columns say."""
    attacked(
        path,
        "UPDATE entry SET seq = -1 WHERE seq = 5",
        "UPDATE entry SET seq = 5 WHERE seq = 6",
        "UPDATE entry SET seq = 6 WHERE seq = -1",
    )
    assert corrupt(path).seq == 5


def test_B2_a_row_put_in_between_is_LedgerCorrupt(path):
    attacked(
        path,
        "UPDATE entry SET seq = -seq - 1 WHERE seq >= 5",
        "UPDATE entry SET seq = -seq WHERE seq < 0",
        "INSERT INTO entry SELECT 5, kind, leaf, body, 0 FROM entry WHERE seq = 4",
        "UPDATE head SET size = size + 1",
    )
    assert corrupt(path).seq == 5


# --- B3: INSERT OR REPLACE, which fires no trigger on UPDATE or DELETE ------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("recursive", ["ON", "OFF"])
@pytest.mark.parametrize("table", ["entry", "head", "checkpoint", "meta", "lease", "terms", "attestation"])
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "REPLACE", "INSERT OR IGNORE"])
def test_B3_replacing_a_row_is_refused_with_either_setting_of_recursive_triggers(signed, table, recursive, verb):
    with closing(sqlite3.connect(signed)) as database:
        before = database.execute(f"SELECT * FROM {table}").fetchall()
        database.execute(f"PRAGMA recursive_triggers={recursive}")
        with pytest.raises(sqlite3.IntegrityError):
            database.execute(f"{verb} INTO {table} SELECT * FROM {table} ORDER BY 1 DESC LIMIT 1")
        database.rollback()
        assert database.execute(f"SELECT * FROM {table}").fetchall() == before
    assert Ledger.open(signed).finished


# --- B4: the triggers themselves are attacked -----------------------------------------


def test_B4_an_edit_under_writable_schema_succeeds_and_is_LedgerCorrupt(path):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema=ON")
        database.execute("DELETE FROM sqlite_master WHERE type = 'trigger'")
    attacked(path, "UPDATE entry SET body = zeroblob(length(body)) WHERE seq = 4", triggers=True)
    assert corrupt(path).seq == 4


def test_B4_a_writer_finds_out_that_another_process_dropped_the_triggers(running, tmp_path):
    """Appending looks whether the head moved with the rows, which is the trigger's doing."""
    attacked(tmp_path / "ledger.db")
    with pytest.raises(LedgerCorrupt, match="insert trigger is missing"):
        running.charge()
    with pytest.raises(LedgerClosed):
        running.charge()


def test_B4_triggers_that_are_gone_or_others_are_named_by_fsck(path):
    with closing(sqlite3.connect(path)) as database, database:
        (sql,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'entry_no_delete'").fetchone()
        database.execute("DROP TRIGGER entry_no_delete")
    code, sentence = fsck(path)
    assert code == "INTEGRITY" and "the trigger entry_no_delete is gone" in sentence
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(sql.replace("WHEN 1", "WHEN 0"))
    code, sentence = fsck(path)
    assert code == "INTEGRITY" and "the trigger entry_no_delete is not that of a ledger" in sentence


# --- B5: the tail is lost ----------------------------------------------------


def with_log(running: Driver, folder: Path) -> tuple[Path, int]:
    """A copy of a ledger whose last leaves are in the write-ahead log alone, as a crash leaves it; and its size."""
    place = running.ledger.place
    running.ledger.close()
    folder.mkdir()
    with Ledger.open(place, SIGNER) as ledger:
        ledger.resume(4, ledger.pin(), now=LATER)
        Driver(ledger, now=LATER).charge()
        for suffix in ("", "-wal", ".highwater"):
            shutil.copy(f"{place.target}{suffix}", folder)
        return folder / "ledger.db", ledger.size


def test_B5_one_flipped_bit_anywhere_in_the_log_never_goes_unseen(running, tmp_path):
    """SQLite drops what follows it without an error; the signer's record knows better."""
    path, size = with_log(running, tmp_path / "crashed")
    log = Path(f"{path}-wal").read_bytes()
    outcomes: Counter[str] = Counter()
    for place in range(0, len(log), 331):
        folder = Path(shutil.copytree(path.parent, tmp_path / "flipped"))
        changed = bytearray(log)
        changed[place] ^= 1 << (place % 8)
        (folder / "ledger.db-wal").write_bytes(bytes(changed))
        try:
            with Ledger.open(folder / "ledger.db", SIGNER) as ledger:
                outcomes["whole"] += 1
                assert ledger.size == size and ledger.state.charged == 8, place
        except (LedgerBehind, LedgerCorrupt) as error:
            outcomes[type(error).__name__] += 1
        shutil.rmtree(folder)
    assert outcomes["LedgerBehind"] > 20, outcomes


def test_B5_a_copy_without_its_log_is_LedgerBehind_though_sqlite_calls_it_sound(running, tmp_path):
    path, _ = with_log(running, tmp_path / "copied")
    Path(f"{path}-wal").unlink()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with pytest.raises(LedgerBehind):
        Ledger.open(path, SIGNER)
    assert fsck(path)[0] == "BEHIND"


def test_B5_a_tail_cut_off_with_head_and_notes_made_to_fit_is_LedgerBehind(running, tmp_path):
    path, size, root = tmp_path / "ledger.db", running.ledger.size, running.ledger.root
    copy = shutil.copytree(tmp_path, tmp_path / "earlier")
    pin = running.ledger.pin()
    running.charge()
    later = running.ledger.pin()
    running.ledger.close()
    shutil.copy(highwater.path_of(path), copy / "ledger.db.highwater")  # the database alone is of then
    for signer in (SIGNER, None):
        with pytest.raises(LedgerBehind) as caught:
            Ledger.open(copy / "ledger.db", signer)
        assert caught.value.code == "BEHIND" and str(size) in caught.value.sentence
    assert fsck(copy / "ledger.db")[0] == "BEHIND"
    highwater.path_of(copy / "ledger.db").unlink()
    with pytest.raises(LedgerBehind) as caught:
        Ledger.open(copy / "ledger.db", SIGNER)
    assert caught.value.code == "HIGHWATER_MISSING"
    with Ledger.open(copy / "ledger.db") as reader:
        assert (reader.size, reader.root) == (size, root)
        reader.check_pin(pin)
        with pytest.raises(LedgerBehind):
            reader.check_pin(later)


def test_B5_rows_cut_from_the_end_are_LedgerBehind_by_the_file_itself(path):
    attacked(path, "DELETE FROM entry WHERE seq >= (SELECT max(seq) FROM entry)")
    with pytest.raises(LedgerBehind) as caught:
        Ledger.open(path)
    assert caught.value.code == "TAIL_LOST" == fsck(path)[0]


# --- B6: the whole file is of yesterday, its notes and the signer's record too -----------


def test_B6_yesterdays_files_are_refused_by_the_model_checkpoints_pin_and_by_the_auditor(running, tmp_path):
    path = tmp_path / "ledger.db"
    yesterday = Path(shutil.copytree(tmp_path, tmp_path / "yesterday")) / "ledger.db"
    running.steps()
    running.epoch()
    pin, memory = running.ledger.pin(), Memory(tmp_path / "anna", ANNA.vkey)
    checkpoint_of(running.ledger, 8)
    cosign_export(running.ledger.export(tmp_path / "today"), [SIGNER.vkey], ANNA, memory, now=LATER, first=True)
    running.ledger.close()
    assert fsck(yesterday)[0] == "OK", "nothing in it is wrong"
    with Ledger.open(yesterday, SIGNER) as ledger:
        with pytest.raises(LedgerBehind) as caught:
            ledger.check_pin(pin)
        assert caught.value.code == "BEHIND"
        with pytest.raises(LedgerBehind):
            ledger.resume(8, pin, now=LATER)
        export = ledger.export(tmp_path / "rolled back")
    with pytest.raises(LedgerBehind):
        cosign_export(export, [SIGNER.vkey], ANNA, memory, now=LATER)
    assert fsck(path)[0] == "OK"
    shutil.copytree(f"{path}.checkpoints", f"{yesterday}.checkpoints")
    code, sentence = fsck(yesterday)
    assert code == "BEHIND" and "step-00000008" in sentence


# --- a fork and a rollback made on purpose: refused, with evidence -----------------------


def test_B7_a_fork_made_on_purpose_is_LedgerForked_and_the_evidence_holds_both_signed_histories(running, tmp_path):
    running.ledger.close()
    other = Path(shutil.copytree(tmp_path, tmp_path / "other")) / "ledger.db"
    marks = {}
    for place, charges in ((tmp_path / "ledger.db", 1), (other, 2)):
        with Ledger.open(place, SIGNER) as ledger:
            run = Driver(ledger, now=LATER + charges)
            ledger.resume(4, ledger.pin(), now=run.tick())
            run.steps(charges)
            run.epoch()
        marks[place] = highwater.path_of(place).read_bytes()
    mark = highwater.path_of(other)
    mark.write_bytes(marks[tmp_path / "ledger.db"])
    with pytest.raises(LedgerForked) as caught:
        Ledger.open(other, SIGNER)
    evidence = Path(f"{other}.fork-evidence")
    assert caught.value.code == "FORKED" and str(evidence) in caught.value.sentence
    assert fsck(other)[0] == "FORKED"
    held = parse_evidence(evidence.read_bytes())
    notes = {held.remembered, held.offered}
    assert marks[tmp_path / "ledger.db"] in notes, "what the signer remembers"
    assert len({parse_checkpoint(open_note(note, [SIGNER.vkey]).text).root for note in notes}) == 2
    assert judge(held, [SIGNER.vkey]).kind == "FORK", "a stranger is convinced by the file alone"


# --- B16: another ledger in its place -----------------------------------------


def test_B16_an_empty_or_other_runs_ledger_is_LedgerWrongRun_or_missing(path, tmp_path):
    with Ledger.open(path) as ledger:
        digest, pin = ledger.header_digest, ledger.pin()
    others = {
        "another run": ({"run_id": b"r" * 16}, SIGNER, {"WRONG_HEADER"}),
        "another name": ({}, NoteSigner("ledger.example/run2", LOG_KEY), {"WRONG_KEY", "WRONG_HEADER"}),
        "another key": ({}, NoteSigner(SIGNER.name, OTHER_KEY), {"WRONG_KEY", "WRONG_HEADER"}),
    }
    for name, (changes, signer, expected) in others.items():
        other = tmp_path / f"{name}.db"
        with Ledger.create(other, header_spec(**changes), signer, now=START) as ledger, pytest.raises(LedgerWrongRun):
            ledger.check_pin(pin)
        with pytest.raises(LedgerWrongRun) as caught:
            Ledger.open(other, SIGNER, expect_header=digest)
        assert caught.value.code in expected
        shutil.copy(highwater.path_of(path), highwater.path_of(other))
        with pytest.raises((LedgerWrongRun, LedgerCorrupt, LedgerBehind, LedgerForked)):
            Ledger.open(other)
    path.unlink()
    with pytest.raises(LedgerError) as missing:
        Ledger.open(path, SIGNER)
    assert missing.value.code == "MISSING"
    with pytest.raises(LedgerError) as there:
        Ledger.create(path, header_spec(), SIGNER, now=START)
    assert there.value.code == "EXISTS", "its signer's record is still there"


def test_B16_a_database_that_is_no_ledger_is_LedgerCorrupt(tmp_path):
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE notes (text)")
    with pytest.raises(LedgerCorrupt):
        Ledger.open(path, SIGNER)
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(LedgerCorrupt):
        Ledger.open(path, SIGNER)


# --- B17: two writers --------------------------------------------------------


def test_B17_a_second_writer_is_LedgerBusy_and_nothing_is_lost(running, tmp_path):
    path = tmp_path / "ledger.db"
    with pytest.raises(LedgerBusy) as caught:
        Ledger.open(path, SIGNER)
    assert caught.value.code == "LOCKED"
    assert fsck(path)[0] == "OK", "readers are let in"
    running.steps()
    running.ledger.close()
    with Ledger.open(path, SIGNER) as ledger:
        assert ledger.state.charged == 8


def test_B17_a_writer_that_was_taken_over_is_LedgerBusy_FENCED_and_charges_carry_the_fence(running, tmp_path):
    """As where advisory locks fail: the lock file is gone, and a second process holds another of its name."""
    path = tmp_path / "ledger.db"
    Path(f"{path}.lock").unlink()
    with Ledger.open(path, SIGNER) as second:
        run = Driver(second, now=LATER)
        second.resume(4, second.pin(), now=run.tick())
        run.steps()
        with pytest.raises(LedgerBusy) as caught:
            running.charge()
        assert caught.value.code == "FENCED"
        fences = [window.fence for window in second.state.windows]
        assert fences == sorted(set(fences)) and len(fences) == 2
    assert fsck(path)[0] == "OK"


# --- B18: the disk refuses ---------------------------------------------------


def test_B18_a_full_disk_is_StorageFailed_and_the_charge_is_not_there(running, tmp_path):
    """As the operating system's own errors, each call in turn: `tests/fault/test_syscall_faults.py`."""
    size = running.ledger.size
    with running.ledger._file.store._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StorageFailed) as caught:
        running.admit(*(admission(n) for n in range(10, 300)))
    assert caught.value.code == "STORAGE" and "free space" in caught.value.sentence
    with pytest.raises(LedgerClosed):
        running.charge()
    running.ledger.close()
    with Ledger.open(tmp_path / "ledger.db", SIGNER) as ledger:
        assert ledger.size == size and descriptor(10) not in ledger.state.contributions
        Driver(ledger, now=LATER).ledger.resume(4, ledger.pin(), now=LATER)
