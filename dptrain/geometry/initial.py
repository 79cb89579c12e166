"""Begins LoRA pairs at full rank, where the tangent space has all its directions. Both ways are public: no data are read.

peft begins with a product of zero, from which a first step moves one factor alone. Under noise that is a fine start too; these
are for those who want every direction from the first step on.
"""

import copy
import math
from typing import Any, Final

import torch
from torch import nn

from dptrain.errors import ConfigError, UnsupportedModule
from dptrain.geometry.pairs import LoraPair, find_pairs

ORIGIN: Final = "_origin"
"""Ends the name of the frozen adapter that takes the initial product of another one away."""

SCALE: Final = 0.02
_OVERSAMPLED = 8
_POWER = 4


@torch.no_grad()
def balanced(model: nn.Module, *, scale: float = SCALE, seed: int = 0) -> None:
    """Begins every pair with random orthonormal factors times ``scale``, so that A^T A = B^T B = scale^2 I.

    The model changes by scale^2 times a matrix of norm one in every direction of the pair, 4e-4 by default.

    Raises:
        ConfigError: code GEOMETRY, no pair to begin, or no scale.
    """
    if not 0.0 < scale < float("inf"):
        raise ConfigError("GEOMETRY", f"scale is {scale!r}, expected a finite number above 0")
    generator = torch.Generator().manual_seed(seed)
    for pair in _pairs(model):
        for factor in (pair.A, pair.Bt.mT):
            drawn = torch.randn(factor.shape, generator=generator, dtype=torch.float64)
            wide = drawn.shape[1] > drawn.shape[0]
            found = torch.linalg.qr(drawn.mT if wide else drawn).Q
            factor.copy_(scale * (found.mT if wide else found))


@torch.no_grad()
def spectral(model: Any, *, seed: int = 0) -> tuple[str, ...]:
    """Begins every pair with the largest r singular directions of the layer that it adapts, and leaves the model as it was.

    A frozen adapter beside the trained one has the same product with the other sign. So the base keeps every bit, the sum of
    both is zero before the first step, and files tie tensor by tensor: ``save_pretrained`` writes both adapters in peft's own
    format, the frozen one in a folder of its name. :func:`stacked` makes one adapter of rank 2 r of them.

    Args:
        model: of peft. seed: of the randomised SVD (Halko, Martinsson and Tropp 2011, algorithm 4.4).

    Returns:
        The names of the frozen adapters.

    Raises:
        ConfigError: code GEOMETRY, no pair to begin, or it was called before.
        UnsupportedModule: code GEOMETRY_PAIR, an adapted layer has no weight in floating point.
    """
    pairs = _pairs(model)
    names = dict.fromkeys(pair.adapter for pair in pairs)
    for name in names:
        if name + ORIGIN in model.peft_config or name.endswith(ORIGIN):
            told = f"adapter {name!r} has an origin already; spectral() is called once, on a new adapter"
            raise ConfigError("GEOMETRY", told)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    active = model.base_model.active_adapters
    for name in names:
        config = copy.deepcopy(model.peft_config[name])
        config.lora_dropout = 0.0
        config.init_lora_weights = True
        model.add_adapter(name + ORIGIN, config)
    model.base_model.set_adapter([*active, *(name + ORIGIN for name in names)])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained.get(name, False))
    for pair in pairs:
        layer = model.get_submodule(pair.module)
        A, B = _leading(pair, layer, seed)
        origin = pair.adapter + ORIGIN
        pair.A.copy_(A)
        pair.Bt.copy_(B.mT)
        layer.lora_B[origin].weight.copy_(-pair.A)
        layer.lora_A[origin].weight.copy_(pair.Bt)
    return tuple(name + ORIGIN for name in names)


@torch.no_grad()
def stacked(model: Any, adapter: str = "default") -> str:
    """Adds an adapter of rank 2 r to a model of peft: the trained pair and its origin in one, ``[A, -A0]`` and ``[B, B0]``.

    Plain peft loads it over the base model as any other (``save_pretrained(folder, selected_adapters=[name])``). A release is
    tied by the two adapters that it was made of, which the run has recorded.

    Returns:
        Its name.

    Raises:
        ConfigError: code GEOMETRY, the adapter did not begin with :func:`spectral`.
    """
    origin, name = adapter + ORIGIN, f"{adapter}_stacked"
    if origin not in model.peft_config:
        raise ConfigError("GEOMETRY", f"adapter {adapter!r} has no origin beside it; save it as it is, at its own rank")
    trained = {key: parameter.requires_grad for key, parameter in model.named_parameters()}
    config = copy.deepcopy(model.peft_config[adapter])
    factor = math.sqrt(2.0) if config.use_rslora else 2  # so that alpha / r, or alpha / sqrt(r), stays
    config.r, config.lora_alpha, config.init_lora_weights = 2 * config.r, factor * config.lora_alpha, True
    config.rank_pattern = {key: 2 * rank for key, rank in (config.rank_pattern or {}).items()}
    config.alpha_pattern = {key: factor * alpha for key, alpha in (config.alpha_pattern or {}).items()}
    model.add_adapter(name, config)
    for layer in model.modules():
        if name in (layer._modules.get("lora_B") or {}):
            both = [(layer.lora_B[one], layer.lora_A[one]) for one in (adapter, origin)]
            layer.lora_B[name].weight.copy_(torch.cat([up.weight for up, _ in both], 1))
            layer.lora_A[name].weight.copy_(torch.cat([down.weight for _, down in both], 0))
            if layer.lora_B[name].bias is not None:
                layer.lora_B[name].bias.copy_(sum(up.bias for up, _ in both))
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(trained.get(key, False))
    return name


def _pairs(model: nn.Module) -> tuple[LoraPair, ...]:
    pairs = find_pairs(model)
    if not pairs:
        raise ConfigError("GEOMETRY", "found no LoRA pair with two trainable factors in the model; add one with peft before")
    return pairs


def _leading(pair: LoraPair, layer: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns balanced factors of the largest r singular directions of a layer's weight over the scaling of its adapter."""
    weight = layer.get_base_layer().weight
    if not weight.is_floating_point():
        raise UnsupportedModule(
            "GEOMETRY_PAIR",
            f"the weight that {pair.module!r} adapts is {weight.dtype}, expected floating point: a quantised one does not tell "
            "its singular directions; use dptrain.geometry.balanced",
        )
    wide = weight.detach().to(pair.A.dtype) / pair.scaling
    if getattr(layer, "fan_in_fan_out", False):
        wide = wide.mT
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        most = min(wide.shape)
        left, sizes, right = torch.svd_lowrank(wide, q=min(pair.rank + _OVERSAMPLED, most), niter=_POWER)
    kept = min(pair.rank, most)
    root = sizes[:kept].sqrt()
    padding = (0, pair.rank - kept)
    first, second = (nn.functional.pad(value[:, :kept] * root, padding) for value in (left, right))
    return first, second
