"""Attacks by who signs and how often, A11 to A15: duplicates, floods, classes, names that look alike.

Unless a test says otherwise, an outcome is asked of `decide` and of `run_gate`, and both must say the same (`Scene.code`).
"""

import hashlib
import json
from dataclasses import replace

import pytest

from attest import keys
from attest.descriptor import MAX_MICRO
from attest.errors import AttestError
from attest.gate import Gate, Refused, Seen
from attest.registry import KeyStatement
from tests.attacks.attestation.test_signed_for_something_else import KEY_ID
from tests.attacks.scene import (
    item_of,
    signed,
)
from tests.worlds.gate import (
    ALICE,
    BOB,
    CONTENT,
    MALLORY,
    NOW,
    OWNER,
    RAW,
    YEAR,
    make_registry,
)


def enrol(log, name, raw, classes=("open",), **options):
    """Enrol a key for two years."""
    return log.enrol(name, raw, classes=classes, not_before=NOW - YEAR, not_after=NOW + YEAR, now=NOW, **options)


# --- A11, A12: the same content twice ----------------------------------------------------------


def test_A11_the_same_content_from_two_contributors_is_DUPLICATE_CONTENT(scene):
    alice, bob = signed(), signed({"contributor": "bob", 4: "open"}, key=BOB, nonce=bytes(16))
    assert scene.codes([(alice, CONTENT), (bob, CONTENT)]) == ["ADMITTED", "DUPLICATE_CONTENT"]
    assert scene.codes([(bob, CONTENT), (alice, CONTENT)]) == ["ADMITTED", "DUPLICATE_CONTENT"]


def test_A11_the_same_content_under_two_attestations_of_one_contributor_is_DUPLICATE_CONTENT(scene):
    pairs = [(signed(nonce=bytes([n]) * 16), CONTENT) for n in range(5)]
    assert scene.codes(pairs) == ["ADMITTED"] + ["DUPLICATE_CONTENT"] * 4


def test_A11_a_refused_attestation_does_not_block_the_content_for_its_rightful_contributor(scene):
    forged = signed(key=MALLORY, header={4: KEY_ID["alice"]})
    assert scene.codes([(forged, CONTENT), (signed(), CONTENT)]) == ["SIG_BAD", "ADMITTED"]


def test_A11_the_same_content_in_a_later_batch_is_DUPLICATE_CONTENT(scene):
    seen = Seen()
    assert scene.codes([(signed(), CONTENT)], seen=seen) == ["ADMITTED"]
    assert scene.codes([(signed(nonce=bytes(16)), CONTENT), (signed(), CONTENT)], seen=seen) == [
        "DUPLICATE_CONTENT",
        "REPLAYED",
    ]


def test_A12_the_same_record_in_another_spelling_is_admitted_and_the_documentation_says_so(scene, formats_page):
    """Near duplicates are outside the gate: only a corpus owner knows which records mean the same."""
    other = CONTENT.replace(b": ", b":")
    assert scene.codes([(signed(), CONTENT), (signed(content=other, nonce=bytes(16)), other)]) == ["ADMITTED"] * 2
    assert "near duplicate" in formats_page.casefold()


def test_A12_the_same_record_in_another_spelling_is_DUPLICATE_CONTENT_under_a_hook_that_knows_spellings(scene):
    spellings = [CONTENT, CONTENT.replace(b": ", b":"), b'{"text": "another record"}']
    items = [
        item_of(signed(content=content, nonce=bytes([n]) * 16), content, f"{n}.txt") for n, content in enumerate(spellings)
    ]

    def fingerprint(item):
        value = json.loads(spellings[int(item.locator.source.removesuffix(".txt"))])
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()

    gate = Gate(scene.policy, scene.registry, workers=1, fingerprint=fingerprint)
    outcomes = list(gate.judge(items, now=NOW))
    codes = [str(outcome.refusal.code) if isinstance(outcome, Refused) else "ADMITTED" for outcome in outcomes]
    assert codes == ["ADMITTED", "DUPLICATE_CONTENT", "ADMITTED"]


# --- A13: floods ----------------------------------------------------------


@pytest.mark.parametrize(("registry_cap", "policy_cap", "admitted"), [(3, 100, 3), (None, 3, 3), (5, 3, 3), (0, 3, 0)])
def test_A13_a_flood_is_CONTRIBUTOR_CAP_from_the_first_contribution_above_the_cap(scene, registry_cap, policy_cap, admitted):
    registry = make_registry(alice=registry_cap)
    pairs = [(signed(content=b"%d" % n), b"%d" % n) for n in range(6)]
    pairs.append((signed({"contributor": "bob", 4: "open"}, key=BOB, content=b"bob"), b"bob"))
    codes = scene.codes(pairs, registry=registry, policy=replace(scene.policy, contributor_cap=policy_cap))
    assert codes == ["ADMITTED"] * admitted + ["CONTRIBUTOR_CAP"] * (6 - admitted) + ["ADMITTED"]


def test_A13_refused_attestations_in_anothers_name_do_not_use_up_the_cap(scene):
    registry = make_registry(alice=1)
    forged = [(signed(key=MALLORY, header={4: KEY_ID["alice"]}, content=b"%d" % n), b"%d" % n) for n in range(5)]
    assert scene.codes([*forged, (signed(), CONTENT)], registry=registry) == ["SIG_BAD"] * 5 + ["ADMITTED"]


def test_A13_a_contributor_with_two_keys_has_one_cap(scene):
    registry = make_registry(lambda log: enrol(log, "alice", RAW["mallory"], ()), alice=1)
    pairs = [(signed(content=b"1"), b"1"), (signed(key=MALLORY, content=b"2"), b"2")]
    assert scene.codes(pairs, registry=registry) == ["ADMITTED", "CONTRIBUTOR_CAP"]


def test_A13_one_person_behind_two_contributors_has_one_cap(scene):
    """The registry says who stands behind a contributor; what an attestation says of it cannot contradict that."""
    registry = make_registry(
        lambda log: enrol(log, "alice", RAW["mallory"], (), principal="person-7"),
        lambda log: enrol(log, "bob", keys.public_bytes(OWNER), (), principal="person-7"),
    )
    pairs = [
        (signed(content=b"1"), b"1"),
        (signed({"contributor": "bob", 4: "open"}, key=BOB, content=b"2"), b"2"),
        (signed({"contributor": "bob", 4: "open", "principal": "person-8"}, key=BOB, content=b"3"), b"3"),
    ]
    policy = replace(scene.policy, contributor_cap=1)
    assert scene.codes(pairs, registry=registry, policy=policy) == ["ADMITTED", "CONTRIBUTOR_CAP", "PRINCIPAL"]


# --- A14: classes ----------------------------------------------------------


def test_A14_a_class_that_the_registry_does_not_grant_is_CLASS_NOT_GRANTED(scene):
    assert scene.code(signed({4: "open"})) == "CLASS_NOT_GRANTED"
    assert scene.code(signed({"contributor": "bob", 4: "open"}, key=BOB)) == "ADMITTED"


def test_A14_a_class_that_the_policy_lacks_is_CLASS_UNKNOWN(scene):
    for name in ("public", "open.", "sensitive/open", "sensitive-"):
        assert scene.code(signed({4: name})) == "CLASS_UNKNOWN"


def test_A14_a_class_that_is_public_admits_only_who_signed_that_it_is_or_BOUNDS_NOT_PUBLIC(scene):
    """Neither a softer policy nor a class renamed public strips bounds that somebody signed."""
    public = {"public": True, "clip_norm_micro": MAX_MICRO, "noise_multiplier_micro": 1}
    rules = tuple(replace(rule, **public) if rule.name == "sensitive" else rule for rule in scene.policy.classes)
    policy = replace(scene.policy, classes=rules)
    for changes in ({}, {5: MAX_MICRO}, {6: 1}, {5: MAX_MICRO - 1, 6: 1}, {5: MAX_MICRO, 6: 2}):
        assert scene.code(signed(changes), policy=policy) == "BOUNDS_NOT_PUBLIC"
    assert scene.code(signed({5: MAX_MICRO, 6: 1}), policy=policy) == "ADMITTED"
    assert scene.code(signed({5: MAX_MICRO, 6: 1})) == "CLIP_ABOVE_CLASS"


def test_A14_a_contributor_without_any_grant_is_CLASS_NOT_GRANTED(scene):
    registry = make_registry(lambda log: log.grant("alice", classes=(), cap=None, now=NOW))
    assert scene.code(signed(), registry=registry) == "CLASS_NOT_GRANTED"


# --- A15: identifiers that look alike ----------------------------------------------------------

CONFUSABLES = {
    "Cyrillic e": "s\u0435nsitive",
    "Cyrillic s and i": "\u0455ens\u0456t\u0456ve",
    "Greek omicron": "\u03bfpen",
    "NFD": "se\u0301nsitive",
    "NFC": "s\u00e9nsitive",
    "full width": "\uff53ensitive",
    "mathematical": "\U0001d42censitive",
    "ligature": "\ufb01le",
    "long s": "\u017fensitive",
    "dotless i": "sens\u0131tive",
    "trailing space": "sensitive ",
    "leading space": " sensitive",
    "no-break space": "sensitive\u00a0",
    "tab": "sensitive\t",
    "newline": "sensitive\n",
    "carriage return": "sensitive\r",
    "upper case": "Sensitive",
    "all upper case": "SENSITIVE",
    "right-to-left mark": "sensitive\u200f",
    "right-to-left override": "\u202eevitisnes",
    "zero-width space": "sensi\u200btive",
    "zero-width joiner": "sensi\u200dtive",
    "soft hyphen": "sensi\u00adtive",
    "byte order mark": "\ufeffsensitive",
    "variation selector": "sensitive\ufe0f",
    "tag character": "sensitive\U000e0061",
    "NUL": "sensitive\x00",
    "NUL and more": "sensitive\x00open",
    "escape": "\x1b[31msensitive",
    "delete": "sensitive\x7f",
    "Arabic digit": "class\u0663",
    "full-width digit": "class\uff13",
    "fraction slash": "sensitive\u2044open",
    "en dash": "sensitive\u2013open",
    "backslash": "sensitive\\open",
    "percent": "sensitive%20",
    "comma": "sensitive,open",
    "asterisk": "*",
    "empty": "",
    "65 characters": "a" * 65,
    "16000 characters": "a" * 16000,
}


@pytest.mark.parametrize("name", CONFUSABLES)
def test_A15_identifiers_that_look_alike_are_RANGE(scene, name):
    for field in (4, 11, "contributor", "data class", "principal"):
        too_large = type(field) is str and len(CONFUSABLES[name]) > 500
        assert scene.code(signed({field: CONFUSABLES[name]})) == ("SIZE" if too_large else "RANGE")


@pytest.mark.parametrize("name", CONFUSABLES)
def test_A15_neither_registry_nor_policy_take_a_lookalike(scene, name):
    text = CONFUSABLES[name]
    for make in (
        lambda: make_registry(lambda log: enrol(log, text, RAW["mallory"])),
        lambda: make_registry(lambda log: enrol(log, "eve", RAW["mallory"], (text,))),
        lambda: make_registry(lambda log: log.grant("alice", classes=(text,), cap=None, now=NOW)),
        lambda: replace(scene.policy, corpus=text),
        lambda: replace(scene.policy.classes[0], name=text),
    ):
        with pytest.raises(AttestError) as caught:
            make()
        assert caught.value.code == "RANGE"


@pytest.mark.parametrize("name", ["a1ice", "b0b", "0wner", "ovvner"])
def test_A15_a_name_that_looks_like_an_enrolled_one_is_LOOK_ALIKE_at_enrolment(scene, name):
    """Inside the alphabet of identifiers too: nobody reads a1ice in a list of contributors where alice is enrolled."""
    with pytest.raises(AttestError) as caught:
        make_registry(lambda log: enrol(log, name, RAW["mallory"]))
    assert caught.value.code == "LOOK_ALIKE" and repr(name) in caught.value.sentence
    meant = make_registry(lambda log: enrol(log, name, RAW["mallory"], look_alikes=True))
    assert meant.find(name) is not None


def test_A4_a_key_that_its_holder_did_not_prove_stays_the_owners_word(scene):
    """The owner can enrol whose key it likes; that it is to speak in this registry only its holder can sign."""
    registry = make_registry(lambda log: enrol(log, "carol", RAW["mallory"]))
    (record,) = registry.find("carol").keys
    assert not record.proved
    fields = {"kind": "prove", "registry_id": registry.registry_id, "key": RAW["mallory"], "time": NOW}
    statement = KeyStatement(**fields)
    for signer in (OWNER, ALICE):
        with pytest.raises(AttestError) as caught:
            make_registry(
                lambda log: enrol(log, "carol", RAW["mallory"]),
                lambda log, signer=signer: log.prove(statement, statement.sign(signer), now=NOW),
            )
        assert caught.value.code == "SIG_BAD"
    proved = make_registry(
        lambda log: enrol(log, "carol", RAW["mallory"]),
        lambda log: log.prove(statement, statement.sign(MALLORY), now=NOW),
    )
    assert proved.find("carol").keys[0].proved


def test_A15_identifiers_of_another_type_are_TYPE(scene):
    for field in (1, 4, 11, "contributor", "data class"):
        for value in (b"sensitive", 1, None, ["sensitive"], True, {1: "sensitive"}):
            assert scene.code(signed({field: value})) == "TYPE"
