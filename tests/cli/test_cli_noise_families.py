"""What the command line says of noise families: the figures of their own accountants, and what they are worth."""

import re
from types import SimpleNamespace

import pytest

from attest.descriptor import SignedBounds
from attest.policy import Policy
from dptrain.accounting import unsupported
from dptrain.cli.advice import consequences
from dptrain.cli.advice.case import Case
from dptrain.cli.attest import words as attest_words
from dptrain.planning.plan import make_plan
from ledger import accountants

TEXT = """
corpus = "c"
delta = 1e-6
steps = 50
normalizer = 16
exactness = "certified"
accountant = "{accountant}"
[noise]
family = "{family}"
[[class]]
name = "a"
clip_norm = 1.0
noise_multiplier = 6.0
sampling_rate = 0.05
depth = {{ from = 0.0, to = 1.0 }}
"""
BESIDE = {"discrete_gaussian": "rdp", "laplace": "pld", "skellam": "rdp"}


@pytest.mark.parametrize("family", BESIDE)
def test_a_plan_gives_the_epsilon_of_the_family_and_says_what_it_means(family: str) -> None:
    policy = Policy.from_toml(TEXT.format(family=family, accountant=BESIDE[family]))
    assert not unsupported(policy)
    plan = make_plan(policy, 12)
    own, replaced = (
        accountants.epsilon(6.0, 0.05, 50, 1e-6, BESIDE[family], family=family),
        accountants.epsilon(6.0, 0.05, 50, 1e-6, BESIDE[family], family=family, replace=True),
    )
    assert plan.classes[0].preset.epsilon == pytest.approx(own, rel=1e-9)
    assert plan.classes[0].preset.epsilon_replace == pytest.approx(replaced, rel=1e-9)
    found = {item.code: item.sentence for item in consequences(Case(policy, plan))}
    assert ("sum of the magnitudes" in found["FAMILY"]) is (family == "laplace")
    assert ("counts all steps in full" in found["FAMILY"]) is (family != "laplace")


def test_skellam_noise_goes_in_parts_at_the_epsilon_of_one_draw_and_others_do_not() -> None:
    parts = 'injection = "per_microbatch"\nmicrobatches = 3\n[[class]]'
    texts = {f: TEXT.format(family=f, accountant=BESIDE[f]).replace("[[class]]", parts) for f in BESIDE}
    policy, whole = (Policy.from_toml(text) for text in (texts["skellam"], TEXT.format(family="skellam", accountant="rdp")))
    assert not unsupported(policy)
    plan = make_plan(policy, 12)
    assert plan.classes[0].preset == make_plan(whole, 12).classes[0].preset
    assert "3 times per step" in {item.code: item.sentence for item in consequences(Case(policy, plan))}["INJECTION"]
    for family, reason in (("laplace", "is not a Laplace draw"), ("discrete_gaussian", "is not a discrete Gaussian draw")):
        (sentence,) = unsupported(Policy.from_toml(texts[family]))
        assert reason in sentence and "set noise.injection = 'scheduled'" in sentence


def test_gaussian_noise_needs_no_such_sentence() -> None:
    policy = Policy.from_toml(TEXT.format(family="gaussian", accountant="pld"))
    assert "FAMILY" not in {item.code for item in consequences(Case(policy, make_plan(policy, 12)))}


@pytest.mark.parametrize("cap", [0, 3])
@pytest.mark.parametrize("family", BESIDE)
def test_a_contributor_is_told_the_epsilon_of_the_family(family: str, cap: int) -> None:
    policy = Policy.from_toml(TEXT.format(family=family, accountant=BESIDE[family]))
    signed = SimpleNamespace(admissibility_class="a", bounds=SignedBounds(1_000_000, 7_500_000), max_occurrences=cap)
    told = attest_words.epsilon(signed, policy, True)
    phase = accountants.Phase(7.5, 0.05, 50)
    if cap:
        own = accountants.epsilon_of_phases_capped([phase], cap, 1e-6, BESIDE[family], family=family)
    else:
        own = accountants.epsilon_of_phases([phase], 1e-6, BESIDE[family], family=family)
    said = re.search(r"epsilon is at most ([0-9.]+) against the contribution being empty", told)
    assert said is not None and float(said[1]) == pytest.approx(own, rel=1e-3)
    assert ("sum of the magnitudes" in told) is (family == "laplace")


def test_a_contributor_is_told_that_a_policy_without_accounting_claims_nothing() -> None:
    policy = Policy.from_toml(TEXT.format(family="laplace", accountant="rdp"))
    signed = SimpleNamespace(admissibility_class="a", bounds=SignedBounds(1_000_000, 7_500_000), max_occurrences=0)
    told = attest_words.epsilon(signed, policy, True)
    assert "no epsilon is claimed" in told and "accountant = 'pld'" in told
