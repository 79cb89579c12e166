"""The descriptor: strict both ways, every field checked, nothing that compares equal passes for equal."""

import hashlib
from dataclasses import FrozenInstanceError, asdict, replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor
from attest.descriptor import MAX_MICRO, MAX_OPENING, ContributionDescriptor, SignedDescriptor
from attest.errors import AttestError, DescriptorRefused, ValueRefused
from attest.schema.plain import MAX_TIME, check_id

IDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789._/-", min_size=1, max_size=64)
CONFUSABLES = {
    "Cyrillic e": "r\u0435stricted",
    "decomposed": "re\u0301stricted",
    "full width": "\uff52estricted",
    "trailing space": "restricted ",
    "leading space": " restricted",
    "upper case": "Restricted",
    "right-to-left mark": "restricted\u200f",
    "zero-width joiner": "restric\u200dted",
    "NUL": "restricted\x00",
    "newline": "restricted\n",
    "empty": "",
    "65 characters": "a" * 65,
    "Arabic digit": "class\u0663",
    "soft hyphen": "restr\u00adicted",
}


@pytest.mark.parametrize("name", CONFUSABLES)
def test_identifiers_have_no_lookalikes(name, world):
    with pytest.raises(ValueRefused) as caught:
        check_id(CONFUSABLES[name], "class")
    assert caught.value.code == "RANGE" and caught.value.sentence.isascii()
    for field in ("contributor", "data_class", "admissibility_class", "corpus", "principal"):
        with pytest.raises(DescriptorRefused):
            replace(world.descriptor, **{field: CONFUSABLES[name]})


def test_identifiers_are_strings():
    for value in (b"restricted", None, 1, type("Text", (str,), {})("restricted")):
        with pytest.raises(ValueRefused) as caught:
            check_id(value, "class")
        assert caught.value.code == "TYPE"
    assert check_id("a/b.c_d-9", "class") == "a/b.c_d-9"


@settings(max_examples=100, deadline=None)
@given(
    contributor=IDS,
    data_class=IDS,
    admissibility_class=IDS,
    corpus=IDS,
    clip_norm_micro=st.integers(1, MAX_MICRO),
    noise_multiplier_micro=st.integers(1, MAX_MICRO),
    content_hash=st.binary(min_size=32, max_size=32),
    nonce=st.binary(min_size=16, max_size=16),
    salts=st.binary(min_size=48, max_size=48),
    times=st.tuples(st.integers(0, MAX_TIME - 1), st.integers(0, MAX_TIME - 1)).filter(lambda pair: pair[0] < pair[1]),
    max_occurrences=st.integers(0, 2**32 - 1),
    principal=st.none() | IDS,
    max_examples=st.none() | st.integers(1, 2**32 - 1),
    limit=st.just((None, None)) | st.tuples(st.integers(1, 10**15), st.integers(1, 10**12 - 1)),
)
def test_round_trip(times, limit, **fields):
    fields |= {"max_epsilon_micro": limit[0], "max_delta_pico": limit[1]}
    descriptor = ContributionDescriptor(not_before=times[0], not_after=times[1], **fields)
    assert ContributionDescriptor.open(descriptor.to_cbor(), descriptor.opening()) == descriptor
    assert SignedDescriptor.from_cbor(descriptor.to_cbor()) == descriptor.signed
    assert descriptor.digest() == descriptor.signed.digest() == hashlib.sha256(descriptor.to_cbor()).digest()
    assert len(descriptor.opening()) <= MAX_OPENING - 200


def test_fields_stand_under_the_published_keys(world):
    value = cbor.decode(world.descriptor.to_cbor())
    names = [
        "schema",
        "contributor",
        "data_class",
        "admissibility_class",
        "clip_norm_micro",
        "noise_multiplier_micro",
        "content",
        "not_before",
        "not_after",
        "principal",
        "corpus",
        "max_occurrences",
    ]
    assert value == {key: asdict(world.descriptor.signed)[name] for key, name in enumerate(names, start=1)}
    limited = {"max_epsilon_micro": 8_000_000, "max_delta_pico": 1_000_000, "purposes": ("train",)}
    full = cbor.decode(replace(world.descriptor, max_examples=3, **limited).to_cbor())
    assert [full[key] for key in range(13, 17)] == [3, 8_000_000, 1_000_000, ["train"]]
    names = ["nonce", "content_hash", "salts", "contributor", "data_class", "principal"]
    opened = replace(world.descriptor, principal="p")
    assert cbor.decode(opened.opening()) == {key: asdict(opened)[name] for key, name in enumerate(names, start=1)}
    assert 6 not in cbor.decode(world.descriptor.opening())


def test_what_is_signed_holds_no_word_and_no_digest_of_who_or_what(world):
    descriptor = replace(world.descriptor, principal="person-7")
    signed = descriptor.to_cbor()
    told = [descriptor.contributor, descriptor.data_class, descriptor.principal]
    for secret in (*(word.encode() for word in told), descriptor.content_hash, descriptor.nonce, descriptor.salts[:16]):
        assert secret not in signed and hashlib.sha256(secret).digest() not in signed
        assert secret in descriptor.opening()


def test_an_opening_opens_its_own_descriptor_and_no_other(world):
    one, two = world.descriptor, replace(world.descriptor, salts=bytes(48))
    assert one.signed.opened(one.opening()) == one
    for signed, opening in ((one.signed, two.opening()), (two.signed, one.opening()), (one.signed, b"")):
        with pytest.raises(DescriptorRefused) as caught:
            signed.opened(opening)
        assert caught.value.code == "OPENING"


def test_a_limit_of_epsilon_is_signed_with_its_delta(world):
    """Without one it would bound nothing: every mechanism has a small epsilon at a large delta."""
    limited = cbor.decode(replace(world.descriptor, max_epsilon_micro=8_000_000, max_delta_pico=1_000_000).to_cbor())
    for changes, code in (
        ({15: 0}, "RANGE"),
        ({15: 10**12}, "RANGE"),
        ({15: 1e-6}, "TYPE"),
        ({15: None}, "RANGE"),
        ({14: None}, "RANGE"),
        ({14: None, 15: None}, "CBOR_NONCANONICAL"),
    ):
        assert code_of(cbor.encode(limited | changes)) == code
    for key in (14, 15):
        assert code_of(cbor.encode({k: v for k, v in limited.items() if k != key})) == "RANGE"


def encoded_with(descriptor, key, value):
    fields = cbor.decode(descriptor.to_cbor())
    fields[key] = value
    return cbor.encode(fields)


def code_of(data):
    with pytest.raises(AttestError) as caught:
        SignedDescriptor.from_cbor(data)
    return caught.value.code


WRONG = {
    "clip true": (5, True, "TYPE"),
    "clip float": (5, 1000000.0, "TYPE"),
    "clip text": (5, "1000000", "TYPE"),
    "clip null": (5, None, "TYPE"),
    "clip bytes": (5, b"\x01", "TYPE"),
    "clip zero": (5, 0, "RANGE"),
    "clip negative": (5, -1, "RANGE"),
    "clip 2^63-1": (5, 2**63 - 1, "RANGE"),
    "clip above the largest": (5, MAX_MICRO + 1, "RANGE"),
    "noise true": (6, True, "TYPE"),
    "noise float": (6, 1.5, "TYPE"),
    "noise negative zero": (6, -0.0, "TYPE"),
    "noise zero": (6, 0, "RANGE"),
    "noise negative": (6, -(2**63), "RANGE"),
    "start float with milliseconds": (8, 1800000000.123, "TYPE"),
    "start in milliseconds": (8, 1800000000123, "RANGE"),
    "start negative": (8, -1, "RANGE"),
    "end in the year 10^9": (9, 31556952 * 10**9, "RANGE"),
    "end before start": (9, 0, "WINDOW"),
    "occurrences negative": (12, -1, "RANGE"),
    "occurrences false": (12, False, "TYPE"),
    "occurrences huge": (12, 2**32, "RANGE"),
    "content of 31 bytes": (7, b"x" * 31, "RANGE"),
    "content as text": (7, "x" * 32, "TYPE"),
    "principal of 16 bytes": (10, b"x" * 16, "RANGE"),
    "principal of 33 bytes": (10, b"x" * 33, "RANGE"),
    "principal null": (10, None, "TYPE"),
    "contributor in the clear": (2, "alice", "TYPE"),
    "contributor list": (2, [bytes(32)], "TYPE"),
    "data class of 48 bytes": (3, bytes(48), "RANGE"),
    "class Cyrillic": (4, "r\u0435stricted", "RANGE"),
    "schema other": (1, "dptrain.contribution/1", "SCHEMA"),
    "schema number": (1, 1, "TYPE"),
    "examples zero": (13, 0, "RANGE"),
    "limit zero": (14, 0, "RANGE"),
    "limit float": (14, 8.0, "TYPE"),
    "limit null": (14, None, "CBOR_NONCANONICAL"),
    "examples null": (13, None, "CBOR_NONCANONICAL"),
    "delta without a limit": (15, 1, "RANGE"),
    "limit without a delta": (14, 8_000_000, "RANGE"),
    "to answer queries": (16, ["query"], "PURPOSE"),
    "to train and to answer queries": (16, ["query", "train"], "PURPOSE"),
    "purposes out of order": (16, ["train", "generate"], "RANGE"),
    "one purpose twice": (16, ["train", "train"], "RANGE"),
    "no purpose": (16, [], "RANGE"),
    "public length zero": (17, 0, "RANGE"),
    "unknown field 18": (18, 1, "SCHEMA"),
    "unknown field 0": (0, 1, "SCHEMA"),
    "unknown text field": ("clip", 1, "SCHEMA"),
    "unknown negative field": (-1, 1, "SCHEMA"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_field(name, world):
    key, value, code = WRONG[name]
    assert code_of(encoded_with(world.descriptor, key, value)) == code


def test_refuses_missing_fields_and_other_shapes(world):
    for key in range(1, 13):
        fields = cbor.decode(world.descriptor.to_cbor())
        del fields[key]
        assert code_of(cbor.encode(fields)) == "SCHEMA"
    assert code_of(b"\x80") == "TYPE"
    assert code_of(b"\x01") == "TYPE"
    assert code_of(b"") == "CBOR"
    assert code_of(world.descriptor.to_cbor() + b"\x00") == "CBOR"
    assert code_of(b"\x00" * 16385) == "SIZE"


@pytest.mark.parametrize("value", [1.0, True, "1", Decimal(1), None, float("nan"), 1 + 0j])
def test_constructor_refuses_what_merely_compares_equal(value, world):
    for field in ("clip_norm_micro", "noise_multiplier_micro", "not_before", "max_occurrences"):
        with pytest.raises(DescriptorRefused) as caught:
            replace(world.descriptor, **{field: value})
        assert caught.value.code == "TYPE"


def test_validity_must_not_be_empty(world):
    start = world.descriptor.not_before
    for end in (start, start - 1):
        with pytest.raises(DescriptorRefused) as caught:
            replace(world.descriptor, not_after=end)
        assert caught.value.code == "WINDOW"
    assert replace(world.descriptor, not_after=start + 1).not_after == start + 1


def test_is_a_frozen_value_with_float_views(world):
    with pytest.raises(FrozenInstanceError):
        world.descriptor.clip_norm_micro = 5
    assert world.descriptor.bounds.clip_norm == 1.0
    assert world.descriptor.bounds.noise_multiplier == 1.1


def test_nonce_is_fresh_for_every_descriptor(world):
    digests = {world.template.descriptor(bytes(32)).digest() for _ in range(50)}
    assert len(digests) == 50
