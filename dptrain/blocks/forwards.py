"""Narrowed forwards: switches the adapters off that the class of a microbatch does not read.

Done on the layers of peft themselves, which go through their list of active adapters in every forward. Nothing else of the
model changes: not who trains, not which modules there are, not what hooks they carry.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from dptrain.blocks.adapters import entries_of
from dptrain.errors import NotPrivateUse, UnsupportedModule

Reads = frozenset[str] | None
"""Names of the adapters that a forward reads beside the base; None for the whole model, as it is."""


SWITCHED = ("Linear", "Conv1d", "Conv2d", "Conv3d")
"""Layers of LoRA that call the modules of one active adapter after the other, and touch those of no other."""


@dataclass(frozen=True)
class _Layer:
    """A layer of peft that goes through its active adapters.

    Attributes:
        active: those that the user activated, in their order. names: all that it has.
    """

    path: str
    module: Any
    active: list[str]
    names: tuple[str, ...]

    @classmethod
    def of(cls, path: str, module: Any) -> "_Layer":
        """Returns a layer as it stands."""
        return cls(path, module, list(module.active_adapters), tuple(dict.fromkeys((*module.lora_A, *module.lora_B))))

    def narrowed(self, reads: frozenset[str]) -> list[str]:
        """Returns the active adapters that are read, in the same order."""
        return [name for name in self.active if name in reads]


class Forwards:
    """Narrows the forwards of one model to the adapters that its classes read.

    Guarantee: within `reading`, no module of an adapter that is not named runs; a forward that calls one all the same raises
    before it does. Afterwards the layers have the very lists of active adapters that they had before. Use of such an adapter's
    tensors past its modules is not seen here; the start-up probes look for it (`dptrain.engine.start`).

    Args:
        model: the model of the run. sets: what classes read, each once.

    Raises:
        UnsupportedModule: code READS_KIND, an adapter of the model is not known to be switched off by its name; READS_INACTIVE,
            one that a class reads is not active at every layer that has it, or is disabled or merged.
    """

    def __init__(self, model: nn.Module, sets: Iterable[Reads] = (None,)) -> None:
        self.sets = tuple(dict.fromkeys(sets)) or (None,)
        self.narrows = any(one is not None for one in self.sets)
        self._layers: list[_Layer] = []
        self._adapters: list[tuple[str, str, nn.Module]] = []
        self._handles: list[RemovableHandle] = []
        self._now: Reads = None
        if self.narrows:
            self._find(model)

    def __getstate__(self) -> dict[str, object]:
        """A copied or pickled model takes its hooks along: they do nothing there."""
        return {"_now": None}

    @contextmanager
    def reading(self, reads: Reads) -> Iterator[None]:
        """Runs a block in which forwards read the base and these adapters; the whole model for None.

        Raises:
            NotPrivateUse: code READS_CHANGED, adapters were merged, disabled or activated by another list since the start.
        """
        if not self.narrows or reads is None:
            yield
            return
        self._require_as_bound()
        before = [layer.module._active_adapter for layer in self._layers]
        for layer in self._layers:
            layer.module._active_adapter = layer.narrowed(reads)
        self._now = reads
        try:
            yield
        finally:
            self._now = None
            for layer, active in zip(self._layers, before, strict=True):
                layer.module._active_adapter = active

    def attach(self) -> list[RemovableHandle]:
        """Installs hooks that stop a module of an adapter that is not read, and returns them; `detach` takes them away."""
        for path, adapter, module in self._adapters:
            self._handles.append(module.register_forward_pre_hook(partial(self._stop, path, adapter)))
        return self._handles

    def detach(self) -> None:
        """Removes every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _stop(self, path: str, adapter: str, module: nn.Module, args: tuple) -> None:
        reads = self._now
        if reads is not None and adapter not in reads:
            read = ", ".join(map(repr, sorted(reads))) or "no adapter"
            raise UnsupportedModule(
                "READS",
                f"module {path!r} of adapter {adapter!r} runs in a forward of contributions that read {read} by the policy; "
                "leave the choice of adapters to the run (no adapter_names, no set_adapter in the loop)",
            )

    def _find(self, model: nn.Module) -> None:
        found: dict[int, tuple[str, Any]] = {}
        for entry in entries_of(model):
            module: Any = entry.module
            held = getattr(module, entry.attribute)
            if not _switched(module, entry.attribute, entry.adapter, entry.kind):
                where = f"{entry.path!r} ({type(module).__name__})" if entry.path else f"the model ({type(module).__name__})"
                raise UnsupportedModule(
                    "READS_KIND",
                    f"adapter {entry.adapter!r} holds {entry.attribute!r} at {where}, which is not known to be switched off by "
                    "its name alone; forwards that read a part of the adapters take plain LoRA on linear layers. Use that, or "
                    "sign a policy without reads",
                )
            if entry.adapter in held:
                found[id(module)] = entry.path, module
                self._adapters.append((f"{entry.path}.{entry.attribute}.{entry.adapter}", entry.adapter, held[entry.adapter]))
        self._layers = [_Layer.of(path, module) for path, module in found.values()]
        for layer in self._layers:
            for reads in self.sets:
                _require_active(layer, reads or frozenset())

    def _require_as_bound(self) -> None:
        for layer in self._layers:
            module = layer.module
            if _Layer.of(layer.path, module) == layer and not (module.disable_adapters or module.merged_adapters):
                continue
            raise NotPrivateUse(
                "READS_CHANGED",
                f"adapters at {layer.path!r} were added, activated, merged or disabled since prepare(), so that forwards would "
                "not read what the policy says; leave them alone until close()",
            )


def _require_active(layer: _Layer, reads: frozenset[str]) -> None:
    module = layer.module
    missing = [name for name in layer.names if name in reads and name not in layer.active]
    if not missing and not module.disable_adapters and not module.merged_adapters:
        return
    why = f"adapter {missing[0]!r} is not active" if missing else "adapters are disabled or merged"
    raise UnsupportedModule(
        "READS_INACTIVE",
        f"{why} at {layer.path!r}, and forwards of the policy read adapters one by one; before prepare() unmerge and enable "
        "all, and activate every adapter that the policy names: model.base_model.set_adapter([...])",
    )


def _switched(module: Any, attribute: str, adapter: str, kind: str) -> bool:
    """Tells whether a layer leaves an adapter out of its forward where that is not active."""
    if kind or type(module).__module__ != "peft.tuners.lora.layer" or type(module).__name__ not in SWITCHED:
        return False
    held = getattr(module, attribute, None)
    variant = (getattr(module, "lora_variant", None) or {}).get(adapter)
    called = attribute in ("lora_A", "lora_B") and isinstance(held, nn.ModuleDict)
    return called and variant is None and hasattr(module, "_active_adapter")
