"""Compare four ways to spend one epsilon: secret draws and public turns, each with independent and with correlated noise.

    python -m recipes.correlated_noise run mnist --data DATA --epsilon 8 --results results.json
    python -m recipes.correlated_noise table results.json

All take as many steps over the same contributions, with equally many of them in a step on average, one clip norm and one grid
of learning rates. What differs is who is in a step, and the noise. A run that is in the results already is not done again.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attest.files import atomic_writer
from attest.fixed_point import MICRO
from attest.policy.mechanism import MechanismRule
from dptrain import Microbatches, PrivateTraining
from dptrain.engine.one_owner import stage_alone
from dptrain.errors import ConfigError
from dptrain.noise.correlated import Participation, Strategy, Toeplitz, blt, choice, identity, toeplitz
from dptrain.programs import guarded, quiet_libraries
from ledger import accountants
from ledger.accountants.correlated import rule_of, strategy_of
from ledger.audit import verify_export
from recipes.correlated_tasks import TASKS, Record, Task

CLIP_NORM = 1.0
DELTA = 1e-6
ARMS = {
    "poisson": "secret draws, independent noise",
    "turns": "turns, independent noise",
    "correlated": "turns, correlated noise",
    "groups": "secret draws from groups in turn, correlated noise",
}
Made = Callable[[dict[str, Any]], dict[str, Any]]
"""A run: from its learning rate and seed to what it came to."""
SELECTING = 0
"""Seed of the runs that choose a learning rate. What is reported is of other seeds."""


@dataclass(frozen=True)
class Setting:
    """Says what all arms have in common: epsilon at `DELTA`, steps from one turn to the next, and turns of everybody."""

    epsilon: float
    period: int
    epochs: int

    @property
    def steps(self) -> int:
        """Returns the horizon."""
        return self.period * self.epochs


@dataclass(frozen=True)
class Arm:
    """Says what an arm signs, and by theory leaves in the sums.

    Attributes:
        words: lines of the policy. noise: in a few words. multiplier: noise multiplier of one occurrence.
        rmse: root mean square, over all prefix sums, of the noise in a coordinate, in clip norms.
        groups: how many take turns. A step draws `groups` times the rate from one, so equally many from any number of them.
    """

    words: str
    noise: str
    multiplier: float
    rmse: float
    groups: int = 1


def arm_of(name: str, setting: Setting) -> Arm:
    """Returns an arm with the least noise of its kind that keeps the epsilon."""
    steps, turns = setting.steps, Participation(setting.period, fixed=True)
    target = (steps, setting.epsilon, DELTA, turns)
    if name == "poisson":
        multiplier = accountants.calibrate(setting.epsilon, 1 / setting.period, steps, DELTA)
        return Arm("", "independent", multiplier, multiplier * math.sqrt(choice.error(identity(), steps)))
    if name == "groups":
        return by_groups(setting)
    words = '\ndisclosure = "occurrences_public"\nsampling = { order = "cyclic" }'
    if name == "turns":
        alone = choice.at_epsilon(identity(), *target)
        return Arm(words, "independent", alone.noise_multiplier, alone.rmse)
    found = {told: choice.at_epsilon(strategy, *target) for told, strategy in strategies(setting)}
    told = min(found, key=lambda key: found[key].rmse)
    rule = rule_of(found[told].strategy)
    signed = choice.at_epsilon(strategy_of(rule, steps), *target)  # of the whole numbers that a policy has
    return Arm(words + noise_section(rule), told, signed.noise_multiplier, signed.rmse)


def by_groups(setting: Setting) -> Arm:
    """Returns secret draws from groups in turn, under as many bands as groups: so many that theory leaves the least noise.

    Powers of two and divisors of the period are tried, below it: of as many groups as the period a step takes everybody, and
    nothing is secret.
    """
    steps, period = setting.steps, setting.period
    tried = [groups for groups in range(2, period) if groups & (groups - 1) == 0 or period % groups == 0]
    found = choice.by_bands(steps, period, 1, setting.epsilon, DELTA, bands=tried)
    groups = min(found, key=lambda count: found[count].rmse)
    rule = rule_of(found[groups].strategy)
    signed = choice.amplified(strategy_of(rule, steps), steps, setting.epsilon, DELTA, groups, groups / period)
    order = f'\ndisclosure = "secret_draws"\nsampling = {{ order = "cyclic_poisson", parameters = {{ groups = {groups} }} }}'
    return Arm(order + noise_section(rule), f"{groups} bands and groups", signed.noise_multiplier, signed.rmse, groups)


def strategies(setting: Setting) -> Iterator[tuple[str, Strategy]]:
    """Yields strategies to choose among: bands up to the whole run, and buffers."""
    steps, period = setting.steps, setting.period
    for bands in sorted({max(2, period // 4), max(2, period // 2), period, min(2 * period, steps), steps}):
        yield f"{bands} bands", Toeplitz(tuple(toeplitz.optimal_coefficients(steps, bands)))
    for buffers in (2, 3):
        yield f"{buffers} buffers", blt.optimize(steps, buffers, participation=Participation(period, fixed=True))


def noise_section(rule: MechanismRule) -> str:
    """Writes correlated noise into one line of a policy."""
    values = {name: getattr(rule.parameters, name, ()) for name in ("bands", "coefficients", "decays", "scales")}
    listed = ", ".join(f"{name} = {value if name == 'bands' else list(value)}" for name, value in values.items() if value)
    return f'\nnoise = {{ family = "{rule.name}", parameters = {{ {listed} }} }}'


def policy_text(corpus: str, arm: Arm, setting: Setting, contributions: int) -> str:
    """Writes the policy of an arm, in which one class may touch everything."""
    multiplier = math.ceil(arm.multiplier * MICRO) / MICRO
    return f"""\
corpus = "{corpus}"
delta = {DELTA!r}
steps = {setting.steps}
normalizer = {contributions // setting.period}
redo_steps = 0
epoch_steps = {setting.period}{arm.words}

[gate]
contributor_cap = {contributions}

[[class]]
name = "own"
clip_norm = {CLIP_NORM!r}
noise_multiplier = {multiplier:.6f}
sampling_rate = "{arm.groups}/{setting.period}"
depth = {{ from = 0.0, to = 1.0 }}
"""


def train(folder: Path, task: Task, key: Mapping[str, Any]) -> dict[str, Any]:
    """Trains once on a folder with a signed policy and corpus, and returns accuracies, planned epsilon and the audit's verdict.

    Args:
        key: the learning rate, and the seed of the first weights. Draws and noise come from fresh keys.
    """
    torch.manual_seed(key["seed"])
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=key["rate"])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        ledger, export = Path(place) / "ledger.db", Path(place) / "export"
        private = PrivateTraining.open(
            folder / "policy.cose",
            folder / "corpus",
            ledger=ledger,
            owner_key=folder / "keys" / "owner.pub",
            microbatches=Microbatches(256),
            progress=False,
        )
        model, optimizer, steps = private.prepare(model, optimizer, task.collate)
        for step in steps:
            for rows in step:
                private.backward(nn.functional.cross_entropy(model(rows["x"]), rows["y"], reduction="none"), rows)
            optimizer.step()
        spent = private.epsilon()["own"]
        private.export(export)
        private.close()
        verdict = verify_export(export, ledger.with_suffix(".pub").read_text().split()).verdict
    found = {"choosing": accuracy(model, task, task.choosing), "accuracy": accuracy(model, task, task.reporting)}
    return found | {"planned": spent.planned, "verdict": verdict, "seconds": round(time.perf_counter() - began, 1)}


@torch.no_grad()
def accuracy(model: nn.Module, task: Task, examples: Sequence[Record]) -> float:
    """Returns the share of public examples that a model gets right."""
    rows = task.collate(examples)
    return float((model(rows["x"]).argmax(1) == rows["y"]).float().mean())


def run(arguments: argparse.Namespace) -> None:
    """Trains every arm at every horizon: once at each learning rate that is tried, and with every seed at the best."""
    count, period = arguments.contributions, arguments.period
    if period < 3 or count < period or count % period:
        told = f"{count} contributions are not equally many, one at least, in each of {period} steps, 3 at least"
        raise ConfigError("PERIOD", f"{told}; give --contributions a multiple of --period")
    if arguments.rates != sorted(set(arguments.rates)):
        raise ConfigError("RATES", f"learning rates are {arguments.rates}, expected an ascending grid, each once")
    task, results = TASKS[arguments.task](arguments.data, count), Results(arguments.results)
    for epochs in arguments.epochs:
        setting = Setting(arguments.epsilon, period, epochs)
        for name in ARMS:
            arm = arm_of(name, setting)
            common = {"task": arguments.task, "contributions": count, **asdict(setting), "arm": name}
            common |= {"noise": arm.noise, "multiplier": round(arm.multiplier, 6), "rmse": round(arm.rmse, 4)}
            with tempfile.TemporaryDirectory() as scratch:
                policy = policy_text(arguments.task, arm, setting, count)
                folder = stage_alone(Path(scratch) / name, policy, {"own": task.records})
                made = partial(train, folder, task)
                results.search(common, arguments.rates, made)
                for seed in range(1, arguments.seeds + 1):
                    results.once(common | {"rate": results.best(common), "seed": seed}, made)


class Results:
    """Keeps the rows of runs in a file of JSON, written anew after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []

    def of(self, key: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the rows that have these values."""
        return [row for row in self.rows if key.items() <= row.items()]

    def best(self, key: Mapping[str, Any]) -> float:
        """Returns the learning rate with the best accuracy on the examples to choose with."""
        rate: float = max(self.of({**key, "seed": SELECTING}), key=lambda row: row["choosing"])["rate"]
        return rate

    def search(self, key: Mapping[str, Any], rates: Sequence[float], made: Made) -> None:
        """Tries learning rates from the middle of an ascending grid on, until those next to the best have been tried."""
        tried = {row["rate"] for row in self.of({**key, "seed": SELECTING})}
        grid, todo = sorted(tried.union(rates)), {rates[len(rates) // 2]}
        while todo:
            for rate in sorted(todo):
                self.once({**key, "rate": rate, "seed": SELECTING}, made)
            tried |= todo
            best = grid.index(self.best(key))
            todo = set(grid[max(best - 1, 0) : best + 2]) - tried

    def once(self, key: dict[str, Any], made: Made) -> None:
        """Adds a row that is not there yet, and prints it."""
        if not self.of(key):
            self.rows.append(key | made(key))
            lines = ",\n".join(json.dumps(row) for row in self.rows)
            with atomic_writer(self.path) as stream:
                stream.write(f"[\n{lines}\n]\n".encode())
            print(json.dumps(self.rows[-1]), flush=True)


def table(arguments: argparse.Namespace) -> None:
    """Prints the rows of `lines_of`."""
    print("\n".join(lines_of(Results(arguments.results))))


def lines_of(results: Results) -> Iterator[str]:
    """Yields a table: a row for every task, epsilon and horizon, with the noise and the accuracy of each arm."""
    yield "| task, epsilon | epochs | " + " | ".join(ARMS.values()) + " |"
    yield "|---|---|" + "---|" * len(ARMS)
    settings = [{name: row[name] for name in ("task", "epsilon", "epochs", "period", "contributions")} for row in results.rows]
    for place, setting in enumerate(settings):
        if setting not in settings[:place]:
            cells = " | ".join(cell(results, setting | {"arm": arm}) for arm in ARMS)
            yield f"| {setting['task']}, {setting['epsilon']:g} | {setting['epochs']} | {cells} |"


def cell(results: Results, key: Mapping[str, Any]) -> str:
    """Writes mean accuracy in percent, standard error and number of seeds of an arm; its RMSE and learning rate."""
    if not results.of(key):
        return "not run"
    rows = [row for row in results.of({**key, "rate": results.best(key)}) if row["seed"] != SELECTING]
    if len(rows) < 2:
        return "not run"
    values = [100.0 * row["accuracy"] for row in rows]
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.1f} ± {error:.1f} of {len(rows)} ({rows[0]['rmse']:.2f}; {rows[0]['rate']:g})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measured = commands.add_parser("run", help="train all arms")
    measured.add_argument("task", choices=TASKS)
    measured.add_argument("--data", type=Path, default=Path("data"), metavar="DIR", help="holds mnist/ and sst2/")
    measured.add_argument("--contributions", type=int, default=5_000)
    measured.add_argument("--period", type=int, default=100, help="steps from one turn to the next, one over the rate of draws")
    measured.add_argument("--epochs", type=int, nargs="+", default=[2, 8])
    measured.add_argument("--epsilon", type=float, default=8.0)
    measured.add_argument("--rates", type=float, nargs="+", default=[0.0625, 0.125, 0.25, 0.5, 1.0, 2.0], help="ascending")
    measured.add_argument("--seeds", type=int, default=3)
    measured.set_defaults(call=run)
    shown = commands.add_parser("table", help="print what was measured")
    shown.set_defaults(call=table)
    for command in (measured, shown):
        command.add_argument("--results", type=Path, required=True, metavar="JSON")
    arguments = parser.parse_args()
    quiet_libraries()
    arguments.call(arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
