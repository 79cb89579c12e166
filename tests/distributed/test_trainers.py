"""Trainers of transformers and TRL on two processes: what they train, write, log and resume is what one process would."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from dptrain import PrivateTraining  # noqa: E402
from dptrain.blocks.shards import whole  # noqa: E402
from dptrain.errors import NotPrivateUse, RanksError  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.distributed.launched import ended, launched  # noqa: E402
from tests.integrations.scene import LENGTH, STEPS, language_model, padded, rows, run, state  # noqa: E402
from tests.integrations.words import TEXTS, tokenizer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:max_grad_norm=1 clips the release", "ignore:a step draws")


def trained(
    rank: int,
    folder: Path,
    *,
    epsilon: float | None = None,
    stop: int = 0,
    resume: bool = False,
    save: int = 100,
    sharded: bool = False,
) -> dict[str, Any]:
    """Trains a language model by a PrivateTrainer, over a run under the test key or over data of its own."""
    import warnings

    from transformers import PrinterCallback, TrainerCallback, TrainingArguments

    from dptrain.integrations.transformers import PrivateTrainer

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop |= state.global_step == stop

    args = TrainingArguments(
        str(folder / "out"), learning_rate=0.05, max_grad_norm=0.0, per_device_train_batch_size=4, num_train_epochs=2,
        logging_steps=1, save_steps=save, report_to=[], use_cpu=True, disable_tqdm=True, seed=rank,
        **(shards_on_a_processor() if sharded else {}),
    )  # fmt: skip
    data = {"private": run(folder, "run")} if epsilon is None else {"train_dataset": rows(), "target_epsilon": epsilon}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer = PrivateTrainer(
            language_model(0 if sharded else rank), args, padded,
            eval_dataset=rows(16, first=100)[::5], max_length=LENGTH, callbacks=[Stop()],
            **data,
        )  # fmt: skip
    trainer.pop_callback(PrinterCallback)
    done = trainer.train(resume_from_checkpoint=resume)
    wrapper = trainer.model_wrapped
    trainer.save_model(str(folder / "model"))
    found = {
        "step": done.global_step,
        "steps": trainer.private.policy.steps,
        "weights": {name: whole(value) for name, value in state(trainer.model).items()},
        "epsilon": trainer.private.epsilon()["own"].spent,
        "evaluated": trainer.evaluate()["eval_loss"],
        "logged": [sorted(line.keys() - {"step", "epoch"}) for line in trainer.state.log_history],
        "norms": [line["grad_norm"] for line in trainer.state.log_history if "grad_norm" in line],
        "wrapper": type(wrapper).__name__,
        "told": [str(one.message) for one in told],
    }
    if not stop and epsilon is not None:
        trainer.private.export(folder / "export")
    trainer.private.close()
    return found


def shards_on_a_processor() -> dict[str, Any]:
    """Arguments under which a Trainer shards its model by FSDP2; accelerate does that on a GPU alone, unless it is told so."""
    from accelerate.state import AcceleratorState, DistributedType

    begin = AcceleratorState.__init__

    def begun(self: Any, *given: Any, fsdp_plugin: Any = None, **others: Any) -> None:
        begin(self, *given, fsdp_plugin=fsdp_plugin, **others)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    pytest.MonkeyPatch().setattr(AcceleratorState, "__init__", begun)
    return {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}


def _sharded(rank: int, folder: Path) -> dict[str, Any]:
    return trained(rank, folder, sharded=True)


def assert_as_alone(found: list[dict[str, Any]], alone: dict[str, Any], wrapper: str) -> None:
    """Up to rounding, from the same keys."""
    assert [one["wrapper"] for one in found] == [wrapper] * len(found)
    for name, value in found[0]["weights"].items():
        assert torch.equal(value, found[1]["weights"][name]), name
        torch.testing.assert_close(value, alone["weights"][name], rtol=1e-3, atol=1e-4, msg=name)
    for one in found:
        assert (one["step"], one["epsilon"], one["logged"]) == (STEPS, alone["epsilon"], alone["logged"])
        assert one["norms"] == pytest.approx(alone["norms"], rel=1e-4) and len(one["norms"]) == STEPS
        assert one["evaluated"] == pytest.approx(alone["evaluated"], rel=1e-4)


def test_a_trainer_on_two_processes_trains_what_it_trains_on_one(tmp_path: Path) -> None:
    """Under DistributedDataParallel each process begins with other weights, which the wrapper makes those of rank 0."""
    (alone,) = launched(trained, 1, tmp_path / "one")
    assert_as_alone(launched(trained, 2, tmp_path / "two"), alone, "DistributedDataParallel")
    assert sorted(path.name for path in (tmp_path / "two" / "model").iterdir()) == sorted(
        path.name for path in (tmp_path / "one" / "model").iterdir()
    )
    assert_as_alone(launched(_sharded, 2, tmp_path / "sharded"), alone, "FSDPLlamaForCausalLM")


@pytest.mark.slow
def test_a_stopped_trainer_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    """Two processes, then one, then two: every step is taken once, and the policy is that of one process."""
    folder = tmp_path / "run"
    first = launched(_own, 2, folder, 2, False)
    assert [one["step"] for one in first] == [2, 2]
    notices = [[text for text in one["told"] if "a step draws 4 contributions" in text] for one in first]
    assert len(notices[0]) == 1 and "gradient_accumulation_steps=2" in notices[0][0] and notices[1] == []
    (second,) = launched(_own, 1, folder, 4, True)
    assert second["step"] == 4 and second["steps"] == first[0]["steps"] == 6
    third = launched(_own, 2, folder, 0, True)
    assert [one["step"] for one in third] == [6, 6] and third[0]["epsilon"] <= 8.0
    for name, value in third[0]["weights"].items():
        assert torch.equal(value, third[1]["weights"][name]), name
    audited = verify_export(folder / "export", [(folder / "out" / "private" / "ledger.pub").read_text().strip()])
    assert audited.verdict == "FULL" and not audited.findings


def _own(rank: int, folder: Path, stop: int, resume: bool, sharded: bool = False) -> dict[str, Any]:
    return trained(rank, folder, epsilon=8.0, stop=stop, resume=resume, save=2, sharded=sharded)


@pytest.mark.slow
def test_a_stopped_trainer_goes_on_under_fsdp2(tmp_path: Path) -> None:
    first = launched(_own, 2, tmp_path, 2, False, True)
    second = launched(_own, 2, tmp_path, 0, True, True)
    assert [one["step"] for one in first] == [2, 2] and [one["step"] for one in second] == [6, 6]
    assert second[0]["wrapper"] == "FSDPLlamaForCausalLM" and second[0]["epsilon"] <= 8.0
    audited = verify_export(tmp_path / "export", [(tmp_path / "out" / "private" / "ledger.pub").read_text().strip()])
    assert audited.verdict == "FULL" and not audited.findings


def _page(rank: int, folder: Path) -> tuple[int, float]:
    """Runs the script of the page as it stands, launched as the page says."""
    import os

    from tests.integrations.test_trainers_page import BLOCKS
    from tests.integrations.test_trainers_page import run as executed

    os.environ["ACCELERATE_USE_CPU"] = "true"
    os.chdir(folder)
    trainer = executed(BLOCKS[1])["trainer"]
    found = trainer.state.global_step, trainer.private.epsilon()["own"].spent
    trainer.private.close()
    return found


def test_the_script_of_the_page_trains_on_two_processes(tmp_path: Path) -> None:
    first, second = launched(_page, 2, tmp_path)
    assert first == second and first[0] == 6 and 4.0 < first[1] <= 8.0
    assert (tmp_path / "out" / "checkpoint-6" / "model.safetensors").exists()


def _own_accelerator(rank: int, folder: Path) -> None:
    """Opens a run with an accelerator that takes each process for the only one, as it does where no GPU is found."""
    from accelerate import Accelerator

    PrivateTraining.own(rows(), epochs=1, batch_size=6, directory=folder / "own", accelerator=Accelerator(), progress=False)


def _own_arguments(rank: int, folder: Path) -> None:
    """Makes a trainer of arguments that take each process for the only one."""
    from transformers import TrainingArguments

    from dptrain.integrations.transformers import PrivateTrainer

    args = TrainingArguments(str(folder / "out"), report_to=[], max_grad_norm=0.0)
    PrivateTrainer(language_model(), args, padded, rows(), target_epsilon=8.0, max_length=LENGTH)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="accelerate counts the processes of a machine with a GPU")
@pytest.mark.parametrize(("work", "repair"), [(_own_accelerator, "Accelerator(cpu=True)"), (_own_arguments, "use_cpu=True")])
def test_processes_that_take_themselves_for_the_only_one_are_refused(tmp_path: Path, work: Any, repair: str) -> None:
    for one in ended(work, 2, tmp_path):
        assert isinstance(one.error, NotPrivateUse), one.told
        assert one.error.code == "PROCESSES" and repair in one.error.sentence
    assert not list(tmp_path.rglob("ledger.db"))


def test_a_run_that_is_opened_before_there_is_a_group_is_told_what_to_make_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RanksError, match=r"NO_GROUP.*one of 2 processes.*TrainingArguments.*before the run is opened"):
        PrivateTraining.own(rows(), epochs=1, batch_size=6, directory=tmp_path / "own", progress=False)
    assert not (tmp_path / "own").exists()


def _taught(rank: int, folder: Path) -> dict[str, Any]:
    from trl import SFTConfig

    from dptrain.integrations.trl import PrivateSFTTrainer

    args = SFTConfig(
        str(folder / "out"), max_length=16, learning_rate=0.05, max_grad_norm=0.0, per_device_train_batch_size=4, bf16=False,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_steps=1,
    )  # fmt: skip
    private = run(folder, "run", TEXTS)
    trainer = PrivateSFTTrainer(language_model(rank), args, private=private, processing_class=tokenizer())
    done = trainer.train()
    found = {"step": done.global_step, "weights": state(trainer.model), "epsilon": private.epsilon()["own"].spent}
    private.close()
    return found


def test_a_trainer_of_trl_on_two_processes_trains_what_it_trains_on_one(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="trl is not installed: pip install 'dptrain[trl]'")
    (alone,) = launched(_taught, 1, tmp_path / "one")
    both = launched(_taught, 2, tmp_path / "two")
    for name, value in both[0]["weights"].items():
        assert torch.equal(value, both[1]["weights"][name]), name
        torch.testing.assert_close(value, alone["weights"][name], rtol=1e-3, atol=1e-4, msg=name)
    assert {(one["step"], one["epsilon"]) for one in both} == {(alone["step"], alone["epsilon"])}
