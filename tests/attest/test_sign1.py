"""COSE_Sign1: hostile headers, and single-purpose signatures; published vectors are in `tests/vectors`."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, keys, sign1
from attest.errors import AttestError, CborError, KeyRefused, SignatureRefused

PAYLOAD = b"payload bytes"


@pytest.fixture(scope="module")
def key():
    return Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)


def code_of(message, key, payload=PAYLOAD, **options):
    with pytest.raises(AttestError) as caught:
        sign1.verify(message, payload, keys.public_bytes(key), **options)
    return caught.value.code


def good_fields(key, payload=PAYLOAD):
    return {
        1: -19,
        4: keys.key_id(keys.public_bytes(key)),
        15: {1: "alice", 2: sign1.subject_of(payload)},
        16: sign1.TYP_ATTESTATION,
    }


def assemble(key, protected, payload=PAYLOAD, unprotected=b"\xa0", nil=b"\xf6", head=b"\xd2\x84"):
    """A message whose signature is right over whatever protected bytes it carries."""
    signature = key.sign(sign1.to_be_signed(protected, payload))
    return head + cbor.encode(protected) + unprotected + nil + cbor.encode(signature)


def test_sign_and_verify(key):
    message = sign1.sign(PAYLOAD, key, contributor="alice")
    headers = sign1.verify(message, PAYLOAD, keys.public_bytes(key))
    assert headers == sign1.Headers(
        "alice", sign1.subject_of(PAYLOAD), keys.key_id(keys.public_bytes(key)), sign1.TYP_ATTESTATION
    )
    assert sign1.verify(message, PAYLOAD, key.public_key()) == headers
    assert sign1.peek_issuer(message) == "alice"
    assert message == assemble(key, cbor.encode(good_fields(key)))


def test_wrong_payload_key_or_signature(key):
    message = sign1.sign(PAYLOAD, key, contributor="alice")
    assert code_of(message, key, PAYLOAD + b"x") == "HEADER"
    assert code_of(message, keys.generate()) == "SIG_BAD"
    for position in range(1, 65):
        assert code_of(
            message[:-position] + bytes([message[-position] ^ 1]) + message[len(message) - position + 1 :], key
        )
    with pytest.raises(KeyRefused):
        sign1.verify(message, PAYLOAD, b"\x01" + bytes(31))


def test_one_purpose_is_refused_for_every_other(key):
    kinds = (sign1.TYP_ATTESTATION, sign1.TYP_WITHDRAWAL, sign1.TYP_POLICY, sign1.TYP_REGISTRY)
    for made in kinds:
        message = sign1.sign(PAYLOAD, key, contributor="alice", typ=made)
        for wanted in kinds:
            if made == wanted:
                sign1.verify(message, PAYLOAD, keys.public_bytes(key), typ=wanted)
            else:
                assert code_of(message, key, typ=wanted) == "HEADER"


def changed(**fields):
    """A change of the protected header: labels as l1, l4 and so on; None drops one."""
    return {int(name[1:]): value for name, value in fields.items()}


BAD_HEADERS = {
    "legacy EdDSA label": changed(l1=-8),
    "ES256 label": changed(l1=-7),
    "text algorithm": changed(l1="Ed25519"),
    "float algorithm": changed(l1=-19.0),
    "algorithm missing": changed(l1=None),
    "key id missing": changed(l4=None),
    "key id of 7 bytes": changed(l4=b"1234567"),
    "key id as text": changed(l4="12345678"),
    "key id of another key": changed(l4=b"12345678"),
    "claims missing": changed(l15=None),
    "claims not a map": changed(l15=[1, 2]),
    "issuer missing": changed(l15={2: sign1.subject_of(PAYLOAD)}),
    "third claim": changed(l15={1: "alice", 2: sign1.subject_of(PAYLOAD), 3: "aud"}),
    "issuer in Cyrillic": changed(l15={1: "\u0430lice", 2: sign1.subject_of(PAYLOAD)}),
    "issuer as bytes": changed(l15={1: b"alice", 2: sign1.subject_of(PAYLOAD)}),
    "subject of other payload": changed(l15={1: "alice", 2: sign1.subject_of(b"other")}),
    "subject in upper case": changed(l15={1: "alice", 2: sign1.subject_of(PAYLOAD).upper()}),
    "subject as bytes": changed(l15={1: "alice", 2: b"x"}),
    "type missing": changed(l16=None),
    "type as number": changed(l16=16),
    "type in upper case": changed(l16=sign1.TYP_ATTESTATION.upper()),
    "unknown label": changed(l99=1),
    "crit, unknown": changed(l2=[99]),
    "crit, empty": changed(l2=[]),
    "crit, known label": changed(l2=[1]),
    "content type": changed(l3=0),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_header_outside_the_profile_is_refused_though_signed(name, key):
    fields = good_fields(key)
    for label, value in BAD_HEADERS[name].items():
        if value is None:
            del fields[label]
        else:
            fields[label] = value
    assert code_of(assemble(key, cbor.encode(fields)), key) == "HEADER"


def test_protected_bytes_not_in_canonical_form_are_refused_though_signed(key):
    fields = good_fields(key)
    parts = [cbor.encode(label) + cbor.encode(fields[label]) for label in fields]
    for protected in (
        b"\xa4" + b"".join(reversed(parts)),
        b"\xa5" + parts[0] + b"".join(parts),
        b"\xb8\x04" + b"".join(parts),
        b"\xbf" + b"".join(parts) + b"\xff",
    ):
        assert code_of(assemble(key, protected), key) == "CBOR_NONCANONICAL"
    assert code_of(assemble(key, cbor.encode(fields) + b"\x00"), key) == "CBOR"
    assert code_of(assemble(key, b""), key) == "CBOR"
    assert code_of(assemble(key, b"\xa0"), key) == "HEADER"


def test_envelope_outside_the_profile_is_refused(key):
    protected = cbor.encode(good_fields(key))
    good = assemble(key, protected)
    assert code_of(assemble(key, protected, unprotected=b"\xa1\x01\x32"), key) == "HEADER"
    assert code_of(assemble(key, protected, unprotected=b"\x80"), key) == "HEADER"
    assert code_of(assemble(key, protected, unprotected=b"\xa2\x01\x00\x01\x00"), key) == "CBOR_NONCANONICAL"
    assert code_of(assemble(key, protected, nil=cbor.encode(PAYLOAD)), key) == "HEADER"
    assert code_of(assemble(key, protected, nil=b"\xf7"), key) == "CBOR_NONCANONICAL"
    assert code_of(good[1:], key) == "HEADER"
    assert code_of(b"\xd2" + good, key) == "CBOR_NONCANONICAL"
    assert code_of(b"\xd8\x12" + good[1:], key) == "HEADER"
    assert code_of(b"\xd8\x62" + good[1:], key) == "HEADER"
    assert code_of(good + b"\x00", key) == "CBOR"
    assert code_of(good[:-1], key) == "CBOR"
    assert code_of(b"", key) == "HEADER"
    assert code_of(b"\xd2\x83" + good[2:], key) == "CBOR"
    assert code_of(b"\xd2\x9f" + good[2:] + b"\xff", key) == "CBOR_NONCANONICAL"
    assert code_of(b"\xd2\x80", key) == "HEADER"
    assert code_of(b"\xd2" + b"\x00" * 2000, key) == "SIZE"
    for length in (63, 65):
        message = b"\xd2" + cbor.encode([protected, {}, None, b"x" * length])
        assert code_of(message, key) == "SIG_BAD"
    assert code_of(b"\xd2" + cbor.encode([protected, {}, None, "x"]), key) == "HEADER"
    assert code_of(b"\xd2" + cbor.encode(["x", {}, None, b"x" * 64]), key) == "HEADER"


def test_other_types_are_refused_with_typed_errors(key):
    with pytest.raises(CborError):
        sign1.verify("text", PAYLOAD, keys.public_bytes(key))
    with pytest.raises(SignatureRefused):
        sign1.verify(sign1.sign(PAYLOAD, key, contributor="alice"), "text", keys.public_bytes(key))
    with pytest.raises(SignatureRefused):
        sign1.sign("text", key, contributor="alice")
    with pytest.raises(SignatureRefused):
        sign1.sign(PAYLOAD, key, contributor="Alice ")


def test_every_byte_of_a_message_is_bound(key):
    message = sign1.sign(PAYLOAD, key, contributor="alice")
    for position in range(len(message)):
        for bit in range(8):
            data = bytearray(message)
            data[position] ^= 1 << bit
            code_of(bytes(data), key)
