"""Train a ResNet-20 on attested pictures, with privacy: from public weights, or from none.

    python -m recipes.prepare mnist --data DATA --out runs/mnist
    accelerate launch -m recipes.images.resnet --config recipes/images/mnist.toml --weights RESNET20.th

Batch normalisation would couple contributions. Public weights bring their statistics, which are folded into the convolutions; a
network without weights has group normalisation instead. `--no-privacy` trains the same without any protection.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad, relu

from dptrain.errors import ConfigError
from dptrain.programs import guarded, launched_rank, quiet_libraries
from dptrain.tasks.classification import (
    first_line,
    freeze,
    make_optimizer,
    make_scheduler,
    per_example_loss,
    probe_records,
    read_examples,
)
from dptrain.tasks.image_classification import ImageCollate
from dptrain.tasks.runconfig import ImageModel, RunConfig
from dptrain.tasks.runs import Outcome, accelerator_of, conclude, open_run
from dptrain.train import print_outcome

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Public constants by which the public weights take pixels: statistics of the corpus would be a function of private data."""


@dataclass(frozen=True, kw_only=True)
class ResNetModel(ImageModel):
    """A ResNet-20 over square pictures; ``weights`` is a file of public ones, trained with batch normalisation."""

    weights: Path | None = None


class Block(nn.Module):
    """Two convolutions, and a way around them that drops every other pixel where the second one has more channels."""

    def __init__(self, inner: int, outer: int, *, folded: bool) -> None:
        super().__init__()
        self.stride = outer // inner
        self.conv1, self.norm1 = _normed(inner, outer, self.stride, folded)
        self.conv2, self.norm2 = _normed(outer, outer, 1, folded)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        y_BCHW = self.norm2(self.conv2(relu(self.norm1(self.conv1(x_BCHW)))))
        if self.stride > 1:
            more = (y_BCHW.shape[1] - x_BCHW.shape[1]) // 2
            x_BCHW = pad(x_BCHW[:, :, ::2, ::2], (0, 0, 0, 0, more, more))
        return relu(x_BCHW + y_BCHW)


class ResNet20(nn.Module):
    """Nine blocks over 32 by 32 pixels; smaller pictures are padded, grey ones repeated in three channels."""

    def __init__(self, classes: int, *, folded: bool) -> None:
        super().__init__()
        self.stem, self.norm = _normed(3, 16, 1, folded)
        widths = [16] * 4 + [32] * 3 + [64] * 3
        self.blocks = nn.ModuleList(Block(a, b, folded=folded) for a, b in pairwise(widths))
        self.head = nn.Linear(64, classes)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION)[:, None, None], persistent=False)

    def forward(self, pixel_values: torch.Tensor) -> Any:
        """Takes pixels from -1 to 1 of shape (B, 1 or 3, H, H), and returns ``logits`` of shape (B, classes)."""
        edge = (32 - pixel_values.shape[-1]) // 2
        x_BCHW = pad(pixel_values, (edge, edge, edge, edge), value=-1.0).expand(-1, 3, -1, -1)
        x_BCHW = relu(self.norm(self.stem(((x_BCHW + 1.0) / 2.0 - self.mean) / self.deviation)))
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        return SimpleNamespace(logits=self.head(x_BCHW.mean((2, 3))))


def _normed(inner: int, outer: int, stride: int, folded: bool) -> tuple[nn.Module, nn.Module]:
    """Returns a convolution and its normalisation, which is nothing where statistics are folded into the convolution."""
    norm = nn.Identity() if folded else nn.GroupNorm(8, outer)
    return nn.Conv2d(inner, outer, 3, stride, padding=1, bias=folded), norm


def build(config: ResNetModel) -> tuple[nn.Module, ImageCollate]:
    """Makes the network and the function that prepares its input.

    Raises:
        ConfigError: code MODEL, the weights are not those of a ResNet-20.
    """
    if config.weights is None and config.freeze:
        raise ConfigError("MODEL", "model.freeze would keep new weights; name public ones by --weights, or freeze none")
    model = ResNet20(len(config.labels), folded=config.weights is not None)
    if config.weights is not None:
        try:
            read = torch.load(config.weights, weights_only=True, map_location="cpu")["state_dict"]
            model.load_state_dict(folded({name.removeprefix("module."): value for name, value in read.items()}), strict=False)
        except (OSError, KeyError, RuntimeError, ValueError, UnpicklingError) as error:
            raise ConfigError("MODEL", f"{config.weights} holds no weights of a ResNet-20: {first_line(error)}") from error
    freeze(model, config.freeze)
    return model.train(), ImageCollate(config)


def folded(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Folds each batch normalisation, as it is in evaluation, into the convolution before it; leaves out the old head."""
    found = {}
    names = {"stem": ("conv1", "bn1")}
    for number in range(9):
        at = f"layer{number // 3 + 1}.{number % 3}"
        names |= {f"blocks.{number}.conv{k}": (f"{at}.conv{k}", f"{at}.bn{k}") for k in (1, 2)}
    for name, (conv, norm) in names.items():
        scale = weights[f"{norm}.weight"] / (weights[f"{norm}.running_var"] + 1e-5).sqrt()
        found[f"{name}.weight"] = weights[f"{conv}.weight"] * scale[:, None, None, None]
        found[f"{name}.bias"] = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="RUN.toml")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="public weights, in the place of model.weights")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--no-privacy", action="store_true", help="compare: train the same without any protection")
    arguments = parser.parse_args()
    quiet_libraries()
    config = RunConfig.load(arguments.config, models={"resnet": ResNetModel})
    if arguments.weights is not None:
        config = replace(config, model=replace(config.model, weights=arguments.weights))
    outcome = train(config, resume=arguments.resume, privacy=not arguments.no_privacy)
    if not launched_rank():
        print_outcome(outcome)
    return 0 if outcome.good else 1


def train(config: RunConfig, *, resume: bool = False, privacy: bool = True) -> Outcome:
    """Trains to the end of the horizon, evaluates, saves and audits."""
    torch.manual_seed(config.run.seed)  # weights that are new; noise and draws never come from a seed
    accelerator = accelerator_of(config)
    validation = read_examples(config.data.validation)
    model, collate = build(config.model)

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
        return conclude(run, accelerator.unwrap_model(model), collate, validation, config)


if __name__ == "__main__":
    raise SystemExit(guarded(main))
