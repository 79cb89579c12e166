"""Cutting a descriptor and its opening without decoding them: at their fields, wherever they lie, and nowhere else."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attest.descriptor import MAX_MICRO, ContributionDescriptor, Opener, claimed_content, split
from attest.errors import AttestError

IDS = st.text(alphabet="abz09._/-", min_size=1, max_size=64)
SIZES = st.sampled_from([1, 23, 24, 255, 256, 65535, 65536, 0x075820, 0x0A50, 2**32 - 1, 2**32, MAX_MICRO, 0x7582007582])
TIMES = st.sampled_from([0, 23, 24, 255, 256, 0x0A50, 65535, 65536, 0x0A500A50, 0x075820, 253402300798])


@given(contributor=IDS, data_class=IDS, admissibility_class=IDS, corpus=IDS, clip=SIZES, noise=SIZES, start=TIMES)
def test_every_descriptor_and_opening_is_cut_where_contributions_differ(
    contributor, data_class, admissibility_class, corpus, clip, noise, start
):
    descriptor = ContributionDescriptor(
        contributor=contributor,
        data_class=data_class,
        admissibility_class=admissibility_class,
        clip_norm_micro=clip,
        noise_multiplier_micro=noise,
        content_hash=b"\x01\x50\x02\x58\x20" + bytes(27),
        not_before=start,
        not_after=253402300799,
        nonce=b"\x02\x58\x20\x01\x50" + bytes(11),
        corpus=corpus,
    )
    data, opening = descriptor.to_cbor(), descriptor.opening()
    parts = split(data, opening)
    assert parts is not None
    assert parts[1:] == (descriptor.signed.content, descriptor.nonce, descriptor.content_hash)
    assert parts.join() == (data, opening) and claimed_content(opening) == descriptor.content_hash


def test_whatever_is_cut_off_has_whole_parts_or_none(world):
    whole = replace(world.descriptor, principal="ann", max_examples=2)
    data, opening = whole.to_cbor(), whole.opening()
    ends = [(data[:end], opening) for end in range(len(data))] + [(data, opening[:end]) for end in range(len(opening))]
    cut = 0
    for pair in ends:
        parts = split(*pair)
        if parts is not None:
            cut += 1
            assert parts.join() == pair and [len(part) for part in parts[1:]] == [32, 16, 32]
    assert 100 < cut < len(ends)


@pytest.mark.parametrize("mark", [b"\x07\x58\x20", b"\x01\x50", b"\x02\x58\x20"])
def test_fields_under_other_keys_are_not_cut_out(world, mark):
    data, opening = world.descriptor.to_cbor(), world.descriptor.opening()
    in_descriptor = mark[0] == 7
    whole = data if in_descriptor else opening
    at = whole.index(mark)
    for place in range(len(mark)):
        other = bytearray(whole)
        other[at + place] ^= 1
        assert split(bytes(other), opening) is None if in_descriptor else split(data, bytes(other)) is None


def test_an_opener_opens_what_open_does_and_shares_what_is_the_same(world):
    """Descriptors of two forms, and each with a byte of descriptor or opening changed: the same value, or the same error."""
    forms = [world.descriptor, replace(world.descriptor, principal="ann", max_examples=2)]
    opener, made = Opener(), []
    for number in range(6):
        descriptor = replace(forms[number % 2], content_hash=bytes([number]) * 32, nonce=bytes([7 * number]) * 16)
        made.append((descriptor.to_cbor(), descriptor.opening()))
        opened = opener.open(*made[-1])
        assert opened == descriptor and (opened.to_cbor(), opened.opening()) == made[-1]
    assert len(opener._known) == 2
    for which, part in enumerate(made[0]):
        for at in range(len(part)):
            changed = list(made[0])
            changed[which] = part[:at] + bytes([part[at] ^ 1 << at % 8]) + part[at + 1 :]
            assert told(opener.open, *changed) == told(ContributionDescriptor.open, *changed), (which, at)


def told(work, *arguments):
    """What a call returns, or the code and the sentence of its error."""
    try:
        return work(*arguments)
    except AttestError as error:
        return error.code, error.sentence


def test_an_opener_remembers_a_bounded_number_of_forms(world):
    opener = Opener(most=2)
    for clip in (1, 2, 3, 1, 2, 3):
        descriptor = replace(world.descriptor, clip_norm_micro=clip)
        assert opener.open(descriptor.to_cbor(), descriptor.opening()) == descriptor
        assert len(opener._known) <= 2
