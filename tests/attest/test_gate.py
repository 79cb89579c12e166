"""The admission gate: one named test per reason code, boundaries on both sides, and no mutation gets through."""

import hashlib
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor, keys, sign1
from attest.attestation import Attestation
from attest.corpus import open_corpus, sign_corpus
from attest.descriptor import PUBLIC_BOUNDS
from attest.errors import CorpusRefused, RegistryRefused
from attest.gate import Admission, GateReport, ReasonCode, Refusal, Seen, decide, run_gate
from attest.registry import KeyRecord
from tests.worlds.registries import load, registry_file, with_key, without_contributors

NOW = 1_800_000_000
M = 1_000_000


def raw_fields(attestation):
    return cbor.decode(attestation.descriptor)


def signed(world, payload, key=None, contributor=None, **options):
    """A right signature over any payload bytes."""
    message = sign1.sign(payload, key or world.alice, contributor=contributor or world.descriptor.issuer, **options)
    return Attestation(payload, message, world.descriptor.opening())


def with_key_record(world, **changes):
    """The registry with Alice's key record changed behind the log's back."""
    return with_key(world.registry, "alice", **changes)


# --- admission -------------------------------------------------------------------------------------------------------


def test_a_valid_attestation_is_admitted_with_its_hashes(world):
    attestation = world.sign()
    outcome = world.judge(attestation)
    assert isinstance(outcome, Admission)
    assert outcome.descriptor == world.descriptor
    assert outcome.descriptor_hash == hashlib.sha256(attestation.descriptor).digest() == world.descriptor.digest()
    assert outcome.attestation_hash == attestation.digest()
    assert outcome.key_id == keys.key_id(keys.public_bytes(world.alice))


def test_optional_fields_and_stricter_bounds_are_admitted(world):
    assert world.code(world.variant(principal="person-7", max_examples=4, max_occurrences=20)) == "ADMITTED"
    assert world.code(world.variant(clip_norm_micro=500_000, noise_multiplier_micro=9 * M)) == "ADMITTED"


# --- every reason code -----------------------------------------------------------------------------------------------


def test_code_SIZE(world):
    assert world.code(signed(world, b"\x00" * 16385)) == "SIZE"
    assert world.code(replace(world.sign(), sign1=b"\xd2" * 1025)) == "SIZE"


def test_code_CBOR(world):
    assert world.code(signed(world, world.descriptor.to_cbor() + b"\x00")) == "CBOR"
    assert world.code(signed(world, b"")) == "CBOR"
    assert world.code(replace(world.sign(), sign1=b"\xd2")) == "CBOR"


def test_code_CBOR_NONCANONICAL(world):
    canonical = world.descriptor.to_cbor()
    padded = b"\xb8\x0c" + canonical[1:]
    assert world.code(signed(world, padded)) == "CBOR_NONCANONICAL"
    first, rest = canonical[1:], b""
    reordered = canonical[:1] + first[len(first) // 2 :] + rest + first[: len(first) // 2]
    assert world.code(signed(world, reordered)) in {"CBOR_NONCANONICAL", "CBOR"}
    assert world.code(signed(world, b"\xd8\x18" + canonical)) == "CBOR_NONCANONICAL"
    float_key = cbor.encode(1.0) + cbor.encode("x")
    assert world.code(signed(world, b"\xa1" + float_key)) == "CBOR_NONCANONICAL"


def test_code_HEADER(world):
    payload = world.descriptor.to_cbor()
    withdrawal = sign1.sign(payload, world.alice, contributor=world.descriptor.issuer, typ=sign1.TYP_WITHDRAWAL)
    assert world.code(replace(world.sign(), sign1=withdrawal)) == "HEADER"
    assert world.code(world.sign(key=world.bob, contributor="bob")) == "HEADER"
    other = world.template.descriptor(world.descriptor.content_hash).to_cbor()
    assert world.code(replace(world.sign(), sign1=signed(world, other).sign1)) == "HEADER"


def test_code_SCHEMA(world):
    fields = raw_fields(world.sign())
    assert world.code(signed(world, cbor.encode(fields | {1: "dptrain.contribution/9"}))) == "SCHEMA"
    assert world.code(signed(world, cbor.encode(fields | {18: 1}))) == "SCHEMA"
    assert world.code(signed(world, cbor.encode({k: v for k, v in fields.items() if k != 10}))) == "SCHEMA"


@pytest.mark.parametrize("value", [True, 1.0, -0.0, "1000000", None, b"\x01", [1], {1: 1}], ids=repr)
def test_code_TYPE(world, value):
    for key in (5, 6, 8, 9, 12):
        assert world.code(signed(world, cbor.encode(raw_fields(world.sign()) | {key: value}))) == "TYPE"


@pytest.mark.parametrize("value", [0, -1, -(2**63), 2**63 - 1])
def test_code_RANGE(world, value):
    for key in (5, 6):
        assert world.code(signed(world, cbor.encode(raw_fields(world.sign()) | {key: value}))) == "RANGE"


@pytest.mark.parametrize("text", ["1b8000000000000000", "1bffffffffffffffff", "f97c00", "f9fc00", "f97e00"])
def test_code_RANGE_for_numbers_that_no_field_can_hold(world, text):
    """An integer beyond 64 bits, an infinity, a NaN: put in place of the clip norm, and signed."""
    clip = b"\x05" + cbor.encode(M)
    payload = world.descriptor.to_cbor().replace(clip, b"\x05" + bytes.fromhex(text))
    assert world.code(signed(world, payload)) == "RANGE"


def test_code_RANGE_for_class_names_that_look_alike(world):
    for name in ("s\u0435nsitive", "sensitive ", "Sensitive", "sensitive\u200f", "sensitive\x00", "se\u0301nsitive"):
        assert world.code(signed(world, cbor.encode(raw_fields(world.sign()) | {4: name}))) == "RANGE"


def test_code_OPENING(world):
    good = world.sign()
    for opening in (b"", world.template.descriptor(bytes(32)).opening()):
        assert world.code(replace(good, opening=opening)) == "OPENING"


def test_code_PURPOSE(world):
    assert world.code(signed(world, cbor.encode(raw_fields(world.sign()) | {16: ["generate"]}))) == "PURPOSE"
    assert world.code(world.variant(purposes=("train",))) == "ADMITTED"


def test_code_PUBLIC_LENGTH(world):
    asked = signed(world, cbor.encode(raw_fields(world.sign()) | {17: 512}))
    assert world.code(asked) == "PUBLIC_LENGTH"
    first, *others = world.policy.classes
    for lengths, code in {(128, 512): "ADMITTED", (128,): "PUBLIC_LENGTH", (128, 511, 513): "PUBLIC_LENGTH"}.items():
        offering = replace(world, policy=replace(world.policy, classes=(replace(first, public_lengths=lengths), *others)))
        assert offering.code(asked) == code
        assert offering.code(world.sign()) == "ADMITTED"  # to sign none is right


def test_code_KEY_WEAK(world):
    identity = b"\x01" + bytes(31)
    registry = with_key_record(world, raw=identity)
    payload = world.descriptor.to_cbor()
    protected = cbor.encode(
        {
            1: -19,
            4: keys.key_id(identity),
            15: {1: world.descriptor.issuer, 2: sign1.subject_of(payload)},
            16: sign1.TYP_ATTESTATION,
        }
    )
    universal_forgery = b"\xd2" + cbor.encode([protected, {}, None, identity + bytes(32)])
    assert world.code(replace(world.sign(), sign1=universal_forgery), registry=registry) == "KEY_WEAK"


def test_code_KEY_UNKNOWN(world):
    descriptor = replace(world.descriptor, contributor="carol")
    assert world.code(world.sign(descriptor)) == "KEY_UNKNOWN"


def test_code_KEY_REVOKED(world):
    for at, code in ((NOW, "KEY_REVOKED"), (NOW + 1, "ADMITTED")):
        registry = world.changed(lambda log, at=at: log.revoke("alice", at=at, now=NOW))
        assert world.code(world.sign(), registry=registry) == code


def test_code_KEY_NOT_VALID(world):
    for early_or_late in ({"not_before": NOW + 1}, {"not_after": NOW}):
        assert world.code(world.sign(), registry=with_key_record(world, **early_or_late)) == "KEY_NOT_VALID"
    for edge in ({"not_before": NOW}, {"not_after": NOW + 1}):
        assert world.code(world.sign(), registry=with_key_record(world, **edge)) == "ADMITTED"


def test_code_SIG_BAD(world):
    good = world.sign()
    assert world.code(replace(good, sign1=good.sign1[:-1] + bytes([good.sign1[-1] ^ 1]))) == "SIG_BAD"


def test_code_SIG_BAD_for_another_contributors_signature(world):
    """Bob signs a descriptor that names Alice, under his own key id and under hers."""
    assert world.code(world.sign(key=world.bob)) == "SIG_BAD"
    payload = world.descriptor.to_cbor()
    protected = cbor.encode(
        {
            1: -19,
            4: keys.key_id(keys.public_bytes(world.alice)),
            15: {1: world.descriptor.issuer, 2: sign1.subject_of(payload)},
            16: sign1.TYP_ATTESTATION,
        }
    )
    signature = world.bob.sign(sign1.to_be_signed(protected, payload))
    message = b"\xd2" + cbor.encode([protected, {}, None, signature])
    assert world.code(replace(world.sign(), sign1=message)) == "SIG_BAD"


def test_code_SIG_BAD_for_malleated_signatures(world):
    good = world.sign()
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(good.sign1[-32:], "little")
    for multiple in (1, 2):
        other = good.sign1[:-32] + (s + multiple * order).to_bytes(32, "little")
        assert world.code(replace(good, sign1=other)) == "SIG_BAD"
    head, signature = good.sign1[:-66], good.sign1[-64:]
    for length in (63, 65):
        stretched = head + bytes((0x58, length)) + (signature + b"\x00")[:length]
        assert world.code(replace(good, sign1=stretched)) == "SIG_BAD"


def test_code_AUDIENCE(world):
    assert world.code(world.variant(corpus="clinic-notes-2027")) == "AUDIENCE"


def test_code_NOT_YET_VALID(world):
    start = world.descriptor.not_before
    assert world.code(world.sign(), now=start - 1) == "NOT_YET_VALID"
    assert world.code(world.sign(), now=start) == "ADMITTED"


def test_code_EXPIRED(world):
    end = world.descriptor.not_after
    assert world.code(world.sign(), now=end) == "EXPIRED"
    assert world.code(world.sign(), now=end - 1) == "ADMITTED"


def test_code_WINDOW(world):
    longest = 90 * 86400
    assert world.code(world.variant(not_before=NOW, not_after=NOW + longest)) == "ADMITTED"
    assert world.code(world.variant(not_before=NOW, not_after=NOW + longest + 1)) == "WINDOW"
    fields = raw_fields(world.sign())
    assert world.code(signed(world, cbor.encode(fields | {8: NOW, 9: NOW}))) == "WINDOW"


def test_code_WINDOW_of_the_policy_where_the_class_sets_none(world):
    longest = 365 * 86400
    descriptor = replace(world.descriptor, contributor="bob", admissibility_class="open", not_before=NOW)
    for extra, code in ((0, "ADMITTED"), (1, "WINDOW")):
        attestation = world.sign(replace(descriptor, not_after=NOW + longest + extra), key=world.bob)
        assert world.code(attestation) == code


def test_code_WINDOW_of_the_policy_where_the_class_allows_more(world):
    policy = replace(world.policy, max_window=1000)
    assert world.code(world.variant(not_before=NOW, not_after=NOW + 1000), policy=policy) == "ADMITTED"
    assert world.code(world.variant(not_before=NOW, not_after=NOW + 1001), policy=policy) == "WINDOW"


def test_code_CLASS_UNKNOWN(world):
    assert world.code(world.variant(admissibility_class="public")) == "CLASS_UNKNOWN"


def test_code_CLASS_NOT_GRANTED(world):
    assert world.code(world.variant(admissibility_class="open")) == "CLASS_NOT_GRANTED"


def test_code_BOUNDS_NOT_PUBLIC(world):
    """A public class takes nobody who signed a bound, and no other class takes who signed that there is none."""
    signed = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    rules = {rule.name: rule for rule in world.policy.classes}
    name = world.descriptor.admissibility_class
    rules[name] = replace(rules[name], public=True, **signed)
    policy = replace(world.policy, classes=tuple(rules.values()))
    assert world.code(world.variant(**signed), policy=policy) == "ADMITTED"
    assert world.code(world.sign(), policy=policy) == "BOUNDS_NOT_PUBLIC"
    for field, change in (("clip_norm_micro", -1), ("noise_multiplier_micro", 1)):
        near = signed | {field: signed[field] + change}
        assert world.code(world.variant(**near), policy=policy) == "BOUNDS_NOT_PUBLIC"
    assert world.code(world.variant(**signed)) == "CLIP_ABOVE_CLASS"


def test_code_CLIP_ABOVE_CLASS(world):
    assert world.code(world.variant(clip_norm_micro=M)) == "ADMITTED"
    assert world.code(world.variant(clip_norm_micro=M - 1)) == "ADMITTED"
    assert world.code(world.variant(clip_norm_micro=M + 1)) == "CLIP_ABOVE_CLASS"


def test_code_NOISE_BELOW_CLASS(world):
    assert world.code(world.variant(noise_multiplier_micro=1_100_000)) == "ADMITTED"
    assert world.code(world.variant(noise_multiplier_micro=1_100_001)) == "ADMITTED"
    assert world.code(world.variant(noise_multiplier_micro=1_099_999)) == "NOISE_BELOW_CLASS"


def test_code_CLIP_BELOW_FLOOR(world):
    assert world.code(world.variant(clip_norm_micro=10_000)) == "ADMITTED"
    assert world.code(world.variant(clip_norm_micro=10_001)) == "ADMITTED"
    assert world.code(world.variant(clip_norm_micro=9_999)) == "CLIP_BELOW_FLOOR"


def test_code_NOISE_BELOW_FLOOR(world):
    """A policy read from a file cannot set a preset below the floor; the gate does not rely on that."""
    policy = replace(world.policy)
    object.__setattr__(policy, "min_noise_multiplier_micro", 1_100_001)
    assert world.code(world.variant(noise_multiplier_micro=1_100_001), policy=policy) == "ADMITTED"
    assert world.code(world.variant(noise_multiplier_micro=1_100_000), policy=policy) == "NOISE_BELOW_FLOOR"


def test_code_CONTENT_MISMATCH(world):
    assert world.code(world.sign(), content=world.content + b"\n") == "CONTENT_MISMATCH"


def test_code_CONTENT_MISSING(world):
    assert world.code(world.sign(), content=None) == "CONTENT_MISSING"


def test_code_UNATTESTED(world):
    assert world.code(None) == "UNATTESTED"


def admit(world, seen, attestation, **options):
    outcome = world.judge(attestation, seen=seen, **options)
    assert isinstance(outcome, Admission), outcome
    seen.note(outcome, NOW)


def test_code_REPLAYED(world):
    seen = Seen()
    admit(world, seen, world.sign())
    assert world.code(world.sign(), seen=seen) == "REPLAYED"


def test_code_DUPLICATE_CONTENT(world):
    seen = Seen()
    admit(world, seen, world.sign())
    again = world.template.descriptor(world.descriptor.content_hash)
    assert world.code(world.sign(again), seen=seen) == "DUPLICATE_CONTENT"
    sybil = replace(again, contributor="bob")
    assert world.code(world.sign(sybil, key=world.bob), seen=seen) == "DUPLICATE_CONTENT"


def test_code_CONTRIBUTOR_CAP(world):
    seen = Seen()
    for content in (b"1", b"2", b"3"):
        descriptor = replace(world.descriptor, contributor="bob", content_hash=hashlib.sha256(content).digest())
        attestation = world.sign(descriptor, key=world.bob)
        if content == b"3":
            assert world.code(attestation, content=content, seen=seen) == "CONTRIBUTOR_CAP"
        else:
            admit(world, seen, attestation, content=content)
    assert world.code(world.sign(), seen=seen) == "ADMITTED"
    assert world.code(world.sign(), seen=seen, policy=replace(world.policy, contributor_cap=1)) == "ADMITTED"
    admit(world, seen, world.sign())
    other = replace(world.descriptor, content_hash=hashlib.sha256(b"4").digest())
    tight = replace(world.policy, contributor_cap=1)
    assert world.code(world.sign(other), content=b"4", seen=seen, policy=tight) == "CONTRIBUTOR_CAP"


def test_code_CONTRIBUTOR_CAP_of_the_policy_where_the_registry_allows_more(world):
    seen, policy = Seen(), replace(world.policy, contributor_cap=1)
    for content, code in ((b"1", "ADMITTED"), (b"2", "CONTRIBUTOR_CAP")):
        descriptor = replace(world.descriptor, contributor="bob", content_hash=hashlib.sha256(content).digest())
        attestation = world.sign(descriptor, key=world.bob)
        assert world.code(attestation, content=content, seen=seen, policy=policy) == code
        if code == "ADMITTED":
            admit(world, seen, attestation, content=content)


def enrolled_as(world, principal):
    """The registry with one person behind alice and bob."""
    valid = {"classes": (), "not_before": NOW - 10, "not_after": NOW + 10, "now": NOW, "principal": principal}
    spare = [keys.public_bytes(keys.generate()) for _ in range(2)]
    return world.changed(
        lambda log: log.enrol("alice", spare[0], **valid), lambda log: log.enrol("bob", spare[1], **valid)
    )


def test_code_PRINCIPAL(world):
    registry = enrolled_as(world, "person-7")
    assert world.code(world.variant(principal="person-7"), registry=registry) == "ADMITTED"
    assert world.code(world.variant(principal="person-8"), registry=registry) == "PRINCIPAL"
    assert world.code(world.sign(), registry=registry) == "ADMITTED"
    assert world.code(world.variant(principal="person-8")) == "ADMITTED"


def test_code_CONTRIBUTOR_CAP_of_the_person_behind_several_contributors(world):
    registry, seen = enrolled_as(world, "alice"), Seen()
    policy = replace(world.policy, contributor_cap=2)
    for number, (name, key, code) in enumerate(
        [("alice", world.alice, "ADMITTED"), ("bob", world.bob, "ADMITTED"), ("alice", world.alice, "CONTRIBUTOR_CAP")]
    ):
        content = bytes([number])
        descriptor = replace(world.descriptor, contributor=name, content_hash=hashlib.sha256(content).digest())
        outcome = world.judge(world.sign(descriptor, key), content=content, policy=policy, registry=registry, seen=seen)
        assert (outcome.code if isinstance(outcome, Refusal) else "ADMITTED") == code
        if isinstance(outcome, Admission):
            assert outcome.holder == "principal alice"
            seen.note(outcome, NOW)


def test_code_EXAMPLES(world):
    assert world.code(world.variant(max_examples=4)) == "ADMITTED"
    assert world.code(world.variant(max_examples=5)) == "EXAMPLES"


def test_code_WITHDRAWN(world):
    assert world.code(world.sign(), seen=Seen(withdrawn={world.descriptor.digest()})) == "WITHDRAWN"


@pytest.mark.parametrize("now", [-1, 1.8e9, True, None, "1800000000", 1_800_000_000_123, float("nan")], ids=repr)
def test_code_CLOCK(world, now):
    assert world.code(world.sign(), now=now) == "CLOCK"


def test_code_CLOCK_when_time_runs_backwards(world):
    assert world.code(world.sign(), seen=Seen(latest=NOW + 60)) == "ADMITTED"
    assert world.code(world.sign(), seen=Seen(latest=NOW + 61)) == "CLOCK"


def test_every_reason_code_has_a_test_and_a_meaning():
    tested = {
        name.removeprefix("test_code_").split("_for_")[0].split("_of_")[0].split("_when_")[0] for name in globals()
    }
    assert {str(code) for code in ReasonCode} <= tested
    assert len(ReasonCode) == 36
    for code in ReasonCode:
        assert str(code) == code.name and code.meaning.endswith(".")


# --- what a refusal tells --------------------------------------------------------------------------------------------


def test_a_refusal_names_the_descriptor_once_it_could_be_read(world):
    refusal = world.judge(world.variant(corpus="other"))
    assert isinstance(refusal, Refusal)
    assert refusal.contributor == "alice" and len(refusal.descriptor_hash) == 32
    unreadable = world.judge(signed(world, b"\x00"))
    assert unreadable.contributor is None and unreadable.descriptor_hash is None


def test_hostile_text_does_not_reach_sentences_unescaped(world):
    payload = cbor.encode(raw_fields(world.sign()) | {2: "\x1b[31malice\n"})
    refusal = world.judge(signed(world, payload))
    assert refusal.sentence.isascii() and refusal.sentence.isprintable()


def test_the_key_is_found_by_contributor_among_several(world):
    second = keys.generate()
    registry = world.changed(
        lambda log: log.enrol(
            "alice", keys.public_bytes(second), classes=(), not_before=NOW, not_after=NOW + 10, now=NOW
        ),
        lambda log: log.revoke("alice", keys.public_bytes(world.alice), at=NOW, now=NOW),
    )
    assert world.code(world.sign(key=second), registry=registry) == "ADMITTED"
    assert world.code(world.sign(), registry=registry) == "KEY_REVOKED"


# --- nothing gets through --------------------------------------------------------------------------------------------


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        position, kind = rng.randrange(len(data)), rng.randrange(5)
        if kind <= 1:
            data[position] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del data[position]
        elif kind == 3:
            data.insert(position, rng.randrange(256))
        else:
            other = rng.randrange(len(data))
            data[position], data[other] = data[other], data[position]
    return bytes(data)


def test_no_random_mutation_of_a_valid_attestation_is_admitted(world):
    rng = random.Random(20260707)
    good = world.sign()
    codes = Counter()
    for number in range(6000):
        if number % 3 == 0:
            changed = replace(good, descriptor=mutate(rng, good.descriptor))
        elif number % 3 == 1:
            changed = replace(good, sign1=mutate(rng, good.sign1))
        else:
            changed = Attestation(*(mutate(rng, part) for part in (good.descriptor, good.sign1, good.opening)))
        if changed == good:
            continue
        codes[world.code(changed)] += 1
    assert codes["ADMITTED"] == 0
    assert sum(codes.values()) > 5900 and len(codes) >= 8


def test_every_single_bit_of_an_attestation_is_bound(world):
    good = world.sign()
    for part in ("descriptor", "sign1"):
        original = getattr(good, part)
        for position in range(len(original)):
            for bit in range(8):
                data = bytearray(original)
                data[position] ^= 1 << bit
                assert world.code(replace(good, **{part: bytes(data)})) != "ADMITTED"


def test_no_resigned_mutation_admits_a_looser_bound(world):
    """A contributor who signs mutated descriptors gets in only what the policy allows."""
    rng = random.Random(3)
    rule = world.policy.class_rule("sensitive")
    admitted = 0
    for _ in range(2000):
        payload = mutate(rng, world.descriptor.to_cbor())
        outcome = world.judge(signed(world, payload))
        if not isinstance(outcome, Admission):
            continue
        admitted += 1
        found = outcome.descriptor
        assert found.to_cbor() == payload
        assert world.policy.min_clip_norm_micro <= found.clip_norm_micro <= rule.clip_norm_micro
        assert found.noise_multiplier_micro >= rule.noise_multiplier_micro
        assert found.content_hash == world.descriptor.content_hash
    assert admitted > 10


@settings(max_examples=150, deadline=None)
@given(clip=st.integers(1, 2 * M), noise=st.integers(1, 3 * M))
def test_bounds_admit_exactly_the_policys_rectangle(world, clip, noise):
    inside = 10_000 <= clip <= M and noise >= 1_100_000
    admitted = world.code(world.variant(clip_norm_micro=clip, noise_multiplier_micro=noise)) == "ADMITTED"
    assert admitted == inside


@settings(max_examples=150, deadline=None)
@given(descriptor=st.binary(max_size=80), message=st.binary(max_size=80), content=st.none() | st.binary(max_size=32))
def test_arbitrary_bytes_are_refused_with_a_code(world, descriptor, message, content):
    outcome = decide(
        Attestation(descriptor, b"\xd2" + message),
        content,
        policy=world.policy,
        registry=world.registry,
        now=NOW,
        seen=Seen(),
    )
    assert isinstance(outcome, Refusal) and outcome.code in ReasonCode


# --- whole corpora ---------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(world, tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n{"n": 1}\n')
    (folder / "b.txt").write_bytes(b"from bob")
    (folder / "c.txt").write_bytes(b"unsigned")
    sign_corpus(folder / "a.jsonl", None, world.alice, world.template)
    bobs = replace(world.template, contributor="bob", admissibility_class="open")
    sign_corpus(folder / "b.txt", None, world.bob, bobs)
    return folder


def test_run_gate_counts_admissions_by_class_and_refusals_by_code(world, corpus):
    seen = []
    report = run_gate(open_corpus(corpus), world.policy, world.registry, now=NOW, progress=seen.append)
    assert isinstance(report, GateReport)
    assert report.counts() == {
        "admitted": {"open": 1, "sensitive": 2},
        "refused": {"DUPLICATE_CONTENT": 1, "UNATTESTED": 1},
    }
    assert (report.now, report.registry_root) == (NOW, world.registry.root())
    assert seen == [5]
    reader = open_corpus(corpus)
    for item in report.admitted:
        content = reader.read(item.locator)
        assert hashlib.sha256(content).digest() == item.admission.descriptor.content_hash
    assert {item.locator.source for item in report.refused} == {"a.jsonl", "c.txt"}


def test_run_gate_refuses_withdrawn_contributions_and_later_batches_replaying_them(world, corpus):
    memory = Seen()
    first = run_gate(open_corpus(corpus), world.policy, world.registry, now=NOW, seen=memory)
    again = run_gate(open_corpus(corpus), world.policy, world.registry, now=NOW, seen=memory)
    assert again.counts()["admitted"] == {} and again.counts()["refused"]["REPLAYED"] == 3
    gone = frozenset({first.admitted[0].admission.descriptor_hash})
    report = run_gate(open_corpus(corpus), world.policy, world.registry, now=NOW, withdrawn=gone)
    assert report.counts()["refused"]["WITHDRAWN"] == 1
    # The twin of the withdrawn line stands in the file too, under an attestation of its own.
    assert report.counts()["admitted"] == {"open": 1, "sensitive": 2}


def test_run_gate_refuses_another_registry_than_the_signed_one(world, corpus):
    stranger = load(registry_file(world.owner, NOW), world.owner)
    for registry in (stranger, without_contributors(world.registry)):
        with pytest.raises(RegistryRefused) as caught:
            run_gate(open_corpus(corpus), world.policy, registry, now=NOW)
        assert caught.value.code == "REGISTRY_ROOT"
    with pytest.raises(RegistryRefused):
        run_gate(open_corpus(corpus), replace(world.policy, registry_root=None), world.registry, now=NOW)


def test_run_gate_reports_unreadable_items_with_their_code(world, corpus):
    (corpus / "b.txt.attest").write_bytes(b"\xff")
    (corpus / "link").symlink_to(corpus / "c.txt")
    report = run_gate(open_corpus(corpus), world.policy, world.registry, now=NOW)
    assert report.counts()["refused"] == {"CBOR": 1, "DUPLICATE_CONTENT": 1, "UNATTESTED": 2}
    from attest.corpus import Item

    strange = Item(None, None, None, CorpusRefused("SOMETHING_ELSE", "no code of the gate"))
    report = run_gate([strange], world.policy, world.registry, now=NOW)
    assert report.counts()["refused"] == {"CBOR": 1}


def test_run_gate_never_admits_without_content_even_if_an_item_claims_a_hash(world):
    from attest.corpus import Item

    item = Item(None, world.descriptor.content_hash, world.sign())
    report = run_gate([item], world.policy, world.registry, now=NOW)
    assert report.counts() == {"admitted": {}, "refused": {"CONTENT_MISSING": 1}}


def test_a_changed_file_is_refused_and_the_rest_stands(world, corpus):
    (corpus / "b.txt").write_bytes(b"from mallory")
    report = run_gate(open_corpus(corpus), world.policy, world.registry, now=NOW)
    assert report.counts()["refused"]["CONTENT_MISMATCH"] == 1
    assert report.counts()["admitted"] == {"sensitive": 2}


# --- later on --------------------------------------------------------------------------------------------------------


def test_judging_changes_nothing(world):
    seen = Seen()
    world.judge(world.sign(), seen=seen)
    assert (seen.latest, seen.count("alice"), seen.find(world.descriptor.content_hash)) == (0, 0, None)
    assert world.code(world.sign(), seen=seen) == "ADMITTED"


def test_key_records_report_their_ids(world):
    record = KeyRecord(keys.public_bytes(world.alice), 0, 1)
    assert record.key_id == world.judge(world.sign()).key_id
    assert world.sign().opened() == world.descriptor
