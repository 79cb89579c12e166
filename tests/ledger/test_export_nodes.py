"""Exports without old hashes: what stands for them is held against the signed root, and whatever is wrong with it is named."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from test_export import codes, files, wheres

from ledger import layout
from ledger.audit import verify_export
from ledger.errors import ProofError
from ledger.export import write_export
from ledger.log import Ledger
from ledger.merkle import HASH_SIZE, node_hash, verify_consistency, verify_inclusion
from ledger.proofs.prover import ExportReader, consistency_proof, inclusion_proof
from ledger.storage.appender import droppable
from ledger.storage.appender import without_hashes as lacking
from ledger.tiles import KeptNodes, Subtree, nodes_file
from tests.worlds.ledgers import SIGNER, admission
from tests.worlds.retained_ledgers import crowded_and_pruned, hashes_gone, is_pruned

KEYS = [SIGNER.vkey]
NODES = layout.RETAINED_NODES


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A ledger of a dozen tiles, several of them inside one subtree, and two behind all that was pruned."""
    base = tmp_path_factory.mktemp("wide")
    driver = hashes_gone(base / "ledger.db", base, people=1500)
    driver.admit(*map(admission, range(2000, 2300)))
    with driver.ledger as ledger:
        ledger.export(base / "export")
        sizes = sorted(ledger._file.checkpoints)
        (base / "roots").write_bytes(b"".join(ledger._file.root_at(size) for size in sizes))
        (base / "sizes").write_text(" ".join(map(str, sizes)))
    return base


@pytest.fixture
def export(wide, tmp_path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(wide / "export", tmp_path / "export"))


def kept(export: Path) -> tuple[list[Subtree], int]:
    size = ExportReader(export).size
    return list(KeptNodes((export / NODES).read_bytes(), size)), size


def judged(export: Path, nodes: list[Subtree]) -> tuple[set[str], set[str]]:
    """Codes and places that an audit finds where these stand for hashes, in a file that is undamaged."""
    (export / NODES).write_bytes(nodes_file(nodes))
    report = verify_export(export, KEYS)
    assert report.verdict == "FAILED"
    return codes(report), wheres(report)


def test_tiles_whose_hashes_are_gone_are_left_out_and_no_others(wide):
    export = wide / "export"
    report = verify_export(export, KEYS)
    assert is_pruned(report) and report.findings == ()
    nodes, size = kept(export)
    assert max(node.level for node in nodes) > layout.TILE_HEIGHT, "a subtree reaches over several tiles"
    there = KeptNodes((export / NODES).read_bytes(), size)
    held = {name for name in files(export) if name.startswith("tile/") and "entries" not in name}
    assert held == {
        layout.tile_path(row, n, width)
        for row in range(layout.level_count(size))
        for n, width in layout.tile_widths(size, row)
        if there.has_tile(row, n)
    }
    assert not there.has_tile(1, 0) and layout.tile_path(0, 10) in held
    assert (export / NODES).stat().st_size < HASH_SIZE * (size - report.summaries[0].hashes_gone)


@pytest.mark.slow
def test_proofs_of_all_that_stays_are_made_from_it(wide):
    reader = ExportReader(wide / "export")
    roots = (wide / "roots").read_bytes()
    sizes = list(map(int, (wide / "sizes").read_text().split()))
    for place, size in enumerate(sizes):
        if 0 < size <= reader.size:
            root = roots[place * HASH_SIZE : (place + 1) * HASH_SIZE]
            proof = consistency_proof(reader.node, size, reader.size)
            verify_consistency(size, reader.size, proof, root, reader.claimed.root)
    shown = gone = 0
    for seq in range(reader.size):
        try:
            proof = inclusion_proof(reader.node, seq, reader.size)
        except ProofError as error:
            assert error.code == "HASHES_GONE"
            gone += 1
            continue
        try:
            verify_inclusion(reader.leaf(seq), seq, reader.size, proof, reader.claimed.root)
        except ProofError as error:
            assert error.code == "PRUNED"
        shown += 1
    assert gone == verify_export(wide / "export", KEYS).summaries[0].hashes_gone > 1_300 and shown + gone == reader.size


def test_every_byte_of_the_kept_nodes_counts(export):
    target = export / NODES
    original = target.read_bytes()
    size = ExportReader(export).size
    for position in range(len(original)):
        changed = bytearray(original)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises(ProofError, match="NODES"):
            KeptNodes(bytes(changed), size)
    for position in (0, len(original) // 2, len(original) - 1):
        changed = bytearray(original)
        changed[position] ^= 1 << (position % 8)
        target.write_bytes(bytes(changed))
        report = verify_export(export, KEYS)
        assert report.verdict == "FAILED" and wheres(report) == {NODES}
        with pytest.raises(ProofError, match="NODES"):
            ExportReader(export)
    for data in (b"", original[:-1], original * 2):
        target.write_bytes(data)
        assert wheres(verify_export(export, KEYS)) == {NODES}


@pytest.mark.slow
def test_a_changed_byte_of_any_file_is_found(export):
    some = (layout.retained_path(0), layout.retained_path(1), layout.retained_path(3), layout.RETAINED_NOTES, "checkpoint")
    last = [max(name for name in files(export) if name.startswith(part)) for part in ("retained/0", "tile/0", "tile/entries")]
    for name in (*some, *last):
        target = export / name
        original = target.read_bytes()
        for position in (0, len(original) // 3):
            changed = bytearray(original)
            changed[position] ^= 0x10
            target.write_bytes(bytes(changed))
            report = verify_export(export, KEYS)
            assert report.verdict == "FAILED", (name, position)
            assert name in wheres(report) or any(where.startswith("seq ") for where in wheres(report)), (name, position)
        target.write_bytes(original)


def test_a_leaf_that_stays_in_a_tile_that_is_gone_is_named_when_it_changes(export):
    """The kept nodes have its hash, so the bundle is blamed as ever."""
    target = export / layout.retained_path(0)
    data = bytearray(target.read_bytes())
    data[400] ^= 1  # inside the header, leaf 0
    target.write_bytes(bytes(data))
    report = verify_export(export, KEYS)
    assert (codes(report), wheres(report)) == ({"LEAF"}, {layout.retained_path(0)})


def test_an_altered_root_is_no_root(export):
    nodes, _ = kept(export)
    for level in (1, 5, 9):
        place = next(n for n, node in enumerate(nodes) if node.level == level)
        spoiled = [*nodes[:place], nodes[place]._replace(hash=bytes(HASH_SIZE)), *nodes[place + 1 :]]
        assert judged(export, spoiled) == ({"ROOT"}, {NODES})


def test_an_altered_hash_of_a_leaf_that_stays_is_held_against_the_leaf(export):
    nodes, _ = kept(export)
    assert nodes[0] == (0, 0, nodes[0].hash)
    assert judged(export, [nodes[0]._replace(hash=bytes(HASH_SIZE)), *nodes[1:]]) == ({"TILE"}, {NODES})


def test_a_subtree_over_a_leaf_that_stays_is_refused_though_its_root_is_right(export):
    """Nothing would show that the leaf is the one signed: any other could be put in its place."""
    nodes, _ = kept(export)
    place = next(n for n, (a, b) in enumerate(pairwise(nodes)) if not (a.level or b.level or a.first & 1))
    left, right = nodes[place], nodes[place + 1]
    joined = Subtree(left.first, 1, node_hash(left.hash, right.hash))
    assert judged(export, [*nodes[:place], joined, *nodes[place + 2 :]]) == ({"NODES"}, {NODES})


def test_subtrees_that_overlap_or_leave_a_gap_or_stand_nowhere_are_refused(export):
    nodes, size = kept(export)
    place = next(n for n, node in enumerate(nodes) if node.level == 2)
    node = nodes[place]
    spoiled = {
        "overlap": [*nodes[: place + 1], Subtree(node.first, 1, node.hash), *nodes[place + 1 :]],
        "twice": [*nodes[: place + 1], *nodes[place:]],
        "gap": [*nodes[:place], *nodes[place + 1 :]],
        "gap at the end": nodes[:-1],
        "gap at the beginning": nodes[1:],
        "not aligned": [*nodes[:place], node._replace(first=node.first + 1), *nodes[place + 1 :]],
        "too high": [*nodes[:place], node._replace(level=63), *nodes[place + 1 :]],
        "beyond the tree": [*nodes, Subtree(1 << 20, 3, node.hash)],
        "out of order": [*nodes[place:], *nodes[:place]],
        "a tile that is there": [*nodes, *(Subtree(seq, 0, bytes(32)) for seq in range(size - size % 256, size))],
        "nothing": [],
    }
    for name, wrong in spoiled.items():
        assert judged(export, wrong) == ({"NODES"}, {NODES}), name


def test_a_tile_that_should_be_gone_is_no_file_of_the_export(export):
    _, size = kept(export)
    there = KeptNodes((export / NODES).read_bytes(), size)
    for row, n in ((0, 0), (0, 4), (1, 0)):
        assert not there.has_tile(row, n)
        name = layout.tile_path(row, n, min(256, (size >> 8 * row) - 256 * n))
        (export / name).parent.mkdir(parents=True, exist_ok=True)
        (export / name).write_bytes(bytes(HASH_SIZE * 8))
        report = verify_export(export, KEYS)
        assert (codes(report), wheres(report)) == ({"UNKNOWN_FILE"}, {name})
        (export / name).unlink()
        if not any((export / name).parent.iterdir()):
            (export / name).parent.rmdir()


def test_without_the_kept_nodes_the_tiles_are_missing(export):
    (export / NODES).unlink()
    report = verify_export(export, KEYS)
    assert report.verdict == "FAILED" and layout.tile_path(0, 0) in wheres(report) and "MISSING_FILE" in codes(report)


def without_hashes(ledger: Ledger, directory: Path) -> Path:
    """An export of a ledger as it were with the hashes of all pruned leaves gone, whatever the policy says."""
    end, told = ledger.pruned_before, ledger.pruned()
    with ledger._file.store.snapshot() as snapshot:
        rows = lacking(snapshot.rows(), droppable(snapshot, end, ledger._file.checkpoints))
        return write_export(ledger.header, rows, ledger.checkpoint, directory, keys=ledger.state.keys, pruned=told)


@pytest.mark.parametrize("epochs", [0, 4])
def test_hashes_that_the_policy_keeps_must_be_there(path, tmp_path, epochs):
    driver = crowded_and_pruned(path, tmp_path, retention_hash_epochs=epochs)
    with driver.ledger as ledger:
        report = verify_export(without_hashes(ledger, tmp_path / "lean"), KEYS)
    assert (codes(report), wheres(report)) == ({"HORIZON"}, {NODES})


def test_a_subtree_over_a_cited_size_fails_the_audit(path, tmp_path):
    """A RESUME leaf cites a root that cannot be made any more: nobody can say whether it was this ledger's."""
    driver = crowded_and_pruned(path, tmp_path, retention_hash_epochs=1)
    with driver.ledger as ledger:
        end, told = ledger.pruned_before, ledger.pruned()
        with ledger._file.store.snapshot() as snapshot:
            found = list(droppable(snapshot, end, ledger._file.checkpoints))
            hashes = {row.seq: row.leaf_hash for row in snapshot.rows()}
            pair = Subtree(12, 1, node_hash(hashes[12], hashes[13]))
            args = (ledger.header, lacking(snapshot.rows(), sorted([*found, pair])), ledger.checkpoint, tmp_path / "lean")
            export = write_export(*args, keys=ledger.state.keys, pruned=told)
    report = verify_export(export, KEYS)
    assert report.verdict == "FAILED" and "HASHES_GONE" in codes(report)


def test_nodes_over_more_leaves_than_there_can_be_cost_no_more_than_their_bytes():
    """The size is a stranger's claim until the note is verified."""
    nodes = KeptNodes(nodes_file([Subtree(0, 61, bytes(32)), Subtree(1 << 61, 60, bytes(32))]), 1 << 62)
    assert not nodes.has_tile(0, 5) and not nodes.has_tile(6, 0) and not nodes.has_tile(0, (1 << 60) >> 8)
    assert nodes.has_tile(0, (1 << 62) - (1 << 61) + (1 << 60) >> 8) and nodes.around(7) == (0, 61, bytes(32))
    with pytest.raises(ProofError, match="NODES"):
        KeptNodes(nodes_file([Subtree(0, 63, bytes(32))]), 1 << 62)
