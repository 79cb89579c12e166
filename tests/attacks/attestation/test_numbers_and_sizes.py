"""Attacks by numbers and sizes, A16 to A19: bounds at the edge, NaN, other types, large and deep data.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import math
import struct
import time
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from attest import cbor
from attest.corpus import open_corpus
from attest.descriptor import MAX_COUNT, MAX_MICRO, ContributionDescriptor
from attest.errors import AttestError, DescriptorRefused
from attest.gate import run_gate
from attest.schema.plain import MAX_TIME
from tests.attacks.scene import (
    OPENING,
    attested,
    descriptor,
    descriptor_fields,
    header_fields,
    sealed,
    signed,
)
from tests.worlds.gate import (
    MICRO,
    NOW,
)

# --- A16: bounds at the edge ----------------------------------------------------------

BOUNDS = {
    "clip norm equal to the class": ({5: MICRO}, "ADMITTED"),
    "clip norm 1e-6 stricter": ({5: MICRO - 1}, "ADMITTED"),
    "clip norm 1e-6 looser": ({5: MICRO + 1}, "CLIP_ABOVE_CLASS"),
    "clip norm largest": ({5: MAX_MICRO}, "CLIP_ABOVE_CLASS"),
    "clip norm equal to the floor": ({5: 10_000}, "ADMITTED"),
    "clip norm 1e-6 above the floor": ({5: 10_001}, "ADMITTED"),
    "clip norm 1e-6 below the floor": ({5: 9_999}, "CLIP_BELOW_FLOOR"),
    "clip norm smallest": ({5: 1}, "CLIP_BELOW_FLOOR"),
    "noise equal to the class": ({6: 1_100_000}, "ADMITTED"),
    "noise 1e-6 stricter": ({6: 1_100_001}, "ADMITTED"),
    "noise 1e-6 looser": ({6: 1_099_999}, "NOISE_BELOW_CLASS"),
    "noise smallest": ({6: 1}, "NOISE_BELOW_CLASS"),
    "noise largest": ({6: MAX_MICRO}, "ADMITTED"),
    "examples equal to the policy": ({13: 4}, "ADMITTED"),
    "examples one fewer": ({13: 3}, "ADMITTED"),
    "examples one more": ({13: 5}, "EXAMPLES"),
    "examples most": ({13: MAX_COUNT}, "EXAMPLES"),
    "both bounds looser": ({5: MICRO + 1, 6: 1_099_999}, "CLIP_ABOVE_CLASS"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_A16_bounds_are_exact_to_one_millionth(scene, name):
    changes, code = BOUNDS[name]
    assert scene.code(signed(changes)) == code


@pytest.mark.parametrize(("noise", "code"), [(500_000, "ADMITTED"), (500_001, "ADMITTED"), (499_999, "NOISE_BELOW_FLOOR")])
def test_A16_the_floor_of_the_noise_holds_whatever_the_class_says(scene, noise, code):
    """A policy cannot set a class below the floor; the gate does not rely on that."""
    rules = tuple(replace(rule, noise_multiplier_micro=500_000) for rule in scene.policy.classes)
    policy = replace(scene.policy, classes=rules)
    object.__setattr__(policy.classes[0], "noise_multiplier_micro", 1)
    assert scene.code(signed({6: noise}), policy=policy) == code


@pytest.mark.parametrize("preset", [1, 2**49 + 1, MAX_MICRO - 1])
def test_A16_bounds_are_exact_where_doubles_are_not(scene, preset):
    rules = tuple(replace(rule, clip_norm_micro=preset, noise_multiplier_micro=preset) for rule in scene.policy.classes)
    policy = replace(scene.policy, classes=rules, min_clip_norm_micro=1, min_noise_multiplier_micro=1)
    assert scene.code(signed({5: preset, 6: preset}), policy=policy) == "ADMITTED"
    assert scene.code(signed({5: preset + 1, 6: preset}), policy=policy) == "CLIP_ABOVE_CLASS"
    if preset > 1:
        assert scene.code(signed({5: preset, 6: preset - 1}), policy=policy) == "NOISE_BELOW_CLASS"


# --- A17, A18: numbers that are none ----------------------------------------------------------

MICRO_FIELDS = (5, 6)
UINT_FIELDS = (5, 6, 8, 9, 12, 13)


def with_raw(field, encoded):
    """A descriptor in which one field holds bytes that no encoder of ours would write."""
    fields = descriptor_fields() | ({13: 1} if field == 13 else {})
    parts = [cbor.encode(key) + (encoded if key == field else cbor.encode(value)) for key, value in fields.items()]
    return bytes((0xA0 | len(fields),)) + b"".join(parts)


NANS = ["f97e00", "f97e01", "f9fe00", "f97c01", "fa7fc00000", "faffc00000", "fa7f800001", "fb7ff8000000000000",
        "fbfff8000000000000", "fb7ff0000000000001", "fb7fffffffffffffff"]  # fmt: skip


@pytest.mark.parametrize("text", NANS)
def test_A17_a_NaN_bound_is_RANGE(scene, text):
    data = bytes.fromhex(text)
    assert math.isnan(struct.unpack({3: ">e", 5: ">f", 9: ">d"}[len(data)], data[1:])[0])
    for field in UINT_FIELDS:
        assert scene.code(signed(payload=with_raw(field, bytes.fromhex(text)))) == "RANGE"


def test_A17_no_object_holds_a_NaN_either(scene):
    descriptor_object = ContributionDescriptor.open(descriptor(), OPENING)
    for name in ("clip_norm_micro", "noise_multiplier_micro", "not_before", "not_after"):
        with pytest.raises(DescriptorRefused) as caught:
            replace(descriptor_object, **{name: float("nan")})
        assert caught.value.code == "TYPE"
    with pytest.raises(AttestError):
        replace(scene.policy, min_noise_multiplier_micro=float("nan"))
    with pytest.raises(AttestError):
        replace(scene.policy.classes[0], noise_multiplier_micro=float("nan"))


@pytest.mark.parametrize("variance", [float("nan"), float("inf"), -float("inf"), -1e-300, 1, "1.5", True, None])
def test_A17_no_leaf_of_the_ledger_holds_a_NaN(variance):
    from ledger.errors import LeafRefused
    from ledger.leaves import Settle

    fields = {"seq": 3, "time": NOW, "window": 1, "steps_released": 1}
    Settle(**fields, variances=(1.5,))
    with pytest.raises(LeafRefused):
        Settle(**fields, variances=(variance,))


ON_THE_WIRE = {
    "half infinity": ("f97c00", "RANGE"),
    "half minus infinity": ("f9fc00", "RANGE"),
    "single infinity": ("fa7f800000", "RANGE"),
    "single minus infinity": ("faff800000", "RANGE"),
    "double infinity": ("fb7ff0000000000000", "RANGE"),
    "double minus infinity": ("fbfff0000000000000", "RANGE"),
    "minus zero": ("f98000", "TYPE"),
    "minus zero, double": ("fb8000000000000000", "CBOR_NONCANONICAL"),
    "zero as float": ("f90000", "TYPE"),
    "one as float": ("f93c00", "TYPE"),
    "a million as float": ("fa49742400", "TYPE"),
    "float with a fraction": ("fb3ff199999999999a", "TYPE"),
    "2^53 as float": ("fa5a000000", "TYPE"),
    "true": ("f5", "TYPE"),
    "false": ("f4", "TYPE"),
    "null": ("f6", "TYPE"),
    "undefined": ("f7", "CBOR_NONCANONICAL"),
    "2^63": ("1b8000000000000000", "RANGE"),
    "2^64-1": ("1bffffffffffffffff", "RANGE"),
    "2^63-1": ("1b7fffffffffffffff", "RANGE"),
    "-1": ("20", "RANGE"),
    "-2^63": ("3b7fffffffffffffff", "RANGE"),
    "-2^63-1": ("3b8000000000000000", "RANGE"),
    "-2^64": ("3bffffffffffffffff", "RANGE"),
    "bignum 2^64": ("c249010000000000000000", "CBOR_NONCANONICAL"),
    "bignum 1": ("c24101", "CBOR_NONCANONICAL"),
    "negative bignum": ("c34100", "CBOR_NONCANONICAL"),
    "decimal fraction": ("c4822001", "CBOR_NONCANONICAL"),
    "bigfloat": ("c5822001", "CBOR_NONCANONICAL"),
    "rational": ("d81e820102", "CBOR_NONCANONICAL"),
    "numeric text": ("6731303030303030", "TYPE"),
    "empty text": ("60", "TYPE"),
    "bytes": ("43" + "0f4240", "TYPE"),
    "array": ("811a000f4240", "TYPE"),
    "map": ("a1011a000f4240", "TYPE"),
    "date": ("c11a000f4240", "CBOR_NONCANONICAL"),
    "a million in eight bytes": ("1b00000000000f4240", "CBOR_NONCANONICAL"),
}


@pytest.mark.parametrize("name", ON_THE_WIRE)
def test_A18_numbers_of_another_type_or_range_are_TYPE_or_RANGE(scene, name):
    text, code = ON_THE_WIRE[name]
    for field in UINT_FIELDS:
        wanted = "CBOR_NONCANONICAL" if (name, field) == ("null", 13) else code  # an optional field is left out, not null
        assert scene.code(signed(payload=with_raw(field, bytes.fromhex(text)))) == wanted, field


def test_A18_zero_is_RANGE_where_it_has_no_meaning(scene):
    for field, code in ((5, "RANGE"), (6, "RANGE"), (13, "RANGE"), (12, "ADMITTED"), (8, "WINDOW"), (9, "WINDOW")):
        assert scene.code(signed(payload=with_raw(field, b"\x00"))) == code


def test_A18_each_field_has_its_own_largest_value(scene):
    last = MAX_TIME - 1
    for field, largest in ((5, MAX_MICRO), (6, MAX_MICRO), (8, last), (9, last), (12, MAX_COUNT), (13, MAX_COUNT)):
        assert scene.code(signed(payload=with_raw(field, cbor.encode(largest)))) != "RANGE"
        assert scene.code(signed(payload=with_raw(field, cbor.encode(largest + 1)))) == "RANGE"


class Number(int):
    """Equal to an int, but no int."""


@pytest.mark.parametrize(
    "value",
    [True, 1.0, -0.0, float("inf"), float("nan"), "1000000", Decimal(1), Fraction(1), None, b"1", 1 + 0j, Number(1), [1]],
    ids=repr,
)
def test_A18_what_merely_equals_a_number_is_TYPE_in_an_object(value):
    descriptor_object = ContributionDescriptor.open(descriptor({13: 1}), OPENING)
    for name in ("clip_norm_micro", "noise_multiplier_micro", "not_before", "not_after", "max_occurrences", "max_examples"):
        if name == "max_examples" and value is None:
            continue
        with pytest.raises(DescriptorRefused) as caught:
            replace(descriptor_object, **{name: value})
        assert caught.value.code == "TYPE"


@pytest.mark.parametrize("length", [0, 15, 17, 31, 33, 64])
def test_A18_digests_nonces_and_salts_of_another_length_are_RANGE(scene, length):
    for field in (2, 3, 7, 10, "content hash", "nonce", "salts"):
        assert scene.code(signed({field: bytes(length)})) == "RANGE"
        assert scene.code(signed({field: "x" * length})) == "TYPE"


# --- A19: size, depth, time ----------------------------------------------------------

_KEYS = b"".join(cbor.encode(key) + b"\x00" for key in range(4000))
LARGE = {
    "16385 bytes": (b"\x00" * 16385, "SIZE"),
    "a mebibyte": (b"\x81" * (1 << 20), "SIZE"),
    "a million tiny map keys": (b"\xba\x00\x0f\x42\x40" + b"\x00\x00" * 1_000_000, "SIZE"),
    "4000 distinct map keys": (b"\xb9\x0f\xa0" + _KEYS, "SCHEMA"),
    "4000 map keys, all the same": (b"\xb9\x0f\xa0" + b"\x00\x00" * 4000, "CBOR_NONCANONICAL"),
    "bytes of 2^63": (b"\x5b\x80" + bytes(7), "CBOR"),
    "text of 2^63": (b"\x7b\x80" + bytes(7), "CBOR"),
    "array of 2^63": (b"\x9b\x80" + bytes(7), "CBOR"),
    "map of 2^63": (b"\xbb\x80" + bytes(7), "CBOR"),
    "bytes of 2^64-1": (b"\x5b" + b"\xff" * 8, "CBOR"),
    "array of 2^64-1": (b"\x9b" + b"\xff" * 8, "CBOR"),
    "map of 2^64-1": (b"\xbb" + b"\xff" * 8, "CBOR"),
    "map of 2^32 in a field": (b"\xac\x01\xba\xff\xff\xff\xff", "CBOR"),
    "array of more than there is": (b"\x99\x40\x00" + b"\x00" * 16000, "CBOR"),
    "nine arrays": (b"\x81" * 9 + b"\x00", "CBOR_NONCANONICAL"),
    "nine maps": (b"\xa1\x00" * 9 + b"\x00", "CBOR_NONCANONICAL"),
    "16384 arrays in one another": (b"\x81" * 16384, "CBOR_NONCANONICAL"),
    "8000 maps in one another": (b"\xa1\x00" * 8000 + b"\x00", "CBOR_NONCANONICAL"),
    "8000 indefinite arrays": (b"\x9f" * 8000 + b"\xff" * 8000, "CBOR_NONCANONICAL"),
    "16000 tags": (b"\xc2" * 16000 + b"\x40", "CBOR_NONCANONICAL"),
    "16000 elements": (b"\x99\x3e\x80" + b"\x00" * 16000, "TYPE"),
    "5000 empty arrays": (b"\x99\x13\x88" + b"\x80" * 5000, "TYPE"),
    "a class of 16000 bytes": (descriptor({4: "a" * 16000}), "RANGE"),
    "a commitment of 16000 bytes": (descriptor({10: bytes(16000)}), "RANGE"),
    "a commitment as text of 16000 bytes": (descriptor({2: "a" * 16000}), "TYPE"),
    "16000 purposes": (descriptor({16: ["train"] * 2600}), "RANGE"),
    "a clip norm of 16000 bytes": (descriptor({5: "9" * 16000}), "TYPE"),
    "an unknown field of 16000 bytes": (descriptor({18: bytes(16000)}), "SCHEMA"),
    "an unknown key of 16000 bytes": (descriptor({"k" * 16000: 1}), "SCHEMA"),
    "a schema of 16000 bytes": (descriptor({1: "dptrain.contribution/2" * 700}), "SCHEMA"),
}


@pytest.mark.parametrize("name", LARGE)
def test_A19_oversized_and_deep_descriptors_are_refused_in_bounded_time(scene, name):
    payload, code = LARGE[name]
    attestation = sealed(payload, cbor.encode(header_fields(payload[:20000])))
    assert scene.code(attestation) == code
    assert shortest(lambda: scene.outcome(attestation)) < 0.05


def shortest(call):
    """Seconds of the fastest of five calls: other work on the machine cannot make it fail."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def test_A19_the_limit_is_16384_bytes_exactly(scene):
    padding = 16384 - len(descriptor({18: b"x" * 16000})) + 16000
    assert len(descriptor({18: b"x" * padding})) == 16384
    assert scene.code(signed({18: b"x" * padding})) == "SCHEMA"
    assert scene.code(signed({18: b"x" * (padding + 1)})) == "SIZE"


def test_A19_messages_above_1024_bytes_are_SIZE(scene):
    for filler in (b"\x00", b"\x81", b"\xd2", b"\xff"):
        attestation = attested(descriptor(), b"\xd2" + filler * 1023)
        assert scene.code(attestation) != "SIZE"
        assert scene.code(replace(attestation, sign1=attestation.sign1 + filler)) == "SIZE"
    huge = attested(descriptor(), b"\xd2" + b"\x81" * (1 << 24))
    assert scene.code(huge) == "SIZE"
    assert shortest(lambda: scene.outcome(huge)) < 0.05


def test_A19_deep_headers_are_refused_in_bounded_time(scene):
    for protected in (b"\x81" * 700, b"\xa1\x00" * 350 + b"\x00", b"\xbb" + b"\xff" * 8):
        attestation = sealed(descriptor(), protected)
        assert scene.code(attestation) in ("CBOR", "CBOR_NONCANONICAL")
        assert shortest(lambda attestation=attestation: scene.outcome(attestation)) < 0.05


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (b"\x83\x5a\x00\x01\x00\x00" + bytes(65536), "SIZE"),
        (b"\x83\x5b\x7f" + b"\xff" * 7 + bytes(40000), "SIZE"),
        (b"\x83\x5b\x7f" + b"\xff" * 7, "CBOR"),
        (b"\x9b\xff" + b"\xff" * 7, "CBOR"),
        (b"\x81" * 10000, "CBOR_NONCANONICAL"),
        (b"\x80", "CBOR"),
        (b"\x83\x60\x40\x40", "CBOR"),
        (b"\x82\x40\x40", "CBOR"),
    ],
)
def test_A19_an_attestation_file_with_an_item_too_large_ends_there(scene, tmp_path, head, code):
    """The first attestation stands; what follows the item cannot be found, so it has no content or no attestation."""
    (tmp_path / "a.jsonl").write_bytes(b"1\n2\n3\n")
    attestations = [signed(content=b"%d" % n).to_cbor() for n in (1, 3)]
    (tmp_path / "a.jsonl.attest").write_bytes(attestations[0] + head + attestations[1])
    report = run_gate(open_corpus(tmp_path), scene.policy, scene.registry, now=NOW)
    assert report.counts() == {"admitted": {"sensitive": 1}, "refused": {code: 1, "UNATTESTED": 1}}
