"""Attacks in the bytes around what was signed, A8 to A10: algorithms, headers, forms that are not canonical.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import hashlib
import itertools
from dataclasses import replace

import pytest

from attest import cbor, sign1
from tests.attacks.attestation.test_signed_for_something_else import KEY_ID
from tests.attacks.scene import (
    ISSUER,
    LEFT_OUT,
    descriptor,
    descriptor_fields,
    header_fields,
    sealed,
    signed,
    with_fields,
)
from tests.worlds.gate import (
    CORPUS,
    RAW,
)

# --- A8: algorithm ----------------------------------------------------------

ALGORITHMS = {
    "EdDSA, deprecated": -8,
    "ES256": -7,
    "ES384": -35,
    "ESP256": -9,
    "Ed448": -53,
    "HMAC": 5,
    "none": 0,
    "19": 19,
    "float": -19.0,
    "text Ed25519": "Ed25519",
    "text EdDSA": "EdDSA",
    "text -19": "-19",
    "null": None,
    "true": True,
    "bytes": b"\x32",
    "array": [-19],
    "map": {1: -19},
    "smallest": -(2**63),
    "missing": LEFT_OUT,
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_A8_any_algorithm_but_Ed25519_is_HEADER(scene, name):
    assert scene.code(signed(header={1: ALGORITHMS[name]})) == "HEADER"


ALGORITHM_OUTSIDE = {
    "in the unprotected header only": (LEFT_OUT, b"\xa1\x01\x32"),
    "in both headers": (-19, b"\xa1\x01\x32"),
    "-19 unprotected over ES256 protected": (-7, b"\xa1\x01\x32"),
    "ES256 unprotected over -19 protected": (-19, b"\xa1\x01\x26"),
    "text label in the unprotected header": (LEFT_OUT, b"\xa1\x63alg\x32"),
}


@pytest.mark.parametrize("name", ALGORITHM_OUTSIDE)
def test_A8_an_algorithm_in_the_unprotected_header_is_HEADER(scene, name):
    algorithm, unprotected = ALGORITHM_OUTSIDE[name]
    protected = cbor.encode(with_fields(header_fields(descriptor()), {1: algorithm}))
    assert scene.code(sealed(descriptor(), protected, unprotected=unprotected)) == "HEADER"


def test_A8_no_protected_header_at_all_is_HEADER_or_CBOR(scene):
    assert scene.code(sealed(descriptor(), b"\xa0")) == "HEADER"
    assert scene.code(sealed(descriptor(), b"")) == "CBOR"


# --- A9: crit, unknown labels, unprotected header ----------------------------------------------------------

LABELS = {
    "crit, unknown label": {2: [99]},
    "crit, empty": {2: []},
    "crit, label that is there": {2: [1]},
    "crit, all labels": {2: [1, 4, 15, 16]},
    "crit, itself": {2: [2]},
    "crit, text": {2: ["alg"]},
    "crit, the same label twice": {2: [99, 99], 99: 1},
    "crit, number": {2: 1},
    "crit, null": {2: None},
    "content type": {3: 0},
    "IV": {5: bytes(12)},
    "partial IV": {6: bytes(4)},
    "counter signature": {11: [b"", {}, bytes(64)]},
    "X.509 chain": {33: b"x"},
    "X.509 thumbprint": {34: [-16, bytes(32)]},
    "unknown label": {99: 1},
    "unknown label above 2^32": {2**40: 1},
    "negative label": {-1: 1},
    "private negative label": {-70000: 1},
    "text label": {"alg": -19},
    "empty text label": {"": 1},
    "third claim, audience": {15: {1: ISSUER, 2: sign1.subject_of(descriptor()), 3: CORPUS}},
    "claim issuer left out": {15: {2: sign1.subject_of(descriptor())}},
    "claim subject left out": {15: {1: ISSUER}},
    "claims with text keys": {15: {"iss": ISSUER, "sub": sign1.subject_of(descriptor())}},
    "claims as array": {15: [ISSUER, sign1.subject_of(descriptor())]},
    "claims as encoded bytes": {15: cbor.encode({1: ISSUER, 2: sign1.subject_of(descriptor())})},
    "claims left out": {15: LEFT_OUT},
    "issuer as bytes": {15: {1: ISSUER.encode(), 2: sign1.subject_of(descriptor())}},
    "issuer in Cyrillic": {15: {1: "\u0430lice", 2: sign1.subject_of(descriptor())}},
    "issuer in upper case": {15: {1: "Alice", 2: sign1.subject_of(descriptor())}},
    "subject of another descriptor": {15: {1: ISSUER, 2: sign1.subject_of(b"other")}},
    "subject in upper case": {15: {1: ISSUER, 2: sign1.subject_of(descriptor()).upper()}},
    "subject with another prefix": {15: {1: ISSUER, 2: sign1.subject_of(descriptor()).replace("sha-256", "sha256")}},
    "subject as bytes": {15: {1: "alice", 2: hashlib.sha256(descriptor()).digest()}},
    "subject of the descriptor and more": {15: {1: ISSUER, 2: sign1.subject_of(descriptor()) + "0"}},
    "key id left out": {4: LEFT_OUT},
    "key id of 7 bytes": {4: KEY_ID["alice"][:7]},
    "key id of 9 bytes": {4: KEY_ID["alice"] + b"\x00"},
    "key id as text": {4: "12345678"},
    "key id is the whole key": {4: RAW["alice"]},
    "type left out": {16: LEFT_OUT},
}


@pytest.mark.parametrize("name", LABELS)
def test_A9_protected_headers_outside_the_profile_are_HEADER_though_signed(scene, name):
    assert scene.code(signed(header=LABELS[name])) == "HEADER"


UNPROTECTED = {
    "key id": (b"\xa1\x04\x48" + KEY_ID["alice"], "HEADER"),
    "crit": (b"\xa1\x02\x81\x18\x63", "HEADER"),
    "unknown label": (b"\xa1\x18\x63\x01", "HEADER"),
    "counter signature": (b"\xa1\x0b\x40", "HEADER"),
    "receipts": (b"\xa1\x19\x01\x8a\x80", "HEADER"),
    "text label": (b"\xa1\x61a\x01", "HEADER"),
    "array": (b"\x80", "HEADER"),
    "null": (b"\xf6", "HEADER"),
    "empty bytes": (b"\x40", "HEADER"),
    "empty text": (b"\x60", "HEADER"),
    "zero": (b"\x00", "HEADER"),
    "false": (b"\xf4", "HEADER"),
    "empty map in two bytes": (b"\xb8\x00", "CBOR_NONCANONICAL"),
    "empty map of indefinite length": (b"\xbf\xff", "CBOR_NONCANONICAL"),
    "label twice": (b"\xa2\x04\x40\x04\x40", "CBOR_NONCANONICAL"),
    "undefined": (b"\xf7", "CBOR_NONCANONICAL"),
}


@pytest.mark.parametrize("name", UNPROTECTED)
def test_A9_an_unprotected_header_that_is_not_the_empty_map_is_HEADER(scene, name):
    unprotected, code = UNPROTECTED[name]
    protected = cbor.encode(header_fields(descriptor()))
    assert scene.code(sealed(descriptor(), protected, unprotected=unprotected)) == code


ENVELOPES = {
    "payload attached": (lambda d, m: m[:-67] + cbor.encode(d) + m[-66:], "HEADER"),
    "payload empty": (lambda d, m: m[:-67] + b"\x40" + m[-66:], "HEADER"),
    "payload false": (lambda d, m: m[:-67] + b"\xf4" + m[-66:], "HEADER"),
    "payload undefined": (lambda d, m: m[:-67] + b"\xf7" + m[-66:], "CBOR_NONCANONICAL"),
    "no tag": (lambda d, m: m[1:], "HEADER"),
    "tag 18 in two bytes": (lambda d, m: b"\xd8\x12" + m[1:], "HEADER"),
    "tag 18 twice": (lambda d, m: b"\xd2" + m, "CBOR_NONCANONICAL"),
    "tag 98, COSE_Sign": (lambda d, m: b"\xd8\x62" + m[1:], "HEADER"),
    "tag 17, COSE_Mac0": (lambda d, m: b"\xd1" + m[1:], "HEADER"),
    "self-described CBOR": (lambda d, m: b"\xd9\xd9\xf7" + m, "HEADER"),
    "tag 61, CWT": (lambda d, m: b"\xd8\x3d" + m, "HEADER"),
    "array of three": (lambda d, m: b"\xd2\x83" + m[2:-66], "HEADER"),
    "array of five": (lambda d, m: b"\xd2\x85" + m[2:] + b"\xf6", "HEADER"),
    "array head in two bytes": (lambda d, m: b"\xd2\x98\x04" + m[2:], "CBOR_NONCANONICAL"),
    "array of indefinite length": (lambda d, m: b"\xd2\x9f" + m[2:] + b"\xff", "CBOR_NONCANONICAL"),
    "trailing byte": (lambda d, m: m + b"\x00", "CBOR"),
    "message twice": (lambda d, m: m + m, "CBOR"),
    "last byte lost": (lambda d, m: m[:-1], "CBOR"),
    "signature length in three bytes": (lambda d, m: m[:-66] + b"\x59\x00\x40" + m[-64:], "CBOR_NONCANONICAL"),
    "signature as text": (lambda d, m: m[:-66] + b"\x78\x40" + b"x" * 64, "HEADER"),
    "signature null": (lambda d, m: m[:-66] + b"\xf6", "HEADER"),
    "protected header as map": (lambda d, m: b"\xd2\x84" + m[4:], "HEADER"),
    "empty": (lambda d, m: b"", "HEADER"),
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_A9_an_envelope_outside_the_profile_is_HEADER_or_CBOR(scene, name):
    change, code = ENVELOPES[name]
    attestation = signed()
    assert attestation.sign1[2:3] == b"\x58" and attestation.sign1[-67:-64] == b"\xf6\x58\x40"
    assert scene.code(replace(attestation, sign1=change(attestation.descriptor, attestation.sign1))) == code


# --- A10: protected bytes outside the canonical form, correctly signed ---------------------------------------------

PARTS = [cbor.encode(label) + cbor.encode(value) for label, value in header_fields(descriptor()).items()]


@pytest.mark.parametrize("order", [o for o in itertools.permutations(range(4)) if o != (0, 1, 2, 3)])
def test_A10_protected_labels_out_of_order_are_CBOR_NONCANONICAL(scene, order):
    protected = b"\xa4" + b"".join(PARTS[index] for index in order)
    assert scene.code(sealed(descriptor(), protected)) == "CBOR_NONCANONICAL"


CLAIMS = [b"\x01\x78\x40" + ISSUER.encode(), b"\x02\x78\x48" + sign1.subject_of(descriptor()).encode()]
NONCANONICAL = {
    **{f"label {index} twice": b"\xa5" + b"".join([*PARTS[: index + 1], *PARTS[index:]]) for index in range(4)},
    "another algorithm before the right one": b"\xa5\x01\x26" + b"".join(PARTS),
    "another algorithm after the right one": b"\xa5" + PARTS[0] + b"\x01\x26" + b"".join(PARTS[1:]),
    "map head in two bytes": b"\xb8\x04" + b"".join(PARTS),
    "map of indefinite length": b"\xbf" + b"".join(PARTS) + b"\xff",
    "label 1 in two bytes": b"\xa4\x18\x01" + PARTS[0][1:] + b"".join(PARTS[1:]),
    "algorithm in two bytes": b"\xa4\x01\x38\x12" + b"".join(PARTS[1:]),
    "label 1 as float": b"\xa4\xf9\x3c\x00" + PARTS[0][1:] + b"".join(PARTS[1:]),
    "label 1 as true": b"\xa4\xf5" + PARTS[0][1:] + b"".join(PARTS[1:]),
    "label 1 as bignum": b"\xa4\xc2\x41\x01" + PARTS[0][1:] + b"".join(PARTS[1:]),
    "algorithm as bignum": b"\xa4\x01\xc3\x41\x12" + b"".join(PARTS[1:]),
    "key id of indefinite length": b"\xa4" + PARTS[0] + b"\x04\x5f" + PARTS[1][1:] + b"\xff" + PARTS[2] + PARTS[3],
    "key id length in two bytes": b"\xa4" + PARTS[0] + b"\x04\x58\x08" + PARTS[1][2:] + PARTS[2] + PARTS[3],
    "claims out of order": b"\xa4" + PARTS[0] + PARTS[1] + b"\x0f\xa2" + CLAIMS[1] + CLAIMS[0] + PARTS[3],
    "claim twice": b"\xa4" + PARTS[0] + PARTS[1] + b"\x0f\xa3" + CLAIMS[0] + CLAIMS[0] + CLAIMS[1] + PARTS[3],
    "claims tagged": b"\xa4" + PARTS[0] + PARTS[1] + b"\x0f\xd8\x3d\xa2" + b"".join(CLAIMS) + PARTS[3],
    "tagged": b"\xd8\x18\xa4" + b"".join(PARTS),
}


@pytest.mark.parametrize("name", NONCANONICAL)
def test_A10_protected_bytes_outside_the_canonical_form_are_CBOR_NONCANONICAL(scene, name):
    assert scene.code(sealed(descriptor(), NONCANONICAL[name])) == "CBOR_NONCANONICAL"


def test_A10_bytes_after_the_protected_map_are_CBOR(scene):
    assert b"\xa4" + b"".join(PARTS) == cbor.encode(header_fields(descriptor()))
    assert scene.code(sealed(descriptor(), b"\xa4" + b"".join(PARTS) + b"\x00")) == "CBOR"


def test_A10_descriptors_out_of_order_or_with_a_field_twice_are_CBOR_NONCANONICAL_though_signed(scene):
    fields = [cbor.encode(key) + cbor.encode(value) for key, value in descriptor_fields().items()]
    for first, second in itertools.combinations(range(12), 2):
        swapped = list(fields)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        assert scene.code(signed(payload=b"\xac" + b"".join(swapped))) == "CBOR_NONCANONICAL"
    for index in range(12):
        doubled = b"".join([*fields[: index + 1], *fields[index:]])
        assert scene.code(signed(payload=b"\xad" + doubled)) == "CBOR_NONCANONICAL"


def test_A10_every_head_of_a_descriptor_in_a_longer_form_is_CBOR_NONCANONICAL_though_signed(scene):
    heads = 0
    for key, value in descriptor_fields().items():
        before = [cbor.encode(k) + cbor.encode(v) for k, v in descriptor_fields().items() if k < key]
        after = [cbor.encode(k) + cbor.encode(v) for k, v in descriptor_fields().items() if k > key]
        for field in (
            longer_head(cbor.encode(key)) + cbor.encode(value),
            cbor.encode(key) + longer_head(cbor.encode(value)),
        ):
            payload = b"\xac" + b"".join([*before, field, *after])
            assert scene.code(signed(payload=payload)) == "CBOR_NONCANONICAL"
            heads += 1
    assert heads == 24


def longer_head(data):
    """The same item with its head one size larger than needed."""
    major, info = data[0] & 0xE0, data[0] & 31
    if info < 24:
        return bytes((major | 24, info)) + data[1:]
    width = 1 << (info - 24)
    return bytes((major | info + 1,)) + bytes(width) + data[1:]
