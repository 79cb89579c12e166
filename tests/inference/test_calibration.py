"""Sigma, delta and epsilon of Gaussian releases: published vectors, the exact law in high precision, and where theorems end."""

import logging
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptrain.errors import ConfigError
from dptrain.inference import gaussian
from dptrain.inference.gaussian import Worth, delta_of, epsilon_of, releases_within, sigma_analytic, sigma_classical
from dptrain.inference.preset import Parameters, parameters_of
from ledger.errors import AccountantError

mpmath = pytest.importorskip("mpmath")

PUBLISHED = {"preset": "published"}


def exact_delta(sigma: float, epsilon: float, sensitivity: float) -> Any:
    """delta(epsilon) in 60 digits, as Balle and Wang write it."""
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(sensitivity) / mpmath.mpf(sigma), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(("epsilon", "sigma"), [(1.0, 3.730632), (8.0, 0.6002), (10.0, 0.4999)])
def test_the_analytic_sigma_is_that_of_the_vectors(epsilon: float, sigma: float) -> None:
    assert sigma_analytic(epsilon, 1e-5, 1.0) == pytest.approx(sigma, abs=5e-5 if epsilon > 1 else 5e-7)


@pytest.mark.parametrize(("clip", "sigma"), [(1.0, 9.60), (2.0, 19.2)])
def test_the_sigma_of_an_answer_of_256_tokens_is_that_of_the_vectors(clip: float, sigma: float) -> None:
    found = sigma_analytic(8.0, 1e-5, clip, 256)
    assert found == pytest.approx(sigma, rel=1e-3)
    assert found == pytest.approx(16.0 * sigma_analytic(8.0, 1e-5, clip), rel=1e-12)
    assert epsilon_of(found, 1e-5, clip, 256) == pytest.approx(8.0, rel=1e-9)


@pytest.mark.parametrize(
    ("releases", "null", "one"),
    [(1, 0.751, 1.610), (2, 1.098, 2.371), (10, 2.688, 5.978), (100, 10.39, 25.44), (256, 18.90, 49.21)],
)
def test_compositions_of_the_published_noise_are_those_of_the_vectors(releases: int, null: float, one: float) -> None:
    assert epsilon_of(4.8448, 1e-5, 1.0, releases) == pytest.approx(null, rel=5e-4)
    assert epsilon_of(4.8448, 1e-5, 2.0, releases) == pytest.approx(one, rel=5e-4)


def test_the_critique_of_the_published_setting_by_our_own_figures() -> None:
    """INFERENCE 2.2: what the page's sigma is worth, and what its two claims would have asked for."""
    formula = math.sqrt(2.0 * math.log(1.25e5))
    assert round(formula, 4) == 4.8448
    assert delta_of(formula, 1.0, 1.0) == pytest.approx(4.1e-8, rel=5e-3)
    assert delta_of(formula, 1.0, 2.0) == pytest.approx(1.7e-3, rel=5e-3)
    assert sigma_analytic(1.0, 1e-5, 2.0) == pytest.approx(7.4613, abs=5e-5)
    assert 1.0 - sigma_analytic(1.0, 1e-5, 1.0) / formula == pytest.approx(0.23, abs=5e-3)
    assert (releases_within(4.8448, 10.0, 1e-5, 1.0), releases_within(4.8448, 10.0, 1e-5, 2.0)) == (93, 23)


def test_the_classical_formula_is_false_where_it_is_refused() -> None:
    """At delta 1e-5 from epsilon 8.42 on, at 1e-6 from 8.78 on; so a build that lets it through releases too little noise."""
    for delta, turns in ((1e-5, 8.42), (1e-6, 8.78)):
        formula = math.sqrt(2.0 * math.log(1.25 / delta))
        below, above = turns - 0.01, turns + 0.01
        assert delta_of(formula / below, below, 1.0) < delta < delta_of(formula / above, above, 1.0)
    formula = math.sqrt(2.0 * math.log(1.25e5))
    assert delta_of(formula / 10.0, 10.0, 1.0) == pytest.approx(2.27e-5, rel=5e-3)
    assert delta_of(formula / 20.0, 20.0, 1.0) == pytest.approx(1.5e-3, rel=5e-2)
    for epsilon in (1.0, 1.0000001, 8.5, 20.0):
        with pytest.raises(AccountantError, match=r"CLASSICAL_EPSILON: .* below 1 .*sigma_analytic"):
            sigma_classical(epsilon, 1e-5, 1.0)


@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 1e-2, 0.3])
@pytest.mark.parametrize("epsilon", [0.001, 0.1, 0.5, 0.999])
def test_the_classical_sigma_holds_below_epsilon_1_and_exceeds_the_analytic_one(epsilon: float, delta: float) -> None:
    sigma = sigma_classical(epsilon, delta, 3.0)
    assert exact_delta(sigma, epsilon, 3.0) <= delta
    assert sigma > sigma_analytic(epsilon, delta, 3.0)
    assert sigma > 3.0 * math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon


@pytest.mark.parametrize("sensitivity", [1e-3, 1.0, 2.0, 355.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-5, 1e-2, 0.5])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 8.5, 10.0, 20.0, 300.0, 4000.0])
def test_the_exact_delta_of_an_analytic_sigma_is_at_most_delta_and_hardly_less(
    epsilon: float, delta: float, sensitivity: float
) -> None:
    """In 60 digits; and a noise that is smaller by 1e-6 is too little, so the smallest is found."""
    sigma = sigma_analytic(epsilon, delta, sensitivity)
    assert exact_delta(sigma, epsilon, sensitivity) <= delta
    slack = 1e-6 if delta > 1e-12 or epsilon > 1e-3 else 0.9  # what rounding may hide is half of delta there
    assert exact_delta(sigma * (1.0 - slack), epsilon, sensitivity) > delta


@settings(max_examples=150, deadline=None)
@given(st.floats(1e-6, 5000.0), st.floats(-12.0, -0.1), st.integers(1, 10**6))
def test_a_sigma_that_is_calibrated_is_worth_what_was_asked(epsilon: float, power: float, releases: int) -> None:
    delta = 10.0**power
    if gaussian.mu_of(epsilon, delta) > gaussian.MOST_MU:
        return
    sigma = sigma_analytic(epsilon, delta, 1.0, releases)
    assert delta_of(sigma, epsilon, 1.0, releases) <= delta
    assert epsilon_of(sigma, delta, 1.0, releases) <= epsilon * (1.0 + 1e-9) + 1e-9


def test_delta_is_computed_to_twelve_digits_of_its_larger_term() -> None:
    for mu in (1e-6, 0.1, 1.0, 30.0, 127.0):
        for place in (-1.0, 0.0, 3.0, 7.0):
            epsilon = (place + mu / 2.0) * mu
            if epsilon >= 0.0:
                error = abs(gaussian.delta_of_mu(mu, epsilon) - exact_delta(1.0, epsilon, mu))
                assert error <= 1e-13 * mpmath.ncdf(mu / 2.0 - epsilon / mu)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((0.0, 1e-5, 1.0), "EPSILON"), ((math.nan, 1e-5, 1.0), "EPSILON"), ((math.inf, 1e-5, 1.0), "EPSILON"),
        ((1.0, 0.0, 1.0), "DELTA"), ((1.0, 1.0, 1.0), "DELTA"), ((1.0, 1e-5, 0.0), "SENSITIVITY"),
        ((1.0, 1e-5, math.inf), "SENSITIVITY"), ((True, 1e-5, 1.0), "EPSILON"), ((9000.0, 1e-5, 1.0), "NOTHING_HIDDEN"),
    ],
)  # fmt: skip
def test_figures_out_of_range_are_refused_by_name(arguments: tuple[float, float, float], code: str) -> None:
    with pytest.raises(AccountantError) as refused:
        sigma_analytic(*arguments)
    assert refused.value.code == code


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, "1"])
def test_no_noise_is_no_noise_that_anything_is_said_of(sigma: Any) -> None:
    for figure in (lambda: delta_of(sigma, 1.0, 1.0), lambda: epsilon_of(sigma, 1e-5, 1.0)):
        with pytest.raises(AccountantError, match="SIGMA"):
            figure()
    for releases in (0, 1.5, True):
        with pytest.raises(AccountantError, match="RELEASES"):
            epsilon_of(1.0, 1e-5, 1.0, releases)


def test_two_inputs_are_twice_as_far_apart_as_one_and_none() -> None:
    assert gaussian.sensitivity_of(1.5, "replace_null") == 1.5
    assert gaussian.sensitivity_of(1.5, "replace_one") == 3.0
    with pytest.raises(AccountantError, match=r"ADJACENCY: .*replace_null, replace_one"):
        gaussian.sensitivity_of(1.0, "replace-one")


def test_a_charge_is_a_whole_number_and_never_below_half_the_square_of_the_distance() -> None:
    for sigma, adjacency in ((4.8448, "replace_one"), (4.8448, "replace_null"), (1e6, "replace_null"), (0.1, "replace_one")):
        worth = Worth(1.0, sigma, 1e-5, 7, adjacency)
        with mpmath.workdps(40):
            rho = (gaussian.ADJACENCIES[adjacency] / mpmath.mpf(sigma)) ** 2 / 2 * 10**9
        assert isinstance(worth.nano_rho, int) and worth.nano_rho >= 1 and rho <= worth.nano_rho < rho + 1
    one, null = (Worth(1.0, 4.8448, 1e-5, 1, each).nano_rho for each in ("replace_one", "replace_null"))
    assert one == pytest.approx(4 * null, rel=1e-6)


def test_the_published_preset_says_at_start_what_it_is_worth() -> None:
    found = parameters_of(PUBLISHED)
    assert (found.epsilon, found.delta, found.clip, found.sigma, found.cap) == (1.0, 1e-5, 1.0, 4.8448, 10.0)
    assert found.adjacency == "replace_one"
    assert round(found.worth.of("replace_one"), 3) == 1.610 and round(found.worth.of("replace_null"), 3) == 0.751
    for part in ("epsilon 1.610", "two inputs", "0.751", "one input against none", "at delta 1e-5", "sigma 4.8448", "asked"):
        assert part in found.statement
    assert "23 (replace_one) or 93 (replace_null)" in found.statement
    assert "1.610" in found.worth.sentence and "0.751" in str(found.worth)


def test_a_statement_never_says_less_than_is_spent() -> None:
    for sigma in (0.5, 1.0, 2.345, 4.8448, 50.0):
        worth = Worth(1.0, sigma, 1e-5, 3, "replace_one")
        said = float(worth.sentence.split("epsilon ")[1].split(" ")[0])
        assert worth.epsilon - 1e-9 <= said < worth.epsilon + 1.01e-4


def test_the_preset_goes_by_the_names_of_the_page_too_and_not_with_other_numbers() -> None:
    page = {"dp_epsilon": 1.0, "dp_delta": 1e-5, "dp_sensitivity": 1.0, "max_epsilon": 10.0}
    assert parameters_of({**PUBLISHED, **page, "dp_sigma": 4.8448}) == parameters_of(PUBLISHED)
    assert parameters_of({**PUBLISHED, "dp_sigma": 4.84480526}) == parameters_of(PUBLISHED)
    for name, value in {"dp_epsilon": 2.0, "max_epsilon": 100.0, "dp_sensitivity": 0.5, "sigma": 4.0, "dp_delta": 1e-6}.items():
        with pytest.raises(ConfigError, match=r"PRESET: preset published has"):
            parameters_of({**PUBLISHED, name: value})
    with pytest.raises(ConfigError, match="PRESET: there is no preset 'seed'"):
        parameters_of({"preset": "seed"})
    with pytest.raises(ConfigError, match=r"PRESET: .*nothing is calibrated"):
        parameters_of({**PUBLISHED, "calibration": "classical"})
    with pytest.raises(ConfigError, match="PARAMETER: clip is given twice"):
        parameters_of({"dp_sensitivity": 1.0, "clip": 1.0, "epsilon": 1.0})


def test_without_the_preset_the_names_of_the_page_are_calibrated_right() -> None:
    page = {"dp_epsilon": 1.0, "dp_delta": 1e-5, "dp_sensitivity": 1.0, "max_epsilon": 10.0}
    found = parameters_of(page)
    assert found.sigma == pytest.approx(7.4613, abs=5e-5) and found.worth.epsilon == pytest.approx(1.0) and found.cap == 10.0
    assert parameters_of({**page, "adjacency": "replace_null"}).sigma == pytest.approx(3.7306, abs=5e-5)
    with pytest.raises(AccountantError, match="CLASSICAL_EPSILON"):
        parameters_of({**page, "calibration": "classical"})
    classical = parameters_of({**page, "dp_epsilon": 0.5, "calibration": "classical"})
    assert classical.sigma == pytest.approx(2 * 2 * 4.8448, rel=1e-4) and classical.worth.epsilon < 0.5
    for wrong in ({}, {"epsilon": "1"}, {"epsilon": True}, {"epsilon": 1.0, "calibration": "none"}, {"noise": 1.0},
                  {"sigma": 1.0, "calibration": "analytic"}):  # fmt: skip
        with pytest.raises(ConfigError, match="PARAMETER"):
            parameters_of(wrong)
    with pytest.raises(AccountantError, match="SIGMA"):
        parameters_of({"sigma": 0.0})
    with pytest.raises(AccountantError, match="NOTHING_HIDDEN"):
        Parameters(1.0, 1e-5, 1e-9, "replace_null")
    with pytest.raises(AccountantError, match="EPSILON: a cap"):
        Parameters(1.0, 1e-5, 1.0, "replace_null", cap=0.0)


def test_figures_and_presets_load_no_torch() -> None:
    program = (
        "import sys\nfrom dptrain.inference.gaussian import sigma_analytic, sigma_classical\nimport dptrain.inference.preset\n"
        "assert 'torch' not in sys.modules and 'numpy.random' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_release_of_the_preset_warns_of_its_worth(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torch")
    from dptrain.inference import GaussianRelease

    with caplog.at_level(logging.WARNING, "dptrain.inference"):
        release = GaussianRelease.of(parameters_of(PUBLISHED), tokens=10)
    assert "epsilon 1.610" in caplog.text and release.worth.epsilon == pytest.approx(5.978, rel=1e-3)
