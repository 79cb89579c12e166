"""What the command line promises to programs does not change: keys, types, counts, codes, figures and exit codes.

A change that is meant is written down with `python -m tests.frozen --update`, and read as a difference of the golden files.
"""

import copy
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.frozen import golden
from tests.frozen.normalise import Normaliser
from tests.frozen.scenario import Scenario, run_scenario
from tests.frozen.scenarios import SCENARIOS
from tests.frozen.tree import exits, leaves, tree


def held(kept: Any, found: Any) -> None:
    """Fails with a line per difference."""
    lines = list(golden.differences(kept, found))
    if lines:
        pytest.fail("\n".join([*lines, "if this is meant: python -m tests.frozen --update"]), pytrace=False)


def test_the_tree_of_commands_is_the_one_that_was_frozen():
    held(golden.read(golden.COMMANDS), tree())


def test_verdicts_and_alarms_have_the_exit_codes_that_were_frozen():
    held(golden.read(golden.EXITS), exits())


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(scenario, id=name, marks=[pytest.mark.slow] * scenario.slow) for name, scenario in SCENARIOS.items()],
)
def test_every_command_answers_as_it_did(scenario: Scenario, tmp_path: Path):
    missing = scenario.missing()
    if missing is not None:
        pytest.skip(missing)
    held(golden.read(scenario.group), run_scenario(scenario, tmp_path))


def lacking(commands: Iterable[str]) -> dict[str, list[int]]:
    """Returns for which commands the golden files lack a case that succeeds, is refused or is wrong use, and which of these."""
    names = sorted(commands, key=len, reverse=True)
    missing = {name: {0, 1, 2} for name in names}
    for case in chain.from_iterable(golden.read(group).values() for group in SCENARIOS):
        words = case["command"].removeprefix("dptrain ")
        name = next((name for name in names if f"{words} ".startswith(f"{name} ")), None)
        if name is not None:
            missing[name].discard(case["exit"])
    return {name: sorted(codes) for name, codes in missing.items() if codes}


def test_of_every_command_an_answer_a_refusal_and_a_wrong_use_are_kept():
    found = lacking(leaves())
    assert not found, f"no case with these exit codes in the golden files; add some to tests/frozen/scenarios: {found}"


def test_a_command_of_which_nothing_is_kept_is_named():
    unkept = {"ledger begin": [0, 1, 2], "gate-keep": [0, 1, 2]}
    assert lacking([*leaves(), *unkept]) == lacking(leaves()) | unkept


def test_every_golden_file_belongs_to_a_scenario_and_holds_its_cases():
    assert {path.stem for path in golden.PLACE.glob("*.json")} == {golden.COMMANDS, golden.EXITS, *SCENARIOS}
    for name, scenario in SCENARIOS.items():
        kept = golden.read(name)
        assert {case.name: case.code for case in scenario.cases} == {case: answer["exit"] for case, answer in kept.items()}


def test_what_is_fresh_is_kept_by_its_form_and_prose_by_its_presence(tmp_path: Path):
    words = Normaliser(tmp_path, {"measured.seconds": "<seconds>"})
    answer = {
        "root": "ab" * 32, "key": f"run+{'0a' * 4}+{'A' * 43}=", "path": f"{tmp_path}/export", "time": 1_800_000_000,
        "notes": ["One.", "Two."], "sentence": None, "exactness": "fast: because", "measured": {"seconds": 1.5, "steps": 2},
        "cd" * 8: {"epsilon": 1.5}, "ef" * 8: {},
    }  # fmt: skip
    assert words.of(answer) == {
        "root": "<hex 64>", "key": "run+<hex 8>+<base64 44>", "path": "<path>/export", "time": 1_800_000_000,
        "notes": ["<sentence>", "<sentence>"], "sentence": None, "exactness": "fast: <sentence>",
        "measured": {"seconds": "<seconds>", "steps": 2}, "<hex 16>": {"epsilon": 1.5}, "<hex 16>'": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (lambda row: row.pop("epsilon"), "gone; it was 1.5"),
        (lambda row: row.update(more=1), "new; it is 1"),
        (lambda row: row.update(epsilon=1.5000001), "1.5 became 1.5000001"),
        (lambda row: row.update(steps=20.0), "20 became 20.0"),
        (lambda row: row["blocks"].append("head"), "1 items became 2"),
        (lambda row: row.update(code="OLD"), '"NEW" became "OLD"'),
        (lambda row: row.update(public=0), "false became 0"),
    ],
)
def test_any_change_of_an_answer_is_shown_with_its_place(change, shown):
    kept = {"a case": {"answer": {"epsilon": 1.5, "steps": 20, "blocks": ["layer.0"], "code": "NEW", "public": False}}}
    found = copy.deepcopy(kept)
    held(kept, found)
    change(found["a case"]["answer"])
    (line,) = golden.differences(kept, found)
    assert line.startswith("a case / answer / ") and shown in line
