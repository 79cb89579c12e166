"""A map that could not be written in full answers nothing any more: a wrong "new" would admit a repetition."""

import copy
import errno
import io
import os
import pickle

import pytest

from attest.corpus import digests
from attest.corpus.corpus import Claims
from attest.corpus.digests import DigestTable
from attest.errors import GateFailed

KEYS = [number.to_bytes(32, "big") for number in range(20_000)]


def filled(monkeypatch, count, recent=8):
    monkeypatch.setattr(digests, "RECENT", recent)
    table = DigestTable(memory_entries=64)
    for key in KEYS[:count]:
        table.setdefault(key, 1)
    return table


def full_disk(after):
    """`pwrite` until the disk is full, `after` calls from now."""
    left, original = [after], os.pwrite

    def pwrite(*args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args)

    return pwrite


@pytest.mark.one_in(5)
@pytest.mark.parametrize("after", [0, 1, 5, 40, 200, 1000])
@pytest.mark.parametrize("count", [600, 1500, 6000])
def test_no_key_is_forgotten_when_the_disk_is_full(monkeypatch, after, count):
    table = filled(monkeypatch, count)
    monkeypatch.setattr(os, "pwrite", full_disk(after))
    with pytest.raises(GateFailed, match=r"STORAGE.*No space left"):
        for key in KEYS[count:]:
            assert table.setdefault(key, 1) is None
    monkeypatch.undo()
    for key in KEYS[:count:37]:
        for ask in (table.get, lambda key: table.setdefault(key, 2), lambda key: table.set(key, 2)):
            with pytest.raises(GateFailed, match="STORAGE"):
                ask(key)


def test_the_move_to_disk_may_fail_too(monkeypatch):
    table = filled(monkeypatch, 700, recent=1000)
    monkeypatch.setattr(os, "pwrite", full_disk(0))
    with pytest.raises(GateFailed, match="STORAGE"):
        for key in KEYS:
            table.set(key, 1)
    with pytest.raises(GateFailed, match="STORAGE"):
        table.get(KEYS[0])
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    with pytest.raises(GateFailed, match="STORAGE"):
        filled(monkeypatch, 20_000)


def test_a_write_or_a_read_that_does_less_than_asked_is_a_failure(monkeypatch):
    table = filled(monkeypatch, 6000)
    held, original = table._file, os.pread
    monkeypatch.setattr(os, "pread", lambda file, length, at: original(file, length, at)[:-1])
    with pytest.raises(GateFailed, match="STORAGE"):
        for key in KEYS[:2000]:
            assert table.get(key) == 1
    monkeypatch.setattr(os, "pread", original)
    table = filled(monkeypatch, 6000)
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: len(data) - 1)
    with pytest.raises(GateFailed, match="STORAGE"):
        for key in KEYS[6000:]:
            table.set(key, 1)
    assert held >= 0


def test_an_interrupted_write_counts_as_failed(monkeypatch):
    table = filled(monkeypatch, 6000)

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", interrupt)
    with pytest.raises(KeyboardInterrupt):
        for key in KEYS[6000:]:
            table.set(key, 1)
    monkeypatch.undo()
    with pytest.raises(GateFailed, match="STORAGE"):
        table.get(KEYS[0])


def test_two_processes_do_not_share_a_file(monkeypatch):
    table = filled(monkeypatch, 6000)
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        try:
            for key in KEYS[:100]:
                table.get(key)
            os._exit(0)
        except GateFailed:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert all(table.get(key) == 1 for key in KEYS[:6000])


def test_a_table_is_not_copied(monkeypatch):
    table = filled(monkeypatch, 6000)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="DigestTable"):
            act(table)
    assert all(table.get(key) == 1 for key in KEYS[:6000])


def test_the_tables_of_one_gate_fit_into_its_memory_together(monkeypatch):
    made, original = [], DigestTable.__init__

    def noted(self, memory_entries=digests.MEMORY_ENTRIES, recent=None):
        made.append((memory_entries, recent))
        original(self, memory_entries, recent)

    monkeypatch.setattr(DigestTable, "__init__", noted)
    Claims(io.BytesIO())
    monkeypatch.undo()
    assert made == [(1 << 17, 1 << 15)]
    table = DigestTable(1 << 10, 1 << 6)
    for key in KEYS:
        table.set(key, 1)
        assert len(table._recent) <= 1 << 6
    assert table._file >= 0 and all(table.get(key) == 1 for key in KEYS)


def test_a_number_that_could_not_be_replaced_counts_as_failed(monkeypatch):
    table = filled(monkeypatch, 6000)
    monkeypatch.setattr(os, "pwrite", full_disk(0))
    with pytest.raises(GateFailed, match="STORAGE"):
        table.set(KEYS[0], 2)
    monkeypatch.undo()
    with pytest.raises(GateFailed, match="STORAGE"):
        table.get(KEYS[1])


def test_a_table_belongs_to_the_process_that_moved_it_to_disk(monkeypatch):
    table = filled(monkeypatch, 20)
    child = os.fork()
    if child == 0:  # pragma: no cover - runs in the child
        code = 1
        try:
            for key in KEYS[:6000]:
                table.set(key, 1)
            code = 7 if table._file >= 0 and all(table.get(key) == 1 for key in KEYS[:6000]) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(table) == 20 and table._file < 0
