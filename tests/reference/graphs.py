"""What losses were computed by, read off the graph that autograd goes back through."""

from collections import Counter
from typing import Any

import torch

MAP, PAIR = "_MultipliedBackward", "_AdaptedBackward"
"""Nodes of `dptrain.kernels.nodes`: a linear map, and a layer with its LoRA pair."""


def count_nodes(losses: torch.Tensor) -> Counter[str]:
    """Counts the nodes of a graph by the names of their classes."""
    seen: set[Any] = set()
    left: list[Any] = [losses.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left.extend(below for below, _ in node.next_functions)
    return Counter(type(node).__name__ for node in seen)
