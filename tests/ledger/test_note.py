"""Signed notes and checkpoints: C2SP and Go vectors, and the edits an attacker would try."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger import merkle, note
from ledger.errors import NoteError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "signed_notes.json").read_text())
SIGNER = note.NoteSigner("ledger.example/run1", Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.mark.parametrize("vector", VECTORS["signed_note"], ids=lambda v: v["id"])
def test_signed_note_vectors(vector):
    data = bytes.fromhex(vector["note_hex"])
    if vector["expect"] == "accept":
        opened = note.open_note(data, vector["vkeys"])
        assert data.startswith(opened.text.encode())
        assert {str(s.key) for s in opened.signatures} == set(vector["vkeys"])
    else:
        with pytest.raises(NoteError):
            note.open_note(data, vector["vkeys"])


@pytest.mark.parametrize("vector", VECTORS["checkpoint_body"], ids=lambda v: v["id"])
def test_checkpoint_vectors(vector):
    try:
        accepted = note.parse_checkpoint(vector["text"]).origin == vector["origin"]
    except NoteError:
        accepted = False
    assert accepted == (vector["expect"] == "accept")


def test_a_cosignature_states_its_time():
    vector = next(v for v in VECTORS["signed_note"] if v["id"] == "checkpoint_with_cosignature_v1")
    times = [s.timestamp for s in note.open_note(bytes.fromhex(vector["note_hex"]), vector["vkeys"]).signatures]
    assert times[0] is None and times[1] is not None


def test_sign_then_open_and_parse():
    root = merkle.root([b"a", b"b"])
    data = note.sign_note(note.checkpoint_text(SIGNER.name, 2, root), SIGNER)
    opened = note.open_note(data, [SIGNER.vkey])
    assert note.parse_checkpoint(opened.text) == note.Checkpoint(SIGNER.name, 2, root)


def test_every_changed_byte_of_a_note_is_refused():
    data = note.sign_note(note.checkpoint_text(SIGNER.name, 2, merkle.root([b"a", b"b"])), SIGNER)
    for position in range(len(data)):
        for bit in (0x01, 0x20, 0x80):
            changed = bytearray(data)
            changed[position] ^= bit
            with pytest.raises(NoteError):
                note.open_note(bytes(changed), [SIGNER.vkey])


def test_a_second_signature_line_by_the_same_key_is_refused():
    data = note.sign_note("text\n", SIGNER)
    with pytest.raises(NoteError):
        note.open_note(data + data.split(b"\n\n")[1], [SIGNER.vkey])


@pytest.mark.parametrize("name", ["", "two words", "a+b", "tab\tname", "nb\u00a0space", "line\nend"])
def test_key_names_with_spaces_plus_or_controls_are_refused(name):
    with pytest.raises(NoteError):
        note.NoteSigner(name, SIGNER.private_key)


@pytest.mark.parametrize("origin,size", [("", 1), ("a\nb", 1), ("a", -1), ("a", True), ("a", 1 << 63)])
def test_checkpoints_that_would_not_parse_back_are_not_written(origin, size):
    with pytest.raises(NoteError):
        note.checkpoint_text(origin, size, bytes(32))


def test_weak_verifier_keys_are_refused():
    weak = note.VerifierKey("log", note.SIGNATURE_ED25519, bytes([1]) + bytes(31))
    with pytest.raises(NoteError) as refused:
        note.open_note(note.sign_note("text\n", SIGNER), [str(weak)])
    assert refused.value.code == "KEY_WEAK"
