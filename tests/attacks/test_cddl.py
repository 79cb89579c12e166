"""`docs/attestation.cddl` against real documents and bad ones, by an independent implementation of CDDL (`pycddl`)."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pycddl
import pytest

from attest import cbor, sign1
from attest.attestation import CommonTerms
from attest.descriptor import SignedDescriptor
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey
from attest.policy import NoisePhase, SamplingRule, unbuilt
from fuzz.targets import ANCHORS, ORIGINALS, SCENE, key_statements, registry_entries
from ledger.leaves.attestations import pack
from tests.attacks.scene import ISSUER, LEFT_OUT, OPENING, descriptor, header_fields, opening_fields, signed, with_fields
from tests.attest.test_policy_words import PLAIN, WORDS
from tests.interop.interop import documents
from tests.worlds.gate import CORPUS, MICRO, NOW, RAW, registry_bytes

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "attestation.cddl").read_text()
ATTESTATION = signed()
PROTECTED = cbor.decode(ATTESTATION.sign1[1:])[0]
RULES = {
    "attestation": "descriptor",
    "anchor": "anchor",
    "withdrawal": "withdrawal",
    "policy": "policy",
    "key statement": "key-statement",
    "registry entry": "registry-entry",
}


def for_the_tool(text):
    """The schema as `pycddl` 0.6 reads it rightly.

    It applies `.cbor` within an array to every item, so the layers are validated one by one; it searches for a regular
    expression where RFC 8610 section 3.8.3 wants a match of the whole text; it takes any map for
    the empty one, and an empty array where one item is the least; it knows no range that begins below zero.
    """
    text = re.sub(r"= -\d+\.\.\d+", "= int", text)
    return re.sub(r'\.regexp "([^"]*)"', r'.regexp "^(\1)$"', re.sub(r" \.cbor [a-z0-9-]+", "", text))


def valid(rule, data):
    """Whether bytes are an instance of a rule."""
    schema = pycddl.Schema(f"start = {rule}\n{for_the_tool(TEXT)}")
    try:
        schema.validate_cbor(data)
    except pycddl.ValidationError:
        return False
    return True


def test_the_schema_is_read_as_it_stands():
    pycddl.Schema(TEXT)


@pytest.mark.parametrize("name", RULES)
def test_every_signed_document_is_an_instance(name):
    payload, message, _ = documents()[name]
    assert valid(RULES[name], payload)
    assert valid("cose-sign1", message)
    protected = cbor.decode(message[1:])[0]
    assert valid("protected-header", protected)
    assert valid("sig-structure", sign1.to_be_signed(protected, payload))
    envelope = "attestation" if name == "attestation" else f"signed-{RULES[name]}"
    opened = [OPENING] if name == "attestation" else []
    assert valid(envelope, cbor.encode([payload, message, *opened]))


def test_every_form_of_each_document_is_an_instance():
    for original in ORIGINALS:
        assert valid("descriptor", original.attestation.descriptor)
        assert valid("attestation", original.attestation.to_cbor())
        assert valid("opening", original.attestation.opening)
    for anchor in ANCHORS:
        assert valid("anchor", anchor)
        assert not valid("anchor", cbor.encode(cbor.decode(anchor) | {5: None}))
        assert not valid("anchor", cbor.encode(cbor.decode(anchor) | {5: bytes(15)}))
    for entry in registry_entries():
        assert valid("registry-entry", entry)
    for statement in key_statements():
        assert valid("key-statement", statement)
    for original in ORIGINALS:
        common = CommonTerms.of(SignedDescriptor.from_cbor(original.attestation.descriptor), bytes(8)).to_cbor()
        assert valid("common-terms", common) and not valid("common-terms", cbor.encode([*cbor.decode(common), 0]))
    assert valid("signed-entry", pack(2**40, bytes(64)))
    for item in ([-1, bytes(64)], [0, bytes(63)], [0], [b"", bytes(64)]):
        assert not valid("signed-entry", cbor.encode(item))
    names, at = registry_bytes().names, 0
    while at < len(names):
        item, at = cbor.decode_prefix(names, at)
        assert valid("registry-name", cbor.encode(item))
    assert valid("policy", SCENE.policy.to_cbor())
    phases = (NoisePhase(1, 2 * MICRO), NoisePhase(2, MICRO))
    auditor = str(VerifierKey("auditor.example/anna", SIGNATURE_COSIGNATURE_V1, RAW["alice"]))
    varied = replace(
        SCENE.policy, noise_phases=phases, noise_budgets=(1, 10**9, MICRO), auditors=(auditor,), auditor_quorum=1
    )
    assert valid("policy", replace(varied, retention_epochs=1, retention_hash_epochs=2).to_cbor())
    assert valid("policy", varied.to_cbor())
    assert valid("policy", replace(varied, isolation_required=True).to_cbor())
    witness = str(VerifierKey("witness.example/w", SIGNATURE_COSIGNATURE_V1, RAW["bob"]))
    assert valid("policy", replace(varied, witnesses=(witness,), witness_quorum=1).to_cbor())
    turns = tuple(replace(rule, sampling_rate=Fraction(1, 30)) for rule in SCENE.policy.classes)
    for order in ("cyclic", "shuffled"):
        ordered = replace(SCENE.policy, disclosure="occurrences_public", sampling=SamplingRule(order), classes=turns)
        assert valid("policy", ordered.to_cbor())
    at, data = 0, bytes(registry_bytes())
    while at < len(data):
        item, at = cbor.decode_prefix(data, at)
        assert valid("signed-registry-entry", cbor.encode(item)) and valid("registry-entry", item[0])


BAD_DESCRIPTORS = {
    "clip norm zero": {5: 0},
    "clip norm too large": {5: 10**15 + 1},
    "clip norm as float": {5: 1.0},
    "clip norm as text": {5: "1000000"},
    "noise negative": {6: -1},
    "contributor in the clear": {2: "alice"},
    "data class of 33 bytes": {3: bytes(33)},
    "class in upper case": {4: "Sensitive"},
    "class with a space": {4: "sensitive "},
    "class of 65 characters": {4: "a" * 65},
    "class empty": {4: ""},
    "class in Cyrillic": {4: "s\u0435nsitive"},
    "commitment to the content of 31 bytes": {7: bytes(31)},
    "start in milliseconds": {8: NOW * 1000},
    "end negative": {9: -1},
    "nonce in the clear": {10: bytes(16)},
    "corpus left out": {11: LEFT_OUT},
    "occurrences 2^32": {12: 2**32},
    "examples null": {13: None},
    "examples zero": {13: 0},
    "no purpose": {16: []},
    "unknown purpose": {16: ["sell"]},
    "public length zero": {17: 0},
    "unknown field": {18: 1},
    "another schema": {1: "dptrain.contribution/1"},
}


@pytest.mark.parametrize("name", BAD_DESCRIPTORS)
def test_a_bad_descriptor_is_no_instance(name):
    assert not valid("descriptor", descriptor(BAD_DESCRIPTORS[name]))


BAD_OPENINGS = {
    "contributor in upper case": {4: "Alice"},
    "contributor empty": {4: ""},
    "contributor left out": {4: LEFT_OUT},
    "data class as bytes": {5: b"clinic/notes"},
    "principal null": {6: None},
    "nonce of 17 bytes": {1: bytes(17)},
    "content hash of 31 bytes": {2: bytes(31)},
    "salts of 16 bytes": {3: bytes(16)},
    "unknown field": {7: 1},
}


@pytest.mark.parametrize("name", BAD_OPENINGS)
def test_a_bad_opening_is_no_instance(name):
    assert not valid("opening", cbor.encode(with_fields(opening_fields(), BAD_OPENINGS[name])))


def test_what_is_specified_and_not_served_yet_is_an_instance():
    for changes in ({16: ["train"]}, {16: ["generate"]}, {16: ["generate", "query", "train"]}, {17: 512}):
        assert valid("descriptor", descriptor(changes))


@pytest.mark.parametrize("case", WORDS, ids=".".join)
def test_a_policy_that_says_what_is_not_built_is_an_instance(case, monkeypatch):
    monkeypatch.setattr(unbuilt, "UNBUILT", {})
    assert valid("policy", replace(PLAIN, **WORDS[case], registry_root=bytes(32)).to_cbor())


BAD_HEADERS = {
    "another algorithm": {1: -8},
    "text algorithm": {1: "Ed25519"},
    "crit": {2: [99]},
    "unknown label": {99: 1},
    "key id of nine bytes": {4: bytes(9)},
    "subject in upper case": {15: {1: ISSUER, 2: sign1.subject_of(b"").upper()}},
    "third claim": {15: {1: ISSUER, 2: sign1.subject_of(b""), 3: CORPUS}},
    "another type": {16: "application/cose"},
    "type left out": {16: LEFT_OUT},
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_bad_header_is_no_instance(name):
    assert valid("protected-header", cbor.encode(header_fields(descriptor())))
    assert not valid("protected-header", cbor.encode(with_fields(header_fields(descriptor()), BAD_HEADERS[name])))


NO_NOISE = [{24: [[1]]}, {24: [[0, MICRO]]}, {24: [[1, MICRO - 1]]}, {24: [[1, MICRO, 1]]}, {25: [1, 2]}, {25: [0, 1, 1]}]
NO_NOISE += [{26: "poisson"}, {26: 1}, {26: ["cyclic"]}, {26: ["balls_in_bins", {}]}]
NO_NOISE += [{13: "gaussian"}, {13: ["gaussian", {}]}, {13: ["gaussian", {}, bytes(32)]}, {13: ["dense", {}, None]}]
NO_NOISE += [{34: 1}, {34: [["euclidean", {}, None]]}, {34: [["lora_tangent", {}]]}, {34: "lora_tangent"}]
"""Fields that are no phases, no budgets, no sampling, no mechanism and no geometry."""


def test_bad_messages_policies_and_entries_are_no_instances():
    message = ATTESTATION.sign1
    assert not valid("cose-sign1", message[1:])
    assert not valid("cose-sign1", message[:-66] + b"\x58\x3f" + message[-63:])
    assert not valid("cose-sign1", message.replace(b"\xa0\xf6\x58\x40", b"\xa0\x40\x58\x40"))
    assert not valid("attestation", cbor.encode([ATTESTATION.descriptor]))
    assert not valid("attestation", cbor.encode([ATTESTATION.descriptor, message]))
    assert not valid("attestation", cbor.encode([ATTESTATION.descriptor, message, OPENING, b""]))
    policy = cbor.decode(SCENE.policy.to_cbor())
    for changes in ({3: [0.5, 1]}, {5: "add-remove"}, {15: 0}, {21: None}, {22: []}, {23: 0}, {24: 1}, *NO_NOISE):
        assert not valid("policy", cbor.encode(with_fields(policy, changes)))
    entry = cbor.decode(registry_entries()[0])
    for changes in ({2: -1}, {3: bytes(31)}, {5: [[6]]}, {5: [[1, bytes(32)]]}, {5: [[2, "carol", [], None]]}, {6: 1}):
        assert not valid("registry-entry", cbor.encode(with_fields(entry, changes)))


def test_the_limits_of_the_schema_are_those_of_the_code():
    from attest.descriptor import MAX_COUNT, MAX_MICRO
    from attest.policy.classes import MAX_WINDOW
    from attest.policy.mechanism import GRID_BITS, MAX_BUDGET_MICRO, MAX_STEPS
    from attest.schema.plain import MAX_TIME

    for name, low, high in (
        ("micro", 1, MAX_MICRO),
        ("moment", 0, MAX_TIME - 1),
        ("seconds", 1, MAX_WINDOW),
        ("count", 1, MAX_COUNT),
        ("positive", 1, MAX_STEPS),
        ("weight", 1, MAX_BUDGET_MICRO),
        ("coefficient", -(1 << GRID_BITS), 1 << GRID_BITS),
    ):
        assert re.search(rf"^{name} = {low}\.\.{high}\b", TEXT, re.MULTILINE), name
    assert valid("descriptor", descriptor({5: MAX_MICRO, 6: MICRO}))
