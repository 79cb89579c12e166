"""Lines of a run that no other line stands behind: keys at its end, where a resumed run stands, who is in the charged pool."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from attest import signed_file  # noqa: E402
from attest.attestation import Attestation  # noqa: E402
from attest.gate.admission import Admission, Passed  # noqa: E402
from attest.withdrawal import Withdrawal, sign_withdrawal  # noqa: E402
from dptrain.clipping.own_noise import own_bounds, own_noise  # noqa: E402
from dptrain.data.packing import Planned  # noqa: E402
from dptrain.errors import NotPrivateUse  # noqa: E402
from dptrain.record.pin import read_record  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.errors import HorizonExceeded  # noqa: E402
from ledger.leaves import Charge, decode_leaf  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import PUBLIC, SENSITIVE, make_world  # noqa: E402


@pytest.mark.parametrize("generator", ["host", "device"])
def test_no_noise_can_be_drawn_once_a_run_has_ended(tmp_path, generator: str) -> None:
    """Whoever gets hold of the process later finds no key with which a release could be freed of its noise."""
    trainer = Trainer(make_world(tmp_path, per_class=1, steps=2), noise_generator=generator)
    trainer.run()
    assert not hasattr(trainer.private.prepared.attempt.streams.noise, "_stream")
    with pytest.raises(AttributeError):
        trainer.private.prepared.attempt.streams.noise.normals(1, 0, 0, 2)
    trainer.close()


def test_a_checkpoint_taken_right_after_resuming_says_where_the_run_stands(tmp_path) -> None:
    world = make_world(tmp_path, per_class=1, steps=4)
    first = Trainer(world)
    steps = iter(first.steps)
    first.one(next(steps))
    first.one(next(steps))
    first.private.save()
    first.close()
    second = Trainer(world, resume=True)
    pin = read_record(second.private.opened.recorder.ledger, second.private.save())
    assert pin.step == second.private.prepared.start_step == 2
    second.close()


def test_a_contribution_withdrawn_before_a_charge_is_in_no_pool_that_is_charged(tmp_path) -> None:
    """Withdrawn during the first window of two steps: it pays for these two, and every later window names a smaller pool."""
    world = make_world(tmp_path, per_class=2, steps=6, rate="1")
    trainer = Trainer(world)
    steps = iter(trainer.steps)
    trainer.one(next(steps))
    slot = trainer.private.prepared.pool.slots[0]
    key = world.contributor_keys["contributor-internal"]
    payload, message = sign_withdrawal(
        Withdrawal(slot.descriptor_hash, "test-corpus", world.now, "consent"), key, signer="contributor-internal"
    )
    folder = world.root / "ledger.db.withdrawals"
    signed_file.write(folder / "w.cose", payload, message)
    for step in steps:
        trainer.one(step)
    ledger = trainer.private.opened.recorder.ledger
    with ledger.rows() as rows:
        windows = [leaf for leaf in (decode_leaf(row.body) for row in rows) if isinstance(leaf, Charge)]
    place = [rule.name for rule in trainer.private.policy.classes].index(slot.resolution.class_name)
    assert [window.classes[place].pool_count for window in windows] == [2, 1, 1]
    assert ledger.epsilon(slot.descriptor_hash) == accountants.epsilon(slot.resolution.multiplier, 1.0, 2, 1e-5)
    trainer.close()


def test_public_microbatches_of_one_step_do_not_share_their_random_numbers(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, classes=SENSITIVE + PUBLIC, per_class=3, steps=2, rate="1"), microbatch=1)
    public, seen = {i for i, slot in enumerate(trainer.private.prepared.pool.slots) if slot.resolution.public}, []
    for step in trainer.steps:
        for rows in step:
            run = trainer.private.prepared
            if run.attempt is not None and rows is run.under_way.rows and set(rows_of(trainer)) <= public:
                seen.append(tuple(torch.rand(4).tolist()))
            trainer.private.backward(trainer.losses(rows), rows)
        trainer.optimizer.step()
    assert len(seen) == len(set(seen)) == 6, "three public contributions in each of two steps"
    trainer.close()


def rows_of(trainer: Trainer) -> tuple[int, ...]:
    """The slots of the microbatch under way."""
    return trainer.private.prepared.folding._planned.slots


def test_what_fills_up_a_microbatch_may_touch_no_block(tmp_path) -> None:
    """Such rows repeat somebody's data: their weight is zero, and their bounds by themselves let nothing through."""
    trainer = Trainer(make_world(tmp_path, per_class=2, steps=2, policy_extra='exactness = "certified"')).begin()
    bounds = trainer.private.prepared.attempt.drawing.bounds(Planned((0, 1), 1, fill=3))
    assert bounds.permitted_NG.any(1).tolist() == [True, True, False, False, False]
    rows = trainer.private.prepared.feeder.planned(Planned((0, 1), 1, fill=3), 1)
    assert rows.contributions == 5 and rows.weight.tolist()[2:] == [0.0] * 3
    trainer.close()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_a_parameter_that_comes_or_goes_during_a_run_is_refused_by_name(tmp_path, change: str) -> None:
    trainer = Trainer(make_world(tmp_path, per_class=1, steps=2))
    steps = iter(trainer.steps)
    trainer.one(next(steps))
    head = trainer.model.head
    if change == "added":
        head.register_parameter("extra", torch.nn.Parameter(torch.zeros(2), requires_grad=False))
    else:
        bias = head._parameters.pop("bias")
        if change == "renamed":
            head.register_parameter("shift", bias)
    with pytest.raises(NotPrivateUse, match="PARAMETER_REPLACED"):
        trainer.one(next(steps))
    trainer.close()


def test_what_was_signed_as_public_and_what_was_not_are_never_taken_for_each_other(tmp_path) -> None:
    """The gate refuses it before; a schedule by itself gives the one no noise and the other no clip."""
    trainer = Trainer(make_world(tmp_path, classes=SENSITIVE + PUBLIC, per_class=1, steps=2))
    schedule = trainer.private.prepared.schedule
    admissions = {slot.resolution.class_name: slot.admitted.admission for slot in trainer.private.prepared.pool.slots}
    assert schedule.resolve(admissions["encyclopedia"]).public and not schedule.resolve(admissions["sensitive"]).public
    for public, name in ((frozenset(), "encyclopedia"), (frozenset({"sensitive", "encyclopedia"}), "sensitive")):
        with pytest.raises(NotPrivateUse, match=f"PUBLIC_UNSIGNED: class '{name}' is"):
            replace(schedule, public=public).resolve(admissions[name])
    trainer.close()


def test_cap_and_limit_change_the_noise_of_own_bounds_and_nothing_that_the_schedule_gives(tmp_path) -> None:
    world = make_world(tmp_path, classes=SENSITIVE + PUBLIC, per_class=1, steps=40, policy_extra="redo_steps = 0")
    trainer = Trainer(world)
    schedule, policy = trainer.private.prepared.schedule, trainer.private.policy
    admissions = {slot.resolution.class_name: slot.admitted.admission for slot in trainer.private.prepared.pool.slots}
    signed = admissions["sensitive"].descriptor

    def needed(other):
        return own_noise(own_bounds(policy, other.admissibility_class, other.bounds, other.limit))

    def resolved(other):
        passed = Passed(other.digest(), bytes(32), bytes(8), other.contributor, other.admissibility_class)
        found = schedule.resolve(Admission(Attestation(other.to_cbor(), b"", other.opening()), passed, other.contributor))
        return found.profile, found.multiplier

    plain = needed(signed)
    assert (plain.expected, plain.variance) == (20.0, (1.5 * 0.5) ** 2)
    limit = {"max_epsilon_micro": 10**6, "max_delta_pico": 10**6}
    others = [replace(signed, max_occurrences=cap, **limit) for cap in (2, 10, 0)]
    few, many, any_number = map(needed, others)
    assert few.expected < many.expected < any_number.expected == 20.0
    assert plain.variance < few.variance < many.variance <= any_number.variance
    assert set(map(resolved, others)) == {resolved(signed)}
    public = admissions["encyclopedia"].descriptor
    assert own_bounds(policy, public.admissibility_class, public.bounds, public.limit) is None
    trainer.close()


def test_a_window_is_no_longer_than_what_the_policy_still_pays_for(tmp_path) -> None:
    """Five steps are paid for, two of them lost: of windows of two the last one has one step, and it is taken."""
    world = make_world(tmp_path, per_class=1, steps=4, policy_extra="redo_steps = 1")
    first = Trainer(world)
    first.one(next(iter(first.steps)))
    first.close()
    with pytest.warns(UserWarning, match="ends at step 3 of 4"):
        second = Trainer(world, resume=True).begin()
    steps = iter(second.steps)
    for _ in range(3):
        second.one(next(steps))
    assert second.private.opened.recorder.ledger.state.charged == 5
    with pytest.raises(HorizonExceeded):
        second.one(next(steps))
    second.close()
