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
from dptrain.tasks.classification import probe_records, read_examples
from dptrain.tasks.runconfig import RunConfig
from recipes.language.texts import Learnt, arguments, build, finish, load, loss_per_token, settings, show


def main() -> int:
    given = arguments(__doc__)
    quiet_libraries()
    return show(train(load(given.config, given.model, given.out), resume=given.resume))


def train(config: RunConfig, *, resume: bool = False) -> Learnt:
    """Trains to the end of the horizon, saves and audits."""
    torch.manual_seed(config.run.seed)
    args = TrainingArguments(**settings(config), remove_unused_columns=False)
    validation = read_examples(config.data.validation)
    model, collate = build(config.model)
    before = loss_per_token(model, collate, validation)

    with PrivateTraining.open(**config.opening(resume=resume)) as private:
        trainer = PrivateTrainer(model, args, private=private, data_collator=collate, probe=probe_records(validation))
        trainer.train(resume_from_checkpoint=resume)
        return finish(private, trainer.accelerator.unwrap_model(trainer.model), collate, validation, before, config)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
