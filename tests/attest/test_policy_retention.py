"""What a policy says of retention: hashes never go before bodies do, nor where nobody could vouch for what goes."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_policy_auditors import TEXT, refusal, vkey, written

from attest import cbor
from attest.errors import PolicyRefused
from attest.policy import Policy

NAMED = f'auditors = ["{vkey(1)}"]\nauditor_quorum = 1'
KEEPS = {"retention_epochs": 2, "auditors": (vkey(1),), "auditor_quorum": 1}


def hashed(epochs: object) -> Policy:
    return Policy.from_toml(
        f"retention_epochs = 2\nretention_hash_epochs = {epochs}\n{TEXT}".replace("[[class]]", f"[ledger]\n{NAMED}\n[[class]]")
    )


def test_a_policy_says_when_hashes_may_go():
    policy = hashed(5)
    assert (policy.retention_epochs, policy.retention_hash_epochs) == (2, 5)
    assert Policy.from_cbor(policy.to_cbor()) == policy and Policy.from_toml(policy.to_toml()) == policy


def test_a_policy_that_keeps_hashes_has_the_bytes_that_it_always_had():
    plain = written(NAMED)
    assert plain.retention_hash_epochs == 0 and 30 not in cbor.decode(plain.to_cbor())
    assert replace(plain, retention_hash_epochs=0).to_cbor() == plain.to_cbor()
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(cbor.encode(cbor.decode(hashed(5).to_cbor()) | {30: 0}))


@pytest.mark.parametrize("epochs", [1, -1, True, 2.0, None, "3", 10**9 + 1])
def test_hashes_never_go_before_bodies(epochs):
    assert refusal(**KEEPS, retention_hash_epochs=epochs) in ("RANGE", "TYPE")


def test_equal_horizons_pass_and_none_for_bodies_does_not():
    assert hashed(2).retention_hash_epochs == 2
    assert refusal(**KEEPS | {"retention_epochs": 0}, retention_hash_epochs=3) == "RANGE"


def test_hashes_of_a_ledger_that_nobody_audits_stay():
    assert refusal(retention_epochs=2, retention_hash_epochs=3) == "RANGE"


def test_the_template_names_it():
    assert "retention_hash_epochs" in (Path(__file__).parents[2] / "dptrain/cli/policy_template.toml").read_text()
