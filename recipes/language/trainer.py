"""Fine-tune a language model with LoRA on attested texts, with privacy: the Trainer of transformers.

    python -m recipes.prepare e2e --data DATA --out runs/e2e
    accelerate launch -m recipes.language.trainer --config recipes/language/e2e.toml

Beside `recipes.language.loop` this shows what a Trainer takes over: optimizer, schedule, checkpoints and the loop itself.
"""

import torch
from transformers import TrainingArguments

from dptrain import PrivateTraining
from dptrain.integrations.transformers import PrivateTrainer
from dptrain.programs import guarded, quiet_libraries
from dptrain.tasks.classification import read_examples
from dptrain.tasks.runconfig import RunConfig
from recipes.language.texts import arguments, build, finish, load, loss_per_token, probes, settings


def main() -> int:
    given = arguments(__doc__)
    quiet_libraries()
    return train(load(given.config, given.model, given.out), resume=given.resume)


def train(config: RunConfig, *, resume: bool = False) -> int:
    """Trains to the end of the horizon; returns an exit code."""
    torch.manual_seed(config.run.seed)
    args = TrainingArguments(**settings(config), remove_unused_columns=False)
    validation = read_examples(config.data.validation)
    model, collate = build(config.model)
    before = loss_per_token(model, collate, validation) if validation else 0.0

    with PrivateTraining.open(**config.opening(resume=resume)) as private:
        trainer = PrivateTrainer(model, args, private=private, data_collator=collate, probe=probes(validation))
        trainer.train(resume_from_checkpoint=resume)
        return finish(private, trainer.accelerator.unwrap_model(trainer.model), collate, validation, before, config)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
