"""The bounded map equals a dictionary, in memory and on disk, and its memory does not grow with its size."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest.corpus import digests
from attest.corpus.digests import DigestTable


@pytest.fixture
def small(monkeypatch):
    """A table that leaves its dictionary and its memory early."""
    monkeypatch.setattr(digests, "RECENT", 8)
    return lambda: DigestTable(memory_entries=64)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["set", "setdefault", "get"]), st.binary(max_size=3), st.integers(0, 2**64 - 1))))
def test_a_table_equals_a_dictionary(steps):
    recent, digests.RECENT = digests.RECENT, 4
    try:
        table, model = DigestTable(memory_entries=16), {}
        for verb, key, value in steps:
            if verb == "set":
                table.set(key, value)
                model[key] = value
            elif verb == "setdefault":
                assert table.setdefault(key, value) == model.get(key)
                model.setdefault(key, value)
            else:
                assert table.get(key) == model.get(key)
            assert len(table) == len(model)
        assert all(table.get(key) == value for key, value in model.items())
    finally:
        digests.RECENT = recent


def test_entries_survive_the_move_to_disk_and_every_doubling(small):
    table, keys = small(), [os.urandom(32) for _ in range(20_000)]
    for number, key in enumerate(keys):
        assert table.setdefault(key, number) is None
    assert table._file >= 0 and table._pages is None
    assert all(table.get(key) == number for number, key in enumerate(keys))
    for key in random.Random(1).sample(keys, 500):
        table.set(key, 7)
        assert table.get(key) == 7
    assert len(table) == len(keys)
    assert table.get(os.urandom(32)) is None


def test_the_file_has_no_name_and_is_closed_with_the_table(small, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = small()
    for _ in range(5000):
        table.set(os.urandom(32), 1)
    file = table._file
    assert os.fstat(file).st_size > 0 and list(tmp_path.iterdir()) == []
    del table
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(file)


def test_what_is_held_in_memory_is_bounded(small):
    table = small()
    for _ in range(30_000):
        table.set(os.urandom(32), 1)
    assert table._pages is None and len(table._recent) <= 8
    assert table._fill.itemsize * len(table._fill) < 30_000 / 10
