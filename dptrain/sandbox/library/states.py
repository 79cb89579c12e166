"""Lets a recurrence of transformers run from no state in a private microbatch, and leave none.

RecurrentGemma keeps the last state of its recurrence, and of the convolution before it, in attributes of its modules. With
``use_cache=False`` its blocks forget both before they run; a recurrence that is called by another way, or with a cache, goes on
from the state of whoever was there before. This stands on code that was read, known by its digest; a class with other code, of
another version or a user's own, is refused by :func:`dptrain.routing.couplings.couplings`.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dptrain.errors import CoupledModel
from dptrain.sandbox.library.known import is_known

STATES = {"RecurrentGemmaRglru": "recurrent_states", "RecurrentGemmaRecurrentBlock": "conv1d_state"}
"""The attribute in which a class keeps its state."""

RUNS = "RecurrentGemmaRglru"
"""The class that goes on from its state; the other one reads its own beside this."""

_READ: dict[str, dict[str, tuple[str, tuple[Any, ...] | None]]] = {
    "RecurrentGemmaRglru": {
        "forward": ("b4ad72fdf0d80030d99604d447b3108caafbdaa44b7b74c96d909e0d5acc76ab", None),
        "_rnn_scan": ("edcf0cbffabce49172948b23e10d1c7114f8244d4a9c5c6959ca00ce27519ca5", (torch.float32,)),
    },
    "RecurrentGemmaRecurrentBlock": {
        "forward": ("cce3570274ab15aa701ce18ce886c920b0b0667ea79175735766d6076a2441b4", (True,)),
    },
}
"""SHA-256 of the source of what was read, and its defaults."""


class States:
    """Watches the states of a model's modules while a pass is entered; :meth:`detach` leaves no trace.

    Guarantee: in a pass no listed module goes on from a state that was there when it was called. After it every state is what
    it was before, so that nothing of a microbatch reaches another.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, name) for name, module in model.named_modules() if knows(module)]
        self._before: list[Any] = []
        self._attached = False
        self._live = True
        # Under the same ids in every pass: a new hook would be a new state of the program, for which a new graph is made.
        runs = [module for module, _ in self._modules if type(module).__name__ == RUNS]
        self._first = [(module, RemovableHandle(module._forward_pre_hooks).id) for module in runs]
        self._last = [(module, RemovableHandle(module._forward_hooks).id) for module in runs]

    def __getstate__(self) -> dict[str, object]:
        """A copied model takes hooks along, which do nothing there."""
        return {"_live": False}

    def attach(self) -> None:
        if not self._modules or self._attached:
            return
        self._attached = True
        self._before = [getattr(module, STATES[type(module).__name__]) for module, _ in self._modules]
        self._set([None] * len(self._modules))
        for module, number in self._first:
            module._forward_pre_hooks[number] = self._require_none
        for module, number in self._last:
            module._forward_hooks[number] = self._forget
            module._forward_hooks_always_called[number] = True

    def detach(self) -> None:
        if not self._attached:
            return
        self._attached = False
        for module, number in self._first:
            module._forward_pre_hooks.pop(number, None)
        for module, number in self._last:
            module._forward_hooks.pop(number, None)
            module._forward_hooks_always_called.pop(number, None)
        self._set(self._before)
        self._before = []

    def _set(self, states: list[Any]) -> None:
        for (module, _), state in zip(self._modules, states, strict=True):
            setattr(module, STATES[type(module).__name__], state)

    def _require_none(self, module: nn.Module, args: tuple) -> None:
        """Raises CoupledModel, code KEPT_STATE, for a call that would go on from a state."""
        if self._live and getattr(module, STATES[RUNS]) is not None:
            name = next((name for own, name in self._modules if own is module), "a copy")
            self._set([None] * len(self._modules))
            raise CoupledModel(
                "KEPT_STATE",
                f"{name!r} ({RUNS}) would go on from a state that it kept, of whoever was there before, expected none in a "
                "private microbatch; set use_cache=False in the configuration or the call, as training code sets it",
            )

    def _forget(self, module: nn.Module, args: tuple, output: object) -> None:
        if self._live:
            setattr(module, STATES[RUNS], None)


def knows(module: nn.Module) -> bool:
    """Tells whether a module keeps its state as the code that was read does."""
    kind = type(module)
    read = _READ.get(kind.__name__)
    if read is None or not kind.__module__.startswith("transformers."):
        return False
    library = vars(sys.modules[kind.__module__])
    return not any(name in vars(module) for name in read) and all(
        is_known(vars(kind).get(name), digest, defaults, library)
        for name, (digest, defaults) in read.items()
    )


def held_states(modules: Iterable[nn.Module]) -> set[int]:
    """Lists the modules of a model, by identity, of which a block that is known uses the state, or that are such a block."""
    blocks = [module for module in modules if type(module).__name__ != RUNS and knows(module)]
    return {id(own) for block in blocks for own in (block, getattr(block, "rg_lru", None))}


def keeps_state(module: nn.Module) -> bool:
    """Tells whether a module is, or inherits from, one that keeps a state."""
    return any(base.__name__ in STATES for base in type(module).__mro__)
