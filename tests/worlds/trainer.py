"""A tiny training loop over a test world, shared by the tests of the engine and of the guarantees."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attest.keys import public_bytes
from dptrain import Clock, Earlier, Microbatches, NoiseSource, PrivateTraining, RunLedger
from dptrain.planning.plan import spent
from ledger.accountants import Phase
from ledger.audit import AuditReport, verify_export
from tests.reference.families import FAMILIES, VOCABULARY, Family, classify, tokens
from tests.worlds.training import World


def collate_tokens(examples: list[dict]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([e["ids"] for e in examples])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([e["label"] for e in examples])}


def opening(
    ledger: Any,
    *,
    ledger_state: Any = None,
    ledger_key: Any = None,
    origin: str | None = None,
    checkpoint_dir: Any = None,
    kept_reading: bool = True,
    earlier: Any = (),
    replaces: Any = None,
    earlier_keys: Any = (),
    microbatch: int = 16,
    microbatch_rows: int | None = None,
    workers: int = 0,
    prefetch: int = 2,
    clock: Any = None,
    clock_jump_ok: bool = False,
    insecure_test_key: bytes | None = None,
    noise_generator: str = "host",
    products: str = "fastest",
    **others: Any,
) -> dict[str, Any]:
    """Returns what `PrivateTraining.open` takes, from single options."""
    return {
        "ledger": RunLedger(ledger, ledger_state, ledger_key, origin, checkpoint_dir, kept_reading),
        "earlier": Earlier(earlier, replaces, earlier_keys),
        "microbatches": Microbatches(microbatch, microbatch_rows, products, workers, prefetch),
        "clock": Clock(jump_ok=clock_jump_ok) if clock is None else Clock(clock, clock_jump_ok),
        "noise": NoiseSource(noise_generator, insecure_test_key),
    } | others


def wrapped(model: torch.nn.Module, *, sharded: bool = False) -> torch.nn.Module:
    """Returns a model as several processes train it, under DDP or FSDP2; of one process, the model itself."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return model
    if not sharded:
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for module in list(model.modules()):
        if isinstance(module, torch.nn.ModuleList):
            for layer in module:
                fully_shard(layer)
    fully_shard(model)
    return model


class Layers(torch.nn.Module):
    """The least model with a stack: token ids -> three layers -> class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 16)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])
        self.head = torch.nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return SimpleNamespace(logits=self.head(x.mean(1)))


def layers() -> Family:
    return Family(Layers().double(), tokens, classify)


class Trainer:
    """Opens, prepares and steps; ``family`` names a tiny model of ``tests.reference.families``; without it, `Layers`."""

    usual = "layers"

    def __init__(
        self,
        world: World,
        family: str = "",
        *,
        seed: int = 0,
        optimizer: Any = None,
        dtype: torch.dtype = torch.float32,
        sharded: bool = False,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.family: Family = ({"layers": layers} | FAMILIES)[family or self.usual]()
        self.model = self.family.model.to(dtype).train()
        self.net = wrapped(self.model, sharded=sharded)
        make = optimizer or (lambda ps: torch.optim.AdamW(ps, lr=1e-2))
        self.optimizer = make(self.model.parameters())
        options.setdefault("progress", False)
        options.setdefault("microbatch", 3)
        how = {key: options.pop(key) for key in ("decode", "dry_run") if key in options}
        self.private = PrivateTraining.open(world.policy, world.corpus, **opening(world.ledger, **options))
        if self.private.policy.exactness == "certified" and hasattr(self.model, "set_attn_implementation"):
            self.model.set_attn_implementation("eager")  # other kinds are refused where a mask is collated
        _, _, self.steps = self.private.prepare(self.net, self.optimizer, collate_tokens, **how)

    def losses(self, rows: Any) -> torch.Tensor:
        return self.family.losses(self.net, dict(rows))

    def begin(self) -> "Trainer":
        """What the first step does before it charges: the probes, and then the ledger is made or goes on."""
        for rows in self.private.prepared.probe.run():
            self.private.backward(self.losses(rows), rows)
        self.private.prepared.begin()
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


class BertTrainer(Trainer):
    """Trains BERT where no family is named: its attention, norms and dropout are part of what is tested."""

    usual = "bert"


def audited(trainer: Trainer, world: World, path: Path) -> AuditReport:
    """Exports a run to a path and audits it, as anybody could who has the two public keys: FULL."""
    export = trainer.private.export(path)
    keys = [world.ledger.with_suffix(".pub").read_text().strip()]
    report = verify_export(export, keys, owner_key=public_bytes(world.owner_key))
    assert report.verdict == "FULL", report.findings
    return report


def foreseen_holds(trainer: Trainer, *, redone: int) -> None:
    """Holds what a run says that it will have spent, after so many of its steps were done again, of one level of noise."""
    policy, over = trainer.private.policy, []
    rows = {row["class"]: row for row in trainer.private.prepared.summary()}
    for name, found in trainer.private.epsilon().items():
        assert found is not None
        phases = [Phase(rows[name]["effective_multiplier"], float(policy.class_rule(name).sampling_rate), policy.steps)]
        without, planned, most = (spent(policy, phases, redo=count) for count in (0, redone, policy.redo_steps))
        assert (found.planned, found.if_all_redone) == (pytest.approx(planned, rel=1e-12), pytest.approx(most, rel=1e-12))
        assert found.spent <= found.planned * (1 + 1e-12) and without < found.planned < found.if_all_redone
        over.append(found.spent > without)
    assert any(over), "a step that was done again costs more than was planned without it"


def interrupted(world: World, *, saved: int, stopped: int, resume: bool = False) -> None:
    """Runs up to a step, having saved the states after another one, and ends as a killed process does: nothing is saved at the
    end."""
    trainer = Trainer(world, resume=resume)
    for step in trainer.steps:
        trainer.one(step)
        if step.number == saved:
            trainer.private.save()
        if step.number == stopped:
            break
    trainer.private.prepared.saved = stopped  # as if a later state were there
    trainer.close()
