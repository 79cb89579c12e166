"""Fuzz targets of the ledger's readers: notes, verifier keys, trust policies, proof files, evidence and receipts.

Beside what every target holds: nothing comes out of a reader but a typed `LedgerError`, and nothing is accepted as signed that
is not among the few texts and leaves that the keys here signed.
"""

from attest.errors import AttestError
from attest.keys.vkeys import parse_verifier_key
from fuzz.invariants import Target, require
from ledger import merkle
from ledger.errors import LedgerError
from ledger.leaves import Withdraw, encode_leaf
from ledger.note import Checkpoint, Cosigner, NoteSigner, checkpoint_text, cosign, merge_notes, open_note, sign_note
from ledger.proofs import prover
from ledger.proofs.cosigning import make_request, read_answer, read_request
from ledger.proofs.memory import Evidence, judge, parse_evidence
from ledger.proofs.single_leaf import TlogProof, make_proof, make_receipt, parse_proof, verify_proof, verify_receipt
from ledger.trust import auditors_policy, parse_policy
from tests.vectors.published import vectors
from tests.worlds.gate import ALICE, BOB, OWNER

LOG, ANNA, BEN = NoteSigner("ledger.example/run1", OWNER), Cosigner("anna", ALICE), Cosigner("ben", BOB)
LEAVES = [
    b"no header; nobody proves it here",
    *(encode_leaf(Withdraw(seq, 1_750_000_000, bytes([seq]) * 32, None, "consent", bytes(32))) for seq in range(1, 9)),
]
OTHERS = [*LEAVES[:3], *reversed(LEAVES[3:])]
POLICY = auditors_policy(LOG.vkey, [ANNA.vkey, BEN.vkey], 1)
LOG_ALONE = auditors_policy(LOG.vkey)
BOTH_KINDS = auditors_policy(LOG.vkey, [ANNA.vkey], 1, [BEN.vkey], 1)


def _tree(leaves: list[bytes]) -> prover.HashTree:
    return prover.HashTree(map(merkle.leaf_hash, leaves))


def _checkpoint(leaves: list[bytes]) -> Checkpoint:
    return Checkpoint(LOG.name, len(leaves), merkle.root(leaves))


def _text(leaves: list[bytes]) -> str:
    return checkpoint_text(LOG.name, len(leaves), merkle.root(leaves))


SIGNED = {_text(leaves) for leaves in (LEAVES, LEAVES[:5], OTHERS)}
NOTE, OLDER, FORK = (
    cosign(sign_note(_text(leaves), LOG), ANNA, [LOG.vkey], time=1_750_000_000) for leaves in (LEAVES, LEAVES[:5], OTHERS)
)
PROOFS = [make_proof(_tree(LEAVES).node, seq, len(LEAVES), NOTE, LEAVES[seq]).to_bytes() for seq in (1, 4, 8)]
RECEIPT = make_receipt(LOG, _tree(LEAVES).node, 4, _checkpoint(LEAVES), LEAVES[4])
EVIDENCE = [
    Evidence(NOTE, FORK),
    Evidence(NOTE, OLDER),
    Evidence(
        OLDER,
        FORK,
        prover.tree_root(_tree(OTHERS).node, 5),
        tuple(prover.consistency_proof(_tree(OTHERS).node, 5, len(OTHERS))),
    ),
]


REQUEST = make_request(_tree(LEAVES).node, NOTE, 5)
WITNESSED = cosign(read_request(REQUEST).note, BEN, [LOG.vkey], time=1_750_000_000)
COSIGNATURE = WITNESSED.removeprefix(read_request(REQUEST).note)


def run_note(data: bytes) -> None:
    """A note under pinned keys."""
    try:
        note = open_note(data, POLICY.vkeys)
    except LedgerError:
        return
    require(note.text in SIGNED and data.startswith(note.text.encode() + b"\n"), "a text is accepted that nobody signed")


def run_verifier_key(data: bytes) -> None:
    """A verifier key as text."""
    try:
        text = data.decode()
        key = parse_verifier_key(text)
    except (AttestError, UnicodeDecodeError):
        return
    require(str(key) == text, "an accepted verifier key is written otherwise")


def run_trust_policy(data: bytes) -> None:
    """A trust policy."""
    try:
        policy = parse_policy(data)
    except LedgerError:
        return
    require(parse_policy(policy.text()) == policy, "an accepted trust policy does not read back")
    require(policy.satisfied({witness.key for witness in policy.witnesses}), "all witnesses together are no quorum")


def run_proof(data: bytes) -> None:
    """A proof file, and what it proves under a quorum."""
    try:
        proof = parse_proof(data)
        require(proof.to_bytes() == data, "an accepted proof file is written otherwise")
        proven = verify_proof(data, POLICY)
    except LedgerError:
        return
    require(proven.data == LEAVES[proof.index], "a leaf is proved that is not there")


def run_evidence(data: bytes) -> None:
    """Evidence against the log."""
    try:
        evidence = parse_evidence(data)
        require(evidence.to_bytes() == data, "accepted evidence is written otherwise")
        found = judge(evidence, [LOG.vkey])
    except LedgerError:
        return
    pair = (found.remembered.root, found.offered.root)
    require(found.kind == "ROLLBACK" or merkle.root(OTHERS) in pair, "a fork is shown that is none")


def run_receipt(data: bytes) -> None:
    """A receipt for one leaf."""
    try:
        verify_receipt(data, LEAVES[4], LOG_ALONE)
    except LedgerError:
        return
    require(data == RECEIPT, "a receipt is accepted that nobody signed")


def run_request(data: bytes) -> None:
    """A request to a witness that is read back, and a right answer to it."""
    try:
        request = read_request(data)
        note = open_note(read_answer(COSIGNATURE, request), [LOG.vkey, BEN.vkey])
    except LedgerError:
        return
    require(note.text in SIGNED, "a request is taken for a checkpoint that nobody signed")


def run_answer(data: bytes) -> None:
    """What a witness answers, with status line and headers or without."""
    request = read_request(REQUEST)
    try:
        merged = merge_notes(NOTE, [read_answer(data, request)], [LOG.vkey, ANNA.vkey, BEN.vkey])
    except LedgerError:
        return
    require(merged in (NOTE, NOTE + COSIGNATURE), "a line is merged that no known witness signed")


def _published() -> list[bytes]:
    tlog = vectors("tlog")
    rows = [row["policy_hex"] for row in (*tlog["policy_accept"], *tlog["policy_reject"])]
    texts = [bytes.fromhex(row) for row in rows]
    for name, vkey in tlog["keys"].items():
        texts = [text.replace(b"{%s}" % name.encode(), vkey.encode()) for text in texts]
    return texts


_PUBLISHED_NOTES = vectors("signed_notes")["signed_note"][:5]

NOTE_TARGETS: dict[str, Target] = {
    "note": Target(
        run_note, [NOTE, OLDER, *(bytes.fromhex(row["note_hex"]) for row in vectors("signed_notes")["signed_note"][:5])]
    ),
    "verifier_key": Target(run_verifier_key, [LOG.vkey.encode(), ANNA.vkey.encode()], 300),
    "trust_policy": Target(run_trust_policy, [POLICY.text(), LOG_ALONE.text(), BOTH_KINDS.text(), *_published()]),
    "witness_request": Target(run_request, [REQUEST, make_request(_tree(LEAVES).node, NOTE, 0)]),
    "witness_answer": Target(
        run_answer,
        [COSIGNATURE, b"HTTP/2 200 \r\nserver: w\r\n\r\n" + COSIGNATURE, b"5\n", b"HTTP/1.1 409 Conflict\r\n\r\n5\n"],
    ),
    "proof": Target(run_proof, [*PROOFS, TlogProof(4, (), NOTE).to_bytes()]),
    "evidence": Target(run_evidence, [evidence.to_bytes() for evidence in EVIDENCE]),
    "receipt": Target(run_receipt, [RECEIPT, *(bytes.fromhex(text) for text in vectors("cose")["rfc9942_examples"].values())]),
}
"""The ledger's readers of bytes from outside, by name."""
