"""Attacks that present a signature as another one, A4 to A7: another name, content, corpus or purpose.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import hashlib
from dataclasses import replace

import pytest

from attest import cbor, keys, sign1
from attest.corpus import open_corpus
from attest.errors import SignatureRefused
from attest.gate import run_gate
from attest.withdrawal import Withdrawal, sign_withdrawal, verify_withdrawal
from tests.attacks.scene import (
    ISSUER,
    attested,
    descriptor,
    envelope,
    header_fields,
    issuer_of,
    sig_structure,
    signed,
    split,
)
from tests.worlds.gate import (
    ALICE,
    BOB,
    CONTENT,
    CORPUS,
    MALLORY,
    NOW,
    OTHER_CORPUS,
    OWNER,
    RAW,
    make_policy,
)

# --- A4: signing in another's name ----------------------------------------------------------

NAMES_BOB = {"contributor": "bob"}
BOBS = issuer_of(descriptor(NAMES_BOB))
KEY_ID = {name: keys.key_id(raw) for name, raw in RAW.items()}
IN_ANOTHERS_NAME = {
    "Bob signs a descriptor that names Alice": (lambda: signed(key=BOB), "SIG_BAD"),
    "key id of Alice, key of Bob": (lambda: signed(key=BOB, header={4: KEY_ID["alice"]}), "SIG_BAD"),
    "key id of Bob, key of Alice": (lambda: signed(header={4: KEY_ID["bob"]}), "SIG_BAD"),
    "key id of nobody": (lambda: signed(header={4: bytes(8)}), "SIG_BAD"),
    "unknown Mallory names Alice": (lambda: signed(key=MALLORY), "SIG_BAD"),
    "unknown Mallory under the key id of Alice": (lambda: signed(key=MALLORY, header={4: KEY_ID["alice"]}), "SIG_BAD"),
    "unknown Mallory names herself": (lambda: signed({"contributor": "mallory"}, key=MALLORY), "KEY_UNKNOWN"),
    "Bob issues, the descriptor names Alice": (
        lambda: signed(key=BOB, header={15: {1: BOBS, 2: sign1.subject_of(descriptor())}}),
        "HEADER",
    ),
    "Alice issues, the descriptor names Bob": (
        lambda: signed(NAMES_BOB, header={15: {1: ISSUER, 2: sign1.subject_of(descriptor(NAMES_BOB))}}),
        "HEADER",
    ),
    "Alice issues by her name, as nobody does any more": (
        lambda: signed(header={15: {1: "alice", 2: sign1.subject_of(descriptor())}}),
        "HEADER",
    ),
    "the owner's key in Alice's name": (lambda: signed(key=OWNER, header={4: KEY_ID["alice"]}), "SIG_BAD"),
}


@pytest.mark.parametrize("name", IN_ANOTHERS_NAME)
def test_A4_a_signature_in_anothers_name_is_SIG_BAD(scene, name):
    make, code = IN_ANOTHERS_NAME[name]
    assert scene.code(make()) == code


def test_A4_signatures_swapped_between_two_genuine_attestations_are_HEADER(scene):
    """The subject claim names the descriptor; a right subject over the other's signature is SIG_BAD."""
    alice, bob = signed(), signed({"contributor": "bob", 4: "open"}, key=BOB, nonce=bytes(16))
    assert scene.code(replace(alice, sign1=bob.sign1)) == "HEADER"
    assert scene.code(replace(bob, sign1=alice.sign1)) == "HEADER"
    other = signed(nonce=bytes(16))
    assert scene.code(replace(alice, sign1=other.sign1)) == "HEADER"
    head, _ = split(alice.sign1)
    assert scene.code(replace(alice, sign1=head + split(other.sign1)[1])) == "SIG_BAD"


# --- A5: other content ----------------------------------------------------------

OTHER_CONTENT = {
    "newline added": CONTENT + b"\n",
    "last byte lost": CONTENT[:-1],
    "one bit": bytes([CONTENT[0] ^ 1]) + CONTENT[1:],
    "empty": b"",
    "byte order mark": b"\xef\xbb\xbf" + CONTENT,
    "other JSON spelling": CONTENT.replace(b": ", b":"),
    "the digest instead of the content": hashlib.sha256(CONTENT).digest(),
}


@pytest.mark.parametrize("name", OTHER_CONTENT)
def test_A5_other_content_is_CONTENT_MISMATCH(scene, name):
    assert scene.code(signed(), content=OTHER_CONTENT[name]) == "CONTENT_MISMATCH"


def test_A5_contents_of_two_attestations_swapped_are_CONTENT_MISMATCH(scene):
    first, second = signed(content=b"1"), signed(content=b"2")
    assert scene.codes([(first, b"2"), (second, b"1")]) == ["CONTENT_MISMATCH"] * 2
    assert scene.codes([(first, b"1"), (second, b"2")]) == ["ADMITTED"] * 2


def test_A5_the_gate_hashes_the_files_itself(scene, tmp_path):
    for name, content in (("a.txt", CONTENT), ("b.txt", b"changed later")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}.attest").write_bytes(signed(content=content).to_cbor())
    (tmp_path / "b.txt").write_bytes(b"changed Later")
    report = run_gate(open_corpus(tmp_path), scene.policy, scene.registry, now=NOW)
    assert report.counts() == {"admitted": {"sensitive": 1}, "refused": {"CONTENT_MISMATCH": 1}}


# Bounds and times whose bytes hold what looks like the head of the content hash or of the nonce.
LOOKALIKE_FIELDS = [{}, {5: 0x075820}, {6: 0x075820FF}, {6: 0x07_58_20_0A_50_01}, {8: 0x6B075820}, {8: 0x6B0A5000}]


@pytest.mark.parametrize("changes", LOOKALIKE_FIELDS, ids=lambda changes: str({k: hex(v) for k, v in changes.items()}))
def test_A5_a_folder_is_paired_by_content_whatever_its_bounds_look_like(scene, tmp_path, changes):
    """One file of four is gone: the others keep their attestations."""
    (tmp_path / "notes").mkdir()
    contents = [b"%d" % n for n in range(4)]
    for content in contents[1:]:
        (tmp_path / "notes" / content.decode()).write_bytes(content)
    attestations = [signed(changes, content=content, nonce=content * 16) for content in contents]
    (tmp_path / "notes.attest").write_bytes(b"".join(attestation.to_cbor() for attestation in attestations))
    report = run_gate(open_corpus(tmp_path), scene.policy, scene.registry, now=NOW)
    assert report.counts() == {"admitted": {"sensitive": 3}, "refused": {"CONTENT_MISSING": 1}}


def test_A5_an_attestation_without_content_is_CONTENT_MISSING(scene):
    assert scene.code(signed(), content=None) == "CONTENT_MISSING"


# --- A6: replay in another corpus ----------------------------------------------------------


def test_A6_an_attestation_for_another_corpus_is_AUDIENCE(scene):
    elsewhere = signed({11: OTHER_CORPUS})
    assert scene.code(elsewhere) == "AUDIENCE"
    there = make_policy(scene.registry, OTHER_CORPUS)
    assert scene.code(elsewhere, policy=there) == "ADMITTED"
    assert scene.code(signed(), policy=there) == "AUDIENCE"


@pytest.mark.parametrize("corpus", [CORPUS + ".", CORPUS[:-1], "/" + CORPUS, CORPUS + "/a", "a", "*"])
def test_A6_corpus_names_are_compared_whole(scene, corpus):
    assert scene.code(signed({11: corpus})) == ("RANGE" if corpus == "*" else "AUDIENCE")


# --- A7: one signature, another purpose ----------------------------------------------------------

TYPES = [
    sign1.TYP_WITHDRAWAL,
    sign1.TYP_POLICY,
    sign1.TYP_REGISTRY,
    "application/vnd.dptrain.key+cose",
    "application/cose",
    sign1.TYP_ATTESTATION.upper(),
    sign1.TYP_ATTESTATION + " ",
    sign1.TYP_ATTESTATION + ";v=1",
    "",
]


@pytest.mark.parametrize("typ", TYPES)
def test_A7_a_message_of_another_type_is_HEADER(scene, typ):
    assert scene.code(signed(header={16: typ})) == "HEADER"


@pytest.mark.parametrize("value", [16, None, b"application/vnd.dptrain.attestation+cose", [sign1.TYP_ATTESTATION], True])
def test_A7_a_type_that_is_no_text_is_HEADER(scene, value):
    assert scene.code(signed(header={16: value})) == "HEADER"


def test_A7_a_withdrawal_presented_as_attestation_is_refused(scene):
    withdrawal = Withdrawal(hashlib.sha256(descriptor()).digest(), CORPUS, NOW, "consent")
    payload, message = sign_withdrawal(withdrawal, ALICE, signer="alice")
    assert scene.code(attested(descriptor(), message)) == "HEADER"
    assert scene.code(attested(payload, message)) == "SCHEMA"
    assert scene.code(signed(payload=payload)) == "SCHEMA"


def test_A7_an_attestation_presented_as_withdrawal_is_HEADER():
    attestation = signed()
    with pytest.raises(SignatureRefused) as caught:
        verify_withdrawal(attestation.descriptor, attestation.sign1, RAW["alice"], signer="alice", corpus=CORPUS)
    assert caught.value.code == "HEADER"


def test_A7_a_signed_note_is_no_attestation(scene):
    """The text of a note is UTF-8 and no Sig_structure is: its first byte is 0x84. So neither passes for the other."""
    text = f"{CORPUS}/ledger\n1\n{'A' * 43}=\n".encode()
    protected = cbor.encode(header_fields(descriptor()))
    assert scene.code(attested(descriptor(), envelope(protected, ALICE.sign(text)))) == "SIG_BAD"
    assert scene.code(attested(text, envelope(protected, ALICE.sign(text)))) == "CBOR"
    structure = sign1.to_be_signed(protected, descriptor())
    assert structure == b"".join(sig_structure(protected, descriptor())) and structure[0] == 0x84
    with pytest.raises(UnicodeDecodeError):
        structure.decode("utf-8")


@pytest.mark.parametrize("context", ["Signature", "CounterSignature", "signature1", "Signature1 "])
def test_A7_a_signature_over_another_COSE_structure_is_SIG_BAD(scene, context):
    protected = cbor.encode(header_fields(descriptor()))
    for structure in (
        [context, protected, b"", descriptor()],
        [context, protected, b"", b"", descriptor()],
    ):
        message = envelope(protected, ALICE.sign(cbor.encode(structure)))
        assert scene.code(attested(descriptor(), message)) == "SIG_BAD"


def test_A7_a_signature_with_external_data_or_over_the_bare_descriptor_is_SIG_BAD(scene):
    protected = cbor.encode(header_fields(descriptor()))
    for over in (
        cbor.encode(["Signature1", protected, b"aad", descriptor()]),
        descriptor(),
        hashlib.sha256(b"".join(sig_structure(protected, descriptor()))).digest(),
    ):
        assert scene.code(attested(descriptor(), envelope(protected, ALICE.sign(over)))) == "SIG_BAD"
