"""`dptrain account` and `dptrain calibrate` print what the accountants compute."""

import pytest

RUN = ("--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-5")


def test_account_prints_the_golden_epsilon_of_dp_sgd(shell):
    answer = shell.json("account", "--noise-multiplier", "1", *RUN, "--accountant", "pld")
    assert answer["epsilon"] == pytest.approx(1.828, abs=5e-4)
    assert answer["epsilon_replace"] == pytest.approx(2.843, abs=5e-4)
    assert answer["adjacency"] == "zero-out"


def test_without_noise_epsilon_is_printed_as_the_string_inf_because_json_has_no_infinity(shell):
    assert shell.json("account", "--noise-multiplier", "0", *RUN)["epsilon"] == "inf"
    assert "∞" in shell.run("account", "--noise-multiplier", "0", *RUN).stdout


def test_calibrate_never_exceeds_its_target_and_account_agrees(shell):
    run = ("--sampling-rate", "1", "--steps", "10", "--delta", "1e-5")
    answer = shell.json("calibrate", "--epsilon", "2", *run)
    assert 1.99 < answer["epsilon"] <= 2
    multiplier = str(answer["noise_multiplier"])
    assert shell.json("account", "--noise-multiplier", multiplier, *run)["epsilon"] == answer["epsilon"]


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [("--accountant", "gdp", "ACCOUNTANT"), ("--delta", "1e-13", "DELTA"), ("--sampling-rate", "1.5", "SAMPLING_RATE")],
)
def test_what_cannot_be_accounted_is_refused_with_a_code(shell, option, value, code):
    answer = shell.json("account", "--noise-multiplier", "1", *RUN, option, value, code=1)
    assert answer["error"]["code"] == code
    assert answer["error"]["sentence"]
