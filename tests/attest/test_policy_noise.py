"""Phases and budgets of a policy: what is read, what is refused with which word, and that older policies keep their bytes."""

import contextlib
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import cbor
from attest.errors import PolicyRefused
from attest.policy import NoisePhase, Policy
from attest.policy.mechanism import MAX_PHASES

CLASS = """[[class]]
name = "private"
clip_norm = 1.0
noise_multiplier = 1.1
sampling_rate = 0.1
depth = { from = 0.5, to = 1.0 }
"""
BUDGETS = "[noise.budgets]\nembeddings = 0.2\nlayers = 1.0\nhead = 2.0\n"


def text(noise: str = "", top: str = "") -> str:
    return f'corpus = "c"\ndelta = 1e-6\nsteps = 1000\nnormalizer = 4\n{top}{noise}{CLASS}'


def phases(*pairs: tuple[object, object]) -> str:
    return "".join(f"[[noise.phase]]\nfrom_step = {step}\nscale = {scale}\n" for step, scale in pairs)


def refused(source: str, code: str) -> str:
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_toml(source)
    assert caught.value.code == code, caught.value
    return caught.value.sentence


def test_phases_are_read_and_signed():
    policy = Policy.from_toml(text(phases((1, 2), (501, 1), (900, "1.000001"))))
    assert policy.noise_phases == (NoisePhase(1, 2_000_000), NoisePhase(501, 1_000_000), NoisePhase(900, 1_000_001))
    assert [phase.scale for phase in policy.noise_phases] == [2.0, 1.0, 1.000001]
    assert cbor.decode(policy.to_cbor())[24] == [[1, 2_000_000], [501, 1_000_000], [900, 1_000_001]]
    assert Policy.from_cbor(policy.to_cbor()) == policy


def test_budgets_are_read_and_signed():
    policy = Policy.from_toml(text(BUDGETS))
    assert policy.noise_budgets == (200_000, 1_000_000, 2_000_000) and policy.noise_phases == ()
    assert cbor.decode(policy.to_cbor())[25] == [200_000, 1_000_000, 2_000_000]
    assert Policy.from_cbor(policy.to_cbor()) == policy


def test_a_policy_without_them_has_the_bytes_of_the_schema():
    plain = Policy.from_toml(text())
    assert set(cbor.decode(plain.to_cbor())) == set(range(1, 23))
    digest = "5620008cccb02335bb5c1b3f6d86cb66e5c83a88d37809915acef24628c96012"  # of dptrain.policy/2 as it was frozen
    assert hashlib.sha256(plain.to_cbor()).hexdigest() == digest
    assert replace(plain, noise_phases=(), noise_budgets=None).to_cbor() == plain.to_cbor()
    assert replace(plain, noise_phases=(NoisePhase(1, 1_000_000),)).to_cbor() != plain.to_cbor()


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ([], "CBOR_NONCANONICAL"),
        (None, "TYPE"),
        ({1: 1}, "TYPE"),
        ([[1]], "TYPE"),
        ([[1, 2_000_000, 3]], "TYPE"),
        ([[1, 2_000_000], 7], "TYPE"),
        ([[True, 2_000_000]], "TYPE"),
        ([[1, 2_000_000.0]], "TYPE"),
        ([["1", 2_000_000]], "TYPE"),
        ([[0, 2_000_000]], "RANGE"),
        ([[1, 999_999]], "RANGE"),
        ([[1, -2_000_000]], "RANGE"),
        ([[1, 10**15 + 1]], "RANGE"),
        ([[5, 2_000_000], [5, 3_000_000]], "RANGE"),
        ([[5, 2_000_000], [4, 3_000_000]], "RANGE"),
        ([[1001, 2_000_000]], "RANGE"),
        ([[step + 1, 2_000_000] for step in range(MAX_PHASES + 1)], "TYPE"),
    ],
    ids=str,
)
def test_bytes_that_are_no_phases_are_refused(value, code):
    plain = cbor.decode(Policy.from_toml(text()).to_cbor())
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_cbor(cbor.encode(plain | {24: value}))
    assert caught.value.code == code


@pytest.mark.parametrize(
    "value",
    [[], None, [1, 2], [1, 2, 3, 4], [1, 2, 0], [1, 2, -3], [1, 2, True], [1, 2, 3.0], [1, 2, 10**9 + 1], "123"],
    ids=str,
)
def test_bytes_that_are_no_budgets_are_refused(value):
    plain = cbor.decode(Policy.from_toml(text()).to_cbor())
    with pytest.raises(PolicyRefused) as caught:
        Policy.from_cbor(cbor.encode(plain | {25: value}))
    assert caught.value.code in ("TYPE", "RANGE")


def test_refusals_say_what_to_do():
    assert "least noise of a run" in refused(text(phases((1, "0.5"))), "RANGE")
    assert "begin it at 1000 or before" in refused(text(phases((1001, 2))), "RANGE")
    assert "in the order of the run" in refused(text(phases((9, 2), (9, 3))), "RANGE")
    assert "more than six decimals" in refused(text(phases((1, "1.0000001"))), "RANGE")
    assert "lacks scale" in refused(text("[[noise.phase]]\nfrom_step = 1\n"), "KEY")
    assert "'from_step'" in refused(text("[[noise.phase]]\nfrom = 1\nscale = 2\n"), "KEY")
    assert "double brackets" in refused(text("[noise.phase]\nfrom_step = 1\nscale = 2\n"), "TYPE")
    assert "double brackets" in refused(text("[noise]\nphase = []\n"), "TYPE")
    refused(text(phases((1, '"2"'))), "TYPE")
    refused(text(phases(("1.0", 2))), "TYPE")
    refused(text(phases((0, 2))), "RANGE")
    assert "lacks head" in refused(text("[noise.budgets]\nembeddings = 1\nlayers = 1\n"), "KEY")
    assert "'layers'" in refused(text(BUDGETS + "layer = 1\n"), "KEY")
    refused(text(BUDGETS.replace("0.2", "0")), "RANGE")
    refused(text(BUDGETS.replace("0.2", "1001")), "RANGE")
    refused(text("[noise]\nbudgets = 3\n"), "TYPE")


@pytest.mark.parametrize("noise", [phases((1, 2)), BUDGETS], ids=["phases", "budgets"])
def test_they_go_with_scheduled_noise_only(noise):
    literal = '[noise]\ninjection = "per_sample"\n' + noise
    assert "leave it out" in refused(text(literal, 'disclosure = "occurrences_public"\n'), "RANGE")
    kept = Policy.from_toml(text('[noise]\ninjection = "per_microbatch"\nmicrobatches = 2\n' + noise))
    assert Policy.from_cbor(kept.to_cbor()) == kept


STEPS = st.sets(st.integers(1, 1000), min_size=1, max_size=8).map(sorted)
WEIGHTS = st.integers(1, 10**9)


@settings(max_examples=100, deadline=None)
@given(STEPS, st.data())
def test_every_schedule_is_read_back_from_toml_and_cbor(firsts, data):
    scales = data.draw(st.lists(st.integers(10**6, 10**15), min_size=len(firsts), max_size=len(firsts)))
    budgets = data.draw(st.none() | st.tuples(WEIGHTS, WEIGHTS, WEIGHTS))
    policy = replace(
        Policy.from_toml(text()),
        noise_phases=tuple(NoisePhase(first, scale) for first, scale in zip(firsts, scales, strict=True)),
        noise_budgets=budgets,
    )
    assert Policy.from_cbor(policy.to_cbor()) == policy
    shown = phases(*((first, f"{scale // 10**6}.{scale % 10**6:06}") for first, scale in zip(firsts, scales, strict=True)))
    if budgets is not None:
        names = zip(("embeddings", "layers", "head"), budgets, strict=True)
        shown += "[noise.budgets]\n" + "".join(f"{name} = {w // 10**6}.{w % 10**6:06}\n" for name, w in names)
    assert Policy.from_toml(text(shown)) == policy


@settings(max_examples=200, deadline=None)
@given(STEPS, st.data())
def test_no_changed_byte_of_a_signed_schedule_reads_as_the_same_policy(firsts, data):
    phased = tuple(NoisePhase(first, 10**6 + first) for first in firsts)
    policy = replace(Policy.from_toml(text()), noise_phases=phased, noise_budgets=(1, 2, 3))
    encoded = policy.to_cbor()
    place = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytearray(encoded)
    changed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(PolicyRefused):
        assert Policy.from_cbor(bytes(changed)) != policy
