"""Losses per example as a user would write them: logits of the model, a cross entropy, no reduction over examples."""

from typing import Any

import torch
from torch import nn

from tests.zoo.family import Rows

TARGETS = frozenset({"labels", "starts", "ends", "distances", "boxes", "classes", "future"})
"""What is for the loss alone."""


def inputs(rows: Rows) -> dict[str, Any]:
    """What goes to the model."""
    return {key: value for key, value in rows.items() if key not in TARGETS}


def each(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of (B, T, K) logits with (B, T) labels, -100 left out, averaged over the positions of an example."""
    lost = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=-100)
    kept = (labels != -100).flatten(1)
    return (lost.view(labels.shape).flatten(1) * kept).sum(1) / kept.sum(1).clamp_min(1)


def classify(model: nn.Module, rows: Rows) -> torch.Tensor:
    return nn.functional.cross_entropy(model(**inputs(rows)).logits, rows["labels"], reduction="none")


def tag(model: nn.Module, rows: Rows) -> torch.Tensor:
    return each(model(**inputs(rows)).logits, rows["labels"])


def next_token(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of a causal language model: every token from those before it."""
    logits = model(**inputs(rows)).logits[:, :-1]
    target = torch.where(rows["attention_mask"] != 0, rows["input_ids"], -100)[:, 1:]
    return each(logits, target)


def next_token_without_cache(model: nn.Module, rows: Rows) -> torch.Tensor:
    """The same with ``use_cache=False``, as training code sets it."""
    logits = model(**inputs(rows), use_cache=False).logits[:, :-1]
    return each(logits, torch.where(rows["attention_mask"] != 0, rows["input_ids"], -100)[:, 1:])


def translate(model: nn.Module, rows: Rows) -> torch.Tensor:
    return each(model(**inputs(rows), use_cache=False).logits, rows["labels"])


def answer(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Start and end of an answer in a text."""
    out = model(**inputs(rows))
    start = nn.functional.cross_entropy(out.start_logits, rows["starts"], reduction="none")
    return start + nn.functional.cross_entropy(out.end_logits, rows["ends"], reduction="none")


def paint(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of a segmentation: a label for every pixel, at the size of the logits."""
    logits = model(**inputs(rows)).logits
    logits = nn.functional.interpolate(logits, rows["labels"].shape[-2:], mode="bilinear", align_corners=False)
    return nn.functional.cross_entropy(logits, rows["labels"], reduction="none").mean((1, 2))


def measure(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of a depth estimation: the mean distance off."""
    found = model(**inputs(rows)).predicted_depth
    found = nn.functional.interpolate(found[:, None], rows["distances"].shape[-2:], mode="bilinear", align_corners=False)
    return (found[:, 0] - rows["distances"]).abs().mean((1, 2))


def detect(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of a detector of the DETR kind: queries matched to the objects of their own picture, then classes and boxes."""
    from scipy.optimize import linear_sum_assignment

    out = model(**inputs(rows))
    found = []
    for logits, boxes, classes, truth in zip(out.logits, out.pred_boxes, rows["classes"], rows["boxes"], strict=True):
        far = torch.cdist(boxes, truth.to(boxes), p=1)
        cost = far - logits.softmax(-1)[:, classes]
        query, thing = (torch.as_tensor(x) for x in linear_sum_assignment(cost.detach().numpy()))
        wanted = torch.full((len(logits),), logits.shape[-1] - 1)
        wanted[query] = classes[thing]
        found.append(nn.functional.cross_entropy(logits, wanted) + far[query, thing].mean())
    return torch.stack(found)


def transcribe(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Connectionist temporal classification of a sound."""
    scores = model(**inputs(rows)).logits.float().log_softmax(-1).transpose(0, 1)
    said = rows["labels"]
    lengths = torch.full((len(said),), len(scores))
    counts = (said != -100).sum(1)
    return nn.functional.ctc_loss(scores, said.clamp_min(0), lengths, counts, blank=0, reduction="none", zero_infinity=True)


def agree(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of two towers: how far a text and its own picture are apart."""
    out = model(**inputs(rows))
    image, words = (nn.functional.normalize(x, dim=-1) for x in (out.image_embeds, out.text_embeds))
    return 1.0 - (image * words).sum(-1)


def forecast(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Mean squared error of a forecast."""
    found = model(**inputs(rows)).prediction_outputs
    return (found - rows["future"]).square().flatten(1).mean(1)


def classify_series(model: nn.Module, rows: Rows) -> torch.Tensor:
    return nn.functional.cross_entropy(model(**inputs(rows)).prediction_logits, rows["labels"], reduction="none")


def plain(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of a module that takes its inputs by position and returns logits."""
    return nn.functional.cross_entropy(model(*inputs(rows).values()), rows["labels"], reduction="none")


def plain_tokens(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Of a module that takes ids and returns logits for every next token."""
    logits = model(rows["input_ids"])[:, :-1]
    return each(logits, torch.where(rows["attention_mask"] != 0, rows["input_ids"], -100)[:, 1:])
