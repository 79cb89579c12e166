"""Train a small network on attested rows of a table, with privacy.

    python -m recipes.prepare adult --data DATA --out runs/adult
    accelerate launch -m recipes.tabular.adult --config recipes/tabular/adult.toml

A row becomes numbers by public constants alone: ranges, and lists of words from the description of the census. A mean, a
deviation or a vocabulary of the contributions would be a function of private data. `--no-privacy` trains the same without any
protection.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dptrain.errors import ConfigError
from dptrain.programs import guarded, launched_rank, quiet_libraries
from dptrain.tasks.classification import make_optimizer, make_scheduler, probe_records, read_examples
from dptrain.tasks.runconfig import RunConfig
from dptrain.tasks.runs import Outcome, accelerator_of, conclude, open_run
from dptrain.train import print_outcome

RANGES = {"age": 100, "education-num": 16, "hours-per-week": 100}
"""Columns of numbers, and about the largest that a person can have."""

AMOUNTS = ("capital-gain", "capital-loss")
"""Columns of dollars, up to 100,000, taken by their logarithms."""

WORDS = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States",
}
"""Columns of words, and those that the description lists. Of another word, and of none, all numbers are zero."""

VOCABULARY = {column: words.split() for column, words in WORDS.items()}
WIDTH = len(RANGES) + len(AMOUNTS) + sum(map(len, VOCABULARY.values()))


@dataclass(frozen=True, kw_only=True)
class TableModel:
    """A network of linear layers; width of each, and how many there are between the first and the head."""

    width: int = 64
    hidden_layers: int = 4
    layers: str | None = None

    def __post_init__(self) -> None:
        if min(self.width, self.hidden_layers) < 1:
            raise ConfigError("RUN_VALUE", "model.width or model.hidden_layers is below 1, expected 1 or more of each")


class Layer(nn.Module):
    """A linear layer beside what it adds to, so that depth costs little signal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        return x_BD + torch.tanh(self.linear(x_BD))


class TableNetwork(nn.Module):
    """A linear layer, a stack of layers that the depths of a policy count, and a head."""

    def __init__(self, config: TableModel) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, config.width)
        self.layers = nn.ModuleList(Layer(config.width) for _ in range(config.hidden_layers))
        self.head = nn.Linear(config.width, 2)

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        """Returns scores of shape (B, 2)."""
        x_BD = torch.tanh(self.first(x_BF))
        for layer in self.layers:
            x_BD = layer(x_BD)
        scores_B2: torch.Tensor = self.head(x_BD)
        return scores_B2


def features(row: Mapping[str, str]) -> list[float]:
    """Returns the numbers of one row, each from -1 to 1."""
    found = [2.0 * min(float(row[column]) / most, 1.0) - 1.0 for column, most in RANGES.items()]
    found += [min(math.log1p(float(row[column])) / math.log1p(100_000), 1.0) for column in AMOUNTS]
    return found + [float(row[column] == word) for column, words in VOCABULARY.items() for word in words]


def collate(rows: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Makes tensors of rows: ``x`` of shape (B, F), labels of shape (B,).

    Raises:
        ConfigError: code EXAMPLE, a row lacks a column or has another label; the message repeats nothing of it.
    """
    try:
        found = torch.tensor([features(row) for row in rows]), torch.tensor([int(row["label"]) for row in rows])
    except (KeyError, TypeError, ValueError):
        columns = ", ".join((*RANGES, *AMOUNTS, *WORDS))
        raise ConfigError("EXAMPLE", f"a row lacks a column, or has no number in one; expected label, {columns}") from None
    x, labels = found
    if not ((labels == 0) | (labels == 1)).all():
        raise ConfigError("EXAMPLE", "a row has another label than 0 or 1")
    return {"x": x, "labels": labels}


def per_example_loss(model: nn.Module, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the cross entropy of every row alone, shape (B,)."""
    return nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")


@torch.no_grad()
def accuracy(model: nn.Module, collate: Any, examples: Sequence[Any]) -> float:
    """Returns the share of PUBLIC rows that a model gets right."""
    rows, device = collate(examples), next(model.parameters()).device
    return float((model(rows["x"].to(device)).argmax(1).cpu() == rows["labels"]).float().mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="RUN.toml")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--no-privacy", action="store_true", help="compare: train the same without any protection")
    arguments = parser.parse_args()
    quiet_libraries()
    config = RunConfig.load(arguments.config, models={"table": TableModel})
    outcome = train(config, resume=arguments.resume, privacy=not arguments.no_privacy)
    if not launched_rank():
        print_outcome(outcome)
    return 0 if outcome.good else 1


def train(config: RunConfig, *, resume: bool = False, privacy: bool = True) -> Outcome:
    """Trains to the end of the horizon, evaluates, saves and audits."""
    torch.manual_seed(config.run.seed)  # the first weights; noise and draws never come from a seed
    accelerator = accelerator_of(config)
    validation = read_examples(config.data.validation)
    model: nn.Module = TableNetwork(config.model)

    # PrivateTraining.open, or its stand-in without privacy.
    with open_run(config, accelerator, resume=resume, privacy=privacy) as run:
        optimizer = make_optimizer(model, config.optimizer, private=privacy)
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

        # Accuracy on public data, the weights, export of the ledger, and its audit.
        return conclude(run, accelerator.unwrap_model(model), collate, validation, config, evaluate=accuracy)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
