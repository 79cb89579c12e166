"""Fine-tune a small vision transformer on attested pictures, with privacy.

    python recipes/prepare.py digits --out runs/digits
    accelerate launch recipes/image_classification.py --config recipes/digits.toml

`--no-privacy` runs the same model, data and steps without clipping, noise or ledger, to see what privacy costs.
"""

import argparse

import torch

from dptrain.programs import guarded, quiet_libraries
from dptrain.tasks.classification import make_optimizer, make_scheduler, probe_records
from dptrain.tasks.image_classification import build, per_example_loss, read_examples
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import accelerator_of, conclude, open_run
from dptrain.train import print_outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="RUN.toml")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--no-privacy", action="store_true", help="compare: train the same without any protection")
    arguments = parser.parse_args()
    quiet_libraries()

    config = RunConfig.load(arguments.config)
    torch.manual_seed(config.run.seed)  # the new head's first weights; noise and draws never come from a seed
    accelerator = accelerator_of(config)
    validation = read_examples(config.data.validation)
    model, collate = build(config.model)

    # PrivateTraining.open, or its stand-in without privacy.
    with open_run(config, accelerator, resume=arguments.resume, privacy=not arguments.no_privacy) as run:
        optimizer = make_optimizer(model, config.optimizer, private=not arguments.no_privacy)
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

        # Accuracy on public data, save_pretrained, export of the ledger, and its audit.
        outcome = conclude(run, accelerator.unwrap_model(model), collate, validation, config)
    if accelerator.is_main_process:
        print_outcome(outcome)
    return 0 if outcome.good else 1


if __name__ == "__main__":
    raise SystemExit(guarded(main))
