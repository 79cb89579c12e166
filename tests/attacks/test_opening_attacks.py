"""A25 and A26 of the attack list: openings that are not those of the attestation, and fields that no version serves yet.

Asked of `decide`, of `run_gate` and of an `Examiner` that knows the form of the good attestation: all must say the same.
"""

import hashlib
from dataclasses import replace

import pytest

from attest import cbor
from attest.corpus import open_corpus
from attest.descriptor import MAX_OPENING, ContributionDescriptor
from attest.errors import AttestError, DescriptorRefused
from attest.gate import run_gate
from attest.gate.admission import Passed
from attest.gate.checks import Examiner
from tests.attacks.mutations import parts_of
from tests.attacks.scene import (
    ISSUER,
    LEFT_OUT,
    NONCE,
    OPENED,
    OPENING,
    SALTS,
    descriptor,
    issuer_of,
    opening,
    opening_fields,
    signed,
    with_fields,
)
from tests.worlds.gate import BOB, CONTENT, CORPUS, MALLORY, NOW

BOBS = {"contributor": "bob", 4: "open"}
FIELDS = [cbor.encode(key) + cbor.encode(value) for key, value in opening_fields().items()]


def without(start, end):
    """Alice's salts with some bytes zero."""
    return SALTS[:start] + bytes(end - start) + SALTS[end:]


OPENINGS = {
    "none": (b"", "OPENING"),
    "empty map": (b"\xa0", "OPENING"),
    "of Bob's attestation": (opening(BOBS), "OPENING"),
    "of another content": (opening(content=b"another"), "OPENING"),
    "of another attestation of this content": (opening(nonce=bytes(16)), "OPENING"),
    "another contributor": (opening({"contributor": "bob"}), "OPENING"),
    "another data class": (opening({"data class": "clinic/scans"}), "OPENING"),
    "a principal that was not signed": (opening({"principal": "person-7"}), "OPENING"),
    "contributor and data class changed about": (opening({"contributor": "clinic/notes", "data class": "alice"}), "OPENING"),
    "salt of the contributor": (opening({"salts": without(0, 16)}), "OPENING"),
    "salt of the data class": (opening({"salts": without(16, 32)}), "OPENING"),
    "salt of the principal": (opening({"salts": without(32, 48)}), "OPENING"),
    "last bit of the salts": (opening({"salts": SALTS[:-1] + bytes([SALTS[-1] ^ 1])}), "OPENING"),
    "nonce and a salt changed about": (opening({"salts": NONCE + SALTS[16:], "nonce": SALTS[:16]}), "OPENING"),
    "the commitment in place of the content hash": (opening({"content hash": cbor.decode(descriptor())[7]}), "OPENING"),
    **{f"{name} left out": (opening({name: LEFT_OUT}), "OPENING") for name in OPENED if name != "principal"},
    "unknown label": (cbor.encode(opening_fields() | {7: 1}), "OPENING"),
    "text label": (cbor.encode(opening_fields() | {"salt": 1}), "OPENING"),
    "array": (cbor.encode(list(opening_fields().values())), "OPENING"),
    "the descriptor": (descriptor(), "OPENING"),
    "principal null": (opening({"principal": None}), "CBOR_NONCANONICAL"),
    "contributor null": (opening({"contributor": None}), "TYPE"),
    "contributor as bytes": (opening({"contributor": b"alice"}), "TYPE"),
    "contributor in upper case": (opening({"contributor": "Alice"}), "RANGE"),
    "contributor that looks alike": (opening({"contributor": "\u0430lice"}), "RANGE"),
    "contributor and more": (opening({"contributor": "alice\0"}), "RANGE"),
    "contributor empty": (opening({"contributor": ""}), "RANGE"),
    "salts of 47 bytes": (opening({"salts": SALTS[:-1]}), "RANGE"),
    "salts of 49 bytes": (opening({"salts": SALTS + b"\0"}), "RANGE"),
    "salts as three": (opening({"salts": [SALTS[:16], SALTS[16:32], SALTS[32:]]}), "TYPE"),
    "nonce as text": (opening({"nonce": "x" * 16}), "TYPE"),
    "map of six for five": (b"\xa6" + OPENING[1:], "CBOR"),
    "map head in two bytes": (b"\xb8\x05" + OPENING[1:], "CBOR_NONCANONICAL"),
    "map of indefinite length": (b"\xbf" + OPENING[1:] + b"\xff", "CBOR_NONCANONICAL"),
    "out of order": (b"\xa5" + b"".join([FIELDS[1], FIELDS[0], *FIELDS[2:]]), "CBOR_NONCANONICAL"),
    "nonce twice": (b"\xa6" + FIELDS[0] + b"".join(FIELDS), "CBOR_NONCANONICAL"),
    "nonce head in two bytes": (b"\xa5\x01\x58\x10" + NONCE + b"".join(FIELDS[1:]), "CBOR_NONCANONICAL"),
    "contributor head in two bytes": (OPENING.replace(b"\x65alice", b"\x78\x05alice"), "CBOR_NONCANONICAL"),
    "tagged": (b"\xc2" + OPENING, "CBOR_NONCANONICAL"),
    "twice": (OPENING * 2, "CBOR"),
    "trailing byte": (OPENING + b"\0", "CBOR"),
    "last byte lost": (OPENING[:-1], "CBOR"),
    "513 bytes": (OPENING.ljust(MAX_OPENING + 1, b"\0"), "SIZE"),
    "512 bytes": (OPENING.ljust(MAX_OPENING, b"\0"), "CBOR"),
    "huge": (bytes(1 << 24), "SIZE"),
    "a value of 400 bytes": (opening({"contributor": "a" * 350}), "RANGE"),
    "sixteen deep": (b"\x81" * 16 + b"\0", "CBOR_NONCANONICAL"),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_A25_an_opening_that_is_not_the_signed_one_is_refused(scene, name):
    opened, code = OPENINGS[name]
    good = signed()
    assert scene.code(good) == "ADMITTED"
    assert scene.code(replace(good, opening=opened)) == code
    assert through_a_known_form(scene, replace(good, opening=opened)) == code


def through_a_known_form(scene, attestation, content=CONTENT):
    """The code of an examiner that has learnt the form of what Alice signs, and of its signature as verified before."""
    examiner = Examiner(scene.policy, scene.registry, NOW)
    for _ in range(3):
        assert isinstance(examiner.examine(*parts_of(signed()), hashlib.sha256(CONTENT).digest()), Passed)
    assert len(examiner._known) == 1 and None not in examiner._patterns.values()
    digest = hashlib.sha256(content).digest()
    codes = {
        "ADMITTED" if isinstance(outcome, Passed) else str(outcome.code)
        for verified in (False, True)
        for outcome in [examiner.examine(*parts_of(attestation), digest, verified=verified)]
    }
    assert len(codes) == 1
    return codes.pop()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("said", [{}, {"principal": "person-7"}], ids=["plain", "with principal"])
def test_A25_no_byte_of_an_opening_can_be_another(scene, said):
    """Every byte to three other values, and every byte gone: nothing is admitted, with or without a memory of the form."""
    good = signed(said)
    assert scene.code(good) == "ADMITTED" and good.opened().opening() == good.opening
    for at in range(len(good.opening)):
        byte = good.opening[at]
        for put in (bytes([byte ^ 1]), bytes([byte ^ 0x80]), bytes([byte ^ 0xFF]), b""):
            changed = replace(good, opening=good.opening[:at] + put + good.opening[at + 1 :])
            assert scene.code(changed) != "ADMITTED"
            assert through_a_known_form(scene, changed) != "ADMITTED"


def test_A25_openings_swapped_between_two_good_attestations_are_OPENING(scene):
    alice, bob = signed(), signed(BOBS, key=BOB, content=b"bob")
    other = signed(content=b"other", nonce=bytes(16))
    pairs = [(alice, CONTENT), (bob, b"bob"), (other, b"other")]
    assert scene.codes(pairs) == ["ADMITTED"] * 3
    for (one, content), (two, others) in ((pairs[0], pairs[1]), (pairs[0], pairs[2]), (pairs[1], pairs[2])):
        for holder, lender in ((one, two), (two, one)):
            for brought in (content, others):
                assert scene.code(replace(holder, opening=lender.opening), content=brought) == "OPENING"


@pytest.mark.parametrize("commitment", [2, 3, 7, 10])
def test_A25_a_commitment_copied_from_another_contributor_cannot_be_opened(scene, commitment):
    """Mallory, enrolled or not, reads Alice's attestation in an export and signs her commitments: no opening of hers fits."""
    theirs = cbor.decode(signed().descriptor)[commitment]
    said = {"contributor": "bob", "salts": bytes(48), "nonce": bytes(16), 4: "open", commitment: theirs}
    for key in (BOB, MALLORY):
        assert scene.code(signed(said, key=key)) == "OPENING"


def test_A25_who_has_the_opening_still_signs_for_nobody_else(scene):
    """The opening is no key: with Alice's in hand, Bob signs what names Alice, as her issuer and as his own."""
    subject = f"sha-256:{hashlib.sha256(descriptor()).hexdigest()}"
    for issuer, code in ((ISSUER, "SIG_BAD"), (issuer_of(descriptor(BOBS)), "HEADER"), ("bob", "HEADER")):
        assert scene.code(signed(key=BOB, header={15: {1: issuer, 2: subject}})) == code


def test_A25_commitments_are_to_one_thing_each(scene):
    """A commitment to the contributor serves for no principal and no data class: the domains differ."""
    fields = opening_fields({"data class": "alice", "principal": "alice", "salts": SALTS[:16] * 3})
    said = {name: fields[key] for name, key in OPENED.items()}
    assert len({cbor.decode(descriptor(said))[key] for key in (2, 3, 10)}) == 3
    for one, two in ((2, 3), (2, 10), (3, 10)):
        payload = cbor.decode(descriptor(said))
        crossed = cbor.encode(payload | {one: payload[two], two: payload[one]})
        assert scene.code(replace(signed(said, payload=crossed), opening=opening(said))) == "OPENING"


def test_A25_an_attestation_as_an_export_holds_it_reaches_no_training(scene, tmp_path):
    """Descriptor and signature alone, in a file beside the right data: refused by the gate, and read as opened by nobody."""
    (tmp_path / "a.txt").write_bytes(CONTENT)
    exported = replace(signed(), opening=b"")
    (tmp_path / "a.txt.attest").write_bytes(exported.to_cbor())
    report = run_gate(open_corpus(tmp_path), scene.policy, scene.registry, now=NOW)
    assert report.counts() == {"admitted": {}, "refused": {"OPENING": 1}}
    assert report.refused[0].refusal.descriptor_hash == hashlib.sha256(exported.descriptor).digest()
    with pytest.raises(DescriptorRefused, match="OPENING"):
        exported.opened()
    assert exported.read().issuer == ISSUER


def test_A25_the_opening_is_looked_at_before_header_and_registry(scene):
    worse = signed(key=MALLORY, header={1: -8})
    assert scene.code(worse) == "HEADER"
    assert scene.code(replace(worse, opening=b"")) == "OPENING"
    assert scene.code(replace(signed({12: -1}), opening=b"")) == "RANGE"


# --- A26: what the format specifies and no version serves yet ----------------------------------------------------------

UNBUILT = {
    "train": ({16: ["train"]}, "ADMITTED"),
    "generate": ({16: ["generate"]}, "PURPOSE"),
    "generate and train": ({16: ["generate", "train"]}, "ADMITTED"),
    "query and train": ({16: ["query", "train"]}, "PURPOSE"),
    "query": ({16: ["query"]}, "PURPOSE"),
    "all": ({16: ["generate", "query", "train"]}, "PURPOSE"),
    "out of order": ({16: ["train", "generate"]}, "RANGE"),
    "all out of order": ({16: ["query", "generate", "train"]}, "RANGE"),
    "twice": ({16: ["train", "train"]}, "RANGE"),
    "none": ({16: []}, "RANGE"),
    "unknown word": ({16: ["sell"]}, "RANGE"),
    "unknown word beside a known one": ({16: ["sell", "train"]}, "RANGE"),
    "capital": ({16: ["Train"]}, "RANGE"),
    "text": ({16: "train"}, "TYPE"),
    "bytes": ({16: [b"train"]}, "TYPE"),
    "number": ({16: 1}, "TYPE"),
    "nested": ({16: [["train"]]}, "TYPE"),
    "purposes null": ({16: None}, "CBOR_NONCANONICAL"),
    "a public length": ({17: 512}, "PUBLIC_LENGTH"),
    "the largest public length": ({17: 2**32 - 1}, "PUBLIC_LENGTH"),
    "public length zero": ({17: 0}, "RANGE"),
    "public length too large": ({17: 2**32}, "RANGE"),
    "public length as text": ({17: "512"}, "TYPE"),
    "public length true": ({17: True}, "TYPE"),
    "public length null": ({17: None}, "CBOR_NONCANONICAL"),
    "both": ({16: ["query"], 17: 512}, "PURPOSE"),
}


@pytest.mark.parametrize("name", UNBUILT)
def test_A26_purposes_beyond_training_and_public_lengths_that_no_class_offers_are_refused_by_name(scene, name):
    changes, code = UNBUILT[name]
    assert scene.code(signed(changes)) == code


def test_A26_neither_a_template_nor_an_object_states_a_purpose_that_is_not_served():
    right = ContributionDescriptor.open(descriptor(), OPENING)
    for words in (("query",), ("generate", "query"), ("query", "train")):
        with pytest.raises(AttestError) as caught:
            replace(right, purposes=words)
        assert caught.value.code == "PURPOSE"
    assert replace(right, purposes=("generate",)).allows("generate")
    assert replace(right, purposes=("train",)).corpus == CORPUS
    assert with_fields(cbor.decode(replace(right, purposes=("train",)).to_cbor()), {16: LEFT_OUT}) == cbor.decode(descriptor())
