"""What a pool refuses to hand out, and which keys and draws the streams of an attempt are made of."""

from dataclasses import fields, replace

import pytest

torch = pytest.importorskip("torch")

from attest.attestation import Attestation  # noqa: E402
from attest.descriptor import Terms  # noqa: E402
from attest.gate import Admission, Admitted  # noqa: E402
from dptrain import Clock, PrivateTraining, RunLedger  # noqa: E402
from dptrain.data.contributions import BOUNDS, Pool, in_ledger_order, slots_for  # noqa: E402
from dptrain.errors import ConfigError, ContentChanged, NotPrivateUse, ResumeRefused  # noqa: E402
from dptrain.noise.keystream import KeyStream  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import DAY, make_world, token_record  # noqa: E402


@pytest.fixture
def pool(tmp_path) -> Pool:
    trainer = Trainer(
        make_world(
            tmp_path, per_class=2, steps=2, policy_extra="[gate]\nmax_examples = 5\n", template_extra={"max_examples": 2}
        )
    )
    yield trainer.private.prepared.pool
    trainer.close()


def decoding(pool: Pool, *counts: int) -> Pool:
    """The same pool, whose contributions decode to these numbers of examples, one after the other; a policy permits five."""
    left = iter(counts)
    return Pool(pool.corpus, lambda content: [token_record(0)] * next(left), pool.slots, pool._policy)


def test_a_contribution_has_no_more_examples_than_its_contributor_signed(pool: Pool) -> None:
    assert len(decoding(pool, 2).examples(0)) == 2
    for count in (0, 3, 5):
        with pytest.raises(ContentChanged, match=f"EXAMPLES.*decodes to {count} examples, expected 1 to 2"):
            decoding(pool, count).examples(0)


def test_a_contribution_always_decodes_to_as_many_examples(pool: Pool) -> None:
    """Its size is public and decides shapes, so it cannot be one thing at the plan and another at the step."""
    for first, second in ((1, 2), (2, 1)):
        changing = decoding(pool, first, second)
        assert changing.size(0) == first
        with pytest.raises(ContentChanged, match=f"decodes to {second} examples now"):
            changing.examples(0)
    steady = decoding(pool, 1, 2)
    assert (steady.size(0), steady.size(1), steady.size(0)) == (1, 2, 1), "of one contribution, not of all"


def test_a_contribution_has_expired_at_the_second_that_ends_it(pool: Pool) -> None:
    end = pool.slots[0].admitted.admission.descriptor.not_after
    assert pool.expired(end - 1) == []
    assert len(pool.expired(end)) == len(pool)


def test_slots_stand_in_the_order_of_the_ledger_and_none_may_be_missing(pool: Pool) -> None:
    """Numbers of draws and keys of caps count slots: another order would count the draws of one for another one."""
    recorded = [slot.descriptor_hash for slot in pool.slots]
    for order in (recorded[::-1], recorded[3:] + recorded[:3]):
        assert [slot.descriptor_hash for slot in in_ledger_order(pool.slots, order)] == order
    with pytest.raises(ResumeRefused, match=f"CORPUS_CHANGED: 1 of the {len(recorded)} contributions"):
        in_ledger_order(pool.slots[1:], recorded)


def test_draws_of_abandoned_attempts_count_towards_caps_as_they_were(tmp_path) -> None:
    """At a rate below one, so that only the keys of the attempts that drew can tell who was drawn."""
    world = make_world(tmp_path, per_class=4, steps=10, rate="0.5", template_extra={"max_occurrences": 4})
    counts = []
    for attempt in range(3):
        trainer = Trainer(world, resume=attempt > 0).begin()
        found = trainer.private.prepared.attempt.streams.sampler.occurrences
        assert found.tolist() == (counts or [0] * 12)
        steps = iter(trainer.steps)
        for _ in range(2):  # one window
            trainer.one(next(steps))
        counts = found.tolist()
        trainer.close()
    assert len(set(counts)) > 1 and max(counts) <= 4


def test_the_store_of_sampling_keys_never_holds_the_key_of_the_noise(tmp_path) -> None:
    """It lies on disk while a run has caps; whoever reads it learns who was drawn and not what was added."""
    trainer = Trainer(make_world(tmp_path, per_class=1, steps=2, template_extra={"max_occurrences": 1})).begin()
    streams = trainer.private.prepared.attempt.streams
    assert isinstance(streams.noise._stream, KeyStream) and isinstance(streams.sampler._stream, KeyStream)
    masters = {streams.noise._stream.master, streams.sampler._stream.master}
    assert len(masters) == 2 and streams.sealed.master(0) == streams.sampler._stream.master
    trainer.close()


@pytest.mark.one_in(9)
@pytest.mark.parametrize("generator", ["host", "device"])
def test_every_attempt_has_streams_of_its_own_even_under_one_key(tmp_path, generator: str) -> None:
    world = make_world(tmp_path, per_class=2, steps=4)
    words = set()
    for attempt in range(3):
        trainer = Trainer(world, resume=attempt > 0, insecure_test_key=b"\x07" * 32, noise_generator=generator).begin()
        streams = trainer.private.prepared.attempt.streams
        for name, stream in (("noise", streams.noise._stream), ("draws", streams.sampler._stream)):
            assert (stream.run, stream.attempt) == (trainer.private.opened.recorder.ledger.header.run_id, attempt), name
            words.add(stream._key)
        steps = iter(trainer.steps)
        trainer.one(next(steps))
        trainer.close()
    assert len(words) == 6, "two purposes in three attempts"


def test_a_gradient_that_was_put_in_the_place_of_a_released_one_is_refused(tmp_path) -> None:
    """A copy of it too: what is not the tensor that was released could be anything."""
    for other in (torch.zeros_like, torch.clone):
        trainer = Trainer(make_world(tmp_path / other.__name__, per_class=1, steps=2))
        step = next(iter(trainer.steps))
        for rows in step:
            trainer.private.backward(trainer.losses(rows), rows)
        parameter = next(p for p in trainer.model.parameters() if p.grad is not None)
        parameter.grad = other(parameter.grad)
        with pytest.raises(NotPrivateUse, match="GRADIENT_REPLACED"):
            trainer.optimizer.step()
        trainer.close()


def test_a_run_spares_the_signatures_that_an_earlier_opening_verified_and_judges_all_else_again(tmp_path) -> None:
    """Opened again before its first step, and when it is resumed; the second time one attestation has ended."""
    world = make_world(tmp_path, per_class=2, steps=4)
    people = len(world.contributor_keys) * 2
    first = PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger)
    assert (first.opened.reading.spared, first.opened.reading.checked, len(first.opened.gate.admitted)) == (0, people, people)
    first.close()
    trainer = Trainer(world).begin()
    assert (trainer.private.opened.reading.spared, trainer.private.opened.reading.checked) == (people, 0)
    assert trainer.private.opened.gate.admitted == first.opened.gate.admitted
    trainer.close()
    resumed = PrivateTraining.open(world.policy, world.corpus, ledger=world.ledger, resume=True)
    assert resumed.opened.reading.spared == people and not resumed.opened.reading.told
    resumed.close()
    late = {"ledger": tmp_path / "other.db", "clock": Clock(lambda: world.now + 250 * DAY)}
    (tmp_path / "other.db.reading").write_bytes((tmp_path / "ledger.db.reading").read_bytes())
    (tmp_path / "other.key").write_bytes((tmp_path / "ledger.key").read_bytes())
    (tmp_path / "other.key").chmod(0o600)
    with pytest.raises(ConfigError, match=f"NOTHING_ADMITTED.*EXPIRED {people}"):
        PrivateTraining.open(world.policy, world.corpus, **late)


def test_a_run_that_is_told_so_verifies_every_signature_and_keeps_nothing(tmp_path) -> None:
    world = make_world(tmp_path, per_class=1, steps=2)
    private = PrivateTraining.open(world.policy, world.corpus, ledger=RunLedger(world.ledger, keep_reading=False))
    assert private.opened.reading is None and not (tmp_path / "ledger.db.reading").exists()
    private.close()


def test_contributions_share_a_resolution_only_where_all_that_is_looked_at_is_the_same(tmp_path) -> None:
    """A field of signed bounds that is new to descriptors must be looked at, or be named here."""
    others = {"not_before", "not_after", "corpus", "schema", "purposes", "public_length"}
    assert {item.name for item in fields(Terms)} == {*BOUNDS, *others}
    softer = {"noise_multiplier_micro": 3_000_000, "max_occurrences": 3}
    trainer = Trainer(make_world(tmp_path, per_class=2, steps=2))
    schedule, slots = trainer.private.prepared.schedule, trainer.private.prepared.pool.slots
    assert all(slot.resolution == schedule.resolve(slot.admitted.admission) for slot in slots)
    assert len({id(slot.resolution) for slot in slots}) == len(schedule.profiles) < len(slots)
    entry = slots[0].admitted
    changed = Attestation(b"", bytes(64))
    other = Admission(changed, entry.admission._passed, entry.admission.holder)
    other._descriptor = replace(entry.admission.descriptor, **softer)
    both = slots_for([entry, Admitted(other, entry.locator)], schedule)
    assert [slot.resolution for slot in both] == [schedule.resolve(entry.admission), schedule.resolve(other)]
    assert both[0].resolution != both[1].resolution
    trainer.close()
