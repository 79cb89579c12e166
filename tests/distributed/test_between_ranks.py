"""Attacks across ranks: programs that talk to others, layers that are gathered by content, files that nobody pinned."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from dptrain.errors import DptrainError, UnsupportedPolicy  # noqa: E402
from dptrain.parallel import found as ranks_found  # noqa: E402
from dptrain.parallel.placement import Exchanged  # noqa: E402
from dptrain.record import shard_files  # noqa: E402
from ledger.errors import LedgerError, PinRefused  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.worlds.trainer import Trainer, wrapped  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402


def talking(rank: int, root: Path, talk: str) -> tuple[str, bool]:
    """Trains with a loss that talks to the other rank; returns how that ended, and whether there is a ledger."""
    trainer = Trainer(World.at(root), "bert")
    plain = trainer.losses

    def losses(rows: Any) -> torch.Tensor:
        own = plain(rows)
        other = own.detach().clone()
        if talk == "reduce":
            dist.all_reduce(other)
        elif talk == "gather":
            every = [torch.empty_like(other) for _ in range(2)]
            dist.all_gather(every, other)
            other = every[1 - rank]
        else:
            other = torch.distributed.nn.functional.all_reduce(other)
        return own * other

    trainer.losses = losses  # type: ignore[method-assign]
    try:
        trainer.run()
    except DptrainError as error:
        return error.code, (root / "ledger.db").exists()
    return "trained", True


@pytest.mark.parametrize("talk", ["reduce", pytest.param("gather", marks=pytest.mark.slow)])
def test_a_loss_that_talks_to_other_ranks_is_refused_before_anything_is_charged(tmp_path: Path, talk: str) -> None:
    """Probes run on the same rows at every rank, so that what they compare across ranks would be their own."""
    make_world(tmp_path, steps=2)
    assert launched(talking, 2, tmp_path, talk) == [("RANKS_TALK", False)] * 2


class Branches(nn.Module):
    """Runs one of two layers of equal shape, by the content of its rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor, **others: Any) -> torch.Tensor:
        h = self.embed(input_ids).mean(1)
        return self.head(self.layers[int(input_ids.sum()) % 2](h))


class Both(Branches):
    """Runs both layers, whatever its rows are."""

    def forward(self, input_ids: torch.Tensor, **others: Any) -> torch.Tensor:
        h = self.embed(input_ids).mean(1)
        return self.head(self.layers[0](h) + self.layers[1](h))


EVERYTHING = """
[[class]]
name = "all"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


def branching(rank: int, root: Path) -> str:
    from dptrain import Microbatches, PrivateTraining
    from tests.worlds.trainer import collate_tokens

    world = World.at(root)
    net = wrapped(Branches(), sharded=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    private = PrivateTraining.open(
        world.policy, world.corpus, ledger=world.ledger, progress=False, microbatches=Microbatches(1)
    )
    _, _, steps = private.prepare(net, optimizer, collate_tokens)
    try:
        for step in steps:
            for rows in step:
                losses = nn.functional.cross_entropy(net(rows["input_ids"]), rows["labels"], reduction="none")
                private.backward(losses, rows)
            optimizer.step()
    except (DptrainError, LedgerError) as error:
        return error.code
    finally:
        private.close()
    return "trained"


def test_a_run_whose_ranks_gather_layers_by_content_releases_noise_alone_and_ends(tmp_path: Path) -> None:
    """Both layers have the shape of the other, so that torch mixes them without a word."""
    make_world(tmp_path, per_class=12, steps=6, window_steps=1, rate="0.7", classes=EVERYTHING)
    assert launched(branching, 2, tmp_path) == ["GATHER_ORDER"] * 2


def saving(rank: int, root: Path) -> str:
    """Saves at the first rank alone."""
    trainer = Trainer(World.at(root), "bert", sharded=True)
    try:
        for step in trainer.steps:
            trainer.one(step)
            if rank == 0:
                trainer.private.save()
    except (DptrainError, RuntimeError) as error:
        return str(getattr(error, "code", type(error).__name__))
    return "trained"


def test_a_checkpoint_of_shards_that_one_rank_alone_writes_is_noticed(tmp_path: Path) -> None:
    make_world(tmp_path, steps=4)
    assert launched(saving, 2, tmp_path) == ["RANKS_DIFFER"] * 2


def without_states(rank: int, root: Path, cleared: bool) -> int:
    """Saves under an optimizer that keeps no states, after gradients were cleared or not; returns where the next one begins."""
    first = Trainer(World.at(root), "bert", sharded=True, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.05), resume=True)
    for step in first.steps:
        first.one(step)
        if cleared:
            first.optimizer.zero_grad()
        first.private.save()
        break
    first.close()
    second = Trainer(World.at(root), "bert", sharded=True, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.5), resume=True)
    begun, rate = second.private.prepared.start_step, second.optimizer.param_groups[0]["lr"]
    second.close()
    assert rate == 0.05
    return begun


@pytest.mark.slow
def test_optimizers_without_states_are_saved_and_read_under_fsdp2(tmp_path: Path) -> None:
    make_world(tmp_path, steps=4, window_steps=1)
    assert launched(without_states, 2, tmp_path, True) == [1, 1]


def public_exchange(rank: int) -> list[list[list[int]]]:
    """Private and public sums of a tensor with fewer coordinates than there are ranks, at once and one by one."""
    tensor = type("Tensor", (), {"shape": torch.Size([3]), "parameter": nn.Parameter(torch.zeros(3))})()
    found = []
    for bucket in (None, 1):
        placement = Exchanged(ranks_found(), [tensor], bucket)
        private = iter([torch.full((3,), float(rank + 1), dtype=torch.float64)])
        public = iter([torch.full((3,), 10.0, dtype=torch.float64)])
        for share in placement.shares(private, wide=True, public=public):
            share.values.add_(share.public)
        found.append([value.tolist() for _, value in placement.rest()])
    return found


def test_a_rank_without_a_coordinate_takes_part_in_every_exchange() -> None:
    assert launched(public_exchange, 4) == [[[[50.0, 50.0, 50.0]]] * 2] * 4


def refused_then_plain(rank: int, root: Path) -> tuple[str, bool]:
    """Trains the same wrapped model without privacy after a run was refused; returns whether replicas stay equal."""
    world = World.at(root)
    from dptrain import PrivateTraining
    from tests.worlds.trainer import collate_tokens

    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(Both())
    with PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, progress=False) as private:
        try:
            private.prepare(net, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), collate_tokens)
            code = "prepared"
        except (DptrainError, UnsupportedPolicy) as error:
            code = error.code
    torch.manual_seed(rank)
    net(torch.randint(0, 50, (2, 7))).sum().backward()
    own = net.module.head.weight.grad.clone()
    other = own.clone()
    dist.broadcast(other, 0)
    return code, torch.equal(own, other)


def test_a_refused_run_gives_the_wrapper_back_as_it_was(tmp_path: Path) -> None:
    make_world(tmp_path, steps=2, classes=EVERYTHING)
    assert launched(refused_then_plain, 2, tmp_path) == [("OPTIMIZER_PARAMETERS", True)] * 2


def test_files_of_a_state_are_read_as_they_were_digested_and_no_others(tmp_path: Path) -> None:
    from dptrain.parallel import ALONE

    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights")
    table = shard_files.table_of(folder)
    files = json.loads(table)["files"]
    (folder / "model.safetensors").write_bytes(b"planted")
    with shard_files.verified(folder, files, ALONE) as own:
        (tmp_path / "other").write_bytes(b"swapped")
        (tmp_path / "other").replace(folder / "model.bin")
        assert sorted(path.name for path in own.iterdir()) == ["model.bin"]
        assert (own / "model.bin").read_bytes() == b"weights"
    with pytest.raises(PinRefused, match="STATE_CHANGED"), shard_files.verified(folder, files, ALONE):
        pass
    (folder / "model.bin").unlink()
    os.mkfifo(folder / "model.bin")
    with pytest.raises(PinRefused, match="STATE_CHANGED"), shard_files.verified(folder, files, ALONE):
        pass
    with pytest.raises(PinRefused), shard_files.verified(folder, {"../other": [0, "0" * 64]}, ALONE):
        pass
