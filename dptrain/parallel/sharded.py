"""Holds a model that FSDP2 (``fully_shard``) has sharded: whose parameters are parts, and become whole while a module runs.

Nothing here shards or gathers: torch does. It is kept from reducing, and what it does in a private microbatch counts as ours
and not as the program's.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from dptrain.blocks.shards import is_shard, is_unit, local
from dptrain.errors import NotPrivateUse, UnsupportedPolicy

Aside = Callable[[], AbstractContextManager[None]]


def is_sharded(model: nn.Module) -> bool:
    """Tells whether a model, or a part of it, was given to ``fully_shard``."""
    return any(is_unit(module) for module in model.modules())


def shards_inside(module: nn.Module) -> bool:
    """Tells whether a module below this one was given to ``fully_shard``."""
    return any(is_unit(inner) for inner in module.modules() if inner is not module)


class ShardedModel:
    """A model under ``fully_shard``, from `prepare` to :meth:`close`.

    Guarantee: no hook of it reduces a gradient; between microbatches every parameter is the shard that the optimizer holds.

    Attributes:
        order: digest over the order in which parameters were gathered so far; ranks that gather in another order have mixed
            layers with each other.
        reducing: ids of the leaves whose gradients :meth:`reduced` has reduced at this moment.
    """

    def __init__(self, model: nn.Module) -> None:
        self.order = hashlib.sha256()
        self._modules: list[Any] = [module for module in model.modules() if is_unit(module)]
        self._groups = list(dict.fromkeys(group for module in self._modules for group in _groups(module)))
        self._wrapped: list[tuple[Any, str]] = []
        self._require_plain(model)
        for module in self._modules:
            module.set_requires_gradient_sync(False, recurse=False)
            module._get_fsdp_state()._lazy_init()
            module.unshard()  # makes what stands in graphs for its parameters, which stays the same from here on
            module.reshard()
        self._leaves = {id(own): found for own, found in self._pairs()}
        self.reducing: frozenset[int] = frozenset()
        self.rest()

    def count_as_ours(self, aside: Aside) -> None:
        """Lets what torch does to gather and free parameters run in the room of our own operations, and notes its order."""
        for number, group in enumerate(self._groups):
            for name in ("unshard", "wait_for_unshard", "reshard", "post_backward"):
                noted = partial(self._note, group, number) if name == "unshard" else None
                setattr(group, name, _inside(getattr(group, name), aside, noted))
                self._wrapped.append((group, name))

    def _note(self, group: Any, number: int) -> None:
        if not group.is_unsharded and group._all_gather_result is None:
            self.order.update(number.to_bytes(4, "big"))

    def rest(self) -> None:
        """Frees whatever parameters are whole: after a forward without a backward pass, those of the root are."""
        for group in self._groups:
            state = group._training_state
            group._training_state = type(state).IDLE
            group.reshard()
        for module in self._modules:
            state = module._get_fsdp_state()
            state._training_state = type(state._training_state).IDLE
            if getattr(state, "_state_ctx", None) is not None:
                state._state_ctx.iter_forward_root = None

    def leaf(self, parameter: nn.Parameter) -> nn.Parameter:
        """Returns what stands for a parameter in a graph: whole, while its module runs."""
        return self._leaves.get(id(parameter), parameter)

    def leaves(self) -> Iterator[nn.Parameter]:
        """Yields what stands in graphs for parameters."""
        yield from self._leaves.values()

    def reduced(
        self, losses: torch.Tensor, weight: torch.Tensor, parameters: Sequence[nn.Parameter]
    ) -> list[torch.Tensor | None]:
        """Returns the wrapper's own mean over ranks of gradients of rows that are nobody's: this rank's rows of each.

        torch reduces one of its units after the other, and frees the whole gradients of each. It adds them up in float32 here
        where it is told to in half precision. The graph stays, and nothing is left in any ``grad``.
        """
        kinds = [group._reduce_dtype for group in self._groups]
        for group in self._groups:
            if group._reduce_dtype in (torch.bfloat16, torch.float16):
                group._reduce_dtype = torch.float32
        for module in self._modules:
            module.set_requires_gradient_sync(True, recurse=False)
        self.reducing = frozenset(id(self.leaf(parameter)) for parameter in parameters)
        try:
            torch.autograd.backward([losses], [weight], retain_graph=True)
            grads = [parameter.grad for parameter in parameters]
            return [None if grad is None else local(grad) for grad in grads]
        finally:
            self.reducing = frozenset()
            for parameter in parameters:
                parameter.grad = None
            for group, kind in zip(self._groups, kinds, strict=True):
                group._reduce_dtype = kind
            for module in self._modules:
                module.set_requires_gradient_sync(False, recurse=False)

    def divisor(self, parameter: nn.Parameter, ranks: int) -> float:
        """Returns what torch divides sums over ranks by: their number, or what ``set_gradient_divide_factor`` set."""
        groups = (group for group in self._groups if any(one.sharded_param is parameter for one in group.fsdp_params))
        factor = getattr(next(groups, None), "gradient_divide_factor", None)
        return float(factor or ranks)

    def close(self) -> None:
        """Lets torch reduce again."""
        self.rest()
        for group, name in self._wrapped:
            delattr(group, name)
        self._wrapped.clear()
        for module in self._modules:
            module.set_requires_gradient_sync(True, recurse=False)

    def _pairs(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        for group in self._groups:
            for one in group.fsdp_params:
                if hasattr(one, "_unsharded_param"):
                    yield one.sharded_param, one._unsharded_param

    def _require_plain(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if not is_shard(parameter):
                raise NotPrivateUse(
                    "PARTLY_SHARDED",
                    f"parameter {name!r} is in no module that was given to fully_shard, so it would move apart at every rank; "
                    "call fully_shard(model) on the whole model last",
                )
            found: Any = parameter
            if found.device_mesh.ndim != 1 or [str(placement) for placement in found.placements] != ["S(0)"]:
                raise NotPrivateUse(
                    "MESH",
                    f"parameter {name!r} lies as {found.placements} on a mesh of {found.device_mesh.ndim} dimensions; expected "
                    "one dimension, sharded by rows: fully_shard(model) without a mesh of several dimensions, without tensor "
                    "parallelism and without shard_placement_fn",
                )
        for group in self._groups:
            policy = group.offload_policy
            if type(policy).__name__ != "OffloadPolicy":
                raise NotPrivateUse(
                    "OFFLOAD", f"fully_shard was given {type(policy).__name__}, and sums lie on the device; leave it out"
                )


def refuse_split(name: str) -> UnsupportedPolicy:
    """Returns the refusal of a mask of heads or experts over parameters that are sharded."""
    return UnsupportedPolicy(
        "SPLIT_SHARDED",
        f"parts of {name!r} belong to different classes (a mask of heads or experts), and fully_shard cuts it by rows; train "
        "such a policy under DistributedDataParallel",
    )


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _inside(method: Callable[..., Any], aside: Aside, noted: Callable[[], None] | None) -> Callable[..., Any]:
    @wraps(method)
    def run(*arguments: Any, **options: Any) -> Any:
        if noted is not None:
            noted()
        with aside():
            return method(*arguments, **options)

    return run
