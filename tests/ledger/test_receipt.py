"""COSE receipts (RFC 9942): made for every leaf, valid under the RFC's own CDDL, and bound to size, place and log."""

import cbor2
import pycddl
import pytest

from attest import cbor, sign1
from attest.errors import AttestError
from ledger import merkle
from ledger.errors import LedgerError
from ledger.log import Ledger
from ledger.note import Checkpoint, Cosigner, NoteSigner
from ledger.proofs import prover
from ledger.proofs.single_leaf import make_receipt, verify_receipt
from ledger.trust import auditors_policy, policy_of_keys
from tests.vectors.published import vectors
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, SIGNER, START, Driver, header_spec

POLICY = auditors_policy(SIGNER.vkey)
PUBLISHED = vectors("cose")["rfc9942_examples"]

# RFC 9942, sections 4.3 and 5.2 (`examples/inclusion-receipt.cddl` of its repository); what is embedded as a byte string is
# held against a rule of its own, since `pycddl` 0.6 reads `.cbor` inside an array wrongly.
GRAMMAR = """
message = #6.18([protected: bstr, unprotected: unprotected-header, payload: bstr / nil, signature: bstr])
protected-header = { 1 => int, 395 => int, * label => any }
unprotected-header = { 396 => { -1 => [ + bstr ] }, * label => any }
proof = [tree-size: uint, leaf-index: uint, inclusion-path: [ + bstr ]]
label = int / text
"""


def check_grammar(receipt: bytes) -> None:
    """Validates a receipt and what is embedded in it."""
    protected, unprotected, _, _ = cbor2.loads(receipt).value
    for rule, data in (("message", receipt), ("protected-header", protected), ("proof", unprotected[396][-1][0])):
        pycddl.Schema(f"start = {rule}\n{GRAMMAR}").validate_cbor(data)


@pytest.fixture(scope="module")
def leaves(tmp_path_factory) -> list[bytes]:
    """The leaves of one whole run."""
    base = tmp_path_factory.mktemp("run")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        with ledger.rows() as rows:
            return [row.body for row in rows]


def receipt_of(leaves: list[bytes], index: int, size: int | None = None, signer: NoteSigner = SIGNER) -> bytes:
    size = size or len(leaves)
    node = prover.HashTree(map(merkle.leaf_hash, leaves[:size])).node
    checkpoint = Checkpoint(signer.name, size, prover.tree_root(node, size))
    return make_receipt(signer, node, index, checkpoint, leaves[index])


def refused(call, *arguments) -> str:
    with pytest.raises(LedgerError) as caught:
        call(*arguments)
    return caught.value.code


def resealed(receipt: bytes, *, protected=None, proof=None, unprotected=None, payload=None, root: bytes, key=LOG_KEY) -> bytes:
    """A receipt with other parts, signed by the log's key over what it then says."""
    first, second, _, _ = cbor.decode(receipt[1:])
    first = first if protected is None else cbor.encode(cbor.decode(first) | protected)
    if proof is not None:
        second = {396: {-1: [cbor.encode(proof)]}}
    signature = key.sign(sign1.to_be_signed(first, root))
    return b"\xd2" + cbor.encode([first, second if unprotected is None else unprotected, payload, signature])


def test_every_leaf_has_a_receipt_that_verifies(leaves):
    for index, leaf in enumerate(leaves):
        found = verify_receipt(receipt_of(leaves, index), leaf, POLICY)
        assert found.leaf.seq == index and found.checkpoint.root == merkle.root(leaves)
        assert (found.checkpoint.origin, found.checkpoint.size) == (SIGNER.name, len(leaves))


def test_receipts_are_instances_of_the_rfcs_grammar(leaves):
    for index in (0, 1, len(leaves) - 1):
        check_grammar(receipt_of(leaves, index))
    check_grammar(bytes.fromhex(PUBLISHED["inclusion"]))
    with pytest.raises(pycddl.ValidationError):
        check_grammar(resealed(receipt_of(leaves, 0), proof=[1, 0, []], root=bytes(32)))


def test_a_receipt_reads_in_another_decoder(leaves):
    tag = cbor2.loads(receipt_of(leaves, 3))
    protected, unprotected, payload, signature = tag.value
    header = cbor2.loads(protected)
    assert tag.tag == 18 and payload is None and len(signature) == 64
    assert (header[1], header[395], header[15][1]) == (-19, 1, SIGNER.name)
    size, index, path = cbor2.loads(unprotected[396][-1][0])
    assert [size, index] == list(header[-65537]) == [len(leaves), 3]
    merkle.verify_inclusion(leaves[3], index, size, list(path), merkle.root(leaves))


def test_the_published_proofs_hold_together():
    """Leaf 3 of 5 and the consistency of 3 with 5: one names the hash of the leaf that the other proves."""
    inclusion, consistency = (cbor2.loads(bytes.fromhex(PUBLISHED[name])).value for name in ("inclusion", "consistency"))
    size, index, path = cbor2.loads(inclusion[1][396][-1][0])
    old, new, steps = cbor2.loads(consistency[1][396][-2][0])
    assert (size, index, old, new) == (5, 3, 3, 5)
    root = merkle.root_of_inclusion(steps[1], index, size, path)
    merkle.verify_consistency(old, new, steps, merkle.node_hash(steps[2], steps[0]), root)


def test_every_changed_byte_of_a_receipt_is_refused(leaves):
    receipt = receipt_of(leaves, 2)
    for position in range(len(receipt)):
        for bit in (1, 0x80):
            changed = bytearray(receipt)
            changed[position] ^= bit
            refused(verify_receipt, bytes(changed), leaves[2], POLICY)
    for length in range(len(receipt)):
        refused(verify_receipt, receipt[:length], leaves[2], POLICY)
    assert refused(verify_receipt, receipt + b"\x00", leaves[2], POLICY) == "RECEIPT"


def test_a_receipt_is_for_one_leaf(leaves):
    assert refused(verify_receipt, receipt_of(leaves, 2), leaves[3], POLICY) == "RECEIPT_HEADER"


def test_size_and_place_are_signed():
    """Leaf 1 of 2 also reads as leaf 4 of 5 with the same path and root (RFC 9942 would take it): refused here."""
    pair = [b"x", b"y"]
    receipt = receipt_of(pair, 1)
    path, root = [merkle.leaf_hash(b"x")], merkle.root(pair)
    merkle.verify_inclusion(b"y", 4, 5, path, root)
    moved = resealed(receipt, proof=[5, 4, path], root=root)
    assert refused(verify_receipt, moved, b"y", POLICY) == "RECEIPT_HEADER"


def test_a_place_that_the_log_itself_signed_wrong_is_refused_by_the_leaf(leaves):
    pair = leaves[:2]
    path, root = [merkle.leaf_hash(pair[0])], merkle.root(pair)
    lying = resealed(receipt_of(pair, 1), protected={-65537: [5, 4]}, proof=[5, 4, path], root=root)
    assert refused(verify_receipt, lying, pair[1], POLICY) == "SEQ"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protected": {1: -8}}, "RECEIPT_HEADER"),
        ({"protected": {1: -7}}, "RECEIPT_HEADER"),
        ({"protected": {2: [99]}}, "RECEIPT_HEADER"),
        ({"protected": {16: sign1.TYP_ATTESTATION}}, "RECEIPT_HEADER"),
        ({"protected": {395: 2}}, "RECEIPT_HEADER"),
        ({"protected": {99: 1}}, "RECEIPT_HEADER"),
        ({"protected": {4: bytes(8)}}, "RECEIPT_HEADER"),
        ({"protected": {15: {1: "ledger.example/run2", 2: "x"}}}, "ORIGIN"),
        ({"protected": {15: 1}}, "ORIGIN"),
        ({"unprotected": {}}, "RECEIPT"),
        ({"unprotected": {396: {-1: []}}}, "RECEIPT"),
        ({"unprotected": {396: {-1: [b"", b""]}}}, "RECEIPT"),
        ({"unprotected": {396: {-1: [b"\x80"]}, 99: 1}}, "RECEIPT"),
        ({"unprotected": {396: {-2: [b"\x80"]}}}, "RECEIPT"),
        ({"unprotected": {396: 1}}, "RECEIPT"),
        ({"unprotected": []}, "RECEIPT"),
        ({"payload": bytes(32)}, "RECEIPT"),
        ({"proof": [1, 0, []]}, "RECEIPT"),
        ({"proof": [True, 0, [bytes(32)]]}, "RECEIPT"),
        ({"proof": [2, 0, [bytes(31)]]}, "RECEIPT"),
        ({"proof": [2, 0, [bytes(32)] * 64]}, "RECEIPT"),
        ({"proof": {1: 2}}, "RECEIPT"),
    ],
)
def test_other_forms_are_refused_though_the_log_signed_them(leaves, changes, code):
    receipt = resealed(receipt_of(leaves, 2), root=merkle.root(leaves), **changes)
    assert refused(verify_receipt, receipt, leaves[2], POLICY) == code


def test_a_receipt_by_another_key_or_for_another_log_is_refused(leaves):
    assert refused(verify_receipt, receipt_of(leaves, 2, signer=NoteSigner(SIGNER.name, OTHER_KEY)), leaves[2], POLICY) in (
        "RECEIPT_HEADER"
    )
    forged = resealed(receipt_of(leaves, 2), root=merkle.root(leaves), key=OTHER_KEY)
    assert refused(verify_receipt, forged, leaves[2], POLICY) == "RECEIPT_SIGNATURE"
    assert refused(verify_receipt, receipt_of(leaves, 2, signer=NoteSigner("other", OTHER_KEY)), leaves[2], POLICY) == "ORIGIN"
    rotated = policy_of_keys([NoteSigner(SIGNER.name, OTHER_KEY).vkey, SIGNER.vkey])
    assert verify_receipt(receipt_of(leaves, 2), leaves[2], rotated).leaf.seq == 2


def test_a_receipt_shows_no_quorum(leaves):
    policy = auditors_policy(SIGNER.vkey, [Cosigner("auditor.example/anna", OTHER_KEY).vkey], 1)
    assert refused(verify_receipt, receipt_of(leaves, 2), leaves[2], policy) == "QUORUM"


def test_receipts_are_made_only_of_trees_that_the_log_checkpointed(leaves):
    node = prover.HashTree(map(merkle.leaf_hash, leaves)).node
    right = Checkpoint(SIGNER.name, len(leaves), merkle.root(leaves))
    for checkpoint, index, leaf, code in (
        (Checkpoint(SIGNER.name, len(leaves), bytes(32)), 1, leaves[1], "INCLUSION"),
        (right, 1, leaves[2], "INCLUSION"),
        (right, len(leaves), leaves[1], "INDEX"),
        (Checkpoint(SIGNER.name, 1, merkle.root(leaves[:1])), 0, leaves[0], "ONE_LEAF"),
        (Checkpoint("other", 2, merkle.root(leaves[:2])), 0, leaves[0], "WRONG_KEY"),
    ):
        assert refused(make_receipt, SIGNER, node, index, checkpoint, leaf) == code


def test_a_receipt_is_taken_for_no_other_message(leaves):
    """One key signs notes and receipts: neither form can be the other, and no attestation."""
    receipt = receipt_of(leaves, 2)
    with pytest.raises(AttestError):
        sign1.verify(receipt, merkle.root(leaves), SIGNER.verifier.public_key)
    protected = cbor.decode(receipt[1:])[0]
    with pytest.raises(UnicodeDecodeError):
        sign1.to_be_signed(protected, merkle.root(leaves)).decode()
