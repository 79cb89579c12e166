"""Merkle trees: published vectors, the naive RFC transcription, and every proof of every size up to 70."""

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import merkle
from ledger.errors import ProofError

TESTS = Path(__file__).parents[1]
VECTORS = json.loads((TESTS / "vectors" / "merkle.json").read_text())
_spec = importlib.util.spec_from_file_location("rfc6962", TESTS / "reference" / "rfc6962.py")
assert _spec is not None and _spec.loader is not None
rfc6962 = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rfc6962)

LEAVES = [f"leaf {i}".encode() for i in range(70)]
SIZES = range(1, 71)


def _accepts(check, *args) -> bool:
    try:
        check(*args)
    except ProofError:
        return False
    return True


def test_hash_vectors():
    hashes = VECTORS["hash"]
    assert merkle.EMPTY_ROOT.hex() == hashes["empty_root"] == merkle.root([]).hex()
    assert merkle.leaf_hash(b"").hex() == hashes["leaf_empty"]
    assert merkle.leaf_hash(b"L123456").hex() == hashes["leaf_L123456"]
    assert merkle.node_hash(b"N123", b"N456").hex() == hashes["node_N123_N456"]


def test_certificate_transparency_eight_leaf_roots():
    leaves = [bytes.fromhex(leaf) for leaf in VECTORS["ct8_leaves"]]
    assert [merkle.root(leaves[:n]).hex() for n in range(9)] == VECTORS["ct8_roots_by_size"]


@pytest.mark.parametrize("vector", VECTORS["inclusion"], ids=lambda v: v["id"])
def test_inclusion_vectors(vector):
    accepted = _accepts(
        merkle.verify_inclusion_hash,
        bytes.fromhex(vector["leaf_hash"]),
        vector["index"],
        vector["size"],
        [bytes.fromhex(h) for h in vector["proof"]],
        bytes.fromhex(vector["root"]),
    )
    assert accepted == (vector["expect"] == "accept")


@pytest.mark.parametrize("vector", VECTORS["consistency"], ids=lambda v: v["id"])
def test_consistency_vectors(vector):
    accepted = _accepts(
        merkle.verify_consistency,
        vector["size1"],
        vector["size2"],
        [bytes.fromhex(h) for h in vector["proof"]],
        bytes.fromhex(vector["root1"]),
        bytes.fromhex(vector["root2"]),
    )
    assert accepted == (vector["expect"] == "accept")


def test_the_published_sets_are_whole():
    assert len(VECTORS["inclusion"]) == len(VECTORS["consistency"]) == 98


def test_roots_and_inclusion_proofs_equal_the_rfc_for_all_sizes():
    for size in SIZES:
        leaves = LEAVES[:size]
        root = rfc6962.mth(leaves)
        assert merkle.root(leaves) == root
        for index in range(size):
            proof = merkle.inclusion_proof(leaves, index)
            assert proof == rfc6962.path(index, leaves)
            merkle.verify_inclusion(leaves[index], index, size, proof, root)


def test_consistency_proofs_equal_the_rfc_for_all_size_pairs():
    roots = [rfc6962.mth(LEAVES[:n]) for n in range(71)]
    for size in SIZES:
        for old in range(1, size + 1):
            proof = merkle.consistency_proof(LEAVES[:size], old)
            assert proof == rfc6962.proof(old, LEAVES[:size])
            merkle.verify_consistency(old, size, proof, roots[old], roots[size])


def test_frontier_equals_the_batch_root_and_round_trips():
    frontier = merkle.Frontier()
    for size, leaf in enumerate(LEAVES, start=1):
        frontier.append(merkle.leaf_hash(leaf))
        frontier = merkle.Frontier.from_bytes(frontier.size, frontier.to_bytes())
        assert (frontier.size, frontier.root()) == (size, rfc6962.mth(LEAVES[:size]))


@given(st.integers(1, 40), st.data())
def test_a_changed_proof_never_verifies(size, data):
    index = data.draw(st.integers(0, size - 1))
    leaves = LEAVES[:size]
    proof, root = merkle.inclusion_proof(leaves, index), merkle.root(leaves)
    flat = bytearray(b"".join([merkle.leaf_hash(leaves[index]), *proof, root]))
    flat[data.draw(st.integers(0, len(flat) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    parts = [bytes(flat[i : i + 32]) for i in range(0, len(flat), 32)]
    assert not _accepts(merkle.verify_inclusion_hash, parts[0], index, size, parts[1:-1], parts[-1])


@pytest.mark.parametrize("index", [-1, 3, 10**30, True, 1.0, "1"])
def test_indexes_outside_the_tree_are_refused(index):
    with pytest.raises(ProofError):
        merkle.inclusion_proof(LEAVES[:3], index)


@pytest.mark.parametrize("old", [0, 4, -1, True])
def test_old_sizes_outside_the_tree_are_refused(old):
    if old is True:
        with pytest.raises(ProofError):
            merkle.verify_consistency(old, 1, [], merkle.root(LEAVES[:1]), merkle.root(LEAVES[:1]))
    else:
        with pytest.raises(ProofError):
            merkle.consistency_proof(LEAVES[:3], old)


def test_a_frontier_that_does_not_fit_its_size_is_refused():
    with pytest.raises(ProofError):
        merkle.Frontier(3, [merkle.EMPTY_ROOT])
    with pytest.raises(ProofError):
        merkle.Frontier.from_bytes(1, b"short")


def test_a_tree_of_slots_that_is_hashed_in_blocks_has_the_root_of_all_of_it(monkeypatch):
    """Blocks of two pairs: sizes below, at and beyond their edges, made at once and grown."""
    monkeypatch.setattr(merkle, "_AT_ONCE", 128)
    grown = merkle.SlotTree()
    for size in range(1, 70):
        hashes = [merkle.leaf_hash(b"%d" % number) for number in range(size)]
        tree = merkle.SlotTree()
        for hash_ in hashes:
            tree.append(hash_)
        grown.append(hashes[-1])
        assert tree.root() == grown.root() == merkle.root_of_hashes(hashes)
