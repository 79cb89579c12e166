"""One rule per kind of module: how its output gradient becomes per-contribution gradients of its own tensors.

A rule sees one call of one module: its inputs and the gradient of its output, both with examples in dimension 0. The
router groups the examples of a contribution before the rule runs, so a rule knows contributions only.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.func import functional_call

from dptrain.errors import UnsupportedModule
from dptrain.routing.uses import Dense, Piece, gather, outer


class Call:
    """One call of a module in a microbatch: N contributions of M examples each."""

    def __init__(self, inputs: tuple, kwargs: dict, contributions: int, examples: int) -> None:
        self.inputs = inputs
        self.kwargs = kwargs
        self.contributions = contributions
        self.examples = examples

    def positions(self, value: torch.Tensor, features: int) -> torch.Tensor:
        """(N*M, ..., features...) to (N, T, features): all positions of all examples of a contribution in a row."""
        tail = value.shape[value.dim() - features :]
        return promote(value).reshape(self.contributions, -1, *tail)


def promote(value: torch.Tensor) -> torch.Tensor:
    """Norms and sums are never formed in half precision."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


class Rule(Protocol):
    """Turns the output gradient of one call into pieces for the tensors named in ``wanted``."""

    def pieces(
        self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]
    ) -> dict[str, Piece]: ...


class LinearRule:
    """``y = x W^T + b`` (``transposed``: ``y = x W + b``, as in Hugging Face's Conv1D)."""

    def __init__(self, transposed: bool) -> None:
        self.transposed = transposed

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        b = call.positions(grad, 1)
        found: dict[str, Piece] = {}
        if "weight" in wanted:
            a = call.positions(call.inputs[0], 1).to(b.dtype)
            found["weight"] = outer(a, b, transposed=self.transposed, alone=alone("weight"))
        if "bias" in wanted:
            found["bias"] = Dense(b.sum(1))
        return found


class EmbeddingRule:
    """A table look-up; the padding row receives no gradient."""

    def __init__(self, module: nn.Embedding) -> None:
        self.padding_idx = module.padding_idx
        self.rows = module.num_embeddings

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        b = call.positions(grad, 1)
        ids = call.inputs[0].reshape(call.contributions, -1)
        if self.padding_idx is not None:
            b = b.masked_fill((ids == self.padding_idx)[..., None], 0.0)
        return {"weight": gather(ids, b, self.rows)}


class LayerNormRule:
    """``y = normalise(x) * weight + bias`` over the last dimensions."""

    def __init__(self, module: nn.LayerNorm) -> None:
        self.shape = module.normalized_shape
        self.eps = module.eps

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        features = len(self.shape)
        b = call.positions(grad, features)
        found: dict[str, Piece] = {}
        if "weight" in wanted:
            x = promote(call.inputs[0])
            normal = torch.nn.functional.layer_norm(x, self.shape, None, None, self.eps).to(b.dtype)
            found["weight"] = Dense((b * call.positions(normal, features)).sum(1))
        if "bias" in wanted:
            found["bias"] = Dense(b.sum(1))
        return found


class ScaleRule:
    """Any ``y = phi(weight) * f(x)`` with phi(w) = w or 1 + w: the RMS norms, whatever their class is called.

    ``f(x)`` is read off by running the module's own forward with the weight that makes phi one, so precision and epsilon
    are the module's own.
    """

    def __init__(self, module: nn.Module, unit: float) -> None:
        self.module = module
        self.unit = unit

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        b = call.positions(grad, 1)
        weight = torch.full_like(self.module.weight, self.unit)
        normal = functional_call(self.module, {"weight": weight}, call.inputs, call.kwargs)
        return {"weight": Dense((b * call.positions(normal, 1).to(b.dtype)).sum(1))}


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a module, or None where only the generic fallback applies.

    A subclass that overrides ``forward`` is not its base: it gets no rule of the base.

    Raises:
        UnsupportedModule: a known module in a configuration whose gradient is not a sum over contributions.
    """
    forward = type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return LinearRule(transposed=False)
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward:
        if module.scale_grad_by_freq or module.max_norm is not None or module.sparse:
            raise UnsupportedModule(
                "EMBEDDING_OPTIONS",
                "an Embedding with scale_grad_by_freq, max_norm or sparse couples rows of a batch or forbids dense noise; "
                "build it without these options",
            )
        return EmbeddingRule(module)
    if isinstance(module, nn.LayerNorm) and forward is nn.LayerNorm.forward:
        return LayerNormRule(module)
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return LinearRule(transposed=True)
    unit = _scale_unit(module)
    return None if unit is None else ScaleRule(module, unit)


def _scale_unit(module: nn.Module) -> float | None:
    """1.0 or 0.0 if the module is ``weight * f(x)`` or ``(1 + weight) * f(x)``, checked on random numbers; else None."""
    own = dict(module.named_parameters())
    weight = own.get("weight")
    if list(own) != ["weight"] or weight is None or weight.dim() != 1 or "norm" not in type(module).__name__.lower():
        return None
    generator = torch.Generator().manual_seed(0)  # a structural check on public numbers, nothing private
    x = torch.randn(2, 3, weight.numel(), generator=generator).to(weight)
    w = torch.randn(weight.numel(), generator=generator).to(weight)
    try:
        with torch.no_grad():
            y = functional_call(module, {"weight": w}, (x,))
            for unit, scale in ((1.0, w), (0.0, 1.0 + w)):
                base = functional_call(module, {"weight": torch.full_like(w, unit)}, (x,))
                if torch.allclose(y.float(), (scale * base).float(), rtol=1e-3, atol=1e-5):
                    return unit
    except (RuntimeError, TypeError, ValueError):
        return None
    return None
