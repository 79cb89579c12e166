"""Runs a row of the table of settings in one process of a group, and says what came of it there."""

import hashlib
import json
import os
import shutil
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dptrain import PrivateTraining
from dptrain.engine import private_training
from ledger.audit import verify_export
from tests.worlds.trainer import collate_tokens, opening, wrapped
from tests.worlds.training import token_record

if TYPE_CHECKING:
    from tests.distributed.table_rows import Row

KEY = b"\x2b" * 32

Told = dict[str, Any]


@dataclass
class Subject:
    """What a user trains: a model, a loss for each example of ``(model, rows)``, and how records become tensors."""

    model: nn.Module
    losses: Callable[[nn.Module, Any], torch.Tensor]
    collate: Callable[..., dict[str, Any]] = collate_tokens
    layers: Any = None


class Run:
    """Opens and prepares a row's run in this process, and takes its steps.

    Attributes:
        before: parameters before the first step. foreseen: epsilon as planned, then. seen: what the loop noted.
    """

    def __init__(self, row: "Row", root: Path, *, earlier: Any = (), ledger: str = "ledger.db", **more: Any) -> None:
        self.row = row
        torch.manual_seed(0)
        self.subject: Subject = row.subject()
        self.model = self.subject.model.train()
        if row.level == "certified" and hasattr(self.model, "set_attn_implementation"):
            self.model.set_attn_implementation("eager")
        if row.change is not None:
            row.change(self.model)
        self.optimizer: Any = row.optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.scheduler: Any = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: 0.5**k) if row.scheduled else None
        if row.accelerated:
            accelerator = _accelerator()
            self.net, self.optimizer = accelerator.prepare(self.model, self.optimizer)
            self.scheduler = accelerator.prepare(self.scheduler)
            more = {"accelerator": accelerator} | more
        else:
            self.net = (row.wrap or wrapped)(self.model)
        options = {"insecure_test_key": KEY if row.fixed else None, "progress": False, "microbatch": 3, "earlier": earlier}
        options |= row.opening | more
        self.private = self._open(root, ledger, options)
        self.before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        preparing = row.preparing | ({"states": [self.scheduler]} if row.scheduled else {})
        if "metrics" in preparing:
            preparing |= {"metrics": root / preparing["metrics"]}
        _, _, self.steps = self.private.prepare(
            self.net, self.optimizer, self.subject.collate, layers=self.subject.layers, **preparing
        )
        if row.opening.get("workers"):
            assert self.private.prepared.feeder.workers.wait_ready(120)  # until then, the run decodes by itself
        self.foreseen = {name: one and one.planned for name, one in self.private.epsilon().items()}
        self.loss: Any = self.subject.losses
        if row.loss is not None:
            self.loss = self.private.loss(self.loss, **row.loss)
        self.microbatches = 0
        self.seen: Told = {"rates": []}

    def _open(self, root: Path, ledger: str, options: dict[str, Any]) -> PrivateTraining:
        if self.row.own:
            records = [token_record(seed) for seed in range(12)]
            return PrivateTraining.own(records, epochs=2, batch_size=6, directory=root / "own", progress=False)
        return PrivateTraining.open(root / "policy.cose", root / "corpus", **opening(root / ledger, **options))

    def one(self, step: Any) -> None:
        """Takes a step."""
        for rows in step:
            with self.row.around() if self.row.around is not None else nullcontext():
                losses = self.loss(self.net, rows)
            self.microbatches += not self.private.prepared.probe.active
            self.private.backward(losses, rows)
        if self.row.clip:
            self.seen.setdefault("norms", []).append(self.private.clip_blocks_(self.row.clip))
        self.seen["rates"].append(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def all(self, until: int | None = None) -> "Run":
        """Takes all steps that are left, or those up to one."""
        for step in self.steps:
            self.one(step)
            if step.number == until:
                break
        return self

    def told(self) -> Told:
        """Says how the run stands in this process, and ends it."""
        recorder = self.private.opened.recorder
        tensors = {f"parameter {name}": value for name, value in self.model.named_parameters()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"state {index} {key}": v for key, v in state.items() if isinstance(v, torch.Tensor)}
        moved = [(p.detach() - self.before[name]).double().flatten() for name, p in self.model.named_parameters()]
        found: Told = {
            "bits": digest(tensors),
            "moved": torch.cat(moved),
            "microbatches": self.microbatches,
            "foreseen": self.foreseen,
            "epsilon": {name: one and (one.spent, one.planned) for name, one in self.private.epsilon().items()},
            **self.seen,
        }
        if recorder.begun:
            found |= {"charged": recorder.ledger.state.charged, "head": (recorder.ledger.size, recorder.ledger.root)}
        if hasattr(self.loss, "graphs"):
            found["graphs"] = self.loss.graphs
        self.private.close()
        return found


def _accelerator() -> Any:
    """An accelerator over the group that there is, of processors."""
    from accelerate import Accelerator

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": os.environ.get("WORLD_SIZE", "1")}
    return Accelerator(cpu=True)


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names and bits, of any type."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


# ------------------------------------------------------------------------------------------------- ways to go through a run


def to_the_end(row: "Row", root: Path, rank: int) -> Told:
    return Run(row, root).all().told()


def first_half(row: "Row", root: Path, rank: int) -> Told:
    """Takes two steps, saves and ends there."""
    run = Run(row, root).all(until=2)
    run.private.save()
    return run.told()


def second_half(row: "Row", root: Path, rank: int) -> Told:
    """Goes on behind the second step."""
    return Run(row, root, resume=True).all().told()


def with_a_break(row: "Row", root: Path, rank: int) -> Told:
    first = first_half(row, root, rank)
    found = second_half(row, root, rank)
    return found | {"rates": first["rates"] + found["rates"]}


def twice(row: "Row", root: Path, rank: int) -> Told:
    """A second run over the corpus, which counts what the first has spent."""
    Run(row, root).all().told()
    run = Run(row, root, earlier=[root / "ledger.db"], ledger="second.db").all()
    return run.told() | {"cited": len(run.private.opened.recorder.ledger.header.previous)}


def rehearsed(row: "Row", root: Path, rank: int) -> Told:
    """A dry run: nothing is charged, and the model is afterwards what it was."""
    found = Run(row, root).all().told()
    return found | {"ledger": (root / "ledger.db").exists(), "kept": not bool(found["moved"].any())}


def exported(row: "Row", root: Path, rank: int) -> Told:
    """Exports, and has the first process audit the export."""
    run = Run(row, root).all()
    run.private.export(root / "export")
    found = run.told()
    if rank == 0:
        report = verify_export(root / "export", [(root / "ledger.pub").read_text().strip()])
        found["verdict"] = report.verdict, [one.code for one in report.findings]
    return found


def measured(row: "Row", root: Path, rank: int) -> Told:
    """Has the public numbers of every step written, by one process alone."""
    found = Run(row, root).all().told()
    if rank == 0:
        found["lines"] = [json.loads(line) for line in (root / row.preparing["metrics"]).read_text().splitlines()]
    return found


def withdrawn(row: "Row", root: Path, rank: int) -> Told:
    """A withdrawal arrives between two windows."""
    run = Run(row, root)
    for step in run.steps:
        run.one(step)
        if step.number == 2 and rank == 0:
            shutil.copytree(root / "withdrawals", root / "ledger.db.withdrawals", dirs_exist_ok=True)
    found = run.told()
    return found | {"left": len(run.private.opened.recorder.ledger.state.withdrawals)}


def led(row: "Row", root: Path, rank: int) -> Told:
    """What programs have the first process do alone: ask for epsilon, evaluate, save."""
    run = Run(row, root)
    for step in run.steps:
        run.one(step)
        if rank == 0:
            assert run.private.epsilon() and repr(run.private)
            run.model.eval()
            with torch.no_grad():
                run.subject.losses(run.net, run.subject.collate([token_record(77 + k) for k in range(3)]))
            run.model.train()
            run.private.save()
    return run.told()


def apart(row: "Row", root: Path, rank: int) -> Told:
    """Every process follows its own losses with its learning rate."""
    run = Run(row, root)
    for step in run.steps:
        run.one(step)
        run.optimizer.param_groups[0]["lr"] *= 1.0 - 0.1 * rank
    return run.told()


# -------------------------------------------------------------------------------------------------------- in one process


def ran(rank: int, roots: dict[str, str], way: Callable[["Row", Path, int], Told] | None = None) -> dict[str, Told]:
    """Runs rows one after the other.

    Args:
        roots: folder of each, by the key of the row. way: how all of them go; by default each as it says.

    Returns:
        By key what each run told, or ``refused``: code and sentence of what it raised.
    """
    from tests.distributed.table_rows import BY_KEY, FAULTY

    known = BY_KEY | {row.key: row for row in FAULTY.values()}
    found: dict[str, Told] = {}
    for key, root in roots.items():
        row = known[key]
        with warnings.catch_warnings(), ExitStack() as held:
            warnings.simplefilter("ignore")
            for enter in row.under:
                held.enter_context(enter())
            try:
                found[key] = (way or row.way)(row, Path(root), rank)
            except Exception as error:
                code, sentence = getattr(error, "code", type(error).__name__), getattr(error, "sentence", str(error))
                found[key] = {"refused": (str(code), sentence), "trace": traceback.format_exc()}
                for run in list(private_training._OPEN):
                    run.close()
    return found
