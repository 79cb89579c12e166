"""Gives text and image classification what they share: loss per example, accuracy on public data, optimizer, schedule."""

import fnmatch
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attest.policy import Policy
from dptrain.blocks.stack import HEAD, layer_stack
from dptrain.errors import ConfigError
from dptrain.geometry import TangentAdam, TangentSGD
from dptrain.tasks.runconfig import OptimizerConfig

Collate = Callable[[list[Any]], Mapping[str, torch.Tensor]]

PROBED = 8
"""Public validation examples that the start-up probes run on."""


def per_example_loss(model: nn.Module, rows: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy of every example alone, shape (B,); no mean over the batch, which would couple contributions."""
    inputs = {name: value for name, value in rows.items() if name != "labels"}
    return nn.functional.cross_entropy(model(**inputs).logits.float(), rows["labels"], reduction="none")


@torch.no_grad()
def evaluate(model: nn.Module, collate: Collate, examples: Sequence[Any], *, batch: int = 64) -> float:
    """Accuracy on PUBLIC examples. Accuracy on contributions would be a function of private data without noise.

    ``model`` and ``collate`` are those that a task's ``build`` returned.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    right = 0
    for start in range(0, len(examples), batch):
        rows = {name: value.to(device) for name, value in collate(list(examples[start : start + batch])).items()}
        labels = rows.pop("labels")
        right += int((model(**rows).logits.argmax(-1) == labels).sum())
    model.train(was_training)
    return right / len(examples)


def read_examples(path: str | Path | None) -> list[Any]:
    """Public examples of a JSONL file, one JSON object a line; none without a file.

    Raises:
        ConfigError: unreadable, empty, or a line that is no JSON object.
    """
    examples: list[Any] = []
    if path is None:
        return examples
    try:
        with open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                example = json.loads(line)
                if not isinstance(example, dict):
                    raise ConfigError("VALIDATION", f"{path} line {number} is no JSON object; expected one example a line")
                examples.append(example)
    except OSError as error:
        raise ConfigError("VALIDATION", f"cannot read the validation examples {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("VALIDATION", f"{path} is not JSON lines: {error}") from error
    if not examples:
        raise ConfigError("VALIDATION", f"{path} holds no example; drop data.validation to train without accuracy")
    return examples


def probe_records(validation: Sequence[Mapping[str, Any]]) -> list[bytes] | None:
    """Records for the start-up probes: the first public validation examples; None where there are too few."""
    return [json.dumps(example).encode() for example in validation[:PROBED]] if len(validation) > 1 else None


def labels_of(examples: Sequence[Any], labels: Sequence[str]) -> torch.Tensor:
    """The ``label`` of every example, a number or a name, as class indices of shape (B,).

    Raises:
        ConfigError: a label that is not among ``labels``. The message does not repeat it: contributions are private.
    """
    found = []
    for example in examples:
        label = example.get("label") if isinstance(example, dict) else None
        if isinstance(label, str) and label in labels:
            label = list(labels).index(label)
        if type(label) is not int or not 0 <= label < len(labels):
            raise ConfigError(
                "EXAMPLE", f"an example has no usable 'label'; expected 0 to {len(labels) - 1} or one of {', '.join(labels)}"
            )
        found.append(label)
    return torch.tensor(found)


def local_or_named(path: Path | None, name: str | None) -> str:
    """Returns the source for ``from_pretrained``: a directory that exists, or a hub id.

    Raises:
        ConfigError: the directory does not exist, which ``transformers`` would take for a hub id.
    """
    if path is None:
        return str(name)
    if not path.is_dir():
        raise ConfigError("MODEL", f"model.path {str(path)!r} is no directory; give one that save_pretrained wrote")
    return str(path)


def first_line(error: Exception) -> str:
    """The message of an error of another library, cut to its first line."""
    return str(error).strip().partition("\n")[0]


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Takes parameters out of training by name.

    Raises:
        ConfigError: a pattern that matches no parameter.
    """
    names = dict(model.named_parameters())
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise ConfigError(
                "RUN_VALUE", f"model.freeze has {pattern!r}, which matches no parameter; the first is {next(iter(names))}"
            )
        for name in matched:
            names[name].requires_grad_(False)


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    *,
    layers: str | None = None,
    private: bool = True,
    policy: Policy | None = None,
) -> torch.optim.Optimizer:
    """Makes the optimizer of a run, with a group of its own for everything above the layer stack.

    Where the policy gives LoRA pairs a geometry, `TangentAdam` or `TangentSGD` moves them, at the same learning rate.

    Args:
        model: the model. config: see there. layers: name of the layer stack, if it is not found by structure.
        private: False for the comparison run, which may need another optimizer and learning rate. policy: of a private run.
    """
    stack = layer_stack(model, layers)
    above = [tensor.parameter for tensor in stack.tensors if tensor.positions == (HEAD,)]
    body = [tensor.parameter for tensor in stack.tensors if tensor.positions != (HEAD,)]
    rate, head_rate = config.learning_rate, config.head_learning_rate or config.learning_rate
    if not private and config.learning_rate_without_privacy is not None:
        rate = head_rate = config.learning_rate_without_privacy
    groups = [{"params": params, "lr": lr} for params, lr in ((body, rate), (above, head_rate)) if params]
    name = config.name if private or config.name_without_privacy == "same" else config.name_without_privacy
    tangent = private and policy is not None and bool(policy.geometry)
    if name == "sgd":
        sgd = torch.optim.SGD(groups, lr=rate, momentum=0.9, weight_decay=config.weight_decay)
        return TangentSGD(model, others=sgd, lr=rate, momentum=0.9, weight_decay=config.weight_decay) if tangent else sgd
    adamw = torch.optim.AdamW(groups, lr=rate, weight_decay=config.weight_decay)
    return TangentAdam(model, others=adamw, lr=rate, weight_decay=config.weight_decay) if tangent else adamw


def make_scheduler(optimizer: torch.optim.Optimizer, config: OptimizerConfig, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Learning rate as a function of the number of the step, which is public."""

    def factor(done: int) -> float:
        warm = min(1.0, (done + 1) / max(1, config.warmup_steps))
        left = max(0.0, 1.0 - done / steps)
        return warm * {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left)}[config.schedule]

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
