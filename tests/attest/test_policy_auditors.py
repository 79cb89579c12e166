"""Auditors and witnesses in a policy: signed with it, absent by default, and refused where they could not make a quorum."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import cbor
from attest.errors import PolicyRefused
from attest.keys import public_bytes
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, SIGNATURE_ED25519, VerifierKey
from attest.policy import Policy
from attest.policy.rules import MAX_COSIGNERS

TEXT = """
corpus = "notes"
delta = 1e-6
steps = 10
normalizer = 4
[[class]]
name = "open"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 0.1
depth = { from = 0.0, to = 1.0 }
"""


def vkey(number: int, name: str | None = None, kind: int = SIGNATURE_COSIGNATURE_V1) -> str:
    raw = public_bytes(Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")))
    return str(VerifierKey(name or f"auditor.example/{number}", kind, raw))


def written(ledger: str) -> Policy:
    return Policy.from_toml(TEXT.replace("[[class]]", f"[ledger]\n{ledger}\n[[class]]"))


def refusal(**changes) -> str:
    with pytest.raises(PolicyRefused) as caught:
        replace(Policy.from_toml(TEXT), **changes)
    return caught.value.code


def test_a_policy_names_auditors_and_their_quorum():
    policy = written(f'auditors = ["{vkey(1)}", "{vkey(2)}", "{vkey(3)}"]\nauditor_quorum = 2')
    assert policy.auditors == (vkey(1), vkey(2), vkey(3)) and policy.auditor_quorum == 2
    assert Policy.from_cbor(policy.to_cbor()) == policy


def test_a_policy_without_auditors_has_the_bytes_that_it_always_had():
    plain = Policy.from_toml(TEXT)
    assert plain.auditors == () and plain.auditor_quorum is None
    assert replace(plain, auditors=(), auditor_quorum=None).to_cbor() == plain.to_cbor()
    assert not {27, 28} & set(_labels(plain))
    assert {27, 28} <= set(_labels(written(f'auditors = ["{vkey(1)}"]\nauditor_quorum = 1')))


def _labels(policy: Policy) -> list[int]:
    return list(cbor.decode(policy.to_cbor()))


@pytest.mark.parametrize("quorum", [0, 3, -1, None, True, 1.0, "2"])
def test_a_quorum_that_cannot_be_reached_or_asks_for_nobody_is_refused(quorum):
    assert refusal(auditors=(vkey(1), vkey(2)), auditor_quorum=quorum) in ("RANGE", "TYPE")


def test_a_quorum_without_auditors_is_refused():
    assert refusal(auditor_quorum=1) == "RANGE"


def test_one_key_under_two_names_does_not_count_twice():
    assert refusal(auditors=(vkey(1), vkey(1, "auditor.example/other")), auditor_quorum=2) == "RANGE"


def test_a_key_that_signs_as_a_log_is_no_auditors():
    assert refusal(auditors=(vkey(1, kind=SIGNATURE_ED25519),), auditor_quorum=1) == "RANGE"


@pytest.mark.parametrize("name", ["аnna", 'an"na', "an\\na", "a" * 129, "anna\u202e"])
def test_names_that_do_not_read_as_what_they_are_are_refused(name):
    assert refusal(auditors=(vkey(1, name),), auditor_quorum=1) == "RANGE"


@pytest.mark.parametrize(
    "auditors",
    [
        ("anna",),
        (vkey(1) + " ",),
        (vkey(1).replace("+", "+0", 1),),
        (None,),
        (b"x",),
        [vkey(1)],
        vkey(1),
        tuple(vkey(n) for n in range(1, MAX_COSIGNERS + 2)),
        (str(VerifierKey("weak", SIGNATURE_COSIGNATURE_V1, bytes([1]) + bytes(31))),),
    ],
)
def test_what_is_no_verifier_key_is_refused(auditors):
    assert refusal(auditors=auditors, auditor_quorum=1) in ("VKEY", "TYPE", "KEY_WEAK")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("auditor_quorum = 1", "KEY"),
        (f'auditors = ["{vkey(1)}"]', "KEY"),
        (f'auditors = "{vkey(1)}"\nauditor_quorum = 1', "TYPE"),
        (f'auditor = ["{vkey(1)}"]\nauditor_quorum = 1', "KEY"),
        (f'auditors = ["{vkey(1)}"]\nauditor_quorum = "1"', "TYPE"),
        ("auditors = []\nauditor_quorum = 1", "RANGE"),
    ],
)
def test_a_written_table_is_whole_or_refused(text, code):
    with pytest.raises(PolicyRefused) as caught:
        written(text)
    assert caught.value.code == code


def test_a_signed_policy_with_a_null_for_auditors_is_refused():
    fields = cbor.decode(Policy.from_toml(TEXT).to_cbor())
    for extra in ({27: None}, {27: []}, {28: None}, {27: [], 28: None}, {28: 1}):
        with pytest.raises(PolicyRefused):
            Policy.from_cbor(cbor.encode(fields | extra))


WITNESSED = {"auditors": (vkey(1), vkey(2)), "auditor_quorum": 2, "witnesses": (vkey(3), vkey(4)), "witness_quorum": 1}


def test_a_policy_names_witnesses_beside_auditors():
    policy = written(
        f'auditors = ["{vkey(1)}", "{vkey(2)}"]\nauditor_quorum = 2\nwitnesses = ["{vkey(3)}", "{vkey(4)}"]\nwitness_quorum = 1'
    )
    assert (policy.witnesses, policy.witness_quorum) == ((vkey(3), vkey(4)), 1)
    assert policy == replace(Policy.from_toml(TEXT), **WITNESSED) == Policy.from_cbor(policy.to_cbor())
    assert {27, 28, 32, 33} <= set(_labels(policy)) and not {32, 33} & set(_labels(Policy.from_toml(TEXT)))
    alone = written(f'witnesses = ["{vkey(3)}"]\nwitness_quorum = 1')
    assert alone.auditors == () and Policy.from_cbor(alone.to_cbor()) == alone


def test_a_key_is_not_an_auditors_and_a_witnesss():
    """Else one signature would make both quorums, under whatever names the key stands."""
    assert refusal(**WITNESSED | {"witnesses": (vkey(1, "witness.example/w"), vkey(4))}) == "RANGE"
    assert refusal(**WITNESSED | {"witnesses": (vkey(3), vkey(3, "witness.example/w"))}) == "RANGE"


@pytest.mark.parametrize("quorum", [0, 3, None, True, "1"])
def test_a_quorum_of_witnesses_that_cannot_be_reached_is_refused(quorum):
    assert refusal(**WITNESSED | {"witness_quorum": quorum}) in ("RANGE", "TYPE")
    assert refusal(witness_quorum=1) == "RANGE", "without witnesses"


def test_auditors_and_witnesses_are_together_as_many_as_every_reader_of_trust_policies_takes():
    half = MAX_COSIGNERS // 2
    auditors, witnesses = (tuple(vkey(n) for n in range(low, low + half)) for low in (1, 100))
    whole = {"auditors": auditors, "auditor_quorum": 9, "witnesses": witnesses, "witness_quorum": 9}
    assert replace(Policy.from_toml(TEXT), **whole).witness_quorum == 9
    assert refusal(**whole | {"witnesses": (*witnesses, vkey(200))}) == "RANGE"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("witness_quorum = 1", "KEY"),
        (f'witnesses = ["{vkey(1)}"]', "KEY"),
        (f'auditors = ["{vkey(1)}"]\nwitness_quorum = 1', "KEY"),
        (f'witnesses = "{vkey(1)}"\nwitness_quorum = 1', "TYPE"),
        ("witnesses = []\nwitness_quorum = 1", "RANGE"),
        (f'witnesses = ["{vkey(1, kind=SIGNATURE_ED25519)}"]\nwitness_quorum = 1', "RANGE"),
    ],
)
def test_a_written_table_of_witnesses_is_whole_or_refused(text, code):
    with pytest.raises(PolicyRefused) as caught:
        written(text)
    assert caught.value.code == code
