"""One model, one schedule with random masks and bounds, and a microbatch that runs in the hook form or the compiled form."""

import random
from collections.abc import Callable

import torch
from torch import nn

from dptrain.data.microbatch import Microbatch, row_names
from dptrain.routing import Router
from dptrain.routing.compiled import CompiledLoss
from dptrain.sandbox import Sandbox
from tests.reference.compare import random_schedule, rows_of
from tests.reference.families import FAMILIES, Family
from tests.worlds.bounds import bounds_of


def mlp(width: int = 6, dropout: float = 0.0) -> Family:
    """Three blocks of one linear layer and a head: compiles in no time."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(width, width)
            self.drop = nn.Dropout(dropout)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.drop(torch.tanh(self.inner(x)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Block() for _ in range(3)])
            self.head = nn.Linear(width, 3)
            self.temperature = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x) / self.temperature

    def batch(n: int, seed: int) -> dict:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, width, generator=g, dtype=torch.float64)
        return {"x": x, "labels": torch.randint(0, 3, (n,), generator=g)}

    def losses(model: nn.Module, rows: dict) -> torch.Tensor:
        return nn.functional.cross_entropy(model(rows["x"]), rows["labels"], reduction="none")

    return Family(Model().double(), batch, losses)


class Scene:
    """Runs microbatches of ``n`` contributions with ``m`` examples; ``full`` is what the run calls a full microbatch."""

    def __init__(
        self,
        family: str | Family,
        *,
        n: int = 5,
        m: int = 1,
        full: int = 6,
        dtype: torch.dtype = torch.float64,
        exactness: str = "fast",
        losses: Callable | None = None,
        bounds_seed: int = 7,
    ) -> None:
        torch.manual_seed(1)
        rng = random.Random(bounds_seed)
        self.family = FAMILIES[family]() if isinstance(family, str) else family
        self.model = self.family.model.to(dtype).train()
        self.n, self.m, self.dtype = n, m, dtype
        self.schedule = random_schedule(self.model, rng, 3)
        trained = frozenset(id(parameter) for parameter in self.model.parameters())
        self.sandbox = Sandbox(self.model, trained, b"0123456789abcdef")
        self.router = Router(self.model, self.schedule, exactness=exactness, sandbox=self.sandbox)
        for _, tensor in self.router.tensors:
            tensor.parameter.requires_grad_(False)
        self.router.attach()
        names = list(self.schedule.profiles)
        self.rows = [(10 ** rng.uniform(-2, 0), rng.uniform(0.5, 4.0), self.schedule.profiles[names[i % 3]]) for i in range(n)]
        self.losses = losses or self.family.losses
        self.compiled = CompiledLoss(self.router, self.model, self.losses, full, whole=exactness == "certified")
        self.step = 1
        for count in (3, 2):
            rows = self.microbatch(n=count)
            with self.sandbox.enter(0, rows.names, learning=True):
                self.losses(self.model, rows)
        self.sandbox.layouts.decide()

    def microbatch(self, seed: int = 3, n: int | None = None) -> Microbatch:
        n = n or self.n
        batch = self.family.batch(n * self.m, seed)
        inputs = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in batch.items()}
        weight = torch.full((n, self.m), 1.0 / self.m, dtype=torch.float64)
        if self.m > 1:
            weight[0, 1:] = 0.0  # a contribution of one example, padded
            weight[0, 0] = 1.0
        owners = [b"contribution" + i.to_bytes(4, "big") for i in range(n)]
        return Microbatch(inputs, n, self.m, weight.flatten(), row_names(owners, self.m))

    def bounds(self, n: int | None = None, rows: list | None = None):
        return bounds_of((rows or self.rows)[: n or self.n], len(self.schedule.blocks))

    def run(self, rows: Microbatch, *, compiled: bool, bounds=None) -> list[torch.Tensor]:
        """The sums of one microbatch."""
        bounds = bounds or self.bounds(rows.contributions)
        self.router.arm(rows.contributions, rows.examples, bounds.permitted_NG)
        with self.sandbox.enter(self.step, rows.names):
            losses = (self.compiled if compiled else self.losses)(self.model, rows)
            if not compiled or not self.compiled.deliver(losses):
                self.router.require_losses(losses)
                self.router.backward(losses, rows.weight)
        self.router.fold(bounds)
        return list(self.router.sums.take())

    def off_lattice(self, a: list[torch.Tensor], b: list[torch.Tensor]) -> int:
        """Coordinates that are not the same integer after rounding to s * 2^-32, as the release does."""
        steps = [self.schedule.blocks[block].std * 2.0**-32 for block, _ in self.router.tensors]
        return sum(int((torch.round(x / s) != torch.round(y / s)).sum()) for x, y, s in zip(a, b, steps, strict=True))

    def move(self) -> None:
        """What an optimizer does: new values in place."""
        with torch.no_grad():
            for _, tensor in self.router.tensors:
                tensor.parameter.add_(torch.randn_like(tensor.parameter), alpha=0.02)


__all__ = ["Scene", "mlp", "rows_of"]
