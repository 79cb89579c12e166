"""Signed files and atomic writes."""

import os

import pytest

from attest import cbor, signed_file
from attest.errors import FileRefused
from attest.files import atomic_write, atomic_writer, read_limited


def test_round_trip(tmp_path):
    signed_file.write(tmp_path / "x.cose", b"payload", b"message")
    assert signed_file.read(tmp_path / "x.cose") == (b"payload", b"message")
    assert signed_file.atomic_write is atomic_write


@pytest.mark.parametrize("value", [b"x", [b"x"], [b"x", "y"], [b"x", b"y", b"z"], {1: b"x"}, None], ids=repr)
def test_other_forms_are_refused(tmp_path, value):
    (tmp_path / "x.cose").write_bytes(cbor.encode(value))
    with pytest.raises(FileRefused) as caught:
        signed_file.read(tmp_path / "x.cose")
    assert caught.value.code == "FORMAT"


def test_unreadable_and_oversized_files_are_refused(tmp_path):
    for path, code in ((tmp_path / "absent", "FILE"), (tmp_path, "FILE")):
        with pytest.raises(FileRefused) as caught:
            signed_file.read(path)
        assert caught.value.code == code
    with pytest.raises(FileRefused) as caught:
        signed_file.write(tmp_path / "x", b"x" * (2 << 20), b"")
    assert caught.value.code == "SIZE" and not (tmp_path / "x").exists()
    (tmp_path / "x").write_bytes(b"12345")
    assert read_limited(tmp_path / "x", 5, "file") == b"12345"
    with pytest.raises(FileRefused) as caught:
        read_limited(tmp_path / "x", 4, "file")
    assert caught.value.code == "SIZE"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    atomic_write(path, b"old", mode=0o600)
    assert os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(RuntimeError), atomic_writer(path) as stream:
        stream.write(b"new")
        raise RuntimeError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x"]


def test_a_write_is_synced_before_it_appears(tmp_path, monkeypatch):
    """File, then rename, then directory: the order that survives power loss."""
    events = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), rename(a, b)))
    atomic_write(tmp_path / "x", b"data")
    assert events == ["sync", "rename", "sync"]


def test_a_symbolic_link_is_replaced_not_written_through(tmp_path):
    (tmp_path / "target").write_bytes(b"keep")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"keep" and (tmp_path / "link").read_bytes() == b"new"
