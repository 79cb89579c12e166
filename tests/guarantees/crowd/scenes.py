"""Models, records and settings of the crowd audit: everything here is what a user of the engine would write.

The loss of an example is multiplied by its ``weight``, which is 1 for a real payload and 0 for a null one of the same shape.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.reference.families import FAMILIES
from tests.worlds.training import token_record

WIDTH = 16
LABELS = 4
LOSS_SCALE = 4.0
"""Brings gradients above the clip norm, as a clip norm is chosen in practice."""


def one(number: int) -> int:
    """Every contribution has one example."""
    return 1


def several(number: int) -> int:
    """Contributions have one to eight examples."""
    return 1 + number % 8


def as_it_is(example: dict) -> dict:
    return example


def nothing(model: nn.Module, step: int) -> None:
    """A loop that changes nothing between steps."""


@dataclass(frozen=True)
class Scene:
    """One setting of the audit.

    Attributes:
        model: makes the model, after torch was seeded. record: one example, from a number. collate, loss: the user's, for
            ``prepare`` and ``compile``. layers: for ``prepare``.
        level: exactness. compiled: whether the loss goes through ``private.compile``.
        drawn: contributions of the crowd that are expected in a step. microbatch, rows: limits, for ``open``.
        examples: examples of a contribution of the crowd, from its number. own_examples: of the audited one.
        augment: what the user's ``decode`` does to an example. each_step: what the user's loop does before a step.
        middle: whether half the crowd stands before the audited contributions, or all behind them.
        audited: contributions that are audited, each by itself.
    """

    name: str
    model: Callable[[], nn.Module]
    record: Callable[[int], dict]
    collate: Callable[[Sequence[dict]], dict[str, torch.Tensor]]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    layers: str | None = None
    level: str = "fast"
    compiled: bool = False
    drawn: int = 120
    microbatch: int = 64
    rows: int | None = None
    examples: Callable[[int], int] = one
    own_examples: int = 1
    augment: Callable[[dict], dict] = as_it_is
    each_step: Callable[[nn.Module, int], None] = nothing
    middle: bool = False
    audited: int = 1

    def but(self, name: str, **changed: Any) -> "Scene":
        """The same scene with some settings changed."""
        return replace(self, name=name, **changed)


def features(number: int) -> dict:
    """An example of the two-layer net."""
    values = np.random.default_rng(number).normal(size=WIDTH)
    return {"x": [round(float(value), 3) for value in values], "label": number % LABELS}


def collate_features(examples: Sequence[dict]) -> dict[str, torch.Tensor]:
    return {
        "x": torch.tensor([example["x"] for example in examples]),
        "labels": torch.tensor([example["label"] for example in examples]),
        "weight": torch.tensor([example["weight"] for example in examples]),
    }


def net_loss(model: nn.Module, rows: Any) -> torch.Tensor:
    losses = nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")
    return losses * rows["weight"] * LOSS_SCALE


class TwoLayers(nn.Module):
    """Two linear layers with something between them that may draw random numbers."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 64), nn.Linear(64, LABELS)])
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.between(torch.relu(self.layers[0](x))))


def collate_words(examples: Sequence[dict]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([example["ids"] for example in examples])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.tensor([example["label"] for example in examples]),
        "weight": torch.tensor([example["weight"] for example in examples]),
    }


def bert_loss(model: nn.Module, rows: Any) -> torch.Tensor:
    logits = model(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"]).logits
    return nn.functional.cross_entropy(logits, rows["labels"], reduction="none") * rows["weight"] * LOSS_SCALE


def bert_with_its_dropout(attention: str | None = None) -> nn.Module:
    """The tiny BERT of the reference families in float32, with the dropout that transformers gives by default."""
    from transformers import BertConfig, BertForSequenceClassification

    config, default = FAMILIES["bert"]().model.config, BertConfig()
    config.hidden_dropout_prob = default.hidden_dropout_prob
    config.attention_probs_dropout_prob = default.attention_probs_dropout_prob
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
    model = BertForSequenceClassification(config).float()
    if attention is not None:
        model.set_attn_implementation(attention)
    return model


def dropout(p: float) -> Callable[[], nn.Module]:
    return lambda: TwoLayers(nn.Dropout(p))


NET = Scene("two layers, fast", dropout(0.5), features, collate_features, net_loss, layers="layers", audited=10)
BERT = Scene(
    "BERT, fast", bert_with_its_dropout, token_record, collate_words, bert_loss,
    layers="bert.encoder.layer", drawn=24, microbatch=32, audited=10,
)  # fmt: skip


def eager_bert() -> nn.Module:
    """At ``certified`` other attention is refused where a mask is collated."""
    return bert_with_its_dropout("eager")


EXACT_NET = NET.but("two layers, certified", level="certified", drawn=24, microbatch=16)
EXACT_BERT = BERT.but("BERT, certified", model=eager_bert, level="certified", drawn=5, microbatch=16)

MAIN = {
    scene.name: scene
    for plain in (NET, EXACT_NET, BERT, EXACT_BERT)
    for scene in (plain, plain.but(f"{plain.name}, compiled", compiled=True))
}
"""What must be shown: a two-layer net and BERT, both levels of exactness, compiled and not."""

_FEW = NET.but("few", microbatch=16, drawn=40, audited=2)
_SPREAD = {"rows": 4, "examples": several, "own_examples": 5, "drawn": 12}

PACKED = {
    scene.name: scene
    for level in ("fast", "certified")
    for scene in (
        _FEW.but(f"boundaries move, {level}", level=level),
        _FEW.but(f"from the middle, {level}", level=level, middle=True),
        _FEW.but(f"spread over microbatches, {level}", level=level, **_SPREAD),
        _FEW.but(f"spread, compiled, {level}", level=level, compiled=True, **_SPREAD),
    )
}
"""Where the audited contribution changes who shares a microbatch with whom, or takes several itself."""
