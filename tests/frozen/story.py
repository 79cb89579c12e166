"""Commands in order, in a directory of their own, under a clock that stands still; and what each answered."""

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

from typer.testing import CliRunner

from dptrain.cli.app import app
from tests.frozen.normal import Wording

NOW = 1_800_000_000
"""What every clock shows while a story is told; seconds since the epoch, 15 January 2027."""

_SURROUNDINGS = {"COLUMNS": "160", "TERM": "dumb", "SSH_AUTH_SOCK": None}


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        name: what is shown by it; one of its story.
        words: the command after ``dptrain``, as a shell reads it; ``{fact}`` stands for what an earlier answer said.
        code: its exit code.
        keep: facts for later commands: name, and the path of keys that leads to it in this answer.
        before: prepares files; gets the directory.
        clock: seconds by which the clock is ahead of `NOW`.
        measured: what leads to numbers that differ from run to run, with the word for them (`Wording`).
        speaks_json: False for what has no ``--json``, such as a group.
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
class Story:
    """Cases that follow each other.

    Attributes:
        group: the name of its golden file.
        world: makes the directory in which it begins.
        cases: in order.
        clock: whether the clock stands still; not where a process of its own takes part.
        beside: what runs beside it, such as a server; gives facts for its commands.
        missing: says why the story cannot be told on this machine, or nothing.
        slow: whether it takes more than a few seconds.
    """

    group: str
    world: Callable[[Path], object]
    cases: Sequence[Case]
    clock: bool = True
    beside: Callable[[], AbstractContextManager[Mapping[str, Any]]] = lambda: nullcontext({})
    missing: Callable[[], str | None] = lambda: None
    slow: bool = False


def told(story: Story, directory: Path) -> dict[str, Any]:
    """Runs the cases of a story in a directory that it may fill, and returns their answers by name (`Wording`).

    Raises:
        AssertionError: A command printed more than one JSON object under ``--json``, or failed with a fault.
    """
    found: dict[str, Any] = {}
    with inside(directory), story.beside() as given:
        facts = dict(given)
        with standing_still(0) if story.clock else nullcontext():
            story.world(directory)
        for case in story.cases:
            assert case.name not in found, f"two cases of {story.group} are called {case.name!r}"
            with standing_still(case.clock) if story.clock else nullcontext():
                if case.before is not None:
                    case.before(directory)
                found[case.name] = _answered(case, facts, directory)
    return found


def _answered(case: Case, facts: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Runs one command; keeps the facts that later ones need."""
    words = [word.format(**facts) for word in shlex.split(case.words)] + ["--json"] * case.speaks_json
    done = CliRunner().invoke(app, words, env=_SURROUNDINGS)
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
        "answer": Wording(directory, case.measured).of(answer),
    }


def _at(answer: Any, path: str) -> Any:
    """Returns what a path of keys leads to; a word that no command takes where it leads nowhere, so that all is compared."""
    for step in path.split("."):
        try:
            answer = answer[int(step) if isinstance(answer, list) else step]
        except (IndexError, KeyError, TypeError):
            return "missing"
    return answer


@contextmanager
def inside(directory: Path) -> Iterator[None]:
    """Works in a directory, as a shell does after ``cd``."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def standing_still(ahead: int) -> Iterator[None]:
    """Stops the clock that everything asks for the time of day, so many seconds after `NOW`; durations go on."""
    with patch.object(time, "time", lambda: float(NOW + ahead)):
        yield
