"""Sixty-four contributions, one of them hostile, in the loop of a user; and everything about a run that can be seen.

The signed corpus never changes: what a contribution says is swapped where ``decode`` gives it, so that two runs differ in the
payload alone, and their ledgers can be compared byte by byte.
"""

import contextlib
import dataclasses
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dptrain import Clock, Microbatches, NoiseSource, PrivateTraining, RunLedger
from dptrain.errors import DptrainError
from dptrain.routing.graphs import StepGraph
from ledger.leaves import Charge, decode_leaf
from tests.worlds.trainer import wrapped
from tests.worlds.training import World, make_world

POOL = 64
NOW = 1_800_000_000
SEED = "00112233445566778899aabbccddeeff"
"""Public seed of the forward, which is otherwise made afresh for every run."""

WORDS, WIDTH, LABELS, GROUPS = 20, 6, 3, 4
FAR = 1e3
"""No probe has a feature as large."""

CLASSES = """
[[class]]
name = "general"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
[[class]]
name = "sensitive"
clip_norm = 0.5
noise_multiplier = 1.5
sampling_rate = {q}
depth = {{ from = 0.6, to = 1.0 }}
"""

Swap = Callable[[list[dict]], list[dict]]
"""What becomes of the examples of a contribution."""


class Layer(nn.Module):
    """A linear layer with dropout, and a second one that runs if some feature of the microbatch is large."""

    def __init__(self, decides: str) -> None:
        super().__init__()
        self.inner, self.drop, self.rare = nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8)
        self.decides = decides

    def forward(self, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.drop(torch.relu(self.inner(hidden)))
        if self.decides == "truth" and (x[:, 0] > FAR).any():
            hidden = hidden + self.rare(hidden)
        if self.decides == "number" and float(x[:, 0].max()) > FAR:
            hidden = hidden + self.rare(hidden)
        return hidden


class Net(nn.Module):
    """Reads words, numbers and a group; two layers and a head.

    Args:
        decides: how the last layer decides about its rare part: by a ``truth``, by a ``number`` that Python compares, or not.
    """

    def __init__(self, decides: str = "") -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(WORDS, 8), nn.Linear(WIDTH, 8)
        self.layers = nn.ModuleList([Layer(""), Layer(decides)])
        self.head = nn.Linear(8, LABELS)

    def forward(self, ids: torch.Tensor, x: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids).mean(1) + self.numbers(x) + nn.functional.one_hot(group, GROUPS).sum(1, keepdim=True)
        for layer in self.layers:
            hidden = layer(hidden, x)
        return self.head(hidden)


def example(number: int) -> dict:
    values = np.random.default_rng(number).normal(size=WIDTH)
    ids = [(number * 7 + 3 * t + number % 11 * t) % WORDS for t in range(5)]
    x = [round(float(value), 3) for value in values]
    return {
        "number": number, "ids": ids, "x": x, "label": number % LABELS, "group": number % GROUPS, "weight": 1.0, "offset": 0.0,
        "raises": 0,
    }  # fmt: skip


def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
    return {
        "ids": torch.tensor([each["ids"] for each in examples]),
        "x": torch.tensor([each["x"] for each in examples], dtype=torch.float32),
        "labels": torch.tensor([each["label"] for each in examples]),
        "group": torch.tensor([each["group"] for each in examples]),
        "weight": torch.tensor([each["weight"] for each in examples], dtype=torch.float32),
        "offset": torch.tensor([each["offset"] for each in examples], dtype=torch.float32),
        "raises": torch.tensor([each["raises"] for each in examples]),
    }


class Hostile(Exception):
    """What a user's loss raises because of what a contribution says."""


def loss_of(model: nn.Module, rows: Any) -> torch.Tensor:
    scores = model(rows["ids"], rows["x"], rows["group"])
    return nn.functional.cross_entropy(scores, rows["labels"], reduction="none") * rows["weight"] + rows["offset"]


def raising_loss(model: nn.Module, rows: Any) -> torch.Tensor:
    """Says of what it does not like where it was, as libraries do."""
    for place, value in enumerate(rows["raises"].tolist()):
        if value > 1:
            raise Hostile(f"row {place} says {value}")
    return loss_of(model, rows)


@dataclass
class Trace:
    """What of a run can be seen, but for clocks.

    Attributes:
        passes: every module that ran, every graph, every backward pass, and the shapes of every microbatch, in their order.
        leaves: of the ledger, without the random id of the stream of noise; those of an epoch without digests of weights.
        lines: on standard output and standard error, warnings, and what was logged.
        released: gradients of every step. digests: of the weights, in the leaves of epochs. parameters: at the end.
        ended: what ended the run, if something did.
    """

    passes: list[Any] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    released: list[list[torch.Tensor]] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    parameters: list[torch.Tensor] = field(default_factory=list)
    drawn: list[frozenset[int]] = field(default_factory=list)
    generators: Any = None
    ended: str | None = None

    @property
    def seen(self) -> dict[str, Any]:
        """What must be the same whatever a payload says."""
        return {
            "passes": self.passes, "leaves": self.leaves, "sizes": self.sizes, "lines": self.lines, "ended": self.ended,
            "generators": self.generators,
        }  # fmt: skip

    def same_releases(self, other: "Trace") -> bool:
        """Whether all releases are the same to the bit, and with them the weights."""
        pairs = zip(self.released, other.released, strict=True)
        equal = all(torch.equal(a, b) for mine, its in pairs for a, b in zip(mine, its, strict=True))
        return equal and self.digests == other.digests

    def distance(self, other: "Trace") -> float:
        """The largest difference of two releases of a step, on the scale of what is released."""
        pairs = zip(self.released, other.released, strict=True)
        return max(float((a - b).abs().max() / b.abs().max()) for mine, its in pairs for a, b in zip(mine, its, strict=True))


@dataclass(frozen=True)
class Scene:
    """One run.

    Attributes:
        level: exactness. form: ``plain``, ``loss`` or ``compile``. decides: see :class:`Net`. steps: of the horizon.
        rate: of sampling. microbatch, rows: limits. several: whether contributions have one to three examples.
        model, loss: in the place of the usual ones. extra: of the policy.
    """

    level: str = "fast"
    form: str = "plain"
    decides: str = ""
    steps: int = 2
    rate: str = "0.5"
    microbatch: int = 16
    rows: int | None = None
    several: bool = False
    loss: Callable[..., torch.Tensor] = loss_of
    model: Callable[[], nn.Module] | None = None
    window: int = 16
    """Steps that are charged at a time."""

    def but(self, **changed: Any) -> "Scene":
        return dataclasses.replace(self, **changed)

    def world(self, root: Path) -> World:
        """A signed corpus of 64 contributions, a quarter of them of a class that reaches the upper layers alone."""

        def record(number: int) -> list[dict]:
            number = number if number < 1000 else number - 1000 + POOL * 3 // 4
            count = 1 + number % 3 if self.several else 1
            return [{**example(number + 1000 * place), "number": number} for place in range(count)]

        return make_world(
            root, per_class={"general": POOL * 3 // 4, "sensitive": POOL // 4}, steps=self.steps, window_steps=self.window,
            rate=self.rate, classes=CLASSES, record=record, now=NOW,
            policy_extra=f'exactness = "{self.level}"\n[gate]\nmax_examples = 3\n',
        )  # fmt: skip


class Run:
    """One run of a scene over a world, by a user's loop.

    Args:
        swap: of a step (0 before the first), what becomes of the examples of which contributions, by number.
        key: fixes noise and draws. probe: for ``prepare``.
    """

    def __init__(
        self, scene: Scene, world: World, swap: Callable[[int], dict[int, Swap]], *, key: bytes = b"k" * 32,
        probe: list[bytes] | None = None,
    ) -> None:  # fmt: skip
        self.scene, self.swap, self.world, self.key, self.records = scene, swap, world, key, probe
        self.at = 0
        self.reads: list[int] = []
        self.trace = Trace()
        self._count = 0

    def decode(self, content: bytes) -> list[dict]:
        found = json.loads(content)
        number = found[0]["number"]
        self.reads.append(number)
        change = self.swap(self.at).get(number)
        return found if change is None else change(found)

    def go(self, ledger: Path, then: Callable[["Run"], None] = lambda run: None) -> Trace:
        """Runs it to its end, or to what ends it; ``then`` is called before it is closed."""
        torch.manual_seed(0)
        self.model = Net(self.scene.decides) if self.scene.model is None else self.scene.model()
        self.model.train()
        self.net = wrapped(self.model)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        with self._watched():
            self.private = private = PrivateTraining.open(
                self.world.policy, self.world.corpus,
                ledger=RunLedger(ledger, key=self.world.root / "log.key", origin="hostile"), progress=False,
                microbatches=Microbatches(self.scene.microbatch, self.scene.rows),
                noise=NoiseSource(insecure_test_key=self.key), clock=Clock(lambda: NOW),
            )  # fmt: skip
            try:
                with self._passes():
                    self._loop(optimizer)
            except Exception as error:
                self.trace.ended = str(error) if isinstance(error, DptrainError) else f"{type(error).__name__}: {error}"
                if not isinstance(error, DptrainError):
                    self.error = error
            try:
                then(self)
                self._read_ledger()
            finally:
                private.close()
        self.trace.parameters = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.trace.generators = torch.get_rng_state().sum().item()
        return self.trace

    def _loop(self, optimizer: torch.optim.Optimizer) -> None:
        private, form = self.private, self.scene.form
        _, _, steps = private.prepare(
            self.net, optimizer, collate, decode=self.decode, layers="layers", probe=self.records
        )
        private.prepared.sandbox.load_state_dict({"seed": SEED})
        private.prepared.sandbox.kept.look()
        loss = self.scene.loss if form == "plain" else private.loss(self.scene.loss, compiled=form == "compile")
        self.loss = loss
        for step in steps:
            self.at = step.number
            self.reads.clear()
            for rows in step:
                shapes = {key: (tuple(value.shape), value.dtype) for key, value in rows.items()}
                self.trace.passes.append(("microbatch", rows.contributions, rows.examples, shapes))
                private.backward(loss(self.net, rows), rows)
            self.trace.drawn.append(frozenset(self.reads))
            self.trace.released.append([tensor.parameter.grad.clone() for _, tensor in private.prepared.router.tensors])
            optimizer.step()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Everything that is said on the way."""
        out, err, logged = io.StringIO(), io.StringIO(), io.StringIO()
        handler = logging.StreamHandler(logged)
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        with warnings.catch_warnings(record=True) as told, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.simplefilter("always")
            try:
                yield
            finally:
                root.removeHandler(handler)
                root.setLevel(level)
        said = [f"{each.category.__name__}: {each.message}" for each in told if "pynvml" not in str(each.message)]
        self.trace.lines += [*said, out.getvalue(), err.getvalue(), logged.getvalue()]

    @contextlib.contextmanager
    def _passes(self) -> Iterator[None]:
        passes = self.trace.passes
        hook = nn.modules.module.register_module_forward_pre_hook(
            lambda module, args: passes.append(type(module).__name__) if torch.is_grad_enabled() else None
        )
        back, graph = torch.autograd.backward, StepGraph.__call__

        def backward(*args: Any, **kwargs: Any) -> Any:
            passes.append("backward")
            return back(*args, **kwargs)

        def run(own: StepGraph, *args: Any, **kwargs: Any) -> Any:
            passes.append("graph")
            return graph(own, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.autograd, "backward", backward)
            patch.setattr(StepGraph, "__call__", run)
            try:
                yield
            finally:
                hook.remove()

    def _read_ledger(self) -> None:
        if not self.private.opened.ranks.leads:
            return  # it has none, and follows that of rank 0
        try:
            rows = self.private.opened.recorder.ledger.rows()
        except DptrainError:
            return  # not begun: there is none
        with rows as found:
            for row in found:
                leaf = decode_leaf(row.body)
                self.trace.sizes.append(len(row.body))
                if isinstance(leaf, Charge):
                    leaf = dataclasses.replace(leaf, noise_stream=bytes(16))
                if hasattr(leaf, "model_digest"):
                    self.trace.digests.append(leaf.model_digest)
                    leaf = dataclasses.replace(leaf, model_digest=bytes(32))
                self.trace.leaves.append(leaf)
