"""Limits of epsilon over all runs, as the commands take, show and judge them."""

from attest.policy import Policy
from ledger.accountants import Phase, epsilon_of_phases
from tests.worlds.commands import POLICY

SENSITIVE = "depth = { from = 0.75, to = 1.0 }\n"
USED = epsilon_of_phases([Phase(1.2, 0.1, 30)], 1e-6)
"""Of the class sensitive: 20 steps and the 10 that may be done again."""


def limited(shell, epsilon: float) -> None:
    shell.write("policy.toml", POLICY.replace(SENSITIVE, f"{SENSITIVE}max_epsilon_total = {epsilon}\n"))


def test_plan_and_check_say_what_a_run_uses_of_a_limit_and_how_many_fit(shell):
    limited(shell, 20)
    (total,) = shell.json("plan", "policy.toml", "--layers", "4")["totals"]
    assert (total["name"], total["limit"], total["used"]) == ("sensitive", 20, USED)
    together = [epsilon_of_phases([Phase(1.2, 0.1, 30 * runs)], 1e-6) for runs in (total["runs"], 2 * total["runs"])]
    assert total["runs"] > 1 and together[0] <= 20 < together[1]  # planned together they would cost a little less
    shown = shell.run("plan", "policy.toml", "--layers", "4").stdout
    assert "class sensitive: epsilon 20 over all runs together" in " ".join(shown.split())
    said = shell.json("policy", "check", "policy.toml")["consequences"]
    (found,) = [item for item in said if "TOTAL" in item["code"]]
    assert (found["code"], found["level"]) == ("TOTAL", "fact") and f"{total['runs']} runs like it fit" in found["sentence"]


def test_another_limit_can_be_asked_for(shell):
    limited(shell, 20)
    answer = shell.json("plan", "policy.toml", "--layers", "4", "--what-if", "class.sensitive.max_epsilon_total=1")
    assert [total["runs"] for total in answer["what_if"][0]["totals"]] == [0] and answer["totals"][0]["runs"] > 1


def test_a_limit_that_one_run_fills_leaves_no_second(shell):
    limited(shell, round(USED + 0.01, 3))
    (total,) = shell.json("plan", "policy.toml", "--layers", "4")["totals"]
    assert total["runs"] == 1
    assert "no second run like it fits" in " ".join(shell.run("plan", "policy.toml", "--layers", "4").stdout.split())


def test_a_limit_that_no_run_keeps_is_a_warning_with_one_that_would_do(shell):
    limited(shell, round(USED - 0.01, 3))
    (total,) = shell.json("plan", "policy.toml", "--layers", "4")["totals"]
    assert total["runs"] == 0 and "it cannot begin" in shell.run("plan", "policy.toml", "--layers", "4").stdout
    checked = shell.json("policy", "check", "policy.toml")
    (warned,) = [item for item in checked["consequences"] if item["code"] == "TOTAL_EXCEEDED"]
    (change,) = warned["changes"]
    assert change["setting"] == "max_epsilon_total of class sensitive"
    limited(shell, float(change["value"]))
    assert shell.json("plan", "policy.toml", "--layers", "4")["totals"][0]["runs"] == 1


def test_a_signed_policy_shows_its_limits(shell, corpus):
    limited(shell, 20)
    policy = Policy.from_toml((shell.directory / "policy.toml").read_text())
    assert "max_epsilon_total = 20" in policy.to_toml() and Policy.from_toml(policy.to_toml()) == policy
    (shell.directory / "policy.cose").unlink()
    shell.run("policy", "sign", "policy.toml", "--key", "owner.key")
    classes = shell.json("policy", "show", "policy.cose")["policy"]["classes"]
    assert [item["max_epsilon_total"] for item in classes] == [20.0, None]


BOUNDS = ("--corpus", "clinic-notes-2026", "--clip-norm", "0.5", "--noise-multiplier", "1.2")


def test_a_limit_is_signed_with_its_delta_and_shown_in_words(shell, corpus):
    corpus()
    sign = ("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive")
    show = ("attest", "show", "corpus/notes.jsonl.attest")
    for options, delta in (((*BOUNDS, "--max-delta", "1e-7"), 1e-7), (("--policy", "policy.toml"), 1e-6)):
        shell.run(*sign, *options, "--max-epsilon", "3")
        assert [(item["max_epsilon"], item["max_delta"]) for item in shell.json(*show)["descriptors"][:1]] == [(3.0, delta)]
    one = " ".join(shell.run(*show, "--record", "1").stdout.split())
    assert "it may spend an epsilon of 3 at most, at delta 1e-06" in one
    limited(shell, 20)
    under = " ".join(shell.run(*show, "--record", "1", "--policy", "policy.toml").stdout.split())
    assert "lets a contribution of the class spend epsilon 20 at most, at its delta; no later policy" in under


def test_a_limit_without_a_delta_or_a_delta_without_a_limit_is_wrong_use(shell, corpus):
    sign = ("attest", "sign", "corpus/notes.jsonl", "--key", "alice.key", "--class", "sensitive", *BOUNDS)
    assert "--max-delta" in shell.run(*sign, "--max-epsilon", "3", code=2).stderr
    assert "--max-epsilon" in shell.run(*sign, "--max-delta", "1e-6", code=2).stderr
    assert shell.json(*sign, "--max-epsilon", "3", "--max-delta", "1", code=1)["error"]["code"] == "RANGE"
