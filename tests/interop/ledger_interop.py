"""Other implementations read the ledger's tree, notes, proof files, tiles and receipts: run by `make interop`.

The other sides: Go's `golang.org/x/mod/sumdb`, from which notes, checkpoints and tiles come (`INTEROP_GO`, the built
`go_side`); `pymerkle`, a Merkle tree of RFC 6962, and `proofbundle`, which verifies C2SP proof files with their
cosignatures (`INTEROP_TLOG`, their interpreter); `cwt` for COSE (`INTEROP_CWT`). Nothing is skipped: a side that cannot be
started is a failure.
"""

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import merkle
from ledger.log import Ledger
from ledger.note import Cosigner, NoteSigner, cosign, merge_notes
from ledger.proofs import prover
from ledger.proofs.prover import ExportReader
from ledger.proofs.single_leaf import TlogProof, make_proof, make_receipt
from tests.interop.interop import HERE, side
from tests.worlds.ledgers import LOG_KEY, OTHER_KEY, OWNER_KEY, SIGNER, START, Driver, header_spec

ANNA, BEN = Cosigner("auditor.example/anna", OTHER_KEY), Cosigner("auditor.example/ben", OWNER_KEY)
MANY = [b"leaf %d" % number for number in range(600)]


@pytest.fixture(scope="module")
def go():
    yield from side(os.environ["INTEROP_GO"])


@pytest.fixture(scope="module")
def tlog():
    yield from side(os.environ["INTEROP_TLOG"], str(HERE / "tlog_side.py"))


@pytest.fixture(scope="module")
def cwt():
    yield from side(os.environ["INTEROP_CWT"], str(HERE / "cwt_side.py"))


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> ExportReader:
    """The export of one whole run, its checkpoint cosigned by two auditors."""
    base = tmp_path_factory.mktemp("run")
    with Ledger.create(base / "ledger.db", header_spec(), SIGNER, now=START) as ledger:
        Driver(ledger).whole_run()
        directory = ledger.export(base / "export")
    note = (directory / "checkpoint").read_bytes()
    cosigned = [cosign(note, who, [SIGNER.vkey], time=START + 900) for who in (ANNA, BEN)]
    (directory / "checkpoint").write_bytes(merge_notes(note, cosigned, [SIGNER.vkey, ANNA.vkey, BEN.vkey]))
    return ExportReader(directory)


def proof_of(export: ExportReader, seq: int) -> TlogProof:
    return make_proof(export.node, seq, export.size, export.checkpoint, export.leaf(seq))


def flipped(data: bytes, place: int = -1) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1
    return bytes(changed)


def hexes(hashes) -> list[str]:
    return [hash_.hex() for hash_ in hashes]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 255, 256, 257, 600])
def test_pymerkle_finds_the_same_root(tlog, size):
    assert tlog.ask(do="root", leaves=hexes(MANY[:size]))["root"] == merkle.root(MANY[:size]).hex()


def test_pymerkle_finds_the_root_that_the_checkpoint_signs(tlog, export):
    leaves = [export.leaf(seq).hex() for seq in range(export.size)]
    assert tlog.ask(do="root", leaves=leaves)["root"] == export.claimed.root.hex()


def test_go_opens_checkpoints_of_ours_with_and_without_cosignatures(go, export):
    assert go.ask(do="note", note=export.checkpoint, vkey=SIGNER.vkey) == {"accepted": True}
    stranger = NoteSigner(SIGNER.name, OTHER_KEY)
    for note, vkey in ((export.checkpoint, stranger.vkey), (export.checkpoint.replace(b"run1\n", b"run2\n", 1), SIGNER.vkey)):
        assert not go.ask(do="note", note=note, vkey=vkey)["accepted"]


def test_go_checks_every_inclusion_proof_of_ours(go, export):
    for seq in range(export.size):
        asked = {"do": "inclusion", "index": seq, "size": export.size, "root": export.claimed.root}
        path = hexes(prover.inclusion_proof(export.node, seq, export.size))
        assert go.ask(leaf=export.leaf(seq), proof=path, **asked) == {"accepted": True}
        assert not go.ask(leaf=flipped(export.leaf(seq)), proof=path, **asked)["accepted"]


@pytest.mark.parametrize("size", [2, 3, 70, 256, 600])
def test_go_checks_consistency_proofs_of_ours(go, size):
    node = prover.HashTree(map(merkle.leaf_hash, MANY[:size])).node
    for old in {1, 2, size // 2, size - 1, size} - {0}:
        asked = {"do": "consistency", "old": old, "size": size, "root": merkle.root(MANY[:size])}
        path = hexes(prover.consistency_proof(node, old, size))
        assert go.ask(old_root=merkle.root(MANY[:old]), proof=path, **asked) == {"accepted": True}
        assert not go.ask(old_root=bytes(32), proof=path, **asked)["accepted"]


def test_go_reads_an_export_as_tiles(go, export):
    asked = {"do": "tiles", "directory": str(export.base), "size": export.size}
    assert go.ask(root=export.claimed.root, **asked) == {"accepted": True}
    assert not go.ask(root=flipped(export.claimed.root), **asked)["accepted"]


def test_proofbundle_verifies_proof_files_of_ours_with_a_quorum(tlog, export):
    for seq in range(export.size):
        proof = proof_of(export, seq)
        asked = {"do": "proof", "log": SIGNER.vkey, "witnesses": [ANNA.vkey, BEN.vkey], "threshold": 2}
        found = tlog.ask(text=proof.to_bytes(), leaf=proof.extra, origin=SIGNER.name, **asked)
        assert found == {"ok": True, "log_ok": True, "inclusion_ok": True, "witnesses_ok": True}


def test_proofbundle_refuses_what_we_refuse(tlog, export):
    proof = proof_of(export, 3)
    carla = Cosigner("auditor.example/carla", Ed25519PrivateKey.from_private_bytes(b"\x03" * 32))
    right = {"text": proof.to_bytes(), "leaf": proof.extra, "origin": SIGNER.name, "log": SIGNER.vkey, "threshold": 2}
    witnesses = [ANNA.vkey, BEN.vkey]
    for changes in (
        {"leaf": export.leaf(4)},
        {"text": TlogProof(4, proof.hashes, proof.checkpoint).to_bytes()},
        {"text": TlogProof(3, proof.hashes[:-1], proof.checkpoint).to_bytes()},
        {"origin": "ledger.example/run2"},
        {"log": NoteSigner(SIGNER.name, OTHER_KEY).vkey},
        {"witnesses": [ANNA.vkey, carla.vkey]},
        {"witnesses": [ANNA.vkey, Cosigner("auditor.example/other", OTHER_KEY).vkey]},
    ):
        assert not tlog.ask(do="proof", **{"witnesses": witnesses} | right | changes)["ok"], changes


def test_cwt_verifies_receipts_of_ours_over_the_root(cwt, export):
    key = SIGNER.verifier.public_key
    assert LOG_KEY.public_key().public_bytes_raw() == key
    for seq in (0, 1, export.size - 1):
        receipt = make_receipt(SIGNER, export.node, seq, export.claimed, export.leaf(seq))
        asked = {"do": "verify", "message": receipt, "key": key}
        assert cwt.ask(payload=export.claimed.root, **asked) == {"accepted": True}
        assert not cwt.ask(payload=flipped(export.claimed.root), **asked)["accepted"]
