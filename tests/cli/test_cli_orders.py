"""Signed orders on the command line: what a turn costs, in figures and words, before anything is signed."""

import math
from fractions import Fraction

import pytest

from attest.policy import Policy
from attest.schema.rounding import at_most
from ledger import accountants

POLICY = """
corpus = "clinic-notes-2026"
delta = 1e-6
steps = 100
normalizer = 4
redo_steps = 5
disclosure = "occurrences_public"
[sampling]
order = "ORDER"
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.2
sampling_rate = "1/30"
depth = { from = 0.75, to = 1.0 }
[[class]]
name = "open"
clip_norm = 0.1
noise_multiplier = 3
sampling_rate = 0.05
depth = { from = 0.0, to = 1.0 }
"""
PHASES = "[[noise.phase]]\nfrom_step = 1\nscale = 2\n[[noise.phase]]\nfrom_step = 46\nscale = 1\n[[class]]"
ORDERS = ("cyclic", "shuffled")


def gaussian(losses, times=1.0) -> float:
    return accountants.gaussian.epsilon_of_mu(math.sqrt(times * sum(losses)), 1e-6)


def flowing(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(params=ORDERS)
def order(shell, request) -> str:
    shell.write("policy.toml", POLICY.replace("ORDER", request.param))
    return request.param


def test_plan_prices_the_dearest_turns_and_every_repeated_step(shell, order):
    """100 steps are 4 periods of 30, the last cut short, and 5 of 20; a repeated step is one more turn of the same one."""
    planned = shell.json("plan", "policy.toml")
    for item, folds, z in zip(planned["classes"], (4, 5), (1.2, 3.0), strict=True):
        preset, loss = item["preset"], 1 / item["preset"]["effective_multiplier"] ** 2
        assert preset["effective_multiplier"] >= z
        assert preset["epsilon"] == pytest.approx(gaussian([folds * loss]), rel=1e-9)
        assert preset["epsilon_replace"] == pytest.approx(gaussian([folds * loss], 4), rel=1e-9)
        assert preset["epsilon_with_redo"] == pytest.approx(gaussian([(folds + 5) * loss]), rel=1e-9)
        assert item["draws"] == {"low": 100 // (30 if folds == 4 else 20), "high": folds}
    told = flowing(shell.run("plan", "policy.toml").output)
    assert f"turns are public ({order} order)" in told and "one contribution in a million" not in told


def test_phases_are_priced_at_the_steps_where_a_turn_may_fall(shell, order):
    """Noise of scale 2 up to step 45, in the middle of the second period: cheap turns are 1 or 2 of 4."""
    shell.write("policy.toml", POLICY.replace("ORDER", order).replace("[[class]]", PHASES, 1))
    loss = 1 / 1.2**2
    found = shell.json("plan", "policy.toml")["classes"][0]["preset"]["epsilon"]
    # shuffled: the first turn is cheap, any other may be dear. cyclic: a fourth turn comes with two cheap ones.
    turns = [loss / 4, loss, loss, loss] if order == "shuffled" else [loss / 4, loss / 4, loss, loss]
    offsets = [[loss / 4 if step <= 45 else loss for step in range(first, 101, 30)] for first in range(1, 31)]
    assert order == "shuffled" or sum(max(offsets, key=sum)) == pytest.approx(sum(turns))
    assert found == pytest.approx(gaussian(turns), rel=1e-9)


def test_check_says_when_somebody_takes_part_and_that_nothing_is_hidden(shell, order):
    answer = shell.json("policy", "check", "policy.toml")
    text = " ".join(item["sentence"] for item in answer["consequences"])
    assert answer["supported"] and "ORDER" in {item["code"] for item in answer["consequences"]}
    assert "each contribution takes part once in every 30 steps, 4 times in all at most" in text
    assert ("always in the same step of it" in text) is (order == "cyclic")
    assert "drawn with probability" not in text and "one contribution in a million" not in text
    assert "every one of them being the turn of the same contribution" in text


def test_what_if_an_order_were_signed(shell):
    draws = POLICY.replace('[sampling]\norder = "ORDER"\n', "").replace('"1/30"', "0.04")
    shell.write("policy.toml", draws)
    now, other = (shell.json("plan", "policy.toml", *change) for change in ((), ("--what-if", "sampling.order=cyclic")))
    before, after = now["classes"][0]["preset"]["epsilon"], other["what_if"][0]["classes"][0]["preset"]["epsilon"]
    likely = accountants.likely_occurrences(0.04, 100)
    assert before == pytest.approx(gaussian([likely / 1.2**2]), rel=1e-9)
    assert after == pytest.approx(gaussian([4 / 1.2**2]), rel=1e-9) and after < before
    refused = shell.json("plan", "policy.toml", "--what-if", "sampling.order=cyclic, class.open.sampling_rate=0.3", code=1)
    assert refused["error"]["code"] == "RANGE" and '"1/4" and "1/3"' in refused["error"]["sentence"]
    secret = shell.json("plan", "policy.toml", "--what-if", "sampling.order=cyclic, disclosure=secret_poisson", code=1)
    assert "set disclosure = 'occurrences_public'" in secret["error"]["sentence"]


def test_a_rate_that_is_solved_for_has_a_period(shell, order):
    """The shortest period whose turns keep within the target, written so that a policy takes it."""
    target = gaussian([3.5 / 1.2**2])
    answer = shell.json("plan", "policy.toml", "--solve", "rate", "--target-epsilon", f"sensitive={target}")["solution"]
    (line,) = answer["lines"]
    assert (line["key"], line["new"]) == ("sampling_rate", pytest.approx(1 / 34))
    assert answer["classes"][0]["epsilon"] == pytest.approx(gaussian([3 / 1.2**2]), rel=1e-9)
    told = shell.run("plan", "policy.toml", "--solve", "rate", "--target-epsilon", f"sensitive={target}").output
    assert '+   sampling_rate = "1/34"' in told
    found = shell.json("plan", "policy.toml", "--what-if", 'class.sensitive.sampling_rate="1/34"')["what_if"][0]
    assert found["classes"][0]["preset"]["epsilon"] <= target


@pytest.mark.parametrize("rate", ["0.05", '"1/7"', '"1/3"', "1"])
def test_show_gives_back_order_and_rate(order, rate):
    policy = Policy.from_toml(POLICY.replace("ORDER", order).replace("0.05", rate))
    text = policy.to_toml()
    assert Policy.from_toml(text) == policy and f'order = "{order}"' in text
    assert policy.classes[1].sampling_rate == Fraction(rate.strip('"'))
    assert "[sampling]" not in Policy.from_toml(POLICY.replace("ORDER", "poisson")).to_toml()


def test_an_attestation_under_an_order_is_told_its_turns(shell, order):
    shell.write("notes.jsonl", '{"text": "a"}\n{"text": "b"}\n')
    for name in ("owner", "alice"):
        shell.run("attest", "keygen", name)
    shell.run("registry", "add", "registry.cbor", "--pub", "alice.pub", "--class", "sensitive")
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    bounds = ("--policy", "policy.cose", "--owner-key", "owner.pub")
    shell.run("attest", "sign", "notes.jsonl", "--key", "alice.key", "--class", "sensitive", *bounds)
    told = flowing(shell.run("attest", "show", "notes.jsonl.attest", "--record", "1", *bounds).output)
    assert "Drawn 4 times (its turns in the order of the policy, if no step is done again)" in told
    assert f"If every step that may be repeated after crashes is, it is at most {at_most(gaussian([9 / 1.2**2]))};" in told
    assert shell.json("policy", "show", "policy.cose")["policy"]["sampling_order"] == order
