"""Handles parameters of which every rank holds some rows (FSDP2): the part that lies here, and the whole.

Such a parameter is a ``DTensor`` of torch. A plain tensor is its own part and its own whole, so that callers need not ask.
torch's modules for them are looked up where they are loaded, and never loaded for a model that has none.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import stateless


def is_shard(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor lies over several ranks."""
    loaded = sys.modules.get("torch.distributed.tensor")
    kind = getattr(loaded, "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def is_unit(module: nn.Module) -> bool:
    """Tells whether a module was itself given to ``fully_shard``, alone or with others."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def run_with(
    module: nn.Module, tensors: Mapping[str, torch.Tensor], inputs: tuple = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Runs a module with other tensors in the place of its own, as ``torch.func.functional_call`` does.

    One that was given to ``fully_shard`` runs without its hooks: they would gather its parameters anew, inside a backward pass.
    """
    if not is_unit(module):
        return functional_call(module, dict(tensors), inputs, dict(kwargs or {}), tie_weights=False)
    with stateless._reparametrize_module(module, dict(tensors), tie_weights=False):
        return module.forward(*inputs, **(kwargs or {}))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a tensor that lies at this rank, in the same memory."""
    found: Any = tensor
    return found._local_tensor if is_shard(tensor) else found  # type: ignore[no-any-return]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all of a tensor; of one that is sharded a copy, for which every rank must call this."""
    found: Any = tensor
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        return found.detach().full_tensor()  # type: ignore[no-any-return]


def rows_of(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """Returns which rows of dimension 0 lie at a rank: from, to."""
    each = -(-size // ranks)
    return min(rank * each, size), min((rank + 1) * each, size)


def own_part(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Returns the part of a whole value that lies where this rank's part of a parameter does."""
    found: Any = parameter
    if not is_shard(parameter):
        return value
    start, end = rows_of(parameter.shape[0], found.device_mesh.size(), found.device_mesh.get_local_rank())
    return value[start:end]


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a value as a tensor that lies over ranks as a parameter does."""
    found: Any = parameter
    if not is_shard(parameter):
        return part
    made: torch.Tensor = type(found).from_local(
        part, found.device_mesh, found.placements, run_check=False, shape=found.shape, stride=found.stride()
    )
    return made
