"""A linear classifier on the mean of an encoder's token vectors."""

import json
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dptrain.errors import ConfigError

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
