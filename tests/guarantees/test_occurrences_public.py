"""Public occurrences, noise by schedule or per sample: what is drawn is recorded, counted in full, and noised as recorded."""

import math

import pytest

torch = pytest.importorskip("torch")

from attest.keys import public_bytes  # noqa: E402
from dptrain.accounting import unsupported  # noqa: E402
from dptrain.clipping.resolver import Schedule  # noqa: E402
from dptrain.errors import NotPrivateUse, UnsupportedPolicy  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.leaves import Draw, decode_leaf  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import PUBLIC, SENSITIVE, make_world  # noqa: E402

ALARM = 5.0
SCHEDULED = 'disclosure = "occurrences_public"'
LITERAL = 'disclosure = "occurrences_public"\nnoise = { injection = "per_sample" }'
STRICTER = {
    "sensitive": {"clip_norm_micro": "0.25", "noise_multiplier_micro": "2.0"},
    "internal": {},
    "open": {"noise_multiplier_micro": "0.9"},
}


def draws_of(trainer: Trainer) -> list[Draw]:
    with trainer.private.opened.recorder.ledger.rows() as rows:
        return [leaf for row in rows if isinstance(leaf := decode_leaf(row.body), Draw)]


@pytest.mark.one_in(99)
@pytest.mark.parametrize("mode", [SCHEDULED, LITERAL])
def test_a_run_is_recorded_counted_and_audited(tmp_path, mode) -> None:
    world = make_world(tmp_path, steps=6, rate="0.5", per_class=3, policy_extra=mode, signed_bounds=STRICTER.__getitem__)
    trainer = Trainer(world).begin()
    drawn: list[tuple[int, ...]] = []
    sampler = trainer.private.prepared.attempt.streams.sampler
    draw = sampler.draw
    sampler.draw = lambda step: (slots := draw(step), drawn.append(tuple(map(int, slots))))[0]
    trainer.run()
    assert [leaf.drawn for leaf in draws_of(trainer)] == drawn and len(drawn) == 6
    private, ledger = trainer.private, trainer.private.opened.recorder.ledger
    for number, slot in enumerate(private.prepared.pool.slots):
        count = sum(number in step for step in drawn)
        bound = accountants.gaussian.epsilon_of_mu(math.sqrt(count) / slot.resolution.bounds.noise_multiplier, 1e-5)
        spent = ledger.epsilon(slot.descriptor_hash)
        if mode == SCHEDULED:
            exact = accountants.gaussian.epsilon_of_mu(math.sqrt(count) / slot.resolution.multiplier, 1e-5)
            assert spent == pytest.approx(exact, rel=1e-9)
        assert (spent > 0) == (count > 0) and spent <= bound * (1 + 1e-9)
    export = private.export(tmp_path / "export")
    rows = private.prepared.summary()
    trainer.close()
    report = verify_export(
        export, [world.ledger.with_suffix(".pub").read_text().strip()], owner_key=public_bytes(world.owner_key)
    )
    assert report.verdict == "FULL", report.findings
    assert [c.epsilon for c in report.classes] == pytest.approx([row["epsilon"] for row in rows])
    assert all(row["epsilon_planned"] >= row["epsilon"] for row in rows)
    for summed, row in zip(report.classes, rows, strict=True):
        spent = [c for c in ledger.state.contributions.values() if c.terms.class_name == summed.name]
        replaced = accountants.gaussian.epsilon_of_mu(2 * math.sqrt(max(c.loss for c in spent)), 1e-5)
        assert summed.epsilon_replace == pytest.approx(replaced) and row["epsilon_replace"] == pytest.approx(replaced)
        if mode == LITERAL:  # all that holds of every step, whoever else is drawn
            assert summed.noise_multiplier == min(c.terms.bounds.sigma_micro for c in spent) / 1e6


def scores(trainer: Trainer, gradient: float = 0.0) -> tuple[list[float], int]:
    """Chi-square scores of the released noise against V of those recorded as drawn, per block; and how many blocks had none."""
    private = trainer.private
    whitened: list[list[torch.Tensor]] = [[] for _ in private.prepared.schedule.blocks]
    bare = 0
    for step in trainer.steps:
        for rows in step:
            losses = trainer.losses(rows)
            private.backward(losses if private.prepared.probe.active else gradient * losses, rows)
        own: dict[str, float] = {}
        for number in draws_of(trainer)[-1].drawn:
            found = private.prepared.pool.slots[number].resolution
            brought = (found.bounds.clip_norm * found.bounds.noise_multiplier) ** 2
            own[found.class_name] = own.get(found.class_name, 0.0) + brought
        for g, tensor in private.prepared.router.tensors:
            variance = sum(own.get(name, 0.0) for name in private.prepared.schedule.blocks[g].classes)
            value = tensor.parameter.grad.double() * private.policy.normalizer
            if variance == 0.0:
                bare += 1
                assert not value.any(), "a block that nobody drawn may touch has no noise, and dense zeros"
            else:
                whitened[g].append((value / math.sqrt(variance)).flatten())
        trainer.optimizer.step()
    trainer.close()
    found = []
    for values in (torch.cat(parts) for parts in whitened if parts):
        d = values.numel()
        found.append(abs(float(values.square().sum()) - d) / math.sqrt(2 * d))
    return found, bare


@pytest.mark.one_in(9)
@pytest.mark.parametrize("rate", ["0.2", "0.6"])
def test_literal_noise_has_the_variance_of_those_drawn(tmp_path, rate) -> None:
    """Every occurrence adds its own (sigma_i C_i)^2, as signed; nobody drawn, no noise; p.grad is dense in any case."""
    world = make_world(tmp_path, steps=10, rate=rate, per_class=2, policy_extra=LITERAL, signed_bounds=STRICTER.__getitem__)
    found, bare = scores(Trainer(world))
    assert max(found) < ALARM
    assert bare or rate == "0.6"


def test_public_contributions_bring_no_noise_and_need_none(tmp_path) -> None:
    """All modes at once: public draws, noise per sample, and a public class, whose sums are added after the noise."""
    world = make_world(tmp_path, steps=3, rate="0.5", per_class=3, policy_extra=LITERAL, classes=SENSITIVE + PUBLIC)
    trainer = Trainer(world)
    trainer.run()
    assert any(leaf.drawn for leaf in draws_of(trainer))
    for leaf in draws_of(trainer):
        drawn = sum(not trainer.private.prepared.pool.slots[number].resolution.public for number in leaf.drawn)
        assert leaf.variances == (pytest.approx(drawn * 0.75**2), 0.0)
    prepared = trainer.private.prepared
    everybody = prepared.schedule.realised_stds(slot.admitted.admission.descriptor for slot in prepared.pool.slots)
    assert max(everybody) == pytest.approx(math.sqrt(3) * 0.75)
    export = trainer.private.export(tmp_path / "export")
    trainer.close()
    report = verify_export(export, [world.ledger.with_suffix(".pub").read_text().strip()])
    assert report.verdict == "FULL" and report.classes[1].epsilon is None, report.findings


def presets(self, drawn):
    """The noise of the schedule, whoever was drawn, while the ledger counts what those drawn bring."""
    return tuple(block.std for block in self.blocks)


def forgets_one(self, drawn):
    return realised(self, list(drawn)[1:])


realised = Schedule.realised_stds


@pytest.mark.one_in(9)
@pytest.mark.parametrize("fault", [presets, forgets_one])
def test_the_test_of_literal_noise_sees(tmp_path, monkeypatch, fault) -> None:
    monkeypatch.setattr(Schedule, "realised_stds", fault)
    world = make_world(tmp_path, steps=6, rate="1", per_class=2, policy_extra=LITERAL)
    found, _ = scores(Trainer(world))
    assert max(found) > 2 * ALARM


@pytest.mark.parametrize("sigma", ["", "6.0"])
def test_gradients_are_clipped_to_what_was_signed_under_literal_noise(tmp_path, sigma) -> None:
    """One contribution of huge gradient alone: the sum has norm at most C_i, and C_i / least noise is at most 1/sigma_i.

    Who signs more noise brings it, and is not scaled down below its clip norm for want of noise in the schedule.
    """
    world = make_world(
        tmp_path, steps=1, rate="1", per_class=1, policy_extra=LITERAL,
        signed_bounds=lambda name: {"noise_multiplier_micro": sigma} if sigma else {},
    )  # fmt: skip
    trainer = Trainer(world, microbatch=1).begin()
    kept = []
    take = trainer.private.prepared.router.sums.take
    trainer.private.prepared.router.sums.take = lambda: iter(_kept(take(), kept))
    draw = trainer.private.prepared.attempt.streams.sampler.draw
    trainer.private.prepared.attempt.streams.sampler.draw = lambda step: draw(step)[:1]
    for rows in next(iter(trainer.steps)):
        trainer.private.backward(1e6 * trainer.losses(rows), rows)
    slot = trainer.private.prepared.pool.slots[draws_of(trainer)[0].drawn[0]].resolution
    assert not sigma or slot.bounds.noise_multiplier == float(sigma)
    norm = math.sqrt(sum(float(total.square().sum()) for total in kept))
    assert 0.9 * slot.bounds.clip_norm < norm <= slot.bounds.clip_norm
    trainer.close()


def _kept(values, kept: list) -> list[torch.Tensor]:
    found = list(values)
    kept += [value.clone() for value in found]
    return found


def test_a_private_sum_without_noise_is_never_released(tmp_path, monkeypatch) -> None:
    """Mutation: noise counted without one of those drawn, who was alone in its blocks."""
    monkeypatch.setattr(Schedule, "realised_stds", lambda self, drawn: (0.0,) * len(self.blocks))
    trainer = Trainer(make_world(tmp_path, steps=1, rate="1", per_class=1, policy_extra=LITERAL))
    monkeypatch.setattr(type(trainer.private.prepared.router.sums), "use", lambda self, stds: None)
    with pytest.raises(NotPrivateUse) as refused:
        trainer.run()
    assert refused.value.code == "NO_NOISE"
    trainer.close()


def test_a_step_does_not_run_before_its_draw_is_durable(tmp_path, monkeypatch) -> None:
    """A full disk at the record of a draw stops the step before any gradient is formed."""
    from ledger.errors import StorageFailed

    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=1, policy_extra=SCHEDULED))

    def full(*_: object, **__: object) -> None:
        raise StorageFailed("DISK", "no space left")

    monkeypatch.setattr(Ledger, "draw", full)
    with pytest.raises(StorageFailed):
        trainer.run()
    assert all(tensor.parameter.grad is None for _, tensor in trainer.private.prepared.router.tensors)
    assert not any(total is not None for total in trainer.private.prepared.router.sums._sums)
    trainer.close()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("mode", [SCHEDULED, LITERAL])
def test_a_resumed_run_counts_what_was_drawn_in_both_attempts(tmp_path, mode) -> None:
    world = make_world(tmp_path, steps=4, rate="1", per_class=1, policy_extra=mode)
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number == 2:
            break
    first.close()
    second = Trainer(world, resume=True)
    second.run()
    counts = {entry.occurrences for entry in second.private.opened.recorder.ledger.state.contributions.values()}
    assert counts == {6}
    export = second.private.export(tmp_path / "export")
    second.close()
    report = verify_export(export, [world.ledger.with_suffix(".pub").read_text().strip()])
    assert report.verdict == "FULL", report.findings


def test_a_cap_holds_over_attempts_and_the_auditor_sees_it(tmp_path) -> None:
    world = make_world(tmp_path, steps=6, rate="1", per_class=1, policy_extra=SCHEDULED, template_extra={"max_occurrences": 3})
    trainer = Trainer(world)
    trainer.run()
    assert {entry.occurrences for entry in trainer.private.opened.recorder.ledger.state.contributions.values()} == {3}
    trainer.close()


def test_a_secret_run_records_no_draw(tmp_path) -> None:
    """M21 the other way: the default tells nothing."""
    trainer = Trainer(make_world(tmp_path, steps=2, rate="1", per_class=1))
    trainer.run()
    assert draws_of(trainer) == []
    trainer.close()


def test_what_cannot_be_honoured_is_refused_by_name(tmp_path) -> None:
    world = make_world(tmp_path / "a", per_class=1, policy_extra=LITERAL + '\nexactness = "certified"')
    with pytest.raises(UnsupportedPolicy, match="per_sample"):
        Trainer(world)
    from dptrain.engine import refusals

    trainer = Trainer(make_world(tmp_path / "b", per_class=1, steps=1, policy_extra=SCHEDULED))
    assert unsupported(trainer.private.policy) == ()
    refusals.refuse_long_draws(trainer.private.policy, ["open"] * 20_000)
    with pytest.raises(UnsupportedPolicy, match="records at most 12000"):
        refusals.refuse_long_draws(trainer.private.policy, ["open"] * 30_000)
    trainer.close()
