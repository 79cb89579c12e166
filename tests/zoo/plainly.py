"""A family without any private training: whether its declaration trains at all."""

import torch

from tests.zoo.family import Family


def trains_without_privacy(family: Family, variant: str, count: int = 4) -> str:
    """Empty if losses of shape (B,) and their gradient are finite in a plain loop; else what is wrong with the declaration."""
    model = family.build(variant)
    losses = family.loss(model, family.rows(count))
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
    if losses.shape != (count,):
        return f"losses have shape {tuple(losses.shape)}, expected ({count},)"
    if not bool(torch.isfinite(losses).all()):
        return "losses are not finite"
    return "" if any(g is not None and bool((g != 0).any()) for g in found) else "no tensor has a gradient"
