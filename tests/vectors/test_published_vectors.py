"""Every published vector that concerns signatures and their encoding; `USED` counts that none was left out."""

import cbor2
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from attest import cbor, keys, sign1
from attest.errors import AttestError, KeyRefused, SignatureRefused
from tests.vectors.published import vectors

APPENDIX_A = vectors("cbor_rfc8949_appendix_a")["accept"]
COSE = vectors("cose")
SPECCHECK, WYCHEPROOF = (vectors("ed25519")[name] for name in ("speccheck", "wycheproof"))
USED = {
    "appendix A": 48,
    "cose-wg eddsa-sig-01": 1,
    "cose-wg": 9,
    "go-cose": 4,
    "RFC 9942": 2,
    "speccheck": 12,
    "wycheproof": 151,
}
KEY = keys.public_bytes(Ed25519PrivateKey.from_private_bytes(b"\x07" * 32))
CONTENT = b"This is the content."


def named(cases, field="id"):
    """Cases with their names as test ids."""
    return [pytest.param(case, id=str(case[field]).replace(" ", "-")) for case in cases]


def refusal(call, *arguments):
    """The code of a refusal."""
    with pytest.raises(AttestError) as caught:
        call(*arguments)
    return caught.value.code


def test_no_vector_is_left_out():
    assert set(vectors("cbor_rfc8949_appendix_a")) == {"accept"}
    assert set(COSE) == {"cose_wg_eddsa_sig_01", "cose_wg_sign1_tests", "go_cose_negative", "rfc9942_examples"}
    assert set(vectors("ed25519")) == {"speccheck", "wycheproof"}
    rows = [APPENDIX_A, [0], COSE["cose_wg_sign1_tests"], COSE["go_cose_negative"], COSE["rfc9942_examples"]]
    assert [len(row) for row in [*rows, SPECCHECK, WYCHEPROOF]] == list(USED.values())
    assert sum(USED.values()) == 227


# --- CBOR ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", named(APPENDIX_A))
def test_rfc8949_appendix_a(case):
    """Accepted, encoded again to the same bytes, and read by an independent decoder as the same value of the same type."""
    data = bytes.fromhex(case["hex"])
    assert case["expect"] == "accept"
    value = cbor.decode(data)
    other = cbor2.loads(data)
    assert cbor.encode(value) == data
    assert type(value) is type(other) and value == other and repr(value) == repr(other)


# --- COSE ----------------------------------------------------------------------------------------------------------------


def test_cose_wg_eddsa_sig_01():
    """Sig_structure and signature reproduced bit for bit; the message itself is outside the detached profile."""
    vector = COSE["cose_wg_eddsa_sig_01"]
    message, expected = bytes.fromhex(vector["cbor"]), bytes.fromhex(vector["tbs"])
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["d"]))
    raw = keys.public_bytes(key)
    assert raw.hex() == vector["x"]
    protected, unprotected, payload, signature = cbor.decode(message[1:])
    assert sign1.to_be_signed(protected, payload) == expected
    assert key.sign(expected) == signature
    assert b"\xd2" + cbor.encode([protected, unprotected, payload, signature]) == message
    keys.verify_signature(raw, signature, expected)
    assert refusal(sign1.verify, message, payload, raw) == "HEADER"


@pytest.mark.parametrize("case", named(COSE["cose_wg_sign1_tests"]))
def test_cose_wg_sign1(case):
    """ES256 with attached payloads: each is refused under the profile, whether it is right or wrong elsewhere."""
    assert refusal(sign1.verify, bytes.fromhex(case["cbor"]), CONTENT, KEY) == "HEADER"
    assert refusal(sign1.parse, bytes.fromhex(case["cbor"])) == "HEADER"


@pytest.mark.parametrize("case", named([case for case in COSE["cose_wg_sign1_tests"] if not case["fail"]]))
def test_cose_wg_sign1_structures(case):
    """The Sig_structure of those that are right, external data included."""
    found = cbor2.loads(bytes.fromhex(case["cbor"]))
    protected, _, payload, _ = found.value if isinstance(found, cbor2.CBORTag) else found
    external = bytes.fromhex(case["external"] or "")
    # RFC 9052 section 4.4: a protected header that is an empty map is signed as an empty string.
    structure = ["Signature1", b"" if protected == b"\xa0" else protected, external, payload]
    assert cbor.encode(structure).hex() == case["tbs"].lower()
    if not external:
        assert sign1.to_be_signed(structure[1], payload) == cbor.encode(structure)


GO_COSE_CODES = {
    "Protected header outer type is not bstr ": "HEADER",
    "Protected header inner type is not map": "HEADER",
    "Protected header map contains duplicate entries": "HEADER",
    "Unprotected header map contains duplicate entries": "CBOR_NONCANONICAL",
}


@pytest.mark.parametrize("case", named(COSE["go_cose_negative"], "title"))
def test_go_cose_negative(case):
    assert case["expect"] == "reject"
    message = bytes.fromhex(case["cbor"])
    assert refusal(sign1.verify, message, CONTENT, KEY) == GO_COSE_CODES[case["title"]]


def test_go_cose_negative_in_our_own_envelope():
    """The same faults of the protected header where nothing else is wrong with the message."""
    for protected, code in (("820126", "HEADER"), ("a201260126", "CBOR_NONCANONICAL")):
        message = b"\xd2" + cbor.encode([bytes.fromhex(protected), {}, None, bytes(64)])
        assert refusal(sign1.verify, message, CONTENT, KEY) == code


@pytest.mark.parametrize("name", COSE["rfc9942_examples"])
def test_rfc9942_receipts_are_no_attestations(name):
    message = bytes.fromhex(COSE["rfc9942_examples"][name])
    assert refusal(sign1.verify, message, CONTENT, KEY) == "HEADER"
    # The envelope is within the strict subset; the protected header is not: label 395 stands before 15.
    protected, unprotected, payload, signature = cbor.decode(message[1:])
    assert b"\xd2" + cbor.encode([protected, unprotected, payload, signature]) == message
    assert payload is None and len(signature) == 64
    assert refusal(cbor.decode, protected) == "CBOR_NONCANONICAL"
    assert cbor2.loads(protected)[395] == 1


# --- Ed25519 -------------------------------------------------------------------------------------------------------------


def library_accepts(raw, signature, message):
    """What the library says by itself."""
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@pytest.mark.parametrize("case", named(SPECCHECK, "n"))
def test_speccheck(case):
    """All twelve are refused, ten of them for their key; the library by itself accepts five."""
    raw, message, signature = (bytes.fromhex(case[name]) for name in ("pub_key", "message", "signature"))
    assert case["expect"] == "reject"
    assert library_accepts(raw, signature, message) is (case["cryptography_50"] == "accept")
    code = refusal(keys.verify_signature, raw, signature, message)
    assert code == ("SIG_BAD" if case["key_passes_enrolment_check"] else "KEY_WEAK")


@pytest.mark.parametrize("case", named(WYCHEPROOF))
def test_wycheproof(case):
    raw, message, signature = (bytes.fromhex(case[name]) for name in ("pk", "msg", "sig"))
    assert library_accepts(raw, signature, message) is (case["cryptography_50"] == "accept")
    if case["expect"] == "accept":
        keys.verify_signature(raw, signature, message)
        return
    with pytest.raises((SignatureRefused, KeyRefused)) as caught:
        keys.verify_signature(raw, signature, message)
    assert caught.value.code in ("SIG_BAD", "KEY_WEAK")
