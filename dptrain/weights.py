"""The weights at the end of an epoch, as the ledger commits to them: every tensor of the model, digested by itself.

A record has the form that a safetensors file gives a tensor (`ledger.rules.weights`), so that whoever gets the saved files can
compare without torch, and every name under which it may be written (`dptrain.saving`).
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dptrain.routing import Router
from dptrain.saving import Computed, saved_forms
from ledger.rules.weights import WeightRecord, frozen_digest

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
            if isinstance(value, torch.Tensor) and (id(value) in self._trained or _has_bytes(value)):
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
            values = computed.values([tensor.detach() for _, tensor in sources])
            records = [
                WeightRecord((name,), None, trained, _DTYPES[value.dtype], tuple(value.shape), digest_of(value), first)
                for name, value in values.items()
            ]
        if not trained:
            self._computed_once[computed.sources[0]] = records
        return records

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
        if id(tensor) in self._trained:
            return digest_of(tensor)
        if name not in self._fixed:
            self._fixed[name] = digest_of(tensor)
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
    """Whether a tensor is one that a safetensors file could hold as it is."""
    plain = tensor.layout is torch.strided and not tensor.is_meta and not is_traceable_wrapper_subclass(tensor)
    return plain and tensor.dtype in _DTYPES
