"""Gradient rules of single layers: linear maps, tables, normalisations, convolutions.

Each sees one call of one module: its inputs and the gradient of its output, both with examples in dimension 0, where they are
moved if they lie in another (:mod:`dptrain.gradients.dimensions`). The router groups the examples of a contribution before a
rule runs, so a rule knows contributions only.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dptrain.blocks.shards import local, run_with, whole
from dptrain.errors import UnsupportedModule
from dptrain.gradients.forms import Dense, Form, Gather, Outer, promote
from dptrain.gradients.registry import Call, gradient_rule
from dptrain.kernels import norms

Trained = frozenset[str]
Forms = dict[str, Form]


@gradient_rule(nn.Linear, "transformers.*.FalconLinear", product=True, anywhere=True)
def linear(module: nn.Module, call: Call, grad: torch.Tensor) -> Forms:
    """Splits ``y = x W^T + b``."""
    return _product(call, grad, transposed=False)


@gradient_rule("transformers.*.Conv1D", product=True, anywhere=True)
def linear_transposed(module: nn.Module, call: Call, grad: torch.Tensor) -> Forms:
    """Splits ``y = x W + b``, as GPT-2 stores its weights."""
    return _product(call, grad, transposed=True)


def _product(call: Call, grad: torch.Tensor, *, transposed: bool) -> Forms:
    b = call.positions(grad, 1)
    found: Forms = {}
    if call.wants("weight"):
        found["weight"] = Outer(call.positions(call.inputs[0], 1), b, transposed)
    if call.wants("bias"):
        found["bias"] = Dense(b.sum(1))
    return found


def plain_table(module: nn.Embedding, trained: Trained) -> bool:
    """Refuses options under which a table look-up is no sum over contributions."""
    if module.scale_grad_by_freq or module.max_norm is not None or module.sparse:
        raise UnsupportedModule(
            "EMBEDDING_OPTIONS",
            "an Embedding with scale_grad_by_freq, max_norm or sparse couples rows of a batch or forbids dense noise; "
            "build it without these options",
        )
    return True


@gradient_rule(nn.Embedding, when=plain_table, anywhere=True)
def table(module: nn.Embedding, call: Call, grad: torch.Tensor) -> Forms:
    """Splits a table look-up; the padding row receives no gradient."""
    return looked_up(module, call, grad, call.inputs[0])


def looked_up(module: nn.Module, call: Call, grad: torch.Tensor, rows: torch.Tensor) -> Forms:
    """Splits the look-up of these rows of a table, as many of them as vectors in its output."""
    b = call.positions(grad, 1)
    ids = rows.reshape(b.shape[:2])
    if module.padding_idx is not None:
        b = b.masked_fill((ids == module.padding_idx)[..., None], 0.0)
    return {"weight": Gather(ids, b)}


def _scaled_table(module: nn.Module, trained: Trained) -> bool:
    """Tells whether a module looks rows up and multiplies them by its constant ``embed_scale``."""
    if not isinstance(module, nn.Embedding) or len(list(module.parameters())) != 1:
        return False
    with torch.no_grad():
        weight = whole(module.weight)
        ids = torch.arange(min(4, module.num_embeddings), device=weight.device)
        found, scaled = run_with(module, {"weight": weight}, (ids,)), weight[ids] * float(module.embed_scale)
        if weight.is_meta or not torch.allclose(found.float(), scaled.float(), rtol=1e-2):
            return False
    return plain_table(module, trained)


@gradient_rule("transformers.*ScaledWordEmbedding", when=_scaled_table, anywhere=True)
def scaled_table(module: nn.Embedding, call: Call, grad: torch.Tensor) -> Forms:
    """Splits a table look-up whose rows are multiplied by a constant."""
    found = table(module, call, grad)["weight"]
    assert isinstance(found, Gather)
    scale: Any = module.embed_scale
    return {"weight": Gather(found.ids_NT, found.b_NTD * (scale.to(found.b_NTD) if isinstance(scale, torch.Tensor) else scale))}


@gradient_rule(nn.LayerNorm, anywhere=True)
def layer_norm(module: nn.LayerNorm, call: Call, grad: torch.Tensor) -> Forms:
    """Splits ``y = normalise(x) * weight + bias`` over the last dimensions."""
    shape = module.normalized_shape
    b = call.positions(grad, len(shape))
    found: Forms = {}
    if call.wants("weight") and len(shape) == 1:
        sums = norms.gradients(call.positions(call.inputs[0], 1), b, module.eps)
        if sums is not None:
            wanted = zip(("weight", "bias"), sums, strict=True)
            return {name: Dense(value) for name, value in wanted if call.wants(name)}
    if call.wants("weight"):
        x = promote(call.inputs[0])
        normal = nn.functional.layer_norm(x, shape, None, None, module.eps).to(b.dtype)
        found["weight"] = Dense((b * call.positions(normal, len(shape))).sum(1))
    if call.wants("bias"):
        found["bias"] = Dense(b.sum(1))
    return found


def _keeps_apart(module: nn.Module, trained: Trained) -> bool:
    """Tells whether a normalisation of channels keeps examples apart, and has both affine tensors."""
    frozen = not isinstance(module, _BatchNorm) or not module.training
    return frozen and getattr(module, "weight", None) is not None and getattr(module, "bias", None) is not None


@gradient_rule(nn.GroupNorm, _InstanceNorm, _BatchNorm, when=_keeps_apart)
def channel_norm(module: Any, call: Call, grad: torch.Tensor) -> Forms:
    """Splits ``y = f(x) * weight + bias`` per channel in dimension 1; ``f(x)`` is read off as in :func:`scale`."""
    channels = module.weight.numel()
    shape = (call.contributions, call.examples, channels, math.prod(grad.shape[1:]) // channels)
    b = promote(grad)
    found: Forms = {}
    if call.wants("weight"):
        x = promote(call.inputs[0])
        buffers = {name: promote(value) for name, value in module.named_buffers()}
        plain = {**buffers, "weight": x.new_ones(channels), "bias": x.new_zeros(channels)}
        normal = run_with(module, plain, (x,)).to(b.dtype)
        found["weight"] = Dense((b * normal).reshape(shape).sum(dim=(1, 3)))
    if call.wants("bias"):
        found["bias"] = Dense(b.reshape(shape).sum(dim=(1, 3)))
    return found


@gradient_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(module: Any, call: Call, grad: torch.Tensor) -> Forms:
    """Splits a convolution in one, two or three dimensions.

    A gradient is formed by the convolution of input and output gradient, one contribution after the other: no patch is ever
    unfolded. Only where few positions see a large kernel, unfolded patches a_t beside the gradients b_t of the positions
    store less, as in :meth:`Outer.settled`.
    """
    x = call.inputs[0]
    if x.dim() != len(module.kernel_size) + 2 or x.shape[0] != call.rows:
        raise UnsupportedModule(
            "BATCH_DIMENSION",
            f"a convolution got an input of shape {tuple(x.shape)}, expected one row per example of the microbatch in "
            f"dimension 0, then channels and {len(module.kernel_size)} dimensions; add the batch dimension before the module",
        )
    b = promote(grad)
    found: Forms = {}
    if call.wants("weight"):
        found["weight"] = _kernel(module, call, promote(x).to(b.dtype), b)
    if call.wants("bias"):
        shape = (call.contributions, call.examples, b.shape[1], math.prod(b.shape[2:]))
        found["bias"] = Dense(b.reshape(shape).sum(dim=(1, 3)))
    return found


def _kernel(module: Any, call: Call, x: torch.Tensor, grad: torch.Tensor) -> Outer | Dense:
    n, m = call.contributions, call.examples
    shape = tuple(module.weight.shape)
    p, d = shape[0], math.prod(shape[1:])
    t = m * math.prod(grad.shape[2:])
    margins = list(module._reversed_padding_repeated_twice)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    if module.groups == 1 and p * d > 2 * t * (p + d):
        return Outer(_patches(module, _padded(x, margins, mode)).reshape(n, t, d), grad.flatten(2).mT.reshape(n, t, p))
    padding: tuple[int, ...] = (0,) * len(module.kernel_size)
    if mode == "constant" and margins[0::2] == margins[1::2]:
        padding = tuple(reversed(margins[0::2]))
    else:
        x = _padded(x, margins, mode)
    weight_of = _CONVOLUTION_WEIGHTS[len(module.kernel_size)]
    g = grad.new_empty(n, *shape)
    for i in range(n):
        own = slice(i * m, (i + 1) * m)
        g[i] = weight_of(x[own], shape, grad[own], module.stride, padding, module.dilation, module.groups)
    return Dense(g)


def _padded(x: torch.Tensor, margins: list[int], mode: str) -> torch.Tensor:
    return nn.functional.pad(x, margins, mode=mode) if any(margins) else x


def _patches(module: Any, x: torch.Tensor) -> torch.Tensor:
    """Unfolds (rows, C, *S) to (rows, positions, C * kernel)."""
    spatial = len(module.kernel_size)
    for i, (k, s, step) in enumerate(zip(module.kernel_size, module.stride, module.dilation, strict=True)):
        x = x.unfold(2 + i, (k - 1) * step + 1, s)[..., ::step]
    places = x.shape[2 : 2 + spatial]
    order = (0, *range(2, 2 + spatial), 1, *range(2 + spatial, 2 + 2 * spatial))
    return x.permute(order).reshape(x.shape[0], math.prod(places), module.weight[0].numel())


_CONVOLUTION_WEIGHTS = {1: torch.nn.grad.conv1d_weight, 2: torch.nn.grad.conv2d_weight, 3: torch.nn.grad.conv3d_weight}


def _multiplies(unit: float, module: nn.Module, trained: Trained) -> bool:
    """Tells whether a module is ``phi(weight) * f(x)``, with phi(w) = w where ``unit`` is 1, and 1 + w where it is 0.

    Random numbers decide; the names of classes only say which are worth a look.
    """
    own = dict(module.named_parameters())
    weight = own.get("weight")
    if list(own) != ["weight"] or weight is None or weight.dim() != 1 or "norm" not in type(module).__name__.lower():
        return False
    generator = torch.Generator().manual_seed(0)  # a structural check on public numbers, nothing private
    x = torch.randn(2, 3, weight.numel(), generator=generator).to(local(weight))
    w = torch.randn(weight.numel(), generator=generator).to(local(weight))
    try:
        with torch.no_grad():
            y = run_with(module, {"weight": w}, (x,))
            base = run_with(module, {"weight": torch.full_like(w, unit)}, (x,))
            return torch.allclose(y.float(), ((w + (1.0 - unit)) * base).float(), rtol=1e-3, atol=1e-5)
    except (RuntimeError, TypeError, ValueError):
        return False


@gradient_rule(nn.Module, when=partial(_multiplies, 1.0))
def scale(module: nn.Module, call: Call, grad: torch.Tensor) -> Forms:
    """Splits any ``y = weight * f(x)``: the RMS norms, whatever their class is called.

    ``f(x)`` is read off by running the module's own forward with the weight that makes the factor one, so precision and
    epsilon are the module's own.
    """
    return _scale(1.0, module, call, grad)


@gradient_rule(nn.Module, when=partial(_multiplies, 0.0))
def scale_around_one(module: nn.Module, call: Call, grad: torch.Tensor) -> Forms:
    """Splits any ``y = (1 + weight) * f(x)``, as Gemma stores its norms; see :func:`scale`."""
    return _scale(0.0, module, call, grad)


def _scale(unit: float, module: Any, call: Call, grad: torch.Tensor) -> Forms:
    b = call.positions(grad, 1)
    weight = torch.full_like(module.weight, unit)
    normal = run_with(module, {"weight": weight}, call.inputs, call.kwargs)
    return {"weight": Dense((b * call.positions(normal, 1).to(b.dtype)).sum(1))}
