"""PrivateTrainer: a Trainer of transformers over a private run, from its constructor to its checkpoints."""

import copy
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from accelerate import Accelerator  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments, get_scheduler  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError, CoupledModel, LossShape, NotPrivateUse, ResumeRefused, StepOrder  # noqa: E402
from dptrain.integrations.transformers import PrivateTrainer  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.integrations.scene import LENGTH, STEPS, language_model, rows, run, same, state  # noqa: E402
from tests.worlds.trainer import opening  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:max_grad_norm=1 clips the release")

PRIVATE = {"loss", "train_loss", "total_flos", "num_input_tokens_seen"}


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    given = {
        "learning_rate": 0.05, "logging_steps": 1, "save_strategy": "no", "report_to": [], "use_cpu": True,
        "per_device_train_batch_size": 4, "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(str(folder / "out"), **given | options)


def trainer(folder: Path, name: str = "trainer", *, model: Any = None, private: Any = None, **options: Any) -> PrivateTrainer:
    own = {key: options.pop(key) for key in list(options) if key not in TrainingArguments.__dataclass_fields__}
    return PrivateTrainer(
        model=language_model() if model is None else model,
        args=arguments(folder, **options),
        private=run(folder, name) if private is None else private,
        **{"max_length": LENGTH} | own,
    )


def collated(examples: list[Any]) -> dict[str, torch.Tensor]:
    def filled(key: str, fill: int) -> torch.Tensor:
        return torch.tensor([example[key] + [fill] * (LENGTH - len(example[key])) for example in examples])

    mask = torch.tensor([[1] * len(example["labels"]) + [0] * (LENGTH - len(example["labels"])) for example in examples])
    return {"input_ids": filled("input_ids", 0), "labels": filled("labels", -100), "attention_mask": mask}


def next_token(model: Any, batch: Any) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    labels = batch["labels"][:, 1:]
    each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
    return each.sum(1) / (labels != -100).sum(1)


def plain_loop(folder: Path, name: str, model: Any = None, *, clip: float | None = 1.0) -> tuple[Any, Any]:
    """The loop of the README over the same run: the weights and the epsilon of class `own`."""
    model = language_model() if model is None else model
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.05, weight_decay=0.0, fused=True)
    schedule = get_scheduler("linear", optimizer, 0, STEPS)
    model.train()
    with run(folder, name) as private:
        _, _, steps = private.prepare(model, optimizer, collated, states=[schedule])
        loss = private.loss(next_token)
        for step in steps:
            for batch in step:
                private.backward(loss(model, batch), batch)
            if clip is not None:
                private.clip_blocks_(clip)
            optimizer.step()
            schedule.step()
        return state(model), private.epsilon()


def charged(folder: Path, name: str = "trainer") -> tuple[int, bool]:
    """Returns how many steps the ledger has charged, and whether it is closed."""
    with Ledger.open(folder / f"{name}.db", read_only=True) as log:
        return log.state.charged, log.finished


class Stop(TrainerCallback):
    """Stops a training at a step, by an exception or as callbacks do."""

    def __init__(self, step: int, error: type[BaseException] | None = None) -> None:
        self.step, self.error = step, error

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.step:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


class Seen(TrainerCallback):
    """Remembers what is logged, as a reporter does, and in which order events came."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.events: list[str] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        self.logs.append(dict(logs))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.events.append(f"epoch {state.epoch:g}")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        assert all(p.grad is not None for p in model.parameters())
        self.events.append("release")

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.events.append("end")


# --- the same run as a loop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [1.0, pytest.param(0.0, marks=pytest.mark.slow)])
def test_weights_and_epsilon_are_those_of_a_plain_loop(tmp_path: Path, clip: float) -> None:
    weights, epsilon = plain_loop(tmp_path, "loop", clip=clip or None)
    private = trainer(tmp_path, max_grad_norm=clip)
    done = private.train()
    assert same(state(private.model), weights)
    assert private.private.epsilon() == epsilon
    found = private.private.epsilon()["own"]
    assert done.global_step == STEPS and 4.0 < found.spent == found.planned <= 8.0, "some is kept for steps done again"
    assert charged(tmp_path) == (STEPS, True)
    assert private.private.prepared.isolation.told == "held"


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("given", "told"), [({}, 1), ({"max_grad_norm": 0.5}, 1), ({"max_grad_norm": 0.0}, 0)])
def test_a_clip_of_every_block_that_is_on_by_default_is_told_once(tmp_path: Path, given: dict[str, float], told: int) -> None:
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        trainer(tmp_path, **given).train()
    found = [str(item.message) for item in noticed if "max_grad_norm" in str(item.message)]
    assert len(found) == told
    assert all("every block by its own norm" in text and "max_grad_norm=0 switches this off" in text for text in found)


@pytest.mark.slow
def test_activations_may_be_computed_again(tmp_path: Path) -> None:
    weights, _ = plain_loop(tmp_path, "loop")
    private = trainer(tmp_path, gradient_checkpointing=True)
    private.train()
    assert same(state(private.model), weights)


def test_a_data_set_of_ones_own_needs_an_epsilon_alone(tmp_path: Path) -> None:
    """The steps of two epochs in batches of two times three; the arguments of the user stay as they were."""
    args = arguments(tmp_path, num_train_epochs=2, per_device_train_batch_size=2, gradient_accumulation_steps=3)
    before = copy.copy(args)
    with pytest.warns(UserWarning, match="gradient_accumulation_steps=3: a logical step sums over its own microbatches"):
        private = PrivateTrainer(language_model(), args, None, rows(), target_epsilon=4.0, max_length=LENGTH)
    policy = private.private.policy
    assert (policy.steps, policy.normalizer, policy.epoch_steps) == (4, 6, 2)
    assert private.private.opened.microbatches.contributions == 2
    assert private.train().global_step == 4
    found = private.private.epsilon()["own"]
    assert 2.0 < found.spent == found.planned <= 4.0
    assert vars(args) == vars(before)
    assert (tmp_path / "out" / "private" / "ledger.db").exists()


def test_a_noise_multiplier_may_be_given_in_the_place_of_an_epsilon(tmp_path: Path) -> None:
    private = PrivateTrainer(
        language_model(), arguments(tmp_path, max_steps=5), None, rows(), noise_multiplier=1.25, max_length=LENGTH
    )
    policy = private.private.policy
    assert [rule.noise_multiplier_micro for rule in policy.classes] == [1_250_000]
    private.private.close()
    with pytest.raises(ConfigError, match=r"OWN.*both given"):
        PrivateTrainer(language_model(), arguments(tmp_path), None, rows(), target_epsilon=8.0, noise_multiplier=1.25)


def test_steps_may_be_given_in_the_place_of_epochs(tmp_path: Path) -> None:
    private = PrivateTrainer(
        language_model(), arguments(tmp_path, max_steps=5), None, rows(), target_epsilon=4.0, max_length=LENGTH
    )
    assert private.private.policy.steps == 5
    private.private.close()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("mode", ["autocast", "pure"])
def test_half_precision_is_accepted(tmp_path: Path, mode: str) -> None:
    model = language_model(dtype=torch.bfloat16 if mode == "pure" else torch.float32)
    private = trainer(tmp_path, model=model, bf16=mode == "autocast")
    private.train()
    assert all(torch.isfinite(p).all() for p in private.model.parameters())
    assert charged(tmp_path) == (STEPS, True)


# --- what is told ------------------------------------------------------------------------------------------------------


def test_nothing_is_logged_that_follows_from_private_rows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither printed, nor given to callbacks, nor to a service that is named by report_to."""
    from transformers.integrations import integration_utils

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "dummy", Seen)
    with pytest.warns(UserWarning, match="include_num_input_tokens_seen is off"):
        private = trainer(tmp_path, report_to=["dummy"], include_num_input_tokens_seen="all")
    (seen,) = (each for each in private.callback_handler.callbacks if isinstance(each, Seen))
    done = private.train()
    logs = [*seen.logs, *private.state.log_history, done.metrics]
    assert all(PRIVATE.isdisjoint(each) for each in logs)
    assert math.isnan(done.training_loss)
    assert "loss" not in capfd.readouterr().out
    own = {"charged", "delta", "epsilon/own", "epsilon_planned/own", "noise_multiplier/own"}
    told = {name for name in seen.logs[0] if not name.startswith("noise_std/")}
    assert told == {"grad_norm", "learning_rate", "epoch"} | own
    epochs = [event for number in (1, 2, 3) for event in ("release", "release", f"epoch {number}")]
    assert seen.events == [*epochs, "end"]


def test_the_norm_that_is_logged_is_that_of_the_release(tmp_path: Path) -> None:
    seen = Seen()
    norms: list[float] = []

    class Norm(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            norms.append(math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters())))

    trainer(tmp_path, callbacks=[seen, Norm()], max_grad_norm=0.0).train()
    assert [each["grad_norm"] for each in seen.logs if "grad_norm" in each] == pytest.approx(norms, rel=1e-6)


def test_a_loss_that_logs_private_rows_is_refused(tmp_path: Path) -> None:
    class Telling(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **options: Any) -> Any:
            losses = super().compute_loss(model, inputs, *others, **options)
            self.log({"mine": float(losses.mean().detach())})
            return losses

    telling = Telling(model=language_model(), args=arguments(tmp_path), private=run(tmp_path, "trainer"), max_length=LENGTH)
    with pytest.raises(NotPrivateUse, match="LOGGED"):
        telling.train()


# --- evaluation --------------------------------------------------------------------------------------------------------


def test_public_data_are_evaluated_in_every_epoch_and_the_best_model_comes_back(tmp_path: Path) -> None:
    public = [dict(row, attention_mask=[1] * LENGTH) for row in equal_rows(100)]
    often = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    private = trainer(tmp_path, eval_dataset=public, load_best_model_at_end=True, eval_on_start=True, **often)
    private.train()
    told = [each for each in private.state.log_history if "eval_loss" in each]
    assert [each["epoch"] for each in told] == [0, 1, 2, 3]
    assert charged(tmp_path) == (STEPS, True)
    assert private.state.best_model_checkpoint is not None
    weights, _ = plain_loop(tmp_path, "loop")
    last = load_file(tmp_path / "out" / f"checkpoint-{STEPS}" / "model.safetensors")
    assert all(torch.equal(value, weights[name]) for name, value in last.items())  # evaluation changes nothing


def equal_rows(first: int) -> list[dict[str, list[int]]]:
    return [{"input_ids": [2 + (first + n + t) % 48 for t in range(LENGTH)], "labels": [2] * LENGTH} for n in range(4)]


@pytest.mark.parametrize("how", ["the same", "a copy", "part of a mapping", "one row"])
def test_evaluation_on_the_training_data_is_refused(tmp_path: Path, how: str) -> None:
    data = rows()
    public = equal_rows(100)
    private = {
        "the same": data, "a copy": copy.deepcopy(data), "part of a mapping": {"public": public, "own": rows()},
        "one row": [*public, rows()[3]],
    }[how]  # fmt: skip
    with pytest.raises(NotPrivateUse, match=r"EVALUATION.*evaluate_without_privacy"):
        trainer(tmp_path, eval_dataset=private, private=run(tmp_path, "trainer", data))
    made = trainer(tmp_path, eval_dataset=public)
    with pytest.raises(NotPrivateUse, match="EVALUATION"):
        made.evaluate(private)
    if not isinstance(private, dict):
        with pytest.raises(NotPrivateUse, match="EVALUATION"):
            made.predict(private)
    made.private.close()


def test_private_data_are_evaluated_under_a_name_that_says_so_and_told_to_the_caller_alone(tmp_path: Path) -> None:
    data = equal_rows(0) + equal_rows(20) + equal_rows(30)
    seen = Seen()
    private = trainer(tmp_path, private=run(tmp_path, "trainer", data), callbacks=[seen])
    private.train()
    before = len(seen.logs)
    assert private.evaluate_without_privacy(data)["eval_loss"] > 0
    assert len(seen.logs) == before and not any("eval_loss" in each for each in private.state.log_history)


# --- checkpoints and interruptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", ["no", pytest.param("steps", marks=pytest.mark.slow)])
def test_an_exception_costs_one_step(tmp_path: Path, save: str) -> None:
    """Raised behind step 4, in the callbacks: that step is whole, and nothing is charged in vain."""
    options = {"save_strategy": save, "save_steps": 3}
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, callbacks=[Stop(4, ZeroDivisionError)], **options).train()
    assert charged(tmp_path) == (4, False)

    class Bug(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **options: Any) -> Any:
            if self.state.global_step == 4 and not self.private.prepared.probe.active:
                raise KeyboardInterrupt
            return super().compute_loss(model, inputs, *others, **options)

    again = Bug(
        model=language_model(), args=arguments(tmp_path, **options), private=run(tmp_path, "trainer"), max_length=LENGTH
    )
    with pytest.raises(KeyboardInterrupt):
        again.train(resume_from_checkpoint=True)
    assert charged(tmp_path) == (5, False)
    last = trainer(tmp_path, **options)
    done = last.train(resume_from_checkpoint=True)
    assert done.global_step == STEPS and last.state.epoch == 3
    assert charged(tmp_path) == (STEPS + 1, True)


def test_a_stopped_run_goes_on_from_the_checkpoint_of_the_trainer(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 1}
    first = trainer(tmp_path, callbacks=[Stop(2)], **options)
    assert first.train().global_step == 2
    weights = state(first.model)
    first.private.close()
    assert charged(tmp_path) == (2, False)

    class Begins(TrainerCallback):
        def on_step_begin(self, args: Any, state_: Any, control: Any, model: Any = None, **others: Any) -> None:
            if not steps:
                assert same(state(model), weights)
            steps.append(state_.global_step)
            rates.append(second._get_learning_rate())

    steps: list[int] = []
    rates: list[float] = []
    second = trainer(tmp_path, model=language_model(seed=7), callbacks=[Begins()], **options)
    done = second.train(resume_from_checkpoint=True)
    assert steps == [2, 3, 4, 5] and done.global_step == STEPS
    assert rates == pytest.approx([0.05 * left / STEPS for left in (4, 3, 2, 1)])
    assert charged(tmp_path) == (STEPS, True)
    assert [each["step"] for each in second.state.log_history if "grad_norm" in each] == [1, 2, 3, 4, 5, 6]


TURNS = 'disclosure = "occurrences_public"\nsampling = { order = "cyclic" }\n'
GROUPS = 'disclosure = "secret_draws"\nsampling = { order = "cyclic_poisson", parameters = { groups = 3 } }\n'
BANDS = 'noise = { family = "banded_toeplitz", parameters = { bands = 3, coefficients = [1048576, 524288, 393216] } }\n'


@pytest.mark.parametrize("draws", [TURNS, pytest.param(GROUPS, marks=pytest.mark.slow)])
def test_a_stopped_run_of_correlated_noise_goes_on_with_the_noise_that_it_had(tmp_path: Path, draws: str) -> None:
    """And pays for no more; the state of the noise is there while the run is, and gone behind it."""
    world = make_world(
        tmp_path / "world", steps=STEPS, rate='"1/2"', per_class=4, policy_extra=draws + BANDS, window_steps=1,
        record=lambda seed: rows(1, seed)[0],
    )  # fmt: skip
    found = []
    for name, stops in (("whole", []), ("stopped", [3])):
        shutil.copytree(world.root, tmp_path / name)
        root = tmp_path / name
        options = {"save_strategy": "steps", "save_steps": 1, "model": language_model()}
        for stop in [*stops, None]:
            private = PrivateTraining.open(
                root / "policy.cose", root / "corpus",
                **opening(root / "run.db", insecure_test_key=b"\x35" * 32, resume=(root / "run.db").exists()),
            )  # fmt: skip
            tool = trainer(root, private=private, callbacks=[] if stop is None else [Stop(stop)], **options)
            done = tool.train(resume_from_checkpoint=bool(stops) and stop is None)
            assert done.global_step == (stop or STEPS)
            assert (root / "run.db.noise").exists() is (stop is not None)
            options["model"] = language_model(seed=7)
            private.close()
        assert charged(root, "run") == (STEPS, True)
        with Ledger.open(root / "run.db", read_only=True) as log:
            found.append(sorted(log.epsilon(name) for name in log.state.contributions))
    assert found[0] == found[1]


def test_a_checkpoint_of_the_trainer_that_the_run_never_reached_is_not_taken(tmp_path: Path) -> None:
    """The machine stopped between the two checkpoints: the run counts."""
    options = {"save_strategy": "steps", "save_steps": 1}
    first = trainer(tmp_path, callbacks=[Stop(2)], **options)
    first.train()
    first.private.close()
    (tmp_path / "out" / "checkpoint-2").rename(tmp_path / "out" / "checkpoint-5")
    second = trainer(tmp_path, **options)
    with pytest.raises(ResumeRefused, match=r"TRAINER_RESUME.*step 2"):
        second.train(str(tmp_path / "out" / "checkpoint-5"))
    assert second.train(resume_from_checkpoint=True).global_step == STEPS
    assert charged(tmp_path) == (STEPS, True)


def test_a_new_run_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    with pytest.raises(ResumeRefused, match=r"TRAINER_RESUME.*resume=True"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_run_that_is_stopped_may_be_ended(tmp_path: Path) -> None:
    private = trainer(tmp_path, callbacks=[Stop(2)])
    with pytest.raises(ConfigError, match="TRAINER"):
        private.finish()
    private.train()
    private.finish()
    assert private.private.epsilon()["own"].spent < 8.0
    assert charged(tmp_path) == (2, True)


@pytest.mark.parametrize("when", ["steps", pytest.param("epoch", marks=pytest.mark.slow)])
def test_early_stopping_ends_the_run_before_the_best_weights_are_loaded(tmp_path: Path, when: str) -> None:
    """Else the ledger would say of weights that were loaded that something else than the optimizer wrote them."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "eval_steps": 2, "save_steps": 2}
    private = trainer(
        tmp_path, eval_dataset=equal_rows(100), callbacks=[EarlyStoppingCallback(1)], eval_strategy=when, save_strategy=when,
        learning_rate=0.5, **best,
    )  # fmt: skip
    assert private.train().global_step == 4
    assert private.private.prepared.isolation.told == "held" and charged(tmp_path) == (4, True)
    assert str(private.state.best_model_checkpoint).endswith("checkpoint-2")
    best_weights = load_file(tmp_path / "out" / "checkpoint-2" / "model.safetensors")
    assert all(torch.equal(value, private.model.state_dict()[name]) for name, value in best_weights.items())


# --- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_adapter_of_peft_is_trained_saved_and_resumed(tmp_path: Path, recompute: bool) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM")
        return peft.get_peft_model(language_model(), config)

    options = {"save_strategy": "steps", "save_steps": 1, "gradient_checkpointing": recompute}
    weights, _ = plain_loop(tmp_path, "loop", adapted())
    first = trainer(tmp_path, model=adapted(), callbacks=[Stop(2)], **options)
    first.train()
    first.private.close()
    assert (tmp_path / "out" / "checkpoint-2" / "adapter_model.safetensors").exists()
    second = trainer(tmp_path, model=adapted(), **options)
    second.train(resume_from_checkpoint=True)
    assert charged(tmp_path) == (STEPS, True)
    whole = trainer(tmp_path, "whole", model=adapted(), gradient_checkpointing=recompute)
    whole.train()
    assert same(state(whole.model), weights)


def test_a_classifier_is_trained_by_the_loss_of_transformers(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=16,
    )  # fmt: skip
    data = [{"input_ids": row["input_ids"], "label": number % 3, "text": "dropped"} for number, row in enumerate(rows())]
    private = trainer(tmp_path, model=BertForSequenceClassification(config), private=run(tmp_path, "trainer", data))
    private.train()
    assert charged(tmp_path) == (STEPS, True)


def test_the_mean_over_tokens_is_that_of_an_example_alone() -> None:
    from dptrain.integrations.losses import losses_of

    model = language_model().eval()
    batch = collated(rows(4))
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    found = losses_of(model, model(**inputs), batch["labels"])
    alone = [model(**{key: value[n : n + 1] for key, value in batch.items()}).loss for n in range(4)]
    assert found.tolist() == pytest.approx([each.item() for each in alone], rel=1e-5)


def test_a_model_or_loss_without_one_number_per_example_is_refused(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForQuestionAnswering

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    with pytest.raises(ConfigError, match=r"LOSS.*compute_loss_func"):
        trainer(tmp_path, model=LlamaForQuestionAnswering(config)).train()
    with pytest.raises(LossShape):
        trainer(tmp_path, "scalar", compute_loss_func=lambda outputs, labels, **_: outputs.logits.mean()).train()
    one = trainer(tmp_path, "one", compute_loss_func=lambda outputs, labels, **_: outputs.logits.float().mean((1, 2)))
    assert one.train().global_step == STEPS


# --- wrong uses --------------------------------------------------------------------------------------------------------


def test_arguments_that_say_nothing_of_a_run_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    with pytest.raises(ConfigError, match=r"TRAINER.*none.*target_epsilon"):
        PrivateTrainer(language_model(), args, None, rows())
    private = run(tmp_path, "trainer")
    with pytest.raises(ConfigError, match=r"TRAINER.*two of them"):
        PrivateTrainer(language_model(), args, None, rows(), target_epsilon=8.0, private=private)
    with pytest.raises(ConfigError, match=r"TRAINER.*one with noise_multiplier=; give .*whose policy says the noise"):
        PrivateTrainer(language_model(), args, noise_multiplier=1.0, private=private)
    with pytest.raises(ConfigError, match=r"TRAINER.*max_steps is 3.*6 steps"):
        PrivateTrainer(language_model(), arguments(tmp_path, max_steps=3), private=private)
    with pytest.raises(NotPrivateUse, match="RETRIES"):
        PrivateTrainer(language_model(), arguments(tmp_path, auto_find_batch_size=True), private=private)
    private.close()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("fsdp", True, "ENGINE.*set up for FSDP of version 1.*DistributedDataParallel"),
        ("deepspeed", {"zero_optimization": {}}, "ENGINE.*set up for DeepSpeed.*DistributedDataParallel"),
        ("_n_gpu", 2, "PROCESSES.*2 devices.*nn.DataParallel.*one process a device"),
    ],
)
def test_an_engine_that_reduces_before_the_clip_is_refused_by_name(tmp_path: Path, name: str, value: object, told: str) -> None:
    args = arguments(tmp_path)
    setattr(args, name, value)
    with pytest.raises(NotPrivateUse, match=told):
        PrivateTrainer(language_model(), args, None, rows(), target_epsilon=8.0)
    assert not (tmp_path / "out" / "private").exists()


def test_an_engine_of_accelerate_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file of `accelerate config` sets it where there are several GPUs, behind the back of the arguments."""
    made = PrivateTrainer.create_accelerator_and_postprocess

    def sharding(self: PrivateTrainer) -> None:
        made(self)
        monkeypatch.setattr(type(self.accelerator), "distributed_type", "FSDP")  # of version 1, as `is_fsdp2` says

    monkeypatch.setattr(PrivateTrainer, "create_accelerator_and_postprocess", sharding)
    monkeypatch.setattr(Accelerator, "is_fsdp2", False)
    with pytest.raises(NotPrivateUse, match=r"ENGINE.*accelerate runs FSDP"), run(tmp_path, "trainer") as private:
        trainer(tmp_path, private=private)


def test_rows_of_unequal_length_ask_for_a_length(tmp_path: Path) -> None:
    with pytest.raises(CoupledModel, match=r"PADDING.*max_length="):
        trainer(tmp_path, max_length=None, private=run(tmp_path, "trainer", rows()), data_collator=ragged).train()


def ragged(examples: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(example["labels"]) for example in examples)
    return {
        key: torch.tensor([example[key] + [0] * (longest - len(example[key])) for example in examples])
        for key in ("input_ids", "labels")
    }


def test_a_script_that_is_run_again_after_its_end_is_told_so(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.train()
    first.private.close()
    with pytest.raises(ResumeRefused, match=r"TRAINER_FINISHED.*another output_dir"):
        trainer(tmp_path).train()


def test_training_twice_on_one_run_is_refused(tmp_path: Path) -> None:
    private = trainer(tmp_path)
    private.train()
    with pytest.raises(StepOrder, match="PREPARED_TWICE"):
        private.train()


def test_a_search_over_private_runs_is_refused(tmp_path: Path) -> None:
    private = trainer(tmp_path)
    with pytest.raises(NotPrivateUse, match=r"SEARCH.*earlier="):
        private.hyperparameter_search(n_trials=2)
    private.private.close()


# --- the plain trainer -------------------------------------------------------------------------------------------------


def prepared(folder: Path) -> tuple[Any, Any]:
    model = language_model()
    private = run(folder, "trainer")
    _, _, steps = private.prepare(model, torch.optim.AdamW(model.parameters()), collated)
    return private, steps


def test_a_plain_trainer_over_a_prepared_model_says_what_to_use(tmp_path: Path) -> None:
    from transformers import Trainer

    private, steps = prepared(tmp_path)
    with pytest.raises(NotPrivateUse, match=r"OUTSIDE_BACKWARD.*PrivateTrainer.*PrivateSFTTrainer"):
        Trainer(private.prepared.model, arguments(tmp_path), train_dataset=equal_rows(0)).train()
    with pytest.raises(StepOrder, match=r"STEPS_IN_ORDER.*PrivateTrainer"):
        Trainer(private.prepared.model, arguments(tmp_path), train_dataset=steps).train()
    private.close()


def test_a_prepared_model_is_evaluated_and_copied_as_any_other(tmp_path: Path) -> None:
    private, _ = prepared(tmp_path)
    model, batch = private.prepared.model, {key: value for key, value in collated(rows(2)).items()}
    for mode in (model.eval(), model.train()):
        with torch.no_grad():
            assert not mode(**batch).loss.requires_grad
    assert not model.eval()(**batch).loss.requires_grad
    twin = copy.deepcopy(model).train()
    assert not twin(**batch).loss.requires_grad
    private.close()
    model.train()(**batch).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
