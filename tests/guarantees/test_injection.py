"""Noise per microbatch: M injections by policy, together the scheduled noise (docs/mechanism, Theorem 3)."""

import math

import pytest

torch = pytest.importorskip("torch")

from attest.keys import public_bytes  # noqa: E402
from dptrain.data.sampling import groups  # noqa: E402
from dptrain.engine.release import PrivateGradients  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402
from dptrain.noise import KeyStream, LatticeGaussian  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

ALARM = 5.0
"""Standard errors; about 6e-7 false alarms per comparison."""

STEPS = 6


def policy(microbatches: int) -> str:
    return f'noise = {{ injection = "per_microbatch", microbatches = {microbatches} }}'


def worst_score(trainer: Trainer) -> float:
    """Largest |chi-square score| over blocks of the released noise, every gradient having been made zero."""
    private = trainer.private
    whitened: list[list[torch.Tensor]] = [[] for _ in private.prepared.schedule.blocks]
    for step in trainer.steps:
        for rows in step:
            losses = trainer.losses(rows)
            private.backward(losses if private.prepared.probe.active else 0.0 * losses, rows)
        for g, tensor in private.prepared.router.tensors:
            value = tensor.parameter.grad.double() * private.policy.normalizer / private.prepared.schedule.blocks[g].std
            whitened[g].append(value.flatten())
        trainer.optimizer.step()
    trainer.close()
    scores = []
    for values in map(torch.cat, whitened):
        d = values.numel()
        scores.append(abs(float(values.square().sum()) - d) / math.sqrt(2 * d))
    return max(scores)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("microbatches", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 8))])
@pytest.mark.parametrize("rate", ["0.000000001", "0.5", "1"])
def test_the_total_variance_is_the_scheduled_one_however_many_were_drawn(tmp_path, microbatches, rate) -> None:
    """H1 and H2: nobody, some or all drawn; more and fewer groups than contributions."""
    world = make_world(tmp_path, steps=STEPS, rate=rate, per_class=2, policy_extra=policy(microbatches))
    assert worst_score(Trainer(world, microbatch=2)) < ALARM


def test_it_goes_with_certified_sums(tmp_path) -> None:
    extra = policy(3) + '\nexactness = "certified"'
    assert worst_score(Trainer(make_world(tmp_path, steps=STEPS, rate="0.5", per_class=2, policy_extra=extra))) < ALARM


def realised(self, step, lane, offset, count, draws=1):
    """M4: one injection per microbatch that ran, which is a function of the draw."""
    total = torch.zeros(count, dtype=torch.float64)
    for g in range(min(draws, 2)):
        total.add_(self.normals(step, lane * draws + g, offset, count))
    return total.mul_(draws**-0.5)


def full_each(self, step, lane, offset, count, draws=1):
    """Every group with the variance of the whole, which nobody accounted for."""
    return sum(self.normals(step, lane * draws + g, offset, count) for g in range(draws))


def same_key(self, step, lane, offset, count, draws=1):
    """All groups at one address."""
    return self.normals(step, lane, offset, count).mul_(draws**0.5)


@pytest.mark.one_in(99)
@pytest.mark.parametrize("fault", [realised, full_each, same_key])
def test_the_test_of_the_variance_sees(tmp_path, monkeypatch, fault) -> None:
    monkeypatch.setattr(LatticeGaussian, "gaussian", fault)
    world = make_world(tmp_path, steps=STEPS, rate="0.5", per_class=2, policy_extra=policy(4))
    assert worst_score(Trainer(world, microbatch=2)) > 2 * ALARM


def test_no_draw_of_a_group_meets_another_one() -> None:
    """The address of a draw is (step, group, tensor, offset): every pair of tensor and group reads a lane of its own."""
    seen = []

    class Listening(LatticeGaussian):
        def normals(self, step, lane, offset, count):
            seen.append((step, lane, offset))
            return super().normals(step, lane, offset, count)

    noise = Listening(KeyStream("noise", b"r" * 16, 0, b"k" * 32))
    for lane in range(5):
        noise.release_(torch.zeros(40), 1.0, 1.0, step=3, lane=lane, draws=4)
    assert len(seen) == len(set(seen)) == 20
    with pytest.raises(ValueError, match="already drawn"):
        noise.release_(torch.zeros(40), 1.0, 1.0, step=3, lane=2, draws=4)


def test_more_injections_than_addresses_are_refused_before_a_step(tmp_path) -> None:
    trainer = Trainer(make_world(tmp_path, steps=1, per_class=1))
    private = trainer.private
    with pytest.raises(UnsupportedPolicy, match="addresses"):
        PrivateGradients(trainer.model, trainer.optimizer, private.prepared.router, 4, 1 << 31)
    trainer.close()


def test_too_few_addresses_are_refused_before_there_is_a_ledger(tmp_path, monkeypatch) -> None:
    """A refusal after the ledger was made would leave a retry with a ledger that exists."""
    world = make_world(tmp_path, steps=1, per_class=1, policy_extra=policy(8))
    with monkeypatch.context() as changed:
        changed.setattr("dptrain.engine.release.TAIL_LANE", 8)
        with pytest.raises(UnsupportedPolicy) as refused:
            Trainer(world)
    assert refused.value.code == "ADDRESSES" and not world.ledger.exists()
    Trainer(world).close()


def test_draws_are_added_before_they_are_rounded() -> None:
    """A sum of rounded draws would not be the ideal mechanism, post-processed: one rounding, at the scheduled lattice."""
    noise = LatticeGaussian(KeyStream("noise", b"r" * 16, 0, b"k" * 32))
    expected = noise.gaussian(1, 0, 0, 64, 4).mul(2.0**32).round()
    assert not torch.equal(expected, sum(noise.normals(1, g, 0, 64).mul(2.0**31).round() for g in range(4)))
    released = noise.release_(torch.zeros(64, dtype=torch.float64), 1.0, 1.0, step=1, lane=0, draws=4)
    assert torch.equal(released * 2.0**32, expected)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_groups_lose_and_repeat_nobody(count) -> None:
    for size in range(20):
        drawn = list(range(100, 100 + size))
        found = groups(drawn, count)
        assert len(found) == count
        assert [slot for group in found for slot in group] == drawn
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_microbatches_lie_within_groups(tmp_path) -> None:
    world = make_world(tmp_path, steps=1, rate="1", per_class=3, policy_extra=policy(4))
    trainer = Trainer(world, microbatch=16)
    step = next(iter(trainer.steps))
    sizes = []
    for rows in step:
        if not trainer.private.prepared.probe.active:
            sizes.append(rows.contributions)
        trainer.private.backward(trainer.losses(rows), rows)
    assert sizes == [2, 2, 2, 3]
    trainer.close()


@pytest.mark.slow
def test_the_accounting_is_that_of_scheduled_noise(tmp_path) -> None:
    """M draws of variance s^2 / M of which only the sum is released: no loss, and an auditor who agrees."""
    spent = []
    for name, extra in (("scheduled", ""), ("three", policy(3))):
        world = make_world(tmp_path / name, steps=4, policy_extra=extra)
        trainer = Trainer(world)
        trainer.run()
        spent.append([row["epsilon"] for row in trainer.private.prepared.summary()])
        trainer.private.export(tmp_path / name / "export")
        trainer.close()
        key = world.ledger.with_suffix(".pub").read_text().strip()
        report = verify_export(tmp_path / name / "export", [key], owner_key=public_bytes(world.owner_key))
        assert report.verdict == "FULL", report.findings
    assert spent[0] == spent[1]
