"""A small model with LoRA pairs and a head that trains too, runs of it, and what a contribution adds, by dense matrices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
from torch import nn

from dptrain.geometry import TangentAdam, TangentSGD
from dptrain.geometry.pairs import LoraPair, find_pairs
from tests.guarantees.peers import NORMALIZER, Net, Run, nothing, per_example, small_world
from tests.worlds.training import World

LAYERS = "base_model.model.layers"
LINE = 'geometry = "lora_tangent"\n'


def net(init: Any = "full", rank: int = 2, dtype: torch.dtype = torch.float64, head: bool = True) -> nn.Module:
    """Returns `tests.guarantees.peers.Net` with a pair on each of its layers, at full rank unless ``init`` says otherwise."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["layers.0", "layers.1", "layers.2"])
    model = peft.get_peft_model(Net().to(dtype), config)
    generator = torch.Generator().manual_seed(5)
    for pair in find_pairs(model):
        for factor in (pair.A, pair.Bt):
            if init == "full":
                factor.data = (0.3 * torch.randn(factor.shape, generator=generator, dtype=torch.float64)).to(dtype)
    model.base_model.model.head.weight.requires_grad_(head)
    return model


def adam(model: nn.Module) -> TangentAdam:
    return TangentAdam(model, others=torch.optim.SGD, lr=1e-2)


def sgd(model: nn.Module) -> TangentSGD:
    return TangentSGD(model, others=torch.optim.SGD, lr=0.1, momentum=0.9)


def tangent_world(root: Path, policy: str = LINE, **options: Any) -> World:
    return small_world(root, policy_extra=policy, **options)


def run_of(world: World, model: nn.Module, optimizer: Callable[[nn.Module], Any] = adam, **options: Any) -> Run:
    return Run(world, model, layers=LAYERS, optimizer=optimizer(model), **options)


Released = dict[str, torch.Tensor]


def released(run: Run, grads: Released) -> Released:
    """Returns what a step released, times the normalizer: directions as dense matrices, and gradients of the rest."""
    found = dict(grads)
    for pair, direction in zip(run.optimizer.pairs, run.optimizer.released, strict=True):
        if direction is not None:
            found[pair.module] = direction.dense().double() * NORMALIZER
    return found


def first(world: World, model: nn.Module, losses: Any = per_example, **options: Any) -> Released:
    with run_of(world, model, **options) as run:
        return released(run, run.gradients(next(iter(run.steps)), losses))


def signal(world: World, make: Callable[[], nn.Module], losses: Any = per_example, **options: Any) -> Released:
    """Returns the clipped sums of the first step: a release less the same release without gradients."""
    with_data, noise = (first(world, make(), one, **options) for one in (losses, nothing))
    return {name: with_data[name] - noise[name] for name in with_data}


def norm(values: Released) -> float:
    return sum(float(value.square().sum()) for value in values.values()) ** 0.5


def projected(pair: LoraPair, gA: torch.Tensor, gB: torch.Tensor) -> torch.Tensor:
    """Returns the projection of a gradient onto the tangent space by pseudo-inverses of the factors, dense."""
    A, B = pair.A.detach().double(), pair.Bt.detach().double().mT
    right, left = gA.double() @ torch.linalg.pinv(B), (gB.double() @ torch.linalg.pinv(A)).mT
    return right + left - A @ torch.linalg.pinv(A) @ right


def contribution(model: nn.Module, loss: torch.Tensor) -> Released:
    """Returns what one loss adds before the clip, under the names of `released`."""
    pairs = find_pairs(model)
    others = {
        name: p for name, p in model.named_parameters()
        if p.requires_grad and not any(p is pair.A or p is pair.Bt for pair in pairs)
    }  # fmt: skip
    wanted = [*(p for pair in pairs for p in (pair.A, pair.Bt)), *others.values()]
    grads = torch.autograd.grad(loss, wanted)
    found = {
        pair.module: projected(pair, grads[2 * place], grads[2 * place + 1].mT) for place, pair in enumerate(pairs)
    }
    return found | {name: grad.double() for name, grad in zip(others, grads[2 * len(pairs) :], strict=True)}
