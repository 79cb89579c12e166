"""A tiny training loop over a test world, shared by the tests of the engine and of the guarantees."""

from typing import Any

import torch

from dptrain import PrivateTraining
from tests.reference.families import FAMILIES, Family
from tests.worlds.training import World


def collate_tokens(examples: list[dict]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([e["ids"] for e in examples])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([e["label"] for e in examples])}


class Trainer:
    """Opens, prepares and steps; ``family`` names a tiny model of ``tests.reference.families``."""

    def __init__(
        self,
        world: World,
        family: str = "bert",
        *,
        seed: int = 0,
        optimizer: Any = None,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.family: Family = FAMILIES[family]()
        self.model = self.family.model.to(dtype).train()
        make = optimizer or (lambda ps: torch.optim.AdamW(ps, lr=1e-2))
        self.optimizer = make(self.model.parameters())
        options.setdefault("progress", False)
        options.setdefault("microbatch", 3)
        self.private = PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, **options)
        if self.private.policy.exactness == "certified" and hasattr(self.model, "set_attn_implementation"):
            self.model.set_attn_implementation("eager")  # other kinds are refused where a mask is collated
        _, _, self.steps = self.private.prepare(self.model, self.optimizer, collate_tokens)

    def losses(self, rows: Any) -> torch.Tensor:
        return self.family.losses(self.model, dict(rows))

    def begin(self) -> "Trainer":
        """What the first step does before it charges: the probes, and then the ledger is made or goes on."""
        for rows in self.private.probe.run():
            self.private.backward(self.losses(rows), rows)
        self.private.begin()
        return self

    def run(self, save_every: int = 0) -> None:
        for step in self.steps:
            self.one(step)
            if save_every and step.number % save_every == 0:
                self.private.save()

    def one(self, step: Any) -> None:
        for rows in step:
            self.private.backward(self.losses(rows), rows)
        self.optimizer.step()

    def close(self) -> None:
        self.private.close()
