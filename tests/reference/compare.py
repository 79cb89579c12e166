"""One comparison for every model: the probes at start, then masked and clipped sums against the naive loop."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from dptrain.blocks.stack import layer_stack
from dptrain.clipping.resolver import Block, Schedule
from dptrain.routing import Router
from dptrain.routing.couplings import refuse_coupled
from dptrain.routing.probes import P0_TOLERANCE, Exact, check_exact
from dptrain.sandbox import Sandbox
from tests.reference import naive
from tests.worlds.bounds import bounds_of

Losses = Callable[[nn.Module, dict], torch.Tensor]


def random_schedule(model: nn.Module, rng: random.Random, classes: int, layers: str | None = None) -> Schedule:
    """Blocks by position, each open to a random set of classes, with random noise; every class touches something."""
    stack = layer_stack(model, layers)
    groups: dict = {}
    for tensor in stack.tensors:
        groups.setdefault(tensor.positions, []).append(tensor)
    classes = min(classes, len(groups))
    names = [f"c{k}" for k in range(classes)]
    blocks = []
    for i, (positions, tensors) in enumerate(sorted(groups.items())):
        members = tuple(n for n in names if n == names[i % classes] or rng.random() < 0.6)
        blocks.append(Block(f"b{i}", positions, tuple(tensors), members, rng.uniform(0.3, 3.0)))
    profiles = {n: tuple(i for i, b in enumerate(blocks) if n in b.classes) for n in names}
    return Schedule(stack, tuple(blocks), profiles, ())


@dataclass
class Found:
    router: Router
    sums: list[torch.Tensor]
    worst: float
    """Largest relative error of a sum; tensors whose true sum vanishes are measured on the scale of all sums."""


def rows_of(batch: dict, start: int, stop: int) -> dict:
    return {k: v[start:stop] for k, v in batch.items()}


def names_of(rows: int) -> list[bytes]:
    return [b"row" + row.to_bytes(4, "big") for row in range(rows)]


def learn(
    sandbox: Sandbox, model: nn.Module, batch: dict, losses: Losses, examples: int, router: Router | None = None
) -> None:
    """Shows a sandbox where rows lie in what the model draws, and a router where its modules hold them, by forwards over two
    numbers of rows."""
    for count in (3, 2):
        if router is not None:
            router.arm(count, examples, torch.ones(count, len(router.schedule.blocks), dtype=torch.bool))
        with sandbox.enter(0, names_of(count * examples), learning=True):
            losses(model, rows_of(batch, 0, count * examples))
        if router is not None:
            router.disarm()
    sandbox.layouts.decide()


def probe(router: Router, model: nn.Module, batch: dict, losses: Losses, examples: int) -> None:
    """The probe microbatch of a run (P1 and P0), over all blocks; raises what a run would raise at its start."""
    refuse_coupled(model)
    n = len(next(iter(batch.values()))) // examples
    parameters = [tensor.parameter for _, tensor in router.tensors]
    for p in parameters:
        p.requires_grad_(True)
    try:
        router.arm(n, examples, torch.ones(n, len(router.schedule.blocks), dtype=torch.bool))
        sandbox = router.sandbox
        with nullcontext() if sandbox is None else sandbox.enter(0, names_of(n * examples), probing=True):
            found = losses(model, batch)
            router.require_losses(found)
            seen = frozenset(router.order)
            with router.aside():
                check_exact(router, found, torch.full((n * examples,), 1.0 / examples, dtype=torch.float64))
        router.verified = seen
    finally:
        router.disarm()
        for p in parameters:
            p.requires_grad_(False)
            p.grad = None  # as a run does: autograd's own is dropped


def block_squares(router: Router, found: Exact) -> torch.Tensor:
    """Squared norms (N, G) per block, from those per tensor."""
    table = torch.zeros(len(found.norms), len(router.schedule.blocks), dtype=torch.float64)
    for index, (block, _) in enumerate(router.tensors):
        table[:, block] += found.norms[:, index].square()
    return table


def compare(
    model: nn.Module,
    batch: dict,
    losses: Losses,
    *,
    examples: int = 1,
    seed: object = 0,
    layers: str | None = None,
    tolerance: float = 1e-10,
    probe_tolerance: float = 1e-9,
    redraw: int | None = None,
    schedule: Schedule | None = None,
) -> Found:
    """Asserts that norms, coefficients and sums equal the naive loop's for random classes, bounds and masks.

    The first three contributions serve as the probe microbatch, the others are compared. ``probe_tolerance`` is for models
    that compute in float32 whatever their own type, where the probe's two backward passes round differently. With ``redraw``
    the model draws random numbers: the reference is one forward without hooks and a backward pass per contribution, both
    forwards in a sandbox with this seed. ``schedule``: another than a random one by position.
    """
    rng = random.Random(str(seed))
    schedule = schedule or random_schedule(model, rng, 3, layers)
    scale = 10 ** rng.uniform(-1, 1)
    total = len(next(iter(batch.values()))) // examples
    probes, batch = rows_of(batch, 0, 3 * examples), rows_of(batch, 3 * examples, total * examples)
    n = total - 3

    def losses_of(i: int) -> torch.Tensor:
        return losses(model, rows_of(batch, i * examples, (i + 1) * examples)) * scale

    trained = frozenset(id(tensor.parameter) for block in schedule.blocks for tensor in block.tensors)
    sandbox = Sandbox(model, trained, int(redraw or 0).to_bytes(16, "big"))
    router = Router(model, schedule, sandbox=sandbox)
    for parameter in model.parameters():  # as a run does, of what is scheduled and of what is frozen
        parameter.requires_grad_(False)
    router.attach()
    kept = dict(P0_TOLERANCE)
    P0_TOLERANCE[torch.float64] = probe_tolerance
    try:
        learn(sandbox, model, probes, losses, examples, router)
        probe(router, model, probes, losses, examples)
    finally:
        router.detach()
        P0_TOLERANCE.update(kept)
    if redraw is None:
        reference = naive.contribution_gradients(model, losses_of, schedule, n)
    else:
        with sandbox.enter(1, names_of(n * examples)):
            reference = naive.gradients_of_one_forward(lambda: losses(model, batch) * scale, schedule, n, examples)
    norms = naive.block_norms_sq(reference, schedule)
    typical = float(norms.sum(1).sqrt().median())
    rows = [
        (
            typical * (0.05 if i == 0 else rng.uniform(0.3, 2.0)),
            rng.uniform(0.5, 4.0),
            schedule.profiles[rng.choice(list(schedule.profiles))],
        )
        for i in range(n)
    ]
    own = float(norms[0, list(rows[0][2])].sum().sqrt())  # of the first, which is to be clipped whatever it may touch
    rows[0] = (min(rows[0][0], 0.5 * own) or rows[0][0], *rows[0][1:])
    bounds = bounds_of(rows, len(schedule.blocks))
    router.attach()
    try:
        router.arm(n, examples, bounds.permitted_NG)
        with sandbox.enter(1, names_of(n * examples)):
            router.backward(losses(model, batch) * scale, torch.full((n * examples,), 1.0 / examples, dtype=torch.float64))
        found = router.sums.norms_sq(router.pieces, router.contributions)
        coefficients = router.sums.coefficients(found, bounds)
        router.sums.accumulate(router.pieces, coefficients)
        router.disarm()
        sums = list(router.sums.take())
    finally:
        router.detach()

    expected, factors = naive.clipped_sums(reference, schedule, bounds, router.sums.margins(bounds))
    active = bounds.permitted_NG.any(0)
    true, seen = norms[:, active], found[:, active]
    assert float(((seen - true).abs() / true.clamp_min(1e-12 * float(true.max()))).max()) <= tolerance
    floor = 1e-6 * max(float(b.norm()) for b in expected)
    worst = max(float((a - b).norm()) / max(float(b.norm()), floor) for a, b in zip(sums, expected, strict=True))
    assert worst <= tolerance, worst
    assert float((coefficients.amax(1) - factors).abs().max()) <= tolerance
    assert any(float(f) < 1 for f in factors), "the test must clip something"
    assert all(p.grad is None for p in model.parameters())
    return Found(router, sums, worst)
