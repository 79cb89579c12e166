"""`max_epsilon_total`: the most that a contribution of a class may spend over all runs, signed in the policy."""

from dataclasses import replace

import pytest

from attest import cbor
from attest.errors import PolicyRefused
from attest.policy import Policy

TEXT = """
corpus = "c"
delta = 1e-6
steps = 10
normalizer = 1
[[class]]
name = "sensitive"
clip_norm = 1.0
noise_multiplier = 1.1
sampling_rate = 0.5
depth = { from = 0.75, to = 1.0 }
max_epsilon_total = 2.5
"""
PUBLIC = '[[class]]\nname = "open"\npublic = true\nsampling_rate = 0.1\ndepth = { from = 0.0, to = 1.0 }\n'


def test_a_limit_is_read_exactly_and_bound_by_the_signature():
    policy = Policy.from_toml(TEXT)
    assert policy.classes[0].max_epsilon_total_micro == 2_500_000
    assert Policy.from_cbor(policy.to_cbor()) == policy
    assert cbor.decode(policy.to_cbor())[22][0][8] == 2_500_000
    without = Policy.from_toml(TEXT.replace("max_epsilon_total = 2.5\n", ""))
    assert without.classes[0].max_epsilon_total_micro is None and 8 not in cbor.decode(without.to_cbor())[22][0]


WRONG = {"0": "RANGE", "-1": "RANGE", "2.0000001": "RANGE", "1e10": "RANGE", '"2"': "TYPE", "true": "TYPE"}


@pytest.mark.parametrize(("value", "code"), WRONG.items())
def test_what_is_no_epsilon_is_refused(value, code):
    with pytest.raises(PolicyRefused) as refused:
        Policy.from_toml(TEXT.replace("= 2.5", f"= {value}"))
    assert refused.value.code == code


def test_a_public_class_has_no_limit_since_no_epsilon_is_claimed_for_it():
    with pytest.raises(PolicyRefused) as refused:
        Policy.from_toml(TEXT + PUBLIC + "max_epsilon_total = 3\n")
    assert refused.value.code == "RANGE" and "public" in refused.value.sentence


@pytest.mark.parametrize("value", [None, 0, True, 1.0, -1, 10**15 + 1])
def test_only_a_limit_is_encoded_as_one(value):
    fields = cbor.decode(Policy.from_toml(TEXT).to_cbor())
    fields[22][0][8] = value
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(cbor.encode(fields))
    with pytest.raises(PolicyRefused):
        replace(Policy.from_toml(TEXT).classes[0], max_epsilon_total_micro=0)
