"""The same data, model, loop and number of steps WITHOUT privacy, to see what privacy costs in accuracy.

Nothing that comes out of here may be released: there is no clipping, no noise, no depth limit and no ledger. Every output
carries the stamp.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import nn

from attest.corpus import open_corpus
from attest.gate import run_gate
from attest.keys import load_public_key
from attest.policy import open_policy
from attest.registry import open_registry
from dptrain.data.microbatch import Collate, Decode, Microbatch, build, json_examples
from dptrain.errors import ConfigError
from dptrain.record.registry_watch import memory_of
from dptrain.tasks.runconfig import DataConfig

STAMP = "NOT PRIVATE: trained without clipping, noise or ledger, for comparison only; do not release"


class WithoutPrivacy:
    """Takes the place of ``PrivateTraining`` in a training loop; not private at all."""

    def __init__(
        self,
        data: DataConfig,
        *,
        microbatch: int = 16,
        accelerator: Any | None = None,
        decode: Decode = json_examples,
        seed: int = 0,
    ) -> None:
        """Admits the corpus as a private run would, so that both train on the same contributions."""
        owner = load_public_key(data.owner_key or data.policy.parent / "owner.pub")
        self.policy = open_policy(data.policy, owner).policy
        self._corpus = open_corpus(data.corpus)
        registry = open_registry(data.registry or data.policy.parent / "registry.cbor", owner)
        memory_of(self._corpus).keep(registry)
        self.gate = run_gate(self._corpus, self.policy, registry, now=int(time.time()))
        if not self.gate.admitted:
            raise ConfigError("NOTHING_ADMITTED", "the gate admitted no contribution; see `dptrain gate`")
        self.device = accelerator.device if accelerator is not None else torch.device("cpu")
        self._microbatch = microbatch
        self._decode = decode
        self._generator = torch.Generator().manual_seed(seed)
        self._share = 1.0
        print(STAMP, file=sys.stderr)

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, collate: Collate, layers: str | None = None,
        probe: object = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer, "WithoutPrivacy"]:
        """Model, optimizer and steps, as ``PrivateTraining.prepare`` gives them; ``layers`` and ``probe`` say nothing here."""
        self._collate = collate
        self._optimizer = optimizer
        rules = {rule.name: float(rule.sampling_rate) for rule in self.policy.classes}
        self._rates = torch.tensor([rules[item.admission.descriptor.admissibility_class] for item in self.gate.admitted])
        return model, optimizer, self

    def __len__(self) -> int:
        return self.policy.steps

    def __iter__(self) -> Iterator["PlainStep"]:
        numbers = range(1, self.policy.steps + 1)
        screen = Console(stderr=True)
        for number in track(numbers, "training WITHOUT privacy", console=screen, disable=not screen.is_terminal):
            yield PlainStep(self, number)

    def microbatches(self) -> Iterator[Microbatch]:
        """The microbatches of one step; draws have the size that a private step's have."""
        self._optimizer.zero_grad()
        drawn = torch.nonzero(torch.rand(len(self._rates), generator=self._generator) < self._rates).flatten().tolist()
        self._share = 1.0 / max(1, len(drawn))
        for start in range(0, len(drawn), self._microbatch):
            yield build([self._examples(i) for i in drawn[start : start + self._microbatch]], self._collate, self.device)

    def backward(self, losses: torch.Tensor, rows: Microbatch) -> None:
        """Ordinary gradients of the mean loss over the draw."""
        (losses * rows.weight.to(losses)).sum().mul(self._share).backward()

    def loss(self, loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The loss as it is: an example that raises ends a comparison run."""
        return loss

    def compile(self, loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The loss as it is: comparison runs are not compiled."""
        return loss

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Comparison runs keep no checkpoint."""

    def save(self) -> None:
        """Comparison runs keep no checkpoint."""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> "WithoutPrivacy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _examples(self, index: int) -> Sequence[Any]:
        return self._decode(self._corpus.read(self.gate.admitted[index].locator))


class PlainStep:
    """One step; iterate it for its microbatches."""

    def __init__(self, run: WithoutPrivacy, number: int) -> None:
        self._run = run
        self.number = number

    def __iter__(self) -> Iterator[Microbatch]:
        return self._run.microbatches()
