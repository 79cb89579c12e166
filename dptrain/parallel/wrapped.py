"""Finds the model inside the wrapper of several processes, and refuses wrappers that would reduce raw gradients."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from dptrain.errors import NotPrivateUse
from dptrain.parallel.ranks import Ranks
from dptrain.parallel.sharded import is_sharded

_ELSEWHERE = "use DistributedDataParallel or fully_shard (FSDP2), by accelerator.prepare(model) or torch's own functions"
_REFUSED = ("deepspeed.", "torch.distributed.fsdp.fully_sharded_data_parallel")


def refuse_alone(counted: int, made: str, repair: str) -> None:
    """Raises NotPrivateUse, code PROCESSES, where one of several processes was set up as if it were alone.

    So accelerate does on a machine without a GPU, unless it is told to train on the processor: it makes a process group, and
    then takes every process for the only one.

    Args:
        counted: processes that a library counts. made: what was set up. repair: what to write.
    """
    size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if counted < size:
        raise NotPrivateUse(
            "PROCESSES",
            f"{size} processes have a group, and {made} counts {counted}, as accelerate does where no GPU is found and nobody "
            f"asks for the processor: each would train and write as if it were alone; {repair}",
        )


def refuse_engine(accelerator: Any) -> None:
    """Raises NotPrivateUse for an engine of accelerate that reduces, shards or scales gradients in its own way."""
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind in ("NO", "MULTI_CPU", "MULTI_GPU") or (kind == "FSDP" and getattr(accelerator, "is_fsdp2", False)):
        parallel = getattr(accelerator, "parallelism_config", None)
        if parallel is not None and any(getattr(parallel, f"{name}_enabled", False) for name in ("tp", "cp", "sp")):
            raise NotPrivateUse(
                "ENGINE",
                "accelerate is set up for tensor, context or sequence parallelism, under which one contribution lies on "
                f"several ranks and no rank knows its norm; {_ELSEWHERE}",
            )
        return
    raise NotPrivateUse(
        "ENGINE",
        f"accelerate runs {kind}, which reduces, shards or scales gradients in its own way before they are clipped; "
        f"{_ELSEWHERE} (accelerate launch --multi_gpu, or torchrun)",
    )


def unwrapped(model: nn.Module, accelerator: Any | None, ranks: Ranks) -> nn.Module:
    """Returns the model inside its wrapper.

    Raises:
        NotPrivateUse: code WRAPPER, a wrapper that is not carried; NOT_WRAPPED, several processes train a model that no wrapper
            has made the same everywhere.
    """
    rooms = {kind.__module__ for kind in type(model).__mro__}
    if isinstance(model, DataParallel) or any(room.startswith(_REFUSED) for room in rooms):
        raise NotPrivateUse(
            "WRAPPER",
            f"the model is wrapped in {type(model).__name__}, which sums gradients before they are clipped; {_ELSEWHERE}",
        )
    if is_sharded(model):
        return model
    if ranks.size > 1 and _replicated(model) is None:
        raise NotPrivateUse(
            "NOT_WRAPPED",
            f"{ranks.size} processes train, and the model given to prepare() is in no wrapper of theirs: nothing makes their "
            "parameters the same, and wrapped later it would average raw gradients. Call model, optimizer = "
            "accelerator.prepare(model, optimizer) first, or DistributedDataParallel(model), or fully_shard(model), and then "
            "private.prepare()",
        )
    if accelerator is not None:
        found: nn.Module = accelerator.unwrap_model(model)
        return found
    wrapper = _replicated(model)
    return model if wrapper is None else wrapper.module


def step_once(optimizer: Any, accelerator: Any | None, states: Sequence[Any]) -> None:
    """Lets the schedulers of an optimizer that accelerate prepared step once for each logical step.

    accelerate steps them once for every process, as if each trained on a batch of its own; a logical step is one step on any
    number of them.

    Args:
        states: other places where a program may keep such schedulers.
    """
    for one in (*getattr(accelerator, "_schedulers", ()), *states):
        if hasattr(one, "split_batches") and getattr(getattr(one, "scheduler", None), "optimizer", None) is optimizer:
            one.split_batches = True


def _replicated(model: nn.Module) -> DistributedDataParallel | None:
    """Returns the wrapper that makes parameters the same over ranks."""
    return model if isinstance(model, DistributedDataParallel) else None


class Silenced:
    """Keeps a wrapper from reducing: its reducer never fires, and its forward sends nothing.

    Guarantee: from construction to :meth:`close`, no collective of `DistributedDataParallel` runs, in forward or backward, as
    inside its ``no_sync()``.
    """

    def __init__(self, model: nn.Module) -> None:
        self._held = ExitStack()
        self._wrapper = _replicated(model)
        if self._wrapper is None:
            return
        if self._wrapper.static_graph:
            raise NotPrivateUse(
                "STATIC_GRAPH",
                "the model is wrapped with static_graph=True, for which torch reduces gradients on its own; leave it out",
            )
        self._held.enter_context(self._wrapper.no_sync())
        self._wrapper.require_forward_param_sync = False

    def close(self) -> None:
        """Lets the wrapper reduce again."""
        with suppress(AttributeError):
            self._held.close()
        if self._wrapper is not None:
            self._wrapper.require_forward_param_sync = True
