"""Items of an attestation file at every edge: lengths, heads, ends, and the largest item allowed."""

import io

import pytest

from attest import cbor
from attest.attestation import MAX_SIZE, Attestation, read_at, read_places, read_sequence
from attest.errors import CborError

EDGES = (0, 1, 22, 23, 24, 25, 254, 255, 256, 257, 1000)


def read_as_the_decoder_reads(data):
    triple = cbor.byte_string_triple(data, 0)
    if triple is not None:
        value, end = cbor.decode_prefix(data, 0, max_size=1 << 20)
        assert triple == (*value, end)
    return triple


@pytest.mark.parametrize("first", EDGES)
def test_three_that_are_cut_off_are_left_to_the_decoder(first):
    for second in EDGES:
        for third in (0, 23, 24, 256):
            whole = cbor.encode([b"a" * first, b"b" * second, b"c" * third])
            assert read_as_the_decoder_reads(whole) == (b"a" * first, b"b" * second, b"c" * third, len(whole))
            for end in {0, 1, 2, 3, first, first + 1, first + 4, first + 5, first + 6, first + second + 6, len(whole) - 1}:
                if end < len(whole):
                    assert cbor.byte_string_triple(whole[:end], 0) is None


@pytest.mark.parametrize("length", EDGES)
def test_heads_that_are_longer_than_needed_are_left_to_the_decoder(length):
    body = b"x" * length
    heads = {1: bytes((0x58, length & 255)), 2: b"\x59" + length.to_bytes(2, "big"), 4: b"\x5a" + length.to_bytes(4, "big")}
    for width, head in heads.items():
        shortest = {1: 24 <= length < 256, 2: length >= 256, 4: False}[width]
        for data in (b"\x83" + head + body + b"\x40\x40", b"\x83\x40" + head + body + b"\x40", b"\x83\x40\x40" + head + body):
            if width == 1 and length > 255:
                continue
            assert (cbor.byte_string_triple(data, 0) is not None) is shortest
            read_as_the_decoder_reads(data)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("head", range(256))
def test_other_heads_are_left_to_the_decoder(head):
    for data in (
        bytes((head,)) + b"\x40\x40\x40",
        b"\x83" + bytes((head,)) + bytes(300),
        b"\x83\x40" + bytes((head,)) + bytes(300),
        b"\x83\x40\x40" + bytes((head,)) + bytes(300),
    ):
        try:
            read_as_the_decoder_reads(data)
        except CborError:
            pytest.fail(f"read what the decoder refuses: {data[:4].hex()}")


@pytest.mark.parametrize("before", [0, 3, 40])
def test_the_largest_item_is_read_and_one_byte_more_ends_the_file(before):
    small = Attestation(b"d", b"s", b"o")
    largest = Attestation(b"d" * 16384, b"s" * (MAX_SIZE - 16384 - 308), b"o" * 298)
    assert len(largest.to_cbor()) == MAX_SIZE
    larger = Attestation(largest.descriptor, largest.sign1 + b"s", largest.opening)
    head = small.to_cbor() * before
    assert list(read_sequence(io.BytesIO(head + largest.to_cbor() + small.to_cbor()))) == [small] * before + [largest, small]
    found = read_sequence(io.BytesIO(head + larger.to_cbor() + small.to_cbor()))
    assert [next(found) for _ in range(before)] == [small] * before
    with pytest.raises(CborError, match="SIZE"):
        next(found)


def test_places_are_where_the_items_begin_across_pieces_of_the_file():
    items = [Attestation(bytes([n % 251]) * (n * 37 % 16000), b"s" * (n % 300), b"o" * (n % 400)) for n in range(600)]

    class Dribble(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 7001))

    data = b"".join(item.to_cbor() for item in items)
    for stream in (io.BytesIO(data), Dribble(data)):
        found = list(read_places(stream))
        assert [item for _, item in found] == items
        assert [place for place, _ in found] == [0, *_ends(items)][:-1]
    for place, item in found:
        assert read_at(io.BytesIO(data), place) == item


def _ends(items):
    end = 0
    for item in items:
        end += len(item.to_cbor())
        yield end
