"""Attestations made again from what they share and what differs: byte for byte what was signed."""

import secrets
from contextlib import suppress
from dataclasses import replace

import pytest

from attest import keys, sign1
from attest.attestation import CommonTerms, Framing, subject_of
from attest.corpus.signing import SigningTemplate, sign_content
from attest.descriptor import SignedDescriptor
from attest.errors import AttestError, DescriptorRefused
from attest.gate import run_gate
from attest.gate.admission import SharedTerms
from tests.attacks.scene import item_of, make_scene
from tests.attacks.scene import signed as signed_by_alice
from tests.worlds.gate import MICRO, NOW

TEMPLATE = SigningTemplate(
    contributor="alice",
    data_class="notes",
    admissibility_class="open",
    clip_norm_micro=1_000_000,
    noise_multiplier_micro=1_100_000,
    corpus="corpus",
    not_before=1_750_000_000,
    not_after=1_780_000_000,
)
VARIANTS = (
    TEMPLATE,
    replace(TEMPLATE, principal="family", max_occurrences=70_000),
    replace(TEMPLATE, max_epsilon_micro=3_000_000, max_delta_pico=10**6, max_examples=4, purposes=("train",)),
    replace(TEMPLATE, purposes=("generate", "train"), public_length=512),
)


@pytest.fixture(scope="module")
def key():
    return keys.generate()


@pytest.mark.parametrize("template", VARIANTS)
def test_an_attestation_is_made_again_byte_for_byte(template: SigningTemplate, key) -> None:
    signed = sign_content(secrets.token_bytes(32), key, template)
    descriptor = SignedDescriptor.from_cbor(signed.descriptor)
    terms = CommonTerms.from_cbor(CommonTerms.of(descriptor, keys.key_id(keys.public_bytes(key))).to_cbor())
    framing = Framing(terms)
    again = framing.attestation(descriptor.content, sign1.read(signed.sign1).signature)
    assert (again.descriptor, again.sign1) == (signed.descriptor, signed.sign1)
    assert framing.digest(again.descriptor, again.sign1) == signed.digest()
    message = sign1.read(signed.sign1)
    assert framing.to_be_signed(again.descriptor, subject_of(again.descriptor)) == sign1.to_be_signed(
        message.protected, signed.descriptor
    )


def test_contributions_of_one_template_have_one_set_of_terms(key) -> None:
    made = {
        CommonTerms.of(SignedDescriptor.from_cbor(sign_content(secrets.token_bytes(32), key, TEMPLATE).descriptor), bytes(8))
        for _ in range(3)
    }
    assert len(made) == 1


def test_terms_tell_nothing_of_a_content(key) -> None:
    signed = SignedDescriptor.from_cbor(sign_content(secrets.token_bytes(32), key, TEMPLATE).descriptor)
    assert signed.content not in CommonTerms.of(signed, bytes(8)).to_cbor()
    with pytest.raises(DescriptorRefused, match="zero bytes"):
        CommonTerms(signed, bytes(8))


def test_no_byte_of_terms_can_be_another(key) -> None:
    signed = SignedDescriptor.from_cbor(sign_content(secrets.token_bytes(32), key, TEMPLATE).descriptor)
    data = CommonTerms.of(signed, bytes(range(8))).to_cbor()
    for place in range(len(data)):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with suppress(AttestError):
            assert CommonTerms.from_cbor(changed).to_cbor() == changed
    for other in (data + b"\0", data[:-1], b"", b"\x80"):
        with pytest.raises(AttestError):
            CommonTerms.from_cbor(other)


def test_what_the_gate_admitted_is_made_again_from_its_admission() -> None:
    """Two contributors, one of them under two sets of terms; what is kept of an admission is its descriptor and 64 bytes."""
    contents = [b"content %d" % number for number in range(6)]
    changes = [{}, {}, {12: 7}, {12: 7}, {12: 7, "nonce": bytes(16)}, {5: MICRO - 1}]
    made = [signed_by_alice(change, content=content) for change, content in zip(changes, contents, strict=True)]
    scene = make_scene()
    pairs = enumerate(zip(made, contents, strict=True))
    items = [item_of(attestation, content, f"{number}.txt") for number, (attestation, content) in pairs]
    admitted = [entry.admission for entry in run_gate(items, scene.policy, scene.registry, now=NOW).admitted]
    assert len(admitted) == 6
    shared = SharedTerms()
    terms = [shared.of(admission) for admission in admitted]
    assert len({id(found) for found in terms}) == len(set(terms)) == 3
    for admission, found, attestation in zip(admitted, terms, made, strict=True):
        signature, content = admission.signature, admission.descriptor.commitments()["content"]
        again = Framing(CommonTerms.from_cbor(found.to_cbor())).attestation(content, signature)
        assert (again.descriptor, again.sign1) == (attestation.descriptor, attestation.sign1) and len(signature) == 64
