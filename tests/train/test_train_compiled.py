"""`compile = true` in a run file: the same run through the compiled form."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dptrain.errors import CompileRefused, ConfigError
from dptrain.routing import compiled
from dptrain.tasks.runconfig import RunConfig
from dptrain.train import train
from tests.worlds.digits import Digits

TrainJson = Callable[..., tuple[int, dict]]


@pytest.mark.filterwarnings("error::dptrain.routing.compiled.CompileNotice")
@pytest.mark.slow
def test_a_run_file_asks_for_the_compiled_form(
    digits_world: Digits, train_json: TrainJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but inductor's code, which tests/routing/test_compiled.py runs."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    monkeypatch.setattr("torch._inductor.compile", lambda graph, values: graph)
    made: list[compiled.CompiledLoss] = []
    whole = compiled.CompiledLoss.__init__

    def noted(self: compiled.CompiledLoss, *args: Any, **options: Any) -> None:
        made.append(self)
        whole(self, *args, **options)

    monkeypatch.setattr(compiled.CompiledLoss, "__init__", noted)
    digits_world.change_run("microbatch = 16", "microbatch = 16\ncompile = true")
    code, result = train_json(digits_world.run)
    assert code == 0
    assert result["verdict"] == "FULL"
    assert len(made) == 1
    assert made[0].graphs >= 1


def test_without_a_compiler_the_run_ends_before_a_step_is_charged(
    digits_world: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", missing)
    digits_world.change_run("microbatch = 16", "microbatch = 16\ncompile = true")
    with pytest.raises(CompileRefused, match="NO_COMPILER"):
        train(RunConfig.load(digits_world.run))


def test_compile_is_true_or_false(digits_world: Digits) -> None:
    digits_world.change_run("microbatch = 16", 'microbatch = 16\ncompile = "yes"')
    with pytest.raises(ConfigError, match="true or false"):
        RunConfig.load(digits_world.run)


def test_a_comparison_run_is_not_compiled(digits_world: Digits) -> None:
    torch.manual_seed(0)
    digits_world.change_run("microbatch = 16", "microbatch = 16\ncompile = true")
    assert not train(RunConfig.load(digits_world.run), privacy=False).private
