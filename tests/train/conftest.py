"""Fixtures of the training tests: the digits, copied for each test, and the program run in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.digits import Digits, make_digits
from tests.worlds.served import served_world  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def digits_template(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits") / "world")


@pytest.fixture
def digits_world(digits_template: Digits, tmp_path: Path) -> Digits:
    """A private copy of the world."""
    return digits_template.copied_to(tmp_path / "world")


@pytest.fixture
def train_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict]]:
    """Runs `dptrain.train.main` with `--json` and reads what it prints."""

    def run(*arguments: object) -> tuple[int, dict]:
        from dptrain.train import main

        code = main([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run
