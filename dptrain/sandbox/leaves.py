"""Leaves of the graph outside the prepared model: a backward pass would fill them with raw gradients."""

import gc
from collections.abc import Iterator

import torch
from torch import nn

from dptrain.errors import NotPrivateUse


def reached(losses: torch.Tensor) -> Iterator[torch.Tensor]:
    """Leaves to which a backward pass from here goes, also those that entered the graph before the microbatch or inside a
    function of the user's own; not those behind a reentrant checkpoint."""
    todo = [losses.grad_fn]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for behind, _ in node.next_functions:
            if behind not in seen:
                seen.add(behind)
                todo.append(behind)


def refusal(leaf: torch.Tensor) -> NotPrivateUse:
    """Says what was found, by name where a module holds it."""
    holder = next((found for found in _holders(leaf)), None)
    what = f"{holder!r}, a parameter" if holder else f"a tensor of shape {tuple(leaf.shape)}"
    return NotPrivateUse(
        "FOREIGN_LEAF",
        f"the forward uses {what} outside the model given to prepare(), with requires_grad=True: a backward pass would give it "
        "the raw gradient of private examples. Make it part of the model, so that it is clipped and noised with the rest, or "
        "detach it",
    )


def _holders(leaf: torch.Tensor) -> list[str]:
    """Names under which modules hold a tensor, with the class of the module."""
    found = []
    for module in [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]:
        for name, value in module._parameters.items():
            if value is leaf:
                found.append(f"{type(module).__name__}.{name}")
    return found
