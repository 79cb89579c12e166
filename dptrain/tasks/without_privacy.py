"""Trains the same model on the same data WITHOUT privacy, to see what privacy costs in accuracy.

Nothing that comes out of here may be released: there is no clipping, no noise, no depth limit and no ledger. Every output
carries the stamp.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attest.corpus import open_corpus
from attest.gate import run_gate
from attest.keys import load_public_key
from attest.policy import open_policy
from attest.registry import open_registry
from dptrain.data.microbatch import Collate, Decode, Microbatch, build, json_examples
from dptrain.engine.step import Steps, Unrecorded
from dptrain.errors import ConfigError
from dptrain.record.registry_watch import memory_of
from dptrain.tasks.runconfig import DataConfig

STAMP = "NOT PRIVATE: trained without clipping, noise or ledger, for comparison only; do not release"


class WithoutPrivacy:
    """Takes the place of ``PrivateTraining`` in a training loop; not private at all."""

    def __init__(self, data: DataConfig, *, microbatch: int = 16, accelerator: Any | None = None, seed: int = 0) -> None:
        """Admits the corpus as a private run would, so that both train on the same contributions."""
        owner = load_public_key(data.owner_key or data.policy.parent / "owner.pub")
        self.policy = open_policy(data.policy, owner).policy
        self._corpus = open_corpus(data.corpus)
        registry = open_registry(data.registry or data.policy.parent / "registry.cbor", owner)
        memory_of(self._corpus).keep(registry)
        self.gate = run_gate(self._corpus, self.policy, registry, now=int(time.time()))
        if not self.gate.admitted:
            raise ConfigError("NOTHING_ADMITTED", "the gate admitted no contribution; see `dptrain gate`")
        self._device = accelerator.device if accelerator is not None else torch.device("cpu")
        self._microbatch = microbatch
        self._generator = torch.Generator().manual_seed(seed)
        self._share = 1.0
        print(STAMP, file=sys.stderr)

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        collate: Collate,
        *,
        decode: Decode = json_examples,
        layers: object = None,
        probe: object = None,
        states: object = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer, Steps[list[int]]]:
        """Returns model, optimizer and steps as ``PrivateTraining.prepare`` does; the last three say nothing here."""
        rules = {rule.name: float(rule.sampling_rate) for rule in self.policy.classes}
        rates = torch.tensor([rules[item.admission.descriptor.admissibility_class] for item in self.gate.admitted])

        def read(index: int) -> list[Any]:
            return decode(self._corpus.read(self.gate.admitted[index].locator))

        def draw() -> list[list[int]]:
            optimizer.zero_grad()
            drawn = torch.nonzero(torch.rand(len(rates), generator=self._generator) < rates).flatten().tolist()
            self._share = 1.0 / max(1, len(drawn))
            return [drawn[start : start + self._microbatch] for start in range(0, len(drawn), self._microbatch)]

        def load(slots: Sequence[int]) -> Microbatch:
            return build([read(slot) for slot in slots], collate, self._device)

        return model, optimizer, Steps(_Plain(draw, load), 1, self.policy.steps, "training WITHOUT privacy")

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Adds ordinary gradients of the mean loss over the draw."""
        (losses * rows.weight.to(losses)).sum().mul(self._share).backward()

    def loss(self, function: Callable[..., torch.Tensor], *, compiled: bool = False) -> Callable[..., torch.Tensor]:
        """Returns the loss as it is: an example that raises ends a comparison run, and none is compiled."""
        return function

    def save(self) -> None:
        """Keeps no checkpoint."""

    def close(self) -> None:
        """Closes nothing."""

    def __enter__(self) -> "WithoutPrivacy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Plain(Unrecorded[list[int]]):
    """Parts of a step without privacy: nothing is charged or recorded, and gradients are released as they are.

    Args:
        draw: samples a step; draws have the size that a private step's have. load: makes rows of slots.
    """

    def __init__(self, draw: Callable[[], list[list[int]]], load: Callable[[Sequence[int]], Microbatch]) -> None:
        self._draw = draw
        self._load = load

    def draw(self, number: int) -> list[list[int]]:
        """Samples the contributions of a step."""
        return self._draw()

    @contextmanager
    def load(self, planned: list[int], number: int) -> Iterator[Microbatch]:
        """Collates a microbatch."""
        yield self._load(planned)

    def release(self, number: int) -> None:
        """Leaves the gradients as they are: a null mechanism."""
