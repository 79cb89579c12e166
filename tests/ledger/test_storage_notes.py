"""Signatures of others below stored checkpoints, and the room that retention will need: what may change, and nothing else."""

from contextlib import closing

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from storage_backends import SqliteBackend

from ledger.audit import verify_export
from ledger.errors import LedgerBusy, LedgerClosed, LedgerCorrupt, LedgerError, LedgerForked, LedgerWrongRun, NoteError
from ledger.leaves import Admit, Epoch, Settle, Spend, Withdraw
from ledger.log import Ledger
from ledger.merkle import leaf_hash
from ledger.note import Cosigner, NoteSigner, checkpoint_text, cosign, sign_note
from ledger.storage.store import PRUNABLE_KINDS, SUMMARY_KIND, Aggregated, open_store
from ledger.tiles import Subtree
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, admission

ANNE = Cosigner("anne.example", OTHER_KEY)
BERT = Cosigner("bert.example", Ed25519PrivateKey.from_private_bytes(bytes(range(3, 35))))


def cosigned(note: bytes, *cosigners: Cosigner) -> bytes:
    for cosigner in cosigners:
        note = cosign(note, cosigner, [SIGNER.vkey], time=START)
    return note


def test_cosignatures_are_stored_below_the_checkpoint_and_exported(begun, backend, tmp_path):
    begun.admit(admission(1))
    begun.steps()
    before = begun.epoch()
    by_anne = cosigned(before, ANNE)
    assert begun.ledger.add_signatures(by_anne, [ANNE.vkey]) == by_anne == begun.ledger.checkpoint
    both = begun.ledger.add_signatures(cosigned(before, BERT, ANNE), [ANNE.vkey, BERT.vkey])
    assert both.startswith(by_anne) and both.count("\n— ".encode()) == 3
    assert begun.ledger.add_signatures(by_anne, [ANNE.vkey]) == both
    begun.steps()
    begun.ledger.close()
    with backend.open() as ledger:
        assert ledger._file.checkpoints[ledger.size - 2] == both
        begun.ledger = ledger
        begun.epoch()
        report = verify_export(ledger.export(tmp_path / "export"), [SIGNER.vkey])
        assert report.verdict == "TOLD"


def test_lines_that_do_not_count_are_not_stored(begun):
    begun.admit(admission(1))
    begun.steps()
    note = begun.epoch()
    assert begun.ledger.add_signatures(cosigned(note, ANNE, BERT), [BERT.vkey]) == cosigned(note, BERT)
    forged = cosigned(note, ANNE).replace(b"anne.example", b"bert.example")
    assert begun.ledger.add_signatures(forged, [BERT.vkey]) == cosigned(note, BERT)
    broken = bytearray(cosigned(note, ANNE))
    broken[-20] ^= 1
    with pytest.raises(NoteError):
        begun.ledger.add_signatures(bytes(broken), [ANNE.vkey])
    assert begun.ledger.checkpoint == cosigned(note, BERT)


def test_notes_of_other_histories_sizes_and_ledgers_are_refused(begun, backend):
    begun.admit(admission(1))
    begun.steps()
    begun.epoch()
    ledger = begun.ledger

    def note(size: int, root: bytes, origin: str = SIGNER.name, signer: NoteSigner = SIGNER) -> bytes:
        return sign_note(checkpoint_text(origin, size, root), signer)

    with pytest.raises(LedgerForked):
        ledger.add_signatures(cosigned(note(ledger.size, b"f" * 32), ANNE), [ANNE.vkey])
    evidence = backend.place.side(".fork-evidence").read_bytes()
    assert evidence.count(f"{SIGNER.name}\n{ledger.size}\n".encode()) == 2
    for size, root in ((2, ledger._file.root_at(2)), (ledger.size + 1, bytes(32))):
        with pytest.raises(LedgerError) as found:
            ledger.add_signatures(note(size, root), [ANNE.vkey])
        assert found.value.code == "NO_CHECKPOINT"
    other = "ledger.example/run2"
    with pytest.raises(LedgerWrongRun):
        ledger.add_signatures(note(ledger.size, ledger.root, other), [ANNE.vkey])
    with pytest.raises(NoteError):
        ledger.add_signatures(note(ledger.size, ledger.root, other, NoteSigner(other, SIGNER.private_key)), [ANNE.vkey])
    begun.steps()


def test_a_reader_takes_no_signatures(begun, place):
    note = begun.ledger.checkpoint
    with Ledger.open(place) as reader, pytest.raises(LedgerClosed):
        reader.add_signatures(cosigned(note, ANNE), [ANNE.vkey])


def test_a_store_lets_nothing_else_happen_to_a_note(begun, backend):
    begun.ledger.close()
    store = open_store(backend.place, read_only=False)
    with store.snapshot() as snapshot:
        note = snapshot.checkpoints()[1]
    line = cosigned(note, ANNE)[len(note) :]
    for changed in (
        note[:-1],
        note[:-5] + b"AAAA\n",
        line + note,
        note + b"\n" + line,
        note + line[:-1],
        note + line + b"\n" + line,
        note + b"a line\n",
        note + "— ".encode(),
        note.replace(b"\n1\n", b"\n2\n") + line,
        b"",
    ):
        with pytest.raises(LedgerCorrupt):
            store.put_note(1, changed)
    with pytest.raises(LedgerError) as found:
        store.put_note(7, note + line)
    assert found.value.code == "NO_CHECKPOINT"
    store.put_note(1, note + line)
    with pytest.raises(LedgerCorrupt):
        store.put_note(1, note)
    store.close()
    with backend.open() as ledger:
        assert ledger.checkpoint == note + line


def test_a_fenced_writer_stores_no_signatures(begun, backend):
    backend.execute("UPDATE lease SET fence = fence + 1")
    with pytest.raises(LedgerError) as found:
        begun.ledger.add_signatures(cosigned(begun.ledger.checkpoint, ANNE), [ANNE.vkey])
    assert found.value.code == "FENCED"
    with pytest.raises(LedgerClosed):
        begun.admit(admission(1))


@pytest.mark.one_in(99)
def test_bodies_go_only_below_the_last_summary_and_only_of_some_kinds(closed):
    """B26: the seat belt of retention, before any code prunes."""
    assert set(PRUNABLE_KINDS) == {Admit.KIND}
    size = closed.fetch("SELECT size FROM head")[0][0]
    kinds = dict(closed.fetch("SELECT kind, min(seq) FROM entry GROUP BY kind"))
    summary = f"INSERT INTO entry SELECT {size}, {SUMMARY_KIND}, leaf, body, 0 FROM entry WHERE seq = 0"
    for statement in ("UPDATE head SET pruned_before = 1", f"UPDATE head SET pruned_before = {size}"):
        with pytest.raises(closed.refused):
            closed.execute(statement)
    closed.execute(summary)
    with pytest.raises(closed.refused):
        closed.execute(f"UPDATE head SET pruned_before = {size + 1}")
    limit = kinds[Epoch.KIND]
    closed.execute(f"UPDATE head SET pruned_before = {limit}")
    with pytest.raises(closed.refused):
        closed.execute(f"UPDATE head SET pruned_before = {limit - 1}")
    for kind in (0, 2, Settle.KIND, Spend.KIND, Withdraw.KIND, Epoch.KIND):
        with pytest.raises(closed.refused):
            closed.execute(f"UPDATE entry SET body = NULL WHERE kind = {kind}")
    for column, value in (("leaf", "x'" + "00" * 32 + "'"), ("kind", "5"), ("seq", "1000")):
        with pytest.raises(closed.refused):
            closed.execute(f"UPDATE entry SET body = NULL, {column} = {value} WHERE seq = {kinds[Admit.KIND]}")
        with pytest.raises(closed.refused):
            closed.execute(f"UPDATE entry SET {column} = NULL WHERE seq = {kinds[Admit.KIND]}")
    for kind in PRUNABLE_KINDS:
        with pytest.raises(closed.refused):
            closed.execute(f"UPDATE entry SET body = NULL WHERE kind = {kind} AND seq >= {limit}")
    with pytest.raises(closed.refused):
        closed.execute(f"UPDATE entry SET body = NULL WHERE seq = {kinds[Admit.KIND]}")  # its aggregate must be there before
    closed.execute(f"INSERT INTO aggregate SELECT seq, seq + 1, 9, x'01' FROM entry WHERE kind = 1 AND seq < {limit}")
    for column, value in (("leaf", "x'" + "00" * 32 + "'"), ("kind", "5"), ("seq", "1000")):
        with pytest.raises(closed.refused):
            closed.execute(f"UPDATE entry SET body = NULL, {column} = {value} WHERE seq = {kinds[Admit.KIND]}")
    closed.execute(f"UPDATE entry SET body = NULL WHERE seq < {limit} AND kind = 1")
    assert closed.fetch("SELECT count(*) FROM entry WHERE body IS NULL")[0][0] > 3
    with pytest.raises(closed.refused):
        closed.execute(f"UPDATE entry SET body = x'00' WHERE seq = {kinds[Admit.KIND]}")
    with pytest.raises(LedgerCorrupt) as found:
        closed.open()
    assert found.value.code == "AGGREGATE", "what stands for it is no aggregate"


def summarised(backend) -> tuple[int, int, list[int], list[Aggregated]]:
    """A closed ledger with a row where a SUMMARY would be: its size, the first epoch's end, what may go before that, and
    what must stand for it."""
    (size,) = backend.fetch("SELECT size FROM head")[0]
    backend.execute(f"INSERT INTO entry SELECT {size}, {SUMMARY_KIND}, leaf, body, 0 FROM entry WHERE seq = 0")
    (end,) = backend.fetch(f"SELECT min(seq) FROM entry WHERE kind = {Epoch.KIND}")[0]
    kinds = ", ".join(map(str, PRUNABLE_KINDS))
    seqs = [seq for (seq,) in backend.fetch(f"SELECT seq FROM entry WHERE seq < {end} AND kind IN ({kinds}) ORDER BY seq")]
    return size + 1, end, seqs, [Aggregated(seq, seq + 1, size, b"record of %d" % seq) for seq in seqs]


def test_pruning_drops_bodies_and_keeps_hashes_and_aggregates(closed):
    size, end, seqs, kept = summarised(closed)
    before = closed.fetch("SELECT seq, kind, leaf FROM entry ORDER BY seq")
    with closing(open_store(closed.place, read_only=False)) as store:
        store.prune(size, end, seqs, kept[::-1])
        store.prune(size, end, seqs, [])  # once more changes nothing
        with store.snapshot() as snapshot:
            assert snapshot.pruned_before() == end and list(snapshot.aggregates()) == kept
            rows = list(snapshot.rows())
        assert [(row.seq, row.kind, row.leaf_hash) for row in rows] == before
        assert [row.seq for row in rows if not row.body] == seqs
        assert all(leaf_hash(row.body) == row.leaf_hash for row in rows[1:-1] if row.body)


def test_what_may_not_be_pruned_is_refused_whole(closed):
    size, end, seqs, kept = summarised(closed)
    (charge,) = closed.fetch("SELECT min(seq) FROM entry WHERE kind = 2")[0]
    with closing(open_store(closed.place, read_only=False)) as store:
        for wrong in (
            (size, end, [*seqs, charge], kept),
            (size, end, [*seqs, end], kept),
            (size, end, [*seqs, size + 5], kept),
            (size, size, seqs, kept),
            (size, end, seqs, [*kept, kept[0]]),
            (size, end, seqs, [*kept, Aggregated(900, 900, size - 1, b"record")]),
            (size, end, seqs, [*kept, Aggregated(0, seqs[0] + 1, size - 1, b"overlaps")]),
            (size, end, seqs, kept[1:]),
            (size, end, seqs, []),
        ):
            with pytest.raises(LedgerCorrupt):
                store.prune(*wrong)
        with pytest.raises(LedgerBusy) as found:
            store.prune(size - 1, end, seqs, kept)
        assert found.value.code == "HEAD_MOVED"
        closed.execute("UPDATE lease SET fence = fence + 1")
        with pytest.raises(LedgerBusy) as found:
            store.prune(size, end, seqs, kept)
        assert found.value.code == "FENCED"
        with store.snapshot() as snapshot:
            assert snapshot.pruned_before() == 0 and not list(snapshot.aggregates())
            assert all(row.body for row in snapshot.rows())


def test_pruned_bytes_are_gone_from_the_file(run, path):
    backend = SqliteBackend(path.parent)
    run.whole_run()
    run.ledger.close()
    size, end, seqs, kept = summarised(backend)
    bodies = [body for (body,) in backend.fetch(f"SELECT body FROM entry WHERE seq IN ({', '.join(map(str, seqs))})")]
    held = path.read_bytes()
    assert all(body in held for body in bodies) and len(bodies) > 3
    with closing(open_store(backend.place, read_only=False)) as store:
        store.prune(size, end, seqs, kept)
    held = path.read_bytes()
    assert not any(body in held for body in bodies) and not path.with_name(f"{path.name}-wal").exists()


def test_an_aggregate_is_written_once(closed):
    closed.execute("INSERT INTO aggregate VALUES (3, 6, 9, x'01')")
    for statement in (
        "UPDATE aggregate SET record = x'02'",
        "DELETE FROM aggregate",
        "INSERT INTO aggregate VALUES (3, 6, 9, x'02')",
        "INSERT INTO aggregate VALUES (5, 7, 9, x'02')",
    ):
        with pytest.raises(closed.refused):
            closed.execute(statement)
    assert closed.fetch("SELECT record FROM aggregate") == [(b"\x01",)]


def pruned(backend) -> tuple[int, int, list[int]]:
    """A closed ledger whose first epoch has lost its bodies: size, where hashes may go, and which leaves go."""
    size, end, seqs, kept = summarised(backend)
    with closing(open_store(backend.place, read_only=False)) as store:
        store.prune(size, end, seqs, kept)
    return size, end, seqs


def leaves(backend) -> list[tuple]:
    return backend.fetch("SELECT seq, level, leaf FROM entry ORDER BY seq")


def fitting(seqs: list[int], level: int = 1) -> int:
    """First leaf of an aligned subtree of such leaves."""
    return next(seq for seq in seqs if not seq % (1 << level) and set(range(seq, seq + (1 << level))) <= set(seqs))


@pytest.mark.one_in(99)
def test_hashes_go_into_subtrees_of_pruned_leaves_and_nowhere_else(closed):
    """The seat belt of the second stage: what the triggers refuse, whatever program asks."""
    _, end, seqs = pruned(closed)
    first, alone = fitting(seqs), next(seq for seq in range(1, end) if seq not in seqs)
    before, some = leaves(closed), "x'" + "ab" * 32 + "'"
    with pytest.raises(closed.refused):
        closed.execute(f"UPDATE entry SET leaf = {some}, level = 1 WHERE seq = {first}")  # hashes_before is still 0
    with pytest.raises(closed.refused):
        closed.execute(f"UPDATE head SET hashes_before = {end + 1}")
    closed.execute(f"UPDATE head SET hashes_before = {end}")
    for statement in (
        f"UPDATE head SET hashes_before = {end - 1}",
        f"UPDATE entry SET leaf = NULL, level = 1 WHERE seq = {first + 1}",  # no subtree is there yet
        f"UPDATE entry SET leaf = NULL, level = 1 WHERE seq = {first}",
        f"UPDATE entry SET leaf = NULL WHERE seq = {first}",
        f"UPDATE entry SET leaf = {some} WHERE seq = {first}",
        f"UPDATE entry SET leaf = {some}, level = 1 WHERE seq = {first + 1}",  # not aligned
        f"UPDATE entry SET leaf = {some}, level = 6 WHERE seq = {first}",  # over leaves that are there
        f"UPDATE entry SET leaf = {some}, level = -1 WHERE seq = {first}",
        f"UPDATE entry SET leaf = {some}, level = 63 WHERE seq = {first}",
        f"UPDATE entry SET leaf = x'00', level = 1 WHERE seq = {first}",
        f"UPDATE entry SET leaf = {some}, level = 1, body = x'00' WHERE seq = {first}",
        f"UPDATE entry SET leaf = {some}, level = 1, kind = 2 WHERE seq = {first}",
        f"UPDATE entry SET leaf = {some}, level = 1 WHERE seq = {alone & -2}",  # over a leaf that is there
    ):
        with pytest.raises(closed.refused):
            closed.execute(statement)
    assert leaves(closed) == before
    closed.execute(f"UPDATE entry SET leaf = {some}, level = 1 WHERE seq = {first}")
    closed.execute(f"UPDATE entry SET leaf = NULL, level = 1 WHERE seq = {first + 1}")
    for statement in (
        f"UPDATE entry SET leaf = {some}, level = 0 WHERE seq = {first + 1}",
        f"UPDATE entry SET leaf = x'{'cd' * 32}' WHERE seq = {first}",
        f"UPDATE entry SET leaf = NULL, level = 1 WHERE seq = {first}",
    ):
        with pytest.raises(closed.refused):
            closed.execute(statement)


@pytest.mark.one_in(99)
def test_subtrees_stand_for_hashes_and_swallow_smaller_ones(begun, backend):
    begun.admit(*map(admission, range(1, 12)))
    begun.steps(1)
    begun.epoch()
    begun.ledger.close()
    closed = backend
    size, end, seqs = pruned(closed)
    first, root = fitting(seqs, 2), bytes([7]) * 32
    before = leaves(closed)
    with closing(open_store(closed.place, read_only=False)) as store:
        for wrong in (
            (size, end, [Subtree(first + 1, 1, root)]),
            (size, end, [Subtree(first, 8, root)]),
            (size, end, [Subtree(first, 2, root[1:])]),
            (size, end, [Subtree(first, 2, root), Subtree(first, 2, root[:-1] + b"x")]),
            (size, end + 1, [Subtree(first, 2, root)]),
            (size, first, [Subtree(first, 2, root)]),
            (size, end, [Subtree(first, 2, root), Subtree(1 << 20, 1, root)]),
        ):
            with pytest.raises(LedgerCorrupt):
                store.drop_hashes(*wrong)
        with pytest.raises(LedgerBusy, match="HEAD_MOVED"):
            store.drop_hashes(size - 1, end, [Subtree(first, 1, root)])
        assert leaves(closed) == before and closed.fetch("SELECT hashes_before FROM head") == [(0,)]
        store.drop_hashes(size, end, [Subtree(first, 1, root), Subtree(first + 2, 1, root)])
        store.drop_hashes(size, end, [Subtree(first, 2, root[::-1])])
        with store.snapshot() as snapshot:
            assert snapshot.hashes_before() == end
            rows = {row.seq: (row.level, row.leaf_hash) for row in snapshot.rows()}
    assert [rows[first + n] for n in range(4)] == [(2, root[::-1]), (2, b""), (2, b""), (2, b"")]
    assert [row for row in leaves(closed) if not first <= row[0] < first + 4] == [
        row for row in before if not first <= row[0] < first + 4
    ]
