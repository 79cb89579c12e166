"""The same keys on 1, 2 and 4 processes, under DDP and FSDP2: equal bits at `certified`."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.blocks.shards import is_shard, whole  # noqa: E402
from dptrain.parallel import placement  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.leaves.numerics import SUMS32  # noqa: E402
from tests.distributed.jobs import Job, loud, opened, size  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import small_world  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

KEY = b"\x31" * 32
STEPS = 20


def trained(
    rank: int, root: Path, family: str, sharded: bool, until: int | None = None, key: bytes | None = KEY
) -> dict[str, Any]:
    """Trains to the end, or to a step and saves; returns digests of all states, counts, and the head of the ledger."""
    pytest.MonkeyPatch().setattr(placement, "BUCKET", 4001)  # dozens, which begin and end in tensors; for this process alone
    trainer = Trainer(World.at(root), family, insecure_test_key=key, microbatch=4, sharded=sharded, resume=True)
    begun, microbatches = trainer.private.prepared.start_step, 0
    for step in trainer.steps:
        for rows in step:
            microbatches += 1
            trainer.private.backward(trainer.losses(rows), rows)
        trainer.optimizer.step()
        if step.number == until:
            trainer.private.save()
            break
    ledger = trainer.private.opened.recorder.ledger
    found = {
        "begun": begun,
        "rows": [tuple(p.to_local().shape) for p in trainer.model.parameters() if is_shard(p)],
        "parameters": digest(dict(trainer.model.named_parameters())),
        "optimizer": digest({f"{i}/{k}": v for i, s in trainer.optimizer.state_dict()["state"].items() for k, v in s.items()}),
        "microbatches": microbatches,
        "head": (ledger.size, ledger.root),
        "wire": ledger.header.numerics.wire,
        "charged": ledger.state.charged,
        "epsilon": {name: one.spent for name, one in trainer.private.epsilon().items()},
    }
    if ledger.finished and key is None:
        trainer.private.export(root / "export")
    trainer.close()
    return found


def digest(tensors: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + whole(tensors[name].detach()).contiguous().numpy().tobytes())
    return found.hexdigest()


def copied(world: World, folder: Path) -> Path:
    """Copies a world, so that each number of processes begins with the same bytes."""
    shutil.copytree(world.root, folder)
    return folder


def assert_same(found: list[dict[str, Any]], first: dict[str, Any], how: str) -> None:
    for one in found:
        assert one["parameters"] == first["parameters"], f"parameters {how}"
        assert one["optimizer"] == first["optimizer"], f"optimizer {how}"
        assert one["charged"] == first["charged"] and one["epsilon"] == first["epsilon"]
    assert len({one["microbatches"] for one in found}) == 1, f"ranks ran different numbers of microbatches {how}"
    assert len({one["head"] for one in found}) == 1, f"ranks followed different ledgers {how}"


BOTH = ((2, False), (2, True))
CORRELATED = """disclosure = "occurrences_public"
sampling = { order = "cyclic" }
noise = { family = "banded_toeplitz", parameters = { bands = 3, coefficients = [1048576, 524288, 393216] } }
"""


@pytest.mark.parametrize(
    ("family", "steps", "ways"),
    [
        ("bert", 3, BOTH),
        pytest.param("bert", STEPS, (*BOTH, (4, False)), marks=pytest.mark.slow),
        pytest.param("gpt2_lora", STEPS, (*BOTH, (4, False)), marks=pytest.mark.slow),
    ],
)
def test_certified_runs_are_equal_to_the_bit_on_any_number_of_processes(
    tmp_path: Path, family: str, steps: int, ways: tuple[tuple[int, bool], ...]
) -> None:
    world = make_world(tmp_path / "world", per_class=8, steps=steps, rate="0.5", policy_extra='exactness = "certified"')
    first = launched(trained, 1, copied(world, tmp_path / "one"), family, False)[0]
    assert first["charged"] == steps
    for ranks, sharded in ways:
        how = f"on {ranks} processes, {'FSDP2' if sharded else 'DDP'}"
        found = launched(trained, ranks, copied(world, tmp_path / how), family, sharded)
        assert_same(found, first, how)
        assert found[0]["microbatches"] < first["microbatches"]
        assert bool(found[0]["rows"]) == sharded


@pytest.mark.slow
def test_correlated_noise_is_equal_to_the_bit_on_one_two_and_four_processes_and_resumed_on_others(tmp_path: Path) -> None:
    """Alone; DDP and FSDP2 on two; DDP on four; and from each to the next after two steps, each with what others kept."""
    policy = 'exactness = "certified"\n' + CORRELATED
    world = make_world(tmp_path / "world", per_class=8, steps=8, rate='"1/2"', window_steps=1, policy_extra=policy)
    first = launched(trained, 1, copied(world, tmp_path / "one"), "bert", False)[0]
    for ranks, sharded in (*BOTH, (4, False)):
        how = f"on {ranks} processes, {'FSDP2' if sharded else 'DDP'}"
        assert_same(launched(trained, ranks, copied(world, tmp_path / how), "bert", sharded), first, how)
    one, other = (copied(world, tmp_path / name) for name in ("stays", "moves"))
    for until, (ranks, sharded) in ((2, (2, True)), (4, (1, False)), (6, (4, False)), (None, (2, False))):
        stays = launched(trained, 1, one, "bert", False, until)
        moves = launched(trained, ranks, other, "bert", sharded, until)
        assert {found["begun"] for found in moves} == {stays[0]["begun"]} == {(until or 8) - 2}
        assert {found["parameters"] for found in moves} == {stays[0]["parameters"]}, f"up to step {until}"
        assert all(found["epsilon"] == stays[0]["epsilon"] for found in moves)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2_tied", "llama", "bert_lora"])
def test_certified_runs_are_equal_to_the_bit_under_fsdp2_on_four_processes(tmp_path: Path, family: str) -> None:
    """The last of four ranks is left without a row of a small tensor, where a model has one."""
    world = make_world(tmp_path / "world", per_class=8, steps=6, rate="0.5", policy_extra='exactness = "certified"')
    first = launched(trained, 1, copied(world, tmp_path / "one"), family, False)[0]
    found = launched(trained, 4, copied(world, tmp_path / "four"), family, True)
    assert_same(found, first, "on 4 processes, FSDP2")
    assert (min(rows[0] for rows in found[3]["rows"]) == 0) == (family == "bert_lora")


class Wave(nn.Module):
    """A module without a rule of its own, which runs once more for its gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tone = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x * self.tone) + self.tone.square()


class Units(nn.Module):
    """Token ids -> class, of modules that accelerate gives to ``fully_shard`` one by one, or the last two together."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(50, width), nn.ModuleList([Wave(width)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.layers[0](self.embed(ids))).mean(1))
        return logits


def in_units() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = Units()
    if size() > 1:
        fully_shard(model.embed)
        fully_shard(model.layers[0])
        fully_shard([model.norm, model.head], reshard_after_forward=False)
        fully_shard(model)
    return model


def of_units(rank: int, root: Path) -> tuple[str, set[str]]:
    run = opened(Job(root, options={"model": in_units, "wrap": lambda model: model}))
    for step in run.steps:
        for rows in step:
            run.private.backward(loud(run.net, rows), rows)
        run.optimizer.step()
    again = {site.name for site in run.private.prepared.router.sites if site.rule.again}
    found = digest(dict(run.model.named_parameters()))
    run.private.close()
    return found, again


@pytest.mark.slow
def test_modules_that_are_units_of_their_own_give_the_bits_of_one_process(tmp_path: Path) -> None:
    """As the last norm and the head of a language model are under accelerate; one of them runs again for its gradient."""
    small_world(tmp_path, per_class=5, steps=3, policy_extra='exactness = "certified"')
    ((alone, again),) = launched(of_units, 1, tmp_path)
    assert again == {"layers.0"}
    assert launched(of_units, 2, tmp_path) == [(alone, {"layers.0"})] * 2


@pytest.mark.slow
def test_a_run_goes_on_on_other_numbers_of_processes_and_under_other_wrappers(tmp_path: Path) -> None:
    """FSDP2 on two, alone, FSDP2 on two, DDP on two: nothing is charged twice, and the record is whole."""
    make_world(tmp_path, per_class=6, steps=12, window_steps=1, rate="0.5")
    for ranks, sharded, until in ((2, True, 3), (1, False, 6), (2, True, 9), (2, False, None)):
        begun = 0 if until == 3 else (until or 12) - 3
        found = launched(trained, ranks, tmp_path, "bert", sharded, until, None)
        assert {one["begun"] for one in found} == {begun}
        assert len({one["parameters"] for one in found}) == 1
        assert {one["charged"] for one in found} == {until or 12}
        assert {one["wire"] for one in found} == {SUMS32}, "as it began, wherever it goes on"
    report = verify_export(tmp_path / "export", (tmp_path / "ledger.pub").read_text().split())
    assert report.verdict == "FULL"
