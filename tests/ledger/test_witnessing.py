"""Asking a witness: the request as C2SP tlog-witness has it, held against a witness that a stranger wrote, and its answers."""

import base64
from pathlib import Path

import pytest

from attest.keys import generate
from ledger.audit import verify_export
from ledger.errors import NoteError, ProofError, WitnessRefused
from ledger.log import Ledger
from ledger.merkle import EMPTY_ROOT
from ledger.note import Cosigner, NoteSigner, checkpoint_text, cosign, lines_of, merge_notes, sign_note
from ledger.proofs.cosigning import MAX_ANSWER_SIZE, make_request, read_answer, read_request
from ledger.proofs.prover import ExportReader, tree_root
from tests.ledger.tlog_witness import Witness
from tests.reference.hash_tree import HashTree
from tests.worlds.ledgers import SIGNER, START, Driver, admission, header_spec, signed_policy

RAW = SIGNER.verifier.public_key
TREE = HashTree(bytes([n]) * 32 for n in range(200))


def note_of(size: int, tree: HashTree = TREE, signer: NoteSigner = SIGNER) -> bytes:
    root = tree_root(tree.node, size) if size else EMPTY_ROOT
    return sign_note(checkpoint_text(signer.name, size, root), signer)


def asked(size: int, since: int, tree: HashTree = TREE, signer: NoteSigner = SIGNER) -> bytes:
    return make_request(tree.node, note_of(size, tree, signer), since)


@pytest.fixture
def witness() -> Witness:
    return Witness("witness.example/w", {SIGNER.name: RAW}, now=START + 5000)


def refusal(answer: bytes, request: bytes) -> WitnessRefused:
    with pytest.raises(WitnessRefused) as caught:
        read_answer(answer, read_request(request))
    return caught.value


def test_a_request_is_old_size_proof_lines_an_empty_line_and_the_checkpoint():
    body = asked(9, 4)
    lines = body.decode().split("\n")
    end = lines.index("")
    assert lines[0] == "old 4" and [len(base64.b64decode(line, validate=True)) for line in lines[1:end]] == [32] * (end - 1)
    assert "\n".join(lines[end + 1 :]).encode() == note_of(9) and read_request(body).since == 4
    assert asked(9, 0) == b"old 0\n\n" + note_of(9)


def test_a_witness_written_by_a_stranger_cosigns_every_step_of_a_growing_tree(witness):
    """Pairs of sizes below 40, powers of two and their neighbours beyond: the proof is what RFC 6962 says it is."""
    for old in (*range(1, 40), 64, 127, 128, 129):
        for new in (old, old + 1, 2 * old + 3, 200):
            if new > 200:
                continue
            witness.latest.clear()
            assert witness.answer(asked(old, 0))[0] == 200
            status, answer = witness.answer(asked(new, old))
            assert status == 200, (old, new)
            note = read_answer(answer, read_request(asked(new, old)))
            merged = merge_notes(note_of(new), [note], [SIGNER.vkey, witness.vkey])
            assert [name for name, _ in lines_of(merged)] == [SIGNER.name, witness.name]


def test_what_others_cosigned_is_not_sent_to_a_witness():
    other = Cosigner("auditor.example/anna", generate())
    note = cosign(note_of(9), other, [SIGNER.vkey], time=START)
    assert make_request(TREE.node, note, 0) == asked(9, 0) and other.name.encode() not in asked(9, 0)


@pytest.mark.parametrize("curl", [False, True], ids=["body", "curl-i"])
def test_a_witness_that_cosigned_another_size_says_which_and_how_to_ask_again(witness, curl):
    assert witness.answer(asked(20, 0))[0] == 200
    for since in (0, 7):
        answer = witness.curl(asked(30, since)) if curl else witness.answer(asked(30, since))[1]
        error = refusal(answer, asked(30, since))
        assert (error.code, error.size) == ("WITNESS_CONFLICT", 20) and "--since 20" in error.sentence
    assert witness.answer(asked(30, 20))[0] == 200
    behind = refusal(witness.curl(asked(20, 20)), asked(20, 20))
    assert behind.size == 30 and "more than this checkpoint has" in behind.sentence


def test_a_witness_refuses_a_rollback_and_another_history(witness):
    assert witness.answer(asked(30, 0))[0] == 200
    with pytest.raises(ProofError):
        asked(20, 30)
    assert refusal(witness.curl(asked(20, 20)), asked(20, 20)).code == "WITNESS_CONFLICT"
    other = HashTree(bytes([n ^ 1]) * 32 for n in range(200))
    for size in (30, 40):
        body = asked(size, 30, other)
        error = refusal(witness.curl(body), body)
        assert error.code == "WITNESS_PROOF" and "another history" in error.sentence
    assert witness.latest[SIGNER.name][0] == 30 and witness.answer(asked(40, 30))[0] == 200


@pytest.mark.parametrize("line", range(1, 4))
def test_a_witness_refuses_a_changed_proof(witness, line):
    witness.answer(asked(21, 0))
    lines = asked(100, 21).split(b"\n")
    lines[line] = base64.b64encode(bytes(32))
    body = b"\n".join(lines)
    assert refusal(witness.curl(body), body).code == "WITNESS_PROOF"


def test_a_witness_that_does_not_know_the_ledger_or_its_key_is_named(witness):
    stranger = NoteSigner("other.example/log", generate())
    body = asked(9, 0, signer=stranger)
    assert refusal(witness.curl(body), body).code == "WITNESS_UNKNOWN"
    body = asked(9, 0, signer=NoteSigner(SIGNER.name, generate()))
    assert refusal(witness.curl(body), body).code == "WITNESS_FORBIDDEN"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"", "WITNESS_ANSWER"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "WITNESS_ANSWER"),
        (b"HTTP/1.1 200 OK", "WITNESS_ANSWER"),
        (b"HTTP/2 200\r\n\r\n12\n", "WITNESS_ANSWER"),
        (b"HTTP/2 400 \r\n\r\nbad\n", "WITNESS_REQUEST"),
        (b"HTTP/2 409 \r\n\r\nperhaps\n", "WITNESS_CONFLICT"),
        (b"HTTP/2 500 \r\n\r\n\x1b[2J\n", "WITNESS_STATUS"),
        (b"HTTP/2 302 Found\nlocation: x\n\nmoved\n", "WITNESS_STATUS"),
        (b"012\n", "WITNESS_ANSWER"),
        (b"<html>\n", "WITNESS_ANSWER"),
        ("— w AAAA".encode(), "WITNESS_ANSWER"),
        ("— w AAAA\n".encode(), "WITNESS_ANSWER"),
        ("— w\n\n— w AAAAAAAAAAAA\n".encode(), "WITNESS_ANSWER"),
        ("— w AAAAAAAAAAAA\n".encode() * 101, "WITNESS_ANSWER"),
        (b"\xff\n", "WITNESS_ANSWER"),
        (b"1" * (MAX_ANSWER_SIZE + 1), "WITNESS_ANSWER"),
    ],
)
def test_what_is_no_cosignature_is_refused_by_name(answer, code):
    error = refusal(answer, asked(9, 0))
    assert error.code == code and "\x1b" not in error.sentence


@pytest.mark.parametrize("body", [b"", b"old 1", b"old 01\n\nx", b"new 1\n\nx", b"old -1\n\nx", b"old 1\n\n" + bytes(2 << 20)])
def test_what_is_no_request_is_refused(body):
    with pytest.raises(WitnessRefused) as caught:
        read_request(body)
    assert caught.value.code == "WITNESS_REQUEST"


def test_a_line_over_another_checkpoint_is_not_merged(witness):
    """An answer is verified over the text that was asked for."""
    _, answer = witness.answer(asked(20, 0))
    note = read_answer(answer, read_request(asked(21, 0)))
    with pytest.raises(NoteError) as caught:
        merge_notes(note_of(21), [note], [SIGNER.vkey, witness.vkey])
    assert caught.value.code == "SIGNATURE_BAD"


def test_a_ledger_that_is_witnessed_as_it_grows_has_the_quorum_that_its_policy_asks_for(tmp_path, witness):
    """From the ledger to the verdict: two checkpoints, each witnessed, the second from where the first ended."""
    policy = signed_policy(witnesses=(witness.vkey,), witness_quorum=1)
    with Ledger.create(tmp_path / "ledger.db", header_spec(policy), SIGNER, now=START) as ledger:
        driver, since = Driver(ledger), 0
        trusted = [SIGNER.vkey, witness.vkey]
        for n in (1, 2):
            driver.admit(admission(n))
            driver.steps(1)
            export: Path = ledger.export(tmp_path / f"export{n}")
            reader = ExportReader(export)
            assert "NO_WITNESS_QUORUM" in verify_export(export, [SIGNER.vkey]).qualifiers
            body = make_request(reader.node, reader.checkpoint, since)
            note = read_answer(witness.curl(body), read_request(body))
            ledger.add_signatures(note, trusted)
            since = reader.size
            report = verify_export(ledger.export(tmp_path / f"witnessed{n}"), [SIGNER.vkey], require_quorum=True)
            assert report.verdict == "TOLD" and report.witness_quorum_met
        assert witness.latest[SIGNER.name][0] == since == ledger.size
