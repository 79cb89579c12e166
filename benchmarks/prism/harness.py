"""Trains the LoRA pairs of a model, and its head, with one arm: one loop of DP-SGD that all arms share.

A step draws every contribution with probability q, makes each one's gradients of the factors, maps them by the arm's chart,
clips all pairs and the head together, sums, adds Gaussian noise to every coordinate, and divides by q N. The head is moved by
Adam at one rate in all arms. It is a harness for studies of optimizers: it signs, checks and records nothing.

Gradients of one contribution come from what lora_A took in and gave, and from the gradient at lora_B's output:
gA = sum_t d_t h_t^T and gB = sum_t x_t (A^T d_t)^T. Exact where no module is called twice in a pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.prism.arms import Arm, Kept, adam, starts
from dptrain.geometry import Euclidean, Geometry
from dptrain.geometry.pairs import LoraPair, find_pairs

Rows = Mapping[str, torch.Tensor]
"""Examples as tensors, each with one row for an example."""
Loss = Callable[[nn.Module, Rows], torch.Tensor]
"""Maps model and rows to one loss for each row, which depends on that row alone."""


@dataclass(frozen=True)
class Plan:
    """Says how to train.

    Attributes:
        rate: learning rate; of an arm that is not adaptive, in units of the clip norm. head_rate: of Adam for the head.
        clip: C, in units of the median norm of public examples at the start. sigma: noise multiplier, or None without privacy.
        q: probability of a draw. steps: of training. seed: of draws and noise, which are for study and no secret.
        microbatch: contributions in one pass.
    """

    rate: float
    clip: float
    sigma: float | None
    q: float
    steps: int
    seed: int
    head_rate: float = 1e-2
    microbatch: int = 128


@dataclass
class Stack:
    """Pairs of one shape, which move as one batch: (L, m, r) and (L, n, r)."""

    pairs: Sequence[LoraPair]
    kept: Kept = field(default_factory=dict)

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns copies of the factors."""
        return torch.stack([pair.A.detach() for pair in self.pairs]), torch.stack([pair.Bt.detach().mT for pair in self.pairs])

    @torch.no_grad()
    def set(self, A: torch.Tensor, B: torch.Tensor) -> None:
        """Writes factors into the model."""
        for pair, a, b in zip(self.pairs, A, B, strict=True):
            pair.A.copy_(a)
            pair.Bt.copy_(b.mT)


class Recorder:
    """Makes gradients of the factors and of linear heads, one for each row, of a model with LoRA.

    Every trainable parameter must belong to a pair or to an `nn.Linear`, which counts as a head.

    Raises:
        ValueError: another parameter is trainable; or, of `gradients`, a module was called twice.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.pairs = find_pairs(model)
        stacks: dict[tuple[object, ...], list[LoraPair]] = {}
        for pair in self.pairs:
            stacks.setdefault(pair.kind, []).append(pair)
        self.stacks = [Stack(pairs) for pairs in stacks.values()]
        own = {id(factor) for pair in self.pairs for factor in (pair.A, pair.Bt)}
        self.heads = [
            module for module in model.modules()
            if isinstance(module, nn.Linear) and module.weight.requires_grad and id(module.weight) not in own
        ]  # fmt: skip
        own |= {id(p) for head in self.heads for p in head.parameters()}
        left = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in own]
        if left:
            raise ValueError(f"{left[0]} is trainable and belongs to no LoRA pair and no linear head; freeze it")
        self._seen: dict[object, list[torch.Tensor]] = {}
        self._recording = False
        for pair in self.pairs:
            module = model.get_submodule(pair.module)
            for side in ("lora_A", "lora_B"):
                module.get_submodule(side)[pair.adapter].register_forward_hook(self._keeper((pair.a, side)))
        for number, head in enumerate(self.heads):
            head.register_forward_hook(self._keeper(number))

    def _keeper(self, key: object) -> Callable[..., None]:
        def keep(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
            if not self._recording:
                return
            if key in self._seen:
                raise ValueError(f"{key} was called twice in one pass; its gradients are not those of one call")
            self._seen[key] = [given[0].detach(), out]

        return keep

    def gradients(self, loss: Loss, rows: Rows) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[torch.Tensor]]:
        """Returns gradients of each row's loss.

        Returns:
            For each stack gA, (b, L, m, r), and gB, (b, L, n, r); for each head (b, out, in + 1), the bias in the last column.
        """
        self._seen.clear()
        self._recording = True
        try:
            total = loss(self.model, rows).sum()
        finally:
            self._recording = False
        keys: list[object] = [(pair.a, "lora_B") for pair in self.pairs]
        keys += range(len(self.heads))
        found = dict(zip(keys, torch.autograd.grad(total, [self._seen[key][1] for key in keys]), strict=True))
        stacks = []
        for stack in self.stacks:
            sides = [self._pair(pair, found[pair.a, "lora_B"]) for pair in stack.pairs]
            stacks.append((torch.stack([a for a, _ in sides], 1), torch.stack([b for _, b in sides], 1)))
        heads = []
        for number, head in enumerate(self.heads):
            x, d = _tokens(self._seen[number][0]), _tokens(found[number])
            weight = torch.einsum("bto,bti->boi", d, x)
            heads.append(weight if head.bias is None else torch.cat([weight, d.sum(1)[..., None]], -1))
        self._seen.clear()
        return stacks, heads

    def _pair(self, pair: LoraPair, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, h = (_tokens(value.detach()) for value in self._seen[pair.a, "lora_A"])
        d = _tokens(gradient)
        return d.mT @ h, x.mT @ (d @ pair.A.detach())

    def head_values(self) -> list[torch.Tensor]:
        """Returns copies of the heads, the bias in the last column."""
        return [
            head.weight.detach().clone() if head.bias is None else torch.cat([head.weight, head.bias[:, None]], -1).detach()
            for head in self.heads
        ]

    @torch.no_grad()
    def set_heads(self, values: Sequence[torch.Tensor]) -> None:
        """Writes heads into the model."""
        for head, value in zip(self.heads, values, strict=True):
            head.weight.copy_(value[:, : head.in_features])
            if head.bias is not None:
                head.bias.copy_(value[:, -1])


def _tokens(value: torch.Tensor) -> torch.Tensor:
    """Returns (b, t, width), with one token where there is none; half precision becomes float32."""
    value = value if value.dtype is torch.float64 else value.float()
    return value[:, None] if value.dim() == 2 else value.flatten(1, -2)


def charted(
    recorder: Recorder, charts: Sequence[Geometry], loss: Loss, rows: Rows
) -> tuple[list[tuple[torch.Tensor, ...]], list[torch.Tensor], torch.Tensor]:
    """Returns coordinates of each row for each stack, gradients of the heads, and the norm of all of these together, (b,)."""
    stacks, heads = recorder.gradients(loss, rows)
    coordinates = [at.coordinates(*gradients) for at, gradients in zip(charts, stacks, strict=True)]
    parts = [value for pair in coordinates for value in pair] + heads
    squares = torch.stack([part.square().flatten(1).sum(1) for part in parts]).sum(0)
    return coordinates, heads, squares.sqrt()


def start(model: nn.Module, kind: str, seed: int, scale: float = 0.1) -> None:
    """Gives every pair its first factors, as `starts` makes them, and takes their product from the frozen weight.

    The function that the model computes stays, to rounding. Nothing of it depends on data.
    """
    generator = torch.Generator().manual_seed(seed)
    for pair in find_pairs(model):
        weight = model.get_submodule(pair.module).get_base_layer().weight
        m, n, r = pair.shape
        made = starts(kind, m, n, r, generator, scale=scale, base=weight.detach().cpu().double() / pair.scaling)
        A, B = (value.to(pair.A) for value in made)
        with torch.no_grad():
            pair.A.copy_(A)
            pair.Bt.copy_(B.mT)
            weight -= pair.scaling * A @ B.mT


def median_norm(recorder: Recorder, arm: Arm, loss: Loss, rows: Rows) -> float:
    """Returns the median norm, in an arm's coordinates, of public examples at the start."""
    charts = [arm.geometry(*arm.before(*stack.factors())) for stack in recorder.stacks]
    for stack in recorder.stacks:
        stack.set(*arm.before(*stack.factors()))
    return float(charted(recorder, charts, loss, rows)[2].median())


def fit(recorder: Recorder, arm: Arm, plan: Plan, loss: Loss, rows: Rows, public: Rows) -> dict[str, float]:
    """Trains the model in place.

    Args:
        rows: the contributions. public: public examples, which set the unit of the clip norm.

    Returns:
        ``clip_norm``, and ``finite``: 1, or 0 where training was stopped since factors grew past all bounds.
    """
    count = len(next(iter(rows.values())))
    device = next(recorder.model.parameters()).device
    C = plan.clip * median_norm(recorder, arm, loss, public)
    private = plan.sigma is not None
    lr = plan.rate if arm.adaptive else plan.rate / C
    expected, head_kept = plan.q * count, [Kept() for _ in recorder.heads]
    draws, noise = (torch.Generator().manual_seed(10 * plan.seed + place) for place in (1, 2))
    tau = plan.sigma * C / expected if plan.sigma is not None else 0.0

    def noised(value: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(value.shape, generator=noise).to(value) if private else 0.0
        return value / expected + tau * drawn

    for _ in range(plan.steps):
        for stack in recorder.stacks:
            if arm.rebalance:
                stack.set(*arm.before(*stack.factors()))
        charts = [arm.geometry(*stack.factors()) for stack in recorder.stacks]
        sums = [[torch.zeros_like(value) for value in stack.factors()] for stack in recorder.stacks]
        head_sums = [torch.zeros_like(value) for value in recorder.head_values()]
        for part in _microbatches(rows, torch.rand(count, generator=draws) < plan.q, plan.microbatch, device):
            coordinates, heads, norms = charted(recorder, charts, loss, part)
            weights = (C / norms.clamp_min(1e-12)).clamp_max(1.0) if private else torch.ones_like(norms)
            for sides, values in zip(sums, coordinates, strict=True):
                for side, value in zip(sides, values, strict=True):
                    side += torch.tensordot(weights, value, 1)
            for side, value in zip(head_sums, heads, strict=True):
                side += torch.tensordot(weights, value, 1)
        for stack, at, sides in zip(recorder.stacks, charts, sums, strict=True):
            stack.set(*arm.step(stack.kept, at, at.project(*(noised(side) for side in sides)), lr, tau))
        moved = []
        for kept, value, side in zip(head_kept, recorder.head_values(), head_sums, strict=True):
            flat = Euclidean(value, torch.zeros(0, device=device))
            moved.append(adam(kept, flat, (noised(side), torch.zeros(0, device=device)), plan.head_rate, tau)[0])
        recorder.set_heads(moved)
        if not all(bool((factor.abs() < 1e4).all()) for stack in recorder.stacks for factor in stack.factors()):
            return {"clip_norm": C, "finite": 0.0}
    return {"clip_norm": C, "finite": 1.0}


def _microbatches(rows: Rows, drawn: torch.Tensor, size: int, device: torch.device) -> Iterator[Rows]:
    for places in drawn.nonzero()[:, 0].split(size):
        if len(places):
            yield {name: value[places].to(device) for name, value in rows.items()}


@torch.no_grad()
def mean_of(model: nn.Module, measure: Callable[[nn.Module, Rows], torch.Tensor], rows: Rows, batch: int = 256) -> Any:
    """Returns the mean of a measure over public examples."""
    device = next(model.parameters()).device
    everything = torch.ones(len(next(iter(rows.values()))), dtype=torch.bool)
    parts = _microbatches(rows, everything, batch, device)
    return float(torch.cat([measure(model, part).float().cpu() for part in parts]).mean())
