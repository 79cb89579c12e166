"""Withdrawals and expiry take effect at the next charge, while the run goes on."""

import numpy as np
import pytest

pytest.importorskip("torch")

from attest import signed_file
from attest.keys import generate
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.inbox import WithdrawalIgnored
from tests.trainers import Trainer
from tests.worlds import DAY, World, make_world


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=2, steps=6, rate="1")


def drop(world: World, digest: bytes, key, signer: str, name: str = "w.cose") -> None:
    payload, message = sign_withdrawal(Withdrawal(digest, "test-corpus", world.now, "consent"), key, signer=signer)
    folder = world.root / "ledger.db.withdrawals"
    folder.mkdir(exist_ok=True)
    signed_file.write(folder / name, payload, message)


def run_and_drop(world: World, key, signer: str, **options) -> tuple[Trainer, np.ndarray]:
    """Two steps (one window), then a withdrawal of slot 0, then the rest; returns the draws per slot."""
    trainer = Trainer(world, **options)
    iterator = iter(trainer.steps)
    trainer.one(next(iterator))
    drop(world, trainer.private.pool.slots[0].descriptor_hash, key, signer)
    for step in iterator:
        trainer.one(step)
    return trainer, trainer.private.streams.sampler.occurrences


def test_a_contributors_withdrawal_stops_the_draws_from_the_next_charge(world: World) -> None:
    trainer, draws = run_and_drop(world, world.contributor_keys["contributor-internal"], "contributor-internal")
    assert draws.tolist() == [2, 6, 6, 6, 6, 6]
    assert (world.root / "ledger.db.withdrawals" / "w.cose.taken").exists()
    digest = trainer.private.pool.slots[0].descriptor_hash
    other = trainer.private.pool.slots[1].descriptor_hash
    ledger = trainer.private.recorder.ledger
    assert 0 < ledger.epsilon(digest) < ledger.epsilon(other)
    trainer.close()


def test_the_owner_may_withdraw_any_contribution(world: World) -> None:
    trainer, draws = run_and_drop(world, world.owner_key, "owner")
    assert draws[0] == 2
    trainer.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("signer", ["contributor-internal", "contributor-open", "owner"])
def test_B23_a_forged_withdrawal_changes_nothing_and_is_set_aside(world: World, signer: str) -> None:
    with pytest.warns(WithdrawalIgnored, match="SIG_BAD|HEADER"):
        trainer, draws = run_and_drop(world, generate(), signer)
    assert draws.tolist() == [6] * 6
    assert (world.root / "ledger.db.withdrawals" / "w.cose.refused").exists()
    trainer.close()


def test_B23_another_contributor_cannot_withdraw_mine(world: World) -> None:
    with pytest.warns(WithdrawalIgnored):
        trainer, draws = run_and_drop(world, world.contributor_keys["contributor-open"], "contributor-open")
    assert draws.tolist() == [6] * 6
    trainer.close()


def test_an_expired_contribution_is_drawn_no_more_from_the_next_charge(tmp_path) -> None:
    world = make_world(tmp_path, per_class=2, steps=8, rate="1")
    now = [world.now + 195 * DAY]
    trainer = Trainer(world, clock=lambda: now[0])
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 5:  # inside the window of steps 5 and 6
            now[0] = world.now + 201 * DAY
    assert trainer.private.streams.sampler.occurrences.tolist() == [6] * 6
    assert len(trainer.private.recorder.ledger.withdrawn) == 6
    trainer.close()
