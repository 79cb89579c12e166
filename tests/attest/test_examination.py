"""The examiner that remembers forms says of every input what `examine` says of it."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor, sign1
from attest.descriptor import Parts, split
from attest.gate.admission import Passed, Refusal
from attest.gate.checks import MAX_KNOWN, MAX_PATTERNS, Examiner, examine
from tests.worlds.gate import NOW


def slow(world, attestation, content_hash, now=NOW):
    return examine(attestation, content_hash, policy=world.policy, registry=world.registry, now=now)


@pytest.fixture
def primed(world):
    """An examiner that knows the forms of both contributors."""
    examiner = Examiner(world.policy, world.registry, NOW)
    bobs = replace(world.descriptor, contributor="bob", admissibility_class="open")
    for descriptor, key in ((world.descriptor, world.alice), (bobs, world.bob)):
        for _ in range(3):
            attestation = world.sign(descriptor, key)
            outcome = examiner.examine(attestation.descriptor, attestation.sign1, attestation.opening, descriptor.content_hash)
            assert isinstance(outcome, Passed)
    assert len(examiner._known) == len(examiner._patterns) == 2 and None not in examiner._patterns.values()
    return examiner


def test_an_attestation_of_a_known_form_passes_without_being_decoded(world, primed, monkeypatch):
    fresh = [world.variant(content_hash=bytes([n]) * 32, nonce=bytes([n]) * 16) for n in range(5)]
    expected = [slow(world, item, bytes([n]) * 32) for n, item in enumerate(fresh)]
    monkeypatch.setattr("attest.gate.checks.examine", lambda *args, **options: pytest.fail("was decoded"))
    found = [primed.examine(item.descriptor, item.sign1, item.opening, bytes([n]) * 32) for n, item in enumerate(fresh)]
    assert found == expected and all(isinstance(outcome, Passed) for outcome in found)


def mutants(world, rng):
    """Attestations near valid ones: bits, bytes, splices, foreign fields and signatures."""
    alice = [world.variant(nonce=rng.randbytes(16), content_hash=rng.randbytes(32)) for _ in range(4)]
    bob = world.sign(replace(world.descriptor, contributor="bob", admissibility_class="open"), world.bob)
    looser = world.variant(clip_norm_micro=1_000_001)
    stale = world.variant(not_before=NOW - 2000, not_after=NOW)
    pool = [*alice, bob, looser, stale]
    for one, two in pairwise(pool):
        yield replace(one, sign1=two.sign1)
        for _ in range(120):
            at = rng.randrange(len(one.descriptor))
            flipped = bytearray(one.descriptor)
            flipped[at] ^= 1 << rng.randrange(8)
            yield replace(one, descriptor=bytes(flipped))
            at = rng.randrange(len(one.sign1))
            flipped = bytearray(one.sign1)
            flipped[at] ^= 1 << rng.randrange(8)
            yield replace(one, sign1=bytes(flipped))
            at = rng.randrange(min(len(one.descriptor), len(two.descriptor)))
            yield replace(one, descriptor=one.descriptor[:at] + two.descriptor[at:])
            at = rng.randrange(min(len(one.sign1), len(two.sign1)))
            yield replace(one, sign1=one.sign1[:at] + two.sign1[at:])
            at = rng.randrange(len(one.descriptor))
            yield replace(one, descriptor=one.descriptor[:at])
            yield replace(one, descriptor=one.descriptor[:at] + rng.randbytes(1) + one.descriptor[at:])
            at = rng.randrange(len(one.opening))
            flipped = bytearray(one.opening)
            flipped[at] ^= 1 << rng.randrange(8)
            yield replace(one, opening=bytes(flipped))
            yield replace(one, opening=one.opening[:at] + two.opening[at:])
    for descriptor in (looser, stale, bob):
        issuer = descriptor.opened().issuer
        yield replace(descriptor, sign1=sign1.sign(descriptor.descriptor, world.alice, contributor=issuer))


@pytest.mark.slow
def test_mutants_are_judged_as_without_a_memory(world, primed):
    rng = random.Random(3)
    count = 0
    for mutant in mutants(world, rng):
        count += 1
        parts = split(mutant.descriptor, mutant.opening)
        for content_hash in (world.descriptor.content_hash, parts.content_hash if parts else None):
            found = primed.examine(mutant.descriptor, mutant.sign1, mutant.opening, content_hash)
            assert found == slow(world, mutant, content_hash)
    assert count > 4000


def look_alikes():
    """Content hashes and nonces that hold the bytes by which descriptor and opening are cut."""
    heads = st.sampled_from([b"\x07\x58\x20", b"\x01\x50", b"\x02\x58\x20", b"\x58\x20\x07"])
    filler = st.binary(min_size=64, max_size=64)
    return st.builds(lambda parts, tail: b"".join(parts) + tail, st.lists(st.one_of(heads, st.binary(max_size=4))), filler)


@settings(deadline=None, max_examples=150)
@given(
    content=look_alikes(),
    nonce=look_alikes(),
    clip=st.sampled_from([10_000, 0x075820, 0x0A50, 500_000]),
    noise=st.sampled_from([1_100_000, 0x07582000, 0x0A500A50, 0x0A500758200A]),
    occurrences=st.sampled_from([0, 0x075820, 0x0A50, 0x0A500A50]),
)
def test_bytes_that_look_like_fields_confuse_nobody(world, content, nonce, clip, noise, occurrences):
    examiner = Examiner(world.policy, world.registry, NOW)
    descriptor = replace(
        world.descriptor,
        content_hash=content[:32],
        nonce=nonce[:16],
        clip_norm_micro=clip,
        noise_multiplier_micro=noise,
        max_occurrences=occurrences,
    )
    first = world.sign(descriptor)
    again = world.sign(replace(descriptor, content_hash=content[32:64], nonce=nonce[16:32]))
    other = world.sign(replace(descriptor, max_occurrences=occurrences + 1))
    for attestation, content_hash in ((first, content[:32]), (again, content[32:64]), (other, content[:32])):
        for _ in range(3):
            found = examiner.examine(attestation.descriptor, attestation.sign1, attestation.opening, content_hash)
            assert found == slow(world, attestation, content_hash)
        crossed = examiner.examine(attestation.descriptor, first.sign1, attestation.opening, content_hash)
        assert crossed == slow(world, replace(attestation, sign1=first.sign1), content_hash)


@given(st.one_of(st.binary(max_size=200), look_alikes()), st.one_of(st.binary(max_size=200), look_alikes()), st.booleans())
def test_cutting_loses_nothing(data, opening, likely):
    if likely:
        opening = b"\xa5\x01\x50" + opening[:16].ljust(16) + b"\x02\x58\x20" + opening[16:].ljust(32)
    parts = split(data, opening)
    if parts is not None:
        assert parts.join() == (data, opening)
        assert [len(part) for part in parts[1:]] == [32, 16, 32]
    assert split(b"", opening) is None and split(data, b"") is None
    joined = Parts((b"a", b"b", b"c", b"d"), bytes(32), bytes(16), bytes(32)).join()
    assert joined[0].startswith(b"a\x07\x58\x20") and joined[1].startswith(b"c\x01\x50")


def test_only_what_passed_becomes_a_form(world):
    examiner = Examiner(world.policy, world.registry, NOW)
    forged = world.sign(key=world.bob)
    loose = world.variant(clip_norm_micro=2_000_000)
    for attestation in (forged, loose, world.sign()):
        examiner.examine(attestation.descriptor, attestation.sign1, attestation.opening, bytes(32))
    assert examiner._known == {} and examiner._patterns == {} and len(examiner._met_once) == 0


def test_a_form_vouches_for_no_other_content(world, primed):
    attestation = world.variant(nonce=bytes(16))
    outcome = primed.examine(attestation.descriptor, attestation.sign1, attestation.opening, bytes(32))
    assert isinstance(outcome, Refusal) and outcome.code == "CONTENT_MISMATCH"
    outcome = primed.examine(attestation.descriptor, attestation.sign1, attestation.opening, None)
    assert isinstance(outcome, Refusal) and outcome.code == "CONTENT_MISSING"


def test_verified_spares_the_signature_and_nothing_else(world, primed):
    good = world.variant(nonce=b"n" * 16)
    forged = replace(good, sign1=good.sign1[:-1] + bytes([good.sign1[-1] ^ 1]))
    content_hash = world.descriptor.content_hash
    assert isinstance(primed.examine(good.descriptor, good.sign1, good.opening, content_hash, verified=True), Passed)
    assert primed.examine(forged.descriptor, forged.sign1, forged.opening, content_hash).code == "SIG_BAD"
    for changes in ({"clip_norm_micro": 1_000_001}, {"corpus": "elsewhere"}, {"not_after": NOW}):
        other = world.variant(**changes)
        found = primed.examine(other.descriptor, other.sign1, other.opening, content_hash, verified=True)
        assert found == slow(world, other, content_hash) and isinstance(found, Refusal)


def test_memory_of_forms_is_bounded(world, monkeypatch):
    monkeypatch.setattr("attest.gate.checks.MAX_KNOWN", 4)
    monkeypatch.setattr("attest.gate.checks.MAX_PATTERNS", 3)
    assert MAX_KNOWN >= MAX_PATTERNS >= 1000
    examiner = Examiner(world.policy, world.registry, NOW)
    for cap in range(1, 20):
        attestation = world.variant(max_occurrences=cap)
        parts = (attestation.descriptor, attestation.sign1, attestation.opening)
        assert isinstance(examiner.examine(*parts, world.descriptor.content_hash), Passed)
        assert len(examiner._met_once) <= 3
    for salt in range(20):
        attestation = world.variant(salts=bytes([salt]) * 48, max_occurrences=7 + salt % 5)
        for _ in range(3):
            parts = (attestation.descriptor, attestation.sign1, attestation.opening)
            assert isinstance(examiner.examine(*parts, world.descriptor.content_hash), Passed)
        assert len(examiner._known) <= 4 and len(examiner._patterns) <= 3 and len(examiner._met_once) <= 3


@given(st.binary(max_size=16384), st.binary(max_size=700), st.binary(max_size=300), st.binary(max_size=3))
def test_three_byte_strings_are_read_as_the_decoder_reads_them(one, two, three, before):
    data = before + cbor.encode([one, two, three]) + before
    value, end = cbor.decode_prefix(data, len(before), max_size=40_000)
    assert cbor.byte_string_triple(data, len(before)) == (*value, end)


@given(st.binary(max_size=40))
def test_three_that_are_read_are_three_for_the_decoder(tail):
    for data in (tail, b"\x83" + tail, b"\x83\x58" + tail, b"\x83\x59" + tail, b"\x83\x40\x41a\x59\x00" + tail):
        triple = cbor.byte_string_triple(data, 0)
        if triple is not None:
            value, end = cbor.decode_prefix(data, 0)
            assert triple == (*value, end)
