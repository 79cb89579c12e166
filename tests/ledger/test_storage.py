"""What every store of a ledger promises, on every database: what an accident cannot do, what an attacker cannot hide."""

import hashlib
import threading
import time

import pytest

from ledger.audit import verify_export
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
from ledger.leaves import decode_leaf
from ledger.log import Ledger
from ledger.merkle import Frontier, leaf_hash
from ledger.note import NoteSigner
from ledger.storage import fsck, highwater
from ledger.storage.fsck import set_unfinished_aside
from ledger.storage.store import Row, create_store, exists, open_store
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, admission, descriptor, header_spec


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET body = x'00' WHERE seq = 1",
        "UPDATE entry SET body = NULL WHERE seq = 1",
        "UPDATE entry SET kind = 2 WHERE seq = 1",
        "DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)",
        "DELETE FROM entry",
        "INSERT INTO entry SELECT * FROM entry WHERE seq = 2",
        "INSERT INTO entry SELECT 1000, kind, leaf, body, 0 FROM entry WHERE seq = 1",
        "INSERT INTO entry SELECT -1, kind, leaf, body, 0 FROM entry WHERE seq = 1",
        "INSERT INTO entry SELECT s, kind, leaf, body, 0 FROM entry,"
        " (SELECT -1 AS s UNION SELECT size + 1 FROM head) AS v WHERE seq = 1",
        "INSERT INTO entry SELECT size + 1, kind, leaf, body, 0 FROM entry, head WHERE seq = 1",
        "INSERT INTO entry SELECT size, kind, leaf, NULL, 0 FROM entry, head WHERE seq = 1",
        "INSERT INTO entry (seq, kind, leaf, body) SELECT size, 1, x'00', x'00' FROM head",
        "INSERT INTO entry (seq, kind, leaf, body) SELECT size, 1, NULL, x'00' FROM head",
        "INSERT INTO entry SELECT size, kind, NULL, body, 0 FROM entry, head WHERE seq = 1",
        "UPDATE entry SET leaf = body WHERE seq = 1",
        "UPDATE head SET size = size - 1",
        "UPDATE head SET pruned_before = 2",
        "UPDATE head SET pruned_before = -1",
        "DELETE FROM head",
        "INSERT INTO head VALUES (1, 0, x'', 0, 0)",
        "UPDATE checkpoint SET note = x'00'",
        "UPDATE checkpoint SET size = size + 1",
        "DELETE FROM checkpoint",
        "UPDATE meta SET value = '9'",
        "DELETE FROM meta",
        "UPDATE lease SET fence = fence - 1",
        "DELETE FROM lease",
        "INSERT INTO aggregate VALUES (5, 5, 1, x'00')",
    ],
)
def test_triggers_refuse_every_way_to_rewrite_the_past(closed, statement):
    with pytest.raises(closed.refused):
        closed.execute(statement)
    closed.open().close()


def test_a_whole_ledger_is_examined_without_a_finding_and_its_pages_where_the_database_can(closed):
    with closed.open() as ledger:
        found = ledger.examine()
    assert found.findings == found.notes == ()
    assert found.pages is (closed.place.kind == "sqlite")


def test_an_edited_body_is_named(closed):
    closed.edit("UPDATE entry SET body = x'a0' WHERE seq = 3")
    with pytest.raises(LedgerCorrupt) as found:
        closed.open()
    assert found.value.seq == 3


def test_an_edited_body_with_its_leaf_hash_contradicts_the_signed_root(closed):
    ((body,),) = closed.fetch("SELECT body FROM entry WHERE seq = 1")
    changed = bytearray(body)
    changed[-10] ^= 1  # of its anchor, which nothing else contradicts
    leaf = hashlib.sha256(b"\0" + changed).hexdigest()
    closed.edit(f"UPDATE entry SET body = x'{changed.hex()}', leaf = x'{leaf}' WHERE seq = 1")
    with pytest.raises(LedgerCorrupt) as found:
        closed.open()
    assert found.value.code == "CHECKPOINT"


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entry WHERE seq = 4",
        "UPDATE entry SET seq = seq + 1000 WHERE seq = 4",
        "UPDATE entry SET kind = 5 WHERE seq = 4",
        "UPDATE entry SET body = NULL WHERE seq = 4",
        "UPDATE head SET frontier = x''",
        "UPDATE head SET size = size - 1",
        "UPDATE checkpoint SET note = x'00'",
        "INSERT INTO checkpoint SELECT 0, note FROM checkpoint LIMIT 1",
        "INSERT INTO checkpoint SELECT size - 2, note FROM checkpoint ORDER BY size DESC LIMIT 1",
        "DELETE FROM head",
        "UPDATE meta SET value = '9'",
        "DELETE FROM meta",
        "DELETE FROM entry",
        "DROP TABLE entry",
    ],
)
def test_other_edits_are_found_when_the_ledger_is_opened(closed, statement):
    """And not only by the next append, which misses the triggers that had to go for the edit."""
    closed.edit(statement)
    with pytest.raises((LedgerCorrupt, LedgerBehind)):
        closed.open()


def test_a_lease_that_is_gone_keeps_every_writer_out(closed):
    closed.edit("DELETE FROM lease")
    with closed.open() as ledger, pytest.raises(LedgerBusy) as found:
        ledger.withdraw(descriptor(1), "contributor", bytes(32), now=START + 10**6)
    assert found.value.code == "FENCED"


def test_a_changed_fence_only_changes_the_fence(closed):
    closed.edit("UPDATE lease SET fence = 40")
    with closed.open() as ledger:
        assert ledger.size > 1


def test_a_missing_ledger_is_said_to_be_missing(backend):
    with pytest.raises(LedgerError) as found:
        backend.open()
    assert found.value.code == "MISSING" and not exists(backend.place)


def test_an_existing_ledger_is_never_written_over(closed):
    closed.place.side(".highwater").rename(closed.place.side(".elsewhere"))
    with pytest.raises(LedgerError) as found:
        Ledger.create(closed.place, header_spec(), SIGNER, now=START)
    assert found.value.code == "EXISTS"
    closed.place.side(".elsewhere").rename(closed.place.side(".highwater"))
    closed.open().close()


def test_tail_truncation_is_behind_even_when_the_database_agrees_with_itself(begun, backend):
    begun.admit(admission(1))
    begun.steps()
    pin = begun.ledger.pin()
    begun.ledger.close()
    backup = backend.save()
    with backend.open() as ledger:
        after = Driver(ledger, now=begun.now + 10)
        ledger.resume(4, pin, now=after.tick())
        after.steps()
        later = ledger.pin()
    backend.restore(backup)  # rolled back whole, notes and all
    with pytest.raises(LedgerBehind) as found:
        backend.open()
    assert found.value.code == "BEHIND"
    highwater.path_of(backend.place).unlink()
    with pytest.raises(LedgerBehind) as found:
        backend.open()
    assert found.value.code == "HIGHWATER_MISSING"
    with Ledger.open(backend.place) as reader, pytest.raises(LedgerBehind):
        reader.check_pin(later)


def test_rows_cut_from_the_end_are_missed_by_the_database_itself(closed):
    closed.edit("DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)")
    with pytest.raises(LedgerBehind) as found:
        closed.open()
    assert found.value.code == "TAIL_LOST"


def test_a_fork_leaves_evidence(begun, backend):
    begun.admit(admission(1))
    begun.ledger.close()
    mark = highwater.path_of(backend.place)
    common, common_mark = backend.save(), mark.read_bytes()
    histories = []
    for n in (2, 3):
        backend.restore(common)
        mark.write_bytes(common_mark)
        with backend.open() as ledger:
            Driver(ledger, now=begun.now).admit(admission(n))
            pin = ledger.pin()
        histories.append((backend.save(), mark.read_bytes(), pin))
    (_, one_mark, _), (_, other_mark, pin) = histories
    mark.write_bytes(one_mark)  # one history under the other's memory
    with pytest.raises(LedgerForked):
        backend.open()
    evidence = backend.place.side(".fork-evidence").read_bytes()
    assert evidence.count(b"ledger.example/run1\n3\n") == 1
    mark.write_bytes(other_mark)
    with backend.open() as ledger:
        ledger.check_pin(pin)


def test_pins_tell_forked_behind_and_wrong_run(begun, tmp_path):
    begun.admit(admission(1))
    other = Ledger.create(tmp_path / "b.db", header_spec(run_id=b"r" * 16), SIGNER, now=START)
    with other, pytest.raises(LedgerWrongRun):
        other.check_pin(begun.ledger.pin())
    with Ledger.create(tmp_path / "c.db", header_spec(), SIGNER, now=START) as ledger:
        with pytest.raises(LedgerBehind):
            ledger.check_pin(begun.ledger.pin())
        Driver(ledger).admit(admission(2))
        with pytest.raises(LedgerForked):
            ledger.check_pin(begun.ledger.pin())


def test_a_forged_highwater_file_is_refused(closed):
    mark = highwater.path_of(closed.place)
    signer = NoteSigner(SIGNER.name, OTHER_KEY)
    highwater.write(closed.place, signer, 1, bytes(32))
    with pytest.raises(LedgerCorrupt):
        closed.open()
    mark.write_bytes(b"junk")
    with pytest.raises(LedgerCorrupt):
        closed.open()


def test_a_crash_before_the_highwater_file_is_caught_up(begun, backend):
    begun.admit(admission(1))
    before = highwater.path_of(backend.place).read_bytes()
    begun.steps()
    size = begun.ledger.size
    begun.ledger.close()
    highwater.path_of(backend.place).write_bytes(before)
    with backend.open() as ledger:
        mark = highwater.read_bytes(backend.place)
        assert mark is not None and highwater.parse(mark, ledger.state.keys).size == size


def test_a_failing_highwater_file_fails_the_charge_but_not_the_record(begun, backend, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(highwater, "atomic_write", full)
        with pytest.raises(StorageFailed):
            begun.charge()
    with pytest.raises(LedgerClosed):
        begun.charge()
    begun.ledger.close()
    with backend.open() as ledger:
        assert ledger.state.charged == 4


def test_a_ledger_that_cannot_be_created_leaves_none(backend, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for part in (highwater, "atomic_write"), (fsck, "load"):
        with monkeypatch.context() as patched:
            patched.setattr(*part, full)
            with pytest.raises((StorageFailed, OSError)):
                Ledger.create(backend.place, header_spec(), SIGNER, now=START)
        assert not exists(backend.place)
        left = [path.name for path in backend.place.directory.iterdir()]
        assert left in ([], ["ledger.db.lock"])
    Ledger.create(backend.place, header_spec(), SIGNER, now=START).close()


def test_an_unfinished_ledger_is_set_aside_and_a_charged_one_is_not(backend):
    assert set_unfinished_aside(backend.place) is None
    create_store(backend.place).close()
    with pytest.raises(LedgerCorrupt) as found:
        backend.open(read_only=True)
    assert found.value.code == "HEADER"
    first = set_unfinished_aside(backend.place)  # on a server, tables without a leaf are no ledger yet
    assert (first is None) == (backend.place.kind == "postgresql") and not exists(backend.place)
    with Ledger.create(backend.place, header_spec(), SIGNER, now=START) as ledger:
        assert ledger.size == 1
    highwater.path_of(backend.place).unlink()
    second = set_unfinished_aside(backend.place)
    assert second not in (None, first) and not exists(backend.place)
    with Ledger.create(backend.place, header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).admit(admission(1))
    assert set_unfinished_aside(backend.place) is None
    highwater.path_of(backend.place).unlink()
    assert set_unfinished_aside(backend.place) is None and exists(backend.place)


def test_a_second_writer_is_told_and_a_reader_is_let_in(begun, backend):
    begun.admit(admission(1))
    with pytest.raises(LedgerBusy) as found:
        backend.open()
    assert found.value.code == "LOCKED"
    with Ledger.open(backend.place) as reader:
        assert reader.size == begun.ledger.size
    begun.steps()
    begun.ledger.close()
    backend.open().close()


def test_a_writer_that_was_taken_over_is_fenced(begun, backend):
    """As where locks fail: the older writer finds out before it writes."""
    backend.execute("UPDATE lease SET fence = fence + 1")
    with pytest.raises(LedgerBusy) as found:
        begun.admit(admission(1))
    assert found.value.code == "FENCED"
    assert backend.fetch("SELECT size FROM head") == [(1,)]


def test_a_moved_head_is_seen_before_anything_is_written(place):
    store = create_store(place)
    frontier = Frontier()
    frontier.append(leaf_hash(b"x"))
    row = Row(0, 0, leaf_hash(b"x"), b"x")
    store.append([row], frontier)
    with pytest.raises(LedgerBusy) as found:
        store.append([row], frontier)
    assert found.value.code == "HEAD_MOVED"
    with store.snapshot() as snapshot:
        assert snapshot.head().size == 1 and list(snapshot.rows()) == [row]
    store.close()


def test_rows_out_of_order_are_refused_whole(place):
    store = create_store(place)
    frontier = Frontier()
    frontier.extend([leaf_hash(b"x")] * 3)
    rows = [Row(seq, 0, leaf_hash(b"x"), b"x") for seq in (0, 2, 1)]
    for wrong in (rows[:2] + rows[:1], [rows[0], rows[1], Row(3, 0, leaf_hash(b"x"), b"x")]):
        with pytest.raises(LedgerCorrupt):
            store.append(wrong, frontier)
        with store.snapshot() as snapshot:
            assert snapshot.head().size == 0 and not list(snapshot.rows())
    store.close()


def test_a_reader_writes_nothing(closed):
    store = open_store(closed.place, read_only=True)
    with pytest.raises(LedgerError):
        store.put_note(1, b"")
    with pytest.raises(LedgerError):
        store.append([], Frontier())
    store.close()


def test_fsck_recomputes_the_recorded_epsilons(closed):
    store = open_store(closed.place, read_only=True)
    loaded = fsck.load(store, recompute=True)
    assert loaded.replay.closed and loaded.frontier.size == loaded.subtrees.size
    store.close()


def test_stored_bodies_are_the_canonical_leaves(closed):
    with Ledger.open(closed.place) as ledger, ledger.rows() as rows:
        for row in rows:
            assert leaf_hash(row.body) == row.leaf_hash and decode_leaf(row.body).seq == row.seq


def test_a_reader_beside_a_writer_sees_one_moment(begun, backend, tmp_path):
    """The writer goes on while a reader is open: the reader's export is of the tree that it has checked."""
    begun.admit(admission(1))
    begun.steps()
    begun.epoch()
    with Ledger.open(backend.place) as reader:
        size = reader.size
        begun.steps(2)
        begun.epoch()
        export = reader.export(tmp_path / "export")
    report = verify_export(export, [SIGNER.vkey])
    assert (report.verdict, report.size) == ("TOLD", size)
    assert begun.ledger.size > size


def test_a_snapshot_stays_at_its_moment_while_a_writer_goes_on(begun, backend):
    begun.admit(admission(1))
    begun.steps()
    begun.epoch()
    size = begun.ledger.size
    store = open_store(backend.place, read_only=True)
    with store.snapshot() as snapshot:
        notes = snapshot.checkpoints()
        begun.steps()
        begun.epoch()
        assert [row.seq for row in snapshot.rows()] == list(range(size))
        assert snapshot.head().size == size == max(notes) and snapshot.checkpoints() == notes
    with store.snapshot() as snapshot:
        assert snapshot.head().size == begun.ledger.size > size
    store.close()


@pytest.mark.one_in(4)
def test_writers_that_take_turns_lose_nothing(begun, backend):
    """B17: four threads open, admit one and close, again and again; who is told that it is busy tries again."""
    begun.ledger.close()
    failures: list[BaseException] = []

    def turns(first: int) -> None:
        try:
            for n in range(first, first + 5):
                while True:
                    try:
                        with backend.open() as ledger:
                            ledger.admit([admission(n)], now=START + 100)
                        break
                    except LedgerBusy:
                        time.sleep(0.01)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=turns, args=(10 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with backend.open() as ledger:
        assert ledger.state.contributions.keys() == {descriptor(10 * n + k) for n in range(4) for k in range(5)}
        assert ledger._file.store.fence == 22
