"""The registry of a run: its state at admission is recorded, and what changes later takes effect at the next charge."""

import numpy as np
import pytest

pytest.importorskip("torch")

from attest import signed_file
from attest.errors import RegistryRefused
from attest.keys import generate, public_bytes
from attest.registry import KeyStatement, RegistryLog
from attest.withdrawal import Withdrawal, sign_withdrawal
from ledger.leaves import Withdraw, decode_leaf
from tests.worlds.trainer import Trainer
from tests.worlds.training import DAY, World, make_world

INTERNAL = "contributor-internal"


@pytest.fixture
def world(tmp_path) -> World:
    return make_world(tmp_path, per_class=2, steps=6, rate="1")


def log_of(world: World) -> RegistryLog:
    return RegistryLog(world.root / "registry.cbor", world.owner_key)


def of_contributor(trainer: Trainer, name: str) -> list[int]:
    slots = trainer.private.prepared.pool.slots
    return [index for index, slot in enumerate(slots) if slot.admitted.admission.descriptor.contributor == name]


def interrupted(world: World, change, **options) -> tuple[Trainer, np.ndarray]:
    """One step of the first window of two, then a change, then the rest; returns the draws per slot."""
    trainer = Trainer(world, **options)
    iterator = iter(trainer.steps)
    trainer.one(next(iterator))
    change()
    for step in iterator:
        trainer.one(step)
    return trainer, trainer.private.prepared.attempt.streams.sampler.occurrences


def withdrawals(trainer: Trainer) -> list[Withdraw]:
    with trainer.private.opened.recorder.ledger.rows() as rows:
        return [leaf for leaf in (decode_leaf(row.body) for row in rows) if isinstance(leaf, Withdraw)]


def expect_drawn(trainer: Trainer, draws: np.ndarray, gone: list[int], *, until: int, of: int = 6) -> None:
    assert draws.tolist() == [until if index in gone else of for index in range(6)]


def test_A24_a_key_revoked_while_training_stops_the_draws_from_the_next_charge(world: World) -> None:
    """Later windows leave its contributions out, what was charged before stands, and the leaf says why."""
    trainer, draws = interrupted(world, lambda: log_of(world).revoke(INTERNAL, at=world.now, now=world.now))
    gone = of_contributor(trainer, INTERNAL)
    expect_drawn(trainer, draws, gone, until=2)
    found = withdrawals(trainer)
    assert {leaf.descriptor_hash for leaf in found} == {trainer.private.prepared.pool.slots[i].descriptor_hash for i in gone}
    assert {(leaf.reason, leaf.evidence_hash) for leaf in found} == {("key-revoked", log_of(world).registry.root())}
    ledger, slots = trainer.private.opened.recorder.ledger, trainer.private.prepared.pool.slots
    assert ledger.state.registry_roots == [ledger.header.registry_root, log_of(world).registry.root()]
    kept = next(index for index in range(6) if index not in gone)
    assert 0 < ledger.epsilon(slots[gone[0]].descriptor_hash) < ledger.epsilon(slots[kept].descriptor_hash)
    trainer.close()


def test_A24_a_contributors_own_revocation_does_the_same(world: World) -> None:
    def revoke() -> None:
        log, key = log_of(world), world.contributor_keys[INTERNAL]
        statement = KeyStatement(
            kind="revoke", registry_id=log.registry.registry_id, key=public_bytes(key),
            time=world.now, revoked_at=world.now - 10 * DAY,
        )  # fmt: skip
        log.revoke_own(statement, statement.sign(key), now=world.now)

    trainer, draws = interrupted(world, revoke)
    expect_drawn(trainer, draws, of_contributor(trainer, INTERNAL), until=2)
    trainer.close()


def test_A24_a_revocation_dated_ahead_takes_effect_when_its_time_comes(world: World) -> None:
    now = [world.now]
    log_of(world).revoke(INTERNAL, at=world.now + 100, now=world.now)
    trainer = Trainer(world, clock=lambda: now[0])
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 3:  # inside the window of steps 3 and 4
            now[0] = world.now + 100
    occurrences = trainer.private.prepared.attempt.streams.sampler.occurrences
    expect_drawn(trainer, occurrences, of_contributor(trainer, INTERNAL), until=4)
    trainer.close()


def test_a_class_taken_away_while_training_stops_the_draws_too(world: World) -> None:
    trainer, draws = interrupted(world, lambda: log_of(world).grant(INTERNAL, classes=["open"], cap=None, now=world.now))
    expect_drawn(trainer, draws, of_contributor(trainer, INTERNAL), until=2)
    assert {leaf.reason for leaf in withdrawals(trainer)} == {"class-not-granted"}
    trainer.close()


def test_enrolments_rotations_and_other_grants_disturb_nothing(world: World) -> None:
    def change() -> None:
        log, old, new = log_of(world), world.contributor_keys[INTERNAL], generate()
        log.enrol("eve", public_bytes(generate()), classes=["open"], not_before=0, not_after=world.now, now=world.now)
        log.grant(INTERNAL, classes=["internal", "open"], cap=0, now=world.now)
        statement = KeyStatement(
            kind="rotate", registry_id=log.registry.registry_id, key=public_bytes(old),
            time=world.now, new_key=public_bytes(new),
        )  # fmt: skip
        log.rotate(
            statement, statement.sign(old), statement.sign(new),
            not_before=world.now, not_after=world.now + DAY, old_not_after=world.now, now=world.now,
        )  # fmt: skip

    trainer, draws = interrupted(world, change)
    assert draws.tolist() == [6] * 6 and not withdrawals(trainer)
    state = trainer.private.opened.recorder.ledger.state
    assert state.registry_roots[1:] == [log_of(world).registry.root()], "one leaf, for the state that the next charge found"
    trainer.close()


def test_a_key_enrolled_while_training_may_withdraw(world: World) -> None:
    new = generate()

    def change() -> None:
        log_of(world).enrol(
            INTERNAL, public_bytes(new), classes=[], not_before=world.now, not_after=world.now + 300 * DAY, now=world.now
        )
        folder = world.root / "ledger.db.withdrawals"
        payload, message = sign_withdrawal(Withdrawal(target(), "test-corpus", world.now, "consent"), new, signer=INTERNAL)
        signed_file.write(folder / "w.cose", payload, message)

    trainer = Trainer(world)

    def target() -> bytes:
        return trainer.private.prepared.pool.slots[of_contributor(trainer, INTERNAL)[0]].descriptor_hash

    iterator = iter(trainer.steps)
    trainer.one(next(iterator))
    change()
    for step in iterator:
        trainer.one(step)
    assert [leaf.reason for leaf in withdrawals(trainer)] == ["consent"]
    trainer.close()


def test_an_unchanged_registry_is_not_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(world)
    monkeypatch.setattr("attest.registry.log._read", lambda path: pytest.fail("the registry was read"))
    trainer.run()
    trainer.close()


# --- a registry that cannot be trusted stops the run before the charge -----------------------------------------------


def roll_back(world: World) -> None:
    data = world.root / "registry.cbor"
    data.write_bytes(data.read_bytes()[:-1])


def cut_an_entry(world: World) -> None:
    from attest.registry.entries import join, split

    path = world.root / "registry.cbor"
    path.write_bytes(join(list(split(path.read_bytes()))[:-1]))


def flip_a_byte(world: World) -> None:
    path = world.root / "registry.cbor"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def remove(world: World) -> None:
    (world.root / "registry.cbor").unlink()


def start_anew(world: World) -> None:
    remove(world)
    RegistryLog.create(world.root / "registry.cbor", world.owner_key, owner="owner", now=world.now)


def fork(world: World) -> None:
    """Another last entry, signed by the owner too."""
    cut_an_entry(world)
    log_of(world).grant(INTERNAL, classes=["internal"], cap=9, now=world.now)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tamper", [roll_back, cut_an_entry, flip_a_byte, remove, start_anew, fork])
def test_a_registry_that_does_not_follow_stops_the_run_before_the_charge_and_it_resumes(world: World, tamper) -> None:
    path = world.root / "registry.cbor"
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    trainer.one(next(iterator))
    trainer.one(next(iterator))
    trainer.private.save()
    before, names = path.read_bytes(), path.with_suffix(".names").read_bytes()
    tamper(world)
    charged = trainer.private.opened.recorder.ledger.state.charged
    with pytest.raises(RegistryRefused):
        trainer.one(next(iterator))
    assert trainer.private.opened.recorder.ledger.state.charged == charged == 2
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.close()
    with pytest.raises(RegistryRefused):
        Trainer(world, resume=True)
    path.write_bytes(before)
    path.with_suffix(".names").write_bytes(names)
    again = Trainer(world, resume=True)
    again.run()
    assert again.private.opened.recorder.ledger.state.charged == 6
    again.close()


def test_names_that_do_not_follow_the_registry_stop_the_run_before_the_charge_and_withdraw_nobody(world: World) -> None:
    """Who is not known by name has no key by that name: to go on would take out everybody."""
    names = world.root / "registry.names"
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    for _ in range(2):
        trainer.one(next(iterator))
    trainer.private.save()
    kept = names.read_bytes()
    log_of(world).grant(INTERNAL, classes=["internal", "open"], cap=None, now=world.now)
    names.unlink()
    with pytest.raises(RegistryRefused, match=r"NAMES.*registry\.names"):
        trainer.one(next(iterator))
    assert withdrawals(trainer) == []
    trainer.close()
    with pytest.raises(RegistryRefused, match="NAMES"):
        Trainer(world, resume=True)
    names.write_bytes(kept)
    again = Trainer(world, resume=True)
    again.run()
    assert withdrawals(again) == [] and again.private.opened.recorder.ledger.state.charged == 6
    again.close()


# --- what the ledger remembers ---------------------------------------------------------------------------------------


def test_the_header_records_the_state_that_admitted_the_corpus(world: World) -> None:
    grown = log_of(world).grant(INTERNAL, classes=["internal", "open"], cap=None, now=world.now)
    trainer = Trainer(world).begin()
    header = trainer.private.opened.recorder.ledger.header
    assert header.registry_root == trainer.private.opened.gate.registry_root == grown.root()
    assert header.policy.registry_root == world.registry.root() != grown.root()
    trainer.close()


def test_a_run_does_not_resume_with_a_registry_older_than_its_header(world: World) -> None:
    old = (world.root / "registry.cbor").read_bytes()
    log_of(world).grant(INTERNAL, classes=["internal", "open"], cap=None, now=world.now)
    Trainer(world).begin().close()
    (world.root / "registry.cbor").write_bytes(old)
    with pytest.raises(RegistryRefused, match=r"REGISTRY_ROOT.*rolled back"):
        Trainer(world, resume=True)


def test_a_run_does_not_resume_with_a_registry_older_than_a_revocation_that_it_followed(world: World) -> None:
    path = world.root / "registry.cbor"
    before = path.read_bytes()
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    for _ in range(2):
        trainer.one(next(iterator))
    log_of(world).revoke(INTERNAL, at=world.now, now=world.now)
    trainer.one(next(iterator))
    trainer.close()
    after = path.read_bytes()
    path.write_bytes(before)
    with pytest.raises(RegistryRefused, match="REGISTRY_ROOT"):
        Trainer(world, resume=True)
    path.write_bytes(after)
    Trainer(world, resume=True).close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at", [-10 * DAY, 0, DAY])
def test_a_run_resumes_after_a_revocation_and_leaves_out_what_it_bars(world: World, at: int) -> None:
    """Whether the key is revoked from before the admission or after it, admission is repeated as it was recorded."""
    trainer = Trainer(world)
    iterator = iter(trainer.steps)
    for _ in range(2):
        trainer.one(next(iterator))
    trainer.private.save()
    trainer.close()
    log_of(world).revoke(INTERNAL, at=world.now + at, now=world.now)
    again = Trainer(world, resume=True)
    again.run()
    gone = of_contributor(again, INTERNAL)
    assert len(gone) == 2 and len(again.private.prepared.pool) == 6
    draws = again.private.prepared.attempt.streams.sampler.occurrences
    assert {int(draws[index]) for index in gone} == ({4} if at > 0 else {0})
    assert {int(draws[index]) for index in range(6) if index not in gone} == {4}
    again.close()
