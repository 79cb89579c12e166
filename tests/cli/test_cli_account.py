"""`dptrain account` and `dptrain calibrate` print what the accountants compute."""

import math

import pytest

from attest.schema.rounding import at_most, rounded_up
from dptrain.planning import curves
from ledger.accountants import Phase

D = ("--delta", "1e-6")
RUN = ("--sampling-rate", "0.01", "--steps", "1000", "--delta", "1e-5")


def test_account_prints_the_golden_epsilon_of_dp_sgd(shell):
    answer = shell.json("account", "--noise-multiplier", "1", *RUN, "--accountant", "pld")
    assert answer["epsilon"] == pytest.approx(1.828, abs=5e-4)
    assert answer["epsilon_replace"] == pytest.approx(2.843, abs=5e-4)
    assert answer["adjacency"] == "zero-out"


def test_batches_and_epochs_say_the_same_as_rate_and_steps(shell):
    wanted = shell.json("account", "--noise-multiplier", "0.6", "--sampling-rate", "256/60000", "--steps", "938", *D)
    for how in (
        ("--batch-size", "256", "--dataset-size", "60000", "--epochs", "4"),
        ("--sampling-rate", "256/60000", "--epochs", "4"),
        ("--batch-size", "256", "--dataset-size", "60000", "--steps", "938"),
    ):
        assert shell.json("account", "--noise-multiplier", "0.6", *how, "--delta", "1e-6") == wanted
        assert shell.json("calibrate", "--epsilon", "8", *how, "--delta", "1e-6")["steps"] == 938


@pytest.mark.parametrize(
    "how",
    [("--epochs", "4"), ("--batch-size", "2"), ("--batch-size", "9", "--dataset-size", "8"), ("--sampling-rate", "1/0"),
     ("--batch-size", "2", "--dataset-size", "8", "--sampling-rate", "0.1"), ("--sampling-rate", "0.1", "--epochs", "0"),
     ("--sampling-rate", "0.1", "--epochs", "1", "--steps", "10")],
)  # fmt: skip
def test_batches_and_epochs_that_make_no_run_are_wrong_use(shell, how):
    shell.run("account", "--noise-multiplier", "1", *how, *D, code=2)


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


def test_phases_in_any_order_are_one_run(shell):
    first, second = ("--phase", "1.5,0.01,500"), ("--phase", "1,0.01,500")
    answers = [shell.json("account", *order, "--delta", "1e-5") for order in ((*first, *second), (*second, *first))]
    assert answers[0]["epsilon"] == answers[1]["epsilon"]
    assert answers[0]["noise_multiplier"] is None and answers[0]["steps"] == 1000
    whole = shell.json("account", "--noise-multiplier", "1", *RUN)["epsilon"]
    halves = shell.json("account", *second, *second, "--delta", "1e-5")
    assert halves["epsilon"] == whole
    assert shell.json("account", "--noise-multiplier", "1.5", *RUN)["epsilon"] < answers[0]["epsilon"] < whole


def test_all_accountants_are_compared_in_one_table(shell):
    found = shell.json("account", "--noise-multiplier", "1", *RUN, "--compare")["compare"]
    assert list(found) == ["pld", "rdp", "moments", "prv"]
    epsilon = {name: item["epsilon"] for name, item in found.items()}
    assert epsilon["pld"] <= epsilon["prv"] <= epsilon["pld"] + 0.02 and epsilon["pld"] <= epsilon["rdp"] <= epsilon["moments"]
    shown = shell.run("account", "--noise-multiplier", "1", *RUN, "--compare").stdout
    assert all(name in shown for name in found)
    families = shell.json("account", "--noise-multiplier", "1", *RUN, "--family", "laplace", "--compare")["compare"]
    assert families["pld"]["refused"] is None and families["rdp"]["refused"] and families["rdp"]["epsilon"] is None


def test_caps_groups_and_examples_stand_beside_the_figure(shell):
    run = ("--noise-multiplier", "4", "--sampling-rate", "1", "--steps", "100", "--delta", "1e-5")
    answer = shell.json("account", *run, "--max-occurrences", "20", "--group-size", "3", "--examples", "2")
    fewer = shell.json("account", "--noise-multiplier", "4", "--sampling-rate", "1", "--steps", "20", "--delta", "1e-5")
    assert answer["epsilon_capped"] == pytest.approx(fewer["epsilon"])
    assert answer["epsilon"] < answer["epsilon_examples"] < answer["epsilon_group"]
    shown = shell.run("account", *run, "--max-occurrences", "20", "--group-size", "3").stdout
    assert "drawn at most 20 times" in shown and "3 of one person together" in shown


@pytest.mark.parametrize("over", ["steps", "delta"])
def test_a_curve_ends_at_the_figure_of_the_run(shell, over):
    run = ("--noise-multiplier", "2", "--sampling-rate", "1", "--steps", "64", "--delta", "1e-5")
    answer = shell.json("account", *run, "--curve", over, "--plot", "curve.svg")
    points = answer["curve"]["points"]
    values = [point["pld"]["epsilon"] for point in points]
    assert values == sorted(values, reverse=over == "delta")
    at = next(point for point in points if point[over] == (64 if over == "steps" else 1e-5))
    assert (at["pld"]["epsilon"], at["pld"]["epsilon_replace"]) == (answer["epsilon"], answer["epsilon_replace"])
    assert (shell.directory / "curve.svg").read_text().startswith("<svg")
    assert over in shell.run("account", *run, "--curve", over).stdout


def test_a_curve_tells_how_far_it_is():
    told = []
    run = [Phase(2.0, 1.0, 64)]
    found = curves.curve(run, 1e-5, ("pld", "rdp"), "gaussian", over="steps", progress=told.append)
    assert told == list(range(1, 4 * len(found.xs) + 1)) and told[-1] <= curves.values_of(("pld", "rdp"))
    assert found == curves.curve(run, 1e-5, ("pld", "rdp"), "gaussian", over="steps")


@pytest.mark.parametrize("solve", ["steps", "rate"])
def test_calibrate_finds_steps_and_rates_and_account_agrees(shell, solve):
    given = {"noise_multiplier": "2", "sampling_rate": "0.5", "steps": "10"}
    wanted = {"steps": "steps", "rate": "sampling_rate"}[solve]
    options = [word for key, value in given.items() if key != wanted for word in (f"--{key.replace('_', '-')}", value)]
    answer = shell.json("calibrate", "--epsilon", "3", "--delta", "1e-5", "--solve", solve, *options)
    assert answer["epsilon"] <= 3 and answer["solve"] == solve
    filled = given | {wanted: str(answer[wanted])}
    options = [word for key, value in filled.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert shell.json("account", *options, "--delta", "1e-5")["epsilon"] == answer["epsilon"]
    shell.run("calibrate", "--epsilon", "3", *options, "--delta", "1e-5", "--solve", solve, code=2)


def test_calibrate_finds_one_factor_for_all_phases(shell):
    run = ("--phase", "1.5,1,5", "--phase", "1,1,5", "--delta", "1e-5")
    answer = shell.json("calibrate", "--epsilon", "2", *run)
    factor = answer["noise_multiplier"]
    assert [phase["noise_multiplier"] for phase in answer["phases"]] == [1.5 * factor, factor]
    phases = [word for phase in answer["phases"] for word in ("--phase", ",".join(map(str, phase.values())))]
    assert shell.json("account", *phases, "--delta", "1e-5")["epsilon"] == answer["epsilon"] <= 2


PUBLIC = ("--delta", "1e-5", "--disclosure", "occurrences_public")


def test_calibrate_gives_the_variance_that_suffices_for_public_occurrences(shell):
    """A golden pair: epsilon 3, delta 1e-5, ten occurrences, clip norm 1."""
    arguments = ("calibrate", "--epsilon", "3", *PUBLIC, "--occurrences", "10", "--clip-norm", "1")
    answer = shell.json(*arguments)
    assert answer["sufficient_variance"] == pytest.approx(19.34, abs=0.005)
    assert answer["sufficient_std"] == answer["noise_multiplier"]
    assert answer["epsilon"] <= 3 < answer["epsilon_of_one_more"] and answer["occurrences"] == 10
    told = shell.run(*arguments).stdout
    assert "19.3376" in told and "max_occurrences = 10" in told
    ten = shell.json(
        "account", "--noise-multiplier", str(answer["noise_multiplier"]), "--sampling-rate", "1", "--steps", "10", *PUBLIC[:2]
    )
    assert ten["epsilon"] == pytest.approx(answer["epsilon"], rel=1e-12)
    compared = shell.json(*arguments, "--compare")["compare"]
    assert compared["pld"]["sufficient_variance"] < compared["rdp"]["sufficient_variance"]


@pytest.mark.parametrize(("family", "accountant"), [("gaussian", "pld"), ("discrete_gaussian", "rdp"), ("skellam", "rdp")])
def test_calibrate_counts_the_public_occurrences_that_a_multiplier_allows(shell, family, accountant):
    setting = ("--family", family, "--accountant", accountant)
    given = ("--noise-multiplier", "5", "--solve", "occurrences")
    answer = shell.json("calibrate", "--epsilon", "3", *PUBLIC, *given, *setting)
    assert answer["epsilon"] <= 3 < answer["epsilon_of_one_more"] and answer["steps"] is None
    back = shell.json("calibrate", "--epsilon", "3", *PUBLIC, "--occurrences", str(answer["occurrences"]), *setting)
    assert back["noise_multiplier"] <= 5
    assert f"occurrences  {answer['occurrences']}" in shell.run("calibrate", "--epsilon", "3", *PUBLIC, *given, *setting).stdout
    beyond = shell.json("calibrate", "--epsilon", "0.01", *PUBLIC, *given, *setting, code=1)["error"]
    assert beyond["code"] == "EPSILON" and beyond["nearest"] > 0.01


def test_expected_occurrences_of_secret_draws_are_a_rate(shell):
    run = ("calibrate", "--epsilon", "3", "--delta", "1e-5", "--steps", "100")
    expected = shell.json(*run, "--occurrences", "10", "--clip-norm", "0.5")
    rate = shell.json(*run, "--sampling-rate", "0.1")
    assert expected["noise_multiplier"] == rate["noise_multiplier"] and expected["sampling_rate"] == 0.1
    assert expected["sufficient_variance"] == pytest.approx((0.5 * rate["noise_multiplier"]) ** 2)
    assert rate["occurrences"] is None and rate["clip_norm"] is None
    more = shell.json(*run, "--occurrences", "101", code=1)["error"]
    assert more["code"] == "OCCURRENCES" and more["nearest"] == 100


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    ("arguments", "code", "nearest"),
    [
        ((*PUBLIC, "--occurrences", "2.5"), "OCCURRENCES", 3),
        ((*PUBLIC, "--occurrences", "0"), "OCCURRENCES", 1),
        ((*PUBLIC, "--occurrences", "nan"), "OCCURRENCES", None),
        ((*PUBLIC, "--occurrences", "3", "--family", "laplace"), "FAMILY", None),
        ((*PUBLIC, "--noise-multiplier", "-1", "--solve", "occurrences"), "NOISE_MULTIPLIER", None),
        (("--delta", "1e-5", "--steps", "4", "--occurrences", "2", "--family", "laplace", "--clip-norm", "1"), "FAMILY", None),
    ],
)
def test_occurrences_that_cannot_be_counted_are_refused_with_the_nearest(shell, arguments, code, nearest):
    error = shell.json("calibrate", "--epsilon", "3", *arguments, code=1)["error"]
    assert (error["code"], error.get("nearest")) == (code, nearest)


@pytest.mark.parametrize(
    "arguments",
    [
        PUBLIC,
        (*PUBLIC, "--occurrences", "3", "--steps", "9"),
        (*PUBLIC, "--occurrences", "3", "--solve", "steps"),
        (*PUBLIC, "--occurrences", "3", "--noise-multiplier", "2"),
        (*PUBLIC, "--solve", "occurrences"),
        (*PUBLIC, "--phase", "1,1,5"),
        ("--delta", "1e-5", "--phase", "1,1,5", "--clip-norm", "1"),
        ("--delta", "1e-5", "--occurrences", "3"),
        ("--delta", "1e-5", "--occurrences", "3", "--steps", "9", "--sampling-rate", "0.1"),
        ("--delta", "1e-5", "--occurrences", "3", "--steps", "9", "--noise-multiplier", "1"),
        ("--delta", "1e-5", "--noise-multiplier", "3", "--solve", "occurrences"),
        ("--delta", "1e-5", "--sampling-rate", "0.1", "--steps", "9", "--clip-norm", "nan"),
        ("--delta", "1e-5", "--sampling-rate", "0.1", "--steps", "9", "--clip-norm", "-1"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_use(shell, arguments):
    assert shell.json("calibrate", "--epsilon", "3", *arguments, code=2)["error"]["code"] == "USAGE"


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--noise-multiplier", "nan", "NOISE_MULTIPLIER"),
        ("--noise-multiplier", "inf", "NOISE_MULTIPLIER"),
        ("--noise-multiplier", "-1", "NOISE_MULTIPLIER"),
        ("--noise-multiplier", "1e300", "NOISE_MULTIPLIER"),
        ("--sampling-rate", "nan", "SAMPLING_RATE"),
        ("--sampling-rate", "-0.1", "SAMPLING_RATE"),
        ("--steps", "-1", "STEPS"),
        ("--steps", "9" * 30, "STEPS"),
        ("--delta", "nan", "DELTA"),
        ("--delta", "0", "DELTA"),
        ("--delta", "1", "DELTA"),
        ("--max-occurrences", "0", "OCCURRENCES"),
        ("--group-size", "0", "GROUP"),
        ("--group-size", "1000000000", "GROUP"),
        ("--examples", "-3", "GROUP"),
    ],
)
def test_odd_numbers_are_refused_in_one_line(shell, option, value, code):
    error = shell.json("account", "--noise-multiplier", "1", *RUN, f"{option}={value}", code=1)["error"]
    assert error["code"] == code and "\n" not in error["sentence"]


def test_the_nearest_value_is_told_where_there_is_one(shell):
    too_small = shell.json("account", "--noise-multiplier", "1", *RUN, "--delta", "1e-13", code=1)["error"]
    assert too_small["nearest"] == 1e-12
    arguments = ("calibrate", "--epsilon", "0.001", "--noise-multiplier", "1", "--sampling-rate", "1", "--delta", "1e-5")
    unreachable = shell.json(*arguments, "--solve", "steps", code=1)["error"]
    one = shell.json("account", "--noise-multiplier", "1", "--sampling-rate", "1", "--steps", "1", "--delta", "1e-5")["epsilon"]
    assert unreachable["nearest"] == pytest.approx(one, abs=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--delta", "1e-5"),
        ("--delta", "1e-5", "--phase", "1,0.01"),
        ("--delta", "1e-5", "--phase", "1,0.01,5,6"),
        ("--delta", "1e-5", "--phase", "1,0.01,x"),
        ("--delta", "1e-5", "--phase", "1,0.01,5", "--steps", "5"),
        ("--delta", "1e-5", "--phase", "1,0.01,5", "--group-size", "2", "--family", "laplace"),
        ("--delta", "1e-5", "--noise-multiplier", "1", "--sampling-rate", "1", "--steps", "1", "--plot", "x.svg"),
    ],
)
def test_a_run_that_is_not_described_is_wrong_use(shell, arguments):
    assert shell.json("account", *arguments, code=2)["error"]["code"] == "USAGE"


def test_figures_are_shown_rounded_up(shell):
    run = ("--noise-multiplier", "2", "--sampling-rate", "1", "--steps", "10", "--delta", "1e-5")
    exact = shell.json("account", *run)["epsilon"]
    shown = float(shell.run("account", *run).stdout.split()[1])
    assert exact <= shown <= exact * (1 + 1e-5)


@pytest.mark.parametrize("value", [9.05733742, 2.2592701, 1.0001, 1234.5001, 99999.1, 1e-7, 0.0001234501, 5e20])
def test_no_figure_is_shown_smaller_than_it_is(value):
    for shown in (rounded_up(value), at_most(value)):
        assert value <= float(shown) <= value * (1 + 1e-3)
    assert (rounded_up(2.0), at_most(2.0), at_most(10.0), at_most(math.inf), rounded_up(0.0)) == ("2", "2", "10", "∞", "0")
