"""Sites: the modules that own scheduled tensors, why a call of one is refused, and what rounding at one is measured by."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from dptrain.errors import UnsupportedModule
from dptrain.gradients.forms import Dense, Piece
from dptrain.gradients.registry import Rule


@dataclass
class Site:
    """A module that owns scheduled tensors, and the rule that splits its gradient."""

    name: str
    module: nn.Module
    rule: Rule
    tensors: dict[str, int]
    """Attribute name to index of the tensor in the schedule; of a tensor that is split, the index of its first part."""

    shapes: dict[str, torch.Size]
    """Holds the shapes of the whole tensors, by attribute name."""

    method: str = ""
    """The method of the module whose calls are seen; empty for its forward."""


# ------------------------------------------------------------------------------------------------------- why it is refused

def output_type(site: Site, output: object, wanted: Iterable[str]) -> UnsupportedModule:
    """Says that it returned something else than one tensor."""
    return UnsupportedModule(
        "OUTPUT_TYPE",
        f"{_named(site)} returns {type(output).__name__}, expected one tensor; freeze "
        f"its tensors {sorted(wanted)} or move them into a supported layer",
    )


def nested(site: Site) -> UnsupportedModule:
    """Says that it works on tensors whose rows nobody sees."""
    return UnsupportedModule(
        "NESTED_TENSOR",
        f"{_named(site)} works on nested tensors, whose rows are not seen; call "
        "train(), or build nn.TransformerEncoder with enable_nested_tensor=False",
    )


def batch_dimension(site: Site, wanted: Iterable[str]) -> UnsupportedModule:
    """Says that examples do not lie where its rule looks for them."""
    return UnsupportedModule(
        "BATCH_DIMENSION",
        f"dimension 0 of the input or output of {_named(site)} is not the example; "
        f"expected one row per example of the microbatch. Freeze its tensors {sorted(wanted)}",
    )


def unverified(site: Site, wanted: Iterable[str]) -> UnsupportedModule:
    """Says that no probe saw it run."""
    return UnsupportedModule(
        "UNVERIFIED_MODULE",
        f"{_named(site)} runs now but did not run in the probes at start, so nothing "
        f"shows that its gradient belongs to single contributions; freeze its tensors {sorted(wanted)}",
    )


def refuse_output(site: Site, place: int, grad: torch.Tensor) -> None:
    """Raises for a gradient of an output in which examples do not lie apart."""
    raise UnsupportedModule(
        "BATCH_DIMENSION",
        f"the loss uses output {place} of {_named(site)}, in which the example has no "
        "dimension of its own; leave this output out of the loss, or freeze the tensors of the module",
    )


def reentrant(site: Site) -> UnsupportedModule:
    """Says that a checkpoint runs it whose forward forms no graph."""
    return UnsupportedModule(
        "REENTRANT_CHECKPOINT",
        f"module {site.name!r} runs inside a gradient checkpoint with use_reentrant=True, which forms no graph on the way "
        "forward and loses gradients where no input of it requires one; use use_reentrant=False "
        "(gradient_checkpointing_enable({'use_reentrant': False})); layers that reverse themselves (Reformer) never do: use "
        "another model",
    )


def _named(site: Site) -> str:
    return f"module {site.name!r} ({type(site.module).__name__})"


# ------------------------------------------------------------------------------------------------------------- how it rounds

def reach(
    rule: Rule, key: str, inputs: tuple, grad: torch.Tensor, piece: Piece, again: Piece | None = None
) -> float:
    """At least the norm of the sum of |summands| of the gradient of one tensor.

    Of a weight of a linear map, lengths of output gradients times lengths of their inputs; else, times the longest input. Of a
    module that runs again, the gradients that contributions have, and what cancels in them as far as it shows under another
    weight: an input may be large that never meets the tensor, and rounding measured by it would hide what others add.
    """
    lengths = _lengths(grad)
    if rule.product:
        return float(lengths.sum() if key == "bias" else (lengths * _lengths(inputs[0])).sum())
    longest = 1.0
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            longest = max(longest, float(_lengths(value).max()))
    bound = float(lengths.sum()) * longest
    if not (isinstance(piece, Dense) and isinstance(again, Dense)):
        return bound
    value = piece.g.double()
    gap = float((again.g.double() / ODD - value).norm())
    return min(bound, float(piece.norm_sq().double().sqrt().sum()) + CANCELLED * gap / torch.finfo(piece.g.dtype).eps)


ODD = 0.7
"""No power of two: a gradient times this rounds otherwise."""

CANCELLED = 0.25
"""Rounding that shows under one other weight, over the unit of the type, counts so many times as what cancels."""


def _lengths(value: torch.Tensor) -> torch.Tensor:
    """Norms over the last dimension."""
    return torch.linalg.vector_norm(value.detach().double().reshape(-1, value.shape[-1] if value.dim() else 1), dim=-1)
