"""The measured figures of utility are those of the code that stands, and say what they are said to say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dptrain.inference.gaussian import epsilon_of, sensitivity_of, sigma_analytic

FIGURES = json.loads((Path(__file__).parents[2] / "benchmarks" / "inference_gaussian.json").read_text(encoding="utf-8"))
ADAPTER: dict[str, Any] = FIGURES["adapter"]
ROWS: list[dict[str, Any]] = ADAPTER["rows"]
GAIN = ADAPTER["nll_base"] - ADAPTER["nll_adapter"]


def row(kind: str, epsilon: float, tokens: int = 1) -> dict[str, Any]:
    (found,) = [one for one in ROWS if (one["released"], one.get("epsilon_asked"), one["tokens"]) == (kind, epsilon, tokens)]
    return found


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_every_row_is_worth_what_it_says(number: int) -> None:
    one = ROWS[number]
    for name, adjacency in (("epsilon_two_inputs", "replace_one"), ("epsilon_against_none", "replace_null")):
        found = epsilon_of(one["sigma"], one["delta"], sensitivity_of(one["clip"], adjacency), one["tokens"])
        assert one[name] == pytest.approx(found, rel=1e-9)
    if "epsilon_asked" in one:
        asked = sigma_analytic(one["epsilon_asked"], 1e-5, 2.0 * one["clip"], one["tokens"])
        assert one["sigma"] == pytest.approx(asked, rel=1e-9)


def test_the_published_setting_costs_more_than_the_whole_adapter_gives() -> None:
    published = ROWS[0]
    assert published["design"] == "published" and round(published["epsilon_two_inputs"], 3) == 1.610
    assert GAIN > 0.5 and published["nll"] > ADAPTER["nll_base"] + GAIN


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 32.0, 128.0, 512.0])
def test_coordinates_that_an_adapter_reads_are_better_than_states_at_equal_epsilon(epsilon: float) -> None:
    state, rank = row("state", epsilon), row("rank", epsilon)
    assert rank["nll"] < state["nll"] and rank["nll_shrunk"] <= state["nll_shrunk"] + 0.005
    gain = state["relative_error"] / rank["relative_error"]
    assert gain > math.sqrt(ADAPTER["width"] / ADAPTER["rank"])  # the clip of the state is spent on more than the adapter reads


def test_little_budget_leads_back_to_the_base_model_and_not_to_use() -> None:
    for kind in ("state", "rank"):
        for tokens, epsilon in ((1, 1.0), (64, 8.0)):
            assert row(kind, epsilon, tokens)["nll_shrunk"] == pytest.approx(ADAPTER["nll_base"], abs=0.01)
    recovered = ADAPTER["nll_base"] - row("rank", 8.0)["nll_shrunk"]
    assert 0.0 < recovered < 0.15 * GAIN  # at epsilon 8 a token
    assert row("rank", 128.0)["nll_shrunk"] < row("state", 512.0)["nll_shrunk"]


def test_the_clip_takes_away_what_the_norm_of_late_states_seems_to_give() -> None:
    places = FIGURES["places"]
    assert [one["after"] for one in places] == ["embeddings", *(f"layer {n}" for n in range(1, 6)), "norm"]
    before = [one["snr_before_clip"] for one in places]
    assert before == sorted(before) and before[-1] > 7 * before[0]
    assert all(one["snr_after_clip"] == pytest.approx(1.0 / one["noise_norm"]) for one in places)
    assert all(one["nll"] > one["nll_clear"] + 5.0 for one in places)
