"""`dptrain plan --what-if`: two plans side by side, and nothing written."""

import tomllib
from pathlib import Path

import pytest

from dptrain.planning import changes

ROOT = Path(__file__).resolve().parents[2]


def compare(shell, change: str, code: int = 0) -> dict:
    return shell.json("plan", "policy.toml", "--layers", "4", "--what-if", change, code=code)


def differences(answer: dict) -> dict:
    (other,) = answer["what_if"]
    return {(item["class"], item["what"]): (item["before"], item["after"]) for item in other["differences"]}


def test_what_differs_is_listed_and_nothing_is_written(shell, policy):
    before = {path.name: path.read_bytes() for path in shell.directory.glob("policy*")}
    answer = compare(shell, "steps=40, class.sensitive.noise_multiplier=2.4")
    found = differences(answer)
    assert found[None, "steps"] == (20, 40)
    assert found["sensitive", "noise multiplier"] == (1.2, 2.4)
    assert found["sensitive", "draws of each"] == (2.0, 4.0)
    assert ("public", "noise multiplier") not in found
    assert {path.name: path.read_bytes() for path in shell.directory.glob("policy*")} == before
    assert answer["what_if"][0]["classes"][0]["preset"]["epsilon"] == found["sensitive", "epsilon"][1]


def test_the_table_marks_what_differs(shell, policy):
    shown = shell.run("plan", "policy.toml", "--what-if", "steps=40", "--what-if", "normalizer=8").stdout
    assert "what if 1: steps=40" in shown and "what if 2: normalizer=8" in shown
    (steps,) = [line for line in shown.splitlines() if line.split()[:1] == ["steps"] and "may" not in line]
    assert steps.split() == ["steps", "20", "40", "*", "(+100%)", "20"]


def test_settings_at_their_defaults_follow_the_steps(shell, policy):
    text = (shell.directory / "policy.toml").read_text().replace("redo_steps = 10\n", "")
    shell.write("policy.toml", text)
    assert compare(shell, "steps=40")["what_if"][0]["redo_steps"] == 40
    shell.write("policy.toml", text.replace("steps = 20", "steps = 20\nredo_steps = 7", 1))
    assert compare(shell, "steps=40")["what_if"][0]["redo_steps"] == 7


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ("stepps=4", "steps"),
        ("class.sensitive.noise=2", "class.sensitive.noise_multiplier"),
        ("class.sensitiv.clip_norm=2", "class.sensitive.clip_norm"),
        ("sensitive.noise_multiplier=2", "class.sensitive.noise_multiplier"),
        ("noise_multiplier=2", "class.sensitive.noise_multiplier"),
        ("noise.familly=laplace", "noise.family"),
        ("class.sensitive.depth.form=0.5", "class.sensitive.depth.from"),
    ],
)
def test_an_unknown_key_gives_the_nearest_known_one(shell, policy, change, nearest):
    error = compare(shell, change, code=1)["error"]
    assert error["code"] == "WHAT_IF_KEY"
    assert error["sentence"].endswith(f"the nearest known key is {nearest}")


@pytest.mark.parametrize("change", ["", "steps", "steps=", "steps=4,", "steps=[1", "steps=1..2", "=4"])
def test_what_is_no_assignment_is_refused(shell, policy, change):
    assert compare(shell, change, code=1)["error"]["code"] in ("WHAT_IF", "WHAT_IF_KEY")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("steps=0", "RANGE"),
        ("steps=1e3", "TYPE"),
        ("delta=1e-13", "RANGE"),
        ("class.sensitive.noise_multiplier=nan", "RANGE"),
        ("class.sensitive.sampling_rate=2", "RANGE"),
        ("accountant=guess", "RANGE"),
    ],
)
def test_a_policy_that_would_be_none_is_refused_as_it_would_be_in_a_file(shell, policy, change, code):
    assert compare(shell, change, code=1)["error"]["code"] == code


def test_words_tables_and_lists_are_values(shell, policy):
    answer = compare(
        shell,
        "disclosure=occurrences_public, class.sensitive.depth.layers=[0, 3], noise.budgets={embeddings=1, layers=1, head=2}",
    )
    (other,) = answer["what_if"]
    assert other["disclosure"] == "occurrences_public"
    assert other["classes"][0]["blocks"] == ["layer.0", "layer.3"]
    shares = {block["name"]: block["share"] for block in other["blocks"]}
    assert (shares["embeddings"], shares["head"]) == (1_000_000, 2_000_000)
    phased = compare(shell, "noise.phase=[{from_step = 11, scale = 1.5}]")["what_if"][0]
    assert [(item["first_step"], item["steps"], item["scale"]) for item in phased["phases"]] == [(1, 10, 1.0), (11, 10, 1.5)]


def test_every_key_of_the_template_may_be_changed_but_for_auditors_and_isolation():
    table = tomllib.loads((ROOT / "dptrain/cli/policy_template.toml").read_text())
    (first, *_), noise = table.pop("class"), table["noise"]
    written = {f"{name}.{key}" for name, inner in table.items() if type(inner) is dict for key in inner}
    written |= {name for name, inner in table.items() if type(inner) is not dict}
    assert noise and written <= set(changes.settings())
    assert {key for key in first if key != "name"} <= set(changes.settings_of_classes())
    assert {"depth.from", "depth.to", "depth.set"} <= set(changes.settings_of_classes())
    assert {"noise.budgets.head", "noise.phase", "sampling.order"} <= set(changes.settings())
    assert not any(key.startswith(("ledger", "isolation")) for key in changes.settings())

