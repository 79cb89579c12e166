"""The strict codec: hand-listed rejects, and properties against an independent decoder; RFC vectors are in `tests/vectors`."""

import enum
import math
import random
import struct
import time
from decimal import Decimal

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor
from attest.errors import AttestError, CborError

KEYS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=40)
    | st.text(max_size=40)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def same(a, b):
    """Equal in value and in type at every level, and in the sign of zero."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return [(type(k), k) for k in sorted(a, key=repr)] == [(type(k), k) for k in sorted(b, key=repr)] and all(
            same(a[k], b[k]) for k in a
        )
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    return a == b


def depth_of(value):
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


# The values of RFC 8949 Appendix A that lie outside the subset, and the traps of general decoders.
REJECTED = {
    "uint above 2^63-1": ("1bffffffffffffffff", "RANGE"),
    "uint 2^63": ("1b8000000000000000", "RANGE"),
    "nint below -2^63": ("3bffffffffffffffff", "RANGE"),
    "positive bignum": ("c249010000000000000000", "CBOR_NONCANONICAL"),
    "negative bignum": ("c349010000000000000000", "CBOR_NONCANONICAL"),
    "half infinity": ("f97c00", "RANGE"),
    "half NaN": ("f97e00", "RANGE"),
    "half minus infinity": ("f9fc00", "RANGE"),
    "single infinity": ("fa7f800000", "RANGE"),
    "single NaN": ("fa7fc00000", "RANGE"),
    "single minus infinity": ("faff800000", "RANGE"),
    "double infinity": ("fb7ff0000000000000", "RANGE"),
    "double NaN": ("fb7ff8000000000000", "RANGE"),
    "double minus infinity": ("fbfff0000000000000", "RANGE"),
    "NaN with payload": ("f97e01", "RANGE"),
    "undefined": ("f7", "CBOR_NONCANONICAL"),
    "simple 16": ("f0", "CBOR_NONCANONICAL"),
    "simple 24": ("f818", "CBOR_NONCANONICAL"),
    "simple 255": ("f8ff", "CBOR_NONCANONICAL"),
    "false in two bytes": ("f814", "CBOR_NONCANONICAL"),
    "tag 0, date text": ("c074323031332d30332d32315432303a30343a30305a", "CBOR_NONCANONICAL"),
    "tag 1, epoch": ("c11a514b67b0", "CBOR_NONCANONICAL"),
    "tag 1, float epoch": ("c1fb41d452d9ec200000", "CBOR_NONCANONICAL"),
    "tag 23": ("d74401020304", "CBOR_NONCANONICAL"),
    "tag 24, embedded": ("d818456449455446", "CBOR_NONCANONICAL"),
    "tag 32, URI": ("d82076687474703a2f2f7777772e6578616d706c652e636f6d", "CBOR_NONCANONICAL"),
    "tag 35, regex": ("d8236161", "CBOR_NONCANONICAL"),
    "tag 37, UUID": ("d82550" + "00" * 16, "CBOR_NONCANONICAL"),
    "tag 258, set": ("d9010281" + "01", "CBOR_NONCANONICAL"),
    "tags 28 and 29, self reference": ("d81c81d81d00", "CBOR_NONCANONICAL"),
    "tags 256 and 25, string reference": ("d90100826361616ad81900", "CBOR_NONCANONICAL"),
    "tag 55799, self-described": ("d9d9f701", "CBOR_NONCANONICAL"),
    "unknown tag": ("da0001000001", "CBOR_NONCANONICAL"),
    "indefinite bytes": ("5f42010243030405ff", "CBOR_NONCANONICAL"),
    "indefinite text": ("7f657374726561646d696e67ff", "CBOR_NONCANONICAL"),
    "indefinite empty array": ("9fff", "CBOR_NONCANONICAL"),
    "indefinite nested arrays": ("9f018202039f0405ffff", "CBOR_NONCANONICAL"),
    "indefinite outer array": ("9f01820203820405ff", "CBOR_NONCANONICAL"),
    "indefinite last array": ("83018202039f0405ff", "CBOR_NONCANONICAL"),
    "indefinite middle array": ("83019f0203ff820405", "CBOR_NONCANONICAL"),
    "indefinite long array": ("9f0102030405060708090a0b0c0d0e0f101112131415161718181819ff", "CBOR_NONCANONICAL"),
    "indefinite map": ("bf61610161629f0203ffff", "CBOR_NONCANONICAL"),
    "indefinite inner map": ("826161bf61626163ff", "CBOR_NONCANONICAL"),
    "indefinite map of two": ("bf6346756ef563416d7421ff", "CBOR_NONCANONICAL"),
    "lone break": ("ff", "CBOR"),
    "length-first key order": ("a220001864" + "00", "CBOR_NONCANONICAL"),
    "repeated key": ("a201000100", "CBOR_NONCANONICAL"),
    "float key": ("a1f93c0001", "CBOR_NONCANONICAL"),
    "true as key": ("a1f501", "CBOR_NONCANONICAL"),
    "null as key": ("a1f601", "CBOR_NONCANONICAL"),
    "simple as key": ("a1e101", "CBOR_NONCANONICAL"),
    "bytes as key": ("a1410101", "CBOR_NONCANONICAL"),
    "array as key": ("a1800" + "1", "CBOR_NONCANONICAL"),
    "bignum as key": ("a1c2490100000000000000" + "0001", "CBOR_NONCANONICAL"),
    "1 and 1.0 as keys": ("a20100f93c0000", "CBOR_NONCANONICAL"),
    "long 0": ("1800", "CBOR_NONCANONICAL"),
    "long 23": ("1817", "CBOR_NONCANONICAL"),
    "two-byte 255": ("1900ff", "CBOR_NONCANONICAL"),
    "four-byte 65535": ("1a0000ffff", "CBOR_NONCANONICAL"),
    "eight-byte 2^32-1": ("1b00000000ffffffff", "CBOR_NONCANONICAL"),
    "long length of bytes": ("580101", "CBOR_NONCANONICAL"),
    "long length of text": ("780161", "CBOR_NONCANONICAL"),
    "long length of array": ("980101", "CBOR_NONCANONICAL"),
    "long length of map": ("b8010101", "CBOR_NONCANONICAL"),
    "single for 1.5": ("fa3fc00000", "CBOR_NONCANONICAL"),
    "double for 1.5": ("fb3ff8000000000000", "CBOR_NONCANONICAL"),
    "double for 100000.0": ("fb40f86a0000000000", "CBOR_NONCANONICAL"),
    "double zero": ("fb0000000000000000", "CBOR_NONCANONICAL"),
    "trailing byte": ("0100", "CBOR"),
    "empty input": ("", "CBOR"),
    "truncated head": ("19", "CBOR"),
    "truncated float": ("f93c", "CBOR"),
    "truncated bytes": ("4201", "CBOR"),
    "truncated array": ("8201", "CBOR"),
    "truncated map": ("a101", "CBOR"),
    "bytes of 2^63": ("5b8000000000000000", "CBOR"),
    "text of 2^63": ("7b8000000000000000", "CBOR"),
    "array of 2^63": ("9b8000000000000000", "CBOR"),
    "map of 2^63": ("bb8000000000000000", "CBOR"),
    "reserved head 28": ("1c", "CBOR"),
    "reserved head 30 of array": ("9e", "CBOR"),
    "indefinite uint": ("1f", "CBOR"),
    "reserved simple 28": ("fc", "CBOR"),
    "text, bare continuation": ("6180", "CBOR"),
    "text, overlong slash": ("62c0af", "CBOR"),
    "text, lone surrogate": ("63eda080", "CBOR"),
    "text, above U+10FFFF": ("64f4908080", "CBOR"),
    "text, cut in a character": ("61c3", "CBOR"),
    "nine arrays": ("81" * 9 + "00", "CBOR_NONCANONICAL"),
    "nine maps": ("a100" * 9 + "00", "CBOR_NONCANONICAL"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_refuses(name):
    text, code = REJECTED[name]
    with pytest.raises(CborError) as caught:
        cbor.decode(bytes.fromhex(text))
    assert caught.value.code == code
    assert str(caught.value).startswith(code + ": ")


@pytest.mark.parametrize("text", ["1b7fffffffffffffff", "3b7fffffffffffffff", "81" * 8 + "00", "a2186400" + "2000"])
def test_accepts_the_edges_of_the_subset(text):
    data = bytes.fromhex(text)
    assert cbor.encode(cbor.decode(data)) == data


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_round_trip_and_agreement_with_an_independent_decoder(value):
    if depth_of(value) > 8:
        return
    data = cbor.encode(value)
    assert same(cbor.decode(data), value)
    assert same(cbor2.loads(data), value)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, 2**63 - 1), SCALARS, max_size=6))
def test_maps_with_unsigned_keys_equal_canonical_cbor2(value):
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_refused_or_reencode_to_themselves(data):
    try:
        value = cbor.decode(data)
    except CborError:
        return
    assert cbor.encode(value) == data


def test_mutations_of_a_document_are_refused_or_reencode_to_themselves():
    rng = random.Random(20260101)
    document = cbor.encode({1: "x", 2: [1, 1.5, None, True, b"12"], 3: {"a": 2**40, "bb": -7}, 100: "ü" * 9})
    accepted = 0
    for _ in range(20000):
        data = bytearray(document)
        for _ in range(rng.randint(1, 3)):
            position, kind = rng.randrange(len(data)), rng.randrange(3)
            if kind == 0:
                data[position] ^= 1 << rng.randrange(8)
            elif kind == 1:
                data[position : position + 1] = b""
            else:
                data.insert(position, rng.randrange(256))
        try:
            value = cbor.decode(bytes(data))
        except CborError:
            continue
        accepted += 1
        assert cbor.encode(value) == bytes(data)
    assert accepted > 100


def test_size_is_checked_first():
    with pytest.raises(CborError) as caught:
        cbor.decode(b"\xff" * 16385)
    assert caught.value.code == "SIZE"
    assert cbor.decode(cbor.encode(b"x" * 20000), max_size=30000) == b"x" * 20000


def test_a_million_tiny_map_keys_cost_bounded_time():
    data = b"\xba\x00\x0f\x42\x40" + b"\x00\x00" * 1_000_000
    started = time.perf_counter()
    with pytest.raises(CborError):
        cbor.decode(data)
    assert time.perf_counter() - started < 0.1
    # Within the size limit, keys that collide in Python's dict are limited by the 64-bit range.
    colliding = {k * (2**61 - 1): 0 for k in range(-4, 4)}
    assert cbor.decode(cbor.encode(colliding)) == colliding


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Text("x"),
        Decimal(1),
        {1, 2},
        object(),
        bytearray(b"x"),
        1j,
        {1.0: 2},
        {True: 1},
        {b"x": 1},
        {None: 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_encoder_refuses_other_types(value):
    with pytest.raises(CborError) as caught:
        cbor.encode(value)
    assert caught.value.code == "TYPE"


def test_encoder_refuses_numpy_scalars():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float64(1), numpy.float32(1), numpy.int64(1), numpy.bool_(True)):
        with pytest.raises(CborError):
            cbor.encode([value])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, "\ud800"], ids=ascii)
def test_encoder_refuses_values_out_of_range(value):
    with pytest.raises(CborError) as caught:
        cbor.encode(value)
    assert caught.value.code == "RANGE"


def test_encoder_refuses_deep_and_cyclic_values():
    cycle = []
    cycle.append(cycle)
    with pytest.raises(CborError):
        cbor.encode(cycle)
    deep = 0
    for _ in range(9):
        deep = [deep]
    with pytest.raises(CborError):
        cbor.encode(deep)
    assert cbor.decode(cbor.encode(deep, max_depth=9), max_depth=9) == deep


def test_tuples_are_arrays():
    assert cbor.encode((1, (2, 3))) == cbor.encode([1, [2, 3]])


@pytest.mark.parametrize("data", ["00", bytearray(b"\x00"), memoryview(b"\x00"), None])
def test_decoder_takes_bytes_only(data):
    with pytest.raises(CborError) as caught:
        cbor.decode(data)
    assert caught.value.code == "TYPE"


def test_prefix_reads_a_sequence_item_by_item():
    items = [1, [b"x", {"a": None}], "text", 1.5]
    data = b"".join(map(cbor.encode, items))
    at, found = 0, []
    while at < len(data):
        value, at = cbor.decode_prefix(data, at, max_size=64)
        found.append(value)
    assert found == items


def test_prefix_tells_an_oversized_item_from_a_truncated_one():
    data = cbor.encode(b"x" * 100)
    with pytest.raises(CborError) as caught:
        cbor.decode_prefix(data, 0, max_size=50)
    assert caught.value.code == "SIZE"
    with pytest.raises(CborError) as caught:
        cbor.decode_prefix(data[:60], 0, max_size=200)
    assert caught.value.code == "CBOR"
    with pytest.raises(CborError):
        cbor.decode_prefix(data, 1000, max_size=50)


def test_errors_are_one_tree_and_value_errors():
    with pytest.raises(ValueError) as caught:
        cbor.decode(b"")
    assert isinstance(caught.value, AttestError)
    assert caught.value.code == "CBOR" and caught.value.sentence


EDGES = st.sampled_from([23, 24, 255, 256, 65535, 65536])
RECORD_VALUES = st.lists(st.binary(max_size=300) | st.integers(0, 2**40) | EDGES | VALUES)


def assert_the_shortcut_is_the_decoder(data: bytes) -> None:
    try:
        values = cbor.record_values(data)
    except CborError:
        with pytest.raises(CborError):
            cbor.decode(data)
        return
    if values is not None:
        assert (found := cbor.decode(data)) == dict(enumerate(values)) and list(found) == list(range(len(values)))
        assert cbor.encode(dict(enumerate(values))) == data


@settings(max_examples=300)
@given(RECORD_VALUES, st.data())
def test_the_shortcut_for_records_returns_what_the_decoder_returns(values, data):
    encoded = cbor.encode(dict(enumerate(values)))
    assert cbor.record_values(encoded) == (values if 0 < len(values) < 24 else None)
    changed = bytearray(encoded)
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    for other in (bytes(changed), encoded[:-1], encoded + b"\0", encoded[: data.draw(st.integers(0, len(encoded)))]):
        assert_the_shortcut_is_the_decoder(other)


@pytest.mark.parametrize(
    "hexed",
    [
        "a1001817", "a1001900ff", "a1001a0000ffff", "a1005817" + "00" * 23, "a10058", "a100581800", "a10043ff",
        "a1001a00010000", "a1001a0001", "a0", "a10100", "a20000000", "a2000001", "a1", "a100c000",
        "a1009fff", "b80100", "a1005900ff",
    ],
)  # fmt: skip
def test_no_second_encoding_passes_the_shortcut(hexed):
    data = bytes.fromhex(hexed if len(hexed) % 2 == 0 else hexed[:-1])
    assert_the_shortcut_is_the_decoder(data)


def test_the_shortcut_takes_bytes_alone():
    assert cbor.record_values(bytearray(b"\xa1\x00\x00")) is None and cbor.record_values(b"\xa1\x00\x00") == [0]
