"""The noise that a contribution's own bounds would need: one figure by every door, whoever asks."""

import pytest

from ledger import accountants
from tests.worlds.commands import record

ATTESTATIONS = "corpus/notes.jsonl.attest"


def shown(shell):
    return shell.json("attest", "show", ATTESTATIONS, "--record", "1", "--policy", "policy.cose", "--owner-key", "owner.pub")


def test_what_was_signed_alone_needs_the_square_of_its_bounds_and_the_count_is_told(shell, corpus):
    """20 steps at a rate of a tenth are two draws expected; an auditor derives it from the leaf and the signed policy."""
    corpus("--policy", "policy.cose", "--owner-key", "owner.pub", "--clip-norm", "0.25", "--noise-multiplier", "1.5")
    expected = {"expected_occurrences": 2.0, "multiplier": 1.5, "variance": (1.5 * 0.25) ** 2}
    found = shown(shell)
    assert found["own_noise"] == expected
    words = " ".join(found["words"])
    assert "would need noise of variance 0.1406 per coordinate in every step (2 draws expected" in words
    assert "from no such count" in words
    plan = shell.json("plan", "policy.cose", "corpus")
    (group,) = plan["signed_bounds"]["sensitive"]
    assert (group["expected_draws"], group["sufficient_multiplier"], group["sufficient_variance"]) == tuple(expected.values())
    preset = next(item for item in plan["classes"] if item["name"] == "sensitive")["preset"]
    assert preset["sufficient_variance"] == (1.2 * 0.5) ** 2
    text = " ".join(shell.run("plan", "policy.cose", "corpus").stdout.split())
    assert "own variance" in text and "0.1406" in text and "however often anybody is drawn" in text
    record(shell)
    asked = ("--content", found["content_hash"], "--nonce", found["nonce"])
    for door in (("ledger.db",), ("export", "--key", "ledger.pub")):
        if door[0] == "export":
            shell.run("ledger", "export", "ledger.db", "export")
        assert shell.json("ledger", "show", *door, *asked)["own_noise"] == expected
        assert "variance 0.1406 per step and coordinate" in shell.run("ledger", "show", *door, *asked).stdout


@pytest.mark.parametrize("cap", [0, 1])
def test_a_limit_of_epsilon_needs_what_all_steps_cost_with_those_done_again(shell, corpus, cap):
    """20 steps and 10 that may be done again, in attempts each of which counts a cap anew."""
    options = ("--max-epsilon", "0.5", "--max-delta", "1e-6", *(("--max-occurrences", str(cap)) if cap else ()))
    corpus("--policy", "policy.cose", "--owner-key", "owner.pub", *options)
    found = shown(shell)["own_noise"]
    assert found["multiplier"] == accountants.calibrate(0.5, 0.1, 30, 1e-6) > accountants.calibrate(0.5, 0.1, 20, 1e-6) > 1.2
    assert found["expected_occurrences"] == min(2, cap or 2)


@pytest.mark.parametrize("cap", [0, 1, 15])
def test_a_limit_of_epsilon_needs_what_its_expected_draws_cost(shell, corpus, cap):
    text = (shell.directory / "policy.toml").read_text().replace("redo_steps = 10", "redo_steps = 0")
    (shell.directory / "policy.cose").unlink(missing_ok=True)
    shell.write("policy.toml", text)
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key", "--registry", "registry.cbor")
    options = ("--max-epsilon", "0.5", "--max-delta", "1e-6", *(("--max-occurrences", str(cap)) if cap else ()))
    corpus("--policy", "policy.cose", "--owner-key", "owner.pub", *options)
    found = shown(shell)["own_noise"]
    sampled = accountants.calibrate(0.5, 0.1, 20, 1e-6)
    spent = accountants.epsilon_of_phases_capped([accountants.Phase(found["multiplier"], 0.1, 20)], cap or 20, 1e-6)
    less = accountants.epsilon_of_phases_capped([accountants.Phase(found["multiplier"] - 2e-6, 0.1, 20)], cap or 20, 1e-6)
    assert spent <= 0.5 < less and found["multiplier"] <= sampled
    assert found["expected_occurrences"] == min(2, cap or 2)
    assert found["multiplier"] > 1.2 and found["variance"] == pytest.approx((found["multiplier"] * 0.5) ** 2)
    (group,) = shell.json("plan", "policy.cose", "corpus")["signed_bounds"]["sensitive"]
    assert group["sufficient_variance"] == found["variance"]


def test_none_is_told_without_a_policy_and_of_another_corpus(shell, corpus):
    corpus()
    assert shell.json("attest", "show", ATTESTATIONS, "--record", "1")["own_noise"] is None
    policy = (shell.directory / "policy.toml").read_text().replace("clinic-notes-2026", "clinic-notes-2027")
    shell.write("other.toml", policy)
    assert shell.json("attest", "show", ATTESTATIONS, "--record", "1", "--policy", "other.toml")["own_noise"] is None
