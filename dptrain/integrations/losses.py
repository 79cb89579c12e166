"""Losses per example for models of transformers: the mean over an example's own tokens, and what classifiers use.

The losses that these models return themselves are means over all tokens of a batch. There the weight of an example follows from
the length of the others, so no bound on one contribution holds.
"""

from collections.abc import Mapping
from typing import Any

import torch
import transformers.models.auto.modeling_auto as auto
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from dptrain.errors import ConfigError

IGNORED = -100
"""Label of a token that is not trained on."""


def base_of(model: nn.Module) -> nn.Module:
    """Returns the model of transformers within a model of peft, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    return inner() if inner is not None else model


def losses_of(model: nn.Module, outputs: Any, labels: torch.Tensor | None, smoothing: float = 0.0) -> torch.Tensor:
    """Returns one loss per example, shape (B,), each a function of that example alone.

    Args:
        model: decides by its class whether labels are shifted (causal language models) or one per token or one per example.
        outputs: with ``logits``. labels: as the model takes them; -100 for tokens that do not count. smoothing: of labels.

    Raises:
        ConfigError: code LOSS, no loss per example is known of this model.
    """
    base = base_of(model)
    name = type(base).__name__.removeprefix("FSDP")  # as fully_shard names the class
    logits = outputs["logits"] if isinstance(outputs, Mapping) and "logits" in outputs else None
    if labels is None or logits is None:
        missing = "labels" if labels is None else "logits"
        raise _unknown(name, f"there are no {missing} to make it of")
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if name in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() or getattr(base, "loss_type", None) == "ForCausalLM":
        return of_tokens(logits, next_of(labels), smoothing)
    if any(name in names.values() for names in _ONE_A_TOKEN):
        return of_tokens(logits, labels, smoothing)
    if any(name in names.values() for names in _ONE_AN_EXAMPLE):
        return of_examples(logits, labels, getattr(base.config, "problem_type", None), smoothing)
    raise _unknown(name, "its class is none that this module knows")


def next_of(labels_BT: torch.Tensor) -> torch.Tensor:
    """Returns for each position the label of the one after it; of the last, that it does not count.

    Losses then read logits where they lie. Cut off the last position, and torch would copy all of them.
    """
    return nn.functional.pad(labels_BT[:, 1:].long(), (0, 1), value=IGNORED)


def of_tokens(
    logits_BTV: torch.Tensor, labels_BT: torch.Tensor, smoothing: float = 0.0, *, certain: bool = False
) -> torch.Tensor:
    """Returns the mean cross entropy over each example's own tokens; zero for an example without a token that counts.

    Args:
        certain: weigh each token by its probability, as dynamic fine-tuning does (arXiv 2508.05629).

    Raises:
        ConfigError: code LOSS, logits and labels are not of the same examples and positions.
    """
    return _mean(each_token(logits_BTV, labels_BT, smoothing), labels_BT, certain)


def each_token(logits_BTV: torch.Tensor, labels_BT: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Returns the cross entropy of each token, shape (B, T), zero for one that does not count.

    Raises:
        ConfigError: as :func:`of_tokens`.
    """
    if logits_BTV.shape[:2] != labels_BT.shape:  # flattened, rows of one example would lie beside labels of another
        found = f"logits of shape {tuple(logits_BTV.shape)} and labels of shape {tuple(labels_BT.shape)}"
        raise ConfigError("LOSS", f"found {found}, expected (B, T, V) and (B, T); put examples first, then positions")
    how = {"reduction": "none", "ignore_index": IGNORED, "label_smoothing": smoothing}
    # Over transposed logits torch takes twice as long.
    return cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), **how).view(labels_BT.shape)


def _mean(each: torch.Tensor, labels_BT: torch.Tensor, certain: bool) -> torch.Tensor:
    if certain:
        each = each * (-each).exp().detach()
    return each.sum(1) / (labels_BT != IGNORED).sum(1).clamp(min=1)


def of_examples(logits: torch.Tensor, labels: torch.Tensor, problem: str | None, smoothing: float = 0.0) -> torch.Tensor:
    """Returns the loss of each classified example: regression, one class, or several, as transformers tells them apart."""
    if problem is None:
        whole = not labels.is_floating_point()
        problem = "regression" if logits.shape[-1] == 1 else ("single" if whole and labels.dim() == 1 else "multi")
    if problem == "regression":
        return mse_loss(logits.reshape(len(labels), -1), labels.reshape(len(labels), -1).to(logits), reduction="none").mean(1)
    if problem.startswith("single"):
        return cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    return binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(1)


_ONE_A_TOKEN = (
    auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)
_ONE_AN_EXAMPLE = (
    auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
)


def _unknown(name: str, why: str) -> ConfigError:
    return ConfigError(
        "LOSS",
        f"no loss per example is known of {name}: {why}. Give compute_loss_func=, a function (outputs, labels, "
        "num_items_in_batch=None) that returns one loss per example of shape (B,), or override compute_loss so",
    )
