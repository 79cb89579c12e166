"""A run writes a line a step: public numbers and nothing else, each step once, whatever ended an attempt in between."""

import json
import math
import os
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain import Clock, Metrics, NoiseSource, PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.guarantees.peers import collate, net, one_class, per_example, small_world  # noqa: E402
from tests.worlds.programs import ran  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12
SECRET = {
    "run", "attempt", "step", "steps", "charged", "delta", "epsilon/open", "epsilon_planned/open", "noise_multiplier/open",
    "learning_rate", "noise_std/embeddings", "noise_std/layer.0", "noise_std/layer.1", "noise_std/layer.2", "noise_std/head",
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> World:
    return small_world(tmp_path, steps=STEPS, window_steps=8, now=None, policy_extra="redo_steps = 12")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(
    world: World, metrics: Any, *, fault: int | None = None, stepped: bool = False, save: int = 0, **options: Any
) -> None:
    """Runs the loop, which raises in a step, before or behind the optimizer's."""
    losses = options.pop("losses", per_example)
    model = net()
    optimizer = options.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.1)
    drive = options.pop("drive", lambda optimizer: None)(optimizer)
    schedule = options.pop("scheduler", lambda optimizer: None)(optimizer)
    how = {"resume": True, "progress": False} | options
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, **how) as private:
        states = [] if schedule is None else [schedule]
        _, optimizer, steps = private.prepare(
            model, optimizer, collate, layers="layers", metrics=metrics, states=states
        )
        for step in steps:
            for rows in step:
                if step.number == fault and not stepped and not private.prepared.probe.active:
                    raise ZeroDivisionError
                private.backward(losses(model, rows), rows)
            optimizer.step()
            if schedule is not None:
                schedule.step(*([1.0] if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
            if drive is not None:
                drive(step.number)
            if step.number == fault:
                raise ZeroDivisionError
            if step.number == save:
                private.save()


def test_every_step_has_a_line_of_public_numbers_and_nothing_else(world: World, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics.jsonl"
    train(world, path)
    found = lines(path)
    assert [line["step"] for line in found] == list(range(1, STEPS + 1)) and {line["steps"] for line in found} == {STEPS}
    assert all(line.keys() == SECRET for line in found)
    assert all(later["epsilon/open"] >= line["epsilon/open"] for line, later in pairwise(found))
    with Ledger.open(world.ledger, read_only=True) as log:
        name = next(iter(log.state.contributions))
        assert found[-1]["epsilon/open"] == log.epsilon(name) == found[-1]["epsilon_planned/open"]
        assert found[-1]["charged"] == log.state.charged and found[-1]["run"] == log.header.run_id.hex()


def test_the_lines_follow_neither_from_contents_nor_from_draws(tmp_path: Path) -> None:
    """Three runs: alike, with losses a thousand times as large, and with other draws; only the name of the run differs."""
    found = []
    for place, (key, scale) in enumerate([(b"\x01", 1.0), (b"\x01", 1000.0), (b"\x02", 1.0)]):
        root = tmp_path / str(place)
        root.mkdir()
        world = small_world(root, steps=6, window_steps=4, rate="0.5", now=None)

        def losses(model: Any, rows: Any, scale: float = scale) -> torch.Tensor:
            return per_example(model, rows) * scale

        train(world, root / "m", losses=losses, noise=NoiseSource(insecure_test_key=key * 32))
        found.append([{name: value for name, value in line.items() if name != "run"} for line in lines(root / "m")])
    assert found[0] == found[1] == found[2]


def test_where_draws_are_secret_lines_come_when_a_window_is_settled(world: World, tmp_path: Path) -> None:
    """Windows end with the steps 1, 2, 3, 4, 6, 10 and 12."""
    path, seen = tmp_path / "m", {}
    train(world, path, drive=lambda _: lambda step: seen.update({step: len(lines(path)) if path.exists() else 0}))
    assert seen == {1: 0, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 6, 8: 6, 9: 6, 10: 6, 11: 10, 12: 10}


def test_times_are_told_where_occurrences_are_public_and_are_those_of_the_runs_clock(tmp_path: Path) -> None:
    world = make_world(
        tmp_path, classes=one_class(), steps=4, rate="0.5", now=None, policy_extra='disclosure = "occurrences_public"'
    )
    noon = world.now + 10
    train(world, tmp_path / "m", clock=Clock(now=lambda: noon))
    found = lines(tmp_path / "m")
    assert [line["step"] for line in found] == [1, 2, 3, 4] and {line["time"] for line in found} == {noon}
    assert all(line.keys() == SECRET | {"time"} for line in found)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("fault", [1, 2, 8])
def test_an_attempt_that_goes_on_leaves_every_step_once(world: World, tmp_path: Path, fault: int, stepped: bool) -> None:
    path = tmp_path / "m"
    with pytest.raises(ZeroDivisionError):
        train(world, path, fault=fault, stepped=stepped)
    last = fault if stepped else fault - 1
    assert [line["step"] for line in (lines(path) if path.exists() else [])] == list(range(1, last + 1))
    train(world, path)
    found = lines(path)
    assert [(line["step"], line["attempt"]) for line in found] == [(n, int(n > last)) for n in range(1, STEPS + 1)]


CRASH = """
    import os, sys
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from tests.engine import test_public_numbers as own
    from tests.worlds.training import World
    policy, corpus, folder, metrics, step, save = sys.argv[1:]
    world = World(Path(folder), Path(policy), Path(corpus), None, {{}}, None, 0)
    drive = lambda _: lambda number: os._exit(9) if number == int(step) else None
    own.train(world, metrics, drive=drive, save=int(save))
"""


@pytest.mark.one_in(99)
@pytest.mark.parametrize(("step", "save", "kept"), [(9, 8, 8), (3, 0, 0), (11, 7, 7)])
def test_a_crash_leaves_lines_that_agree_with_the_ledger(world: World, tmp_path: Path, step: int, save: int, kept: int) -> None:
    """The process is gone at a step; what is saved in the middle of a window has its lines before it."""
    path = tmp_path / "m"
    arguments = (world.policy, world.corpus, world.root, path, step, save)
    program = textwrap.dedent(CRASH.format(root=str(ROOT)))
    done = ran(["-c", program, *map(str, arguments)], ROOT)
    assert done.returncode == 9, done.stderr
    before = [line["step"] for line in lines(path)]
    assert before == list(range(1, len(before) + 1)) and len(before) >= kept
    with path.open("ab") as file:
        file.write(b'{"run": "half a li')
    seen: list[int] = []
    train(world, path, drive=lambda _: lambda number: seen.append(len(lines(path))))
    assert seen[0] == kept, "what is done again is off the file before it is done"
    found = lines(path)
    assert [(line["step"], line["attempt"]) for line in found] == [(n, int(n > kept)) for n in range(1, STEPS + 1)]
    with Ledger.open(world.ledger, read_only=True) as log:
        assert found[-1]["charged"] == log.state.charged > STEPS


@pytest.mark.one_in(4)
@pytest.mark.parametrize("text", ["notes of mine\n", '{"step": 1}\n', "[]\n", '{"run": "00", "step": 1}\n'])
def test_a_file_of_something_else_is_refused_before_a_charge_and_left_alone(world: World, tmp_path: Path, text: str) -> None:
    path = tmp_path / "m"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"METRICS: line 1 .* name another file"):
        train(world, path)
    assert path.read_text() == text and not world.ledger.exists()
    path.unlink()
    with pytest.raises(ZeroDivisionError):
        train(world, path, fault=3)
    path.write_text(path.read_text() + text)
    with pytest.raises(ConfigError, match=r"METRICS: line 3"):
        train(world, path)


def test_steps_in_between_may_be_left_out_and_the_last_one_is_there(world: World, tmp_path: Path) -> None:
    train(world, Metrics(tmp_path / "m", every=5))
    assert [line["step"] for line in lines(tmp_path / "m")] == [5, 10, 12]


def test_a_function_takes_the_same_numbers_and_its_exceptions_are_the_loops(world: World, tmp_path: Path) -> None:
    """In place of a logger; what it raises costs no line and no checkpoint."""
    told: list[dict[str, Any]] = []

    def send(numbers: dict[str, Any]) -> None:
        if numbers["step"] == 6:
            raise ZeroDivisionError
        told.append(numbers)

    with pytest.raises(ZeroDivisionError):
        train(world, Metrics(tmp_path / "m", send=send))
    assert [line["step"] for line in lines(tmp_path / "m")] == [1, 2, 3, 4, 5, 6]
    train(world, Metrics(tmp_path / "m", send=told.append))
    assert told == [line for line in lines(tmp_path / "m") if line["step"] != 6]


def test_a_disk_that_refuses_costs_a_warning_and_no_line(world: World, tmp_path: Path, monkeypatch) -> None:
    from dptrain.record import metrics

    whole, refused = metrics._write, []

    def write(path: Path, end: int, data: bytes) -> int:
        if len(refused) < 2:
            refused.append(path)
            whole(path, end, data[: len(data) // 2])
            raise OSError(28, "no space")
        return whole(path, end, data)

    monkeypatch.setattr(metrics, "_write", write)
    with pytest.warns(UserWarning, match=r"could not be written .*no space.*the run goes on"):
        train(world, tmp_path / "m")
    assert [line["step"] for line in lines(tmp_path / "m")] == list(range(1, STEPS + 1)) and len(refused) == 2


def halved(optimizer: Any) -> Any:
    def change(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)

    return change


def scheduled(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))


def plateau(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)


def told_rates(path: Path) -> list[float | None]:
    return [line.get("learning_rate") for line in lines(path)]


def test_a_learning_rate_is_told_where_a_scheduler_that_counts_steps_drives_it(world: World, tmp_path: Path) -> None:
    train(world, tmp_path / "m", scheduler=scheduled)
    assert told_rates(tmp_path / "m") == pytest.approx([0.1 / n for n in range(1, STEPS + 1)])


def test_a_learning_rate_that_the_loop_sets_may_follow_from_private_rows_and_is_not_told(world: World, tmp_path: Path) -> None:
    train(world, tmp_path / "m", drive=halved)
    assert told_rates(tmp_path / "m") == [0.1] + [None] * (STEPS - 1)


def test_what_the_loop_sets_is_not_told_beside_a_scheduler_either(world: World, tmp_path: Path) -> None:
    train(world, tmp_path / "m", scheduler=scheduled, drive=lambda optimizer: lambda step: halved(optimizer)(step + 40))
    assert told_rates(tmp_path / "m") == [0.1] + [None] * (STEPS - 1)


def test_what_a_plateau_of_a_loss_sets_is_not_told(world: World, tmp_path: Path) -> None:
    train(world, tmp_path / "m", scheduler=plateau)
    assert told_rates(tmp_path / "m")[:2] == [0.1, 0.1] and told_rates(tmp_path / "m")[-1] is None


def test_a_learning_rate_that_a_loop_had_set_before_a_crash_is_not_told_behind_it(world: World, tmp_path: Path) -> None:
    """A checkpoint brings it back, so that it is what the run begins with, and no less private."""
    with pytest.raises(ZeroDivisionError):
        train(world, tmp_path / "m", drive=halved, fault=4, stepped=True)
    train(world, tmp_path / "m")
    assert told_rates(tmp_path / "m") == [0.1] + [None] * (STEPS - 1)


@pytest.mark.parametrize("wrong", [7, Metrics, {"every": 0}, {"every": True}, {}])
def test_wishes_that_say_nothing_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="METRICS"):
        if isinstance(wrong, dict):
            Metrics(**({"path": "m"} if wrong else {}) | wrong)
        elif wrong is Metrics:
            Metrics(send="print")  # type: ignore[arg-type]
        else:
            Metrics.of(wrong)


def test_a_dry_run_writes_no_line(world: World, tmp_path: Path) -> None:
    model = net()
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        how = {"layers": "layers", "metrics": tmp_path / "m", "dry_run": True}
        _, optimizer, steps = private.prepare(model, optimizer, collate, **how)
        for step in steps:
            for rows in step:
                private.backward(per_example(model, rows), rows)
            optimizer.step()
    assert not os.path.exists(tmp_path / "m")


def test_a_public_class_has_no_figure_and_numbers_are_finite(tmp_path: Path) -> None:
    public = '\n[[class]]\nname = "news"\npublic = true\nsampling_rate = {q}\ndepth = {{ from = 0.0, to = 1.0 }}\n'
    world = make_world(tmp_path, classes=one_class() + public, steps=2, rate="0.5", now=None)
    train(world, tmp_path / "m")
    for line in lines(tmp_path / "m"):
        assert not [name for name in line if name.endswith("/news")]
        assert all(math.isfinite(value) for value in line.values() if not isinstance(value, str))
