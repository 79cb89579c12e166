"""Cutting a descriptor without decoding it: at its fields, wherever they lie, and nowhere else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest.descriptor import MAX_MICRO, ContributionDescriptor, split

IDS = st.text(alphabet="abz09._/-", min_size=1, max_size=64)
SIZES = st.sampled_from([1, 23, 24, 255, 256, 65535, 65536, 0x075820, 0x0A50, 2**32 - 1, 2**32, MAX_MICRO, 0x7582007582])
TIMES = st.sampled_from([0, 23, 24, 255, 256, 0x0A50, 65535, 65536, 0x0A500A50, 0x075820, 253402300798])


@given(contributor=IDS, data_class=IDS, admissibility_class=IDS, corpus=IDS, clip=SIZES, noise=SIZES, start=TIMES)
def test_every_descriptor_is_cut_at_its_hash_and_its_nonce(
    contributor, data_class, admissibility_class, corpus, clip, noise, start
):
    descriptor = ContributionDescriptor(
        contributor=contributor,
        data_class=data_class,
        admissibility_class=admissibility_class,
        clip_norm_micro=clip,
        noise_multiplier_micro=noise,
        content_hash=b"\x07\x58\x20\x0a\x50" + bytes(27),
        not_before=start,
        not_after=253402300799,
        nonce=b"\x0a\x50\x07\x58\x20" + bytes(11),
        corpus=corpus,
    )
    parts = split(descriptor.to_cbor())
    assert parts is not None
    assert (parts.content_hash, parts.nonce) == (descriptor.content_hash, descriptor.nonce)
    assert parts.join() == descriptor.to_cbor()


def test_whatever_is_cut_off_has_a_whole_hash_and_a_whole_nonce_or_no_parts(world):
    whole = replace(world.descriptor, principal="ann", max_examples=2).to_cbor()
    for end in range(len(whole)):
        parts = split(whole[:end])
        assert parts is None or (len(parts.content_hash), len(parts.nonce), parts.join()) == (32, 16, whole[:end])


@pytest.mark.parametrize("key", [7, 10])
def test_fields_under_other_keys_are_no_hash_and_no_nonce(world, key):
    whole = world.descriptor.to_cbor()
    mark = {7: b"\x07\x58\x20", 10: b"\x0a\x50"}[key]
    at = whole.index(mark)
    for place in range(len(mark)):
        other = bytearray(whole)
        other[at + place] ^= 1
        parts = split(bytes(other))
        assert parts is None or parts.join() == bytes(other)
        assert parts is None
