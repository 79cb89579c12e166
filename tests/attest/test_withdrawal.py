"""Withdrawals: by the contributor, for one contribution of one corpus, and as nothing else."""

from dataclasses import replace

import pytest

from attest import cbor, keys, sign1
from attest.errors import AttestError
from attest.withdrawal import Withdrawal, sign_withdrawal, verify_own_withdrawal, verify_withdrawal

NOW = 1_800_000_000


@pytest.fixture
def withdrawal(world):
    return Withdrawal(world.descriptor.digest(), world.policy.corpus, NOW, "consent")


def code_of(call, *arguments, **options):
    with pytest.raises(AttestError) as caught:
        call(*arguments, **options)
    return caught.value.code


def test_round_trip_and_verification(world, withdrawal):
    payload, message = sign_withdrawal(withdrawal, world.alice, signer="alice")
    raw = keys.public_bytes(world.alice)
    assert Withdrawal.from_cbor(payload) == withdrawal
    assert verify_withdrawal(payload, message, raw, signer="alice", corpus=withdrawal.corpus) == withdrawal
    assert verify_own_withdrawal(payload, message, world.descriptor, world.registry, now=NOW) == withdrawal


def test_names_must_match(world, withdrawal):
    payload, message = sign_withdrawal(withdrawal, world.alice, signer="alice")
    raw = keys.public_bytes(world.alice)
    assert code_of(verify_withdrawal, payload, message, raw, signer="bob", corpus=withdrawal.corpus) == "HEADER"
    assert code_of(verify_withdrawal, payload, message, raw, signer="alice", corpus="other") == "AUDIENCE"
    other = keys.public_bytes(world.bob)
    assert code_of(verify_withdrawal, payload, message, other, signer="alice", corpus=withdrawal.corpus) == "SIG_BAD"


def test_a_third_party_cannot_withdraw(world, withdrawal):
    for signer in ("alice", "bob"):
        payload, message = sign_withdrawal(withdrawal, world.bob, signer=signer)
        assert code_of(verify_own_withdrawal, payload, message, world.descriptor, world.registry, now=NOW) in {
            "SIG_BAD",
            "HEADER",
        }


def test_a_withdrawal_of_another_contribution_is_refused(world, withdrawal):
    payload, message = sign_withdrawal(replace(withdrawal, descriptor_hash=bytes(32)), world.alice, signer="alice")
    assert code_of(verify_own_withdrawal, payload, message, world.descriptor, world.registry, now=NOW) == "AUDIENCE"


def test_a_revoked_or_unknown_key_cannot_withdraw(world, withdrawal):
    payload, message = sign_withdrawal(withdrawal, world.alice, signer="alice")
    revoked = world.changed(lambda log: log.revoke("alice", at=NOW, now=NOW))
    assert code_of(verify_own_withdrawal, payload, message, world.descriptor, revoked, now=NOW) == "KEY_UNKNOWN"


def test_any_valid_key_of_the_contributor_can_withdraw(world, withdrawal):
    second = keys.generate()
    registry = world.changed(
        lambda log: log.enrol(
            "alice", keys.public_bytes(second), classes=(), not_before=0, not_after=NOW + 1, now=NOW
        )
    )
    payload, message = sign_withdrawal(withdrawal, second, signer="alice")
    assert verify_own_withdrawal(payload, message, world.descriptor, registry, now=NOW) == withdrawal


def test_an_attestation_is_no_withdrawal(world, withdrawal):
    payload = withdrawal.to_cbor()
    message = sign1.sign(payload, world.alice, contributor="alice")
    assert code_of(verify_own_withdrawal, payload, message, world.descriptor, world.registry, now=NOW) == "HEADER"


@pytest.mark.parametrize(
    "change",
    [
        {1: "dptrain.withdrawal/2"},
        {2: b"x"},
        {2: "x" * 32},
        {3: "Corpus"},
        {4: -1},
        {4: True},
        {4: 1.0},
        {5: "Because I said so"},
        {6: 1},
    ],
    ids=str,
)
def test_other_forms_are_refused(world, withdrawal, change):
    payload = cbor.encode(cbor.decode(withdrawal.to_cbor()) | change)
    message = sign1.sign(payload, world.alice, contributor="alice", typ=sign1.TYP_WITHDRAWAL)
    raw = keys.public_bytes(world.alice)
    assert code_of(verify_withdrawal, payload, message, raw, signer="alice", corpus=withdrawal.corpus)
