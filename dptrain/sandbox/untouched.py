"""Check that tensors are what they were: by version for operations of torch, by checksum for all other writes."""

import functools
import gc
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from dptrain.blocks.shards import local
from dptrain.errors import NotPrivateUse
from dptrain.kernels import checksums as kernel

_ODD = kernel.ODD - (1 << 64)
_SIDE = kernel.SIDE
_PIECE = _SIDE * _SIDE
"""64-bit words that are summed at a time, by rows and by columns: small enough for the cache, where they are read twice."""


def versions(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """Count the operations of torch that have written each tensor; None for an inference tensor, which does not count."""
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]


def checksums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Checksums of tensors, shape (N,), int64, on the device of the first: of their bits, and of where these lie.

    Guarantee:
        A change of any single word (8 bytes) changes the checksum of its tensor, and so do two words that trade places. Other
        changes go unseen with a chance of about 2^-64. Weights are fixed, so this is no defence against whoever builds a
        collision: only the trainer could, who could as well change the program.

    Every tensor is read once, and nothing is copied of one that is contiguous (docs/performance.md has the cost).
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.int64)
    with torch.no_grad():
        lying = [local(tensor).detach() for tensor in tensors]
        taken = [kernel.takes(tensor) for tensor in lying]
        found = iter(kernel.checksums([tensor for tensor, takes in zip(lying, taken, strict=True) if takes]))
        if all(taken):
            return torch.tensor(list(found), dtype=torch.int64, device="cpu")
        sums = [
            torch.tensor(next(found), dtype=torch.int64, device="cpu") if takes else _checksum(tensor)
            for tensor, takes in zip(lying, taken, strict=True)
        ]
        return torch.stack([one.to(lying[0].device) for one in sums])


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    raw = flat.view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    words = raw[: raw.numel() // 8 * 8].view(torch.int64)
    square = words.numel() // _SIDE * _SIDE
    total = torch.full((), raw.numel(), dtype=torch.int64, device=raw.device)
    rows, columns = _weights(raw.device)
    for piece in words[:square].split(_PIECE):
        grid = piece.view(-1, _SIDE)
        total = total * _ODD + (grid.sum(1) * rows[: len(grid)]).sum() + (grid.sum(0) * columns).sum()
    for rest in (words[square:], raw[words.numel() * 8 :]):
        total = total * _ODD + (rest * rows[: len(rest)]).sum()
    return total


@functools.lru_cache(maxsize=8)
def _weights(device: torch.device) -> torch.Tensor:
    """Weights of rows and columns; those of a cell add up to an odd number that no other cell has, so a swap shows."""
    odd = torch.arange(1, 2 * _SIDE, 2, device=device, dtype=torch.int64)
    return torch.stack((odd, odd * (2 * _SIDE)))


class Remembered:
    """Tensors as they were at one moment.

    Attributes:
        tensors: what is remembered; empty before the first `take`.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._versions: list[int | None] = []
        self._sums = torch.zeros(0, dtype=torch.int64)

    def take(self, tensors: Sequence[torch.Tensor]) -> None:
        """Remembers tensors as they are."""
        self.tensors = list(tensors)
        self._versions, self._sums = versions(self.tensors), checksums(self.tensors)

    def changed(self) -> bool:
        """Tell if anything has written one of them since.

        A version that moved on counts although the values are the same: a clip that did not bite this time writes all the same,
        and would have bitten had another been larger.
        """
        return versions(self.tensors) != self._versions or not torch.equal(checksums(self.tensors), self._sums)

    def forget(self) -> None:
        """Lets go of the tensors."""
        self.tensors, self._versions, self._sums = [], [], self._sums[:0]


def reached(losses: torch.Tensor) -> Iterator[torch.Tensor]:
    """Leaves to which a backward pass from here goes, also those that entered the graph before the microbatch or inside a
    function of the user's own; not those behind a reentrant checkpoint."""
    todo = [losses.grad_fn]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node is None:
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for behind, _ in node.next_functions:
            if behind not in seen:
                seen.add(behind)
                todo.append(behind)


def refused_talk(operation: str) -> NotPrivateUse:
    """Returns the refusal of an operation by which the program talks to other ranks inside a private microbatch."""
    return NotPrivateUse(
        "RANKS_TALK",
        f"the forward, the loss or the loop calls {operation} inside a private microbatch: what other ranks hold there are "
        "other contributions, whose gradients would depend on each other. Take it out (contrastive losses over ranks, counts "
        "of all tokens, experts on other ranks); dptrain adds up sums itself",
    )


def refusal(leaf: torch.Tensor) -> NotPrivateUse:
    """Says what was found, by name where a module holds it."""
    holder = next((found for found in _holders(leaf)), None)
    what = f"{holder!r}, a parameter" if holder else f"a tensor of shape {tuple(leaf.shape)}"
    return NotPrivateUse(
        "FOREIGN_LEAF",
        f"the forward uses {what} outside the model given to prepare(), with requires_grad=True: a backward pass would give it "
        "the raw gradient of private examples. Make it part of the model, so that it is clipped and noised with the rest, or "
        "detach it",
    )


def _holders(leaf: torch.Tensor) -> list[str]:
    """Names under which modules hold a tensor, with the class of the module."""
    found = []
    for module in [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]:
        for name, value in module._parameters.items():
            if value is leaf:
                found.append(f"{type(module).__name__}.{name}")
    return found
