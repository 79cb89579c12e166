"""Attacks on keys and signatures, A1 to A3: points of small order, malleated signatures, mixed torsion.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import base64
import json
import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from attest import cbor, keys, sign1
from attest.errors import AttestError, KeyRefused, RegistryRefused, SignatureRefused
from attest.keys import ed25519
from attest.registry import Enrol
from tests.attacks.scene import (
    BASE,
    ISSUER,
    attested,
    challenge,
    compress,
    descriptor,
    envelope,
    header_fields,
    opening,
    secret_scalar,
    sig_structure,
    signed,
    split,
)
from tests.vectors.published import vectors
from tests.worlds.commands import run_command
from tests.worlds.gate import (
    ALICE,
    BOB,
    CONTENT,
    NOW,
    OWNER,
    RAW,
    YEAR,
    make_registry,
    registry_bytes,
)
from tests.worlds.registries import load, put, signed_behind_the_back, with_key

L = ed25519.L


def enrolled_behind_the_back(scene, raw, **changes):
    """The registry with another key for Alice, as if the enrolment check had a hole."""
    return with_key(scene.registry, "alice", raw=raw, **changes)


def enrolment_code(raw):
    """The code with which the owner's own tool refuses to enrol a key."""
    with pytest.raises(RegistryRefused) as caught:
        make_registry(lambda log: enrol(log, "eve", raw))
    return caught.value.code


def enrol(log, name, raw, classes=("open",), **options):
    """Enrol a key for two years."""
    return log.enrol(name, raw, classes=classes, not_before=NOW - YEAR, not_after=NOW + YEAR, now=NOW, **options)


def signed_by_an_owner_without_care(raw):
    """A registry file whose last entry enrols a key that `enrol` would have refused."""
    return signed_behind_the_back(registry_bytes(), OWNER, NOW, Enrol("eve", raw, NOW - YEAR, NOW + YEAR, ["open"]))


def test_the_scene_admits_what_is_right(scene):
    assert scene.code(signed()) == "ADMITTED"
    assert scene.code(signed({"contributor": "bob", 4: "open"}, key=BOB)) == "ADMITTED"
    assert signed() == attested(descriptor(), sign1.sign(descriptor(), ALICE, contributor=ISSUER))


# --- A1: weak keys ----------------------------------------------------------

# The encodings of the eight points of small order: canonical ones, y >= p, and x = 0 with the sign bit.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


def forgery_under(raw):
    """An attestation in Alice's name that verifies under a small-order key, found without any secret.

    With R the neutral element and S = 0 the equation is h * A = 0, which holds for one message in 8 at least.
    """
    forged = b"\x01" + bytes(63)
    verifier = Ed25519PublicKey.from_public_bytes(raw)
    for number in range(400):
        payload = descriptor(nonce=number.to_bytes(16, "big"))
        protected = cbor.encode(header_fields(payload, raw))
        try:
            verifier.verify(forged, b"".join(sig_structure(protected, payload)))
        except InvalidSignature:
            continue
        return number, attested(payload, envelope(protected, forged), opening(nonce=number.to_bytes(16, "big")))
    raise AssertionError("no forgery found")


@pytest.mark.parametrize("text", SMALL_ORDER)
def test_A1_small_order_and_non_canonical_keys_are_KEY_WEAK_at_enrolment(text):
    assert len(set(SMALL_ORDER)) == 14
    assert enrolment_code(bytes.fromhex(text)) == "KEY_WEAK"


@pytest.mark.parametrize("text", SMALL_ORDER)
def test_A1_a_registry_that_enrols_a_weak_key_is_KEY_WEAK_when_it_is_read(text):
    with pytest.raises(RegistryRefused) as caught:
        load(signed_by_an_owner_without_care(bytes.fromhex(text)), OWNER)
    assert caught.value.code == "KEY_WEAK"
    assert load(signed_by_an_owner_without_care(RAW["mallory"]), OWNER).find("eve").keys[0].raw == RAW["mallory"]


@pytest.mark.parametrize("text", SMALL_ORDER)
def test_A1_a_forgery_that_the_library_accepts_is_KEY_WEAK_at_the_gate(scene, text):
    raw = bytes.fromhex(text)
    tries, forgery = forgery_under(raw)
    if text == SMALL_ORDER[0]:
        assert tries == 0, "the neutral element verifies every message"
    assert scene.code(forgery, registry=enrolled_behind_the_back(scene, raw)) == "KEY_WEAK"


def test_A1_the_forgery_for_the_neutral_element_verifies_every_message_in_the_library_and_none_here():
    raw, forged = bytes.fromhex(SMALL_ORDER[0]), b"\x01" + bytes(63)
    for message in (b"", b"anything", descriptor()):
        Ed25519PublicKey.from_public_bytes(raw).verify(forged, message)
        with pytest.raises(KeyRefused) as caught:
            keys.verify_signature(raw, forged, message)
        assert caught.value.code == "KEY_WEAK"


@pytest.mark.parametrize("text", SMALL_ORDER)
def test_A1_a_weak_key_is_KEY_WEAK_in_a_public_key_file_and_as_the_owners_key(tmp_path, text):
    raw = bytes.fromhex(text)
    path = tmp_path / "eve.pub"
    path.write_text(f"dptrain-key-v1 eve {base64.b64encode(raw).decode()}\n")
    with pytest.raises(KeyRefused) as caught:
        keys.load_public_key(path)
    assert caught.value.code == "KEY_WEAK"
    with pytest.raises(AttestError) as refused:
        sign1.verify(signed().sign1, signed().descriptor, raw)
    assert refused.value.code == "KEY_WEAK"


@pytest.mark.parametrize("text", [SMALL_ORDER[0], SMALL_ORDER[4], SMALL_ORDER[13]])
@pytest.mark.parametrize("form", ["eve.pub", "eve.jsonl", "eve.csv"])
def test_A1_the_command_enrols_no_weak_key_and_leaves_the_registry_as_it_was(tmp_path, form, text):
    put(tmp_path / "registry.cbor", registry_bytes())
    keys.save_private_key(tmp_path / "owner.key", OWNER)
    key = base64.b64encode(bytes.fromhex(text)).decode()
    (tmp_path / form).write_text(
        {
            "eve.pub": f"dptrain-key-v1 eve {key}\n",
            "eve.jsonl": json.dumps({"key": key, "contributor": "eve", "classes": ["open"]}) + "\n",
            "eve.csv": f"key,contributor,classes\n{key},eve,open\n",
        }[form]
    )
    option = "--pub" if form == "eve.pub" else "--from"
    command = ["registry", "add", str(tmp_path / "registry.cbor"), option, str(tmp_path / form), "--class", "open"]
    result = run_command(command)
    assert result.exit_code != 0 and "KEY_WEAK" in result.output + str(result.exception)
    assert (tmp_path / "registry.cbor").read_bytes() == registry_bytes()
    assert (tmp_path / "registry.names").read_bytes() == registry_bytes().names


def test_A1_points_off_the_curve_are_KEY_WEAK():
    off = [y.to_bytes(32, "little") for y in range(2, 60) if ed25519.decompress(y.to_bytes(32, "little")) is None]
    assert len(off) > 10
    assert {enrolment_code(raw) for raw in off} == {"KEY_WEAK"}


# --- A2: malleated signatures ----------------------------------------------------------


@pytest.mark.parametrize("multiple", range(1, 16))
def test_A2_S_plus_a_multiple_of_the_order_is_SIG_BAD(scene, multiple):
    head, signature = split(signed().sign1)
    s = int.from_bytes(signature[32:], "little") + multiple * L
    if s >= 2**256:
        s %= 2**256
    assert scene.code(attested(descriptor(), head + signature[:32] + s.to_bytes(32, "little"))) == "SIG_BAD"


@pytest.mark.parametrize("bit", [253, 254, 255])
def test_A2_high_bits_of_S_and_R_are_SIG_BAD(scene, bit):
    head, signature = split(signed().sign1)
    for start in (0, 32):
        half = int.from_bytes(signature[start : start + 32], "little") ^ 1 << bit
        other = signature[:start] + half.to_bytes(32, "little") + signature[start + 32 :]
        assert scene.code(attested(descriptor(), head + other)) == "SIG_BAD"


@pytest.mark.parametrize("length", [0, 1, 32, 63, 65, 96, 128])
def test_A2_signatures_of_another_length_are_SIG_BAD(scene, length):
    protected = cbor.encode(header_fields(descriptor()))
    signature = (split(signed().sign1)[1] * 2)[:length]
    assert scene.code(attested(descriptor(), envelope(protected, signature))) == "SIG_BAD"


def test_A2_a_second_genuine_signature_over_one_descriptor_is_REPLAYED(scene):
    """The signer may choose another nonce r and so make a second signature that verifies: descriptors count, not bytes."""
    protected = cbor.encode(header_fields(descriptor()))
    message = b"".join(sig_structure(protected, descriptor()))
    r = 0x1234567
    nonce = compress(ed25519.multiply(r, BASE))
    s = (r + challenge(nonce, RAW["alice"], message) * secret_scalar(ALICE)) % L
    other = attested(descriptor(), envelope(protected, nonce + s.to_bytes(32, "little")))
    assert other != signed() and scene.code(other) == "ADMITTED"
    assert scene.codes([(signed(), CONTENT), (other, CONTENT)]) == ["ADMITTED", "REPLAYED"]
    assert scene.codes([(other, CONTENT), (signed(), CONTENT)]) == ["ADMITTED", "REPLAYED"]


# --- A3: mixed torsion ----------------------------------------------------------

TORSION = ed25519.decompress(bytes.fromhex(SMALL_ORDER[4]))


@pytest.mark.parametrize("order", [2, 4, 8])
def test_A3_a_key_with_a_small_order_component_is_KEY_WEAK(scene, order):
    torsion = ed25519.multiply(8 // order, TORSION)
    raw = compress(ed25519.add(ed25519.decompress(RAW["alice"]), torsion))
    Ed25519PublicKey.from_public_bytes(raw)
    assert enrolment_code(raw) == "KEY_WEAK"
    attestation = signed(header={4: keys.key_id(raw)})
    assert scene.code(attestation, registry=enrolled_behind_the_back(scene, raw)) == "KEY_WEAK"


def test_A3_exactly_the_points_of_prime_order_pass_by_the_definition():
    """Random points of the curve, and sound keys moved by each point of small order, against multiplication by L."""
    rng = random.Random(3)
    points = [ed25519.decompress(rng.randbytes(32)) for _ in range(240)]
    sound = ed25519.multiply(rng.randrange(1, L), BASE)
    for n in range(8):
        points += [ed25519.add(sound, ed25519.multiply(n, TORSION)), ed25519.multiply(n, TORSION)]
        points += [ed25519.add(BASE, ed25519.multiply(n, TORSION))]
    checked = [point for point in points if point is not None]
    passed = 0
    for point in checked:
        prime = ed25519.is_identity(ed25519.multiply(L, point)) and not ed25519.is_identity(point)
        try:
            keys.check_public_key(compress(point))
            assert prime
            passed += 1
        except KeyRefused as error:
            assert not prime and error.code == "KEY_WEAK"
    assert len(checked) > 120 and passed > 10


@pytest.mark.parametrize("order", [2, 4, 8])
def test_A3_a_commitment_with_a_small_order_component_is_SIG_BAD(scene, order):
    """Cofactored verifiers take this signature, cofactorless ones do not; we are of the second kind, always."""
    protected = cbor.encode(header_fields(descriptor()))
    message = b"".join(sig_structure(protected, descriptor()))
    torsion = ed25519.multiply(8 // order, TORSION)
    r = 0x7654321
    mixed = ed25519.add(ed25519.multiply(r, BASE), torsion)
    h = challenge(compress(mixed), RAW["alice"], message)
    s = (r + h * secret_scalar(ALICE)) % L
    left = ed25519.multiply(8 * s, BASE)
    right = ed25519.add(ed25519.multiply(8, mixed), ed25519.multiply(8 * h, ed25519.decompress(RAW["alice"])))
    assert compress(left) == compress(right), "the cofactored equation holds"
    forged = compress(mixed) + s.to_bytes(32, "little")
    assert scene.code(attested(descriptor(), envelope(protected, forged))) == "SIG_BAD"


@pytest.mark.parametrize("case", vectors("ed25519")["speccheck"], ids=lambda case: f"speccheck-{case['n']}")
def test_A3_every_case_of_speccheck_is_refused_at_enrolment_or_SIG_BAD(case):
    raw, message, signature = (bytes.fromhex(case[name]) for name in ("pub_key", "message", "signature"))
    if not case["key_passes_enrolment_check"]:
        assert enrolment_code(raw) == "KEY_WEAK"
        return
    with pytest.raises(SignatureRefused) as caught:
        keys.verify_signature(raw, signature, message)
    assert caught.value.code == "SIG_BAD"
