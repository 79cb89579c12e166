"""Whether the router's clipped sums are those of a loop over contributions, on a device and in a precision.

The loop runs one contribution at a time through torch's own autograd, in the same precision, clips, and adds up in float64;
nothing of the router is in it but the bounds.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from attest.descriptor import SignedBounds
from attest.fixed_point import MICRO
from benchmarks.configs import Config
from dptrain.blocks.stack import layer_stack
from dptrain.clipping.fast import Bounds
from dptrain.clipping.resolver import Block, Schedule
from dptrain.noise import DeviceGaussian, KeyStream, LatticeGaussian
from dptrain.noise.keystream import ChaChaStream
from dptrain.noise.lattice import LATTICE_BITS
from dptrain.routing import Router, bounds_of

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest distance of the two sums, relative to the norm of the sum, that rounding explains."""

CLIPS = (1e-3, 1e-2, 10.0)
"""Clip norms, taken in turn: some contributions are clipped and some are not."""


def schedule_of(model: nn.Module) -> Schedule:
    """Two blocks, below and above the middle of the model, and a class for each reach."""
    stack = layer_stack(model)
    middle = len(stack.layers) // 2
    above = [t for t in stack.tensors if min(t.positions) >= middle]
    below = [t for t in stack.tensors if min(t.positions) < middle]
    blocks = tuple(
        Block(name, tensors[0].positions, tuple(tensors), classes, std)
        for name, tensors, classes, std in (("below", below, ("all",), 1.0), ("above", above, ("all", "top"), 2.0))
    )
    return Schedule(stack, blocks, {"all": (0, 1), "top": (1,)}, ())


def distance(config: Config, dtype: torch.dtype, contributions: int = 6) -> float:
    """Norm of the difference of the two sums over the norm of the sum."""
    torch.manual_seed(0)
    config = dataclasses.replace(config, half=False)
    model = config.model().to(config.device, dtype).train()
    inputs, labels = _inputs(config, dtype, contributions)
    schedule, bounds = _bounded(model, contributions)
    margins = Router(model, schedule).sums.margins(bounds)  # the relative shrink of every bound, as documented
    naive = looped(lambda part: config.losses(model, inputs[part], labels[part]), schedule, bounds, margins)
    with _routed(model, schedule) as router:
        found = _sums(router, bounds, lambda: config.losses(model, inputs, labels))
    norm = sum(float(total.square().sum()) for total in naive) ** 0.5
    return sum(float((a - b).square().sum()) for a, b in zip(found, naive, strict=True)) ** 0.5 / norm


def reach(config: Config, contributions: int = 6) -> float:
    """Largest part of its bounds by which a contribution moves the sums under bfloat16 autocast; more than 1 breaks them.

    Losses are a thousand times as large, so that every contribution is clipped. A sum is compared with that in which the loss
    of one contribution is zero.
    """
    torch.manual_seed(0)
    config = dataclasses.replace(config, half=True)
    model = config.model().train()
    inputs, labels = _inputs(config, torch.float32, contributions)
    schedule, bounds = _bounded(model, contributions)
    stds = [block.std for block in schedule.blocks for _ in block.tensors]
    moved = []
    with _routed(model, schedule) as router:
        weights = torch.full((contributions,), 1e3, device=config.device)
        whole = _sums(router, bounds, lambda: config.losses(model, inputs, labels) * weights)
        for i, (clip, sigma) in enumerate(zip(bounds.clip_N.tolist(), bounds.sigma_N.tolist(), strict=True)):
            without = weights.clone()
            without[i] = 0.0
            others = _sums(router, bounds, lambda: config.losses(model, inputs, labels) * without)  # noqa: B023
            squares = [float((a - b).square().sum()) for a, b in zip(whole, others, strict=True)]
            whitened = sum(square / std**2 for square, std in zip(squares, stds, strict=True)) ** 0.5
            moved.append(max(sum(squares) ** 0.5 / clip, whitened * sigma))
    return max(moved)


def _inputs(config: Config, dtype: torch.dtype, contributions: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = (part[:contributions] for part in config.batch())
    return inputs.to(dtype) if inputs.is_floating_point() else inputs, labels


def _bounded(model: nn.Module, contributions: int) -> tuple[Schedule, Bounds]:
    """Two classes, and clip norms in turn."""
    schedule = schedule_of(model)
    signed = [SignedBounds(round(clip * MICRO), MICRO // 2) for clip in CLIPS]
    rows = [(signed[i % 3], schedule.profiles["top" if i % 2 else "all"]) for i in range(contributions)]
    return schedule, bounds_of(rows, len(schedule.blocks))


@contextmanager
def _routed(model: nn.Module, schedule: Schedule) -> Iterator[Router]:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    router = Router(model, schedule)
    router.attach()
    try:
        yield router
    finally:
        router.detach()


def _sums(router: Router, bounds: Bounds, losses: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Clipped sums of one microbatch by tensor, on the CPU."""
    contributions = len(bounds.signed)
    router.arm(contributions, 1, bounds.permitted_NG)
    router.backward(losses(), torch.ones(contributions, dtype=torch.float64))
    router.fold(bounds)
    return [total.cpu() for total in router.sums.take()]


def looped(
    losses: Callable[[slice], torch.Tensor], schedule: Schedule, bounds: Bounds, margin_N: torch.Tensor
) -> list[torch.Tensor]:
    """Sum of clipped gradients by one backward pass per contribution, float64 on the CPU."""
    tensors = [(g, tensor.parameter) for g, block in enumerate(schedule.blocks) for tensor in block.tensors]
    sums = [torch.zeros(parameter.shape, dtype=torch.float64) for _, parameter in tensors]
    for i, (clip, sigma) in enumerate(zip(bounds.clip_N.tolist(), bounds.sigma_N.tolist(), strict=True)):
        loss = losses(slice(i, i + 1)).sum()
        grads = torch.autograd.grad(loss, [parameter for _, parameter in tensors], allow_unused=True)
        permitted = [grad is not None and bool(bounds.permitted_NG[i, tensors[k][0]]) for k, grad in enumerate(grads)]
        own = [(k, grads[k].double().cpu()) for k, may in enumerate(permitted) if may]
        norm = sum(float(grad.square().sum()) for _, grad in own) ** 0.5
        whitened = sum(float(grad.square().sum()) / schedule.blocks[tensors[k][0]].std ** 2 for k, grad in own) ** 0.5
        keep = 1.0 - float(margin_N[i])
        factor = min(1.0, keep * clip / norm, keep / (sigma * whitened))
        for k, grad in own:
            sums[k] += factor * grad
    return sums


def same_release(device: str) -> bool:
    """Whether a sum on the device is released to the very numbers to which the same sum on the CPU is."""
    stream = KeyStream("noise", b"benchmark", 0, bytes(32))
    total = torch.linspace(-3.0, 3.0, 200_001, dtype=torch.float64)
    there = LatticeGaussian(stream).release_(total.to(device, copy=True), 0.7, 8.0, step=1, lane=0)
    return torch.equal(there.cpu(), LatticeGaussian(stream).release_(total, 0.7, 8.0, step=1, lane=0))


def same_device_noise(device: str) -> bool:
    """Whether the generator of a device draws there what it draws on the processor, but for last bits of one in 10,000."""
    stream = ChaChaStream("noise on a device", b"benchmark", 0, bytes(32))
    total = torch.linspace(-3.0, 3.0, 200_001, dtype=torch.float64)
    there = DeviceGaussian(stream).release_(total.to(device, copy=True), 0.7, 8.0, step=1, lane=0).cpu()
    steps = (there - DeviceGaussian(stream).release_(total, 0.7, 8.0, step=1, lane=0)).abs() * 8.0 / (0.7 * 2.0**-LATTICE_BITS)
    return int((steps > 0.5).sum()) <= 20 and float(steps.max()) < 1.5
