"""Measures what privacy costs a recipe in accuracy, for everybody at one epsilon and for classes with depths of their own.

    python -m benchmarks.utility run adult --data DATA --results benchmarks/utility.json
    python -m benchmarks.utility table --results benchmarks/utility.json

Three arms train the recipe's model on its contributions, over its steps and draws:

* uniform: every contribution has the epsilon, and touches every layer;
* routed: a tenth has the epsilon and the top quarter of the layers, three tenths have twice it and the top half, the others
  have four times it and all layers;
* without: no clipping, noise or ledger.

Each arm tries the same multiples of the recipe's learning rates, once each, on public examples that are used for nothing else;
then it trains with every seed at the best. Where `Task.tuned` lacks an epsilon, the best multiple of the first one serves. A
run that is in the results already is not done again.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dptrain.demo.depth import Noise
from dptrain.demo.public import digits, public_model
from dptrain.demo.rehearsal import Tier
from dptrain.programs import guarded, quiet_libraries
from dptrain.tasks import classification, image_classification, text_classification
from dptrain.tasks.classification import make_optimizer, make_scheduler, probe_records, read_examples
from dptrain.tasks.runconfig import MODELS, RunConfig
from dptrain.tasks.runs import Evaluate, accelerator_of, conclude, open_run
from recipes import prepare
from recipes.correlated_noise import SELECTING, Results

ROOT = Path(__file__).resolve().parents[1]
EPSILONS = (3.0, 1.0, 8.0)
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Task:
    """A recipe, at the size at which it is measured.

    Attributes:
        read: makes the corpus. run_file: below ``recipes/``. models: as `RunConfig.load` takes them.
        build: the configuration of a model to the model and what prepares its input. loss, evaluate: of the recipe.
        contributions, steps, draws: sizes; draws are per step, on average.
        tuned: epsilons at which the private arms try the multiples of their learning rates. factors: these multiples.
    """

    read: Callable[..., prepare.Corpus]
    run_file: str
    models: Mapping[str, type]
    build: Callable[[Any], tuple[Any, Any]]
    loss: Callable[..., torch.Tensor]
    evaluate: Evaluate
    contributions: int
    steps: int
    draws: int
    tuned: tuple[float, ...] = (3.0,)
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)


def written_digits(_: Path, contributions: int) -> prepare.Corpus:
    """Reads the digits of the demo; half of them are public examples."""
    found = digits(validation=720)
    return prepare.Corpus(found.contributed[:contributions], found.validation)


def tasks() -> dict[str, Task]:
    """Returns the recipes that are measured, by name."""
    from recipes.images import resnet
    from recipes.tabular import adult

    resnets = {"resnet": resnet.ResNetModel}
    return {
        "adult": Task(
            prepare.adult, "tabular/adult.toml", {"table": adult.TableModel},
            lambda model: (adult.TableNetwork(model), adult.collate), adult.per_example_loss, adult.accuracy, 24_000, 150, 512,
        ),
        "digits": Task(
            written_digits, "digits.toml", MODELS, image_classification.build, image_classification.per_example_loss,
            classification.evaluate, 1_200, 80, 500, EPSILONS, (0.25, 0.5, 1.0),
        ),
        "sst2": Task(
            prepare.sst2, "sst2.toml", MODELS, text_classification.build, text_classification.per_example_loss,
            classification.evaluate, 6_000, 40, 256,
        ),
        "mnist": Task(
            prepare.mnist, "images/mnist.toml", resnets, resnet.build, classification.per_example_loss,
            classification.evaluate, 6_000, 40, 256,
        ),
    }  # fmt: skip


def tiers(arm: str, epsilon: float) -> tuple[tuple[Tier, ...], tuple[float, ...]]:
    """Returns the classes of an arm and their shares of the contributions."""
    if arm != "routed":
        return (Tier("everybody", epsilon, "0.0", 1.0),), (1.0,)
    strict, middle = Tier("strict", epsilon, "0.75", 0.5), Tier("middle", 2 * epsilon, "0.5", 1.0)
    loose = Tier("loose", 4 * epsilon, "0.0", 1.0)
    return (strict, middle, loose), (0.1, 0.3, 0.6)


def measured(folder: Path, task: Task, config: RunConfig, key: Mapping[str, Any]) -> dict[str, Any]:
    """Trains once on a folder with a signed policy and corpus; what came of it.

    Args:
        key: arm, multiple of the learning rates, and seed of the first weights. Draws and noise come from fresh keys.
    """
    privacy, began = key["arm"] != "without", time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        examples = "choosing" if key["seed"] == SELECTING else "reporting"
        head, factor = config.optimizer.head_learning_rate, key["rate"]
        optimizer = replace(
            config.optimizer,
            learning_rate=config.optimizer.learning_rate * factor,
            head_learning_rate=None if head is None else head * factor,
        )
        data = replace(
            config.data, policy=folder / "policy.cose", corpus=folder / "corpus", owner_key=folder / "keys" / "owner.pub",
            validation=folder / f"{examples}.jsonl",
        )  # fmt: skip
        machine = replace(
            config.run, ledger=str(Path(place) / "ledger.db"), output=Path(place), seed=key["seed"], checkpoint_every=0
        )
        config = replace(config, optimizer=optimizer, data=data, run=machine)
        torch.manual_seed(config.run.seed)
        accelerator = accelerator_of(config)
        validation = read_examples(data.validation)
        model, collate = task.build(config.model)
        with open_run(config, accelerator, privacy=privacy) as run:
            made = make_optimizer(model, config.optimizer, private=privacy)
            scheduler = make_scheduler(made, config.optimizer, run.policy.steps)
            model, made = accelerator.prepare(model, made)
            model, made, steps = run.prepare(model, made, collate, probe=probe_records(validation), states=[scheduler])
            loss = run.loss(task.loss)
            for step in steps:
                for rows in step:
                    run.backward(loss(model, rows), rows)
                made.step()
                scheduler.step()
            outcome = conclude(run, accelerator.unwrap_model(model), collate, validation, config, evaluate=task.evaluate)
        found: dict[str, Any] = {"accuracy": outcome.accuracy, "seconds": round(time.perf_counter() - began, 1)}
        if privacy:
            noise = Noise.of(Path(place), data.owner_key)
            found |= {"planned": {row["class"]: row["epsilon"] for row in outcome.classes}, "verdict": outcome.verdict}
            found |= {"energy": noise.energy()}
        return found | {"choosing": outcome.accuracy}


def run(arguments: argparse.Namespace) -> None:
    """Trains every arm at every epsilon."""
    task, results = tasks()[arguments.task], Results(arguments.results)
    corpus = task.read(arguments.data, task.contributions)
    half = len(corpus.validation) // 2
    config = RunConfig.load(ROOT / "recipes" / task.run_file, models=task.models)
    if arguments.task == "digits":
        public = arguments.results.with_name("public-model")
        config = replace(config, model=replace(config.model, path=public if public.exists() else public_model(public)))
    elif arguments.weights is not None:
        config = replace(config, model=replace(config.model, weights=arguments.weights))
    sizes = {"contributions": len(corpus.records), "steps": task.steps, "draws": task.draws}
    rates: dict[str, float] = {}
    for epsilon in EPSILONS:
        for arm in ("uniform", "routed", "without"):
            if arm == "without" and epsilon != EPSILONS[0]:
                continue
            common = {"task": arguments.task, **sizes, "arm": arm, "epsilon": None if arm == "without" else epsilon}
            with tempfile.TemporaryDirectory() as scratch:
                folder, (classes, weights) = Path(scratch) / "run", tiers(arm, epsilon)
                prepare.stage_tiers(
                    folder, arguments.task, corpus, steps=task.steps, draws=task.draws, tiers=classes, weights=weights
                )
                for name, examples in (("choosing", corpus.validation[:half]), ("reporting", corpus.validation[half:])):
                    prepare.write_records(folder / f"{name}.jsonl", examples)
                made = partial(measured, folder, task, config)
                if epsilon in task.tuned:
                    for factor in task.factors:
                        results.once(common | {"rate": factor, "seed": SELECTING}, made)
                    rates[arm] = results.best(common)
                for seed in SEEDS:
                    results.once(common | {"rate": rates[arm], "seed": seed}, made)


def table(arguments: argparse.Namespace) -> None:
    """Prints the rows of `lines_of`."""
    print("\n".join(lines_of(Results(arguments.results).rows)))


def lines_of(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a table: a row for every task and epsilon, with mean accuracy and standard error of each arm."""
    yield "| recipe, size | ε | uniform | routed by class | noise energy of routed | without privacy |"
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == name and row["seed"] != SELECTING]
        if not own:
            continue
        sizes = f"{name}: {own[0]['contributions']:,} contributions, {own[0]['steps']} steps of {own[0]['draws']}"
        plain = cell([row for row in own if row["arm"] == "without"])
        for epsilon in sorted(EPSILONS):
            uniform, routed = (
                [row for row in own if (row["arm"], row["epsilon"]) == (arm, epsilon)] for arm in ("uniform", "routed")
            )
            energy = f"{routed[0]['energy'] / uniform[0]['energy']:.0%}" if routed and uniform else "not run"
            yield f"| {sizes} | {epsilon:g} | {cell(uniform)} | {cell(routed)} | {energy} | {plain} |"


def cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes mean accuracy in percent, its standard error, and the number of seeds and multiple of the learning rates."""
    if len(rows) < 2:
        return "not run"
    values = [100.0 * row["accuracy"] for row in rows]
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.1f} ± {error:.1f} ({len(rows)}; ×{rows[0]['rate']:g})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measure = commands.add_parser("run", help="train every arm")
    measure.add_argument("task", choices=("adult", "digits", "mnist", "sst2"))
    measure.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="as recipes.prepare takes it")
    measure.add_argument("--weights", type=Path, metavar="FILE", help="public weights of a ResNet-20, for mnist")
    measure.set_defaults(call=run)
    shown = commands.add_parser("table", help="print what was measured")
    shown.set_defaults(call=table)
    for command in (measure, shown):
        command.add_argument("--results", type=Path, required=True, metavar="JSON")
    arguments = parser.parse_args()
    quiet_libraries()
    arguments.call(arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
