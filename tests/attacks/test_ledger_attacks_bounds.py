"""Bounds, limits and contributions that nobody signed.

The liar has the log's key, and writes attestations and a registry beside the leaves too. What it cannot do is sign for a
contributor or for the owner. No lie is FULL; each is a finding with a code and a place, but where nothing is said to be signed
at all: that is TOLD.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor, sign1
from attest.attestation import CommonTerms, Framing
from attest.corpus.signing import sign_descriptor
from attest.descriptor import PUBLIC_BOUNDS
from attest.keys import ed25519, key_id, public_bytes
from attest.registry import Enrol, RegistryLog
from attest.registry.entries import join, split
from attest.withdrawal import EXPIRED
from ledger import layout, tiles
from ledger.audit import AuditReport, verify_export
from ledger.audit import attested as shown
from ledger.audit import bounds as follow
from ledger.audit.attested import Agreed, Known, registered
from ledger.audit.given import Export
from ledger.leaves.attestations import pack
from tests.attacks.scene import compress
from tests.ledger.told_runs import FIRST, Told, shown_of, signed_by, two_windows, write
from tests.worlds.attested_ledgers import (
    CLASSES,
    CONTRIBUTORS,
    NOT_AFTER,
    NOT_BEFORE,
    AttestedDriver,
    attestation,
    attested_header,
    attested_policy,
    put_registry,
    registry,
    registry_bytes,
    spec_of,
)
from tests.worlds.ledgers import GENERATING, OTHER_KEY, OWNER_KEY, SIGNER, START, signed_policy
from tests.worlds.registries import RegistryBytes, continued, load, put, registry_file, signed_behind_the_back

MALLORY = Ed25519PrivateKey.from_private_bytes(b"\x6d" * 32)
CAROL = Ed25519PrivateKey.from_private_bytes(b"\x63" * 32)
YEAR = 365 * 86400


def audit(export: Path, **options) -> AuditReport:
    """As an auditor who pinned the owner's key."""
    return verify_export(export, [SIGNER.vkey], owner_key=public_bytes(OWNER_KEY), minimum_size=1, **options)


def found(report: AuditReport) -> set[tuple[str, str]]:
    return {(item.code, item.where) for item in report.findings}


def later(told: Told, *changes: Callable[[RegistryLog], object], since: bool = False) -> RegistryBytes:
    """Lets the run begin with a later state of its registry, or with ``since`` only end with it."""
    made = continued(registry_bytes(), OWNER_KEY, *changes)
    told.registry = bytes(made)
    if not since:
        told.header["registry_root"] = load(made, OWNER_KEY).root()
    return made


def enrolled(key: Ed25519PrivateKey, **changes: object) -> Callable[[RegistryLog], object]:
    """Enrols carol."""
    valid: dict = {"classes": CLASSES, "not_before": NOT_BEFORE, "not_after": NOT_AFTER, "now": NOT_BEFORE} | changes
    return lambda log: log.enrol("carol", public_bytes(key), **valid)


def resigned(told: Told, place: int, terms: CommonTerms, signature: bytes) -> None:
    """Lets a leaf quote whatever terms and signature make of its anchor."""
    made = Framing(terms).attestation(told.specs[place].anchor, signature)
    quoted = hashlib.sha256(made.descriptor).digest()
    told.specs[place] = replace(told.specs[place], descriptor_hash=quoted, attestation_hash=made.digest(), key_id=terms.key_id)
    told.shown[place] = terms, signature


# --- What leaves say, and nobody signed ----------------------------------------------------------------


def multiplier_50(told: Told) -> None:
    told.say(2, sigma_micro=50_000_000)


def smaller_clip(told: Told) -> None:
    told.say(0, clip_micro=1_000)


def invented_cap(told: Told) -> None:
    told.say(0, max_occurrences=1)


def swapped_class(told: Told) -> None:
    told.say(2, class_name="open", profile_id=0)


def limit_left_out(told: Told) -> None:
    limit = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 1_000_000}
    told.put(0, attestation(1, **limit), max_epsilon_micro=0, max_delta_pico=0)


def limit_raised(told: Told) -> None:
    limit = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 1_000_000}
    told.put(0, attestation(1, **limit), max_epsilon_micro=60_000_000)


def delta_of_the_limit_changed(told: Told) -> None:
    limit = {"max_epsilon_micro": 50_000_000, "max_delta_pico": 1_000_000}
    told.put(0, attestation(1, **limit), max_delta_pico=2_000_000)


def invented_key_id(told: Told) -> None:
    told.say(0, key_id=bytes(8))


def another_contributors_key_id(told: Told) -> None:
    told.say(0, key_id=told.specs[1].key_id)


def invented_attestation_hash(told: Told) -> None:
    told.say(0, attestation_hash=bytes(32))


def invented_anchor(told: Told) -> None:
    told.say(0, anchor=bytes(32))


def invented_descriptor(told: Told) -> None:
    told.say(0, descriptor_hash=b"\x01" * 32)


# --- Contributions that nobody signed, or not so ---------------------------------------------------------


def invented_contribution(told: Told) -> None:
    told.add(attestation(9), attestation_hash=bytes(32), anchor=bytes(32), descriptor_hash=b"\x09" * 32)
    told.shown[-1] = None


def invented_with_anothers_attestation(told: Told) -> None:
    told.add(attestation(9), attestation_hash=bytes(32), anchor=bytes(32), descriptor_hash=b"\x09" * 32)
    told.shown[-1] = told.shown[0]


def signed_by_nobody_enrolled(told: Told) -> None:
    told.put(0, signed_by(MALLORY, 1))


def signed_by_mallory_under_bobs_key_id(told: Told) -> None:
    terms, _ = told.shown[0]
    payload = Framing(terms).descriptor(told.specs[0].anchor)
    protected = sign1.protected_header(payload, terms.key_id, terms.signed.issuer, sign1.TYP_ATTESTATION)
    resigned(told, 0, terms, MALLORY.sign(sign1.to_be_signed(protected, payload)))


def signature_for_another_purpose(told: Told) -> None:
    terms, _ = told.shown[0]
    payload = Framing(terms).descriptor(told.specs[0].anchor)
    protected = sign1.protected_header(payload, terms.key_id, terms.signed.issuer, sign1.TYP_KEY)
    resigned(told, 0, terms, CONTRIBUTORS["bob"].sign(sign1.to_be_signed(protected, payload)))


def terms_of_anothers_key(told: Told) -> None:
    terms, signature = told.shown[0]
    resigned(told, 0, replace(terms, key_id=told.specs[1].key_id), signature)


def terms_of_no_key(told: Told) -> None:
    terms, signature = told.shown[0]
    resigned(told, 0, replace(terms, key_id=bytes(8)), signature)


def better_terms(told: Told) -> None:
    """The clip norm of the descriptor itself is another, and leaf and hashes fit it."""
    terms, signature = told.shown[0]
    resigned(told, 0, replace(terms, signed=replace(terms.signed, clip_norm_micro=1_000)), signature)
    told.say(0, clip_micro=1_000)


def class_not_granted(told: Told) -> None:
    later(told, enrolled(CAROL, classes=("sensitive",)))
    told.put(0, signed_by(CAROL, 1))


def granted_only_later(told: Told) -> None:
    grant = {"classes": ("open", "sensitive"), "cap": None, "now": START}
    made = later(told, enrolled(CAROL, classes=("sensitive",)), lambda log: log.grant("carol", **grant))
    told.header["registry_root"] = load(made, OWNER_KEY).roots[-2]
    told.put(0, signed_by(CAROL, 1))


def revoked_key(told: Told) -> None:
    later(told, lambda log: log.revoke("alice", at=START, now=START))


def key_of_tomorrow(told: Told) -> None:
    later(told, enrolled(CAROL, not_before=START + 86400, not_after=START + 2 * 86400))
    told.put(0, signed_by(CAROL, 1))


def key_of_yesterday(told: Told) -> None:
    later(told, enrolled(CAROL, not_after=START - 500))
    told.put(0, signed_by(CAROL, 1))


def above_the_cap_of_its_contributor(told: Told) -> None:
    later(told, lambda log: log.grant("alice", classes=CLASSES, cap=1, now=START))


def above_the_cap_of_the_policy(told: Told) -> None:
    told.header["policy"] = attested_policy(contributor_cap=1)


def of_another_corpus(told: Told) -> None:
    told.put(0, attestation(1, corpus="other"))


def valid_for_too_long(told: Told) -> None:
    told.put(0, attestation(1, not_after=NOT_BEFORE + 3 * YEAR))


def not_valid_yet(told: Told) -> None:
    told.put(0, attestation(1, not_before=START + 1000))


def ended_before(told: Told) -> None:
    told.put(0, attestation(1, not_after=START))


def clip_above_its_class(told: Told) -> None:
    told.put(0, attestation(1, clip_norm_micro=2_000_000), clip_micro=1_000_000)


def noise_below_its_class(told: Told) -> None:
    told.put(2, attestation(3, "sensitive", noise_multiplier_micro=2_999_999), sigma_micro=3_000_000)


def class_of_no_policy(told: Told) -> None:
    changed = replace(attestation(1).opened(), admissibility_class="closed")
    signed = sign_descriptor(changed, CONTRIBUTORS["bob"])
    told.shown[0] = shown_of(signed)
    told.say(0, descriptor_hash=changed.digest(), attestation_hash=signed.digest())


def not_signed_to_be_trained_on(told: Told) -> None:
    told.put(0, attestation(1, purposes=("generate",)))


def training_said_to_be_signed_too(told: Told) -> None:
    """Leaf and hashes fit terms in which it is; the signature is over those in which it is not."""
    told.put(0, attestation(1, purposes=("generate",)))
    terms, signature = told.shown[0]
    resigned(told, 0, replace(terms, signed=replace(terms.signed, purposes=("generate", "train"))), signature)


def purposes_left_out(told: Told) -> None:
    """As above, with no purposes at all, which means to train."""
    told.put(0, attestation(1, purposes=("generate",)))
    terms, signature = told.shown[0]
    resigned(told, 0, replace(terms, signed=replace(terms.signed, purposes=None)), signature)


def of_a_class_that_only_generates(told: Told) -> None:
    """Its contributor signed to train too, and the policy does not train the class."""
    told.header["policy"] = attested_policy(classes=(*signed_policy().policy.classes, GENERATING))
    bounds = {"clip_norm_micro": 1_000_000, "noise_multiplier_micro": 9_000_000, "purposes": ("generate", "train")}
    changed = replace(attestation(1, **bounds).opened(), admissibility_class="texts")
    signed = sign_descriptor(changed, CONTRIBUTORS["bob"])
    told.put(0, signed_by(CONTRIBUTORS["bob"], 1))
    told.shown[0] = shown_of(signed)
    told.say(0, descriptor_hash=changed.digest(), attestation_hash=signed.digest(), sigma_micro=9_000_000)


def too_many_examples(told: Told) -> None:
    told.put(0, attestation(1, max_examples=5))


def a_length_that_the_class_does_not_offer(told: Told) -> None:
    told.put(0, attestation(1, public_length=64))


def signed_as_public(told: Told) -> None:
    bounds = {"clip_norm_micro": PUBLIC_BOUNDS.clip_micro, "noise_multiplier_micro": PUBLIC_BOUNDS.sigma_micro}
    told.put(0, attestation(1, **bounds), clip_micro=1_000_000, sigma_micro=1_000_000)


def content_twice(told: Told) -> None:
    told.add(attestation(1, contributor="alice"))


# --- What stands beside leaves ------------------------------------------------------------------------------


def attestation_of_one_leaf_removed(told: Told) -> None:
    told.shown[2] = None


def signatures_swapped(told: Told) -> None:
    (one, first), (two, second) = told.shown[:2]
    told.shown[:2] = [(one, second), (two, first)]


def signatures_swapped_and_quoted(told: Told) -> None:
    (one, first), (two, second) = told.shown[:2]
    resigned(told, 0, one, second)
    resigned(told, 1, two, first)


def terms_reordered(told: Told) -> None:
    told.terms = lambda terms: [terms[1], terms[0], *terms[2:]]


def terms_reordered_and_renumbered(told: Told) -> None:
    terms_reordered(told)
    told.numbers = lambda number: (1, 0, 2, 3)[number]


def unused_terms(told: Told) -> None:
    told.terms = lambda terms: [*terms, shown_of(attestation(9, max_occurrences=9))[0].to_cbor()]


def terms_cut_off(told: Told) -> None:
    told.terms = lambda terms: terms[:-1]


def terms_of_nobody_in_between(told: Told) -> None:
    told.terms = lambda terms: [*terms[:2], terms[0], *terms[2:]]
    told.numbers = lambda number: number + (number > 1)


def terms_of_no_form(told: Told) -> None:
    told.terms = lambda terms: [cbor.encode([b"", bytes(8)]), *terms[1:]]


# --- Registries ------------------------------------------------------------------------------------------


def invented_registry_root(told: Told) -> None:
    told.header["registry_root"] = b"\x99" * 32


def registry_of_another_owner(told: Told) -> None:
    enrol = enrolled(CONTRIBUTORS["bob"])
    told.registry = bytes(registry_file(OTHER_KEY, NOT_BEFORE, enrol))


def another_registry_of_the_owner(told: Told) -> None:
    """One in which mallory is enrolled; the policy was signed for another."""
    made = registry_file(OWNER_KEY, NOT_BEFORE, enrolled(MALLORY))
    told.registry, told.header["registry_root"] = bytes(made), load(made, OWNER_KEY).root()
    told.put(0, signed_by(MALLORY, 1))


def registry_cut_back(told: Told) -> None:
    told.registry = join(list(split(registry_bytes()))[:-1])


def begun_before_the_policy(told: Told) -> None:
    """The header names a state in which mallory was still enrolled, and the policy a later one."""
    told.header["registry_root"] = registry().roots[-2]


def registry_altered(told: Told) -> None:
    items = list(split(registry_bytes()))
    payload, message = items[1]
    raw = public_bytes(CONTRIBUTORS["alice"])
    items[1] = payload.replace(raw, public_bytes(MALLORY)), message
    assert items[1][0] != payload
    told.registry = join(items)


def registry_signed_by_mallory(told: Told) -> None:
    items = list(split(registry_bytes()))
    payload = items[1][0].replace(public_bytes(CONTRIBUTORS["alice"]), public_bytes(MALLORY))
    items[1] = payload, sign1.sign(payload, MALLORY, contributor="owner", typ=sign1.TYP_REGISTRY)
    told.registry = join(items)


# --- Time ------------------------------------------------------------------------------------------------


def charged_long_after_the_end(told: Told) -> None:
    told.put(0, attestation(1, not_after=START + 50))

    def life(driver) -> None:
        driver.steps(1)
        driver.now = START + 10_000
        two_windows(driver)

    told.life = life


def said_to_have_expired(told: Told) -> None:
    def life(driver) -> None:
        driver.steps(1)
        driver.ledger.withdraw(told.specs[0].descriptor_hash, EXPIRED, bytes(32), now=driver.tick())
        two_windows(driver)

    told.life = life


def nth(n: int) -> str:
    """Where the n-th admission stands."""
    return f"seq {FIRST + n}"


REGISTRY = layout.REGISTRY
LIES: list[tuple[Callable[[Told], None], str, str]] = [
    (multiplier_50, "QUOTED", nth(2)),
    (smaller_clip, "QUOTED", nth(0)),
    (invented_cap, "QUOTED", nth(0)),
    (swapped_class, "QUOTED", nth(2)),
    (limit_left_out, "QUOTED", nth(0)),
    (limit_raised, "QUOTED", nth(0)),
    (delta_of_the_limit_changed, "QUOTED", nth(0)),
    (invented_key_id, "QUOTED", nth(0)),
    (another_contributors_key_id, "QUOTED", nth(0)),
    (invented_attestation_hash, "ATTESTATION", nth(0)),
    (invented_anchor, "ATTESTATION", nth(0)),
    (invented_descriptor, "ATTESTATION", nth(0)),
    (invented_contribution, "ATTESTATION_MISSING", nth(4)),
    (invented_with_anothers_attestation, "ATTESTATION", nth(4)),
    (signed_by_nobody_enrolled, "KEY_UNKNOWN", nth(0)),
    (signed_by_mallory_under_bobs_key_id, "SIG_BAD", nth(0)),
    (signature_for_another_purpose, "SIG_BAD", nth(0)),
    (terms_of_anothers_key, "SIG_BAD", nth(0)),
    (terms_of_no_key, "KEY_UNKNOWN", nth(0)),
    (better_terms, "SIG_BAD", nth(0)),
    (class_not_granted, "CLASS_NOT_GRANTED", nth(0)),
    (granted_only_later, "CLASS_NOT_GRANTED", nth(0)),
    (revoked_key, "KEY_REVOKED", nth(1)),
    (key_of_tomorrow, "KEY_NOT_VALID", nth(0)),
    (key_of_yesterday, "KEY_NOT_VALID", nth(0)),
    (above_the_cap_of_its_contributor, "CONTRIBUTOR_CAP", nth(3)),
    (above_the_cap_of_the_policy, "CONTRIBUTOR_CAP", nth(2)),
    (of_another_corpus, "AUDIENCE", nth(0)),
    (valid_for_too_long, "WINDOW", nth(0)),
    (not_valid_yet, "NOT_YET_VALID", nth(0)),
    (ended_before, "EXPIRED", nth(0)),
    (clip_above_its_class, "CLIP_ABOVE_CLASS", nth(0)),
    (noise_below_its_class, "NOISE_BELOW_CLASS", nth(2)),
    (class_of_no_policy, "CLASS_UNKNOWN", nth(0)),
    (not_signed_to_be_trained_on, "PURPOSE", nth(0)),
    (training_said_to_be_signed_too, "SIG_BAD", nth(0)),
    (purposes_left_out, "SIG_BAD", nth(0)),
    (of_a_class_that_only_generates, "CLASS_UNKNOWN", nth(0)),
    (too_many_examples, "EXAMPLES", nth(0)),
    (a_length_that_the_class_does_not_offer, "PUBLIC_LENGTH", nth(0)),
    (signed_as_public, "CLIP_ABOVE_CLASS", nth(0)),
    (content_twice, "DUPLICATE_CONTENT", nth(4)),
    (attestation_of_one_leaf_removed, "ATTESTATION_MISSING", nth(2)),
    (signatures_swapped, "ATTESTATION", nth(1)),
    (signatures_swapped_and_quoted, "SIG_BAD", nth(1)),
    (terms_reordered, "ATTESTATION", nth(0)),
    (terms_reordered_and_renumbered, "TERMS", nth(0)),
    (unused_terms, "TERMS", "attestations/terms/000.p/5"),
    (terms_cut_off, "TERMS", nth(3)),
    (terms_of_nobody_in_between, "TERMS", nth(2)),
    (terms_of_no_form, "CBOR", nth(0)),
    (invented_registry_root, "REGISTRY_ROOT", REGISTRY),
    (registry_of_another_owner, "SIG_BAD", REGISTRY),
    (another_registry_of_the_owner, "REGISTRY_ROOT", REGISTRY),
    (registry_cut_back, "REGISTRY_ROOT", REGISTRY),
    (begun_before_the_policy, "REGISTRY_ROOT", REGISTRY),
    (registry_altered, "HEADER", REGISTRY),
    (registry_signed_by_mallory, "SIG_BAD", REGISTRY),
    (charged_long_after_the_end, "EXPIRED", "seq 7"),
    (said_to_have_expired, "NOT_EXPIRED", "seq 7"),
]


ONLY_BY_A_REGISTRY = {
    "KEY_UNKNOWN", "SIG_BAD", "CLASS_NOT_GRANTED", "KEY_REVOKED", "KEY_NOT_VALID", "CONTRIBUTOR_CAP", "REGISTRY_ROOT", "HEADER"
}  # fmt: skip
"""Codes of what shows only under a registry."""


def test_what_contributors_signed_and_a_registry_make_an_audit_full(tmp_path):
    report = audit(Told.honest().export(tmp_path))
    assert (report.verdict, report.findings) == ("FULL", ())
    assert (report.bounds.admits, report.bounds.held, report.bounds.keys) == (4, 4, 2)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("lie", "code", "where"), LIES, ids=[lie.__name__ for lie, _, _ in LIES])
def test_what_nobody_signed_is_found(tmp_path, lie, code, where):
    told = Told.honest()
    lie(told)
    export = told.export(tmp_path)
    report = audit(export)
    assert report.verdict == "FAILED" and (code, where) in found(report), report.findings
    (export / REGISTRY).unlink()
    report = audit(export)
    assert report.verdict == ("TOLD" if code in ONLY_BY_A_REGISTRY else "FAILED"), report.findings


# --- What is left out ------------------------------------------------------------------------------------


def test_without_attestations_bounds_are_told_and_a_note_says_so(tmp_path):
    told = Told.honest()
    told.attestations = False
    report = audit(told.export(tmp_path))
    assert report.verdict == "TOLD" and any("holds no attestations" in note for note in report.notes)
    assert not report.bounds.attested and report.bounds.held == 0


def test_without_a_registry_attestations_are_held_against_leaves_and_the_verdict_is_told(tmp_path):
    told = Told.honest()
    told.registry = None
    export = told.export(tmp_path)
    report = audit(export)
    assert report.verdict == "TOLD" and any("--registry" in note for note in report.notes)
    assert (report.bounds.held, report.bounds.keys, report.bounds.registry_root) == (4, 0, None)
    assert audit(export, registry=put_registry(tmp_path)).verdict == "FULL", "the auditor brings one"


# --- Bytes -----------------------------------------------------------------------------------------------


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def places_of_signed() -> dict[str, int]:
    """Offsets in a bundle of signatures whose leaf 0 has none: of every kind of byte of the entry of leaf 1."""
    length = 2
    body = length + 2
    return {
        "length of an empty entry": 1,
        "high length": length,
        "low length": length + 1,
        "array": body,
        "number": body + 1,
        "head of the signature": body + 2,
        "length of the signature": body + 3,
        "first byte of the signature": body + 4,
        "last byte of the signature": body + 67,
    }


@pytest.mark.parametrize("place", places_of_signed())
def test_a_flipped_byte_in_a_bundle_of_signatures_is_found(tmp_path, place):
    export = Told.honest().export(tmp_path)
    (path,) = (export / "attestations" / "signed").rglob("000.p/*")
    flipped(path, places_of_signed()[place])
    assert audit(export).verdict == "FAILED"


def test_every_flipped_byte_in_a_bundle_of_terms_is_found(tmp_path):
    """A byte of each kind of field: one in ten of the first terms, and all of their heads."""
    export = Told.honest().export(tmp_path)
    (path,) = (export / "attestations" / "terms").rglob("000.p/*")
    data = path.read_bytes()
    for at in [*range(8), *range(8, 2 + int.from_bytes(data[:2], "big"), 29)]:
        flipped(path, at)
        assert audit(export).verdict == "FAILED", at
        path.write_bytes(data)


def test_terms_that_stand_twice_are_found(tmp_path):
    told = Told.honest()
    told.add(attestation(5, contributor="bob"))
    told.terms = lambda terms: [*terms, terms[0]]
    export = told.export(tmp_path)
    (path,) = (export / "attestations" / "signed").rglob("000.p/*")
    entries = tiles.split_bundle(path.read_bytes(), None)
    entries[FIRST + 4] = pack(4, told.shown[4][1])
    write(path, tiles.entry_bundle(entries))
    assert found(audit(export)) == {("TERMS", nth(4))}


@pytest.mark.parametrize("cut", [1, 66, 70])
def test_bundles_that_end_early_or_late_are_found(tmp_path, cut):
    export = Told.honest().export(tmp_path)
    for kind in ("signed", "terms"):
        (path,) = (export / "attestations" / kind).rglob("000.p/*")
        data = path.read_bytes()
        for changed in (data[:-cut], data + bytes(cut)):
            path.write_bytes(changed)
            report = audit(export)
            assert report.verdict == "FAILED" and "BUNDLE" in {code for code, _ in found(report)}
        path.write_bytes(data)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "name",
    [
        "attestations/terms/000",
        "attestations/terms/000.p/3",
        "attestations/terms/001",
        "attestations/terms/x001/000",
        "attestations/signed/000",
        "attestations/signed/000.p/3",
        "attestations/signed/001.p/1",
        "attestations/names",
        "registry.names",
        "registry/000",
    ],
)
def test_files_of_another_name_or_width_are_unknown(tmp_path, name):
    told = Told.honest()
    if name == "registry/000":
        told.registry = None
    export = told.export(tmp_path)
    (made,) = (export / "attestations" / "signed").rglob("000.p/*")
    write(export / name, made.read_bytes())
    report = audit(export)
    # A bundle of terms under another width that may be there changes what the names give as the number of terms.
    renamed = name in ("attestations/terms/000", "attestations/terms/000.p/3")
    unknown = "attestations/terms/000.p/4" if renamed else name
    assert report.verdict == "FAILED" and ("UNKNOWN_FILE", unknown) in found(report)


def withdrawing_strangers(driver) -> None:
    """Two bundles of leaves, and no ADMIT leaf in the second."""
    some = [(hashlib.sha256(b"%d" % n).digest(), "error", bytes(32)) for n in range(300)]
    driver.ledger.withdraw_all(some, now=driver.tick())
    two_windows(driver)


def test_signatures_beside_leaves_without_an_admission_are_found(tmp_path):
    told = Told.honest()
    told.life = withdrawing_strangers
    export = told.export(tmp_path)
    assert audit(export).verdict == "FULL"
    width = audit(export).size - 256
    path = export / layout.signed_path(1, width)
    write(path, tiles.entry_bundle([b""] * width))
    assert found(audit(export)) == {("UNKNOWN_FILE", layout.signed_path(1, width))}
    (beside,) = (export / "attestations" / "signed").glob("000")
    entry = tiles.split_bundle(beside.read_bytes(), 256)[FIRST]
    path.write_bytes(tiles.entry_bundle([entry] + [b""] * (width - 1)))
    assert ("ATTESTATION", "seq 256") in found(audit(export))
    path.unlink()
    path.parent.rmdir()
    beside.write_bytes(tiles.entry_bundle([entry, *tiles.split_bundle(beside.read_bytes(), 256)[1:]]))
    assert found(audit(export)) == {("ATTESTATION", "seq 0")}, "beside the header"


# --- Keys ------------------------------------------------------------------------------------------------


def test_an_unsound_key_that_the_owner_enrolled_signs_nothing(tmp_path):
    """Small-order keys no registry holds; one with a small-order component it may, and whoever verifies under it refuses."""
    point = ed25519.add(ed25519.decompress(public_bytes(CAROL)), ed25519.decompress(bytes(32)))
    raw = compress(point)
    told = Told.honest()
    enrol = Enrol("carol", raw, NOT_BEFORE, NOT_AFTER, list(CLASSES), None, None)
    made = signed_behind_the_back(registry_bytes(), OWNER_KEY, NOT_BEFORE, enrol)
    told.registry, told.header["registry_root"] = bytes(made), load(made, OWNER_KEY).root()
    terms, signature = told.shown[0]
    resigned(told, 0, replace(terms, key_id=key_id(raw)), signature)
    assert {("KEY_WEAK", nth(0)), ("SIG_BAD", nth(0))} <= found(audit(told.export(tmp_path)))


def test_of_two_keys_with_one_id_that_one_counts_under_which_the_attestation_verifies(tmp_path):
    """Whoever makes two keys of one id gains nothing by it."""
    header = attested_header().header(origin=SIGNER.name, log_vkey=SIGNER.vkey, time=START)
    known = Known.of(registered(header, *_shown_registry(tmp_path)).admitted)
    (bob,), (alice,) = (known.by_key[key_id(public_bytes(CONTRIBUTORS[name]))] for name in ("bob", "alice"))
    told = Told.honest()
    leaf, (terms, signature) = told.specs[0], told.shown[0]
    for order in ([bob, alice], [alice, bob]):
        both = replace(known, by_key={terms.key_id: order})
        agreed = Agreed(terms, attested_policy().policy, both)
        agreed.find_key(leaf.anchor, signature)
        assert agreed.signing.contributor.name == bob[0].name and list(agreed.problems(START)) == []


def _shown_registry(directory: Path) -> tuple:
    """An export with a registry, and nothing else that an audit brings."""
    export = Export(directory, lambda *told: pytest.fail(str(told)))
    (directory / REGISTRY).write_bytes(registry_bytes())
    assert export.scan()
    return export, None, export.report


# --- Registries that an auditor brings ----------------------------------------------------------------------


def test_a_registry_that_an_auditor_brings_extends_the_one_in_the_export(tmp_path):
    told = Told.honest()
    made = later(told, enrolled(CAROL), since=True)
    export = told.export(tmp_path)
    assert audit(export).verdict == "FULL"
    assert found(audit(export, registry=put_registry(tmp_path))) == {("REGISTRY_ROOT", str(tmp_path / "registry.cbor"))}
    newer = continued(made, OWNER_KEY, lambda log: log.revoke("carol", at=START, now=START))
    put(tmp_path / "newer.cbor", newer)
    report = audit(export, registry=tmp_path / "newer.cbor")
    assert (report.verdict, report.bounds.registry_root) == ("FULL", load(newer, OWNER_KEY).root().hex())


def test_a_key_that_was_revoked_while_contributions_stayed_in_the_pool_is_a_qualifier(tmp_path):
    told = Told.honest()
    made = later(told, lambda log: log.revoke("alice", at=START + 6, now=START + 6), since=True)
    report = audit(told.export(tmp_path / "stayed"))
    assert report.verdict == "FULL" and "KEY_REVOKED" in report.qualifiers
    (note,) = (note for note in report.notes if "revoked" in note)
    assert note.startswith("1 windows were charged with contributions in the pool (2 at most)")

    def life(driver) -> None:
        root = load(made, OWNER_KEY).root()
        driver.ledger.take_registry(root, now=driver.tick())
        for spec in told.specs:
            if spec.key_id == key_id(public_bytes(CONTRIBUTORS["alice"])):
                driver.ledger.withdraw(spec.descriptor_hash, "key-revoked", root, now=driver.tick())
        two_windows(driver)

    told.life = life
    report = audit(told.export(tmp_path / "left"))
    assert report.verdict == "FULL" and "KEY_REVOKED" not in report.qualifiers, report.findings


@pytest.mark.parametrize("since", [START + 6, START + 1_000])
def test_a_revocation_that_the_registry_did_not_say_before_the_charge_is_none_then(tmp_path, since):
    """Neither one that holds only from later on, nor one that was entered later."""
    told = Told.honest()
    at = START + 1_000 if since == START + 6 else START + 6
    later(told, lambda log: log.revoke("alice", at=at, now=since), since=True)
    assert "KEY_REVOKED" not in audit(told.export(tmp_path)).qualifiers


# --- Time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "verdict"), [(0, "FAILED"), (1, "FULL")])
def test_a_charge_at_the_very_end_of_an_attestation_is_too_late_and_a_second_before_is_not(tmp_path, seconds, verdict):
    told = Told.honest()
    told.put(0, attestation(1, not_after=START + 5 + seconds))
    told.life = lambda driver: driver.steps(1)
    report = audit(told.export(tmp_path))
    assert report.verdict == verdict and found(report) <= {("EXPIRED", "seq 5")}


def test_who_expired_is_withdrawn_before_the_charge_and_at_no_time_before_that(tmp_path):
    told = Told.honest()
    told.put(0, attestation(1, not_after=START + 50))
    one = told.specs[0]

    def life(driver, at=START + 50) -> None:
        driver.steps(1)
        driver.now = at
        driver.ledger.withdraw(one.descriptor_hash, EXPIRED, one.attestation_hash, now=driver.now)
        driver.now = START + 60
        two_windows(driver)

    told.life = life
    assert audit(told.export(tmp_path / "then")).verdict == "FULL"
    told.life = lambda driver: life(driver, START + 49)
    report = audit(told.export(tmp_path / "before"))
    assert [item.code for item in report.findings] == ["NOT_EXPIRED"]


def test_who_is_admitted_under_known_terms_after_their_end_is_found(tmp_path):
    """Terms are held against the policy once, and each leaf against their validity."""
    told, ends = Told.honest(), {"not_after": START + 50}
    told.put(0, attestation(1, **ends))
    one = told.specs[0]
    told.shown.append(shown_of(attestation(9, **ends)))

    def life(driver) -> None:
        driver.steps(1)
        driver.now = START + 60
        driver.ledger.withdraw(one.descriptor_hash, EXPIRED, one.attestation_hash, now=driver.now)
        driver.admit(replace(spec_of(attestation(9, **ends)), attestation=None))

    told.life = life
    report = audit(told.export(tmp_path))
    assert [item.code for item in report.findings] == ["EXPIRED"] and report.findings[0].where == f"seq {report.size - 1}"


def test_an_attestation_that_two_leaves_quote_is_found_where_none_is_shown(tmp_path):
    told = Told.honest()
    told.attestations = False
    told.say(1, attestation_hash=told.specs[0].attestation_hash)
    assert found(audit(told.export(tmp_path))) == {("REPLAYED", nth(1))}


def test_terms_that_change_while_they_are_audited_are_found(tmp_path, monkeypatch):
    """A reader that has forgotten them reads them again, and holds them against what they were."""
    told = Told.honest()
    for n, contributor in ((5, "alice"), (7, "bob"), (9, "alice"), (11, "bob")):
        told.add(attestation(n, contributor=contributor))
    export = told.export(tmp_path)
    monkeypatch.setattr(follow, "_KNOWN", 1)
    monkeypatch.setattr(shown, "_BUNDLES", 0)
    assert audit(export).verdict == "FULL"
    read, seen = shown.Shown.terms, set()

    def changing(self, number: int) -> bytes | None:
        again = number in seen
        seen.add(number)
        return read(self, 1 - number if again and number < 2 else number)

    monkeypatch.setattr(shown.Shown, "terms", changing)
    report = audit(export)
    assert report.verdict == "FAILED" and "CHANGED" in {item.code for item in report.findings}


def test_a_charge_before_an_attestation_begins_is_found_behind_a_clock_that_was_set_back(tmp_path):
    """Admitted by a clock that was ten days ahead, and charged at the true time, before anybody's consent began."""
    day = 86400

    def life(driver: AttestedDriver) -> None:
        driver.ledger.set_clock("the clock was ahead", now=START + day)
        driver.now = START + day
        two_windows(driver)

    told = Told(registry=bytes(registry_bytes()), begun=START + 10 * day)
    told.add(attestation(1, "open", not_before=START + 5 * day))
    assert audit(told.export(tmp_path / "right")).verdict == "FULL"
    told.life = life
    assert {code for code, _ in found(audit(told.export(tmp_path / "early")))} == {"NOT_YET_VALID"}
