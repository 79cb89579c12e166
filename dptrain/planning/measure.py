"""Measures what a run costs: a few steps of the engine's own loop, on random payloads.

There is no ledger, no private data is read, and nothing is charged: the model, the schedule, the router, the sums, the noise
and the optimizer are those of training, the contributions are made up here. This module imports torch; planning imports it
only when a run is measured.
"""

import os
import random
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from attest.policy import ClassRule, Policy
from attest.schedule import allocation, effective_multiplier
from attest.schedule.blocks import derive
from attest.schedule.geometry import energies_of, pairs_of
from dptrain.blocks.forwards import Forwards
from dptrain.blocks.stack import layer_stack
from dptrain.clipping.exactness import level_of, refuse_uncertifiable
from dptrain.clipping.resolver import Schedule, bind
from dptrain.data.microbatch import Collate, Microbatch, build, row_names
from dptrain.data.packing import Drawn, Planned, plan
from dptrain.engine import refusals
from dptrain.engine.draw import NOTHING, microbatches_of, noise_of
from dptrain.engine.header import ranks_of
from dptrain.engine.options import Microbatches
from dptrain.engine.release import Phase, PrivateGradients
from dptrain.engine.step import Parts, Steps, UnderWay
from dptrain.errors import UnsupportedModule
from dptrain.geometry.over_rank import BlockNoise
from dptrain.geometry.pairs import find_pairs
from dptrain.geometry.shapes import Shape
from dptrain.gradients import matmul
from dptrain.noise import KeyStream
from dptrain.programs import quiet_libraries
from dptrain.routing import Router, bounds_of
from dptrain.routing.accumulate import Folding
from dptrain.routing.couplings import refuse_coupled
from dptrain.sandbox import Sandbox, forward_seed
from dptrain.tasks import task
from dptrain.tasks.classification import make_optimizer
from dptrain.tasks.runconfig import ImageModel, RunConfig, TextModel

ROUNDS = 3
"""Steps that are timed, after one that is not; the median counts."""

MIXED = 8
"""A step of contributions for so many full microbatches at most is timed as a whole too; in longer ones few are shared."""

_WORDS = ("alpha", "river", "seven", "quiet", "stone", "green", "letter", "window")


@dataclass(frozen=True, slots=True)
class ClassCost:
    """Cost of one class.

    Attributes:
        contributions_per_step: Expected, or assumed.
        seconds_per_contribution: Forward pass, backward pass and clip, in the microbatches of a step: not all are full, and
            those that classes share go as deep as the deepest of them.
        share: Part of the time of a step.
        coordinates: Parameters that the class may touch.
        layers: Layers whose backward pass it needs, from the output down.
        effective_multiplier: z at the class's presets under the schedule of this model, where the noise is least; None in a
            public class.
    """

    name: str
    contributions_per_step: float
    seconds_per_contribution: float
    seconds_per_step: float
    share: float
    coordinates: int
    layers: int
    effective_multiplier: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Cost of a run on this machine.

    Attributes:
        assumed: True if nobody said how many contributions there are: the normalizer's number is drawn per step then, shared
            among the classes in proportion to their sampling rates.
        fixed_seconds: Noise, release and optimizer of a step, whatever is drawn.
        peak_bytes: Of the process, its libraries included; on a GPU of what torch holds there.
        noise_energy_ratio: Of the schedule of this model, against uniform noise in the same blocks.
        pairs: LoRA pairs that train in blocks of the schedule, with their factors as they are, and noise as at scale 1.
        pair_blocks: Blocks in which pairs with a geometry lie.
    """

    device: str
    threads: int
    microbatch: int
    layers: int
    parameters: int
    trained: int
    assumed: bool
    classes: tuple[ClassCost, ...]
    fixed_seconds: float
    seconds_per_step: float
    seconds_per_run: float
    peak_bytes: int
    noise_energy_ratio: float
    pairs: tuple[Shape, ...] = ()
    pair_blocks: tuple[BlockNoise, ...] = ()


def measure(policy: Policy, config: RunConfig, counts: Mapping[str, int] | None, rounds: int = ROUNDS) -> Measured:
    """Time and memory of a logical step, and of the run.

    Args:
        policy: The rules. config: Model, optimizer and machine. counts: Contributions per class, None if unknown.
        rounds: Steps that are timed.

    Raises:
        UnsupportedPolicy, UnsupportedModule, CoupledModel, ConfigError: What training would refuse before its ledger opens.
    """
    quiet_libraries()
    refusals.refuse_policy(policy)
    if config.run.threads is not None:
        torch.set_num_threads(config.run.threads)
    expected, assumed = _expected(policy, counts)
    accelerator = Accelerator(cpu=config.run.device == "cpu", mixed_precision=config.run.mixed_precision)
    refusals.refuse_generator(config.run.noise_generator, policy, accelerator)
    if accelerator.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(accelerator.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = _Run(policy, config, accelerator, expected)
        try:
            taken, fixed = run.timed(rounds)
        finally:
            run.close()
    schedule = run.schedule
    per_step = {name: taken[name] * expected[name] for name in expected}
    total = sum(per_step.values()) + fixed
    classes = tuple(
        ClassCost(
            name=rule.name,
            contributions_per_step=expected[rule.name],
            seconds_per_contribution=taken[rule.name],
            seconds_per_step=per_step[rule.name],
            share=per_step[rule.name] / total,
            coordinates=sum(schedule.blocks[index].coordinates for index in schedule.profiles[rule.name]),
            layers=max(0, len(schedule.stack.layers) - max(0, schedule.lowest_position(rule.name))),
            effective_multiplier=_multiplier(rule, schedule),
        )
        for rule in policy.classes
    )
    return Measured(
        device=str(accelerator.device),
        threads=torch.get_num_threads(),
        microbatch=config.run.microbatch,
        layers=len(schedule.stack.layers),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        trained=schedule.coordinates,
        assumed=assumed,
        classes=classes,
        fixed_seconds=fixed,
        seconds_per_step=total,
        seconds_per_run=total * policy.steps,
        peak_bytes=peak_bytes(accelerator.device),
        noise_energy_ratio=allocation.energies(policy.classes, schedule.blocks).of_uniform,
        pairs=run.pairs,
        pair_blocks=block_noise(schedule),
    )


@torch.no_grad()
def pair_shapes(model: nn.Module, schedule: Schedule, normalizer: int) -> tuple[Shape, ...]:
    """Returns the LoRA pairs of a model that a class may touch, with their norms and the noise of their blocks.

    Left out are pairs of which blocks part the factors. There is none where a factor is in half precision or lies over ranks.
    """
    stds = {alias: block.std for block in schedule.blocks for tensor in block.tensors for alias in tensor.aliases}
    try:
        found = find_pairs(model)
    except UnsupportedModule:
        return ()
    return tuple(
        Shape(
            *(pair.shape[0], pair.shape[1], 1, pair.rank),
            A_sq=float(pair.A.double().square().sum()),
            B_sq=float(pair.Bt.double().square().sum()),
            std=stds[pair.a] / normalizer,
        )
        for pair in found
        if pair.a in stds and stds.get(pair.b) == stds[pair.a]
    )


def block_noise(schedule: Schedule) -> tuple[BlockNoise, ...]:
    """Returns what is left of the noise of every block in which pairs with a geometry lie, once a release is projected."""
    policy, stack = schedule.policy, schedule.stack.named()
    if policy is None or not policy.geometry:
        return ()
    blocks = derive(policy.classes, stack)
    found = energies_of(pairs_of(policy, stack, ranks_of(schedule), blocks), blocks)
    stds = {block.name: block.std for block in schedule.blocks}
    return tuple(
        BlockNoise(blocks[one.block].name, one.pairs, stds.get(blocks[one.block].name, 0.0), one.coordinates, one.energy)
        for one in found
    )


_Timed = tuple[str | None, Planned, list[ClassRule]]
"""Class that the time of a microbatch counts for, None in a mixed draw; the microbatch; and the class of each slot."""


class _Run(Parts[_Timed]):
    """A run without ledger and without data: its parts of a step are those of training, on what is made up.

    One step has full microbatches of every class, one class after the other, and where few contributions are expected those
    of a draw that mixes the classes as expected.
    """

    def __init__(self, policy: Policy, config: RunConfig, accelerator: Accelerator, expected: Mapping[str, float]) -> None:
        self._policy, self._device = policy, accelerator.device
        self._size = Microbatches(config.run.microbatch, config.run.microbatch_rows, config.run.products)
        tools = task(config.task)
        torch.manual_seed(config.run.seed)
        model, self._collate = tools.build(config.model)
        if policy.exactness == "certified":
            for module in model.modules():
                if hasattr(module, "set_attn_implementation"):
                    module.set_attn_implementation("eager")
        optimizer = make_optimizer(model, config.optimizer, layers=config.model.layers, policy=policy)
        self._called, self._optimizer = accelerator.prepare(model, optimizer)
        self.model: nn.Module = accelerator.unwrap_model(self._called)
        refuse_coupled(self.model)
        self.schedule: Schedule = bind(policy, layer_stack(self.model, config.model.layers))
        self.pairs = pair_shapes(self.model, self.schedule, policy.normalizer)  # before factors move, or give up gradients
        refuse_uncertifiable(policy.exactness, self.schedule.stack)
        trained = frozenset(id(parameter) for parameter in self.model.parameters() if parameter.requires_grad)
        products = matmul.products_of(config.run.products)
        self._sandbox = Sandbox(self.model, trained, forward_seed(), secret=False, products=products)
        self._router = Router(self.model, self.schedule, **level_of(policy), sandbox=self._sandbox)
        self._folding = Folding(self._router)
        forwards = Forwards(self.model, self.schedule.read_sets)
        refusals.refuse_narrowed(forwards, compiled=config.run.compile)
        self._under_way = UnderWay(self._sandbox, self._router, forwards, products=config.run.products)
        self._plain_loss: Any = tools.per_example_loss
        self._loss = self._compiled(self._plain_loss) if config.run.compile else self._plain_loss
        draws = policy.noise_microbatches or 1
        inner = getattr(self._optimizer, "optimizer", self._optimizer)
        self._gradients = PrivateGradients(self.model, inner, self._router, policy.normalizer, draws)
        generator, bits = config.run.noise_generator, self._router.sums.bits
        self._noise = noise_of(policy, os.urandom(16), 0, KeyStream.fresh_master(), generator, bits=bits)
        count = max(1, min(self._size.contributions, round(sum(expected.values()))))
        self._examples = _examples(config.model, count)
        self._rules = [rule for rule in policy.classes if expected[rule.name]]
        few = sum(expected.values()) <= MIXED * self._size.contributions
        self._drawn = [rule for rule in self._rules for _ in range(round(expected[rule.name]))] if few else []
        self._planned = self._plan()

    def timed(self, rounds: int) -> tuple[dict[str, float], float]:
        """Returns seconds per contribution of every class, and of what a step costs beside, by the median of so many steps."""
        self._learn()
        groups: list[dict[str | None, float]] = []
        fixed: list[float] = []
        for step in Steps(self, 1, rounds + 1, "measuring", shown=False):
            spent: dict[str | None, float] = {}
            owners = iter(owner for owner, _, _ in self._planned)
            start = self._now()
            for rows in step:
                self.backward(self._loss(self._called, rows), rows)
                now, owner = self._now(), next(owners)
                spent[owner] = spent.get(owner, 0.0) + now - start
                start = now
            self._optimizer.step()
            groups.append(spent)
            fixed.append(self._now() - start)
        count = len(self._examples)
        middle = {rule.name: statistics.median(spent[rule.name] for spent in groups[1:]) / count for rule in self._rules}
        alone = sum(middle[rule.name] for rule in self._drawn)
        share = statistics.median(spent[None] for spent in groups[1:]) / alone if self._drawn else 1.0
        return {rule.name: share * middle.get(rule.name, 0.0) for rule in self._policy.classes}, statistics.median(fixed[1:])

    def draw(self, number: int) -> list[_Timed]:
        """Returns the microbatches of every step, whatever its number: nothing is sampled."""
        self._gradients.clear()
        self._gradients.phase = Phase.DRAWING
        self._folding.begin()
        return self._planned

    @contextmanager
    def load(self, planned: _Timed, number: int) -> Iterator[Microbatch]:
        """Collates and arms a microbatch of examples that are made up; its slots are places among the rules."""
        _, microbatch, rules = planned
        contents = [[self._examples[slot % len(self._examples)]] for slot in microbatch.slots]
        rows = self._collated(contents, microbatch.examples, microbatch.fill)
        found = [rules[slot] for slot in microbatch.slots]
        signed = [(rule.bounds, self.schedule.profiles[rule.name]) for rule in found]
        bounds = bounds_of(signed + [NOTHING] * microbatch.fill, len(self.schedule.blocks))
        self._folding.expect(microbatch, bounds)
        reads = self.schedule.reads.get(found[0].name)
        with self._under_way.enter(rows, number, bounds.permitted_NG, reads=reads):
            yield rows

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Runs the backward pass of a microbatch: routes, clips and accumulates."""
        with self._under_way.backward(rows):
            self._folding.backward(losses, rows)

    def release(self, number: int) -> None:
        """Adds the noise of a step, under a key that nothing else uses."""
        self._gradients.release(self._noise, number, self._folding.public if self.schedule.public else None)

    def settle(self, number: int) -> None:
        """Notes that the optimizer took the step; there is nothing to settle."""
        self._gradients.phase = Phase.IDLE

    def close(self) -> None:
        """Gives the parameters back and destroys the key."""
        self._gradients.close()
        self._noise.destroy()

    def _plan(self) -> list[_Timed]:
        """Plans the microbatches of a step: each with the class that its time counts for, or None for those of a mixed draw."""
        size, fill = self._size, self._policy.exactness == "certified"
        found: list[_Timed] = []
        for rule in self._rules:
            slots = [Drawn(slot, 0, 1) for slot in range(len(self._examples))]
            alone = plan(slots, size.contributions, size.rows, fill=fill and not rule.public)
            found += [(rule.name, planned, [rule] * len(slots)) for planned in alone]
        public = [rule.public for rule in self._drawn]
        depths = [self.schedule.lowest_position(rule.name) for rule in self._drawn]
        reads = [self.schedule.read_by(rule.name) for rule in self._drawn]
        found_drawn = (Drawn(slot, depth, 1, reads=reads[slot]) for slot, depth in enumerate(depths))
        drawn = sorted(found_drawn, key=lambda one: (one.depth, one.slot))
        mixed = microbatches_of(drawn, public, self._policy, size)
        return found + [(None, planned, self._drawn) for planned in mixed]

    def _collated(self, contents: list[list[Any]], rows: int, fill: int) -> Microbatch:
        collate: Collate = self._collate
        owners = [place.to_bytes(4, "big") for place in range(len(contents))]
        names = row_names(owners, rows, fill=fill)
        return build(contents, collate, self._device, names, rows_each=rows, fill=fill)

    def _learn(self) -> None:
        """Shows where rows lie in what the model draws, by two forward passes."""
        for count in (3, 2):
            rows = self._collated([self._examples[:1]] * count, 1, 0)
            with self._sandbox.enter(0, rows.names, learning=True), torch.no_grad():
                self._plain_loss(self._called, rows)
        self._sandbox.layouts.decide()

    def _compiled(self, loss: Any) -> Any:
        from dptrain.routing.compiled import CompiledLoss

        size, whole = self._size, self._policy.exactness == "certified"
        plain = self._folding.holds_public
        made = CompiledLoss(self._router, self.model, loss, size.contributions, size.rows, whole=whole, plain=plain)
        self._folding.compiled.append(made)
        return made

    def _now(self) -> float:
        """Returns the time, once all work that was given to the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _expected(policy: Policy, counts: Mapping[str, int] | None) -> tuple[dict[str, float], bool]:
    """Contributions of every class that a step draws on average, and whether they are an assumption."""
    if counts is not None:
        mean = policy.sampling.mean_rate
        return {rule.name: float(mean(rule.sampling_rate)) * counts.get(rule.name, 0) for rule in policy.classes}, False
    whole = float(sum(rule.sampling_rate for rule in policy.classes))
    return {rule.name: policy.normalizer * float(rule.sampling_rate) / whole for rule in policy.classes}, True


def _examples(model: TextModel | ImageModel, count: int) -> list[dict[str, Any]]:
    """Random examples of the right shape; nobody's data."""
    draw = random.Random(0)
    labels = len(model.labels)
    if isinstance(model, TextModel):
        return [
            {"text": " ".join(draw.choices(_WORDS, k=model.max_length)), "label": draw.randrange(labels)} for _ in range(count)
        ]
    side, channels = model.image_size, model.channels
    return [
        {
            "pixels": [[[draw.uniform(0, model.pixel_max) for _ in range(channels)] for _ in range(side)] for _ in range(side)],
            "label": draw.randrange(labels),
        }
        for _ in range(count)
    ]


def _multiplier(rule: ClassRule, schedule: Schedule) -> float | None:
    if rule.public:
        return None
    return effective_multiplier(rule.bounds, [schedule.class_std(rule.name)])


def peak_bytes(device: torch.device) -> int:
    """Most bytes that this process held so far; on a GPU those that torch held there since its counters were reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "linux":  # where getrusage goes on with the peak of the process that started this one
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
