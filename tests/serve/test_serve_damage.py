"""A budget that cannot be trusted pays for nothing: copied, put back, corrupt, closed or not to be written."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from attest.keys import generate, save_private_key
from ledger.errors import LedgerBehind, LedgerBusy, LedgerCorrupt, LedgerError, LedgerWrongRun, StorageFailed
from ledger.storage.sql import statements
from tests.worlds.servers import Running, running


def no_start(folder: Path, *kinds: type[Exception], match: str | None = None, **changes: Any) -> None:
    """Demands that a server over a folder does not start; whatever is demanded of one that ends does not count."""
    began = []
    with pytest.raises(kinds, match=match), running(folder, **changes):
        began.append(1)
    assert not began


def refuses(world: Running) -> None:
    """Demands that nothing is computed or sent, by any door, and that the server says that it is not ready."""
    calls = len(world.calls)
    for answer in (
        world.complete("released"), world.complete("released", stream=True),
        world.post("/v1/split", {"model": "split", "releases": 1}), world.http.get("/readyz"),
    ):  # fmt: skip
        assert answer.status_code == 503, answer.text
        assert "choices" not in answer.text and "budget.db" not in answer.text
    with world.http.websocket_connect("/v1/stream", headers=world.headers()) as socket:
        socket.send_json({"completion": {"model": "released", "prompt": "the boat"}})
        assert set(socket.receive_json()) == {"error"}
    assert len(world.calls) == calls
    assert world.http.get("/healthz").status_code == 200  # the process lives; it is not restarted for this
    assert world.complete("plain").status_code == 200  # what needs no budget goes on


def sides(folder: Path) -> list[Path]:
    return [path for path in folder.glob("budget.db*") if path.is_file()]


def an_older_copy_in_its_place(folder: Path, kept: Path) -> None:
    database = sqlite3.connect(kept / "budget.db")
    with sqlite3.connect(folder / "budget.db") as target:
        database.backup(target)
    database.close()


def on_the_last_leaf(folder: Path, act: str) -> None:
    with sqlite3.connect(folder / "budget.db") as database:
        for (trigger,) in database.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            database.execute(f"drop trigger {trigger}")
        for (table,) in database.execute("select name from sqlite_master where type = 'table'").fetchall():
            if "body" in [row[1] for row in database.execute(f"pragma table_info({table})")]:
                database.execute(act.format(table=table, last=f"(select max(seq) from {table})"))


def a_leaf_is_changed(folder: Path, kept: Path) -> None:
    on_the_last_leaf(folder, "update {table} set body = zeroblob(length(body)) where seq = {last}")


def a_leaf_is_gone(folder: Path, kept: Path) -> None:
    on_the_last_leaf(folder, "delete from {table} where seq = {last}")


def pages_are_noise(folder: Path, kept: Path) -> None:
    for path in sides(folder):
        if path.name in ("budget.db", "budget.db-wal"):
            with path.open("r+b") as file:
                size = path.stat().st_size
                file.seek(100)
                file.write(os.urandom(max(0, size - 100)))


def the_file_is_gone(folder: Path, kept: Path) -> None:
    for path in sides(folder):
        if path.name == "budget.db":
            path.unlink()


def the_mark_is_gone(folder: Path, kept: Path) -> None:
    for path in sides(folder):
        if path.suffix == ".mark" or "mark" in path.name:
            path.unlink()


SEEN_AT_ONCE = [an_older_copy_in_its_place, the_file_is_gone, the_mark_is_gone]
SEEN_AT_START = [*SEEN_AT_ONCE, a_leaf_is_changed, a_leaf_is_gone, pages_are_noise]
"""Whoever has read a leaf goes by what it read, in memory; a change to one is for whoever opens the log."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("damage", SEEN_AT_START, ids=lambda damage: damage.__name__)
def test_nothing_is_computed_or_started_over_a_budget_once(tmp_path: Path, damage: Callable[[Path, Path], None]) -> None:
    folder, kept = tmp_path / "server", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    with running(folder) as world:
        assert world.complete("released").status_code == 200
        with sqlite3.connect(kept / "budget.db") as copy, sqlite3.connect(folder / "budget.db") as database:
            database.backup(copy)
        for _ in range(2):
            assert world.complete("released").status_code == 200
        damage(folder, kept)
        if damage in SEEN_AT_ONCE:
            refuses(world)
        world.service.till.close = world.service.till.log.close  # type: ignore[union-attr, method-assign]
    no_start(folder, LedgerError, StorageFailed)


def test_a_copied_budget_is_no_second_budget(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    with running(one) as world:
        assert world.complete("released").status_code == 200
    shutil.copytree(one, two)
    no_start(two, LedgerError)
    with running(one) as world:  # the one that was copied goes on
        assert world.complete("released").status_code == 200


def test_an_older_copy_with_everything_beside_it_is_refused_at_start(tmp_path: Path) -> None:
    folder, kept = tmp_path / "server", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    with running(folder) as world:
        assert world.complete("released").status_code == 200
    for path in sides(folder):
        if path.name in ("budget.db", "budget.db-wal", "budget.db-shm"):
            shutil.copy2(path, kept / path.name)
    with running(folder) as world:
        assert world.complete("released").status_code == 200
    for path in kept.iterdir():
        shutil.copy2(path, folder / path.name)
    no_start(folder, LedgerBehind, LedgerCorrupt)


def test_a_database_that_cannot_be_written_pays_for_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        assert world.complete("released").status_code == 200
        store = world.service.till.log._store  # type: ignore[union-attr]
        plain = statements.SqlStore.turn

        def read_only(self: statements.SqlStore, doing: str) -> object:
            if self is store:
                raise StorageFailed("WRITE", "attempt to write a readonly database")
            return plain(self, doing)

        with mock.patch.object(type(store), "turn", read_only):
            refuses(world)
        world.service.till.close = world.service.till.log.close  # type: ignore[union-attr, method-assign]


def test_a_busy_database_says_when_to_come_again_and_a_later_request_is_answered(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        busy = LedgerBusy("BUSY", "another process writes")
        with mock.patch.object(type(world.service.till.log), "reserve", side_effect=busy):  # type: ignore[union-attr]
            answer = world.complete("released")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1") and not world.calls
        assert world.complete("released").status_code == 200


def test_a_settlement_that_fails_leaves_the_answer_spent_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path) as world:
        with mock.patch.object(type(world.service.till.log), "settle_later", side_effect=OSError("disk")):  # type: ignore[union-attr]
            answer = world.complete("released")
        assert answer.status_code == 503 and "disk" not in answer.text
        told = world.http.get("/v1/budgets/self", headers=world.headers()).json()
        assert told["spent_nano_rho"] > 0
        assert len(world.service.till.log.state.open) == 1  # type: ignore[union-attr]


def test_a_server_with_another_key_than_its_log_does_not_start(tmp_path: Path) -> None:
    """It could sign no epoch: the log would go on for weeks without a checkpoint that anybody can verify."""
    with running(tmp_path):
        pass
    (tmp_path / "budget.key").unlink()
    save_private_key(tmp_path / "budget.key", generate(), None)
    no_start(tmp_path, LedgerWrongRun, match="WRONG_KEY")


def test_a_server_without_its_log_does_not_start_a_fresh_one(tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    no_start(tmp_path, LedgerError, match="MISSING", budget={"log": "elsewhere.db"})
    assert not (tmp_path / "elsewhere.db").exists()
