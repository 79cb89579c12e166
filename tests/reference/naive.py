"""The naive transcription that the router must equal: one autograd pass per contribution, then mask, clip and sum."""

import torch
from torch import nn

from dptrain.clipping.resolver import Schedule
from dptrain.routing import Bounds


def contribution_gradients(model: nn.Module, losses_of, schedule: Schedule, contributions: int) -> list[list[torch.Tensor]]:
    """Gradients of each contribution's mean loss for every scheduled tensor, each from a forward of that contribution alone.

    ``losses_of(i)`` returns the losses of contribution i's examples, computed in a batch that holds only them.
    """
    tensors = [tensor.parameter for block in schedule.blocks for tensor in block.tensors]
    flags = [p.requires_grad for p in tensors]
    for p in tensors:
        p.requires_grad_(True)
    rows = []
    for i in range(contributions):
        found = torch.autograd.grad(losses_of(i).mean(), tensors, allow_unused=True)
        rows.append(_of_parts(schedule, tensors, found))
    for p, flag in zip(tensors, flags, strict=True):
        p.requires_grad_(flag)
    return rows


def gradients_of_one_forward(run, schedule: Schedule, contributions: int, examples: int) -> list[list[torch.Tensor]]:
    """The same from one forward of all contributions, which share nothing but the random numbers it draws."""
    tensors = [tensor.parameter for block in schedule.blocks for tensor in block.tensors]
    flags = [p.requires_grad for p in tensors]
    for p in tensors:
        p.requires_grad_(True)
    losses = run().reshape(contributions, examples).mean(1)
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, tensors, allow_unused=True, retain_graph=True)
        rows.append(_of_parts(schedule, tensors, found))
    for p, flag in zip(tensors, flags, strict=True):
        p.requires_grad_(flag)
    return rows


def _of_parts(schedule: Schedule, tensors: list[torch.Tensor], found) -> list[torch.Tensor]:
    """The gradients of all tensors of a schedule, from those of their parameters."""
    parts = [tensor for block in schedule.blocks for tensor in block.tensors]
    whole = [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(tensors, found, strict=True)]
    return [tensor.select(g) for tensor, g in zip(parts, whole, strict=True)]


def block_norms_sq(rows: list[list[torch.Tensor]], schedule: Schedule) -> torch.Tensor:
    """(N, G) squared norms."""
    owner = [g for g, block in enumerate(schedule.blocks) for _ in block.tensors]
    table = torch.zeros(len(rows), len(schedule.blocks), dtype=torch.float64)
    for i, row in enumerate(rows):
        for g, value in zip(owner, row, strict=True):
            table[i, g] += value.double().square().sum()
    return table


def clipped_sums(
    rows: list[list[torch.Tensor]], schedule: Schedule, bounds: Bounds, margins: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Sums over contributions of ``c_i m_il g_il`` and the coefficients c_i, from the definition."""
    owner = [g for g, block in enumerate(schedule.blocks) for _ in block.tensors]
    stds = [block.std for block in schedule.blocks]
    sums = [torch.zeros_like(value) for value in rows[0]]
    factors = []
    for i, row in enumerate(rows):
        margin = float(margins[i])
        allowed = [bool(bounds.permitted_NG[i, g]) for g in owner]
        flat = sum(float(v.double().square().sum()) for v, ok in zip(row, allowed, strict=True) if ok) ** 0.5
        white = (
            sum(float(v.double().square().sum()) / stds[g] ** 2 for v, ok, g in zip(row, allowed, owner, strict=True) if ok)
            ** 0.5
        )
        c = 1.0
        if flat > 0:
            c = min(1.0, (1 - margin) * float(bounds.clip_N[i]) / flat, (1 - margin) / (float(bounds.sigma_N[i]) * white))
        factors.append(c)
        for total, value, ok in zip(sums, row, allowed, strict=True):
            if ok:
                total += c * value
    return sums, torch.tensor(factors, dtype=torch.float64)
