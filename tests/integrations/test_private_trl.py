"""PrivateSFTTrainer, PrivateDPOTrainer and PrivateRewardTrainer, and what becomes of every other trainer of TRL."""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl", reason="trl is not installed: pip install 'dptrain[trl]'")
from datasets import Dataset  # noqa: E402
from transformers import LlamaConfig, LlamaForSequenceClassification, TrainerCallback  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError, NotPrivateUse  # noqa: E402
from dptrain.integrations import trl as integration  # noqa: E402
from dptrain.integrations.coupled import CAUSES  # noqa: E402
from dptrain.integrations.trainer import Examples, PrivateRun  # noqa: E402
from dptrain.integrations.transformers import PrivateTrainer  # noqa: E402
from dptrain.integrations.trl import PrivateDPOTrainer, PrivateRewardTrainer, PrivateSFTTrainer  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.integrations.scene import language_model, run, same, state  # noqa: E402
from tests.integrations.words import COMPLETIONS, PAIRS, TEXTS, tokenizer  # noqa: E402

LENGTH = 24


def settings(kind: Any, folder: Path, **options: Any) -> Any:
    given = {
        "max_length": LENGTH, "learning_rate": 0.05, "logging_steps": 1, "save_strategy": "no", "report_to": [],
        "per_device_train_batch_size": 4, "num_train_epochs": 2, "bf16": False, "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return kind(str(folder / "out"), **given | options)


def sft(folder: Path, data: Any = None, *, model: Any = None, given: dict[str, Any] | None = None, **options: Any) -> Any:
    source = given or {"train_dataset": Dataset.from_list(data or TEXTS), "target_epsilon": 8.0}
    extra = {key: options.pop(key) for key in list(options) if key in ("eval_dataset", "peft_config", "callbacks")}
    return PrivateSFTTrainer(
        language_model() if model is None else model,
        settings(trl.SFTConfig, folder, **options),
        processing_class=tokenizer(),
        **source,
        **extra,
    )


def reward_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0,
        num_labels=1,
    )  # fmt: skip
    return LlamaForSequenceClassification(config)


# --- supervised fine-tuning --------------------------------------------------------------------------------------------


def test_texts_are_trained_within_the_target_and_nothing_of_them_is_logged(tmp_path: Path) -> None:
    trainer = sft(tmp_path, eval_dataset=Dataset.from_list([{"text": "good bye"}]), eval_strategy="epoch")
    done = trainer.train()
    assert done.global_step == trainer.private.policy.steps == 6
    assert 4.0 < trainer.private.epsilon()["own"].spent <= 8.0
    trained = [each for each in trainer.state.log_history if "grad_norm" in each]
    assert len(trained) == 6 and all(each.keys() >= {"grad_norm", "learning_rate", "epoch", "step"} for each in trained)
    run = {"charged", "delta", "epsilon/own", "epsilon_planned/own", "noise_multiplier/own"}
    others = {name for each in trained for name in each if not name.startswith("noise_std/")}
    assert others == {"grad_norm", "learning_rate", "epoch", "step"} | run
    told = [each for each in trainer.state.log_history if "eval_loss" in each]
    assert len(told) == 2 and "eval_mean_token_accuracy" in told[0]


def test_it_is_the_run_of_a_plain_trainer_over_the_tokens(tmp_path: Path) -> None:
    """TRL prepares each contribution; what is left is `PrivateTrainer`, which is held to the plain loop."""
    private = sft(tmp_path, given={"private": run(tmp_path, "sft", TEXTS)}, gradient_checkpointing=False)
    private.train()
    ids = tokenizer()
    tokens = {text["text"]: ids(text["text"])["input_ids"] + [ids.eos_token_id] for text in TEXTS}

    class Tokens(PrivateTrainer):
        def _decode(self) -> Any:
            def decoded(content: bytes) -> list[Any]:
                (record,) = self.private.opened.decode(content)
                return [{"input_ids": tokens[record["text"]], "labels": tokens[record["text"]]}]

            return decoded

    plain = Tokens(
        language_model(), settings(trl.SFTConfig, tmp_path), processing_class=ids, private=run(tmp_path, "plain", TEXTS),
        max_length=LENGTH,
    )  # fmt: skip
    plain.train()
    assert same(state(private.model), state(plain.model))


def test_a_prompt_is_not_trained_on_and_what_trl_drops_adds_nothing(tmp_path: Path) -> None:
    """A prompt that fills all of the length leaves nothing to train on; TRL leaves such rows out."""
    long = {"prompt": "a" * LENGTH, "completion": "b"}
    trainer = sft(tmp_path, [*COMPLETIONS, long])
    rows = list(trainer._rows.values())
    assert len(rows) == 13 and rows[-1] == [{"input_ids": [0], "labels": [-100]}]
    assert rows[0][0]["labels"][:4] == [-100] * 4 and rows[0][0]["labels"][4:] == rows[0][0]["input_ids"][4:]
    with torch.no_grad():
        dropped = trainer._collate()([rows[-1][0], rows[0][0]])
        losses = trainer.compute_loss(trainer.model, Examples(dropped))
    assert losses[0] == 0 and losses[1] > 0
    trainer.private.close()


def test_contributions_of_others_are_prepared_by_trl(tmp_path: Path) -> None:
    """A corpus of signed contributions, several examples in one."""
    policy = PrivateTraining.own(TEXTS, epochs=3, batch_size=6, directory=tmp_path / "policy", progress=False)
    policy.close()
    records = [[{"text": "one"}, {"text": "two"}] if k == 0 else {"text": "hello w" + "o" * k} for k in range(12)]
    text = (tmp_path / "policy" / "policy.toml").read_text().replace("[gate]", "[gate]\nmax_examples = 2")
    private = PrivateTraining.one_owner(tmp_path / "others", text, {"own": records}, progress=False)
    trainer = sft(tmp_path, given={"private": private})
    assert [len(rows) for rows in trainer._rows.values()] == [2] + [1] * 11
    assert trainer.train().global_step == 6


def test_an_adapter_is_trained_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step == 2

    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    options = {"save_strategy": "steps", "save_steps": 1, "peft_config": config}
    first = sft(tmp_path, callbacks=[Stop()], **options)
    assert first.train().global_step == 2
    first.private.close()
    second = sft(tmp_path, **options)
    assert second.train(resume_from_checkpoint=True).global_step == 6
    with Ledger.open(tmp_path / "out" / "private" / "ledger.db", read_only=True) as log:
        assert log.finished and log.state.charged == 6


def test_dynamic_fine_tuning_weighs_each_token_by_its_probability(tmp_path: Path) -> None:
    trainer = sft(tmp_path, loss_type="dft")
    batch = trainer._collate()([rows[0] for rows in list(trainer._rows.values())[:1]])
    model = trainer.model.eval()
    with torch.no_grad():
        ours = trainer.compute_loss(model, Examples(batch))
        theirs = super(PrivateRun, trainer).compute_loss(model, dict(batch))
    assert ours.tolist() == pytest.approx([theirs.item()], rel=1e-5)
    trainer.private.close()


@pytest.mark.parametrize("asked", [{"packing": True}, {"padding_free": True, "max_length": None}])
def test_rows_of_several_contributions_are_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(NotPrivateUse, match=r"PACKING.*packing=False"):
        sft(tmp_path, **asked)


def test_evaluation_on_the_training_texts_is_refused_before_and_after_they_are_prepared(tmp_path: Path) -> None:
    with pytest.raises(NotPrivateUse, match="EVALUATION"):
        sft(tmp_path, eval_dataset=Dataset.from_list([{"text": "good bye"}, TEXTS[3]]))
    trainer = sft(tmp_path)
    with pytest.raises(NotPrivateUse, match="EVALUATION"):
        trainer.evaluate(Dataset.from_list(TEXTS))
    public = Dataset.from_list([{"text": "good bye"}])
    alone = trainer.evaluate(public)
    assert trainer.evaluate_without_privacy(Dataset.from_list(TEXTS))["eval_loss"] > 0
    told = [each for each in trainer.state.log_history if "eval_loss" in each]
    assert len(told) == 1 and "evaluate" not in str(told)
    again = trainer.evaluate(public)  # nothing of the private figures comes along
    assert again["eval_loss"] == alone["eval_loss"] and again.keys() == alone.keys()
    assert trainer.state.log_history[-1]["eval_entropy"] == told[0]["eval_entropy"]
    trainer.private.close()


# --- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["sigmoid", "hinge", "ipo"])
def test_the_loss_of_a_pair_is_that_of_trl(tmp_path: Path, loss: str) -> None:
    args = settings(trl.DPOConfig, tmp_path, loss_type=[loss])
    trainer = PrivateDPOTrainer(
        language_model(), language_model(1), args, train_dataset=Dataset.from_list(PAIRS), processing_class=tokenizer(),
        target_epsilon=8.0,
    )  # fmt: skip
    trainer._decode()
    rows = [rows[0] for rows in trainer._rows.values()][:3]
    model = trainer.model.eval()
    with torch.no_grad():
        ours = trainer.compute_loss(model, Examples(trainer._collate()(rows)))
        theirs = [super(PrivateRun, trainer).compute_loss(model, trainer.data_collator([row])).item() for row in rows]
    assert ours.tolist() == pytest.approx(theirs, rel=1e-4)
    assert trainer.train().global_step == 6
    assert all("rewards/margins" not in each for each in trainer.state.log_history)


def test_an_adapter_is_its_own_reference_when_it_is_off(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = PrivateDPOTrainer(
        language_model(), args=settings(trl.DPOConfig, tmp_path), train_dataset=Dataset.from_list(PAIRS),
        processing_class=tokenizer(), target_epsilon=8.0, peft_config=config,
    )  # fmt: skip
    assert trainer.train().global_step == 6


def test_a_reward_model_learns_from_pairs_by_the_loss_of_trl(tmp_path: Path) -> None:
    margins = [dict(pair, margin=0.1 * k) for k, pair in enumerate(PAIRS)]
    args = settings(trl.RewardConfig, tmp_path, center_rewards_coefficient=0.1)
    trainer = PrivateRewardTrainer(
        reward_model(), args, train_dataset=Dataset.from_list(margins), processing_class=tokenizer(), target_epsilon=8.0
    )
    rows = [rows[0] for rows in trainer._rows.values()][:3]
    model = trainer.model.eval()
    with torch.no_grad():
        ours = trainer.compute_loss(model, Examples(trainer._collate()(rows)))
        theirs = [super(PrivateRun, trainer).compute_loss(model, trainer.data_collator([row])).item() for row in rows]
    assert ours.tolist() == pytest.approx(theirs, rel=1e-4)
    assert trainer.train().global_step == 6
    assert all("accuracy" not in each for each in trainer.state.log_history)


@pytest.mark.parametrize("asked", [{"loss_type": ["robust"]}, {"precompute_ref_log_probs": True}, {"ld_alpha": 0.5}])
def test_losses_of_pairs_that_are_not_there_are_refused_by_name(tmp_path: Path, asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"TRAINER: {next(iter(asked))} is .*sigmoid, hinge, ipo"):
        PrivateDPOTrainer(
            language_model(), args=settings(trl.DPOConfig, tmp_path, **asked), train_dataset=Dataset.from_list(PAIRS),
            processing_class=tokenizer(), target_epsilon=8.0,
        )  # fmt: skip


# --- every other trainer -----------------------------------------------------------------------------------------------


def trainers_of_trl() -> set[str]:
    """Names of all trainers in the installed TRL, those of its experimental modules too."""
    found = {name for name in dir(trl) if name.endswith("Trainer")}
    for module in pkgutil.walk_packages(trl.experimental.__path__, "trl.experimental."):
        if module.name.rsplit(".", 1)[-1].endswith("_trainer"):
            source = Path(importlib.util.find_spec(module.name).origin).read_text(encoding="utf-8")
            found |= {line.split("(")[0].removeprefix("class ") for line in source.splitlines() if line.startswith("class ")}
    return {name for name in found if name.endswith("Trainer") and not name.startswith("_")}


def test_every_trainer_of_trl_is_private_or_refused_with_a_cause() -> None:
    private = {name.removeprefix("Private") for name in vars(integration) if name.startswith("Private")}
    assert {"SFTTrainer", "DPOTrainer", "RewardTrainer"} <= private
    left = {name for name in trainers_of_trl() - private if name not in CAUSES}
    assert left == set(), "say in dptrain/integrations/coupled.py what becomes of these"


@pytest.mark.parametrize("name", ["KTOTrainer", "ORPOTrainer", "GRPOTrainer", "PPOTrainer", "RLOOTrainer"])
def test_a_trainer_that_couples_contributions_is_refused_by_its_private_name(name: str) -> None:
    with pytest.raises(NotPrivateUse, match=rf"COUPLED_TRAINER: {name} has no private form: .*PrivateDPOTrainer"):
        importlib.import_module("dptrain.integrations.trl").__getattr__(f"Private{name}")
    with pytest.raises(NotPrivateUse, match="COUPLED_TRAINER"):
        exec(f"from dptrain.integrations.trl import Private{name}")


def test_a_trainer_that_couples_contributions_cannot_be_made_private_by_hand() -> None:
    with pytest.raises(NotPrivateUse, match="COUPLED_TRAINER: GRPOTrainer"):
        type("Mine", (PrivateRun, trl.GRPOTrainer), {})
