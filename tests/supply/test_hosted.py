"""The hosted runs of continuous integration: pinned, unable to write, from the lock and with the newest of everything."""

import re
from typing import Any

import yaml

from publish.lock import ROOT

HOSTED = ROOT / ".github" / "workflows" / "ci.yml"


def hosted() -> dict[str, Any]:
    """Returns the description of the hosted runs."""
    return dict(yaml.safe_load(HOSTED.read_text(encoding="utf-8")))


def test_every_action_is_pinned_to_a_commit_and_none_may_write() -> None:
    found = hosted()
    actions = [step["uses"] for job in found["jobs"].values() for step in job["steps"] if "uses" in step]
    assert len(actions) == 6 and all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40}", action) for action in actions)
    assert found["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in found["jobs"].values())
    assert "secrets." not in HOSTED.read_text(encoding="utf-8")


def test_the_tests_run_once_from_the_lock_and_once_from_the_newest() -> None:
    job = hosted()["jobs"]["test"]
    locks = [run["lock"] for run in job["strategy"]["matrix"]["include"]]
    assert locks == ["requirements/test.lock", ""] and (ROOT / locks[0]).is_file()
    assert [step for step in job["steps"] if "run" in step] == [{"run": ".ci/run", "env": {"LOCK": "${{ matrix.lock }}"}}]


def test_every_suite_is_a_target_of_make() -> None:
    suites = hosted()["jobs"]["slow"]["strategy"]["matrix"]["suite"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert set(suites) <= set(targets)
