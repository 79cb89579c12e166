"""Whether a policy requires statement A: signed with it, absent by default, and told wherever a policy is."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_policy_auditors import TEXT, refusal

from attest import cbor
from attest.errors import PolicyRefused
from attest.policy import Policy
from dptrain.cli.advice import Case, consequences
from dptrain.planning.plan import make_plan


def said(value: str) -> Policy:
    return Policy.from_toml(TEXT.replace("[[class]]", f"[isolation]\nrequired = {value}\n[[class]]"))


def test_a_policy_can_require_isolation():
    policy = said("true")
    assert policy.isolation_required is True
    assert Policy.from_cbor(policy.to_cbor()) == policy and Policy.from_toml(policy.to_toml()) == policy


def test_a_policy_that_does_not_has_the_bytes_that_it_always_had():
    plain = Policy.from_toml(TEXT)
    assert plain.isolation_required is False and said("false") == plain
    assert 31 not in cbor.decode(plain.to_cbor()) and said("false").to_cbor() == plain.to_cbor()
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(cbor.encode(cbor.decode(said("true").to_cbor()) | {31: False}))


@pytest.mark.parametrize("value", [1, 0, None, "true", ()])
def test_it_is_true_or_false_and_nothing_else(value):
    assert refusal(isolation_required=value) == "TYPE"
    encoded = cbor.decode(said("true").to_cbor()) | {31: list(value) if isinstance(value, tuple) else value}
    with pytest.raises(PolicyRefused):
        Policy.from_cbor(cbor.encode(encoded))


@pytest.mark.parametrize("table", ['required = "yes"', "required = 1", "requires = true", "required = []"])
def test_other_values_and_keys_are_refused(table):
    with pytest.raises(PolicyRefused):
        Policy.from_toml(TEXT.replace("[[class]]", f"[isolation]\n{table}\n[[class]]"))


def test_a_check_of_the_policy_says_what_it_means():
    for policy in (said("true"), said("false")):
        codes = {item.code for item in consequences(Case(policy, make_plan(policy, 12)))}
        assert ("ISOLATION" in codes) is policy.isolation_required


def test_the_template_names_it():
    text = (Path(__file__).parents[2] / "dptrain/cli/policy_template.toml").read_text()
    assert "# [isolation]" in text and "# required = true" in text
    assert replace(said("true"), isolation_required=False) == Policy.from_toml(TEXT)
