"""What many contributors sign under the same terms: compared with one that passed, and judged as if it were decoded."""

import hashlib
import random
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from attest import keys, sign1
from attest.attestation import Attestation
from attest.corpus import Item, Locator
from attest.descriptor import SALTS_SIZE, split
from attest.gate import Gate, decide
from attest.gate.admission import Passed, Refusal, Refused, Seen
from attest.gate.checks import Examiner, examine
from attest.gate.forms import Cut, Pattern
from attest.keys import ed25519
from attest.registry import Enrol
from attest.schema.plain import SALT_SIZE
from tests.worlds.gate import NOW
from tests.worlds.registries import with_key

YEAR = 365 * 86400
PEOPLE = [f"person-{index}" for index in range(6)]
KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes([40 + index]) * 32) for index, name in enumerate(PEOPLE)}


@pytest.fixture(scope="module")
def town(world):
    """A registry in which contributors differ in whatever the registry says of one."""
    valid = {"not_before": NOW - YEAR, "not_after": NOW + YEAR}
    ungranted, stranger = {"classes": ["open"]}, {"classes": ["sensitive"], "principal": "household-1"}
    said = [{}, {}, stranger, ungranted, {}, {"not_after": NOW}]
    enrolled = [
        Enrol(name, keys.public_bytes(KEYS[name]), **(valid | {"classes": ["sensitive"]} | more))
        for name, more in zip(PEOPLE, said, strict=True)
    ]
    return world.changed(
        lambda log: log.append(enrolled, now=NOW - YEAR, look_alikes=True),
        lambda log: log.revoke("person-4", at=NOW - 5, now=NOW - 5),
    )


def by(world, name, rng, **changes):
    """What a contributor signs of the valid descriptor, with salts, content and nonce of its own."""
    salts, nonce = rng.randbytes(SALTS_SIZE), rng.randbytes(SALT_SIZE)
    said = {"contributor": name, "salts": salts, "nonce": nonce, "content_hash": rng.randbytes(32)} | changes
    return world.sign(replace(world.descriptor, **said), KEYS.get(name, world.alice))


def asked(examiner, attestation, content_hash, **options):
    return examiner.examine(attestation.descriptor, attestation.sign1, attestation.opening, content_hash, **options)


def content_of(attestation):
    parts = split(attestation.descriptor, attestation.opening)
    return parts.content_hash if parts else None


@pytest.fixture
def primed(world, town):
    """An examiner that knows what Alice and one more contributor sign."""
    examiner, rng = Examiner(world.policy, town, NOW), random.Random(1)
    for name in ("alice", "alice", "person-0"):
        attestation = by(world, name, rng)
        assert isinstance(asked(examiner, attestation, content_of(attestation)), Passed)
    (pattern,) = examiner._patterns.values()
    assert isinstance(pattern, Pattern)
    return examiner


def test_a_contributor_whom_the_gate_never_saw_passes_without_being_decoded(world, town, primed, monkeypatch):
    rng = random.Random(2)
    changes = ({}, {"not_before": NOW - 77, "not_after": NOW + 77}, {"data_class": "x" * 64}, {"principal": "me"})
    fresh = [by(world, "person-1", rng, **said) for said in changes]
    expected = [examine(item, content_of(item), policy=world.policy, registry=town, now=NOW) for item in fresh]
    monkeypatch.setattr("attest.gate.checks.examine", lambda *args, **options: pytest.fail("was decoded"))
    found = [asked(primed, item, content_of(item)) for item in fresh]
    assert found == expected and all(isinstance(outcome, Passed) for outcome in found)
    assert {outcome.contributor for outcome in found} == {"person-1"}


REFUSED = {
    "a principal other than the enrolled one": ("person-2", {"principal": "household-2"}, "PRINCIPAL"),
    "a class that is not granted": ("person-3", {}, "CLASS_NOT_GRANTED"),
    "a revoked key": ("person-4", {}, "KEY_REVOKED"),
    "a key that ran out": ("person-5", {}, "KEY_NOT_VALID"),
    "nobody of that name": ("nobody", {}, "KEY_UNKNOWN"),
    "not yet valid": ("person-1", {"not_before": NOW + 1, "not_after": NOW + 9}, "NOT_YET_VALID"),
    "expired": ("person-1", {"not_before": NOW - 9, "not_after": NOW}, "EXPIRED"),
    "too long a validity": ("person-1", {"not_before": NOW - 1, "not_after": NOW + 91 * 86400}, "WINDOW"),
    "larger bounds": ("person-1", {"clip_norm_micro": 1_000_001}, "CLIP_ABOVE_CLASS"),
    "another corpus": ("person-1", {"corpus": "clinic-notes-2027"}, "AUDIENCE"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_a_pattern_does_not_say_is_checked_for_every_contributor(world, town, primed, why):
    name, changes, code = REFUSED[why]
    for number in range(3):
        attestation = by(world, name, random.Random(number), **changes)
        outcome = asked(primed, attestation, content_of(attestation))
        assert isinstance(outcome, Refusal) and outcome.code == code
        assert outcome == examine(attestation, content_of(attestation), policy=world.policy, registry=town, now=NOW)


def test_a_signature_by_another_contributors_key_is_refused_through_a_pattern(world, town, primed):
    theirs = by(world, "person-1", random.Random(3))
    issuer = theirs.opened().issuer
    for key in (world.alice, KEYS["person-0"]):
        forged = replace(theirs, sign1=sign1.sign(theirs.descriptor, key, contributor=issuer))
        assert asked(primed, forged, content_of(forged)).code == "SIG_BAD"
    assert isinstance(asked(primed, theirs, content_of(theirs)), Passed)


@pytest.mark.parametrize("field", range(3), ids=["contributor", "data class", "principal"])
def test_each_commitment_is_opened_anew_for_every_form(world, town, primed, field):
    theirs = by(world, "person-1", random.Random(7))
    at = theirs.opening.index(theirs.opened().salts) + field * SALT_SIZE
    changed = replace(theirs, opening=theirs.opening[:at] + bytes(SALT_SIZE) + theirs.opening[at + SALT_SIZE :])
    assert asked(primed, changed, content_of(changed)).code == "OPENING"
    assert isinstance(asked(primed, theirs, content_of(theirs)), Passed)


def encoded(point):
    """The 32 bytes of a point."""
    x, y, z, _ = point
    inverse = pow(z, -1, ed25519.P)
    return (y * inverse % ed25519.P | (x * inverse % ed25519.P & 1) << 255).to_bytes(32, "little")


BASE = ed25519.decompress(b"\x58" + b"\x66" * 31)
TORSION = ed25519.decompress(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"))
SCALAR = 0x123456789ABCDEF << 150
MIXED = encoded(ed25519.add(ed25519.multiply(SCALAR, BASE), TORSION))
"""A key with a component of order 8, whose discrete logarithm but for that is known."""


def signed_by_mixed(message):
    """A signature that the library takes for good under `MIXED`: one in eight nonces gives one (RFC 8032, 5.1.6)."""
    for nonce in range(1, 200):
        r = encoded(ed25519.multiply(nonce, BASE))
        challenge = int.from_bytes(hashlib.sha512(r + MIXED + message).digest(), "little") % ed25519.L
        if challenge % 8 == 0:
            signature = r + ((nonce + challenge * SCALAR) % ed25519.L).to_bytes(32, "little")
            Ed25519PublicKey.from_public_bytes(MIXED).verify(signature, message)
            return signature
    raise AssertionError("no challenge is a multiple of 8")


def test_a_key_of_mixed_order_is_refused_though_pattern_and_signature_fit(world, town, primed):
    """The library takes the signature for good: the test of the key, before its first signature, is what refuses it."""
    registry = with_key(town, "person-1", raw=MIXED)
    examiner = Examiner(world.policy, registry, NOW)
    examiner._patterns = primed._patterns
    for number in range(2):
        good = by(world, "person-1", random.Random(number))
        protected = sign1.protected_header(good.descriptor, keys.key_id(MIXED), good.opened().issuer, sign1.TYP_ATTESTATION)
        signature = signed_by_mixed(sign1.to_be_signed(protected, good.descriptor))
        weak = replace(good, sign1=sign1.assemble(protected, signature))
        parts, content_hash = split(weak.descriptor, weak.opening), content_of(weak)
        cut = Cut.of(parts)
        form = examiner._patterns[cut.shared].form(parts, cut, weak.sign1, registry, NOW)
        assert isinstance(form.match(weak.descriptor, weak.sign1, parts, True), Passed), "all but key and signature fits"
        assert asked(examiner, weak, content_hash).code == "KEY_WEAK"
        assert asked(examiner, weak, content_hash, verified=True) == examine(
            weak, content_hash, policy=world.policy, registry=registry, now=NOW, verified=True
        )
        assert asked(examiner, weak, content_hash).code == "KEY_WEAK", "what was spared once vouches for nothing after"


def mutants(world, rng):
    """Attestations of several contributors with bytes changed, cut, put in and exchanged."""
    pool = [by(world, name, rng) for name in ("alice", "person-0", "person-1", "person-1", "person-2")]
    pool += [by(world, "person-1", rng, principal="me"), by(world, "person-1", rng, not_before=NOW - 50)]
    for one in pool:
        for other in pool:
            yield replace(one, opening=other.opening)
            yield replace(one, sign1=other.sign1)
            parts, cut = split(one.descriptor, one.opening), Cut.of(split(one.descriptor, one.opening))
            foreign = Cut.of(split(other.descriptor, other.opening))
            for field in ("contributor", "data_class", "principal", "not_before", "not_after"):
                swapped = cut._replace(**{field: getattr(foreign, field)})
                payload = parts._replace(rest=(*swapped.join(), *parts.rest[2:])).join()[0]
                yield replace(one, descriptor=payload)
                message = sign1.sign(payload, KEYS["person-1"], contributor=swapped.contributor.hex())
                yield Attestation(payload, message, one.opening)
        for part in ("descriptor", "sign1", "opening"):
            data = getattr(one, part)
            for at in range(len(data)):
                flipped = bytearray(data)
                flipped[at] ^= 1 << rng.randrange(8)
                yield replace(one, **{part: bytes(flipped)})
                if at % 3 == 0:
                    yield replace(one, **{part: data[:at] + rng.randbytes(1) + data[at:]})
                    yield replace(one, **{part: data[:at]})


@pytest.mark.slow
def test_mutants_of_several_contributors_are_judged_as_the_strict_decoder_judges_them(world, town, primed):
    """Every input is given to an examiner that knows the pattern, and to `examine`; the outcomes are equal."""
    count = passed = 0
    for mutant in mutants(world, random.Random(5)):
        content_hash, count = content_of(mutant), count + 1
        found = asked(primed, mutant, content_hash)
        assert found == examine(mutant, content_hash, policy=world.policy, registry=town, now=NOW)
        passed += isinstance(found, Passed)
    assert count > 7000 and passed >= len(PEOPLE)


@pytest.mark.slow
def test_signed_openings_of_every_shape_are_judged_as_the_strict_decoder_judges_them(world, town, primed):
    """The opening is not signed: whoever holds the key may put any bytes there, and the commitments must catch them."""
    rng = random.Random(6)
    good = by(world, "person-1", rng, principal="me", data_class="d" * 30)
    opening = good.opening
    names = opening.index(b"\x04\x68person-1")
    tricks = [
        opening[:names] + b"\x04\x78\x08person-1" + opening[names + 10 :],
        opening.replace(b"\x62me", b"\x60"),
        opening.replace(b"\x06\x62me", b"\x06\xf6"),
        opening.replace(b"\x06\x62me", b"").replace(b"\xa6", b"\xa5"),
        opening.replace(b"\x06\x62me", b""),
        opening.replace(b"\x78\x1e", b"\x79\x00\x1e"),
        opening.replace(b"\x78\x1e", b"\x79"),
        opening + b"\x00",
        opening.replace(b"me", b"Me"),
        opening.replace(b"me", b"\xc3\xa9"),
        opening.replace(b"\x68person-1", b"\x68person-0"),
    ]
    for trick in tricks:
        assert trick != opening
        attestation = replace(good, opening=trick)
        found = asked(primed, attestation, content_of(attestation))
        assert isinstance(found, Refusal)
        assert found == examine(attestation, content_of(attestation), policy=world.policy, registry=town, now=NOW)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("order", ["by contributor", "in turn", "at random"])
def test_outcomes_are_those_of_each_contribution_whatever_the_order_and_the_workers(world, town, workers, order, monkeypatch):
    monkeypatch.setattr("attest.gate.gate.PARALLEL_FROM", 10)
    monkeypatch.setattr("attest.gate.gate.BATCH", 7)
    rng, items = random.Random(8), []
    for number in range(12):
        for name in ("alice", *PEOPLE, "nobody"):
            attestation = by(world, name, rng, salts=name.encode().ljust(SALTS_SIZE, b"."))
            if number % 5 == 3:
                attestation = replace(attestation, sign1=attestation.sign1[:-1] + bytes([attestation.sign1[-1] ^ 1]))
            items.append(Item(Locator(name, number, 1), content_of(attestation), attestation))
    if order == "by contributor":
        items.sort(key=lambda item: item.locator.source)
    elif order == "at random":
        rng.shuffle(items)
    found = list(Gate(world.policy, town, workers=workers).judge(items, now=NOW))
    assert [outcome.locator for outcome in found] == [item.locator for item in items]
    for item, outcome in zip(items, found, strict=True):
        alone = decide(item.attestation, item.content_hash, policy=world.policy, registry=town, now=NOW, seen=Seen())
        assert outcome[0] == alone
    assert {str(one.refusal.code) for one in found if isinstance(one, Refused)} >= {"SIG_BAD", "KEY_UNKNOWN", "KEY_REVOKED"}
