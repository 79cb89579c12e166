"""The benchmarks are code that must run: names and absences as documented, policies that parse, one tiny run of each suite."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attest.policy import Policy  # noqa: E402
from benchmarks import gpu  # noqa: E402
from benchmarks.configs import CONFIGS, SCALING, by_name  # noqa: E402
from benchmarks.variants import _policy, absent_from, names_for  # noqa: E402

ALWAYS = {"ours_fast", "ours_certified", "ours_compiled", "opacus_hooks", "opacus_ghost"}


def test_every_configuration_names_every_variant_measured_or_absent_with_a_reason() -> None:
    named = {"bert_full", "gpt2_tied", "gpt2_untied", "bert_lora", "gpt2_lora", "bert_band25", "mixed3"}
    assert set(CONFIGS) == named
    for config in CONFIGS.values():
        measured, absent = set(names_for(config)), absent_from(config)
        assert measured | set(absent) >= ALWAYS and not measured & set(absent)
        assert all(absent.values())


@pytest.mark.parametrize(
    "config", [*CONFIGS.values(), *(c for g in SCALING.values() for c in g.values())], ids=lambda c: c.name
)
def test_policies_of_the_benchmarks_are_valid_and_admit_every_contribution(config) -> None:  # type: ignore[no-untyped-def]
    policy = Policy.from_toml(_policy(config))
    assert policy.normalizer == config.contributions == sum(tier.contributions for tier in config.tiers)
    assert by_name(config.name).name == config.name


def test_a_step_of_mixed_classes_runs_and_prints_the_table_as_json() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.step",
        "--config",
        "classes=2",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--no-memory",
    ]
    found = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    assert found["ours_fast"]["cpu_ratio"] > 0 and found["non_private_bands"]["wall_ratio"] > 0
    assert found["ours_compiled"]["cpu_ratio"] is None and "not in this build" in found["ours_compiled"]["absent"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="would run the whole suite")
def test_the_gpu_suite_says_that_there_is_no_cuda_and_succeeds() -> None:
    ran = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], check=True, capture_output=True, text=True)
    assert "no CUDA device" in ran.stdout


def test_the_code_of_the_gpu_suite_runs_at_tiny_sizes() -> None:
    for config in gpu.configs(smoke=True):
        assert gpu.measure(config, rounds=1)["ours_fast"]["tokens_per_s"] > 0
