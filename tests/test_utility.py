"""The table of what privacy costs: its arms, its budgets of tuning, and that every run of it kept its epsilon."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from benchmarks import utility
from recipes.correlated_noise import SELECTING

ROOT = Path(__file__).resolve().parents[1]


def test_the_arms_of_the_utility_table_differ_by_class_and_depth_alone() -> None:
    (one,), shares = utility.tiers("uniform", 3.0)
    assert (one.epsilon, one.start, one.clip_norm, shares) == (3.0, "0.0", 1.0, (1.0,))
    tiers, shares = utility.tiers("routed", 3.0)
    assert [tier.epsilon for tier in tiers] == [3.0, 6.0, 12.0] and [tier.start for tier in tiers] == ["0.75", "0.5", "0.0"]
    assert sum(shares) == pytest.approx(1.0) and min(tier.epsilon for tier in tiers) == 3.0


def test_every_run_of_the_utility_table_kept_its_epsilon_and_passed_its_audit() -> None:
    rows = json.loads((ROOT / "benchmarks" / "utility.json").read_text())
    tried: dict[tuple[object, ...], set[float]] = {}
    for row in rows:
        if row["seed"] == SELECTING:
            tried.setdefault((row["task"], row["arm"], row["epsilon"]), set()).add(row["rate"])
        if row["arm"] == "without":
            continue
        tiers, _ = utility.tiers(row["arm"], row["epsilon"])
        assert row["verdict"] == "FULL" and row["planned"].keys() == {tier.name for tier in tiers}
        assert all(row["planned"][tier.name] <= tier.epsilon for tier in tiers)
    for task in {name for name, *_ in tried}:
        budgets = {frozenset(found) for (name, *_), found in tried.items() if name == task}
        assert len(budgets) == 1 and len(next(iter(budgets))) == 3, task


def test_the_utility_table_has_means_and_standard_errors_of_the_reported_seeds() -> None:
    common = {"task": "t", "contributions": 10, "steps": 2, "draws": 5, "rate": 1.0, "energy": 2.0}
    rows = [common | {"arm": "uniform", "epsilon": 3.0, "seed": seed, "accuracy": 0.1 * seed} for seed in (0, 1, 2, 3)]
    line = next(line for line in utility.lines_of(rows) if "| 3 |" in line)
    assert "20.0 ± 5.8 (3; ×1)" in line and line.count("not run") == 3
