"""Model checkpoints: whole or absent, pinned, and readable only where they belong."""

import errno

import pytest

torch = pytest.importorskip("torch")

from dptrain import checkpoints  # noqa: E402
from dptrain.errors import ResumeRefused  # noqa: E402
from dptrain.pin import PinRecord  # noqa: E402
from ledger.errors import StorageFailed  # noqa: E402


def parts(fill: float = 1.0):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, fill)
    return model, torch.optim.AdamW(model.parameters()), []


def pin(step: int) -> PinRecord:
    return PinRecord(step, "o", 3, "00" * 32, "11" * 32, 0, "held")


def test_the_newest_two_are_kept_and_read_back(tmp_path) -> None:
    for step in (1, 2, 3):
        checkpoints.save(tmp_path, pin(step), *parts(step))
    assert [step for step, _ in checkpoints.found(tmp_path)] == [2, 3]
    found, state = checkpoints.load(checkpoints.found(tmp_path)[-1][1])
    assert found == pin(3) and float(state["model"]["weight"][0, 0]) == 3.0


@pytest.mark.parametrize("where", ["torch.save", "os.rename", "os.fsync"])
def test_a_full_disk_keeps_the_previous_checkpoint_and_leaves_nothing_half_written(tmp_path, monkeypatch, where) -> None:
    checkpoints.save(tmp_path, pin(1), *parts())

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"dptrain.checkpoints.{where}", full)
    with pytest.raises(StorageFailed, match="free space"):
        checkpoints.save(tmp_path, pin(2), *parts())
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_an_unreadable_checkpoint_is_refused_by_name(tmp_path) -> None:
    path = checkpoints.save(tmp_path, pin(1), *parts())
    (path / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ResumeRefused, match="CHECKPOINT_UNREADABLE"):
        checkpoints.load(path)
    (path / "pin.json").write_text("{}")
    with pytest.raises(ResumeRefused, match="CHECKPOINT_UNREADABLE"):
        checkpoints.load(path)


def test_a_checkpoint_holds_no_key(tmp_path) -> None:
    path = checkpoints.save(tmp_path, pin(1), *parts())
    assert sorted(torch.load(path / "state.pt", weights_only=True)) == ["model", "optimizer", "registered"]
