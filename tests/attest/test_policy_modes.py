"""Fields of a policy that are stated only where they mean something: injections per step, and public classes."""

import pytest

from attest import cbor
from attest.descriptor import PUBLIC_BOUNDS
from attest.errors import PolicyRefused
from attest.policy import Policy

TOP = 'corpus = "c"\ndelta = 1e-6\nsteps = 10\nnormalizer = 4\n'
PRIVATE = """[[class]]
name = "private"
clip_norm = 1.0
noise_multiplier = 1.1
sampling_rate = 0.1
depth = { from = 0.5, to = 1.0 }
"""
OPEN = '[[class]]\nname = "open"\npublic = true\nsampling_rate = 0.1\ndepth = { from = 0.0, to = 1.0 }\n'


def refused(text: str, code: str) -> str:
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_toml(text)
    assert caught.value.code == code
    return caught.value.sentence


def noise(fields: str) -> str:
    return f"{TOP}[noise]\n{fields}\n{PRIVATE}"


def test_microbatches_go_with_their_mode_and_with_no_other():
    policy = Policy.from_toml(noise('injection = "per_microbatch"\nmicrobatches = 4'))
    assert policy.noise_microbatches == 4
    assert Policy.from_cbor(policy.to_cbor()) == policy
    assert "needs noise.microbatches" in refused(noise('injection = "per_microbatch"'), "RANGE")
    assert "leave it out" in refused(noise("microbatches = 4"), "RANGE")
    assert "leave it out" in refused(noise('injection = "scheduled"\nmicrobatches = 1'), "RANGE")


@pytest.mark.parametrize("count", ["0", "65537", "-1", "true", "4.0", '"4"'])
def test_microbatches_out_of_range_are_refused(count):
    with pytest.raises(PolicyRefused):
        Policy.from_toml(noise(f'injection = "per_microbatch"\nmicrobatches = {count}'))


def test_what_is_not_stated_is_not_encoded():
    """A policy without the new fields has the bytes, and so the digest, that it always had."""
    plain = cbor.decode(Policy.from_toml(TOP + PRIVATE).to_cbor())
    assert sorted(plain) == list(range(1, 23)) and sorted(plain[22][0]) == list(range(1, 7))
    for change in ({23: None}, {23: 4}, {24: 1}):
        with pytest.raises(PolicyRefused):
            Policy.from_cbor(cbor.encode(plain | change))
    for change in ({7: False}, {7: None}, {7: 1}, {8: True}, {7: True}):
        with pytest.raises(PolicyRefused):
            Policy.from_cbor(cbor.encode(plain | {22: [plain[22][0] | change]}))


def test_a_public_class_has_no_bounds():
    policy = Policy.from_toml(f"{TOP}[floors]\nclip_norm = 0.01\nnoise_multiplier = 0.5\n{PRIVATE}{OPEN}")
    private, public = policy.classes
    assert public.public and not private.public
    assert (public.clip_norm_micro, public.noise_multiplier_micro) == PUBLIC_BOUNDS[:2]
    assert Policy.from_cbor(policy.to_cbor()) == policy
    assert "neither clipped nor noised" in refused(TOP + PRIVATE + OPEN + "clip_norm = 1.0\n", "KEY")
    assert "neither clipped nor noised" in refused(TOP + PRIVATE + OPEN + "noise_multiplier = 0.000001\n", "KEY")
    assert "lacks clip_norm" in refused(TOP + PRIVATE + OPEN.replace("true", "false"), "KEY")
    refused(TOP + PRIVATE + OPEN.replace("true", '"yes"') + "clip_norm = 1\nnoise_multiplier = 1\n", "TYPE")


def test_only_public_classes_have_the_bounds_that_say_public():
    """So that who signs them can be admitted to no other class."""
    says_public = PRIVATE.replace("clip_norm = 1.0", "clip_norm = 1000000000").replace("= 1.1", "= 0.000001")
    assert "set public = true" in refused(TOP + says_public, "RANGE")


def test_a_policy_protects_somebody():
    assert "protects nobody" in refused(TOP + OPEN, "RANGE")
