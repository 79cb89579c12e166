"""Trees known by subtrees: whatever can be said without the hashes that are gone is said as before, and nothing else is."""

import random

import pytest

from ledger.errors import ProofError
from ledger.merkle import Frontier, leaf_hash, node_hash, root_of_hashes, verify_consistency, verify_inclusion_hash
from ledger.proofs.prover import consistency_proof, inclusion_proof
from ledger.tiles import MAX_LEVEL, Subtree, Subtrees, joined

HASHES = [leaf_hash(b"%d" % n) for n in range(700)]


def lost(size: int, gone: set[int], cuts: set[int]) -> list[Subtree]:
    """The subtrees that stay where leaves are gone."""
    return list(joined((Subtree(n, 0, HASHES[n]) for n in range(size) if n in gone), cuts))


def left(size: int, gone: set[int], cuts: set[int]) -> Subtrees:
    """The tree without them."""
    tree, nodes = Subtrees(), {node.first: node for node in lost(size, gone, cuts)}
    while tree.size < size:
        node = nodes.get(tree.size, Subtree(tree.size, 0, HASHES[tree.size]))
        tree.append(node.hash, node.level)
    return tree


def naive(gone: set[int], cuts: set[int]) -> set[tuple[int, int]]:
    """Maximal aligned subtrees by their definition."""
    fits = {
        (first, level)
        for level in range(10)
        for first in range(0, 1024, 1 << level)
        if all(n in gone for n in range(first, first + (1 << level)))
        and not any(first < cut < first + (1 << level) for cut in cuts)
    }
    return {
        (first, level)
        for first, level in fits
        if not any((first >> above << above, above) in fits for above in range(level + 1, 10))
    }


def everything_holds(size: int, gone: set[int], cuts: set[int]) -> None:
    """Roots, consistency proofs between cuts, and inclusion proofs of who stays: as of the whole tree; and no others."""
    tree = left(size, gone, cuts)
    inside = {n for node in lost(size, gone, cuts) for n in range(node.first + 1, node.end)}
    for at in range(1, size + 1):
        if at not in inside:
            assert tree.root(at) == root_of_hashes(HASHES[:at])
        else:
            with pytest.raises(ProofError, match="HASHES_GONE"):
                tree.root(at)
    for new in cuts | {size}:
        for n in set(range(new)) - gone:
            verify_inclusion_hash(HASHES[n], n, new, inclusion_proof(tree.node, n, new), root_of_hashes(HASHES[:new]))
        for old in cuts - {0}:
            if old <= new:
                proof = consistency_proof(tree.node, old, new)
                verify_consistency(old, new, proof, root_of_hashes(HASHES[:old]), root_of_hashes(HASHES[:new]))
    for node in lost(size, gone, cuts):
        for n in range(node.first, node.end) if node.level else ():
            with pytest.raises(ProofError, match="HASHES_GONE"):
                inclusion_proof(tree.node, n, size)


@pytest.mark.slow
def test_every_set_of_gone_leaves_of_every_small_tree():
    """Exhaustive: all subsets of up to seven leaves, with each cut."""
    for size in range(1, 8):
        for mask in range(1 << size):
            gone = {n for n in range(size) if mask >> n & 1}
            for cut in range(1, size + 1):
                cuts = {cut}
                assert {(node.first, node.level) for node in lost(size, gone, cuts)} == naive(gone, cuts)
                everything_holds(size, gone, cuts)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("seed", range(12))
def test_random_epochs_of_a_larger_tree(seed):
    """Runs of gone leaves, as an epoch's SPEND leaves are, between leaves that stay and some that go by themselves."""
    rng = random.Random(seed)
    size, gone, cuts, at = rng.randrange(200, 700), set(), set(), 1
    while at < size:
        run = rng.randrange(1, 120)
        gone |= set(range(at, min(at + run, size)))
        at += run + rng.randrange(1, 9)
        cuts.add(min(at, size))
    gone -= {rng.randrange(size) for _ in range(4)}
    assert {(node.first, node.level) for node in lost(size, gone, cuts)} == naive(gone, cuts)
    everything_holds(size, gone, cuts | {rng.randrange(1, size) for _ in range(3)})


def test_what_went_before_joins_what_goes_later():
    """In two goes or one: the same subtrees."""
    rng = random.Random(7)
    for _ in range(200):
        first = {n for n in range(64) if rng.random() < 0.7}
        second = {n for n in range(64) if rng.random() < 0.5} - first
        cuts = {rng.randrange(1, 64)}
        pieces = sorted([*lost(64, first, cuts), *(Subtree(n, 0, HASHES[n]) for n in second)])
        assert list(joined(pieces, cuts)) == lost(64, first | second, cuts)


@pytest.mark.slow
def test_few_hashes_stand_for_many_leaves():
    """A hundred epochs of 10,007 SPEND leaves, each behind a few leaves that stay: two per level and epoch at most."""
    kept = 0
    for epoch in range(100):
        first = 7 + epoch * 10_020
        kept += sum(1 for _ in joined(Subtree(n, 0, bytes(32)) for n in range(first, first + 10_007)))
    assert kept <= 100 * 2 * 14, kept


@pytest.mark.parametrize(("first", "end"), [(1, 2), (1, 8), (1, 30), (5, 12), (7, 64), (30, 257), (4, 5), (255, 600)])
def test_the_subtrees_of_a_range_rebuild_every_root(first, end):
    """As a SUMMARY leaf names them: with what lies before, they give the root behind the range."""
    tree = Subtrees()
    tree.extend(HASHES[:end])
    frontier = Frontier()
    frontier.extend(HASHES[:first])
    for piece in joined(tree.between(first, end)):
        assert piece.first == frontier.size
        frontier.append(piece.hash, piece.level)
    assert frontier.root() == root_of_hashes(HASHES[:end])


def test_pieces_that_do_not_fit_are_refused():
    tree = Subtrees()
    tree.extend(HASHES[:2])
    for hash_, level in ((HASHES[0], 2), (HASHES[0], MAX_LEVEL + 1), (HASHES[0], -1), (b"short", 0)):
        with pytest.raises(ProofError):
            tree.append(hash_, level)
    tree.append(HASHES[2], 1)
    assert (tree.size, tree.node(1, 1)) == (4, HASHES[2])
    assert tree.root(4) == node_hash(node_hash(HASHES[0], HASHES[1]), HASHES[2])
    for level, index in ((0, 4), (2, 1), (0, -1)):
        with pytest.raises(ProofError, match="NODE"):
            tree.node(level, index)
    with pytest.raises(ProofError, match="HASHES_GONE"):
        tree.node(0, 3)
    with pytest.raises(ProofError, match="SIZE"):
        list(tree.between(0, 5))
    with pytest.raises(ProofError, match="SUBTREE"):
        Frontier(1, [HASHES[0]]).append(HASHES[1], 1)
