"""A small run as one process of several has it, and what the process tells of it afterwards.

A `Job` says what is run; `done` is the work of a process. Worlds are made before, by the process of the test.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dptrain.noise.mechanism import Independent, Step
from tests.guarantees.peers import NORMALIZER, Run, giant, nothing, per_example
from tests.worlds.training import World

NOW = 1_800_000_000


def loud(model: nn.Module, rows: Any) -> torch.Tensor:
    """Losses whose gradients are clipped, most of them."""
    return per_example(model, rows) * 50.0


LOSSES = {"": loud, "nothing": nothing}


class Net(nn.Module):
    """Token ids -> layers -> class, float32, with tensors that are long enough for their noise to be compared."""

    def __init__(self, width: int = 24, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])
        self.head = nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        logits: torch.Tensor = self.head(x.mean(1))
        return logits


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


@dataclass(frozen=True)
class Job:
    """One attempt at a run.

    Attributes:
        root: of its world. name: of its ledger, one for every number of processes.
        steps: after which the process goes away without closing; None for the whole run. save: whether it saves then.
        losses: name of the losses, or a seed whose contribution alone has a gradient, a huge one.
        options: of `tests.guarantees.peers.Run`; ``now`` of its clock, and ``from``: goes on with the run of so many processes.
        before: called with the run before its first step.
    """

    root: Path
    name: str = "ledger"
    steps: int | None = None
    save: bool = False
    losses: str | int = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    before: Callable[[Run], None] | None = None


@dataclass(frozen=True)
class Drawn:
    """Noise of a part of a tensor, as it was asked for: ``values`` is the sum before it, whitened."""

    step: int
    lane: int
    offset: int
    values: torch.Tensor


@dataclass(repr=False)
class Told:
    """What a process tells of a job.

    Attributes:
        grads: what was released, by step and name, as it lay in ``p.grad``. sums: what it added noise to.
        seeds: of the contributions that counted, by step. microbatches: how many it ran, by step.
        weights, states: of the model and its optimizer at the end. head: size and root of the ledger.
        attempt, begins: number of the attempt, and the step behind which it began. wire, margin: of clip bounds.
        stds: noise per tensor. names: of the tensors in their order.
    """

    grads: list[dict[str, torch.Tensor]] = field(default_factory=list)
    sums: list[Drawn] = field(default_factory=list)
    seeds: list[list[int]] = field(default_factory=list)
    microbatches: list[int] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    states: dict[str, torch.Tensor] = field(default_factory=dict)
    head: tuple[int, bytes] = (0, b"")
    charged: int = 0
    epsilon: float = 0.0
    attempt: int = 0
    begins: int = 0
    wire: float = 0.0
    margin: float = 0.0
    stds: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def flat(self, step: int) -> torch.Tensor:
        """What step n released, whitened: in deviations of the noise, float64."""
        found = self.grads[step]
        return torch.cat(
            [found[name].double().flatten() * NORMALIZER / std for name, std in zip(self.names, self.stds, strict=True)]
        )


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def done(rank: int, *jobs: Job) -> list[Told]:
    """Does jobs one after the other; the work of a process."""
    return [_done(job) for job in jobs]


def opened(job: Job, **options: Any) -> Run:
    """Opens and prepares the run of a job."""
    world = World.at(job.root)
    given = {"name": f"{job.name}-{size()}", "optimizer": adamw, "microbatch": 4, "model": net, **job.options, **options}
    world.now = given.pop("now", NOW)
    model = given.pop("model")()
    if "from" in given:  # the ledger of a run that began on another number of processes
        given |= {"name": f"{job.name}-{given.pop('from')}", "resume": True}
    made = Run(world, model, **given | {"optimizer": given["optimizer"](model)})
    made.world = world
    if job.before is not None:
        job.before(made)
    return made


def _done(job: Job) -> Told:
    told = Told()
    losses = giant(job.losses) if isinstance(job.losses, int) else LOSSES[job.losses]
    with sums_kept(told.sums):
        run = opened(job)
        private, prepared = run.private, run.private.prepared
        told.names = [tensor.name for _, tensor in prepared.router.tensors]
        told.begins = prepared.start_step
        for number, step in enumerate(run.steps, start=1):
            _loop(run, step, losses, told)
            told.grads.append({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})
            run.optimizer.step()
            if number == job.steps:
                break
    ledger = private.opened.recorder.ledger
    told.stds = [prepared.gradients.stds[block] for block, _ in prepared.router.tensors]
    told.attempt = ledger.state.attempt
    if job.save:
        private.save()
    told.head, told.charged = (ledger.size, ledger.root), ledger.state.charged
    told.epsilon = next(row["epsilon"] for row in prepared.summary())
    told.weights = {n: p.detach().clone() for n, p in run.model.named_parameters()}
    states = run.optimizer.state_dict()["state"]
    told.states = {f"{i}/{k}": torch.as_tensor(v).clone() for i, each in states.items() for k, v in each.items()}
    told.wire, told.margin = prepared.router.sums.wire, prepared.router.sums.float_margin
    private.close()
    return told


def _loop(run: Run, step: Any, losses: Any, told: Told) -> None:
    """The microbatches of a step; a loss without a gradient shows the probes nothing, so they see the usual one."""
    prepared, seeds, count = run.private.prepared, list[int](), 0
    for rows in step:
        probing = prepared.probe.active
        if not probing:
            count += 1
            seeds += [] if prepared.folding._planned.idle else rows["seeds"].tolist()
        shown = per_example if probing and getattr(losses, "silent", False) else losses
        run.private.backward(shown(run.net, rows), rows)
        assert all(parameter.grad is None for parameter in run.model.parameters()), "a raw gradient in p.grad"
    told.seeds.append(seeds)
    told.microbatches.append(count)


@contextmanager
def sums_kept(found: list[Drawn]) -> Iterator[None]:
    """Keeps every sum that noise is added to, whitened, with its address."""
    release = Independent.release

    def kept(self: Independent, clipped_sum: torch.Tensor, state: None, step: Step) -> torch.Tensor:
        found.append(Drawn(step.number, step.lane, step.offset, clipped_sum.double().flatten() / step.std))
        return release(self, clipped_sum, state, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Independent, "release", kept)
        yield


def whole(told: Sequence[Told], step: int) -> torch.Tensor:
    """The sums of a step that all ranks together added noise to, whitened and flat."""
    parts = sorted((one for each in told for one in each.sums if one.step == step), key=lambda one: (one.lane, one.offset))
    return torch.cat([one.values for one in parts])


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over named tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return found.hexdigest()
