"""The short way of signing writes what the long way writes, byte for byte."""

import tracemalloc
from collections import Counter
from itertools import islice

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import keys, sign1
from attest.attestation import Attestation, subject_of
from attest.corpus import signing
from attest.corpus.signing import SigningTemplate, TemplateEncoder, attestations, sign_corpus, sign_descriptor
from attest.descriptor import MAX_COUNT, MAX_MICRO
from attest.errors import DescriptorRefused
from attest.schema.plain import MAX_TIME

identifiers = st.text("abcdefghijklmnopqrstuvwxyz0123456789._/-", min_size=1, max_size=64)


def integers(low, high):
    """Integers of every encoded width."""
    return st.one_of(st.integers(low, high), st.integers(low, min(high, 300)), st.integers(low, min(high, 70_000)))


@st.composite
def templates(draw):
    start = draw(integers(0, MAX_TIME - 2))
    limit = draw(st.just((None, None)) | st.tuples(integers(1, MAX_MICRO), integers(1, 10**12 - 1)))
    return SigningTemplate(
        contributor=draw(identifiers),
        data_class=draw(identifiers),
        admissibility_class=draw(identifiers),
        clip_norm_micro=draw(integers(1, MAX_MICRO)),
        noise_multiplier_micro=draw(integers(1, MAX_MICRO)),
        corpus=draw(identifiers),
        not_before=start,
        not_after=draw(st.integers(start + 1, MAX_TIME - 1)),
        max_occurrences=draw(integers(0, MAX_COUNT)),
        principal=draw(st.none() | identifiers),
        max_examples=draw(st.none() | integers(1, MAX_COUNT)),
        max_epsilon_micro=limit[0],
        max_delta_pico=limit[1],
        purposes=draw(st.sampled_from([None, ("train",), ("generate",), ("generate", "train")])),
    )


@given(templates(), st.binary(min_size=32, max_size=32), st.lists(st.tuples(*2 * [st.binary(min_size=32, max_size=32)])))
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_joined_pieces_are_the_encoding_of_descriptor_header_and_attestation(made, seed, contributions):
    key = Ed25519PrivateKey.from_private_bytes(seed)
    encoder = TemplateEncoder(made, keys.public_bytes(key))
    for content_hash, random in contributions:
        nonce = random[:16]
        payload = encoder.descriptor(content_hash, nonce)
        descriptor = made.descriptor(content_hash, nonce)
        assert payload == descriptor.to_cbor() and encoder.opening(content_hash, nonce) == descriptor.opening()
        subject = subject_of(payload)
        assert subject.decode() == sign1.subject_of(payload)
        signature = key.sign(encoder.to_be_signed(payload, subject))
        whole = Attestation(payload, sign1.sign(payload, key, contributor=descriptor.issuer), descriptor.opening())
        assert encoder.attestation(payload, subject, signature, descriptor.opening()) == whole.to_cbor()
        assert whole.opened() == descriptor


@given(templates(), st.lists(st.binary(min_size=32, max_size=32), max_size=3))
@settings(max_examples=50, deadline=None)
def test_attestations_are_what_signing_one_by_one_gives(made, hashes):
    key, drawn = keys.generate(), iter(range(100))

    def numbered():
        return (b"%016d" % number for number in drawn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attest.corpus.signing.nonces", numbered)
        signed = list(attestations(hashes, key, made))
    for number, (content_hash, item) in enumerate(zip(hashes, signed, strict=True)):
        assert item == sign_descriptor(made.descriptor(content_hash, b"%016d" % number), key).to_cbor()


def test_nonces_come_in_blocks_and_none_comes_twice(monkeypatch):
    drawn, urandom = [], signing.os.urandom
    monkeypatch.setattr(signing.os, "urandom", lambda size: (drawn.append(size), urandom(size))[1])
    some = list(islice(signing.nonces(), 10_000))
    assert {type(nonce) for nonce in some} == {bytes} and {len(nonce) for nonce in some} == {16}
    assert Counter(some).most_common(1)[0][1] == 1
    assert drawn == 3 * [65536]


def test_every_template_has_salts_of_its_own_and_all_that_it_signs_shares_them(world):
    said = {name: getattr(world.template, name) for name in ("contributor", "data_class", "corpus", "admissibility_class")}
    bounds = {"clip_norm_micro": 1, "noise_multiplier_micro": 1, "not_before": 0, "not_after": 1}
    one, two = (SigningTemplate(**said, **bounds).descriptor(bytes(32), bytes(16)).signed for _ in range(2))
    assert one.content == two.content
    assert not {one.contributor, one.data_class, one.principal} & {two.contributor, two.data_class, two.principal}
    first, second = (world.template.descriptor(bytes(32)).signed for _ in range(2))
    assert (first.contributor, first.principal) == (second.contributor, second.principal) and first.content != second.content


def test_neither_salts_nor_nonces_are_printed(world):
    """A repr ends up in logs and reports."""
    for shown in (repr(world.template), repr(world.descriptor)):
        assert "salts" not in shown and "nonce" not in shown
    assert world.template.salts == world.descriptor.salts


def test_two_runs_over_one_content_sign_different_nonces(world):
    first, second = attestations(2 * [bytes(32)], world.alice, world.template)
    assert first != second and len(first) == len(second)


@pytest.mark.parametrize("content_hash", [bytes(31), bytes(33), "x" * 32, None], ids=repr)
def test_hashes_of_another_length_would_move_the_pieces_and_are_refused(world, content_hash):
    with pytest.raises(DescriptorRefused) as caught:
        list(attestations([content_hash], world.alice, world.template))
    assert caught.value.code == ("RANGE" if type(content_hash) is bytes else "TYPE")
    encoder = TemplateEncoder(world.template, keys.public_bytes(world.alice))
    with pytest.raises(DescriptorRefused):
        encoder.descriptor(bytes(32), bytes(15))


def test_hashes_are_drawn_only_as_the_signer_needs_them(world):
    drawn = []
    endless = iter(lambda: drawn.append(None) or bytes(32), b"")
    for _ in islice(attestations(endless, world.alice, world.template), 5):
        pass
    assert len(drawn) == 5


def test_memory_of_signing_does_not_grow_with_the_file(world, tmp_path):
    def peak(records):
        data = tmp_path / f"{records}.jsonl"
        data.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(records)))
        tracemalloc.start()
        sign_corpus(data, None, world.alice, world.template)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(10)
    assert peak(8000) - peak(1000) < 64 << 10
