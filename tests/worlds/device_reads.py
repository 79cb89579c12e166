"""Counts where the host would wait for a device, on the processor: a device is played by following what its tensors become."""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

READS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2"}
"""Operations whose result the host needs before it goes on."""


class DeviceReads(TorchDispatchMode):
    """Follows tensors that would lie on a device, and notes where the host reads one.

    A tensor lies there if it was told so, or if an operation made it of one that does. ``cpu``, ``tolist`` and ``numpy`` are
    reads, and what ``cpu`` returns lies there no more.

    Attributes:
        found: number of reads by place in the code of dptrain.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._there: Any = WeakIdKeyDictionary()
        for tensor in tensors:
            self.place(tensor)
        self.found: Counter[str] = Counter()

    def place(self, tensor: torch.Tensor) -> None:
        """Says that a tensor lies on the device."""
        self._there[tensor] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, torch.Tensor)]
        if any(one in self._there for one in given):
            name = func.overloadpacket.__name__
            masks = name in ("index", "index_put", "index_put_") and any(one.dtype == torch.bool for one in given[1:])
            if name in READS or masks:
                self._note(name)
            for one in tree_leaves(out):
                if isinstance(one, torch.Tensor):
                    self.place(one)
        return out

    def _note(self, name: str) -> None:
        stack = traceback.extract_stack()
        where = next((frame for frame in reversed(stack) if "/dptrain/" in frame.filename), stack[0])
        self.found[f"{where.filename.rsplit('/dptrain/')[-1]}:{where.name}:{name}"] += 1

    @contextmanager
    def watching(self) -> Iterator["DeviceReads"]:
        """Watches for the time of a block."""
        mode = self

        def reading(name: str) -> Any:
            original = getattr(torch.Tensor, name)

            def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if self in mode._there:
                    mode._note(name)
                    self = self.detach().clone()
                    del mode._there[self]
                return original(self, *args, **kwargs)

            return method

        with pytest.MonkeyPatch.context() as patch, self:
            for name in ("cpu", "tolist", "numpy"):
                patch.setattr(torch.Tensor, name, reading(name))
            yield self
