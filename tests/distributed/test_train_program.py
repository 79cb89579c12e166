"""`dptrain train` on two processes: the first one writes and prints, and every one ends with the exit code of the run."""

import hashlib
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dptrain.demo.public import TIERS  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.worlds.digits import Digits, make_digits  # noqa: E402

Ended = tuple[int, str, str]
"""Exit code, what was printed, and what was told on the error stream."""


def program(rank: int, arguments: list[str], broken: int = -1) -> Ended:
    """Runs the program in this process; at rank ``broken`` the corpus that it reads is another one."""
    from dptrain.train import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments if rank != broken else [arguments[0].replace("run.toml", "other.toml"), *arguments[1:]])
    return code, out.getvalue(), err.getvalue()


def compared(rank: int, path: str) -> tuple[float | None, str, str]:
    """Trains without privacy, for comparison; returns accuracy, digest of the weights, and what was told."""
    from dptrain.tasks.runconfig import RunConfig
    from dptrain.train import train

    err = io.StringIO()
    with redirect_stderr(err):
        outcome = train(RunConfig.load(path), privacy=False)
    weights = (Path(outcome.model) / "model.safetensors").read_bytes()
    return outcome.accuracy, hashlib.sha256(weights).hexdigest(), err.getvalue()


def written(rank: int, path: str) -> tuple[str, str]:
    """Runs the program that a command wrote; returns what it printed, and a digest of its model."""
    out, names = io.StringIO(), {"__name__": "__main__"}
    with redirect_stdout(out):
        exec(compile(Path(path).read_text(), path, "exec"), names)
    model: torch.nn.Module = names["model"]  # type: ignore[assignment]
    digest = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()
    return out.getvalue(), digest


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    return make_digits(tmp_path_factory.mktemp("digits") / "world")


@pytest.fixture
def world(template: Digits, tmp_path: Path) -> Digits:
    found = template.copied_to(tmp_path / "world")
    found.change_run("[run]", '[run]\ndevice = "cpu"\nthreads = 1')
    return found


def test_the_first_process_prints_and_all_end_with_the_code_of_the_run(world: Digits) -> None:
    first, second = launched(program, 2, [str(world.run), "--json"])
    assert first[0] == second[0] == 0, first[2] + second[2]
    told = json.loads(first[1])
    assert (told["verdict"], told["findings"]) == ("FULL", []) and 0.0 <= told["accuracy"] <= 1.0
    assert [row["epsilon"] for row in told["classes"]] == pytest.approx([tier.epsilon for tier in TIERS], abs=1e-3)
    assert second[1] == ""
    assert verify_export(told["export"], (world.root / "ledger.pub").read_text().split()).verdict == "FULL"
    assert (Path(told["model"]) / "model.safetensors").exists()

    first, second = launched(program, 2, [str(world.run), "--json"])
    assert first[0] == second[0] == 1
    assert json.loads(first[1])["error"]["code"] == "OUTPUT"
    assert second[1] == "" and second[2].startswith("rank 1: OUTPUT: ")


def test_a_refusal_of_one_process_ends_all_with_code_1(world: Digits) -> None:
    """Rank 1 reads another policy than rank 0, so that the run does not begin anywhere."""
    other = world.run.with_name("other.toml")
    other.write_text(world.run.read_text().replace('corpus = "corpus"', 'corpus = "nothing"'))
    (world.root / "nothing").mkdir()
    first, second = launched(program, 2, [str(world.run), "--json"], 1)
    assert first[0] == second[0] == 1
    assert json.loads(first[1])["error"]["code"] == "RANKS_DIFFER"
    assert second[1] == "" and "rank 1: RANKS_DIFFER" in second[2]
    assert not (world.root / "ledger.db").exists()


@pytest.mark.slow
def test_the_program_of_quickstart_trains_on_two_processes(tmp_path: Path) -> None:
    from dptrain.demo.quickstart import quickstart

    data = tmp_path / "data.jsonl"
    rows = [{"text": f"it is {'good' if n % 2 else 'bad'} {n}", "label": n % 2} for n in range(30)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = quickstart(data, tmp_path / "run", epochs=1, batch_size=10)
    first, second = launched(written, 2, made.program)
    assert f"Epsilon(spent={made.epsilon_planned}, " in first[0] and second[0] == ""
    assert first[1] == second[1]
    kept = torch.load(tmp_path / "run" / "model.pt")
    assert all(not name.startswith("module.") for name in kept)
    key = (tmp_path / "run" / "ledger.pub").read_text().split()
    assert verify_export(tmp_path / "run" / "export", key).verdict == "FULL"


@pytest.mark.slow
def test_a_comparison_on_two_processes_is_that_on_one(world: Digits) -> None:
    (alone,) = launched(compared, 1, str(world.run))
    first, second = launched(compared, 2, str(world.run))
    assert first[:2] == second[:2] == alone[:2]
    assert "NOT PRIVATE" in first[2] and "NOT PRIVATE" not in second[2]
