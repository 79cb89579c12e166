"""A second gate, written along docs/formats, says the same: on attacks, mutations, and what a contributor may sign."""

import ast
import hashlib
import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor, keys
from attest.errors import KeyRefused
from attest.gate import Admission, Seen, decide
from attest.keys import ed25519
from tests.attacks.attestation.test_attested_through_the_command import THROUGH_THE_COMMAND
from tests.attacks.attestation.test_weak_keys_and_signatures import SMALL_ORDER
from tests.attacks.mutations import Mutator, claimed_content, make_originals, parts_of
from tests.attacks.scene import commitments, make_scene, opening_fields, sealed, signed
from tests.attacks.scene import descriptor_fields as fields_of
from tests.attacks.scene import header_fields as header_of
from tests.attest.test_purposes import purposes_of
from tests.reference import second_gate
from tests.vectors.published import vectors
from tests.worlds.gate import ALICE, CONTENT, CORPUS, NOW

SCENE = make_scene()


def rules_of(scene):
    """Policy and registry of a scene as plain values."""
    policy = scene.policy
    return second_gate.Rules(
        policy.corpus,
        {
            rule.name: (
                rule.clip_norm_micro,
                rule.noise_multiplier_micro,
                min(policy.max_window, rule.max_window or policy.max_window),
            )
            for rule in policy.classes
        },
        (policy.min_clip_norm_micro, policy.min_noise_multiplier_micro),
        policy.max_examples,
        {
            c.name: ([(k.raw, k.not_before, k.not_after, k.revoked_at) for k in c.keys], list(c.classes), c.principal)
            for c in scene.registry.contributors
        },
        scene.registry.time,
        {rule.name: rule.public_lengths for rule in policy.classes},
        {rule.name: rule.purposes for rule in policy.classes},
    )


RULES = rules_of(SCENE)


def both(attestation, content_hash, now=NOW):
    """The codes of the second implementation and of `decide`."""
    second = second_gate.judge(*parts_of(attestation), content_hash, RULES, now)
    outcome = decide(attestation, content_hash, policy=SCENE.policy, registry=SCENE.registry, now=now, seen=Seen())
    return second, "ADMITTED" if isinstance(outcome, Admission) else str(outcome.code)


def test_the_second_implementation_imports_nothing_of_the_first():
    tree = ast.parse(Path(second_gate.__file__).read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not any(name.split(".")[0] in ("attest", "tests", "ledger", "dptrain") for name in imported)


@pytest.mark.parametrize("name", THROUGH_THE_COMMAND)
def test_attacks(name):
    make, code = THROUGH_THE_COMMAND[name]
    assert both(make(), hashlib.sha256(CONTENT).digest()) == (code, code)


def test_what_is_right_at_every_edge_of_time():
    digest = hashlib.sha256(CONTENT).digest()
    for now in (NOW - 1001, NOW - 1000, NOW, NOW + 999, NOW + 1000):
        second, first = both(signed(), digest, now)
        assert second == first
    assert both(signed(), digest)[0] == "ADMITTED" and both(signed(), None)[0] == "CONTENT_MISSING"


@pytest.mark.parametrize("count", [2000, pytest.param(8000, marks=pytest.mark.slow)])
def test_thousands_of_mutations(count: int):
    for mutant in itertools.islice(Mutator(make_originals(), 77), count):
        second, first = both(mutant.attestation, claimed_content(mutant.attestation))
        assert second == first, mutant


@pytest.mark.slow
def test_mutations_that_a_contributor_signs():
    """Past the signature: descriptors and headers mutated and then signed by Alice's own key."""
    rng, codes = random.Random(5), set()
    for mutant in itertools.islice(Mutator(make_originals(), 78), 5000):
        descriptor, opened = mutant.attestation.descriptor, mutant.attestation.opening
        header = header_of(descriptor)
        attestation = sealed(descriptor, cbor.encode(header), ALICE, opened)
        if rng.randrange(4) == 0:
            at = rng.randrange(100)
            protected = bytearray(cbor.encode(header))
            protected[at] ^= 1 << rng.randrange(8)
            attestation = sealed(descriptor, bytes(protected), ALICE, opened)
        second, first = both(attestation, claimed_content(attestation))
        assert second == first, attestation
        codes.add(first)
    assert {"ADMITTED", "AUDIENCE", "CLIP_ABOVE_CLASS", "NOISE_BELOW_CLASS", "WINDOW", "SCHEMA", "TYPE", "OPENING"} <= codes


@pytest.mark.parametrize("served", [("train",), ("generate",), ("generate", "train")], ids="+".join)
@pytest.mark.parametrize("purpose", ["train", "generate"])
def test_uses_are_judged_alike_whatever_is_signed_and_whatever_the_class_has(purpose, served):
    digest = hashlib.sha256(CONTENT).digest()
    policy = purposes_of(SCENE.policy, sensitive=served)
    rules = replace(rules_of(replace(SCENE, policy=policy)), purpose=purpose)
    admitted = 0
    for size in range(4):
        for words in (None, *map(list, itertools.permutations(("generate", "query", "train"), size))):
            attestation = signed({} if words is None else {16: words})
            found = decide(
                attestation, digest, policy=policy, registry=SCENE.registry, now=NOW, seen=Seen(), purpose=purpose
            )
            first = "ADMITTED" if isinstance(found, Admission) else str(found.code)
            assert second_gate.judge(*parts_of(attestation), digest, rules, NOW) == first, words
            admitted += first == "ADMITTED"
    assert (admitted > 0) == (purpose in served)


NUMBERS = (0, 1, 4, 5, 9_999, 10_000, 10**6, 10**6 + 1, 1_099_999, 1_100_000, 2**32, 2**53, -1)
MOMENTS = (NOW - 1, NOW, NOW + 1, NOW + 90 * 86400)
OTHERS = (True, None, 1.0, "", "alice", "bob", "open", "sensitive", CORPUS, "A", bytes(16), bytes(32), b"", [], {})
WORDS = (["train"], ["generate"], ["generate", "train"], ["query", "train"], ["train", "generate"])
VALUES = st.sampled_from([*NUMBERS, *MOMENTS, *OTHERS, *WORDS])


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.integers(0, 18), VALUES, max_size=4), st.sampled_from([None, "content", "other"]))
def test_descriptors_with_a_few_fields_changed_and_signed(changes, content):
    fields = fields_of() | changes
    payload = cbor.encode(fields)
    attestation = sealed(payload, cbor.encode(header_of(payload)), ALICE)
    digest = {None: None, "content": hashlib.sha256(CONTENT).digest(), "other": bytes(32)}[content]
    second, first = both(attestation, digest)
    assert second == first


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.integers(0, 7), VALUES, max_size=3), st.booleans())
def test_openings_with_a_few_fields_changed_and_committed_to(changes, committed):
    """By a contributor who commits to them, or by whoever keeps the file that lies beside the data."""
    opened = opening_fields() | changes
    payload = cbor.encode(fields_of() | (commitments(opened) if committed else {}))
    attestation = sealed(payload, cbor.encode(header_of(payload)), ALICE, cbor.encode(opened))
    second, first = both(attestation, hashlib.sha256(CONTENT).digest())
    assert second == first
    assert first != "ADMITTED" or committed or opened == opening_fields()


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=60))
def test_bytes(data):
    try:
        value = second_gate.read(data)
    except second_gate.Refused as refused:
        with pytest.raises(cbor.CborError) as caught:
            cbor.decode(data)
        assert caught.value.code == str(refused)
        return
    assert repr(cbor.decode(data)) == repr(value)


def codes_of_reading(data):
    """The value and code of each decoder."""
    answers = []
    for read, error in ((second_gate.read, second_gate.Refused), (cbor.decode, cbor.CborError)):
        try:
            answers.append((repr(read(data)), None))
        except error as refused:
            answers.append((None, getattr(refused, "code", str(refused))))
    return answers


def test_every_input_of_at_most_two_bytes():
    for length in range(3):
        for number in range(256**length):
            second, first = codes_of_reading(number.to_bytes(length, "big"))
            assert second == first, number


def test_keys():
    raws = [bytes.fromhex(text) for text in SMALL_ORDER]
    raws += [bytes.fromhex(case["pub_key"]) for case in vectors("ed25519")["speccheck"]]
    raws += [y.to_bytes(32, "little") for y in (2, 3, 4, 5, ed25519.P + 3)]
    raws += [Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32).public_key().public_bytes_raw() for n in (1, 2)]
    for raw in raws:
        try:
            keys.check_public_key(raw)
            ours = True
        except KeyRefused:
            ours = False
        assert second_gate.sound(raw) is ours
