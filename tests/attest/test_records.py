"""Lines of any length are found and hashed without holding them."""

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest.corpus import records
from attest.corpus.records import Locator, Record, jsonl_records
from attest.errors import CorpusRefused

PIECES = st.sampled_from([b"", b" ", b"\t", b"\r", b"\n", b"\n\n", b"a", b"{}", b"\r\n", b" \n", b"x" * 40, b"\x00", b"\x0b"])


def expected(data):
    """The plain way: all lines at once."""
    at = 0
    for line in data.split(b"\n"):
        if line.strip(b" \t\r"):
            yield Record(Locator("d.jsonl", at, len(line)), hashlib.sha256(line).digest())
        at += len(line) + 1


@given(st.lists(PIECES, max_size=30), st.sampled_from([1, 2, 3, 7, 40, 41, 1 << 20]))
def test_records_are_the_lines_whatever_the_pieces(tmp_path_factory, pieces, chunk):
    data, folder = b"".join(pieces), tmp_path_factory.mktemp("d")
    (folder / "d.jsonl").write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_CHUNK", chunk)
        assert list(jsonl_records(folder, "d.jsonl")) == list(expected(data))


@pytest.mark.parametrize(("length", "end"), [(100, b"\n"), (100, b""), (100, b"\nnext\n")])
def test_the_longest_record_is_read_and_one_byte_more_is_refused(tmp_path, monkeypatch, length, end):
    monkeypatch.setattr(records, "MAX_RECORD", length)
    for chunk in (1, 99, 100, 101, 102, 1 << 20):
        monkeypatch.setattr(records, "_CHUNK", chunk)
        (tmp_path / "d.jsonl").write_bytes(b"ok\n" + b"x" * length + end)
        assert [record.locator.length for record in jsonl_records(tmp_path, "d.jsonl")][:2] == [2, length]
        (tmp_path / "d.jsonl").write_bytes(b"ok\n" + b"x" * (length + 1) + end)
        found = jsonl_records(tmp_path, "d.jsonl")
        assert next(found).locator == Locator("d.jsonl", 0, 2)
        with pytest.raises(CorpusRefused, match="SIZE: line at byte 3 is longer than 100"):
            next(found)


def test_a_long_record_takes_no_memory(tmp_path):
    (tmp_path / "d.jsonl").write_bytes((b"x" * (30 << 20) + b"\n") * 2)
    tracemalloc.start()
    try:
        found = list(jsonl_records(tmp_path, "d.jsonl"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [record.locator.length for record in found] == [30 << 20] * 2
    assert peak < 8 << 20
