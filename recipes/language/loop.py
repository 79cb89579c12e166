"""Fine-tune a language model with LoRA on attested texts, with privacy: the plain loop.

    python -m recipes.prepare e2e --data DATA --out runs/e2e
    accelerate launch -m recipes.language.loop --config recipes/language/e2e.toml

`recipes.language.trainer` and `recipes.language.sft` do so by Trainers, under the same policy and run file. `--no-privacy` runs
the same model, data and steps without clipping, noise or ledger, to see what privacy costs.
"""

import torch

from dptrain.programs import guarded, quiet_libraries
from dptrain.tasks.classification import make_optimizer, make_scheduler, probe_records, read_examples
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import accelerator_of, open_run
from recipes.language.texts import Learnt, arguments, build, finish, load, loss_per_token, per_example_loss, show


def main() -> int:
    given = arguments(__doc__, no_privacy="compare: train the same without any protection")
    quiet_libraries()
    return show(train(load(given.config, given.model, given.out), resume=given.resume, privacy=not given.no_privacy))


def train(config: RunConfig, *, resume: bool = False, privacy: bool = True) -> Learnt:
    """Trains to the end of the horizon, saves and audits."""
    torch.manual_seed(config.run.seed)  # the adapters' first weights; noise and draws never come from a seed
    accelerator = accelerator_of(config)
    validation = read_examples(config.data.validation)
    model, collate = build(config.model)
    before = loss_per_token(model, collate, validation)

    # PrivateTraining.open, or its stand-in without privacy.
    with open_run(config, accelerator, resume=resume, privacy=privacy) as run:
        optimizer = make_optimizer(model, config.optimizer, private=privacy, policy=run.policy)
        scheduler = make_scheduler(optimizer, config.optimizer, run.policy.steps)
        model, optimizer = accelerator.prepare(model, optimizer)
        model, optimizer, steps = run.prepare(model, optimizer, collate, probe=probe_records(validation), states=[scheduler])

        loss = run.loss(per_example_loss, compiled=config.run.compile)
        for step in steps:  # every logical step of the policy, each charged before it runs
            for rows in step:  # microbatches of whole contributions
                run.backward(loss(model, rows), rows)
            optimizer.step()
            scheduler.step()
            if config.run.checkpoint_every and step.number % config.run.checkpoint_every == 0:
                run.save()

        return finish(run, accelerator.unwrap_model(model), collate, validation, before, config)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
