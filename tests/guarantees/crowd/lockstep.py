"""The audited run and its adversary, step by step, through the door that users enter.

The adversary knows every contribution's content, who else is drawn in a step, the user's seed, the released parameters before
the step, and every number that the project calls public; the seed of the forward is among them, as it follows from the user's.
It does not know whether an audited contribution is drawn, nor whether its payload is real. On a machine of its own it has the
same engine over the same corpus. There it computes sums of a step in both worlds, with the audited contribution and without,
by the engine's own parts: draw to microbatches, collate, sandbox, router and folding. So it has the others' sums exactly.

Two seams of the audited run are moved, and nothing else: the bit of an audited contribution in the draw, so that both worlds
come about, and its payload as ``decode`` gives it.

Several contributions may be audited in one run. Each is then asked about by itself, and the adversary is told everything of
the others, the audited ones included. Answers of one step hang together, and :func:`readers.chance_of_several` reckons with it.
"""

import dataclasses
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dptrain import Clock, Microbatches, NoiseSource, PrivateTraining
from dptrain.engine.release import Phase
from dptrain.errors import DptrainError
from dptrain.noise import Independent
from dptrain.sandbox import Draw, Sandbox
from dptrain.sandbox.draws import Request
from tests.guarantees.crowd.readers import Readings, joined
from tests.guarantees.crowd.scenes import Scene
from tests.worlds.trainer import wrapped
from tests.worlds.training import World, chance_of, make_world

HORIZON = 1000
RATE = 0.01
DELTA = 1e-5
"""The claim that is audited: noise multiplier 1, sampling rate 0.01, 1000 steps; epsilon 1.83."""

NOW = 1_800_000_000

_AT_A_TIME = 20
"""Steps between two words about how an audit stands."""

_CLASS = """
[[class]]
name = "{name}"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {rate}
depth = {{{{ from = 0.0, to = 1.0 }}}}
"""


@contextmanager
def masks_from_one_generator() -> Iterator[None]:
    """Injects the old behaviour: torch's one seeded generator gives the random numbers of all rows, in their order.

    Everything else of the sandbox stays. The generator moves with every microbatch of a step, as it does without a sandbox. A
    microbatch whose rows are entered again (in its compiled form) starts where the microbatch started.
    """
    enter, entry = Sandbox.enter, Sandbox._entry
    generator = torch.Generator()

    @contextmanager
    def entered(self: Sandbox, step: int, names: Any, **options: Any) -> Iterator[Any]:
        outermost = not self.active
        if outermost:
            start = torch.get_rng_state()
            self.__dict__["_start"] = start
        generator.set_state(self.__dict__["_start"])
        with enter(self, step, names, **options) as found:
            yield found
        if outermost and step > 0:
            torch.set_rng_state(generator.get_state())

    def drawn(self: Sandbox, place: Any, asked: Request) -> Draw:
        found = entry(self, place, asked)
        if self.current.step == 0 or found.given is not None:
            return found  # probes, and what a graph is traced with
        with self.aside():
            return dataclasses.replace(found, given=_by(generator, asked))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sandbox, "enter", entered)
        patch.setattr(Sandbox, "_entry", drawn)
        yield


def _by(generator: torch.Generator, asked: Request) -> torch.Tensor:
    """Numbers of a request from one generator, in their standard form."""
    made = torch.empty(asked.shape, dtype=asked.dtype)
    if asked.kind == "keep":
        return made.bernoulli_(asked.parameters[0], generator=generator).bool()
    if asked.kind == "uniform":
        return made.uniform_(generator=generator)
    if asked.kind == "normal":
        return made.normal_(generator=generator)
    raise NotImplementedError(f"no old behaviour of {asked.kind} numbers")


class Sums(Independent):
    """Stands where the noise of a run is and keeps the whitened sums; then it adds that noise, or nothing if there is none."""

    addressed = True

    def __init__(self, noise: Independent | None) -> None:
        self._noise = noise
        self._found: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def flat(self) -> torch.Tensor:
        """All sums of the last release, of all ranks, whitened, float64."""
        parts = [self._found]
        if dist.is_initialized():
            parts = [{} for _ in range(dist.get_world_size())]
            dist.all_gather_object(parts, self._found)
        every = {place: values for part in parts for place, values in part.items()}
        return torch.cat([every[place] for place in sorted(every)])

    def release_(
        self, clipped_sum: torch.Tensor, std: float, normalizer: float, *, step: int, lane: int, draws: int = 1, **where: Any
    ) -> torch.Tensor:
        self._found = {place: kept for place, kept in self._found.items() if place[0] != lane}
        self._found[lane, where.get("offset", 0)] = clipped_sum.double().flatten() / std
        if self._noise is None:
            return clipped_sum.div_(normalizer)
        return self._noise.release_(clipped_sum, std, normalizer, step=step, lane=lane, draws=draws, **where)

    def destroy(self) -> None:
        self._found.clear()
        if self._noise is not None:
            self._noise.destroy()


class Party:
    """One run of the engine over the world of a scene, in the loop of a user.

    Args:
        seed: of the common generators, as the user sets it. noisy: whether noise is added; not on one's own machine.

    Attributes:
        real: audited contributions, by number, whose payload is real; the others have a null of the same shape.
        draw: the slots of a step, from those of the run's sampler. chosen: what it gave.
    """

    def __init__(self, scene: Scene, world: World, name: str, key: bytes, seed: int, noisy: bool) -> None:
        self.real: frozenset[int] = frozenset()
        self.draw: Callable[[np.ndarray], np.ndarray] = lambda chosen: chosen
        self.chosen: np.ndarray = np.zeros(0, dtype=bool)
        self._augment, self._each_step, self._noisy = scene.augment, scene.each_step, noisy
        _seed_as_users_do(seed)
        self.model = scene.model().train()
        self.net = wrapped(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.private = PrivateTraining.open(
            world.policy, world.corpus, ledger=world.root / f"{name}.db", progress=False,
            microbatches=Microbatches(scene.microbatch, scene.rows), noise=NoiseSource(insecure_test_key=key),
            clock=Clock(lambda: NOW),
        )  # fmt: skip
        try:
            _, _, steps = self.private.prepare(
                self.net, self.optimizer, scene.collate, decode=self._decode, layers=scene.layers
            )
            self._steps = iter(steps)
            self.loss: Any = self.private.loss(scene.loss, compiled=True) if scene.compiled else scene.loss
            self._begin, self.private.prepared.begin = self.private.prepared.begin, self._begun
        except BaseException:
            self.private.close()
            raise

    def release(self) -> torch.Tensor:
        """Runs one step; what it released as somebody outside sees it, flat and whitened, float64."""
        step = next(self._steps)
        self._each_step(self.model, step.number)
        for rows in step:
            self.private.backward(self.loss(self.net, rows), rows)
        run = self.private.prepared
        scale = [run.policy.normalizer / run.schedule.blocks[block].std for block, _ in run.router.tensors]
        grads = [tensor.parameter.grad.double().flatten() for _, tensor in run.router.tensors]
        seen = torch.cat([grad * factor for grad, factor in zip(grads, scale, strict=True)])
        self.optimizer.step()
        return seen

    def sums_of(self, number: int, chosen: np.ndarray, real: frozenset[int]) -> torch.Tensor:
        """Sums of a step before noise, whitened and flat, if so many slots were drawn and these payloads were real.

        They are found by the parts of the engine that an audited run goes through, from the draw to the release.
        """
        run, self.real = self.private.prepared, real
        self._each_step(self.model, number)
        drawn = [int(slot) for slot in np.flatnonzero(chosen)]
        run.gradients.clear()
        run.gradients.phase = Phase.DRAWING
        run.folding.begin()
        stds, _ = run.attempt.drawing.noise(number, drawn)
        run.gradients.use(stds)
        for planned in run.attempt.drawing.planned(drawn):
            with run.load(planned, number) as rows:
                run.backward(self.loss(self.net, rows), rows)
        run.release(number)
        return self.sums.flat

    @cached_property
    def slots(self) -> list[int]:
        """Slot of every audited contribution, by its number; once the run has begun."""
        pool = self.private.prepared.pool
        slots = range(len(pool))
        found = {pool.examples(slot)[0]["audited"]: slot for slot in slots if self._class_of(slot) == "m_audited"}
        return [found[number] for number in sorted(found)]

    def _class_of(self, slot: int) -> str:
        return self.private.prepared.pool.slots[slot].admitted.admission.descriptor.admissibility_class

    @property
    def claim(self) -> float:
        """Epsilon that the engine claims for an audited contribution over the horizon."""
        return self._row["epsilon_planned"]

    @property
    def charged(self) -> int:
        """Steps that the ledger has charged to an audited contribution."""
        return self._row["steps_charged"] if self.private.prepared.attempt is not None else 0

    @property
    def _row(self) -> dict[str, Any]:
        return next(row for row in self.private.prepared.summary() if row["class"] == "m_audited")

    def parameters(self) -> list[torch.Tensor]:
        """Copies of the parameters as they are."""
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def start_from(self, parameters: list[torch.Tensor]) -> None:
        """Puts released parameters in the place of one's own."""
        with torch.no_grad():
            for own, given in zip(self.model.parameters(), parameters, strict=True):
                own.copy_(given)

    def _decode(self, content: bytes) -> list[dict]:
        """Examples of a contribution; of an audited one, with its payload or with a null of the same shape."""
        real = {None, *self.real}
        return [self._augment({**example, "weight": float(example["audited"] in real)}) for example in json.loads(content)]

    def _begun(self) -> None:
        """Begins the run, and stands in two places of what it made: the noise, and the draw."""
        self._begin()
        run = self.private.prepared
        streams = run.attempt.streams
        self.sums = Sums(streams.noise if self._noisy else None)
        run.attempt = dataclasses.replace(run.attempt, streams=dataclasses.replace(streams, noise=self.sums))
        sampler = streams.sampler
        sampled = sampler._chosen

        def chosen(step: int) -> np.ndarray:
            mask = np.zeros(len(sampler.occurrences), dtype=bool)
            mask[sampled(step)] = True
            self.chosen = self.draw(mask)
            return np.flatnonzero(self.chosen)

        sampler._chosen = chosen


class Lockstep:
    """The audited run, and the adversary's machine.

    ``misjudged`` is how far the sum that the adversary computed for the true world ever was from the audited run's own: zero if
    the adversary knows all that it is said to know.
    """

    def __init__(self, scene: Scene, root: Path, seed: int, world: World | None = None) -> None:
        """`world`: one that was made for several processes."""
        world = world or world_of(scene, root)
        self.misjudged = 0.0
        self._scene = scene
        self._number = 0
        self._coins = np.random.default_rng([seed, 1])
        secret, own = (hashlib.sha256(f"{scene.name}/{seed}/{who}".encode()).digest() for who in ("run", "adversary"))
        self.audited = Party(scene, world, "audited", secret, seed, True)
        self.parties = [self.audited]
        try:
            self.own = Party(scene, world, "own", own, seed, False)
            self.parties.append(self.own)
            ours, theirs = (party.private.prepared.sandbox.state_dict() for party in self.parties)
            assert ours == theirs, "the public seed follows from the user's"
        except BaseException:
            self.close()
            raise
        self._seed = seed

    def step(self) -> list["Asked"]:
        """One step of the audited run, and what the adversary computes about each audited contribution."""
        truth = self._released()
        worlds: dict[tuple[bytes, frozenset[int]], torch.Tensor] = {}

        def sums(chosen: np.ndarray, real: frozenset[int]) -> torch.Tensor:
            known = chosen.tobytes(), real
            if known not in worlds:
                _restore(truth.before)
                worlds[known] = self.own.sums_of(self._number, chosen, real)
            return worlds[known]

        found = []
        for number, slot in enumerate(self.own.slots):
            others = truth.real - {number}
            without, with_ = (sums(_with(truth.chosen, slot, drawn), others) for drawn in (False, True))
            alone = sums(_with(np.zeros_like(truth.chosen), slot, True), frozenset({number}))
            drawn = bool(truth.chosen[slot])
            found.append(Asked(number, drawn, drawn and number in truth.real, truth.seen, without, with_, alone))
        if (truth.chosen.tobytes(), truth.real) in worlds:
            self.misjudged = max(self.misjudged, float((sums(truth.chosen, truth.real) - truth.sums).norm()))
        _restore(truth.after)
        return found

    def added(self) -> float:
        """How far what audited contributions add to the others' sum is from what they add alone, at most, in one more step."""
        truth = self._released()
        worst = 0.0
        for number, slot in enumerate(self.own.slots):
            only = frozenset({number})
            found, nobody = [], np.zeros_like(truth.chosen)
            for chosen in (_with(truth.chosen, slot, True), _with(truth.chosen, slot, False), _with(nobody, slot, True)):
                _restore(truth.before)
                found.append(self.own.sums_of(self._number, chosen, only))
            company, without, alone = found
            worst = max(worst, float((company - without - alone).norm()))
        _restore(truth.after)
        return worst

    def readings(self, steps: int) -> Readings:
        """The next steps, as far as a reader needs them."""
        found = []
        for _ in range(steps):
            for asked in self.step():
                apart, rest, own = asked.with_ - asked.without, asked.seen - asked.without, asked.alone
                products = (apart.norm(), own.norm(), apart @ own, rest @ apart, rest @ own)
                found.append((self._number, asked.number, asked.drawn, asked.real, *map(float, products)))
        columns = list(zip(*found, strict=True))
        return Readings(*(np.array(column) for column in columns))

    @property
    def graphs(self) -> int:
        """The fewer of the graphs of both machines, where the scene is compiled."""
        return min(party.loss.graphs for party in self.parties) if self._scene.compiled else 0

    def close(self) -> None:
        for party in self.parties:
            party.private.close()

    def _released(self) -> "Truth":
        """One step of the audited run, with a coin for every audited contribution and one for its payload."""
        party = self.audited
        if self._number == 0:
            self.own.release()  # a step of its own begins its run
            _seed_as_users_do(self._seed)
        before, start = _generators(), party.parameters()
        drawn, real = self._coins.integers(0, 2, (2, self._scene.audited))
        party.real = frozenset(int(number) for number in np.flatnonzero(drawn & real))

        def draw(chosen: np.ndarray) -> np.ndarray:
            chosen = chosen.copy()
            chosen[party.slots] = drawn == 1
            return chosen

        party.draw = draw
        seen = party.release()
        self._number += 1
        assert self.own.slots == party.slots
        self.own.start_from(start)
        return Truth(before, start, party.chosen, party.real, seen, party.sums.flat, _generators())


@dataclasses.dataclass(frozen=True, eq=False)
class Truth:
    """One step of the audited run, from outside and from inside.

    Attributes:
        before, after: states of the common generators. start: the parameters before. chosen: who was drawn. real: audited
            contributions, by number, that were drawn with their payload. seen: the release. sums: before noise.
    """

    before: Any
    start: list[torch.Tensor]
    chosen: np.ndarray
    real: frozenset[int]
    seen: torch.Tensor
    sums: torch.Tensor
    after: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """What an adversary has before it answers for one audited contribution; ``drawn`` and ``real`` are the truth.

    Attributes:
        seen: the release. without, with_: sums of the others where it is not drawn, and where it is. alone: its own.
    """

    number: int
    drawn: bool
    real: bool
    seen: torch.Tensor
    without: torch.Tensor
    with_: torch.Tensor
    alone: torch.Tensor


class Refused(Exception):
    """The engine refused the scene by name; ``charged`` says how many steps the ledger had counted by then.

    ``__cause__`` is the engine's own error.
    """

    def __init__(self, charged: int) -> None:
        super().__init__(f"refused after {charged} steps were charged")
        self.charged = charged


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """What an audit found.

    Attributes:
        readings: of every draw. claim: the claimed epsilon. graphs: the least number of graphs of a run with a crowd, where
            compiled. misjudged: as :class:`Lockstep` says.
    """

    readings: Readings
    claim: float
    graphs: int
    misjudged: float


@contextmanager
def paced(scene: Scene, seed: int) -> Iterator[Lockstep]:
    """A run and its adversary over a world of their own.

    Raises:
        Refused: the engine does not take the scene.
    """
    with tempfile.TemporaryDirectory() as root:
        try:
            pace = Lockstep(scene, Path(root), seed)
        except DptrainError as error:
            raise Refused(0) from error
        try:
            yield pace
        except DptrainError as error:
            raise Refused(max(party.charged for party in pace.parties)) from error
        finally:
            pace.close()


def measure(scene: Scene, draws: int, tell: Callable[[Measured], None] = lambda found: None) -> Measured:
    """Audits a scene over as many steps and runs as it takes, each run with a seed, keys and a ledger of its own.

    Args:
        tell: is called now and then with what was found so far.

    Raises:
        Refused: the engine does not take the scene.
    """
    parts: list[Readings] = []
    claim, graphs, misjudged = 0.0, 0, 0.0
    steps = -(-draws // scene.audited)
    for run, start in enumerate(range(0, steps, HORIZON)):
        left = min(HORIZON, steps - start)
        with paced(scene, run) as pace:
            while left:
                found = pace.readings(min(left, _AT_A_TIME))
                left -= min(left, _AT_A_TIME)
                parts.append(dataclasses.replace(found, step=found.step + start))
                claim, graphs, misjudged = pace.audited.claim, pace.graphs, max(misjudged, pace.misjudged)
                tell(Measured(joined(parts), claim, graphs, misjudged))
    return Measured(joined(parts), claim, graphs, misjudged)


def compared(scene: Scene, steps: int) -> tuple[Readings, float]:
    """Readings of a few steps; and, in as many more, how far what a contribution adds in company is from what it adds alone.

    Both are zero, or rounding, if nobody's random numbers depend on who else is drawn.

    Raises:
        Refused: the engine does not take the scene.
    """
    with paced(scene, 0) as pace:
        return pace.readings(steps), max(pace.added() for _ in range(steps))


@lru_cache(maxsize=64)
def measured(scene: Scene, draws: int, old: bool = False) -> Measured:
    """:func:`measure`, once per process; with ``old``, under the masks of one generator."""
    if not old:
        return measure(scene, draws)
    with masks_from_one_generator():
        return measure(scene, draws)


def world_of(scene: Scene, root: Path) -> World:
    """A corpus with audited contributions at rate 0.01, and a crowd at rate 1/2 under the same bounds."""
    behind = 2 * scene.drawn
    counts = {"m_audited": scene.audited, "z_crowd": behind}
    if scene.middle:
        counts = {"a_crowd": behind // 2, "m_audited": scene.audited, "z_crowd": behind - behind // 2}
    names = list(counts)
    first = 1000 * names.index("m_audited")

    def record(number: int) -> list[dict]:
        own = number - first if 0 <= number - first < scene.audited else None
        count = scene.examples(number) if own is None else scene.own_examples
        return [{**scene.record(number + 10_007 * place), "audited": own} for place in range(count)]

    classes = "".join(_CLASS.format(name=name, rate=RATE if name == "m_audited" else "{q}") for name in names)
    most = max(scene.own_examples, *(scene.examples(number) for number in range(64)))
    with chance_of(scene.name):
        return make_world(
            root, per_class=counts, steps=HORIZON, window_steps=50, rate="0.5", classes=classes, record=record, now=NOW,
            policy_extra=f'exactness = "{scene.level}"\n[gate]\nmax_examples = {most}\n',
        )  # fmt: skip


def _with(chosen: np.ndarray, slot: int, drawn: bool) -> np.ndarray:
    """A draw in which the slot is or is not."""
    other = chosen.copy()
    other[slot] = drawn
    return other


def _generators() -> tuple[torch.Tensor, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _restore(states: tuple[torch.Tensor, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def _seed_as_users_do(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
