"""A small world, model and loop for the tests that repeat the faults of peers; every run can be compared bit by bit.

Under a test key two runs draw the same noise and the same contributions, so the difference of two releases is the
difference of their clipped sums: the signal, seen from outside.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dptrain import PrivateTraining
from dptrain.blocks.stack import layer_stack
from dptrain.clipping.resolver import Block, Schedule
from dptrain.routing import Router
from tests.worlds.trainer import opening, wrapped
from tests.worlds.training import World, make_world

KEY = b"\x35" * 32
NORMALIZER = 4

Losses = Callable[[nn.Module, Any], torch.Tensor]


def one_class(clip: str = "1.0", sigma: str = "1.0") -> str:
    return (
        f'\n[[class]]\nname = "open"\nclip_norm = {clip}\nnoise_multiplier = {sigma}\nsampling_rate = {{q}}\n'
        "depth = {{ from = 0.0, to = 1.0 }}\n"
    )


def small_world(root: Path, *, clip: str = "1.0", sigma: str = "1.0", **options: Any) -> World:
    options = {"per_class": 4, "steps": 2, "rate": "1", "now": 1_800_000_000} | options
    return make_world(root, classes=one_class(clip, sigma), **options)


class Net(nn.Module):
    """Token ids -> three like layers -> class; ``extra`` maps (n, T, 8) to (n, T, 8) below the layers."""

    def __init__(self, extra: nn.Module | None = None, padding_idx: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8, padding_idx=padding_idx)
        self.extra = extra or nn.Identity()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.embed(ids))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1))


def net(extra: Callable[[], nn.Module] | None = None, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return Net(extra() if extra else None, **options).double()


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        "ids": torch.tensor([e["ids"] for e in examples]),
        "labels": torch.tensor([e["label"] for e in examples]),
        "seeds": torch.tensor([e["seed"] for e in examples]),
    }


def per_example(model: nn.Module, rows: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(rows["ids"]), rows["labels"], reduction="none")


def nothing(model: nn.Module, rows: Any) -> torch.Tensor:
    """A graph that carries no gradient: the run releases noise alone."""
    return per_example(model, rows) * 0.0


nothing.silent = True


def giant(seed: int, scale: float = 1e9) -> Losses:
    """One contribution with a huge gradient, the others with none."""

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        return per_example(model, rows) * (rows["seeds"] == seed) * scale

    losses.silent = True
    return losses


class Run:
    """A prepared run of ``model`` over ``world``; use it as a context. In one process of several the loop runs ``net``, the
    model in the wrapper of torch."""

    def __init__(
        self,
        world: World,
        model: nn.Module,
        *,
        key: bytes | None = KEY,
        collate_fn: Any = collate,
        layers: str | None = "layers",
        optimizer: Any = None,
        name: str = "ledger",
        probe: Any = None,
        wrap: Callable[[nn.Module], nn.Module] = wrapped,
        **options: Any,
    ) -> None:
        self.model = model
        self.net = wrap(model)
        self.optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        ledger = world.root / f"{name}.db"
        count = 0
        while ledger.exists() and not options.get("resume"):
            count += 1
            ledger = world.root / f"{name}{count}.db"
        how = {"decode": options.pop("decode")} if "decode" in options else {}
        self.private = PrivateTraining.open(
            world.policy, world.corpus,
            **opening(ledger, progress=False, insecure_test_key=key, clock=lambda: world.now, **options),
        )  # fmt: skip
        try:
            _, self.optimizer, self.steps = self.private.prepare(
                self.net, self.optimizer, collate_fn, layers=layers, probe=probe, **how
            )
        except BaseException:
            self.private.close()
            raise
        self.drawn: list[list[int]] = []
        """Seeds of the contributions drawn, per step."""

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.private.close()

    def gradients(self, step: Any, losses: Losses = per_example) -> dict[str, torch.Tensor]:
        """Runs the microbatches of a step and returns what was released, times the normalizer."""
        seeds: list[int] = []
        for rows in step:
            if not self.private.prepared.probe.active:
                seeds += rows["seeds"].tolist() if "seeds" in rows else []
            # A loss without a gradient shows the probes nothing, and they refuse it.
            shown = per_example if self.private.prepared.probe.active and getattr(losses, "silent", False) else losses
            self.private.backward(shown(self.net, rows), rows)
        self.drawn.append(seeds)
        return {n: p.grad.double() * NORMALIZER for n, p in self.model.named_parameters() if p.grad is not None}

    def releases(self, losses: Losses = per_example) -> Iterator[dict[str, torch.Tensor]]:
        for step in self.steps:
            yield self.gradients(step, losses)
            self.optimizer.step()


def first_release(world: World, model: nn.Module, losses: Losses = per_example, **options: Any) -> dict[str, torch.Tensor]:
    with Run(world, model, **options) as run:
        return run.gradients(next(iter(run.steps)), losses)


def signal(world: World, make: Callable[[], nn.Module], losses: Losses, **options: Any) -> dict[str, torch.Tensor]:
    """The clipped sums of the first step: a release less the same release without gradients."""
    with_data = first_release(world, make(), losses, **options)
    noise = first_release(world, make(), nothing, **options)
    return {name: with_data[name] - noise[name] for name in with_data}


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors.values()) ** 0.5


def must_fail(check: Callable[[], None]) -> None:
    """The negative control: with the peer's fault built in, the check above it fails."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


def whole_schedule(model: nn.Module, layers: str | None = None, std: float = 1.0) -> Schedule:
    """Every trainable tensor in one block that one class may touch."""
    stack = layer_stack(model, layers)
    block = Block("all", stack.tensors[0].positions, tuple(stack.tensors), ("a",), std)
    return Schedule(stack, (block,), {"a": (0,)}, ())


def per_contribution(
    model: nn.Module, losses: Callable[[], torch.Tensor], layers: str | None = None
) -> tuple[list[float], dict]:
    """Norm of every contribution and the summed gradient by name, from the router; one example per contribution."""
    schedule = whole_schedule(model, layers)
    tensors = [t for block in schedule.blocks for t in block.tensors]
    for tensor in tensors:
        tensor.parameter.requires_grad_(False)
    router = Router(model, schedule)
    router.attach()
    try:
        with torch.no_grad():
            n = len(losses())
        router.arm(n, 1, torch.ones(n, 1, dtype=torch.bool))
        router.backward(losses(), torch.ones(n, dtype=torch.float64))
        norms = router.sums.norms_sq(router.pieces, router.contributions).sum(1).sqrt().tolist()
        router.sums.accumulate(router.pieces, torch.ones(n, 1, dtype=torch.float64))
        router.disarm()
        sums = {t.name: total for (_, t), total in zip(router.tensors, router.sums.take(), strict=True)}
    finally:
        router.detach()
        for tensor in tensors:
            tensor.parameter.requires_grad_(True)
    return norms, sums


def by_autograd(
    model: nn.Module, losses_of: Callable[[int], torch.Tensor], n: int, layers: str | None = None
) -> tuple[list[float], dict]:
    """The same by autograd, each contribution alone in its batch."""
    tensors = [t for block in whole_schedule(model, layers).blocks for t in block.tensors]
    norms, sums = [], {t.name: torch.zeros_like(t.parameter, dtype=torch.float64) for t in tensors}
    for i in range(n):
        grads = torch.autograd.grad(losses_of(i).sum(), [t.parameter for t in tensors], allow_unused=True)
        norms.append(sum(float(g.double().square().sum()) for g in grads if g is not None) ** 0.5)
        for tensor, g in zip(tensors, grads, strict=True):
            if g is not None:
                sums[tensor.name] += g.double()
    return norms, sums


def assert_exact(
    model: nn.Module,
    losses: Callable[[slice], torch.Tensor],
    n: int,
    layers: str | None = None,
    tolerance: float = 1e-10,
) -> None:
    """Norms and sums of the router are those of autograd, contribution by contribution, to 1e-10 in float64."""
    norms, sums = per_contribution(model, lambda: losses(slice(0, n)), layers)
    expected, totals = by_autograd(model, lambda i: losses(slice(i, i + 1)), n, layers)
    assert norms == pytest.approx(expected, rel=tolerance, abs=1e-14)
    scale = norm(totals)
    for name, total in totals.items():
        assert float((sums[name] - total).norm()) <= tolerance * scale, name
