"""Under which names, and in which form, the libraries that save a model write its tensors.

transformers writes some models under the names of their original files, and some tensors in the form that those have: experts
that the model holds as one tensor, one by one. peft leaves the name of the adapter out.
"""

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Computed:
    """Tensors of the model that are written as others, computed from them alone.

    Attributes:
        model: the part of the model that knows how.
        prefix: what the names of the whole model have before those of the part.
        sources: names in the model.
    """

    model: nn.Module
    prefix: str
    sources: tuple[str, ...]

    def values(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """What is written, by name, given the tensors of ``sources``."""
        state = {name.removeprefix(self.prefix): value for name, value in zip(self.sources, tensors, strict=True)}
        return {self.prefix + name: value for name, value in _reverted(self.model, state).items()}


def saved_forms(model: nn.Module) -> tuple[dict[str, tuple[str, ...]], list[Computed]]:
    """Other names of the tensors that are written as they are, by name in the model, and what is computed for a file.

    What peft computes from several tensors (prompts that an encoder makes) is in neither.
    """
    found: dict[str, dict[str, None]] = {}
    computed: dict[tuple[str, ...], Computed] = {}
    adapted = False
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        # What has adapters is saved by peft, under names of its own, also where transformers added them.
        by_peft = _is("peft", "PeftModel", module) or getattr(module, "_hf_peft_config_loaded", False) is True
        adapted |= by_peft
        if not by_peft and (adapted or not _is("transformers", "PreTrainedModel", module)):
            continue
        try:
            pairs, groups = ([*_of_peft(module)], []) if by_peft else _of_transformers(module, prefix)
        except Exception as error:  # of whatever kind: no library that cannot save a model keeps it from being trained
            warnings.warn(
                f"{type(module).__name__} cannot tell how it is saved ({type(error).__name__}: {error}); what it writes under "
                "other names than the model has will be released as not tied to the run",
                stacklevel=2,
            )
            continue
        for name, saved in pairs:
            found.setdefault(prefix + name, {})[prefix + saved] = None
        for group in groups:
            computed.setdefault(group.sources, group)  # the outermost part that has it
    return {name: tuple(saved) for name, saved in found.items()}, list(computed.values())


def _is(library: str, kind: str, module: nn.Module) -> bool:
    """Whether a module is of a library's class, without loading the library for it."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(module, getattr(loaded, kind))


def _of_transformers(model: nn.Module, prefix: str) -> tuple[list[tuple[str, str]], list[Computed]]:
    # On the meta device, where nothing is computed.
    state = {name: value.to("meta") for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    written = _reverted(model, state)
    return [*_renamed(state, written)], [*_computed(model, prefix, state, written)]


def _of_peft(model: Any) -> Iterator[tuple[str, str]]:
    from peft import get_peft_model_state_dict

    state = model.state_dict(keep_vars=True)
    for adapter in model.peft_config:
        saved = get_peft_model_state_dict(model, state_dict=state, adapter_name=adapter, save_embedding_layers=False)
        yield from _renamed(state, saved)
        # Virtual tokens are looked up once more to be saved: the same values, unless an encoder computes them.
        for name in saved.keys() - state.keys():
            same = (own for own, value in state.items() if value.shape == saved[name].shape and torch.equal(value, saved[name]))
            yield from ((own, name) for own in same if not any(saved[name] is value for value in state.values()))


def _renamed(state: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    """Name in the model and name in the file of every tensor that is written as it is."""
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    for name, value in saved.items():
        for own in names.get(id(value), ()):
            if own != name:
                yield own, name


def _computed(
    model: nn.Module, prefix: str, state: Mapping[str, torch.Tensor], written: Mapping[str, torch.Tensor]
) -> Iterator[Computed]:
    """What is not written as it is, in the smallest groups that can be written alone: one tensor, or those of a module."""
    as_is = {id(value) for value in written.values()}
    own = {id(value) for value in state.values()}
    others = {name for name, value in written.items() if id(value) not in own}
    left: dict[str, list[str]] = {}
    for name in (name for name, value in state.items() if id(value) not in as_is):
        if others.issuperset(_reverted(model, {name: state[name]})):
            yield Computed(model, prefix, (prefix + name,))
        else:
            left.setdefault(name.rpartition(".")[0], []).append(name)
    for names in left.values():
        if others.issuperset(_reverted(model, {name: state[name] for name in names})):
            yield Computed(model, prefix, tuple(prefix + name for name in names))


def _reverted(model: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state as transformers writes it; as it is before version 5, which wrote every model under its own names."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    return dict(revert_weight_conversion(model, dict(state)))
