"""The page for who comes from Opacus: its blocks run on both sides, its names exist, its counts are those of the programs."""

import contextlib
import inspect
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
opacus = pytest.importorskip("opacus")
from opacus.utils.batch_memory_manager import BatchMemoryManager as Memory  # noqa: E402
from torch import nn  # noqa: E402

import benchmarks.beside.__main__ as beside  # noqa: E402
from benchmarks.beside import scene  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "opacus.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)

THEIRS = {
    "PrivacyEngine.make_private": opacus.PrivacyEngine.make_private,
    "make_private_with_epsilon": opacus.PrivacyEngine.make_private_with_epsilon,
    "BatchMemoryManager": Memory,
    "DPDataLoader": opacus.data_loader.DPDataLoader,
    "GradSampleModule": opacus.GradSampleModule,
    "DPOptimizer": opacus.optimizers.DPOptimizer,
    "ModuleValidator.fix": opacus.validators.ModuleValidator.fix,
    "ModuleValidator.validate": opacus.validators.ModuleValidator.validate,
    "register_grad_sampler": opacus.grad_sample.register_grad_sampler,
    "get_epsilon": opacus.PrivacyEngine.get_epsilon,
    "save_checkpoint": opacus.PrivacyEngine.save_checkpoint,
    "load_checkpoint": opacus.PrivacyEngine.load_checkpoint,
}


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def data() -> torch.utils.data.Dataset:
    draw = torch.Generator().manual_seed(0)
    return torch.utils.data.TensorDataset(torch.randn(40, 4, generator=draw), torch.arange(40) % 2)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a block of the page in an empty folder, and returns what it printed and what it left."""
    monkeypatch.chdir(tmp_path)

    def work(block: str) -> tuple[list[float], dict[str, Any]]:
        names = {"model": model(), "data": data(), "net": nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)), "Scale": Scale}
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile(block, str(PAGE), "exec"), names)
        return [float(line) for line in told.getvalue().split()], names

    return work


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_loop_of_opacus_and_ours_leave_the_same_keys_and_nearly_the_same_epsilon(run: Any) -> None:
    theirs, _ = run(BLOCKS[0])
    keys = list(torch.load("model.pt"))
    Path("model.pt").unlink()
    ours, names = run(BLOCKS[1])
    assert list(torch.load("model.pt")) == keys == list(model().state_dict())
    assert 0.95 * theirs[0] < ours[0] < 1.01 * theirs[0]
    assert any(
        not torch.equal(a, b) for a, b in zip(names["model"].state_dict().values(), model().state_dict().values(), strict=True)
    )


def test_a_target_keeps_some_of_it_for_steps_that_are_done_again(run: Any) -> None:
    (planned,), _ = run(BLOCKS[2])
    assert 4.0 < planned < 8.0


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_both_put_the_same_layer_in_the_place_of_batch_normalisation(run: Any) -> None:
    theirs, ours = (run(block)[1]["net"] for block in BLOCKS[3:5])
    assert [type(layer) for layer in theirs] == [type(layer) for layer in ours] == [nn.Conv2d, nn.GroupNorm]


def test_the_rules_of_a_layer_are_taken_on_both_sides_and_a_wrong_one_is_found(run: Any) -> None:
    run(BLOCKS[5])
    run(BLOCKS[6])
    wrong = (
        BLOCKS[6].replace(".sum(1))", ".sum(1) * 2)").replace("@gradient_rule(Scale)", "@gradient_rule(Scale, replace=True)")
    )
    assert wrong != BLOCKS[6]
    with pytest.raises(Exception, match=r"GRADIENT_WRONG.*Scale"):
        run(wrong)
    assert len(BLOCKS) == 7


def test_every_name_of_opacus_on_the_page_is_one_of_the_installed_opacus() -> None:
    table = TEXT.split("| Opacus | dptrain |\n")[1].split("\n\n")[0].splitlines()[1:]
    named = {re.sub(r"=.*", "", word) for line in table for word in re.findall(r"`([^`]+)`", line.split("|")[1])}
    makers = (opacus.PrivacyEngine, opacus.PrivacyEngine.make_private, opacus.PrivacyEngine.make_private_with_epsilon, Memory)
    arguments = {name for maker in makers for name in inspect.signature(maker).parameters}
    assert len(named) > 15 and named - {*THEIRS, "_module.", "optimizer.zero_grad()"} <= arguments
    assert "wrap_model" in arguments and all(callable(found) for found in THEIRS.values())


def test_the_page_says_how_many_lines_the_programs_have_and_what_their_numbers_spend() -> None:
    for name in beside.MODELS:
        for library in ("opacus", "dptrain"):
            counted = beside.lines(name, library)
            told = rf"\| `{name}_{library}` \| {counted['lines']} \| {counted['new']} \| {counted['gone']} \|"
            assert re.search(told, TEXT), f"{name}_{library} has {counted}"
    assert all(f"| {value:.4f} |" in TEXT for value in beside.epsilons().values()), beside.epsilons()


def test_a_program_without_privacy_has_no_new_lines_and_another_has() -> None:
    assert beside.lines("bert", "plain")["new"] == 0 < beside.lines("bert", "opacus")["new"]
    assert beside.code_of("bert", "plain")[0] == "import torch"


def test_the_texts_and_reviews_of_the_programs_are_all_different() -> None:
    for made in (scene.texts(), scene.reviews()):
        assert len({tuple(row["input_ids"].tolist()) for row in made}) == len(made) == scene.CONTRIBUTIONS


@pytest.mark.slow
@pytest.mark.parametrize("library", ["plain", "opacus", "dptrain"])
@pytest.mark.parametrize("name", beside.MODELS)
def test_a_program_runs_to_its_end_and_says_its_epsilon(name: str, library: str, tmp_path: Path) -> None:
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "BESIDE_SMALL": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.beside.{name}_{library}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "model").is_dir()
    assert ("7.48" in done.stdout) == (library == "opacus") and ("spent=7.47" in done.stdout) == (library == "dptrain")


@pytest.mark.slow
def test_the_steps_of_the_programs_take_turns_and_each_has_its_seconds() -> None:
    found = beside.measured("gpt2", 2, 1, small=True)
    assert list(found) == list(beside.LIBRARIES)
    assert all(len(row[clock]) == 2 and min(row[clock]) > 0 for row in found.values() for clock in ("cpu", "wall"))
    row = {
        "steps": {"gpt2": found},
        "lines": {"gpt2": {name: beside.lines("gpt2", name) for name in found}},
        "epsilons": {"x": 1.0},
    }
    assert len(beside.render(row).splitlines()) == 5
