"""What the gate claims for a contribution, and that it claims nothing for one that it refuses."""

import hashlib
from dataclasses import replace

import pytest

from attest.admission import Admitted, Seen
from attest.corpus import Item, Locator
from attest.gate import Gate, decide
from tests.attest.conftest import NOW


def item_of(world, content, *, key=None, **changes):
    digest = hashlib.sha256(content).digest()
    descriptor = replace(world.descriptor, content_hash=digest, **changes)
    return Item(Locator(content.decode(), 0, len(content)), digest, world.sign(descriptor, key))


def codes(gate, items, **options):
    return [
        "ADMITTED" if isinstance(outcome, Admitted) else str(outcome.refusal.code)
        for outcome in gate.judge(items, now=NOW, **options)
    ]


def bobs(world, content):
    return item_of(world, content, key=world.bob, contributor="bob", admissibility_class="open")


def test_a_near_copy_that_is_refused_claims_nothing(world):
    a, near = item_of(world, b"A"), item_of(world, b"a")
    seen = Seen()
    gate = Gate(
        world.policy, world.registry, workers=1, seen=seen, fingerprint=lambda item: item.locator.source.lower().encode()
    )
    assert codes(gate, [a, near, near, a]) == ["ADMITTED", "DUPLICATE_CONTENT", "DUPLICATE_CONTENT", "REPLAYED"]
    assert seen.find(near.content_hash) is None and seen.count("alice") == 1
    assert codes(Gate(world.policy, world.registry, workers=1, seen=seen), [near]) == ["ADMITTED"]


def test_a_fingerprint_does_not_spare_the_comparison_of_contents(world):
    asked = []
    one = item_of(world, b"one")
    gate = Gate(world.policy, world.registry, workers=1, fingerprint=lambda item: asked.append(item))
    again = one._replace(attestation=world.variant(content_hash=one.content_hash, nonce=b"other".ljust(16)))
    assert codes(gate, [one, one, again, again]) == ["ADMITTED", "REPLAYED", "DUPLICATE_CONTENT", "DUPLICATE_CONTENT"]
    assert len(asked) == 1


def test_a_fingerprint_that_fails_admits_nothing_and_claims_nothing(world):
    def fails(item):
        raise ValueError("cannot normalize")

    seen, one = Seen(), item_of(world, b"one")
    with pytest.raises(ValueError, match="normalize"):
        codes(Gate(world.policy, world.registry, workers=1, seen=seen, fingerprint=fails), [one])
    assert codes(Gate(world.policy, world.registry, workers=1, seen=seen), [one]) == ["ADMITTED"]


@pytest.mark.parametrize("hook", [None, lambda item: item.content_hash])
def test_what_is_refused_for_a_withdrawal_or_a_cap_leaves_its_content_to_others(world, hook):
    gate = Gate(world.policy, world.registry, workers=1, fingerprint=hook)
    gone = item_of(world, b"x")
    assert codes(gate, [gone, bobs(world, b"x")], withdrawn={hashlib.sha256(gone.attestation.descriptor).digest()}) == [
        "WITHDRAWN",
        "ADMITTED",
    ]
    many = [bobs(world, b"%d" % number) for number in range(3)]
    third = item_of(world, b"2")
    assert codes(gate, [*many, third]) == ["ADMITTED", "ADMITTED", "CONTRIBUTOR_CAP", "ADMITTED"]


def test_a_cap_of_nothing_admits_nothing_and_claims_nothing(world):
    registry = world.changed(lambda log: log.grant("alice", classes=("sensitive",), cap=0, now=NOW))
    gate = Gate(world.policy, registry, workers=1)
    both = replace(world.descriptor, contributor="bob")
    one = item_of(world, b"x")
    other = one._replace(attestation=world.sign(replace(both, content_hash=one.content_hash), world.bob))
    assert codes(gate, [one, one, other]) == ["CONTRIBUTOR_CAP", "CONTRIBUTOR_CAP", "ADMITTED"]


def test_a_stream_left_early_claims_only_what_it_gave_out(world):
    items = [item_of(world, b"%d" % number) for number in range(10)]
    seen = Seen()
    stream = Gate(world.policy, world.registry, workers=1, seen=seen).judge(items, now=NOW)
    for _ in range(3):
        next(stream)
    stream.close()
    assert [seen.find(item.content_hash) is not None for item in items] == [True] * 3 + [False] * 7
    assert seen.count("alice") == 3


def test_a_stream_and_decide_count_one_person_behind_several_names_alike(world):
    registry = world.changed(
        lambda log: log.enrol(
            "bob", _fresh_key(9), classes=(), not_before=NOW - 9, not_after=NOW + 9, principal="ann", now=NOW
        ),
        lambda log: log.enrol(
            "alice", _fresh_key(8), classes=(), cap=3, not_before=NOW - 9, not_after=NOW + 9, principal="ann", now=NOW
        ),
    )
    items = [item_of(world, b"a"), bobs(world, b"b"), bobs(world, b"c"), item_of(world, b"d"), item_of(world, b"e")]
    found = codes(Gate(world.policy, registry, workers=1), items)
    seen, expected = Seen(), []
    for item in items:
        outcome = decide(item.attestation, item.content_hash, policy=world.policy, registry=registry, now=NOW, seen=seen)
        if hasattr(outcome, "code"):
            expected.append(str(outcome.code))
        else:
            seen.note(outcome, NOW)
            expected.append("ADMITTED")
    assert found == expected == ["ADMITTED", "ADMITTED", "CONTRIBUTOR_CAP", "ADMITTED", "CONTRIBUTOR_CAP"]


def _fresh_key(number):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32).public_key().public_bytes_raw()
