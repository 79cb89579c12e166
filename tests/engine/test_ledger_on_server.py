"""A private run whose ledger is in a PostgreSQL database: charged, stopped, resumed, and everything beside it in one place."""

import pytest

pytest.importorskip("torch")

from ledger.log import Ledger
from tests.worlds.postgres import Cluster, require_server
from tests.worlds.trainer import Trainer
from tests.worlds.training import World, make_world


class ServerWorld(World):
    """A world whose ledger is where ``url`` says."""

    url: str

    @property
    def ledger(self) -> str:
        return self.url


def test_a_run_charges_stops_resumes_and_finishes_on_a_server(tmp_path) -> None:
    require_server()
    cluster = Cluster()
    try:
        made = make_world(tmp_path, per_class=2, steps=4)
        world = ServerWorld(**vars(made))
        world.url = f"{cluster.url()}?schema=run7"
        state = tmp_path / "state"
        trainer = Trainer(world, ledger_state=state)
        steps = iter(trainer.steps)
        for _ in range(2):
            trainer.one(next(steps))
        trainer.private.save()
        trainer.one(next(steps))
        trainer.close()
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("ledger")) == []
        again = Trainer(world, ledger_state=state, resume=True)
        again.run()
        again.close()
        with Ledger.open(world.url, state=state) as ledger:
            assert ledger.finished and ledger.state.attempt == 1 and ledger.header.origin == "test-corpus/run7"
            assert ledger.state.charged == 6
        names = {path.name for path in state.iterdir()}
        assert {"ledger.highwater", "ledger.key", "ledger.pub", "ledger.checkpoints"} <= names
        assert not any(path.suffix == ".db" for path in tmp_path.iterdir())
    finally:
        cluster.stop()
