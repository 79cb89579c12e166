"""Content anchors: signed by the contributor, of one content, read strictly, and of no content to whoever lacks the nonce."""

import hashlib
from dataclasses import replace

import pytest

from attest import cbor, keys, sign1, signed_file
from attest.corpus.anchor import ContentAnchor, anchor_of, read_anchor, sign_anchor, verify_anchor, verify_enrolled_anchor
from attest.errors import AttestError, FileRefused

NOW = 1_800_000_000
CONTENT = hashlib.sha256(b'{"text": "one record"}').digest()


def code_of(call, *arguments, **options):
    with pytest.raises(AttestError) as caught:
        call(*arguments, **options)
    return caught.value.code


@pytest.fixture
def raw(world):
    return keys.public_bytes(world.alice)


@pytest.fixture(params=[False, True], ids=["bare", "opened"])
def anchor(request, world):
    return anchor_of(world.descriptor, time=NOW, opened=request.param)


@pytest.fixture
def signed(world, anchor):
    return sign_anchor(anchor, world.alice, issuer=world.descriptor.issuer)


def test_an_anchor_says_what_the_ledger_says_of_the_contribution(world, anchor, signed, raw):
    payload, message = signed
    assert ContentAnchor.from_cbor(payload) == anchor == verify_anchor(payload, message, raw)
    assert anchor.content == world.descriptor.signed.content and anchor.descriptor_hash == world.descriptor.digest()
    found, holder = verify_enrolled_anchor(payload, message, world.registry)
    assert (found, holder.name) == (anchor, "alice")


def test_a_record_tells_no_name_and_a_bare_one_no_content(world, anchor, signed):
    shown = b"".join(signed)
    assert b"alice" not in shown and world.descriptor.content_hash not in shown
    assert (world.descriptor.nonce in shown) is (anchor.nonce is not None)
    assert "nonce" not in repr(anchor)


def test_the_content_is_confirmed_and_a_changed_one_named(world, anchor):
    nonce = None if anchor.nonce else world.descriptor.nonce
    anchor.require_content(CONTENT, nonce)
    assert code_of(anchor.require_content, hashlib.sha256(b"changed").digest(), nonce) == "CONTENT_MISMATCH"
    assert code_of(anchor.require_content, CONTENT, bytes(16)) in ("NONCE", "CONTENT_MISMATCH")
    if anchor.nonce is None:
        assert code_of(anchor.require_content, CONTENT) == "NONCE"


def test_another_key_another_purpose_and_another_registry_are_refused(world, signed, raw):
    payload, message = signed
    assert code_of(verify_anchor, payload, message, keys.public_bytes(world.bob)) == "SIG_BAD"
    other = sign1.sign(payload, world.alice, contributor=world.descriptor.issuer, typ=sign1.TYP_WITHDRAWAL)
    assert code_of(verify_anchor, payload, other, raw) == "HEADER"
    stranger = sign1.sign(payload, keys.generate(), contributor=world.descriptor.issuer, typ=sign1.TYP_ANCHOR)
    assert code_of(verify_enrolled_anchor, payload, stranger, world.registry) == "KEY_UNKNOWN"
    revoked = world.changed(lambda log: log.revoke("alice", at=NOW, now=NOW))
    assert code_of(verify_enrolled_anchor, payload, message, revoked) == "KEY_NOT_VALID"
    later = world.changed(lambda log: log.revoke("alice", at=NOW + 1, now=NOW + 1))
    assert verify_enrolled_anchor(payload, message, later)[1].name == "alice"


def test_every_flipped_bit_is_refused(world, anchor, signed, raw, tmp_path):
    """Of the file whole: payload, header and signature; under the key and under the registry."""
    path = tmp_path / "scan.png.anchor"
    signed_file.write(path, *signed)
    data = path.read_bytes()
    assert verify_anchor(*read_anchor(path), raw) == anchor
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                payload, message = signed_file.split(bytes(changed), "the record", max_size=1 << 12)
            except FileRefused:
                continue
            assert code_of(verify_anchor, payload, message, raw)
            if bit == 0:
                assert code_of(verify_enrolled_anchor, payload, message, world.registry)


@pytest.mark.parametrize(
    "change",
    [{1: "dptrain.anchor/2"}, {2: bytes(31)}, {3: "x" * 32}, {4: -1}, {4: True}, {5: bytes(15)}, {5: None}, {6: 1}],
    ids=str,
)
def test_other_forms_are_refused(world, change, raw):
    payload = cbor.encode(cbor.decode(anchor_of(world.descriptor, time=NOW).to_cbor()) | change)
    message = sign1.sign(payload, world.alice, contributor=world.descriptor.issuer, typ=sign1.TYP_ANCHOR)
    assert code_of(verify_anchor, payload, message, raw)


def test_content_that_was_signed_again_has_another_anchor(world):
    again = replace(world.descriptor, nonce=b"n" * 16)
    one, other = (anchor_of(item, time=NOW) for item in (world.descriptor, again))
    assert again.content_hash == world.descriptor.content_hash and one.content != other.content
    assert code_of(one.require_content, CONTENT, again.nonce) == "CONTENT_MISMATCH"
