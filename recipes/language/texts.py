"""Holds what the recipes for language models share: the model, rows of tokens, loss, and a look at the outcome.

A record is ``{"prompt": ..., "completion": ...}``. The model learns the completion.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain.blocks.forwards import Forwards
from dptrain.engine.private_training import PrivateTraining
from dptrain.errors import ConfigError
from dptrain.integrations.losses import IGNORED, losses_of
from dptrain.programs import launched_rank
from dptrain.tasks.classification import first_line, local_or_named
from dptrain.tasks.runconfig import Location, RunConfig
from dptrain.tasks.runs import Outcome, WithoutPrivacy, conclude
from dptrain.train import print_outcome


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A causal language model with LoRA.

    Attributes:
        name: hub id. path: directory of a local model, instead of a name.
        max_length: tokens of prompt and completion; shorter rows are padded, longer ones cut.
        rank: of the update of each weight. alpha: scales it. targets: modules that have one.
        adapters: names, for a policy whose classes train an adapter of their own each.
    """

    name: str | None = None
    path: Path | None = None
    max_length: int = 128
    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    adapters: tuple[str, ...] = ("default",)
    layers: str | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise ConfigError("RUN_VALUE", "model has both name and path, or none; expected one: a hub id, or a directory")
        if min(self.max_length - 1, self.rank, self.alpha, len(self.targets), len(self.adapters)) < 1:
            raise ConfigError("RUN_VALUE", "[model] has a number below 1, max_length below 2, or no targets or adapters")


MODELS = {"language": LanguageModel}


def arguments(what: str, **options: str) -> argparse.Namespace:
    """Reads the command line that the programs share.

    Args:
        what: says what the program does. options: further switches, and what each does.
    """
    parser = argparse.ArgumentParser(description=what.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="RUN.toml")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a local model in the place of the run file's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for ledger, model and export, in the place of the run file's")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    for name, help_text in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=help_text)
    return parser.parse_args()


def load(path: str | Path, model: Path | None = None, out: Path | None = None) -> RunConfig:
    """Reads a run file; a local model, and another folder for what the run leaves, may take the place of those in it."""
    config = RunConfig.load(path, models=MODELS)
    if model is not None:
        config = replace(config, model=replace(config.model, name=None, path=model))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        config = replace(config, run=replace(config.run, ledger=Location(str(out / "ledger.db")), output=out))
    return config


@dataclass(frozen=True)
class Rows:
    """Records to tokens, each row of exactly ``max_length``: padding to the longest of a batch would couple contributions."""

    tokenizer: Any
    max_length: int

    def __call__(self, examples: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = [self._row(example) for example in examples]
        return {key: torch.tensor([row[key] for row in rows]) for key in ("input_ids", "attention_mask", "labels")}

    def _row(self, example: Any) -> dict[str, list[int]]:
        try:
            prompt, text = example["prompt"], example["prompt"] + example["completion"] + self.tokenizer.eos_token
        except (KeyError, TypeError):
            raise ConfigError("EXAMPLE", "an example has no texts 'prompt' and 'completion'; expected both") from None
        given = len(self.tokenizer(prompt)["input_ids"])
        ids = self.tokenizer(text)["input_ids"][: self.max_length]
        empty = self.max_length - len(ids)
        return {
            "input_ids": ids + [self.tokenizer.pad_token_id] * empty,
            "attention_mask": [1] * len(ids) + [0] * empty,
            "labels": [IGNORED] * min(given, len(ids)) + ids[given:] + [IGNORED] * empty,
        }

    def save(self, directory: Path) -> None:
        """Writes the tokenizer beside the model."""
        self.tokenizer.save_pretrained(directory)


def build(config: LanguageModel) -> tuple[nn.Module, Rows]:
    """Loads the model and adds its adapters, all of which are active.

    Raises:
        ConfigError: code MODEL, it cannot be loaded, or has no such modules.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = local_or_named(config.path, config.name)
    lora = LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=list(config.targets), task_type="CAUSAL_LM")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), lora, config.adapters[0])
    except (OSError, ValueError) as error:
        raise ConfigError("MODEL", f"cannot load or adapt the model {source!r}: {first_line(error)}") from error
    for name in config.adapters[1:]:
        model.add_adapter(name, lora)
    model.base_model.set_adapter(list(config.adapters))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # what pads is neither attended to nor learnt
    return model.train(), Rows(tokenizer, config.max_length)


def per_example_loss(model: nn.Module, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the mean over the tokens of each completion, shape (B,)."""
    return losses_of(model, model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]), rows["labels"])


@torch.no_grad()
def loss_per_token(model: nn.Module, collate: Rows, examples: Sequence[Any], batch: int = 32) -> float | None:
    """Returns the mean over the completions of PUBLIC examples, None without any; over contributions it would need noise."""
    if not examples:
        return None
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    found = [
        per_example_loss(model, {key: value.to(device) for key, value in collate(examples[begin : begin + batch]).items()})
        for begin in range(0, len(examples), batch)
    ]
    model.train(was_training)
    return float(torch.cat(found).mean())


@torch.no_grad()
def written(model: nn.Module, collate: Rows, prompt: str, tokens: int = 60) -> str:
    """Returns what a model writes to a public prompt, the likeliest token each time."""
    device, was_training = next(model.parameters()).device, model.training
    rows = collate.tokenizer(prompt, return_tensors="pt").to(device)
    how = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": collate.tokenizer.pad_token_id}
    ids = model.eval().generate(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], **how)
    model.train(was_training)
    text: str = collate.tokenizer.decode(ids[0, rows["input_ids"].shape[1] :], skip_special_tokens=True)
    return " ".join(text.split())


def settings(config: RunConfig) -> dict[str, Any]:
    """Returns what a run file says as arguments of a Trainer; steps and draws are the policy's."""
    run, optimizer = config.run, config.optimizer
    return {
        "output_dir": str(run.output / "trainer"),
        "per_device_train_batch_size": run.microbatch,
        "optim": {"adamw": "adamw_torch", "sgd": "sgd"}[optimizer.name],
        "learning_rate": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
        "lr_scheduler_type": optimizer.schedule,
        "warmup_steps": optimizer.warmup_steps,
        "max_grad_norm": 0.0,  # contributions are clipped already
        "save_strategy": "steps" if run.checkpoint_every else "no",
        "save_steps": run.checkpoint_every or 1,
        "seed": run.seed,
        "bf16": run.mixed_precision == "bf16",
        "use_cpu": run.device == "cpu" or not torch.accelerator.is_available(),
        "disable_tqdm": True,  # the run has a bar of its own
        "logging_strategy": "no",
        "report_to": [],
    }


@dataclass(frozen=True)
class Learnt:
    """Says what came of a run: its outcome, the loss on public texts before and after, and an answer to a public prompt."""

    outcome: Outcome
    before: float | None
    after: float | None
    prompt: str
    answer: str


def finish(
    run: PrivateTraining | WithoutPrivacy,
    model: nn.Module,
    collate: Rows,
    validation: Sequence[Any],
    before: float | None,
    config: RunConfig,
) -> Learnt:
    """Saves the adapters, audits the record, and asks the model for what public texts show.

    Where classes read other adapters the loss is the mean over these, and the first class's answer.
    """
    outcome = conclude(run, model, collate, (), config)
    if not validation:
        return Learnt(outcome, None, None, "", "")
    prompt, losses = validation[0]["prompt"], []
    forwards = Forwards(model, [None if rule.reads is None else frozenset(rule.reads.adapters) for rule in run.policy.classes])
    for reads in forwards.sets:
        with forwards.reading(reads):
            losses.append(loss_per_token(model, collate, validation))
    with forwards.reading(forwards.sets[0]):
        answer = written(model, collate, prompt)
    return Learnt(outcome, before, sum(losses) / len(losses), prompt.strip(), answer)


def show(learnt: Learnt) -> int:
    """Prints what came of a run, once if several processes trained; returns an exit code."""
    if not launched_rank():
        print_outcome(learnt.outcome)
        if learnt.after is not None:
            print(f"loss per token on public validation texts: {learnt.before:.3f} before, {learnt.after:.3f} after")
            print(f"asked: {learnt.prompt}\nanswered: {learnt.answer}")
    return 0 if learnt.outcome.good else 1
