"""Digest the trainable weights, under the names and in the form in which libraries save them.

transformers writes some models under the names of their original files, and some tensors in the form that those have: experts
that the model holds as one tensor are written one by one. peft leaves the name of the adapter out.
"""

import hashlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dptrain.blocks.shards import is_shard, local, whole
from dptrain.routing import Router
from ledger.leaves.weights import WeightRecord, frozen_digest


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
        """Return the tensors that are written, by name, given the tensors of ``sources``."""
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
    """Tell if a module is of a library's class, without loading the library for it."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(module, getattr(loaded, kind))


def _of_transformers(model: nn.Module, prefix: str) -> tuple[list[tuple[str, str]], list[Computed]]:
    # On the meta device, where nothing is computed.
    held = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    state = {name: torch.empty(value.shape, dtype=value.dtype, device="meta") for name, value in held.items()}
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
    """Yield the tensors that are not written as they are, in the smallest groups that can be written alone: one, or a
    module's.
    """
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


PIECE = 1 << 24
"""Bytes that are copied and digested at a time."""

LARGE = 1 << 20
"""Bytes from which on a tensor is worth a thread's attention."""

_DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16", torch.int32: "I32",
    torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip
"""As safetensors spells them."""


class Weights:
    """Digests the tensors of a model: the trained ones whenever asked, the others once, before the first step.

    Guarantee: a record of a trained tensor is of the bytes that it has now. One of a tensor that is not trained is of those
    that it had when the run began, so that no digest in a public leaf tells what a forward may have written there; a release
    of a tensor that was written since is told to differ.
    """

    def __init__(self, model: nn.Module, router: Router) -> None:
        """Binds the model; finds out under which names it will be saved, so that a library that cannot tell fails here."""
        self._model = model
        self._trained = {id(tensor.parameter) for _, tensor in router.tensors}
        self._adapters = {name: adapter.name for adapter in router.schedule.stack.adapters.values() for name in adapter.tensors}
        self._saved, self._computed = saved_forms(model)
        self._parameters = frozenset(name for name, _ in model.named_parameters(remove_duplicate=False))
        self._fixed: dict[str, bytes] = {}
        self._computed_once: dict[str, list[WeightRecord]] = {}
        self.frozen_digest: bytes | None = None

    def fix(self) -> None:
        """Digests what is not trained, as it is before the first step; ``frozen_digest`` is over the parameters among it."""
        self._fixed, self._computed_once = {}, {}
        self.frozen_digest = frozen_digest(self.records(), self._parameters)

    def records(self) -> tuple[WeightRecord, ...]:
        """The tensors as they are now: of each its names, type, shape and digest. Memory for one piece of each thread."""
        groups: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        for name, value in self._model.state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor) and (id(value) in self._trained or _has_bytes(local(value))):
                groups.setdefault(id(value), []).append(name)
                tensors[id(value)] = value
        digests = self._digests({names[0]: tensors[key] for key, names in groups.items()})
        found = [self._record(names, tensors[key], digests[names[0]]) for key, names in groups.items()]
        named = {name: (names[0], tensors[key]) for key, names in groups.items() for name in names}
        taken = {name for record in found for name in record.names}
        for computed in self._computed:
            if named.keys() >= set(computed.sources):
                found += [record for record in self._of(computed, named) if record.names[0] not in taken]
                taken.update(record.names[0] for record in found)
        return tuple(found)

    def _of(self, computed: Computed, named: dict[str, tuple[str, torch.Tensor]]) -> list[WeightRecord]:
        """The tensors that are computed for a file from some of the model; once, if none of those is trained."""
        sources = [named[name] for name in computed.sources]
        trained = any(id(tensor) in self._trained for _, tensor in sources)
        if not trained and computed.sources[0] in self._computed_once:
            return self._computed_once[computed.sources[0]]
        first = tuple(dict.fromkeys(name for name, _ in sources))
        with torch.no_grad():
            values = computed.values([whole(tensor).detach() for _, tensor in sources])
            records = [
                WeightRecord((name,), None, trained, _DTYPES[value.dtype], tuple(value.shape), digest_of(value), first)
                for name, value in values.items()
            ]
        if not trained:
            self._computed_once[computed.sources[0]] = records
        return records

    def _digests(self, tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
        """Digest by name; large tensors side by side, on as many threads as torch may use; what lies over ranks in its turn."""
        large = {
            name for name, tensor in tensors.items()
            if tensor.numel() * tensor.element_size() >= LARGE and not is_shard(tensor)
        }  # fmt: skip
        found = {name: self._digest(name, tensor) for name, tensor in tensors.items() if name not in large}
        if large:
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                found |= zip(large, pool.map(lambda name: self._digest(name, tensors[name]), large), strict=True)
        return found

    def _record(self, own: list[str], tensor: torch.Tensor, digest: bytes) -> WeightRecord:
        names = dict.fromkeys([*own, *(saved for name in own for saved in self._saved.get(name, ()))])
        adapter = next((self._adapters[name] for name in own if name in self._adapters), None)
        dtype, shape = _DTYPES[tensor.dtype], tuple(tensor.shape)
        return WeightRecord(tuple(names), adapter, id(tensor) in self._trained, dtype, shape, digest)

    def _digest(self, name: str, tensor: torch.Tensor) -> bytes:
        if id(tensor) in self._trained:
            return digest_of(whole(tensor))
        if name not in self._fixed:
            self._fixed[name] = digest_of(whole(tensor))
        return self._fixed[name]


def digest_of(tensor: torch.Tensor) -> bytes:
    """SHA-256 of a tensor's bytes as safetensors writes them, row-major and little-endian, copied piece by piece to the CPU."""
    digest = hashlib.sha256()
    for piece in _pieces(tensor.detach()):
        digest.update(piece.contiguous().view(torch.uint8).cpu().numpy().data)
    return digest.digest()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Flat pieces of a tensor in row-major order, of ``PIECE`` bytes at most, also of one that does not lie in that order."""
    if tensor.is_contiguous() or tensor.numel() * tensor.element_size() <= PIECE:
        yield from tensor.reshape(-1).split(PIECE // tensor.element_size())
        return
    rows = PIECE // (tensor[0].numel() * tensor.element_size())
    if rows:
        yield from (block.reshape(-1) for block in tensor.split(rows))
    else:
        for row in tensor:
            yield from _pieces(row)


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Tell if a safetensors file could hold a tensor as it is."""
    plain = tensor.layout is torch.strided and not tensor.is_meta and not is_traceable_wrapper_subclass(tensor)
    return plain and tensor.dtype in _DTYPES
