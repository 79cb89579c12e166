"""One rule per kind of module: how its output gradient becomes per-contribution gradients of its own tensors.

A rule sees one call of one module: its inputs and the gradient of its output, both with examples in dimension 0. The
router groups the examples of a contribution before the rule runs, so a rule knows contributions only.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dptrain.errors import UnsupportedModule
from dptrain.gradients.forms import Dense, Outer, Piece, gather, outer
from dptrain.sandbox import Entry


class Call:
    """One call of a module in a microbatch: N contributions of M examples each.

    ``output`` says which of the module's outputs (in the order of their leaves) the gradient belongs to; ``autocast`` is the
    type that the call computed in, None outside autocast; ``draws`` says what random numbers the call drew and what truths it
    read, for another run of it.
    """

    def __init__(
        self,
        inputs: tuple,
        kwargs: dict,
        contributions: int,
        examples: int,
        *,
        output: int = 0,
        autocast: torch.dtype | None = None,
        draws: tuple[Entry, ...] = (),
    ) -> None:
        self.inputs = inputs
        self.kwargs = kwargs
        self.contributions = contributions
        self.examples = examples
        self.output = output
        self.autocast = autocast
        self.draws = draws

    @property
    def rows(self) -> int:
        return self.contributions * self.examples

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
    """A table look-up, its rows times a constant ``scale``; the padding row receives no gradient."""

    def __init__(self, module: nn.Embedding, scale: float = 1.0) -> None:
        self.scale = scale
        self.padding_idx = module.padding_idx
        self.rows = module.num_embeddings

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        b = call.positions(grad, 1)
        # An id out of range would fall on a row of the next contribution; its own counts as zero (dptrain.sandbox).
        ids = call.inputs[0].reshape(call.contributions, -1).clamp(0, self.rows - 1)
        if self.padding_idx is not None:
            b = b.masked_fill((ids == self.padding_idx)[..., None], 0.0)
        if self.scale != 1.0:
            b = b * self.scale
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


class ChannelRule:
    """``y = f(x) * weight + bias`` per channel in dimension 1: GroupNorm, InstanceNorm, BatchNorm with frozen statistics.

    ``f(x)`` is read off as in :class:`ScaleRule`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        channels = self.module.weight.numel()
        b = promote(grad)
        found: dict[str, Piece] = {}
        if "weight" in wanted:
            x = promote(call.inputs[0])
            plain = {"weight": x.new_ones(channels), "bias": x.new_zeros(channels)}
            normal = functional_call(self.module, plain, (x,)).to(b.dtype)
            product = (b * normal).reshape(call.contributions, call.examples, channels, -1)
            found["weight"] = Dense(product.sum(dim=(1, 3)))
        if "bias" in wanted:
            found["bias"] = Dense(b.reshape(call.contributions, call.examples, channels, -1).sum(dim=(1, 3)))
        return found


class ConvRule:
    """Convolutions in one, two or three dimensions.

    A gradient is formed by the convolution of input and output gradient, one contribution after the other: no patch is ever
    unfolded. Only where few positions see a large kernel, unfolded patches a_t beside the gradients b_t of the positions
    store less, as in :func:`outer`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.kernel: tuple[int, ...] = module.kernel_size
        self.stride: tuple[int, ...] = module.stride
        self.dilation: tuple[int, ...] = module.dilation
        self.groups: int = module.groups
        self.shape = tuple(module.weight.shape)
        self.padding: list[int] = list(module._reversed_padding_repeated_twice)
        self.mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        self.plain = self.mode == "constant" and self.padding[0::2] == self.padding[1::2]
        self.weight_of = _CONVOLUTION_WEIGHTS[len(self.kernel)]

    def pieces(self, call: Call, grad: torch.Tensor, wanted: frozenset[str], alone: Callable[[str], bool]) -> dict[str, Piece]:
        x = call.inputs[0]
        if x.dim() != len(self.kernel) + 2 or x.shape[0] != call.rows:
            raise UnsupportedModule(
                "BATCH_DIMENSION",
                f"a convolution got an input of shape {tuple(x.shape)}, expected one row per example of the microbatch in "
                f"dimension 0, then channels and {len(self.kernel)} dimensions; add the batch dimension before the module",
            )
        b = promote(grad)
        found: dict[str, Piece] = {}
        if "weight" in wanted:
            found["weight"] = self._weight(call, promote(x).to(b.dtype), b)
        if "bias" in wanted:
            found["bias"] = Dense(b.reshape(call.contributions, call.examples, b.shape[1], -1).sum(dim=(1, 3)))
        return found

    def _weight(self, call: Call, x: torch.Tensor, grad: torch.Tensor) -> Piece:
        n, m = call.contributions, call.examples
        p, d = self.shape[0], self.shape[1] * _product(self.kernel)
        t = m * _product(grad.shape[2:])
        if self.groups == 1 and p * d > 2 * t * (p + d):
            return Outer(self._patches(self._padded(x)).reshape(n, t, d), grad.flatten(2).mT.reshape(n, t, p))
        padding: tuple[int, ...] = (0,) * len(self.kernel)
        if self.plain:
            padding = tuple(reversed(self.padding[0::2]))
        else:
            x = self._padded(x)
        g = grad.new_empty(n, *self.shape)
        for i in range(n):
            own = slice(i * m, (i + 1) * m)
            g[i] = self.weight_of(x[own], self.shape, grad[own], self.stride, padding, self.dilation, self.groups)
        return Dense(g)

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, self.padding, mode=self.mode) if any(self.padding) else x

    def _patches(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, C, *S) to (rows, positions, C * kernel)."""
        spatial = len(self.kernel)
        for i, (k, s, step) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            x = x.unfold(2 + i, (k - 1) * step + 1, s)[..., ::step]
        places = x.shape[2 : 2 + spatial]
        order = (0, *range(2, 2 + spatial), 1, *range(2 + spatial, 2 + 2 * spatial))
        return x.permute(order).reshape(x.shape[0], _product(places), -1)


_CONVOLUTION_WEIGHTS = {1: torch.nn.grad.conv1d_weight, 2: torch.nn.grad.conv2d_weight, 3: torch.nn.grad.conv3d_weight}


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a module, or None where only the generic fallback applies.

    A subclass that overrides ``forward`` is not its base: it gets no rule of the base.

    Raises:
        UnsupportedModule: a known module in a configuration whose gradient is not a sum over contributions.
    """
    forward = type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        return LinearRule(transposed=False)
    scale = _embedding_scale(module)
    if isinstance(module, nn.Embedding) and scale is not None:
        if module.scale_grad_by_freq or module.max_norm is not None or module.sparse:
            raise UnsupportedModule(
                "EMBEDDING_OPTIONS",
                "an Embedding with scale_grad_by_freq, max_norm or sparse couples rows of a batch or forbids dense noise; "
                "build it without these options",
            )
        return EmbeddingRule(module, scale)
    if isinstance(module, nn.LayerNorm) and forward is nn.LayerNorm.forward:
        return LayerNormRule(module)
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and forward in _CONVOLUTIONS:
        return ConvRule(module)
    if _is_channel_norm(module):
        return ChannelRule(module)
    if type(module).__module__.startswith("transformers."):
        if type(module).__name__ == "Conv1D":
            return LinearRule(transposed=True)
        if type(module).__name__ == "FalconLinear":
            return LinearRule(transposed=False)
    unit = _scale_unit(module)
    return None if unit is None else ScaleRule(module, unit)


def _embedding_scale(module: nn.Module) -> float | None:
    """The constant by which a table look-up is multiplied, None where a module is anything else."""
    if type(module).forward is nn.Embedding.forward:
        return 1.0
    kind = type(module)
    if not (kind.__module__.startswith("transformers.") and kind.__name__.endswith("ScaledWordEmbedding")):
        return None
    if not isinstance(module, nn.Embedding) or len(list(module.parameters())) != 1:
        return None
    scale = float(module.embed_scale)
    with torch.no_grad():
        ids = torch.arange(min(4, module.num_embeddings), device=module.weight.device)
        if module.weight.is_meta or not torch.allclose(module(ids).float(), (module.weight[ids] * scale).float(), rtol=1e-2):
            return None
    return scale


_CONVOLUTIONS = (nn.Conv1d.forward, nn.Conv2d.forward, nn.Conv3d.forward)


def _is_channel_norm(module: nn.Module) -> bool:
    """A normalisation whose ``f(x)`` keeps examples apart, with both affine tensors."""
    if getattr(module, "weight", None) is None or getattr(module, "bias", None) is None:
        return False
    forward = type(module).forward
    if isinstance(module, nn.GroupNorm):
        return forward is nn.GroupNorm.forward
    if isinstance(module, _InstanceNorm):
        return forward is _InstanceNorm.forward
    return isinstance(module, _BatchNorm) and forward is _BatchNorm.forward and not module.training


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
