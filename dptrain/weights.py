"""The weights at the end of an epoch, as the ledger commits to them: every tensor of the model, digested by itself.

A record has the form that a safetensors file gives a tensor (`ledger.rules.weights`), so that whoever gets the saved files can
compare without torch; and all the names under which transformers and peft write it, since some write others than the model has.
"""

import hashlib
import sys
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dptrain.routing import Router
from ledger.rules.weights import WeightRecord

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
    """Digests the tensors of a model, those that are not trained only when they were written to since.

    Guarantee: a record of a trained tensor is of the bytes that it has now. One of a tensor that is not trained may be of those
    that it had before, if somebody wrote around autograd's count of versions (``.data``): then the record fits no file, and a
    release of that tensor is told to differ.
    """

    def __init__(self, model: nn.Module, router: Router) -> None:
        """Binds the model; finds out under which names it will be saved, so that a library that cannot tell fails here."""
        self._model = model
        self._trained = {id(tensor.parameter) for _, tensor in router.tensors}
        self._adapters = {name: adapter.name for adapter in router.schedule.stack.adapters.values() for name in adapter.tensors}
        self._saved = saved_names(model)
        self._known: dict[str, tuple[weakref.ref[torch.Tensor], int, bytes]] = {}

    def records(self) -> tuple[WeightRecord, ...]:
        """The tensors as they are now: of each its names, type, shape and digest. Memory for one piece of each thread."""
        groups: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        for name, value in self._model.state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor) and (id(value) in self._trained or _has_bytes(value)):
                groups.setdefault(id(value), []).append(name)
                tensors[id(value)] = value
        digests = self._digests({names[0]: tensors[key] for key, names in groups.items()})
        return tuple(self._record(names, tensors[key], digests[names[0]]) for key, names in groups.items())

    def _digests(self, tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
        """Digest by name; large tensors side by side, on as many threads as torch may use."""
        large = {name for name, tensor in tensors.items() if tensor.numel() * tensor.element_size() >= LARGE}
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
        if id(tensor) in self._trained or tensor.is_inference():
            return digest_of(tensor)
        known, version = self._known.get(name), tensor._version
        if known is None or known[0]() is not tensor or known[1] != version:
            known = self._known[name] = weakref.ref(tensor), version, digest_of(tensor)
        return known[2]


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
    else:
        for row in tensor:
            yield from _pieces(row)


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one that a safetensors file could hold as it is."""
    plain = tensor.layout is torch.strided and not tensor.is_meta and not is_traceable_wrapper_subclass(tensor)
    return plain and tensor.dtype in _DTYPES


def saved_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Other names under which the libraries that save a model write its tensors, by name in the model.

    transformers writes some models under the names of their original files, peft leaves the name of the adapter out. What they
    compute from several tensors (experts that the model holds as one, prompts that an encoder makes) has no name in the model.
    """
    found: dict[str, dict[str, None]] = {}
    adapted = False
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        if _is("peft", "PeftModel", module):
            adapted = True
            for name, saved in _of_peft(module):
                found.setdefault(prefix + name, {})[prefix + saved] = None
        elif not adapted and _is("transformers", "PreTrainedModel", module):
            for name, saved in _of_transformers(module):
                found.setdefault(prefix + name, {})[prefix + saved] = None
    return {name: tuple(saved) for name, saved in found.items()}


def _is(library: str, kind: str, module: nn.Module) -> bool:
    """Whether a module is of a library's class, without loading the library for it."""
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(module, getattr(loaded, kind))


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


def _of_transformers(model: Any) -> Iterator[tuple[str, str]]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before version 5 it wrote every model under its own names
        return
    # On the meta device, so that what is computed for a file is not computed here.
    state = {name: value.to("meta") for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    yield from _renamed(state, revert_weight_conversion(model, dict(state)))


def _renamed(state: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    """Name in the model and name in the file of every tensor that is written as it is."""
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    for name, value in saved.items():
        for own in names.get(id(value), ()):
            if own != name:
                yield own, name
