"""Names of tiles, by table: C2SP tlog-tiles gives 1234067 and the tree of 70,000 leaves."""

import hashlib

import pytest

from ledger import layout, tiles
from ledger.errors import ProofError
from ledger.merkle import root_of_hashes
from tests.reference.hash_tiles import hash_tiles


@pytest.mark.parametrize(
    "n,expected",
    [(0, "000"), (5, "005"), (999, "999"), (1000, "x001/000"), (1234067, "x001/x234/067"), (10**6, "x001/x000/000")],
)
def test_index_paths(n, expected):
    assert layout.index_path(n) == expected


def test_tile_and_entry_paths():
    assert layout.tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert layout.tile_path(2, 0, 1) == "tile/2/000.p/1"
    assert layout.entries_path(3, 255) == "tile/entries/003.p/255"


def test_the_tree_of_seventy_thousand_leaves():
    widths = {level: list(layout.tile_widths(70_000, level)) for level in range(layout.level_count(70_000))}
    assert [len(w) for w in widths.values()] == [274, 2, 1]
    assert widths[0][-1] == (273, 112) and widths[1] == [(0, 256), (1, 17)] and widths[2] == [(0, 1)]


def test_a_full_tile_has_one_hash_above_it():
    assert [list(layout.tile_widths(256, level)) for level in range(2)] == [[(0, 256)], [(0, 1)]]
    assert layout.level_count(255) == 1 and layout.level_count(0) == 0


@pytest.mark.parametrize("size", [1, 255, 256, 257, 600, 65_536 + 300])
def test_hash_tiles_are_the_files_of_the_layout_and_give_the_root(size):
    hashes = [hashlib.sha256(n.to_bytes(4, "big")).digest() for n in range(size)]
    made = dict(hash_tiles(hashes))
    assert set(made) == {name for name in layout.file_paths(size) if name.startswith("tile/") and "entries" not in name}
    assert all(len(data) <= layout.max_file_size(name) for name, data in made.items())
    top = made[layout.tile_path(layout.level_count(size) - 1, 0, size // 256 ** (layout.level_count(size) - 1))]
    if size in (1, 255, 256):
        assert root_of_hashes([top[at : at + 32] for at in range(0, len(top), 32)]) == root_of_hashes(hashes)


def test_bundles_hold_exactly_their_entries():
    entries = [b"", b"a", b"b" * 65_535]
    data = tiles.entry_bundle(entries)
    assert tiles.split_bundle(data, 3) == entries
    for bad, width in ((data, 2), (data, 4), (data[:-1], 3), (data + b"\0", 3), (b"\0", 1)):
        with pytest.raises(ProofError):
            tiles.split_bundle(bad, width)


def test_names_of_attestations_follow_from_terms_and_signed_bundles():
    assert list(layout.attestation_paths(600, 0, [])) == []
    assert list(layout.attestation_paths(600, 257, [0, 2])) == [
        "attestations/terms/000",
        "attestations/terms/001.p/1",
        "attestations/signed/000",
        "attestations/signed/002.p/88",
    ]
    assert list(layout.attestation_paths(256, 256, [0])) == ["attestations/terms/000", "attestations/signed/000"]


@pytest.mark.parametrize("terms", [0, 1, 255, 256, 257, 511, 512, 700])
def test_the_number_of_terms_is_counted_from_names(terms):
    names = set(layout.attestation_paths(1000, terms, [0]))
    assert layout.count_terms(names) == terms


@pytest.mark.parametrize(
    ("names", "terms"),
    [
        ({"attestations/terms/001"}, 0),
        ({"attestations/terms/000.p/3", "attestations/terms/000.p/7"}, 3),
        ({"attestations/terms/000", "attestations/terms/000.p/7"}, 256),
        ({"attestations/terms/000.p/256"}, 0),
        ({"attestations/terms/000.p/0"}, 0),
    ],
)
def test_names_that_no_count_has_are_left_over(names, terms):
    assert layout.count_terms(names) == terms
    assert names - set(layout.attestation_paths(1000, terms, []))


def test_the_registry_and_attestations_have_sizes_of_their_own():
    assert layout.max_file_size(layout.REGISTRY) == 256 << 20
    assert layout.max_file_size(layout.terms_path(3)) == 65_537 * 256
    assert layout.max_file_size(layout.signed_path(1234567, 3)) == layout.MAX_SIGNED_SIZE < layout.MAX_BUNDLE_SIZE
    assert layout.max_file_size("registry.names") == layout.max_file_size("attestations") == layout.MAX_TEXT_SIZE
