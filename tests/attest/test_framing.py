"""Attestations made again from what they share and what differs: byte for byte what was signed."""

import secrets
from contextlib import suppress
from dataclasses import replace

import pytest

from attest import keys, sign1
from attest.descriptor import SignedDescriptor
from attest.errors import AttestError, DescriptorRefused
from attest.framing import CommonTerms, Framing, subject_of
from attest.signing import sign_content
from attest.template import SigningTemplate

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
