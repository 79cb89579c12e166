"""Image classification: pictures as JSON lists of pixel values, a small vision transformer or a pretrained one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
from dptrain.tasks.runconfig import ImageModel

__all__ = ["ImageCollate", "build", "evaluate", "per_example_loss", "read_examples"]


@dataclass(frozen=True)
class ImageCollate:
    """Examples ``{"pixels": [[...]], "label": n}`` to tensors of one size; a picture of another size is refused.

    ``pixels`` has shape (H, W) or (H, W, channels), with values from 0 to ``pixel_max``.
    """

    config: ImageModel

    def __call__(self, examples: Sequence[Any]) -> Mapping[str, torch.Tensor]:
        size, channels = self.config.image_size, self.config.channels
        pictures = []
        for example in examples:
            try:
                picture = torch.tensor(example["pixels"], dtype=torch.float32)
            except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
                raise ConfigError("EXAMPLE", "an example has no usable 'pixels'; expected a list of rows of numbers") from None
            if picture.dim() == 2:
                picture = picture[:, :, None]
            if picture.shape != (size, size, channels):
                raise ConfigError(
                    "EXAMPLE",
                    f"a picture has shape {tuple(picture.shape)}, expected ({size}, {size}, {channels}) as model.image_size "
                    "and model.channels say; resize pictures before they are signed",
                )
            pictures.append(picture.permute(2, 0, 1))
        # To [-1, 1] by a public constant: statistics of the corpus would be a function of private data.
        pixels = torch.stack(pictures).div_(0.5 * self.config.pixel_max).sub_(1.0)
        return {"pixel_values": pixels, "labels": labels_of(examples, self.config.labels)}

    @property
    def for_evaluation(self) -> "ImageCollate":
        """The same: pictures have one size."""
        return self

    def save(self, directory: Path) -> None:
        """Nothing beside the model is needed to prepare pictures."""


def build(config: ImageModel) -> tuple[nn.Module, ImageCollate]:
    """The model and the function that prepares its input.

    Raises:
        ConfigError: the pretrained model cannot be loaded, or does not fit the pictures.
    """
    from transformers import AutoModelForImageClassification, ViTConfig, ViTForImageClassification

    names = dict(enumerate(config.labels))
    labels = {"num_labels": len(names), "id2label": names, "label2id": {name: n for n, name in names.items()}}
    if config.name is None and config.path is None:
        sizes = ViTConfig(
            image_size=config.image_size,
            patch_size=config.patch_size,
            num_channels=config.channels,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.hidden_layers,
            num_attention_heads=config.attention_heads,
            intermediate_size=2 * config.hidden_size,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.05,  # the default of 0.02 is for models a hundred times wider
            **labels,
        )
        model: nn.Module = ViTForImageClassification(sizes)
    else:
        source = local_or_named(config.path, config.name)
        try:
            model = AutoModelForImageClassification.from_pretrained(source, ignore_mismatched_sizes=True, **labels)
        except (OSError, ValueError) as error:
            raise ConfigError("MODEL", f"cannot load the model {source!r}: {first_line(error)}") from error
    freeze(model, config.freeze)
    return model.train(), ImageCollate(config)
