"""A sandbox over a small model, with layouts learnt on rows of the test's own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dptrain.sandbox import Sandbox

SEED = b"0123456789abcdef"


def names(rows: Sequence[int]) -> list[bytes]:
    return [b"row" + row.to_bytes(4, "big") for row in rows]


class Scene:
    """Runs ``function(model, values)`` over rows of ``data`` as private microbatches.

    Args:
        data: tensor, or several, with rows in dimension 0.
    """

    def __init__(
        self, model: nn.Module, data: Any, function: Callable[..., Any] = lambda model, *data: model(*data), *,
        secret: bool = True, learn: tuple[int, int] = (3, 2),
    ) -> None:  # fmt: skip
        self.model = model
        self.data = data if isinstance(data, tuple) else (data,)
        self.function = function
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        trained = frozenset(id(parameter) for parameter in model.parameters())
        self.sandbox = Sandbox(model, trained, SEED, secret=secret)
        for count in learn:
            self.run(range(count), learning=True)
        self.sandbox.layouts.decide()

    def values(self, rows: Sequence[int]) -> list[torch.Tensor]:
        return [each[list(rows)] for each in self.data]

    def run(self, rows: Sequence[int], *, step: int = 1, data: Sequence[torch.Tensor] | None = None, **options: Any) -> Any:
        """What the function gives for these rows."""
        values = self.values(rows) if data is None else data
        if options.get("probing"):
            options["inputs"] = values
        with self.sandbox.enter(step, names(rows), **options):
            return self.function(self.model, *values)
