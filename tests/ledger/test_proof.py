"""Proof files and the trees that make them: the published rows, every leaf of every size, and what a forger might try."""

import base64
import hashlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import merkle
from ledger.errors import LedgerError, NoteError, ProofError, TrustError
from ledger.leaves import Header, Spend, Withdraw, decode_leaf
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, checkpoint_text, cosign, open_note, parse_checkpoint, sign_note
from ledger.proofs import prover
from ledger.proofs.prover import ExportReader
from ledger.proofs.single_leaf import MAX_PATH, TlogProof, make_proof, parse_proof, verify_proof
from ledger.trust import auditors_policy
from tests.reference.hash_tiles import hash_tiles
from tests.reference.hash_tree import HashTree
from tests.vectors.published import vectors
from tests.worlds.ledgers import OTHER_KEY, SIGNER, START, Driver, descriptor, header_spec

TLOG = vectors("tlog")
HASHES = [merkle.leaf_hash(b"leaf %d" % n) for n in range(700)]
POLICY = auditors_policy(SIGNER.vkey)
ANNA = Cosigner("auditor.example/anna", OTHER_KEY)


def named(cases):
    return [pytest.param(case, id=case["id"].replace(" ", "-").replace(",", "")) for case in cases]


def refused(call, *arguments, **named_arguments) -> str:
    with pytest.raises(LedgerError) as caught:
        call(*arguments, **named_arguments)
    return caught.value.code


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> ExportReader:
    """The export of one whole run."""
    base = tmp_path_factory.mktemp("run")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        directory = ledger.export(base / "export")
        return ExportReader(directory)


def proof_of(export: ExportReader, seq: int) -> TlogProof:
    return make_proof(export.node, seq, export.size, export.checkpoint, export.leaf(seq))


# --- trees ---------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 511, 512, 513, 700])
def test_trees_in_memory_and_in_tiles_make_the_proofs_of_the_rfc(size):
    hashes = HASHES[:size]
    files = dict(hash_tiles(hashes))
    nodes = (HashTree(hashes).node, prover.TileTree(files.__getitem__, size).node)
    root = merkle.root_of_hashes(hashes)
    for node in nodes:
        assert prover.tree_root(node, size) == root
        for index in range(size) if size < 70 else (0, 1, 254, size // 2, size - 1):
            if index < size:
                assert prover.inclusion_proof(node, index, size) == merkle.inclusion_proof_of_hashes(hashes, index)
        for old in range(1, size + 1) if size < 70 else (1, 2, 200, 256, size - 1, size):
            if old <= size:
                assert prover.consistency_proof(node, old, size) == merkle.consistency_proof_of_hashes(hashes, old)
                assert prover.tree_root(node, old) == merkle.root_of_hashes(hashes[:old])


@given(st.integers(1, 700), st.data())
def test_any_smaller_size_can_be_proved_from_the_tiles_of_a_larger_tree(size, data):
    node = TREE.node
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    root = merkle.root_of_hashes(HASHES[:size])
    path = prover.inclusion_proof(node, index, size)
    merkle.verify_inclusion_hash(HASHES[index], index, size, path, root)
    path = prover.consistency_proof(node, old, size)
    merkle.verify_consistency(old, size, path, merkle.root_of_hashes(HASHES[:old]), root)


TREE = prover.TileTree(dict(hash_tiles(HASHES)).__getitem__, len(HASHES))


def test_trees_refuse_what_they_do_not_hold():
    tree = HashTree(HASHES[:5])
    assert tree.size == 5 and prover.tree_root(tree.node, 0) == merkle.EMPTY_ROOT
    for node in (tree.node, prover.TileTree(dict(hash_tiles(HASHES[:5])).__getitem__, 5).node):
        for level, index in ((0, 5), (1, 2), (3, 0), (9, 0)):
            assert refused(node, level, index) == "NODE"
        for index in (5, -1, 1.0):
            assert refused(prover.inclusion_proof, node, index, 5) == "INDEX"
        for old in (0, 6, True + 5.5):
            assert refused(prover.consistency_proof, node, old, 5) == "CONSISTENCY"


def test_a_tile_of_another_length_is_refused():
    short = {name: data[:-32] for name, data in hash_tiles(HASHES[:5])}
    assert refused(prover.TileTree(short.__getitem__, 5).node, 0, 0) == "TILE"


def test_a_proof_of_a_large_tree_takes_no_longer_than_its_path():
    """Makes and verifies proofs over 2^17 leaves; a tenth of a millisecond each on a quiet machine, here with much slack."""
    tree = HashTree(hashlib.sha256(b"%d" % n).digest() for n in range(1 << 17))
    root, started = prover.tree_root(tree.node, tree.size), time.perf_counter()
    for index in range(0, tree.size, 400):
        merkle.verify_inclusion_hash(
            tree.node(0, index), index, tree.size, prover.inclusion_proof(tree.node, index, tree.size), root
        )
    assert (time.perf_counter() - started) / len(range(0, tree.size, 400)) < 0.005


# --- files ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", named(TLOG["proof"]))
def test_published_proof_files(vector):
    proof = TlogProof(
        vector["index"],
        tuple(hashlib.sha256(text.encode()).digest() for text in vector["hashes"]),
        vector["checkpoint"].encode(),
        None if vector["extra"] is None else vector["extra"].encode(),
    )
    assert proof.to_bytes() == vector["text"].encode()
    assert parse_proof(proof.to_bytes()) == proof


@pytest.mark.parametrize("vector", named(TLOG["proof_reject"]))
def test_published_faults_of_proof_files(vector):
    assert refused(parse_proof, vector["text"].encode()) == "PROOF_FORMAT"


H = base64.b64encode(bytes(32)).decode()
HEAD = "c2sp.org/tlog-proof@v1\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEAD,
        f"{HEAD}index 0\n\n",
        f"{HEAD}index 00\n\nnote\n",
        f"{HEAD}index +1\n\nnote\n",
        f"{HEAD}index 1_0\n\nnote\n",
        f"{HEAD}index \u0663\n\nnote\n",
        f"{HEAD}index 9223372036854775808\n\nnote\n",
        f"{HEAD}index  1\n\nnote\n",
        f"{HEAD}index 1 \n\nnote\n",
        f"{HEAD}index 1\r\n\nnote\n",
        f"{HEAD}Index 1\n\nnote\n",
        f"{HEAD}index 1\nextra aGk=\n\nnote\n",
        f"{HEAD}extra aGk=\nextra aGk=\nindex 1\n\nnote\n",
        f"{HEAD}extra aGl=\nindex 1\n\nnote\n",
        f"{HEAD}extra aGk\nindex 1\n\nnote\n",
        f"{HEAD}extra\nindex 1\n\nnote\n",
        f"{HEAD}extra {base64.b64encode(bytes(65_536)).decode()}\nindex 1\n\nnote\n",
        f"{HEAD}index 1\n{H}\n{H[:-2]}B=\n\nnote\n",
        f"{HEAD}index 1\n {H}\n\nnote\n",
        HEAD + "index 1\n" + f"{H}\n" * (MAX_PATH + 1) + "\nnote\n",
        f"\n{HEAD}index 1\n\nnote\n",
        "c2sp.org/tlog-proof@v2\nindex 1\n\nnote\n",
    ],
)
def test_other_spellings_of_a_proof_file_are_refused(text):
    assert refused(parse_proof, text.encode()) == "PROOF_FORMAT"


def test_a_proof_file_has_a_largest_size():
    assert refused(parse_proof, bytes(2_000_000)) == "PROOF_SIZE"
    assert refused(parse_proof, "text") == "PROOF_SIZE"


@given(st.integers(0, 2**63 - 1), st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.none() | st.binary())
def test_proof_files_read_back(index, hashes, extra):
    proof = TlogProof(index, tuple(hashes), b"note\n\nlines\n", extra)
    assert parse_proof(proof.to_bytes()) == proof


def test_every_leaf_of_a_run_can_be_proved(export):
    kinds = set()
    for seq in range(export.size):
        data = proof_of(export, seq).to_bytes()
        proven = verify_proof(data, POLICY)
        assert proven.leaf.seq == seq and proven.data == export.leaf(seq) and proven.trusted.checkpoint.size == export.size
        kinds.add(type(proven.leaf))
    assert {Header, Spend, Withdraw} <= kinds


def test_a_leaf_can_be_given_beside_the_file_and_must_be_the_one_in_it(export):
    proof = proof_of(export, 3)
    bare = TlogProof(proof.index, proof.hashes, proof.checkpoint)
    assert refused(verify_proof, bare.to_bytes(), POLICY) == "NO_LEAF"
    assert verify_proof(bare.to_bytes(), POLICY, leaf=export.leaf(3)).leaf == decode_leaf(export.leaf(3))
    assert verify_proof(proof.to_bytes(), POLICY, leaf=export.leaf(3)).data == proof.extra
    assert refused(verify_proof, proof.to_bytes(), POLICY, leaf=export.leaf(4)) == "OTHER_LEAF"
    assert refused(verify_proof, bare.to_bytes(), POLICY, leaf=export.leaf(4)) == "INCLUSION"


def test_every_changed_byte_of_a_proof_file_is_refused(export):
    data = proof_of(export, 5).to_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises((ProofError, NoteError, TrustError)):
            verify_proof(bytes(changed), POLICY)


def test_every_truncated_proof_file_is_refused(export):
    data = proof_of(export, 5).to_bytes()
    for length in range(len(data)):
        with pytest.raises((ProofError, NoteError)):
            verify_proof(data[:length], POLICY)


def test_a_proof_under_another_log_or_an_older_checkpoint_is_refused(export):
    proof = proof_of(export, 5)
    stranger = NoteSigner(SIGNER.name, OTHER_KEY)
    assert refused(verify_proof, proof.to_bytes(), auditors_policy(stranger.vkey)) == "UNSIGNED"
    older = sign_note(checkpoint_text(SIGNER.name, 6, prover.tree_root(export.node, 6)), SIGNER)
    data = TlogProof(5, proof.hashes, older, proof.extra).to_bytes()
    assert refused(verify_proof, data, POLICY) == "INCLUSION"
    path = tuple(prover.inclusion_proof(export.node, 5, 6))
    assert verify_proof(TlogProof(5, path, older, proof.extra).to_bytes(), POLICY).leaf.seq == 5


def test_a_proof_satisfies_a_quorum_only_with_its_cosignatures(export):
    policy = auditors_policy(SIGNER.vkey, [ANNA.vkey], 1)
    proof = proof_of(export, 2)
    assert refused(verify_proof, proof.to_bytes(), policy) == "QUORUM"
    note = cosign(proof.checkpoint, ANNA, [SIGNER.vkey], time=START + 900)
    cosigned = TlogProof(2, proof.hashes, note, proof.extra)
    assert [item.timestamp for item in verify_proof(cosigned.to_bytes(), policy).trusted.cosigned] == [START + 900]


# --- exports -------------------------------------------------------------------------------------------------------------


def test_the_reader_finds_the_last_leaf_of_a_contribution(export):
    assert [seq for seq, _ in export.backwards()] == list(reversed(range(export.size)))
    seq, data = next((seq, data) for seq, data in export.backwards() if descriptor(1) in data)
    assert decode_leaf(data).descriptor_hash == descriptor(1) and export.leaf(seq) == data
    assert parse_checkpoint(open_note(export.checkpoint, [SIGNER.vkey]).text) == export.claimed


@pytest.mark.parametrize("seq", [-1, 10**6])
def test_the_reader_has_no_other_leaves(export, seq):
    assert refused(export.leaf, seq) == "INDEX"


def test_the_reader_follows_no_link_and_reads_no_device(export, tmp_path: Path):
    (tmp_path / "checkpoint").symlink_to(export.base / "checkpoint")
    assert refused(ExportReader, tmp_path) == "FILE"
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "checkpoint").write_bytes(export.checkpoint)
    reader = ExportReader(tmp_path)
    (tmp_path / "tile" / "0" / "000.p" / str(reader.size)).mkdir(parents=True)
    for read in (lambda: reader.node(0, 0), lambda: reader.leaf(0)):
        assert refused(read) == "FILE"
