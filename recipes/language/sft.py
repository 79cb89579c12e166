"""Fine-tune a language model with LoRA on attested texts, with privacy: the SFTTrainer of TRL.

    python -m recipes.prepare e2e --data DATA --out runs/e2e
    accelerate launch -m recipes.language.sft --config recipes/language/e2e.toml

Beside `recipes.language.trainer` this shows that TRL makes the rows: tokens, masks and labels of prompts and completions.
"""

import torch
from trl import SFTConfig

from dptrain import PrivateTraining
from dptrain.integrations.trl import PrivateSFTTrainer
from dptrain.programs import guarded, quiet_libraries
from dptrain.tasks.classification import read_examples
from dptrain.tasks.runconfig import RunConfig
from recipes.language.texts import Learnt, arguments, build, finish, load, loss_per_token, settings, show


def main() -> int:
    given = arguments(__doc__)
    quiet_libraries()
    return show(train(load(given.config, given.model, given.out), resume=given.resume))


def train(config: RunConfig, *, resume: bool = False) -> Learnt:
    """Trains to the end of the horizon, saves and audits."""
    torch.manual_seed(config.run.seed)
    args = SFTConfig(**settings(config), max_length=config.model.max_length, gradient_checkpointing=False)
    validation = read_examples(config.data.validation)
    model, collate = build(config.model)
    before = loss_per_token(model, collate, validation)

    with PrivateTraining.open(**config.opening(resume=resume)) as private:
        trainer = PrivateSFTTrainer(model, args, private=private, processing_class=collate.tokenizer)
        trainer.train(resume_from_checkpoint=resume)
        return finish(private, trainer.accelerator.unwrap_model(trainer.model), collate, validation, before, config)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
