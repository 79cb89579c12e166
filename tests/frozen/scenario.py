"""Runs commands in order, in a directory of their own and at a fixed time, and keeps what each answers."""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.frozen.normalise import Normaliser
from tests.worlds.commands import run_command

NOW = 1_800_000_000
"""The fixed time of every scenario: seconds since the epoch, 15 January 2027."""

_SURROUNDINGS = {"COLUMNS": "160", "TERM": "dumb", "SSH_AUTH_SOCK": None}


@dataclass(frozen=True)
class Case:
    """One command of a scenario.

    Attributes:
        name: what it shows; no other case of its scenario has this name.
        words: the command after ``dptrain``, as a shell reads it; ``{fact}`` stands for what an earlier answer said.
        code: its exit code.
        keep: facts for later commands: name, and the path of keys that leads to it in this answer.
        before: prepares files; gets the directory.
        clock: seconds after `NOW` at which it runs.
        measured: paths of numbers that differ from run to run, and the word for each (`Normaliser`).
        speaks_json: False for what has no ``--json``, such as a group of commands.
    """

    name: str
    words: str
    code: int = 0
    keep: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[Path], object] | None = None
    clock: int = 0
    measured: Mapping[str, str] = field(default_factory=dict)
    speaks_json: bool = True


@dataclass(frozen=True)
class Scenario:
    """Cases that run in one directory, in order.

    Attributes:
        group: the name of its golden file.
        world: fills the directory before the first case.
        cases: in order.
        clock: whether the time is fixed; False where a command starts another process, whose clock nobody can fix.
        beside: runs beside the cases, such as a server; gives facts for their commands.
        missing: returns why the scenario cannot run on this machine, or None.
        slow: whether it takes more than about ten seconds.
    """

    group: str
    world: Callable[[Path], object]
    cases: Sequence[Case]
    clock: bool = True
    beside: Callable[[], AbstractContextManager[Mapping[str, Any]]] = lambda: nullcontext({})
    missing: Callable[[], str | None] = lambda: None
    slow: bool = False


def run_scenario(scenario: Scenario, directory: Path) -> dict[str, Any]:
    """Runs the cases of a scenario in an empty directory, and returns their normalised answers by name.

    Raises:
        AssertionError: A command failed with a fault, or printed JSON that is no object.
        ValueError: It printed something else than one JSON object under ``--json``.
    """
    found: dict[str, Any] = {}
    with working_in(directory), scenario.beside() as given:
        facts = dict(given)
        with fixed_clock(0) if scenario.clock else nullcontext():
            scenario.world(directory)
        for case in scenario.cases:
            assert case.name not in found, f"two cases of {scenario.group} are called {case.name!r}"
            with fixed_clock(case.clock) if scenario.clock else nullcontext():
                if case.before is not None:
                    case.before(directory)
                found[case.name] = _answered(case, facts, directory)
    return found


def _answered(case: Case, facts: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Runs one command, and adds the facts that later ones need."""
    words = [word.format(**facts) for word in shlex.split(case.words)] + ["--json"] * case.speaks_json
    done = run_command(words, env=_SURROUNDINGS)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise AssertionError(f"{case.name}: dptrain {case.words} fails with a fault") from done.exception
    answer = None
    if case.speaks_json and done.stdout:
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict), f"{case.name}: not one JSON object: {done.stdout}"
    for name, path in case.keep.items():
        facts[name] = _at(answer, path)
    return {
        "command": f"dptrain {case.words}".strip(),
        "exit": done.exit_code,
        "answer": Normaliser(directory, case.measured).of(answer),
    }


def _at(answer: Any, path: str) -> Any:
    """Returns what a path of keys leads to; ``missing`` where it leads nowhere, so that the other cases are still compared."""
    for step in path.split("."):
        try:
            answer = answer[int(step) if isinstance(answer, list) else step]
        except (IndexError, KeyError, TypeError):
            return "missing"
    return answer


@contextmanager
def working_in(directory: Path) -> Iterator[None]:
    """Makes a directory the current one, as ``cd`` does."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def fixed_clock(ahead: int) -> Iterator[None]:
    """Fixes the time of day at so many seconds after `NOW`; clocks that measure durations go on."""
    with patch.object(time, "time", lambda: float(NOW + ahead)):
        yield
