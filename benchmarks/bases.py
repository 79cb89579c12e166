"""The steps without privacy: torch's own, with its products by oneDNN, compiled, and both.

Who trains without privacy takes the fastest of them, so the fastest is what every ratio is formed with
(:mod:`benchmarks.step`). All compute in float32 and give torch's own gradients up to the order of their additions.

Torch sends float32 products on a processor to MKL. The oneDNN kernels in the same build are twice as fast on some processors
and slower on others (:mod:`dptrain.gradients.matmul`); neither torch nor its compiler takes them for a layer that trains. So
the benchmark gives every linear layer an ``autograd.Function`` of its own, whose three products run there.

Shapes: M rows, D width in, P width out.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Protocol

import torch
import torch._dynamo.config
from torch import nn

from benchmarks.configs import Config
from dptrain.gradients import matmul

LEARNING_RATE = 1e-4

Mark = Callable[[], None]
"""Called behind every microbatch of a step."""


def unmarked() -> None:
    """Marks nothing."""


class Step(Protocol):
    """Runs one logical step, end to end."""

    def __call__(self, mark: Mark = unmarked) -> None: ...


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW over what trains, for every variant; the fused form takes a quarter of the time of torch's default on a CPU."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE, fused=True)


def below_band(model: nn.Module, config: Config, share: float) -> list[nn.Parameter]:
    """Parameters outside the top share of the layers."""
    first = int((1.0 - share) * config.layers)
    inside = [f".layer.{k}." for k in range(first, config.layers)] + ["pooler", "classifier"]
    return [] if share == 1.0 else [p for name, p in model.named_parameters() if not any(part in name for part in inside)]


# ------------------------------------------------------------------------------------------------------ products by oneDNN

_LIBRARY = torch.library.Library("benchmarks", "DEF")
_LIBRARY.define("product(Tensor x_MK, Tensor y_NK, Tensor? bias_N) -> Tensor")


def _plain(x: torch.Tensor) -> torch.Tensor:
    """With the strides that oneDNN has fast kernels for: contiguous, or the transpose of what is."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


def product(x_MK: torch.Tensor, y_NK: torch.Tensor, bias_N: torch.Tensor | None) -> torch.Tensor:
    """Returns x y^T + bias, shape (M, N): by oneDNN where dptrain's own products of this size are, else by torch."""
    m, k = x_MK.shape
    if m * k * y_NK.shape[0] < matmul.WORTHWHILE:
        return nn.functional.linear(x_MK, y_NK, bias_N)
    return torch.ops.mkldnn._linear_pointwise(_plain(x_MK), _plain(y_NK), bias_N, "none", [], "")


def _product_shape(x_MK: torch.Tensor, y_NK: torch.Tensor, bias_N: torch.Tensor | None) -> torch.Tensor:
    return x_MK.new_empty(x_MK.shape[0], y_NK.shape[0])


_LIBRARY.impl("product", lambda *factors: product(*factors), "CPU")  # an operator, which the compiler leaves as it is
_LIBRARY.impl("product", _product_shape, "Meta")


def outer(x_MD: torch.Tensor, y_MP: torch.Tensor) -> torch.Tensor:
    """Returns x^T y, shape (D, P); a much narrower factor goes first, where oneDNN is several times as fast on it."""
    if 8 * y_MP.shape[1] <= x_MD.shape[1]:
        return torch.ops.benchmarks.product(y_MP.t(), x_MD.t(), None).t()
    return torch.ops.benchmarks.product(x_MD.t(), y_MP.t(), None)


class OneDNNLinear(torch.autograd.Function):
    """A linear layer whose forward product, input gradient and weight gradient are computed by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, turned: bool) -> torch.Tensor:
        """Returns x W^T + bias; the weight is (P, D), or (D, P) where ``turned``."""
        ctx.save_for_backward(x, weight)
        ctx.turned = turned
        weight_PD = weight.t() if turned else weight
        out = torch.ops.benchmarks.product(x.reshape(-1, x.shape[-1]), weight_PD, bias)
        return out.view(*x.shape[:-1], weight_PD.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_MD, out_MP = x.reshape(-1, x.shape[-1]), gradients[0].reshape(-1, gradients[0].shape[-1])
        weight_DP = weight if ctx.turned else weight.t()
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = torch.ops.benchmarks.product(out_MP, weight_DP, None).view(x.shape)
        if ctx.needs_input_grad[1]:
            of_weight = outer(x_MD, out_MP) if ctx.turned else outer(out_MP, x_MD)
        if ctx.needs_input_grad[2]:
            of_bias = out_MP.sum(0)
        return of_x, of_weight, of_bias, None


@contextmanager
def onednn_products(model: nn.Module) -> Iterator[int]:
    """Lets every ``nn.Linear`` and ``Conv1D`` of a model compute by oneDNN inside the context; yields how many there are."""
    from transformers.pytorch_utils import Conv1D

    turned = {nn.Linear.forward: False, Conv1D.forward: True}
    layers = [m for m in model.modules() if type(m).forward in turned and "forward" not in vars(m)]
    for layer in layers:
        vars(layer)["forward"] = partial(_forward, layer, turned[type(layer).forward])
    try:
        yield len(layers)
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _forward(layer: nn.Module, turned: bool, x: torch.Tensor) -> torch.Tensor:
    return OneDNNLinear.apply(x, layer.weight, layer.bias, turned)


# -------------------------------------------------------------------------------------------------------------- the steps


@dataclass(frozen=True)
class Plain:
    """One variant without privacy: its model, the gradients of a logical step into ``.grad``, and the whole step."""

    model: nn.Module
    gradients: Step
    step: Step


@contextmanager
def without_privacy(
    config: Config, *, onednn: bool = False, compiled: bool = False, bands: bool = False, **options: Any
) -> Iterator[Plain]:
    """The same loop without privacy: gradients of all microbatches, one optimizer step.

    Args:
        onednn: linear layers compute by oneDNN.
        compiled: forward and backward pass of a microbatch are compiled by ``torch.compile``, under these ``options``.
        bands: whether each tier trains its own band alone, with everything below frozen; else all train the whole model.
    """
    model = config.model().train()
    optimizer = make_optimizer(model)
    inputs, labels = config.batch()
    size = config.microbatch

    def loss(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return config.losses(model, rows, targets).sum() / config.contributions

    def gradients(mark: Mark = unmarked) -> None:
        start = 0
        for count, below in parts:
            for parameter in below:
                parameter.requires_grad_(False)
            for i in range(start, start + count, size):
                end = min(i + size, start + count)
                run(inputs[i:end], labels[i:end]).backward()
                mark()
            for parameter in below:
                parameter.requires_grad_(True)
            start += count

    def step(mark: Mark = unmarked) -> None:
        gradients(mark)
        optimizer.step()
        optimizer.zero_grad()

    parts: list[tuple[int, list[nn.Parameter]]] = [(config.contributions, [])]
    if bands:
        parts = [(tier.contributions, below_band(model, config, tier.share)) for tier in config.tiers]
    run = loss
    with ExitStack() as stack:
        if onednn:
            stack.enter_context(onednn_products(model))
        if compiled:
            # Without the patch, a graph that is compiled anew too often would run as it was written, and not say so.
            stack.enter_context(torch._dynamo.config.patch(fail_on_recompile_limit_hit=True))
            stack.callback(torch._dynamo.reset)
            # Graphs are kept, and counted, per code object; with one of its own a variant meets no other's.
            own = FunctionType(loss.__code__.replace(), loss.__globals__, loss.__name__, None, loss.__closure__)
            # Torch's own generator for dropout: on a processor the compiler's costs a fifth of a step of BERT more.
            options = {"fallback_random": config.device == "cpu"} | options
            run = torch.compile(own, dynamic=False, options=options)
        yield Plain(model, gradients, step)


def _step(config: Config, **kind: bool) -> Iterator[Step]:
    with without_privacy(config, **kind) as plain:
        yield plain.step


KINDS = {
    "": {},
    "_onednn": {"onednn": True},
    "_compiled": {"compiled": True},
    "_compiled_onednn": {"compiled": True, "onednn": True},
}

BASES: dict[str, Callable] = {f"non_private{suffix}": contextmanager(partial(_step, **kind)) for suffix, kind in KINDS.items()}
"""Steps of the whole model without privacy; the fastest of them is what a configuration's ratios are formed with."""

BANDS: dict[str, Callable] = {
    f"non_private_bands{suffix}": contextmanager(partial(_step, bands=True, **kind)) for suffix, kind in KINDS.items()
}
"""The same where every tier trains its own band alone: the share-weighted mean of the bands' own steps."""


def absent_bases(config: Config) -> dict[str, str]:
    """Steps without privacy that a configuration cannot have, each with its reason."""
    names = [name for name in (*BASES, *BANDS) if name.endswith("_onednn")]
    if config.device != "cpu":
        return dict.fromkeys(names, "oneDNN's products are a processor's, and the model lies on another device")
    if config.half:
        return dict.fromkeys(names, "products are bfloat16 under autocast, and torch sends those to oneDNN by itself")
    if not matmul.AVAILABLE:
        return dict.fromkeys(names, "this torch lacks the kernels, and the products of dptrain are torch's own too")
    return {}
