"""Rows B5, B6, B13 to B18 of the attack list where training meets them: what is on the disk is not what the run left there.

B13 to B15 with a process that dies at random moments: `tests/fault/test_kill.py`; with every system call of a writer failed:
`tests/fault/test_syscall_faults.py`; on a server that is killed: `tests/fault/test_postgres_faults.py`. A database that is lost
while it is open, in every way: `tests/ledger/test_storage_in_place.py`. What lies beside it, and is read again when the run is
resumed: `test_what_a_resumed_run_reads.py`.
"""

import gc
import os
import shutil
import sqlite3
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from attest import signed_file  # noqa: E402
from attest.withdrawal import Withdrawal, sign_withdrawal  # noqa: E402
from dptrain.engine import private_training  # noqa: E402
from dptrain.errors import ResumeRefused  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import (  # noqa: E402
    LedgerBehind,
    LedgerBusy,
    LedgerForked,
    LedgerReplaced,
    LedgerWrongRun,
    StorageFailed,
)
from ledger.leaves import Charge, Resume, Withdraw, decode_leaf  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from ledger.storage.sql.sqlite import SqliteStore  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import World, make_world  # noqa: E402

FILES = ("ledger.db", "ledger.db.highwater")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path, per_class=1, steps=8, rate="0.5", policy_extra="redo_steps = 8")


def start(world: World, **options: object) -> Trainer:
    """A trainer whose steps go on where they were left."""
    trainer = Trainer(world, **options)
    trainer.steps = iter(trainer.steps)
    return trainer


def run_to(trainer: Trainer, last: int, *, save_at: tuple[int, ...] = ()) -> None:
    """Takes steps up to one, saving after some."""
    for step in trainer.steps:
        trainer.one(step)
        if step.number in save_at:
            trainer.private.save()
        if step.number == last:
            return


def leaves(path: Path, kind: type) -> list:
    with Ledger.open(path) as ledger, ledger.rows() as rows:
        return [leaf for leaf in (decode_leaf(row.body) for row in rows) if isinstance(leaf, kind)]


def kept(world: World, name: str) -> Path:
    """A backup of the ledger, its signer's record and all."""
    folder = world.root / name
    folder.mkdir()
    for file in FILES:
        shutil.copy(world.root / file, folder)
    return folder


def put_back(world: World, backup: Path, *files: str) -> None:
    for file in files:
        shutil.copy(backup / file, world.root)


def rows_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM entry").fetchone()[0]


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


# --- B5, B6: the ledger is older than the model ------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("files", [FILES[:1], FILES], ids=["tail lost", "rolled back whole"])
def test_B6_a_ledger_older_than_the_model_checkpoint_is_LedgerBehind_and_nothing_runs(world, files):
    trainer = start(world)
    run_to(trainer, 2, save_at=(2,))
    trainer.close()
    backup = kept(world, "yesterday")
    trainer = start(world, resume=True)
    run_to(trainer, 6, save_at=(6,))
    trainer.close()
    put_back(world, backup, *files)
    size = rows_of(world.ledger)
    with pytest.raises(LedgerBehind) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == "BEHIND"
    assert rows_of(world.ledger) == size, "no attempt was begun"


@pytest.mark.slow
def test_B7_a_ledger_that_went_on_without_the_model_is_LedgerForked(world):
    """The same ledger, resumed twice from one backup: the second history does not hold the checkpoint's past."""
    trainer = start(world)
    run_to(trainer, 2, save_at=(2,))
    trainer.close()
    backup = kept(world, "common")
    trainer = start(world, resume=True)
    run_to(trainer, 4, save_at=(4,))
    trainer.close()
    newest = world.root / "ledger.db.checkpoints" / "step-00000004"
    aside = newest.rename(world.root / "aside")
    put_back(world, backup, *FILES)
    trainer = start(world, resume=True)
    run_to(trainer, 8)
    trainer.close()
    aside.rename(newest)
    with pytest.raises(LedgerForked) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == "FORKED"


# --- B13: charge first -------------------------------------------------------


def test_B13_every_step_is_charged_on_disk_before_its_sample_is_drawn_and_before_the_model_moves(world, monkeypatch):
    """Seen from another process's side: the file holds the charge when the draw begins, and when the optimizer steps."""
    trainer = start(world).begin()
    drawn: list[int] = []

    def is_charged(number: int) -> bool:
        return any(w.first_step <= number < w.first_step + w.n_steps for w in leaves(world.ledger, Charge))

    drawing = type(trainer.private.prepared.attempt.drawing)
    draw = drawing.draw

    def charged_before(self: object, number: int) -> object:
        assert is_charged(number), f"step {number} is drawn and not charged"
        drawn.append(number)
        return draw(self, number)

    monkeypatch.setattr(drawing, "draw", charged_before)
    for step in trainer.steps:
        for rows in step:
            trainer.private.backward(trainer.losses(rows), rows)
        assert is_charged(step.number)
        trainer.optimizer.step()
    trainer.close()
    assert drawn == list(range(1, 9))


# --- B14: resuming from an older model -------------------------------------------------


def test_B14_steps_run_again_from_an_older_model_are_charged_again(world):
    trainer = start(world)
    run_to(trainer, 6, save_at=(2, 6))
    trainer.close()
    shutil.rmtree(world.root / "ledger.db.checkpoints" / "step-00000006")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = start(world, resume=True)
    run_to(trainer, 8)
    trainer.close()
    (resume,) = leaves(world.ledger, Resume)
    assert (resume.from_step, resume.attempt) == (2, 1)
    charged = Counter(step for w in leaves(world.ledger, Charge) for step in range(w.first_step, w.first_step + w.n_steps))
    assert [charged[step] for step in range(1, 9)] == [1, 1, 2, 2, 2, 2, 1, 1]


# --- B15: the same noise with other batches -------------------------------------------


def test_B15_a_resumed_attempt_draws_other_noise_for_the_same_step_and_names_another_stream(world):
    """Subtracting two releases with the same noise would leave the batches; so nothing of the draw is ever the same."""
    results = []
    for resume in (False, True):
        torch.manual_seed(5)
        trainer = start(world, resume=resume)
        before = weights(trainer)
        run_to(trainer, 2)
        results.append([after - start for after, start in zip(weights(trainer), before, strict=True)])
        trainer.close()
    assert not any(torch.equal(one, other) for one, other in zip(*results, strict=True) if one.any() or other.any())
    streams = [window.noise_stream for window in leaves(world.ledger, Charge)]
    assert len(streams) == len(set(streams)) >= 2 and [r.from_step for r in leaves(world.ledger, Resume)] == [0]
    assert all(stream.hex() not in str(path.read_bytes()) for stream in streams for path in world.root.glob("*.key"))


# --- B16: another ledger under the model ----------------------------------------------


def test_B16_another_runs_ledger_or_none_under_the_models_checkpoints_is_refused(world, tmp_path):
    trainer = start(world)
    run_to(trainer, 4, save_at=(4,))
    trainer.close()
    mine = kept(world, "mine")
    for file in FILES:
        (world.root / file).unlink()
    with pytest.raises(ResumeRefused) as refused:
        Trainer(world, resume=True)  # a new ledger would count from nothing
    assert refused.value.code == "CHECKPOINTS_OF_ANOTHER_RUN"
    del refused
    gc.collect()  # the lock went with the trainer that could not be made
    assert not any((world.root / file).exists() for file in FILES), "and it left none"
    start(world, checkpoint_dir=world.root / "elsewhere").begin().close()
    with pytest.raises((LedgerWrongRun, LedgerBehind)):
        Trainer(world, resume=True)  # the one just made is of another run
    gc.collect()
    put_back(world, mine, "ledger.db")  # under the other's record
    with pytest.raises((LedgerForked, LedgerBehind)):
        Trainer(world, resume=True)
    gc.collect()
    put_back(world, mine, *FILES)
    for suffix in ("-wal", "-shm"):
        Path(f"{world.ledger}{suffix}").unlink(missing_ok=True)
    trainer = start(world, resume=True)
    run_to(trainer, 8)
    trainer.close()


# --- B17, B18: a second run, a full disk ----------------------------------------------


def test_B17_a_second_training_run_on_one_ledger_is_LedgerBusy(world):
    trainer = start(world)
    run_to(trainer, 2)
    private_training._OPEN.discard(trainer.private)  # as in another process, which knows nothing of the first run
    with pytest.raises(LedgerBusy) as caught:
        Trainer(world, resume=True)
    assert caught.value.code == "LOCKED"
    run_to(trainer, 8)
    trainer.close()
    assert leaves(world.ledger, Charge)[-1].first_step == 7


def test_B18_where_the_charge_fails_no_step_runs_and_nothing_is_drawn(world, monkeypatch):
    trainer = start(world)
    run_to(trainer, 2)
    before, drawn = weights(trainer), trainer.private.prepared.attempt.streams.sampler.occurrences.copy()

    def full(*_: object) -> None:
        raise StorageFailed("STORAGE", "appending: database or disk is full; free space or mend the disk")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteStore, "append", full)
        with pytest.raises(StorageFailed):
            run_to(trainer, 8)
    assert all(torch.equal(one, other) for one, other in zip(weights(trainer), before, strict=True))
    assert (trainer.private.prepared.attempt.streams.sampler.occurrences == drawn).all()
    trainer.close()
    assert len(leaves(world.ledger, Charge)) == 1


# --- the ledger is lost while the run goes on ----------------------------------------------


def theirs(world: World) -> None:
    shutil.copy(world.ledger, world.root / "copy.db")
    os.replace(world.root / "copy.db", world.ledger)


LOST = {
    "deleted": (lambda world: world.ledger.unlink(), "UNLINKED"),
    "renamed": (lambda world: world.ledger.rename(world.root / "aside.db"), "UNLINKED"),
    "replaced": (theirs, "REPLACED"),
    "without its log": (lambda world: Path(f"{world.ledger}-wal").unlink(), "UNLINKED"),
}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.one_in(99)
def test_a_run_whose_ledger_is_lost_charges_nothing_more_and_goes_on_from_the_copy(world, how):
    trainer = start(world)
    run_to(trainer, 3, save_at=(2,))
    attack, code = LOST[how]
    attack(world)
    step = next(trainer.steps)  # the window was charged before: it may run
    trainer.one(step)
    before = weights(trainer)
    with pytest.raises(LedgerReplaced) as caught:
        run_to(trainer, 8)
    assert caught.value.code == code and "4 steps charged" in caught.value.sentence
    assert all(torch.equal(one, other) for one, other in zip(weights(trainer), before, strict=True)), "and no step ran"
    trainer.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{world.ledger}{suffix}").unlink(missing_ok=True)
    (world.root / "ledger.db.rescued-1").rename(world.ledger)
    trainer = start(world, resume=True)
    run_to(trainer, 8)
    trainer.private.export(world.root / "export")
    trainer.close()
    charged = Counter(step for w in leaves(world.ledger, Charge) for step in range(w.first_step, w.first_step + w.n_steps))
    assert [charged[step] for step in range(1, 9)] == [1, 1, 2, 2, 1, 1, 1, 1]
    assert verify_export(world.root / "export", (world.root / "ledger.pub").read_text().split()).verdict == "FULL"


@pytest.mark.one_in(99)
@pytest.mark.parametrize("when", ["in the last window", "after the last step"])
def test_a_run_never_ends_well_on_a_ledger_without_a_name(world, when):
    trainer = start(world)
    run_to(trainer, 8 if when == "after the last step" else 7)
    if when == "after the last step":
        assert next(trainer.steps, None) is None and trainer.private.opened.recorder.ledger.finished
    world.ledger.unlink()
    with pytest.raises(LedgerReplaced):
        for step in trainer.steps:
            trainer.one(step)
        trainer.private.export(world.root / "export")
    assert not (world.root / "export").exists()
    trainer.close()


def test_closing_tells_of_a_ledger_that_was_lost_and_an_error_before_it_is_not_hidden(world):
    trainer = start(world)
    run_to(trainer, 8)
    assert next(trainer.steps, None) is None
    world.ledger.rename(world.root / "aside.db")
    with pytest.raises(LedgerReplaced), trainer.private:
        pass
    (world.root / "aside.db").rename(world.ledger)
    other = make_world(world.root / "other", per_class=1, steps=8, rate="0.5")
    trainer = start(other)
    run_to(trainer, 2)
    with pytest.raises(KeyError), trainer.private:
        other.ledger.unlink()
        raise KeyError("the user's own")


# --- a withdrawal from the beginning -------------------------------------------------------


def test_B22_a_withdrawal_that_lies_there_before_the_first_charge_is_in_no_pool_at_all(world):
    trainer = Trainer(world)
    inbox = world.root / "ledger.db.withdrawals"
    assert inbox.stat().st_mode & 0o777 == 0o700 and not world.ledger.exists()
    digest = trainer.private.prepared.pool.slots[0].descriptor_hash
    payload, message = sign_withdrawal(Withdrawal(digest, "test-corpus", world.now, "consent"), world.owner_key, signer="owner")
    signed_file.write(inbox / "w.cose", payload, message)
    trainer.steps = iter(trainer.steps)
    run_to(trainer, 8)
    trainer.close()
    assert (inbox / "w.cose.taken").exists()
    (withdrawn,) = leaves(world.ledger, Withdraw)
    first = leaves(world.ledger, Charge)[0]
    assert withdrawn.descriptor_hash == digest and withdrawn.seq < first.seq
    assert sum(row.pool_count for row in first.classes) == 2
