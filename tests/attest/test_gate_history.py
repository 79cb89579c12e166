"""What the gate claims for a contribution, and that it claims nothing for one that it refuses."""

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.corpus import Item, Locator
from attest.gate import Gate, decide
from attest.gate.admission import Admitted, Seen
from attest.gate.checks import Examiner
from attest.gate.reading import Verified
from attest.keys import key_id
from attest.registry import Revoke
from tests.worlds.gate import NOW


def _fresh_key(number):
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32).public_key().public_bytes_raw()


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


def test_withdrawals_of_earlier_batches_stand(world):
    one, two, three = (item_of(world, content) for content in (b"1", b"2", b"3"))
    first, second = ({hashlib.sha256(item.attestation.descriptor).digest()} for item in (one, two))
    seen = Seen(withdrawn=frozenset(first))
    gate = Gate(world.policy, world.registry, workers=1, seen=seen)
    assert codes(gate, [one, two, three], withdrawn=second) == ["WITHDRAWN", "WITHDRAWN", "ADMITTED"]
    assert codes(gate, [one, two, three]) == ["WITHDRAWN", "WITHDRAWN", "REPLAYED"]


def test_the_clock_may_step_back_a_minute_between_streams(world):
    seen, items = Seen(), [item_of(world, b"%d" % number) for number in range(3)]
    gate = Gate(world.policy, world.registry, workers=1, seen=seen)

    def at(now, item):
        (outcome,) = gate.judge([item], now=now)
        return "ADMITTED" if isinstance(outcome, Admitted) else str(outcome.refusal.code)

    assert [at(NOW, items[0]), at(NOW - 61, items[1]), at(NOW - 60, items[1])] == ["ADMITTED", "CLOCK", "ADMITTED"]
    assert [at(NOW - 61, items[2]), at(NOW + 1, items[2])] == ["CLOCK", "ADMITTED"]
    assert seen.latest == NOW + 1


def test_a_fingerprint_is_never_taken_for_a_content(world):
    one, two = item_of(world, b"one"), item_of(world, b"two")

    def hook(item):
        return one.content_hash if item is two else None

    assert codes(Gate(world.policy, world.registry, workers=1, fingerprint=hook), [one, two]) == ["ADMITTED", "ADMITTED"]
    assert codes(Gate(world.policy, world.registry, workers=1, fingerprint=hook), [two, one]) == ["ADMITTED", "ADMITTED"]


class TestRememberedInAStream:
    """A23, once a form is known, so that a remembered message is spared its signature."""

    def known(self, world):
        return [item_of(world, b"known %d" % number) for number in range(3)]

    def test_another_signature_over_what_was_remembered_is_verified(self, world):
        first, good = self.known(world), item_of(world, b"good")
        gate = Gate(world.policy, world.registry, workers=1, remember=Verified())
        assert codes(gate, [*first, good]) == ["ADMITTED"] * 4
        message = good.attestation.sign1
        forgeries = [message[:-64] + other.attestation.sign1[-64:] for other in first]
        forgeries += [message[:-1] + bytes([message[-1] ^ 1]), message[:-64] + bytes(64)]
        forged = [good._replace(attestation=replace(good.attestation, sign1=other)) for other in forgeries]
        for item in forged:
            assert codes(gate, [*first, item, good]) == ["ADMITTED"] * 3 + ["SIG_BAD", "ADMITTED"]

    def test_what_was_refused_is_verified_again(self, world):
        first, good = self.known(world), item_of(world, b"good")
        message = good.attestation.sign1
        forged = good._replace(attestation=replace(good.attestation, sign1=message[:-64] + bytes(64)))
        gate = Gate(world.policy, world.registry, workers=1, remember=Verified())
        for _ in range(3):
            assert codes(gate, [*first, forged]) == ["ADMITTED"] * 3 + ["SIG_BAD"]

    def test_another_content_is_compared_although_the_message_is_remembered(self, world):
        first, good = self.known(world), item_of(world, b"good")
        gate = Gate(world.policy, world.registry, workers=1, remember=Verified())
        assert codes(gate, [*first, good]) == ["ADMITTED"] * 4
        swapped = good._replace(content_hash=bytes(32))
        assert codes(gate, [*first, swapped, good]) == ["ADMITTED"] * 3 + ["CONTENT_MISMATCH", "ADMITTED"]


def test_two_keys_of_one_short_name_are_told_apart(world, monkeypatch):
    """A key id is 64 bits, so a contributor can make two keys of one; a revoked one must not speak for the other."""
    revoked, valid = world.alice, Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
    registry = world.changed(
        lambda log: log.append([Revoke("alice", revoked.public_key().public_bytes_raw(), NOW - 10)], now=NOW - 10),
        lambda log: log.enrol(
            "alice", valid.public_key().public_bytes_raw(), classes=(), not_before=NOW - 9, not_after=NOW + 9, now=NOW - 9
        ),
    )
    for module in ("attest.sign1", "attest.registry.entries"):
        monkeypatch.setattr(f"{module}.key_id", lambda raw: b"same key")
    good = [item_of(world, b"good %d" % number, key=valid) for number in range(4)]
    bad = [item_of(world, b"bad %d" % number, key=revoked) for number in range(4)]
    mixed = [item for pair in zip(good, bad, strict=True) for item in pair]
    assert codes(Gate(world.policy, registry, workers=1), mixed) == ["ADMITTED", "SIG_BAD"] * 4


def test_both_keys_of_a_contributor_are_taken_in_turn(world):
    second = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
    registry = world.changed(
        lambda log: log.enrol(
            "alice", second.public_key().public_bytes_raw(), classes=(), not_before=NOW - 9, not_after=NOW + 9, now=NOW - 9
        )
    )
    items = [item_of(world, b"%d" % n, key=(world.alice, second)[n % 2]) for n in range(8)]
    examiner = Examiner(world.policy, registry, NOW)
    for item in items:
        examiner.examine(item.attestation.descriptor, item.attestation.sign1, item.attestation.opening, item.content_hash)
    assert len(examiner._known) == 1 and None not in examiner._patterns.values()
    outcomes = list(Gate(world.policy, registry, workers=1).judge(items, now=NOW))
    keys = [key_id(key.public_key().public_bytes_raw()) for key in (world.alice, second)]
    assert [outcome.admission.key_id for outcome in outcomes] == keys * 4
    for item, outcome in zip(items, outcomes, strict=True):
        assert outcome.admission.attestation_hash == item.attestation.digest()
        assert outcome.admission.descriptor_hash == hashlib.sha256(item.attestation.descriptor).digest()
