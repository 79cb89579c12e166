"""Whether what the router delivers is every contribution's own gradient: held to one autograd pass per contribution.

Two microbatches, one after the other as in a run: five contributions of one example each, and four of up to two examples, whose
eight rows are as many as the tokens of a text, so that code which tells the example's dimension by its size is seen to fail.
Dropout and all else that draws stays as the library has it: both sides run in a sandbox of the same seed, so that a
contribution must draw alone what it draws in company. In float64 where the model can, so that nothing hides behind rounding.

The second one once more in float32, as a step of a run computes: in the router's room of forwards in fewer passes, so that
linear maps are nodes of autograd there, and LoRA pairs, which are none in float64.
"""

import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dptrain.blocks.stack import layer_stack
from dptrain.clipping.resolver import Block, Schedule
from dptrain.data.microbatch import build, row_names
from dptrain.gradients import matmul
from dptrain.routing import Router
from dptrain.sandbox import SEED_BYTES, Sandbox
from tests.reference.graphs import count_nodes
from tests.reference.in_double import in_double
from tests.zoo.family import Family, Layers

TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-3}
FLOOR = {torch.float64: 1e-6, torch.float32: 1e-3}
"""A tensor's error is relative to its own norm, or to this part of the contribution's largest tensor if that is more."""

STEP = 1
PRODUCTS = "fastest"
"""How a run multiplies unless it is told otherwise."""

AS_STEPS = "as steps"
"""The comparison in float32."""


@dataclass(frozen=True)
class Fed:
    """One microbatch: its rows, and whose they are."""

    rows: dict[str, Any]
    contributions: int
    examples: int
    weight: torch.Tensor
    names: tuple[bytes, ...]


def microbatches(family: Family) -> dict[str, Fed]:
    """What is compared: ``odd`` of five rows, ``even`` of eight."""
    each = [[family.record(100 + i)] for i in range(5)]
    some = [[family.record(110 + i)] for i in range(3)] + [[family.record(120), family.record(121)]]
    found = {}
    for name, contributions in (("odd", each), ("even", some)):
        owners = [name.encode() + bytes([place]) for place in range(len(contributions))]
        rows = build(contributions, family.collate, torch.device("cpu"))
        names = row_names(owners, rows.examples)
        found[name] = Fed(dict(rows), rows.contributions, rows.examples, rows.weight, names)
    return found


@dataclass(frozen=True)
class Compared:
    """The largest relative error of one contribution's gradient of one tensor, which it was, and the type computed in."""

    worst: float
    tensor: str
    dtype: torch.dtype
    tensors: dict[str, float]
    """The largest error of any contribution, by tensor."""
    live: frozenset[str] = frozenset()
    """Tensors of which some contribution has a gradient that is more than rounding."""
    drawn: bool = False
    """Whether the forward draws random numbers."""
    nodes: Counter[str] = field(default_factory=Counter)
    """What the losses were made of, by the kind of node in their graph."""

    @property
    def exact(self) -> bool:
        return self.worst <= TOLERANCE[self.dtype]

    def __str__(self) -> str:
        kind = "float64" if self.dtype is torch.float64 else "float32"
        return f"{self.worst:.0e} in {kind}" + (" with random numbers" if self.drawn else "")


def compare(family: Family, variant: str, layers: Layers) -> dict[str, Compared]:
    """Compares on both microbatches in float64, if the model can compute in it, and on the second as steps compute."""
    fed = microbatches(family)
    stepped = _compare(family, variant, layers, {AS_STEPS: fed["even"]}, torch.float32)  # first: kernels are tried in float32
    try:
        with in_double():
            return _compare(family, variant, layers, fed, torch.float64) | stepped
    except (RuntimeError, TypeError, ValueError, NotImplementedError):  # hard-coded float32 inside
        return _compare(family, variant, layers, {"odd": fed["odd"]}, torch.float32) | stepped


def _compare(
    family: Family, variant: str, layers: Layers, microbatches: dict[str, Fed], dtype: torch.dtype
) -> dict[str, Compared]:
    model = family.build(variant).to(dtype)
    fed = {
        name: replace(one, rows={key: _typed(value, dtype) for key, value in one.rows.items()})
        for name, one in microbatches.items()
    }
    first = next(iter(fed.values()))
    trained = frozenset(id(p) for p in model.parameters() if p.requires_grad)
    sandbox = Sandbox(model, trained, bytes(SEED_BYTES))
    _learn(family, model, first, sandbox)
    truths = {name: _naive(family, model, one, sandbox) for name, one in fed.items()}
    drawn = bool(sandbox.layouts.expected(1))
    runs = Sandbox(model, trained, bytes(SEED_BYTES), products=matmul.products_of(PRODUCTS))
    found = _delivered(family, model, list(fed.values()), layers, runs)
    return {
        name: replace(_worst(given, truth, drawn, dtype), nodes=nodes)
        for (name, truth), (given, nodes) in zip(truths.items(), found, strict=True)
    }


def _learn(family: Family, model: nn.Module, fed: Fed, sandbox: Sandbox, router: Router | None = None) -> None:
    """Where rows lie in what the forward draws and takes, from two numbers of rows, as the start of a run learns it."""
    for count in (3, 2):
        if router is not None:
            router.arm(count, 1, torch.ones(count, 1, dtype=torch.bool))
        with sandbox.enter(STEP, fed.names[:count], learning=True):
            family.loss(model, _only(fed, torch.arange(count)))
    sandbox.layouts.decide()


def _only(fed: Fed, rows: torch.Tensor) -> dict[str, Any]:
    return {key: value[rows] if isinstance(value, torch.Tensor) else value for key, value in fed.rows.items()}


def _worst(
    found: list[dict[str, torch.Tensor]], truth: list[dict[str, torch.Tensor]], drawn: bool, dtype: torch.dtype
) -> Compared:
    """The largest relative error over contributions and tensors; not a number is the largest of all."""
    if not any(bool(g.any()) for exact in truth for g in exact.values()):
        raise NoGradient("no contribution has a gradient, so there is nothing to compare")
    errors, live = dict.fromkeys(truth[0], 0.0), set()
    for own, exact in zip(found, truth, strict=True):
        scale = max(float(g.double().norm()) for g in exact.values())
        floor = max(FLOOR[dtype] * scale, torch.finfo(torch.float64).tiny)
        for name, g in exact.items():
            size = float(g.double().norm())
            if size > floor:
                live.add(name)
            error = float((own[name] - g.double()).norm()) / max(size, floor)
            if not error <= errors[name]:
                errors[name] = error
    where = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    return Compared(errors[where], where, dtype, errors, frozenset(live), drawn)


class NoGradient(Exception):
    """Records on which a family has no gradient show nothing."""


def _typed(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _naive(family: Family, model: nn.Module, fed: Fed, sandbox: Sandbox) -> list[dict[str, torch.Tensor]]:
    """Every contribution's gradient from a forward of its own examples alone."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weight = fed.weight.double()
    found = []
    for i in range(fed.contributions):
        own = torch.arange(i * fed.examples, (i + 1) * fed.examples)
        own = own[weight[own] != 0]
        with sandbox.enter(STEP, [fed.names[row] for row in own]):
            losses = family.loss(model, _only(fed, own))
            loss = (losses * weight[own].to(losses)).sum()
            grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        pairs = zip(trained.items(), grads, strict=True)
        found.append({name: torch.zeros_like(p) if g is None else g.detach() for (name, p), g in pairs})
    return found


def _delivered(
    family: Family, model: nn.Module, microbatches: list[Fed], layers: Layers, sandbox: Sandbox
) -> list[tuple[list[dict[str, torch.Tensor]], Counter[str]]]:
    """The same from one router, as a run has it: sums in which one contribution has weight one and all others none. And what
    the losses were made of."""
    stack = layer_stack(model, layers)
    schedule = Schedule(stack, (Block("all", (0,), stack.tensors, ("one",), 1.0),), {"one": (0,)}, ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        router = Router(model, schedule, sandbox=sandbox)
    for p in model.parameters():
        p.requires_grad_(False)
    router.attach()
    try:
        _learn(family, model, microbatches[0], sandbox, router)
        return [_of_one(family, model, fed, router, sandbox) for fed in microbatches]
    finally:
        router.disarm()
        router.detach()


def _of_one(
    family: Family, model: nn.Module, fed: Fed, router: Router, sandbox: Sandbox
) -> tuple[list[dict[str, torch.Tensor]], Counter[str]]:
    """Gradients of every contribution of one microbatch, which computes as those of a step."""
    with matmul.using(PRODUCTS), router.fused.inside(PRODUCTS), sandbox.enter(STEP, fed.names):
        router.arm(fed.contributions, fed.examples, torch.ones(fed.contributions, 1, dtype=torch.bool))
        losses = family.loss(model, fed.rows)
        with sandbox.aside():
            nodes = count_nodes(losses)
            router.backward(losses, fed.weight.double())
    router.sums.norms_sq(router.pieces, fed.contributions)
    found = []
    for i in range(fed.contributions):
        one = torch.zeros(fed.contributions, 1, dtype=torch.float64)
        one[i] = 1.0
        router.sums.accumulate(dict(router.pieces), one)  # which are forgotten as they are added
        found.append({t.name: g for (_, t), g in zip(router.tensors, router.sums.take(), strict=True)})
    router.disarm()
    return found, nodes
