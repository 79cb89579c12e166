"""Model checkpoints: whole or absent, pinned, bound to their states, and readable by nobody but their owner."""

import errno
import hashlib
import os
import stat
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import ResumeRefused  # noqa: E402
from dptrain.record import checkpoints  # noqa: E402
from dptrain.record.pin import STATE, PinRecord, sign_record  # noqa: E402
from ledger.errors import LedgerReplaced, PinRefused, StorageFailed  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.worlds.ledgers import SIGNER, START, header_spec  # noqa: E402


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", header_spec(), SIGNER, now=START) as made:
        yield made


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "checkpoints"


def parts(fill: float = 1.0):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, fill)
    return model, torch.optim.AdamW(model.parameters()), []


def save(ledger: Ledger, folder: Path, step: int, fill: float = 1.0) -> Path:
    return checkpoints.save(folder, step, partial(sign_record, ledger, step, "held"), *parts(fill))


def load(ledger: Ledger, path: Path) -> tuple[PinRecord, dict]:
    return checkpoints.load(path, ledger)


def test_the_newest_two_are_kept_and_read_back(ledger, folder) -> None:
    for step in (1, 2, 3):
        save(ledger, folder, step, step)
    assert [step for step, _ in checkpoints.found(folder)] == [2, 3]
    record, state = load(ledger, checkpoints.found(folder)[-1][1])
    assert (record.step, record.pin) == (3, ledger.pin()) and float(state["model"]["weight"][0, 0]) == 3.0


def test_the_pin_has_size_and_digest_of_the_states_as_they_lie_on_the_disk(ledger, folder) -> None:
    path = save(ledger, folder, 1)
    data = (path / STATE).read_bytes()
    record, _ = load(ledger, path)
    assert (record.state_bytes, record.state_sha256) == (len(data), hashlib.sha256(data).digest())


@pytest.mark.parametrize("where", ["checkpoints.torch.save", "folders.os.rename", "folders.os.fsync"])
def test_a_full_disk_keeps_the_previous_checkpoint_and_leaves_nothing_half_written(ledger, folder, monkeypatch, where) -> None:
    save(ledger, folder, 1)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"dptrain.record.{where}", full)
    with pytest.raises(StorageFailed, match="free space"):
        save(ledger, folder, 2)
    monkeypatch.undo()
    assert [p.name for p in folder.iterdir()] == ["step-00000001"]


def test_what_a_killed_process_left_half_written_goes_with_the_next_checkpoint(ledger, folder) -> None:
    save(ledger, folder, 1)
    left = folder / ".step-00000002.1"
    left.mkdir()
    (left / STATE).write_bytes(b"half")
    save(ledger, folder, 3)
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000003"]


def test_no_checkpoint_is_written_of_a_ledger_that_is_lost(ledger, folder, tmp_path) -> None:
    save(ledger, folder, 1)
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(LedgerReplaced, match="UNLINKED"):
        save(ledger, folder, 2)
    assert [p.name for p in folder.iterdir()] == ["step-00000001"]


def test_states_that_were_saved_and_cannot_be_read_are_refused_by_name(ledger, folder, monkeypatch) -> None:
    monkeypatch.setattr("dptrain.record.checkpoints.torch.save", lambda _, file: file.write(b"not a checkpoint"))
    path = save(ledger, folder, 1)
    with pytest.raises(ResumeRefused, match=r"CHECKPOINT_UNREADABLE.*step-00000001"):
        load(ledger, path)


def test_no_byte_of_changed_states_is_parsed(ledger, folder, monkeypatch) -> None:
    path = save(ledger, folder, 1)
    data = bytearray((path / STATE).read_bytes())
    data[len(data) // 2] ^= 1
    (path / STATE).write_bytes(data)
    monkeypatch.setattr("dptrain.record.checkpoints.torch.load", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(PinRefused, match="STATE_CHANGED"):
        load(ledger, path)


def test_what_is_loaded_is_the_file_that_was_digested(ledger, folder, monkeypatch) -> None:
    """Another file that gets the name between the two is not opened."""
    path, parse = save(ledger, folder, 1, 1.0), torch.load
    other = save(ledger, folder, 2, 2.0)

    def swapped(*arguments: object, **options: object) -> object:
        os.replace(other / STATE, path / STATE)
        return parse(*arguments, **options)

    monkeypatch.setattr("dptrain.record.checkpoints.torch.load", swapped)
    assert float(load(ledger, path)[1]["model"]["weight"][0, 0]) == 1.0


def test_states_are_loaded_as_weights_alone(ledger, folder, monkeypatch) -> None:
    """Also where the ledger's key signed them: whoever holds the key gets no code run by a resumed run."""

    class Evil:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(folder / "evil"),)

    whole = torch.save
    monkeypatch.setattr("dptrain.record.checkpoints.torch.save", lambda state, file: whole({"model": Evil()}, file))
    path = save(ledger, folder, 1)
    with pytest.raises(ResumeRefused, match="CHECKPOINT_UNREADABLE"):
        load(ledger, path)
    assert not (folder / "evil").exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_checkpoint_is_for_its_owner_alone_whatever_the_umask(ledger, folder, umask) -> None:
    before = os.umask(umask)
    try:
        path = save(ledger, folder, 1)
    finally:
        os.umask(before)
    modes = {item.name: stat.S_IMODE(item.stat().st_mode) for item in (folder, path, *path.iterdir())}
    assert modes == {"checkpoints": 0o700, "step-00000001": 0o700, "state.pt": 0o600, "pin.cose": 0o600}


def test_a_checkpoint_holds_no_key(ledger, folder) -> None:
    path = save(ledger, folder, 1)
    assert sorted(torch.load(path / STATE, weights_only=True)) == ["model", "optimizer", "registered"]
