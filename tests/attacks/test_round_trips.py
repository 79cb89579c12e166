"""Every signed document: what is written is read back, and a second CBOR library reads the same and writes the same."""

import io
from dataclasses import replace
from fractions import Fraction

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor, keys, sign1
from attest.attestation import Attestation, read_at, read_places
from attest.corpus.anchor import ContentAnchor
from attest.descriptor import (
    MAX_COUNT,
    MAX_MICRO,
    PUBLIC_BOUNDS,
    ContributionDescriptor,
    SignedDescriptor,
)
from attest.errors import AttestError, CborError
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey
from attest.policy import ClassRule, DepthRule, NoisePhase, Policy, SamplingRule, sign_policy, verify_policy
from attest.registry import Create, Enrol, Entry, Grant, KeyStatement, Prove, Revoke, RevokeOwn, Rotate, SetClock
from attest.schema.plain import MAX_TIME
from attest.withdrawal import PASSING, Withdrawal, sign_withdrawal, verify_withdrawal
from tests.worlds.gate import ALICE, OWNER, RAW

MANY = settings(max_examples=120, deadline=None)
IDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789._/-", min_size=1, max_size=64)
TIMES = st.integers(0, MAX_TIME - 1)
COUNTS = st.integers(1, MAX_COUNT)
MICROS = st.integers(1, MAX_MICRO)
HASHES = st.binary(min_size=32, max_size=32)
WINDOWS = st.tuples(TIMES, TIMES).filter(lambda pair: pair[0] != pair[1]).map(sorted)
# Values at the edges of every width that a head can have.
EDGES = st.sampled_from([0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**53, 2**63 - 1])

TERMS = {
    "window": WINDOWS,
    "limit": st.just((None, None)) | st.tuples(MICROS, st.integers(1, 10**12 - 1)),
    "admissibility_class": IDS,
    "clip_norm_micro": MICROS,
    "noise_multiplier_micro": MICROS,
    "corpus": IDS,
    "max_occurrences": st.integers(0, MAX_COUNT),
    "max_examples": st.none() | COUNTS,
    "purposes": st.sampled_from([None, ("train",), ("generate",), ("generate", "train")]),
}


def descriptors(kind, **fields):
    """Descriptors, signed ones or opened ones."""

    def made(window, limit, **fields):
        start, end = window
        return kind(not_before=start, not_after=end, max_epsilon_micro=limit[0], max_delta_pico=limit[1], **fields)

    return st.builds(made, **TERMS, **fields)


SIGNED = descriptors(SignedDescriptor, contributor=HASHES, data_class=HASHES, content=HASHES, principal=HASHES)
OPENED = descriptors(
    ContributionDescriptor,
    contributor=IDS,
    data_class=IDS,
    content_hash=HASHES,
    nonce=st.binary(min_size=16, max_size=16),
    salts=st.binary(min_size=48, max_size=48),
    principal=st.none() | IDS,
)
ANCHORS = st.builds(ContentAnchor, HASHES, HASHES, TIMES, st.none() | st.binary(min_size=16, max_size=16))
WITHDRAWALS = st.builds(Withdrawal, HASHES, IDS, TIMES, IDS.filter(lambda reason: reason not in PASSING))
FRACTIONS = st.fractions(0, 1, max_denominator=10**12)
INDICES = st.sets(st.integers(0, 65535), min_size=1, max_size=9).map(lambda found: tuple(sorted(found)))
DEPTHS = st.one_of(
    st.builds(
        lambda pair, **rest: DepthRule(band=tuple(pair), **rest),
        st.tuples(FRACTIONS, FRACTIONS).filter(lambda pair: pair[0] != pair[1]).map(sorted),
        embeddings=st.none() | st.booleans(),
        head=st.none() | st.booleans(),
        heads=st.none() | INDICES,
        experts=st.none() | INDICES,
    ),
    st.builds(DepthRule, layers=INDICES, heads=st.none() | INDICES, experts=st.none() | INDICES),
    st.lists(st.text("abz.*_[]!?-0", min_size=1, max_size=20), min_size=1, max_size=5, unique=True).map(
        lambda patterns: DepthRule(patterns=tuple(patterns))
    ),
    st.text("abz._-09", min_size=1, max_size=64).map(lambda name: DepthRule(adapter=name)),
)
SAYS_PUBLIC = PUBLIC_BOUNDS[:2]
CLASSES = st.builds(
    lambda bounds, total, **fields: ClassRule(
        clip_norm_micro=bounds[0],
        noise_multiplier_micro=bounds[1],
        public=bounds == SAYS_PUBLIC,
        max_epsilon_total_micro=None if bounds == SAYS_PUBLIC else total,
        **fields,
    ),
    st.tuples(MICROS, MICROS) | st.just(SAYS_PUBLIC),
    st.none() | MICROS,
    name=IDS,
    sampling_rate=FRACTIONS.filter(bool),
    depth=DEPTHS,
    max_window=st.none() | st.integers(1, 10**9),
)
AUDITORS = tuple(str(VerifierKey(name, SIGNATURE_COSIGNATURE_V1, raw)) for name, raw in RAW.items())
INJECTIONS = st.sampled_from(
    [
        {},
        {"noise_injection": "per_microbatch", "noise_microbatches": 1},
        {"noise_injection": "per_microbatch", "noise_microbatches": 65536},
        {"noise_injection": "per_sample", "disclosure": "occurrences_public"},
        {"disclosure": "occurrences_public"},
        {"noise_phases": (NoisePhase(1, 10**6), NoisePhase(2, 10**15)), "noise_budgets": (1, 10**6, 10**9)},
        {"auditors": AUDITORS, "auditor_quorum": len(AUDITORS)},
        {"auditors": AUDITORS, "auditor_quorum": 1, "retention_epochs": 2, "retention_hash_epochs": 3},
        {"auditors": AUDITORS[:1], "auditor_quorum": 1, "witnesses": AUDITORS[1:], "witness_quorum": 1},
        {"witnesses": AUDITORS, "witness_quorum": 2},
        {"disclosure": "occurrences_public", "sampling": SamplingRule("cyclic")},
        {"isolation_required": True},
        {"disclosure": "occurrences_public", "sampling": SamplingRule("shuffled"), "noise_injection": "per_sample"},
    ]
)


def policy_of(injection, steps, classes, **fields) -> Policy:
    """A policy that goes with its injection: as many steps as phases and, under an order, rates that have a period."""
    if "sampling" in injection:
        classes = tuple(replace(rule, sampling_rate=Fraction(1, rule.sampling_rate.denominator)) for rule in classes)
    return Policy(steps=max(steps, len(injection.get("noise_phases", ()))), classes=classes, **injection, **fields)


POLICIES = st.builds(
    policy_of,
    INJECTIONS,
    corpus=IDS,
    delta=st.fractions(Fraction(1, 10**12), Fraction(1, 2), max_denominator=10**12),
    steps=st.integers(1, 10**9),
    normalizer=COUNTS,
    classes=st.lists(CLASSES, min_size=1, max_size=4, unique_by=lambda rule: rule.name)
    .filter(lambda rules: not all(rule.public for rule in rules))
    .map(tuple),
    accountant=st.sampled_from(["pld", "rdp", "moments", "prv"]),
    max_window=st.integers(1, 10**9),
    contributor_cap=COUNTS,
    max_examples=COUNTS,
    registry_root=HASHES,
)
STATEMENTS = st.one_of(
    st.builds(
        lambda **fields: KeyStatement(kind="rotate", **fields),
        registry_id=st.binary(min_size=16, max_size=16),
        key=HASHES,
        time=TIMES,
        new_key=HASHES,
    ),
    st.builds(
        lambda **fields: KeyStatement(kind="revoke", **fields),
        registry_id=st.binary(min_size=16, max_size=16),
        key=st.none() | HASHES,
        time=TIMES,
        revoked_at=TIMES,
    ),
    st.builds(
        lambda **fields: KeyStatement(kind="prove", **fields),
        registry_id=st.binary(min_size=16, max_size=16),
        key=HASHES,
        time=TIMES,
    ),
)
CLASS_LISTS = st.lists(IDS, max_size=4)
OPTIONAL_CAP = st.none() | st.integers(0, MAX_COUNT)
ACTIONS = st.one_of(
    st.builds(Create, st.binary(min_size=16, max_size=16), IDS),
    st.builds(Enrol, HASHES, HASHES, TIMES, TIMES, CLASS_LISTS, OPTIONAL_CAP, st.none() | HASHES),
    st.builds(Grant, HASHES, CLASS_LISTS, OPTIONAL_CAP),
    st.builds(Rotate, st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300), TIMES, TIMES, TIMES),
    st.builds(Revoke, HASHES, st.none() | HASHES, TIMES),
    st.builds(RevokeOwn, st.binary(max_size=300), st.binary(max_size=300)),
    st.builds(Prove, st.binary(max_size=300), st.binary(max_size=300)),
    st.builds(SetClock, TIMES, st.text(max_size=200)),
)
ENTRIES = st.builds(Entry, st.integers(0, MAX_COUNT), HASHES, TIMES, st.lists(ACTIONS, min_size=1, max_size=5).map(tuple))
DOCUMENTS = {
    "descriptor": (SIGNED, SignedDescriptor),
    "anchor": (ANCHORS, ContentAnchor),
    "withdrawal": (WITHDRAWALS, Withdrawal),
    "policy": (POLICIES, Policy),
    "key statement": (STATEMENTS, KeyStatement),
    "registry entry": (ENTRIES, Entry),
}


def same_to_a_second_library(data):
    """`cbor2` reads the same value, and its canonical encoder writes the same bytes."""
    value = cbor.decode(data, max_size=1 << 20)
    assert repr(cbor2.loads(data)) == repr(value)
    assert cbor2.dumps(value, canonical=True) == data


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_read_back_as_they_were_written(name):
    documents, kind = DOCUMENTS[name]

    @MANY
    @given(documents)
    def check(document):
        data = document.to_cbor()
        again = kind.from_cbor(data)
        assert again == document and again.to_cbor() == data
        same_to_a_second_library(data)

    check()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_mutated_documents_are_refused_or_encode_to_themselves(name):
    documents, kind = DOCUMENTS[name]

    @MANY
    @given(documents, st.data())
    def check(document, data):
        original = document.to_cbor()
        at = data.draw(st.integers(0, len(original) - 1))
        put = data.draw(st.binary(max_size=3))
        mutated = original[:at] + put + original[at + data.draw(st.integers(0, 3)) :]
        try:
            found = kind.from_cbor(mutated)
        except AttestError:
            return
        assert found.to_cbor() == mutated
        same_to_a_second_library(mutated)

    check()


@MANY
@given(OPENED)
def test_openings_are_read_back_with_their_descriptors(descriptor):
    payload, opening = descriptor.to_cbor(), descriptor.opening()
    assert ContributionDescriptor.open(payload, opening) == descriptor
    same_to_a_second_library(opening)


@MANY
@given(OPENED, st.data())
def test_a_mutated_opening_is_refused(descriptor, data):
    payload, opening = descriptor.to_cbor(), descriptor.opening()
    at = data.draw(st.integers(0, len(opening)))
    mutated = opening[:at] + data.draw(st.binary(max_size=3)) + opening[at + data.draw(st.integers(0, 3)) :]
    if mutated != opening:
        with pytest.raises(AttestError):
            ContributionDescriptor.open(payload, mutated)


@MANY
@given(SIGNED, st.binary(max_size=300))
def test_attestations_and_their_headers_are_read_back(descriptor, opening):
    payload = descriptor.to_cbor()
    message = sign1.sign(payload, ALICE, contributor=descriptor.issuer)
    headers = sign1.verify(message, payload, RAW["alice"])
    assert headers == sign1.Headers(
        descriptor.contributor.hex(), sign1.subject_of(payload), keys.key_id(RAW["alice"]), sign1.TYP_ATTESTATION
    )
    attestation = Attestation(payload, message, opening)
    assert cbor2.loads(attestation.to_cbor()) == [payload, message, opening]
    same_to_a_second_library(attestation.to_cbor())
    tagged = cbor2.loads(message)
    assert tagged.tag == 18 and cbor2.dumps(tagged, canonical=True) == message
    protected, unprotected, nothing, signature = tagged.value
    assert (unprotected, nothing, len(signature)) == ({}, None, 64)
    same_to_a_second_library(protected)
    assert sign1.to_be_signed(protected, payload) == cbor2.dumps(["Signature1", protected, b"", payload])


@MANY
@given(IDS, st.binary(max_size=200), st.sampled_from([sign1.TYP_POLICY, sign1.TYP_WITHDRAWAL, sign1.TYP_REGISTRY]))
def test_a_header_states_what_was_signed_for_any_payload_and_type(name, payload, typ):
    message = sign1.sign(payload, ALICE, contributor=name, typ=typ)
    assert sign1.verify(message, payload, RAW["alice"], typ=typ) == sign1.parse(message)
    assert sign1.parse(message).issuer == sign1.peek_issuer(message) == name


@settings(max_examples=40, deadline=None)
@given(POLICIES, HASHES)
def test_signed_policies_are_read_back(policy, root):
    payload, message = sign_policy(policy, OWNER, owner="owner", registry_root=root)
    signed = verify_policy(payload, message, keys.public_bytes(OWNER))
    assert signed.policy.registry_root == root and signed.policy.classes == policy.classes
    assert signed.policy.to_cbor() == payload and signed.owner == "owner"


@MANY
@given(WITHDRAWALS)
def test_signed_withdrawals_are_read_back(withdrawal):
    payload, message = sign_withdrawal(withdrawal, ALICE, signer="alice")
    assert verify_withdrawal(payload, message, RAW["alice"], signer="alice", corpus=withdrawal.corpus) == withdrawal


class Dripping(io.BytesIO):
    """A stream that gives a few bytes at a time, as a pipe may."""

    def read(self, size=-1):
        return super().read(min(size, 1 + self.tell() % 5) if size > 0 else size)


OCTETS = st.binary(max_size=300)
TRIPLES = st.lists(st.tuples(OCTETS, OCTETS, OCTETS), max_size=5)


@MANY
@given(TRIPLES, st.binary(max_size=6))
def test_attestation_files_are_read_alike_in_pieces_in_one_go_and_item_by_item(triples, tail):
    """Whole, dripping, by the strict decoder and by the places of the items; with anything behind the last one."""
    written = [Attestation(*triple) for triple in triples]
    data = b"".join(attestation.to_cbor() for attestation in written) + tail
    runs = []
    for stream in (io.BytesIO(data), Dripping(data)):
        found, code = [], None
        try:
            for place, attestation in read_places(stream):
                found.append((place, attestation))
        except CborError as error:
            code = error.code
        runs.append((found, code))
    assert runs[0] == runs[1]
    found, code = runs[0]
    assert [attestation for _, attestation in found][: len(written)] == written and (code is not None or not tail or found)
    assert all(read_at(io.BytesIO(data), place) == attestation for place, attestation in found)
    at, decoded = 0, []
    try:
        while at < len(data):
            value, at = cbor.decode_prefix(data, at, max_size=1 << 16)
            descriptor, message, opening = value
            decoded.append(Attestation(descriptor, message, opening))
    except (CborError, TypeError, ValueError):
        assert code is not None
    assert decoded == [attestation for _, attestation in found]


KEYS = st.integers(-(2**63), 2**63 - 1) | EDGES | st.text(max_size=6)
SCALARS = (
    st.none()
    | st.booleans()
    | EDGES
    | EDGES.map(lambda n: -1 - n)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=30)
    | st.text(max_size=30)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=10
)


@settings(max_examples=400, deadline=None)
@given(VALUES, st.data())
@pytest.mark.slow
def test_whatever_is_accepted_a_second_library_reads_as_the_same_value(value, data):
    """Mutations of an encoding by `cbor2`, which writes other forms than ours: refused, or read alike."""
    encoded = cbor2.dumps(value, canonical=data.draw(st.booleans()))
    at = data.draw(st.integers(0, len(encoded) - 1))
    mutated = encoded[:at] + data.draw(st.binary(max_size=2)) + encoded[at + data.draw(st.integers(0, 2)) :]
    for candidate in (encoded, mutated):
        try:
            found = cbor.decode(candidate)
        except CborError:
            continue
        assert cbor.encode(found) == candidate
        assert repr(cbor2.loads(candidate)) == repr(found)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, 2**63 - 1) | EDGES, SCALARS, max_size=8))
@pytest.mark.slow
def test_canonical_encoders_agree_on_maps_with_unsigned_keys(value):
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


def test_canonical_encoders_differ_where_the_order_of_keys_does():
    """Length-first order (RFC 7049) and bytewise order (RFC 8949) part at keys of mixed sign: no document has any."""
    value = {100: 0, -1: 0}
    assert cbor.encode(value).hex() == "a21864002000"
    assert cbor2.dumps(value, canonical=True).hex() == "a22000186400"
    with pytest.raises(CborError):
        cbor.decode(cbor2.dumps(value, canonical=True))
