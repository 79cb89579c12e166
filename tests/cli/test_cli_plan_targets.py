"""`dptrain plan --target-epsilon`: lines to change, whose epsilon is computed again and never above the target."""

import pytest

PHASES = "\n[[noise.phase]]\nfrom_step = 1\nscale = 1.5\n[[noise.phase]]\nfrom_step = 11\nscale = 1\n"


def account(shell, z: float, q: float, steps: int) -> float:
    arguments = ("--noise-multiplier", str(z), "--sampling-rate", str(q), "--steps", str(steps), "--delta", "1e-6")
    return shell.json("account", *arguments)["epsilon"]


def solved(shell, *arguments: str) -> tuple[dict, dict]:
    """The lines found, by class and key, and epsilon then, by class."""
    answer = shell.json("plan", "policy.toml", "--layers", "4", *arguments)["solution"]
    lines = {(line["class"], line["key"]): line["new"] for line in answer["lines"]}
    return lines, {item["name"]: item["epsilon"] for item in answer["classes"]}


def add(shell, text: str) -> None:
    """Put lines into the policy, before its first class."""
    rules = (shell.directory / "policy.toml").read_text()
    shell.write("policy.toml", rules.replace("[[class]]", f"{text}[[class]]", 1))


def test_a_multiplier_is_the_smallest_that_keeps_within_the_target(shell, policy):
    lines, epsilon = solved(shell, "--target-epsilon", "sensitive=2")
    assert set(lines) == {("sensitive", "noise_multiplier")}
    sigma = lines["sensitive", "noise_multiplier"]
    assert account(shell, sigma, 0.1, 20) <= 2 < account(shell, round(sigma - 2e-6, 6), 0.1, 20)
    assert epsilon["sensitive"] <= 2


def test_the_steps_found_are_the_most_under_which_every_target_holds(shell, policy):
    lines, epsilon = solved(shell, "--target-epsilon", "sensitive=5", "--target-epsilon", "public=40", "--solve", "steps")
    steps = round(lines[None, "steps"])
    within = [account(shell, 1.2, 0.1, n) <= 5 and account(shell, 0.8, 1, n) <= 40 for n in (steps, steps + 1)]
    assert within == [True, False]
    assert epsilon["sensitive"] <= 5 and epsilon["public"] <= 40


def test_a_rate_is_the_largest_that_keeps_within_the_target(shell, policy):
    lines, epsilon = solved(shell, "--target-epsilon", "sensitive=1", "--solve", "rate")
    rate = lines["sensitive", "sampling_rate"]
    assert account(shell, 1.2, rate, 20) <= 1 < account(shell, 1.2, rate + 2e-6, 20)
    assert epsilon["sensitive"] == account(shell, 1.2, rate, 20)


def test_a_target_for_all_classes_gives_way_to_one_for_a_class(shell, policy):
    answer = shell.json("plan", "policy.toml", "--target-epsilon", "6", "--target-epsilon", "sensitive=2")["solution"]
    assert {item["name"]: item["target"] for item in answer["classes"]} == {"sensitive": 2, "public": 6}
    assert all(item["epsilon"] <= item["target"] for item in answer["classes"])


def test_phases_count_in_every_target(shell, policy):
    add(shell, PHASES)
    lines, epsilon = solved(shell, "--target-epsilon", "sensitive=2")
    sigma = lines["sensitive", "noise_multiplier"]
    run = ("--phase", f"{1.5 * sigma},0.1,10", "--phase", f"{sigma},0.1,10", "--delta", "1e-6")
    assert shell.json("account", *run)["epsilon"] == pytest.approx(epsilon["sensitive"], rel=1e-9)
    assert 1.99 < epsilon["sensitive"] <= 2
    lines, epsilon = solved(shell, "--target-epsilon", "sensitive=3", "--solve", "steps")
    assert lines[None, "steps"] >= 11 and epsilon["sensitive"] <= 3


def test_the_lines_found_are_what_if_takes(shell, policy):
    shown = shell.run("plan", "policy.toml", "--target-epsilon", "sensitive=2").stdout
    assert "-   noise_multiplier = 1.2" in shown and "+   noise_multiplier = " in shown
    change = shown.rpartition("--what-if ")[2].strip().strip("'")
    (other,) = shell.json("plan", "policy.toml", "--what-if", change)["what_if"]
    assert 1.99 < next(item for item in other["classes"] if item["name"] == "sensitive")["preset"]["epsilon"] <= 2


def test_a_target_that_nothing_reaches_says_the_nearest(shell, policy):
    error = shell.json("plan", "policy.toml", "--target-epsilon", "sensitive=0.001", "--solve", "steps", code=1)["error"]
    assert error["code"] == "TARGET" and "one step alone" in error["sentence"]
    assert error["nearest"] == account(shell, 1.2, 0.1, 1)
    assert shell.run("plan", "policy.toml", "--target-epsilon", "sensitive=0.001", "--solve", "steps", code=1).stdout == ""


@pytest.mark.parametrize("target", ["nan", "inf", "-1", "0", "much", "sensitive=", "sensitive=nan", "=2="])
def test_what_is_no_epsilon_is_wrong_use(shell, policy, target):
    assert shell.json("plan", "policy.toml", f"--target-epsilon={target}", code=2)["error"]["code"] == "USAGE"


def test_a_class_that_is_not_there_is_refused(shell, policy):
    assert shell.json("plan", "policy.toml", "--target-epsilon", "secret=2", code=1)["error"]["code"] == "CLASS_UNKNOWN"


def test_the_normalizer_is_the_expected_number_of_contributions(shell, policy):
    given = ("--contributions", "sensitive=300", "--contributions", "public=7")
    answer = shell.json("plan", "policy.toml", "--solve", "normalizer", *given)
    assert answer["solution"]["lines"] == [{"class": None, "key": "normalizer", "old": 4, "new": 37}]
    assert answer["expected_contributions_per_step"] == pytest.approx(37)
    assert "touches no guarantee" in shell.run("plan", "policy.toml", "--solve", "normalizer", *given).stdout
    before, after = ([item[key] for item in answer["solution"]["classes"]] for key in ("epsilon_before", "epsilon"))
    assert before == after


@pytest.mark.parametrize(
    "arguments",
    [
        ("--solve", "normalizer"),
        ("--solve", "steps"),
        ("--solve", "patience", "--target-epsilon", "2"),
        ("--solve", "normalizer", "--target-epsilon", "2", "--contributions", "sensitive=5"),
    ],
)
def test_what_cannot_be_solved_for_is_wrong_use(shell, policy, arguments):
    shell.run("plan", "policy.toml", *arguments, code=2)


def test_targets_never_go_below_the_floor_of_the_policy(shell, policy):
    text = (shell.directory / "policy.toml").read_text()
    shell.write("policy.toml", text + "[floors]\nnoise_multiplier = 0.75\n")
    lines, _ = solved(shell, "--target-epsilon", "public=1000000")
    assert lines["public", "noise_multiplier"] == 0.75
