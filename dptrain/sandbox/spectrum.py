"""Draws the masks of SpecAugment by address, in models of sound of transformers that draw them from numpy.

The library draws for one row after the other, and one number for all of them, so that a mask would follow from who else is in
the microbatch. While a pass is entered, each row draws its own instead, from the same distribution, and hidden states are
masked as the library masks them. This stands in for one text of the library's code, known by its digest. A class with other
code, of another version or a user's own, is left as it is, and refused for what it draws.

Source: Park et al. (arXiv:1904.08779); ``_compute_mask_indices`` of transformers.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

METHOD = "_mask_hidden_states"
_DRAWS = "_compute_mask_indices"
_STANDS = "_dptrain_masks_by_address"

_DIGESTS = {
    METHOD: "cc663ef4010041bc9830d213eb67c5da08a12b166eb8f4cea5945832b35189c5",
    _DRAWS: "daa2e020a4ae2ae2b664d25749b2a0e1e9ebe341cced9c82bf1f1fab8049c044",
}
"""SHA-256 of the source of what is stood in for."""


class Spectrum:
    """Stands in for the method that masks, in every module of a model that has it; :meth:`detach` leaves no trace.

    Guarantee: the mask of a row is a function of the numbers drawn for that row and of its own length; of no other row.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [module for module in model.modules() if _known(type(module))]

    def attach(self) -> None:
        for module in self._modules:
            vars(module)[_STANDS] = masked
            vars(module).setdefault(METHOD, partial(masked, module))  # a method of the user's own, or a router's, stays

    def detach(self) -> None:
        for module in self._modules:
            standing = vars(module).get(METHOD)
            if vars(module).pop(_STANDS, None) and isinstance(standing, partial) and standing.func is masked:
                del vars(module)[METHOD]


def function_of(module: nn.Module, method: str) -> Callable[..., Any]:
    """Returns what a method runs: the function of its class, or what stands in for it while a pass is entered."""
    standing = vars(module).get(_STANDS) if method == METHOD else None
    return standing or getattr(type(module), method)


def masked(
    module: Any,
    hidden_states: torch.Tensor,
    mask_time_indices: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Masks hidden states (B, T, D) over time and over features, as the configuration of the module says.

    Args:
        mask_time_indices: the mask (B, T), where it is given. attention_mask: (B, T), nonzero for what is no padding.
    """
    config, found = module.config, hidden_states
    if not getattr(config, "apply_spec_augment", True):
        return hidden_states
    rows, length, width = hidden_states.shape
    time = mask_time_indices
    if time is None and config.mask_time_prob > 0 and module.training:
        lengths = torch.full((rows,), length, device=found.device) if attention_mask is None else attention_mask.sum(-1)
        kept = config.mask_time_prob, config.mask_time_length, config.mask_time_min_masks
        time = spans(lengths.to(found.device), length, *kept)
    if time is not None:
        found = torch.where(time.bool()[..., None], module.masked_spec_embed.to(found.dtype), found)
    if config.mask_feature_prob > 0 and module.training:
        kept = config.mask_feature_prob, config.mask_feature_length, config.mask_feature_min_masks
        features = spans(torch.full((rows,), width, device=found.device), width, *kept)
        found = found.masked_fill(features[:, None], 0.0)
    return found


def spans(lengths: torch.Tensor, size: int, share: float, span: int, least: int) -> torch.Tensor:
    """Draws a mask of spans for every row, (B, size).

    Spans begin at different places, and may overlap. Their number rounds ``share * length / span`` up or down at random.

    Args:
        lengths: (B,), of the rows. share: of a row that is masked, at most. span: length of a span. least: number of spans.

    Raises:
        ValueError: a span is shorter than one place, or longer than a row.
    """
    if not 1 <= span <= size:
        raise ValueError(f"spans of length {span} were asked for in rows of {size}, expected 1 to {size}")
    # One number rounds, the others say in which order places are taken.
    numbers = torch.rand(len(lengths), size + 1, device=lengths.device)
    count = (share * lengths.double() / span + numbers[:, 0]).floor().clamp_min(least)
    count = torch.where(count * span > size, size // span, count)
    starts = lengths - (span - 1)
    count = torch.minimum(count, starts.clamp_min(0).double())
    place = torch.arange(size, device=lengths.device)
    order = numbers[:, 1:].masked_fill(place >= starts[:, None], 2.0).argsort(-1).argsort(-1)
    begun = (order < count[:, None]).to(torch.int32).cumsum(-1)
    return (begun - nn.functional.pad(begun, (span, 0))[:, :size]) > 0


def _known(kind: type) -> bool:
    """Tells whether the code of a class is that which :func:`masked` stands in for."""
    method = vars(kind).get(METHOD)
    if method is None or not kind.__module__.startswith("transformers."):
        return False
    draws = vars(sys.modules[kind.__module__]).get(_DRAWS)
    try:
        return all(_digest(value) == _DIGESTS[name] for name, value in ((METHOD, method), (_DRAWS, draws)))
    except (OSError, TypeError):  # its source is not at hand
        return False


def _digest(function: Any) -> str:
    return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
