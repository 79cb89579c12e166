"""A crash while the ledger is being created leaves nothing that blocks the next start, and nothing is deleted."""

import pytest

pytest.importorskip("torch")

from ledger.errors import LedgerError
from ledger.storage import highwater
from ledger.storage.place import Place
from ledger.storage.store import create_store
from tests.worlds.trainer import Trainer
from tests.worlds.training import make_world


def test_a_ledger_without_header_is_set_aside_and_started_anew(tmp_path) -> None:
    world = make_world(tmp_path, per_class=2, steps=1)
    create_store(Place.of(world.ledger)).close()
    trainer = Trainer(world, resume=True)
    trainer.run()
    assert trainer.private.opened.recorder.ledger.finished
    assert (tmp_path / "ledger.db.unfinished-1").exists()
    trainer.close()


def test_an_empty_file_is_set_aside_and_started_anew(tmp_path) -> None:
    world = make_world(tmp_path, per_class=2, steps=1)
    world.ledger.write_bytes(b"")
    trainer = Trainer(world, resume=True)
    trainer.run()
    trainer.close()


def test_a_header_without_high_water_file_is_set_aside(tmp_path, monkeypatch) -> None:
    world = make_world(tmp_path, per_class=2, steps=1)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ledger.log.ledger.highwater.write", killed)
    monkeypatch.setattr("ledger.storage.sql.sqlite.SqliteStore.discard", lambda self: self.close())
    with pytest.raises(KeyboardInterrupt):
        Trainer(world).begin()
    monkeypatch.undo()
    assert world.ledger.exists() and not highwater.path_of(world.ledger).exists()
    trainer = Trainer(world, resume=True)
    trainer.run()
    trainer.close()


def test_a_charged_ledger_without_high_water_file_is_refused_not_replaced(tmp_path) -> None:
    world = make_world(tmp_path, per_class=2, steps=2)
    trainer = Trainer(world)
    trainer.one(next(iter(trainer.steps)))
    trainer.close()
    highwater.path_of(world.ledger).unlink()
    with pytest.raises(LedgerError, match="HIGHWATER"):
        Trainer(world, resume=True)
    assert world.ledger.exists()
