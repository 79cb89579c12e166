"""`dptrain train RUN.toml`: a whole run from a file; also `accelerate launch -m dptrain.train RUN.toml`.

Of several processes each has the outcome and its exit code, and the first one alone evaluates, writes and prints.
Training losses are not printed, logged or returned: they are functions of private data that no noise was added to.
"""

import argparse
from collections.abc import Sequence

import torch

from dptrain.cli.ledger.show import verdict_text
from dptrain.cli.output import console, promised, spent, styled, table
from dptrain.cli.results import print_text
from dptrain.programs import guarded, launched_rank, print_json, quiet_libraries
from dptrain.tasks import task
from dptrain.tasks.classification import make_optimizer, make_scheduler, probe_records, read_examples
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import STAMP, Outcome, accelerator_of, conclude, open_run


def main(argv: Sequence[str] | None = None) -> int:
    """Trains as a run file says.

    Args:
        argv: arguments after the name of the program; default: those of the process.

    Returns:
        0 for a run whose record verifies, 1 for a refusal, a failure or a record that does not.
    """
    parser = argparse.ArgumentParser(prog="dptrain train", description="Train as a run file says.")
    parser.add_argument("run", metavar="RUN.toml", help="the run file")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint of this run")
    parser.add_argument(
        "--clock-jump-ok", action="store_true", help="the clock is right though it is far ahead of the ledger's last leaf"
    )
    parser.add_argument(
        "--no-kept-reading", action="store_true", help="verify every signature, whatever was kept, and keep nothing"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="decode every record, take three steps on rows that are nobody's, charge nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    arguments = parser.parse_args(argv)

    def work() -> int:
        quiet_libraries()
        how = {"resume": arguments.resume, "clock_jump_ok": arguments.clock_jump_ok, "dry_run": arguments.dry_run}
        outcome = train(RunConfig.load(arguments.run), **how, kept_reading=not arguments.no_kept_reading)
        if launched_rank():
            pass
        elif arguments.json:
            print_json(outcome.to_json())
        else:
            print_outcome(outcome)
        return 0 if outcome.good else 1

    return guarded(work, as_json=arguments.json)


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    clock_jump_ok: bool = False,
    kept_reading: bool = True,
    privacy: bool = True,
    dry_run: bool = False,
) -> Outcome:
    """Opens, prepares, trains to the end of the horizon, evaluates, saves, exports and verifies.

    Args:
        config: the run. resume: continue a run that was interrupted. clock_jump_ok, kept_reading: see
            `open_run`.
        privacy: False for a comparison run without any protection, whose outputs are stamped so. dry_run: three steps on
            rows that are nobody's, as `PrivateTraining.prepare` has them; nothing is charged, saved or exported.

    Raises:
        DptrainError, AttestError, LedgerError: whatever does not verify or cannot go on.
    """
    if privacy and not dry_run:
        config.require_free_output()
    torch.manual_seed(config.run.seed)
    accelerator = accelerator_of(config)
    validation = read_examples(config.data.validation)
    tools = task(config.task)
    model, collate = tools.build(config.model)
    how = {"resume": resume, "clock_jump_ok": clock_jump_ok, "kept_reading": kept_reading}
    with open_run(config, accelerator, **how, privacy=privacy) as run:
        if run.policy.exactness == "certified":
            for module in model.modules():
                if hasattr(module, "set_attn_implementation"):
                    module.set_attn_implementation("eager")  # other kinds skip masks by content (dptrain.clipping.exactness)
        optimizer = make_optimizer(model, config.optimizer, layers=config.model.layers, private=privacy, policy=run.policy)
        scheduler = make_scheduler(optimizer, config.optimizer, run.policy.steps)
        model, optimizer = accelerator.prepare(model, optimizer)
        model, optimizer, steps = run.prepare(
            model, optimizer, collate, layers=config.model.layers, probe=probe_records(validation), states=[scheduler],
            dry_run=dry_run, metrics=config.metrics(),
        )  # fmt: skip
        loss = run.loss(tools.per_example_loss, compiled=config.run.compile)
        for step in steps:
            for rows in step:
                run.backward(loss(model, rows), rows)
            optimizer.step()
            scheduler.step()
            if not dry_run and config.run.checkpoint_every and step.number % config.run.checkpoint_every == 0:
                run.save()
        if dry_run:
            return Outcome(True, None, (), run.opened.gate.counts()["refused"], "", dry_run=True)
        return conclude(run, accelerator.unwrap_model(model), collate, validation, config)


def print_outcome(outcome: Outcome) -> None:
    """Shows the outcome of a run to a person."""
    out = console()
    if outcome.classes:
        rows = table("class", "admitted", "clip norm", "multiplier", "rate", "ε", "ε content replaced", "δ")
        for row in outcome.classes:
            plain = (promised(row[key]) for key in ("clip_norm", "effective_multiplier", "sampling_rate"))
            bounds = (spent(row[key], 4) for key in ("epsilon", "epsilon_replace"))
            rows.add_row(row["class"], str(row["admitted"]), *plain, *bounds, promised(row["delta"]))
        out.print(rows)
    if outcome.refused:
        out.print("refused by the gate: " + ", ".join(f"{code} {count}" for code, count in outcome.refused.items()))
    if not outcome.private:
        out.print(styled("bold red", STAMP))
    if outcome.dry_run:
        return
    if outcome.accuracy is not None:
        out.print(f"accuracy on public validation examples: {outcome.accuracy:.2%}")
    out.print(f"model: {outcome.model}")
    if outcome.export is not None and outcome.verdict is not None:
        print_text(verdict_text(outcome.verdict, outcome.qualifiers, f"record of the run: {outcome.export}"))
    for sentence in outcome.findings:
        out.print(styled("red", sentence))


if __name__ == "__main__":
    raise SystemExit(main())
