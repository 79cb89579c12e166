"""States that accelerate writes are pinned to the ledger, and a run goes on from them alone or on two processes."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from accelerate import Accelerator  # noqa: E402

from dptrain import PrivateTraining  # noqa: E402
from dptrain.errors import ConfigError, ResumeRefused  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import PinRefused  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.reference.families import FAMILIES  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.trainer import collate_tokens  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402


def part(rank: int, root: Path, until: int | None, begun_by: Path | None, saved: Path | None) -> dict[str, Any]:
    """Goes on from a state, to a step; writes another."""
    accelerator = Accelerator(cpu=True)
    world = World.at(root)
    torch.manual_seed(0)
    family = FAMILIES["bert"]()
    model = family.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    private = PrivateTraining.open(
        world.policy, world.corpus, ledger=world.ledger, accelerator=accelerator, resume=True, progress=False
    )
    try:
        _, _, steps = private.prepare(model, optimizer, collate_tokens, state=begun_by)
    except (PinRefused, ResumeRefused) as error:
        private.close()
        return {"refused": error.code}
    begun = digest(model)
    for step in steps:
        for rows in step:
            private.backward(family.losses(model, dict(rows)), rows)
        optimizer.step()
        if step.number == until:
            assert saved is not None
            private.save_state(saved)
            break
    ledger = private.opened.recorder.ledger
    if ledger.finished:
        private.export(root / "export")
    private.close()
    return {"begun": begun, "ended": digest(model), "charged": ledger.state.charged}


def digest(model: torch.nn.Module) -> float:
    return float(sum(parameter.detach().double().abs().sum() for parameter in model.parameters()))


@pytest.mark.slow
def test_a_run_goes_on_from_a_state_of_accelerate_on_another_number_of_processes(tmp_path: Path) -> None:
    make_world(tmp_path, per_class=4, steps=6, window_steps=1, rate="0.5")
    first, second = tmp_path / "first", tmp_path / "second"
    two = launched(part, 2, tmp_path, 2, None, first)
    one = launched(part, 1, tmp_path, 4, first, second)
    assert one[0]["begun"] == two[0]["ended"] == two[1]["ended"] and one[0]["charged"] == 4
    kept = {path: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    for path in (second / "state.pt", second / "model.safetensors", second / "optimizer.bin"):
        path.write_bytes(kept[path][:-1] + bytes([kept[path][-1] ^ 1]))
        assert launched(part, 2, tmp_path, None, second, None) == [{"refused": "STATE_CHANGED"}] * 2
        path.write_bytes(kept[path])
    (second / "model.safetensors").unlink()
    assert launched(part, 1, tmp_path, None, second, None) == [{"refused": "STATE_MISSING"}]
    (second / "model.safetensors").write_bytes(kept[second / "model.safetensors"])
    last = launched(part, 2, tmp_path, None, second, None)
    assert last[0]["begun"] == one[0]["ended"] and last[1]["charged"] == 6
    report = verify_export(tmp_path / "export", (tmp_path / "ledger.pub").read_text().split())
    assert report.verdict == "FULL"


def test_a_state_of_accelerate_without_an_accelerator_is_refused_by_name(tmp_path: Path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=2))
    with pytest.raises(ConfigError, match="NO_ACCELERATOR"):
        trainer.private.save_state(tmp_path / "state")
    trainer.close()


def test_a_state_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    make_world(tmp_path, steps=2)
    assert part(0, tmp_path, None, tmp_path / "none", None) == {"refused": "STATE_OF_ANOTHER_RUN"}
