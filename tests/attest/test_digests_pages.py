"""The pages of a map: where an entry is looked for, what a full page does, and that nobody can choose the page."""

import os

import pytest

from attest.corpus import digests
from attest.corpus.digests import DigestTable


@pytest.fixture
def plain(monkeypatch):
    """A table whose names are the keys themselves, so that a test chooses the pages."""
    monkeypatch.setattr(DigestTable, "_name", lambda self, key: key)
    return lambda **options: DigestTable(recent=0, **options)


def test_an_entry_is_found_only_where_one_begins(plain):
    table = plain()
    one, two = bytes(16), bytes(4) + b"\x10" + b"b" * 11
    table.set(one, int.from_bytes(two[:8], "big"))
    table.set(two, 7)
    across = one[8:] + two[:8]
    assert table._page(one) == table._page(two) == table._page(across)
    assert table.get(one) == int.from_bytes(two[:8], "big") and table.get(two) == 7
    assert table.get(across) is None
    table.set(across, 9)
    assert (table.get(across), table.get(two), len(table)) == (9, 7, 3)


@pytest.mark.parametrize("memory", [1 << 19, 64])
def test_a_page_that_is_full_makes_more_pages(plain, memory):
    table, held = plain(memory_entries=memory), {}
    for number in range(1500):
        key = (number << 7).to_bytes(5, "big") + os.urandom(11)
        table.set(key, number)
        held[key] = number
        assert max(table._fill) <= digests._PAGE_ENTRIES
    assert all(table.get(key) == number for key, number in held.items()) and len(table) == 1500


def test_half_full_pages_make_more_pages():
    table = DigestTable(recent=0)
    for number in range(3000):
        table.set(number.to_bytes(8, "big"), number)
        assert len(table) <= len(table._fill) * digests._PAGE_ENTRIES // 2


def test_every_table_names_keys_by_a_secret_of_its_own():
    one, two = DigestTable(), DigestTable()
    assert one._name(b"key") == one._name(b"key") != two._name(b"key")
    assert len({table._name(b"key") for table in (DigestTable() for _ in range(20))}) == 20
