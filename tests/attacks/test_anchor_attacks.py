"""Rows A28 and E7 of the attack lists: content anchors that lead where their writer likes, signed or in an export."""

import hashlib
from dataclasses import replace

import pytest

from attest import cbor, sign1
from attest.corpus.anchor import ContentAnchor, anchor_of, sign_anchor, verify_anchor, verify_enrolled_anchor
from attest.errors import AttestError
from attest.keys import key_id, public_bytes
from attest.registry import Registry
from ledger.errors import LedgerError
from ledger.leaves import encode_leaf
from ledger.log import Ledger
from ledger.views.trace import Wanted, trace
from tests.worlds.attested_ledgers import CONTRIBUTORS, NOT_BEFORE, attestation, attested_run, registry, registry_bytes, spec_of
from tests.worlds.ledgers import OTHER_KEY, OWNER_KEY, START
from tests.worlds.registries import continued, load
from tests.worlds.retained_ledgers import leaves_of

ALICE, BOB = CONTRIBUTORS["alice"], CONTRIBUTORS["bob"]
ONE = attestation(2).opened()
"""Of alice."""

CONTENT = hashlib.sha256(b"content 2").digest()
ANCHOR = anchor_of(ONE, time=START, opened=True)


def signed(anchor: ContentAnchor = ANCHOR, key=ALICE, issuer: str = ONE.issuer) -> tuple[bytes, bytes]:
    return sign_anchor(anchor, key, issuer=issuer)


def code(payload: bytes, message: bytes, known: Registry | bytes) -> str:
    """Why a record is refused, by a key or by a registry."""
    with pytest.raises(AttestError) as caught:
        (verify_anchor if isinstance(known, bytes) else verify_enrolled_anchor)(payload, message, known)
    return caught.value.code


def test_A28_the_record_of_a_contributor_is_taken_under_its_key_and_registry():
    assert verify_anchor(*signed(), public_bytes(ALICE)) == ANCHOR
    found, holder = verify_enrolled_anchor(*signed(), registry())
    assert found == ANCHOR and public_bytes(ALICE) in {record.raw for record in holder.keys}
    ANCHOR.require_content(CONTENT)


def test_A28_a_record_of_somebody_elses_key_is_refused():
    """Both hashes stand in every export: anybody can write a record of them, and nobody sign it."""
    assert code(*signed(key=OTHER_KEY), public_bytes(ALICE)) == "SIG_BAD"
    assert code(*signed(key=OTHER_KEY), registry()) == "KEY_UNKNOWN"
    assert code(*signed(key=BOB), public_bytes(ALICE)) == "SIG_BAD"


def test_A28_a_record_with_any_field_changed_is_refused():
    payload, message = signed()
    for field, value in (("content", bytes(32)), ("descriptor_hash", bytes(32)), ("time", START + 1), ("nonce", bytes(16))):
        assert code(replace(ANCHOR, **{field: value}).to_cbor(), message, public_bytes(ALICE)) == "HEADER"
    for place in range(0, len(payload), 7):
        changed = payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]
        assert code(changed, message, public_bytes(ALICE)) == "HEADER"
    for place in range(len(message) - 64, len(message), 9):
        changed = message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
        assert code(payload, changed, public_bytes(ALICE)) == "SIG_BAD"


@pytest.mark.parametrize("typ", [sign1.TYP_ATTESTATION, sign1.TYP_WITHDRAWAL, sign1.TYP_KEY])
def test_A28_a_signature_for_another_purpose_is_no_anchor(typ):
    payload = ANCHOR.to_cbor()
    assert code(payload, sign1.sign(payload, ALICE, contributor=ONE.issuer, typ=typ), public_bytes(ALICE)) == "HEADER"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({5: None}, "CBOR_NONCANONICAL"),
        ({5: bytes(15)}, "RANGE"),
        ({6: 0}, "SCHEMA"),
        ({1: "dptrain.anchor/2"}, "SCHEMA"),
        ({2: b"short"}, "RANGE"),
        ({4: -1}, "RANGE"),
        ({4: "now"}, "TYPE"),
    ],
)
def test_A28_a_record_of_another_form_is_refused_though_it_is_signed(fields, expected):
    payload = cbor.encode(cbor.decode(ANCHOR.to_cbor()) | fields)
    found = code(payload, sign1.sign(payload, ALICE, contributor=ONE.issuer, typ=sign1.TYP_ANCHOR), public_bytes(ALICE))
    assert found in (expected, "TYPE", "RANGE")


def test_A28_a_key_that_was_revoked_or_not_yet_valid_when_it_signed_anchors_nothing():
    later = load(continued(registry_bytes(), OWNER_KEY, lambda log: log.revoke("alice", at=START - 10, now=START)), OWNER_KEY)
    assert code(*signed(), later) == "KEY_NOT_VALID"
    assert code(*signed(replace(ANCHOR, time=NOT_BEFORE - 1)), registry()) == "KEY_NOT_VALID"


def test_A28_a_record_beside_another_content_is_told_to_be_of_none():
    for content in (hashlib.sha256(b"content 1").digest(), bytes(32)):
        with pytest.raises(AttestError, match="CONTENT_MISMATCH"):
            ANCHOR.require_content(content)
    bare = replace(ANCHOR, nonce=None)
    with pytest.raises(AttestError, match="CONTENT_MISMATCH"):
        bare.require_content(CONTENT, bytes(16))
    with pytest.raises(AttestError, match="NONCE"):
        ANCHOR.require_content(CONTENT, bytes(16))


# --- In an export ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> Ledger:
    driver = attested_run(tmp_path_factory.mktemp("anchors") / "ledger.db")
    with driver.ledger:
        driver.admit(*(spec_of(attestation(n)) for n in (1, 2)))
        driver.steps(1)
        driver.epoch()
        yield driver.ledger


def led_to(ledger: Ledger, anchor: ContentAnchor):
    return trace(ledger.state, map(encode_leaf, leaves_of(ledger)), Wanted(anchor.content, anchor.descriptor_hash))


def test_E7_a_record_leads_to_its_contribution_and_to_its_contributor(ledger):
    found = led_to(ledger, ANCHOR)
    assert found.admit.descriptor_hash == ONE.signed.digest() and found.steps == 4
    found.require_signer([key_id(public_bytes(ALICE))])


def test_E7_a_record_that_pairs_the_names_of_two_contributions_leads_nowhere(ledger):
    """Signed well: alice pairs her content with what bob spent, or the reverse."""
    other = attestation(1).opened().signed
    for lie in ({"content": other.content}, {"descriptor_hash": other.digest()}):
        with pytest.raises(LedgerError, match="DESCRIPTOR"):
            led_to(ledger, replace(ANCHOR, **lie))


def test_E7_a_record_of_both_names_by_another_contributor_is_refused_by_the_key_of_the_leaf(ledger):
    verify_enrolled_anchor(*signed(key=BOB), registry())
    with pytest.raises(LedgerError, match="KEY"):
        led_to(ledger, ANCHOR).require_signer([key_id(public_bytes(BOB))])


def test_E7_a_record_of_what_was_never_admitted_is_not_found(ledger):
    with pytest.raises(LedgerError, match="NOT_FOUND"):
        led_to(ledger, anchor_of(attestation(9).opened(), time=START))
