"""A Trainer reports public numbers to TensorBoard, W&B and any other service, at times that tell nothing of draws."""

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import TrainerCallback, TrainingArguments  # noqa: E402

from dptrain import Metrics, Microbatches, NoiseSource, PrivateTraining  # noqa: E402
from dptrain.data.items import decode_item, encode_item  # noqa: E402
from dptrain.engine.one_owner import owners_policy  # noqa: E402
from dptrain.integrations import coupled  # noqa: E402
from dptrain.integrations.transformers import PrivateTrainer  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.integrations.scene import KEY, LENGTH, STEPS, language_model, rows, run  # noqa: E402
from tests.integrations.test_private_trainer import collated, equal_rows, next_token  # noqa: E402

PUBLIC = {
    "grad_norm", "learning_rate", "epoch", "charged", "delta", "epsilon/own", "epsilon_planned/own", "noise_multiplier/own",
}  # fmt: skip
"""Beside ``noise_std/BLOCK``."""


class Service(TrainerCallback):
    """Stands for a service: takes what is logged, and notes how far the ledger had settled the run by then."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.taken: list[tuple[int, dict[str, Any]]] = []
        self.open_windows: list[bool] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.taken.append((state.global_step, dict(logs)))
        with Ledger.open(self.ledger, read_only=True) as log:
            self.open_windows.append(log.state.open_window is not None)


def trainer(folder: Path, *, report_to: str = "none", own: Any = None, **options: Any) -> PrivateTrainer:
    given = {"use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no", "learning_rate": 0.05}
    settings = {name: options.pop(name) for name in list(options) if name in TrainingArguments.__dataclass_fields__}
    args = TrainingArguments(output_dir=str(folder / "out"), report_to=report_to, **given | settings)
    private = own or run(folder, "trainer")
    return PrivateTrainer(language_model(), args, private=private, max_length=LENGTH, **options)


def is_public(logs: dict[str, Any]) -> bool:
    return all(name in PUBLIC or name.startswith("noise_std/") for name in logs)


def test_a_service_gets_public_numbers_of_every_step_while_no_window_is_open(tmp_path: Path) -> None:
    service = Service(tmp_path / "trainer.db")
    private = trainer(tmp_path, callbacks=[service], metrics=tmp_path / "m")
    private.train()
    steps, logs = zip(*service.taken, strict=True)
    assert list(steps) == [*range(1, STEPS + 1), STEPS] and logs[-1].keys() == {"epoch"}
    assert not any(service.open_windows)
    found = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    for told, line in zip(logs[:-1], found, strict=True):
        assert told.keys() >= PUBLIC and is_public(told)
        assert all(told[name] == value for name, value in line.items() if name in told)
    assert logs[STEPS - 1]["epsilon/own"] == private.private.epsilon()["own"].spent
    assert [each["step"] for each in private.state.log_history] == list(steps)
    assert [each["epoch"] for each in logs[:STEPS]] == pytest.approx([step / 2 for step in range(1, STEPS + 1)])


def test_the_pace_is_told_where_occurrences_are_public(tmp_path: Path) -> None:
    """Logs come with their steps then, and the run time at the end."""
    text = owners_policy(12, target_epsilon=50.0, epochs=2, batch_size=6, delta=None, clip_norm=1.0, corpus="own")
    policy = text.replace("steps =", 'disclosure = "occurrences_public"\nsteps =', 1)
    own = PrivateTraining.one_owner(
        tmp_path / "own", policy, {"own": [encode_item(row) for row in rows()]}, ledger=tmp_path / "trainer.db",
        noise=NoiseSource(insecure_test_key=KEY), microbatches=Microbatches(4), progress=False,
    )  # fmt: skip
    service = Service(tmp_path / "trainer.db")
    own.opened = replace(own.opened, decode=decode_item)
    private = trainer(tmp_path, callbacks=[service], own=own)
    private.train()
    assert service.open_windows[0] and "train_runtime" in service.taken[-1][1]
    assert all(is_public(logs) for _, logs in service.taken[:-1])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", ["stop", "raise", "save"])
def test_what_was_held_back_is_told_when_a_training_ends_or_saves(tmp_path: Path, how: str) -> None:
    class Fault(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 3:
                if how == "raise":
                    raise KeyboardInterrupt
                control.should_training_stop = how == "stop"
                control.should_save = how == "save"

    service = Service(tmp_path / "trainer.db")
    private = trainer(tmp_path, callbacks=[service, Fault()])
    try:
        private.train()
    except KeyboardInterrupt:
        assert how == "raise"
    steps = [step for step, _ in service.taken]
    assert steps[: 2 if how == "raise" else 3] == [1, 2, 3][: 2 if how == "raise" else 3]
    if how == "save":
        state = json.loads((tmp_path / "out" / "checkpoint-3" / "trainer_state.json").read_text())
        assert [each["step"] for each in state["log_history"]] == [1, 2, 3]


def test_an_evaluation_without_privacy_in_the_middle_of_a_window_reaches_no_service(tmp_path: Path) -> None:
    """Neither when it is made nor when the window is settled."""

    class Asks(TrainerCallback):
        found: dict[str, float] | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 2:
                assert private.private.prepared.in_window
                self.found = private.evaluate_without_privacy(equal_rows(0))

    service, asks = Service(tmp_path / "trainer.db"), Asks()
    private = trainer(tmp_path, callbacks=[service, asks])
    private.train()
    assert asks.found is not None and "eval_loss" in asks.found
    assert [step for step, _ in service.taken] == [*range(1, STEPS + 1), STEPS]
    assert not [name for _, logs in service.taken for name in logs if name.startswith("eval")]
    assert not [name for each in private.state.log_history for name in each if name.startswith("eval")]


def test_what_reports_by_itself_is_kept_from_telling_the_pace(tmp_path: Path, monkeypatch) -> None:
    for name in coupled.PACE:
        monkeypatch.delenv(name, raising=False)
    args = TrainingArguments(output_dir=str(tmp_path), report_to=["wandb"], use_cpu=True)
    coupled.hide_pace(args)
    assert {name: os.environ[name] for name in coupled.PACE} == coupled.PACE
    monkeypatch.setenv("WANDB_CONSOLE", "wrap")
    coupled.hide_pace(args)
    assert os.environ["WANDB_CONSOLE"] == "wrap", "what the user says stays"


def test_event_files_of_tensorboard_have_public_numbers_alone(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    private = trainer(tmp_path, report_to="tensorboard")
    private.train()
    read = EventAccumulator(str(tmp_path / "events"))
    read.Reload()
    names = {name.removeprefix("train/") for name in read.Tags()["scalars"]}
    assert names >= PUBLIC and is_public(dict.fromkeys(names))
    figures = read.Scalars("train/epsilon/own")
    assert [event.step for event in figures] == list(range(1, STEPS + 1))
    assert figures[-1].value == pytest.approx(private.private.epsilon()["own"].spent, rel=1e-6)


def records_of(data: bytes) -> Iterator[bytes]:
    """Yields the records of an offline run: behind a head of seven bytes the log of LevelDB, in blocks of 32 KiB."""
    assert data[:4] == b":W&B"
    at, parts = 7, []
    while at + 7 <= len(data):
        if (left := -at % 32768) and left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or at + 7 + size > len(data):
            return
        parts.append(data[at + 7 : at + 7 + size])
        at += 7 + size
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_offline_run_of_wandb_has_public_numbers_alone(tmp_path: Path, monkeypatch) -> None:
    """Neither a loss, nor the load of the machine, nor what a terminal showed."""
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in coupled.PACE:
        monkeypatch.delenv(name, raising=False)
    private = trainer(tmp_path, report_to="wandb", run_name="own")
    private.train()
    wandb.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = [wandb_internal_pb2.Record()]
    end = time.monotonic() + 60
    while records[-1].WhichOneof("record_type") != "exit" and time.monotonic() < end:  # another process writes the file
        time.sleep(0.1)
        found = [wandb_internal_pb2.Record.FromString(data) for data in records_of(file.read_bytes())]
        records = found or records
    kinds, names, figures = {record.WhichOneof("record_type") for record in records}, set(), []
    for record in records:
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        names |= {name.removeprefix("train/") for name in items if not name.startswith("_")}
        figures += [value for name, value in items.items() if name == "train/epsilon/own"]
    assert "exit" in kinds and kinds.isdisjoint({"stats", "output", "output_raw"})
    assert names >= PUBLIC and is_public(dict.fromkeys(names - {"global_step"}))
    assert len(figures) == STEPS and figures[-1] == private.private.epsilon()["own"].spent


def test_a_plain_loop_hands_its_numbers_to_any_logger(tmp_path: Path) -> None:
    """The lines of docs/operating.md, with a writer in the place of TensorBoard's."""
    written: list[tuple[str, float, int]] = []

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

    example = send_of_the_page()
    scope: dict[str, Any] = {"writer": Writer()}
    exec(example, scope)
    send: Callable[[dict[str, Any]], object] = scope["to_tensorboard"]
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    with run(tmp_path, "loop") as private:
        _, _, steps = private.prepare(model, optimizer, collated, metrics=Metrics(tmp_path / "m", send=send))
        for step in steps:
            for batch in step:
                private.backward(next_token(model, batch), batch)
            optimizer.step()
    lines = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    assert [value for name, value, _ in written if name == "epsilon/own"] == [line["epsilon/own"] for line in lines]
    assert all(isinstance(value, int | float) for _, value, _ in written)


def send_of_the_page() -> str:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text(encoding="utf-8")
    return next(code for code in page.split("```python\n")[1:] if "def to_tensorboard" in code).split("```")[0]
