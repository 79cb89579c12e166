"""An export is read a file at a time: what is checked is what is judged, and memory does not grow with the leaves."""

import hashlib
import tracemalloc
from pathlib import Path

import pytest

from ledger import layout, tiles
from ledger.audit.given import Export, Leaves
from ledger.errors import ExportChanged
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.note import Checkpoint
from tests.reference.hash_tiles import hash_tiles

SIZES = (1, 2, 255, 256, 257, 511, 512, 513, 700)


def entry(n: int) -> bytes:
    return hashlib.sha512(b"%d" % n).digest() * 2


def written(base: Path, size: int) -> tuple[Path, bytes]:
    """Bundles and tiles of a tree whose leaves mean nothing; returns the directory and the root."""
    entries = [entry(n) for n in range(size)]
    hashes = [leaf_hash(data) for data in entries]
    contents = dict(hash_tiles(hashes))
    for n, width in layout.tile_widths(size):
        contents[layout.entries_path(n, width)] = tiles.entry_bundle(entries[n * 256 : n * 256 + width])
    for name, data in contents.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(data)
    return base, root_of_hashes(hashes)


def opened(base: Path, size: int, root: bytes) -> tuple[Leaves | None, list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []
    export = Export(base, lambda code, where, _: found.append((code, where)))
    assert export.scan()
    return export.leaves(Checkpoint("origin", size, root)), found


@pytest.mark.parametrize("size", SIZES)
def test_leaves_come_in_order_and_their_roots_are_the_trees(tmp_path, size):
    base, root = written(tmp_path, size)
    leaves, found = opened(base, size, root)
    assert leaves is not None and not found
    assert list(leaves) == [entry(n) for n in range(size)]
    hashes = [leaf_hash(entry(n)) for n in range(size)]
    for smaller in {1, size, *(n for n in (2, 255, 256, 257, 512) if n <= size)}:
        assert leaves.root_at(smaller) == root_of_hashes(hashes[:smaller])


@pytest.mark.parametrize("name", [layout.entries_path(0), layout.entries_path(2, 188)])
def test_a_bundle_that_changes_after_it_was_authenticated_is_not_judged(tmp_path, name):
    base, root = written(tmp_path, 700)
    leaves, _ = opened(base, 700, root)
    assert leaves is not None
    data = bytearray((base / name).read_bytes())
    data[100] ^= 1
    (base / name).write_bytes(data)
    with pytest.raises(ExportChanged, match=name):
        list(leaves)
    with pytest.raises(ExportChanged, match=name):
        leaves.root_at(1 if name == layout.entries_path(0) else 699)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (layout.entries_path(1), "LEAF"),
        (layout.tile_path(0, 1), "TILE"),
        (layout.tile_path(0, 2, 188), "TILE"),
        (layout.tile_path(1, 0, 2), "TILE"),
    ],
)
def test_a_changed_file_is_named_among_many(tmp_path, name, code):
    base, root = written(tmp_path, 700)
    data = bytearray((base / name).read_bytes())
    data[-1] ^= 1
    (base / name).write_bytes(data)
    leaves, found = opened(base, 700, root)
    assert found == [(code, name)]
    assert (leaves is None) == (code == "LEAF")


def test_a_leaf_and_its_tile_changed_alike_do_not_give_the_root(tmp_path):
    base, root = written(tmp_path, 700)
    changed = [entry(n) for n in range(256, 512)]
    changed[3] = b"another"
    (base / layout.entries_path(1)).write_bytes(tiles.entry_bundle(changed))
    (base / layout.tile_path(0, 1)).write_bytes(b"".join(map(leaf_hash, changed)))
    leaves, found = opened(base, 700, root)
    assert leaves is None and found == [("ROOT", layout.CHECKPOINT)]


def test_memory_is_that_of_a_file_not_of_the_tree(tmp_path):
    """Four times the leaves take at most a few hashes per tile more."""
    peaks = []
    for size in (2_048, 8_192):
        base, root = written(tmp_path / str(size), size)
        tracemalloc.start()
        leaves, _ = opened(base, size, root)
        assert leaves is not None and sum(1 for _ in leaves) == size
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000, peaks
