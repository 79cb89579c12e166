"""Withdrawals and expiry take effect at the next charge, while the run goes on."""

import numpy as np
import pytest

pytest.importorskip("torch")

from attest import signed_file
from attest.keys import generate
from attest.registry import RegistryLog
from attest.withdrawal import Withdrawal, sign_withdrawal
from dptrain.errors import ConfigError, ResumeRefused
from dptrain.record.settling import WithdrawalIgnored
from ledger.leaves import Withdraw, decode_leaf
from tests.engine.test_earlier_runs import other
from tests.worlds.trainer import Trainer
from tests.worlds.training import DAY, World, make_world


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=2, steps=6, rate="1")


INTERNAL = "contributor-internal"


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
    drop(world, trainer.private.prepared.pool.slots[0].descriptor_hash, key, signer)
    for step in iterator:
        trainer.one(step)
    return trainer, trainer.private.prepared.attempt.streams.sampler.occurrences


def test_a_contributors_withdrawal_stops_the_draws_from_the_next_charge(world: World) -> None:
    trainer, draws = run_and_drop(world, world.contributor_keys["contributor-internal"], "contributor-internal")
    assert draws.tolist() == [2, 6, 6, 6, 6, 6]
    assert (world.root / "ledger.db.withdrawals" / "w.cose.taken").exists()
    digest = trainer.private.prepared.pool.slots[0].descriptor_hash
    other = trainer.private.prepared.pool.slots[1].descriptor_hash
    ledger = trainer.private.opened.recorder.ledger
    assert 0 < ledger.epsilon(digest) < ledger.epsilon(other)
    trainer.close()


def test_the_owner_may_withdraw_any_contribution(world: World) -> None:
    trainer, draws = run_and_drop(world, world.owner_key, "owner")
    assert draws[0] == 2
    trainer.close()


@pytest.mark.one_in(99)
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
    assert trainer.private.prepared.attempt.streams.sampler.occurrences.tolist() == [6] * 6
    assert len(trainer.private.opened.recorder.ledger.state.withdrawals) == 6
    trainer.close()


def test_a_withdrawal_is_entered_though_the_registry_had_taken_the_contribution_out(world: World) -> None:
    """What the registry took out it may grant again; what its contributor withdrew stays out of every later run."""
    trainer = Trainer(world)
    steps = iter(trainer.steps)
    trainer.one(next(steps))
    digest = trainer.private.prepared.pool.slots[0].descriptor_hash
    RegistryLog(world.root / "registry.cbor", world.owner_key).grant(INTERNAL, classes=[], cap=None, now=world.now)
    for _ in range(2):
        trainer.one(next(steps))
    assert digest in trainer.private.opened.recorder.ledger.state.passing
    drop(world, digest, world.contributor_keys[INTERNAL], INTERNAL)
    for step in steps:
        trainer.one(step)
    with trainer.private.opened.recorder.ledger.rows() as rows:
        found = [decode_leaf(row.body) for row in rows if row.kind == Withdraw.KIND]
        leaves = [leaf for leaf in found if leaf.descriptor_hash == digest]
    assert [leaf.reason for leaf in leaves] == ["class-not-granted", "consent"]
    trainer.private.opened.recorder.finish(6, bytes(32), "held", trainer.private.opened.recorder.ledger.state.last_time)
    trainer.close()
    RegistryLog(world.root / "registry.cbor", world.owner_key).grant(INTERNAL, classes=["internal"], cap=None, now=world.now)
    second = Trainer(other(world), earlier=[world.ledger])
    second.run()
    place = [slot.descriptor_hash for slot in second.private.prepared.pool.slots].index(digest)
    draws = second.private.prepared.attempt.streams.sampler.occurrences.tolist()
    assert draws[place] == 0 and max(draws) > 0
    second.close()


def test_a_clock_set_back_lets_nobody_train_before_their_attestation_begins(tmp_path) -> None:
    world = make_world(tmp_path, per_class=2, steps=6, rate="1", begins=20 * DAY)
    ahead = world.now + 30 * DAY
    with pytest.raises(ConfigError, match="NOTHING_ADMITTED"):
        Trainer(world)
    trainer = Trainer(world, clock=lambda: ahead)
    trainer.one(next(iter(trainer.steps)))
    trainer.private.save()
    trainer.private.opened.recorder.ledger.set_clock("it was ahead", now=world.now)
    trainer.close()
    again = Trainer(world, resume=True)
    with pytest.raises(ResumeRefused, match="NOT_YET_VALID"):
        again.run()
    again.close()
