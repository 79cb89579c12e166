"""Noise that varies over the run by policy: released, clipped for, charged, audited at the phase of each step (Theorem 8)."""

import math
import time

import pytest

torch = pytest.importorskip("torch")

from attest.keys import public_bytes  # noqa: E402
from dptrain.engine.draw import Drawing  # noqa: E402
from dptrain.engine.release import PrivateGradients  # noqa: E402
from dptrain.errors import NotPrivateUse  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.audit import verify_export  # noqa: E402
from ledger.errors import HorizonExceeded  # noqa: E402
from tests.worlds.trainer import Trainer  # noqa: E402
from tests.worlds.training import PUBLIC, World, make_world  # noqa: E402

ALARM = 5.0
"""Standard errors; about 6e-7 false alarms per comparison."""

SCALES = [2.0, 2.0, 2.0, 1.0, 1.0, 3.5, 3.5, 3.5]
"""By step: phases from steps 1, 4 and 6 on; windows of two steps and epochs of four are cut where phases end."""

PHASES = "phase = [{ from_step = 1, scale = 2 }, { from_step = 4, scale = 1 }, { from_step = 6, scale = 3.5 }]"
SCHEDULED = f"noise = {{ {PHASES} }}"
SPLIT = f'noise = {{ injection = "per_microbatch", microbatches = 3, {PHASES} }}'
PUBLIC_DRAWS = f'disclosure = "occurrences_public"\n{SCHEDULED}'
NOBODY = "0.000000001"
ONE_CLASS = """
[[class]]
name = "open"
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = {q}
depth = {{ from = 0.0, to = 1.0 }}
"""


def scores(trainer: Trainer) -> dict[float, float]:
    """Per scale the largest |chi-square score| over blocks of what is released, every gradient having been made zero."""
    private = trainer.private
    found: dict[float, list[list[torch.Tensor]]] = {scale: [[] for _ in private.prepared.schedule.blocks] for scale in SCALES}
    for step in trainer.steps:
        for rows in step:
            losses = trainer.losses(rows)
            private.backward(losses if private.prepared.probe.active else 0.0 * losses, rows)
        scale = SCALES[step.number - 1]
        for g, tensor in private.prepared.router.tensors:
            std = scale * private.prepared.schedule.blocks[g].std
            found[scale][g].append((tensor.parameter.grad.double() * private.policy.normalizer / std).flatten())
        trainer.optimizer.step()
    trainer.close()
    worst = {}
    for scale, blocks in found.items():
        joined = [torch.cat(parts) for parts in blocks if parts]
        worst[scale] = max((abs(float(v.square().sum()) - v.numel()) / math.sqrt(2 * v.numel()) for v in joined), default=0.0)
    return worst


@pytest.mark.one_in(23)
@pytest.mark.parametrize("rate", [pytest.param(NOBODY, marks=pytest.mark.slow), "0.5"])
@pytest.mark.parametrize("mode", [SCHEDULED, SPLIT, SCHEDULED + '\nexactness = "certified"', PUBLIC_DRAWS])
def test_the_noise_of_every_step_has_the_variance_of_its_phase(tmp_path, mode, rate) -> None:
    world = make_world(tmp_path, steps=8, rate=rate, per_class=1, policy_extra=mode)
    assert max(scores(Trainer(world)).values()) < ALARM


def test_the_test_of_the_variance_sees_noise_that_stays(tmp_path, monkeypatch) -> None:
    """Mutation: the release keeps the noise of the schedule, while the ledger charges that of the phase."""
    monkeypatch.setattr(PrivateGradients, "use", lambda self, stds: None)
    found = scores(Trainer(make_world(tmp_path, steps=8, rate=NOBODY, per_class=1, policy_extra=SCHEDULED)))
    assert found[2.0] > 2 * ALARM and found[3.5] > 2 * ALARM and found[1.0] < ALARM


def test_a_step_with_other_noise_than_was_charged_does_not_run(tmp_path, monkeypatch) -> None:
    """Mutation: the phase of the step before. Nothing is formed or released when the ledger disagrees."""
    noise = Drawing.noise
    monkeypatch.setattr(Drawing, "noise", lambda self, number, drawn: noise(self, max(1, number - 1), drawn))
    trainer = Trainer(make_world(tmp_path, steps=8, rate="1", per_class=1, policy_extra=SCHEDULED))
    with pytest.raises(NotPrivateUse) as refused:
        trainer.run()
    assert refused.value.code == "NOISE_OF_STEP" and "step 4" in refused.value.sentence
    assert all(tensor.parameter.grad is None for _, tensor in trainer.private.prepared.router.tensors)
    assert not any(total is not None for total in trainer.private.prepared.router.sums._sums)
    trainer.close()


def clipped(world: World) -> tuple[list[list[torch.Tensor]], int]:
    """The sums of every step of a run in which one contribution takes part, always, with a huge gradient; and the lattice."""
    trainer = Trainer(world, microbatch=1)
    kept: list[list[torch.Tensor]] = []
    sums = trainer.private.prepared.router.sums
    take = sums.take

    def keeping():
        found = list(take())
        kept.append([total.clone() for total in found])
        return iter(found)

    sums.take = keeping
    for step in trainer.steps:
        for rows in step:
            scale = 1.0 if trainer.private.prepared.probe.active else 1e6
            trainer.private.backward(scale * trainer.losses(rows), rows)
        trainer.optimizer.step()
    trainer.close()
    return kept, getattr(sums, "bits", 0)


def norms_of(root, exactness: str) -> list[float]:
    world = make_world(
        root, steps=8, rate="1", per_class=1, classes=ONE_CLASS,
        policy_extra=f'{SCHEDULED}\nexactness = "{exactness}"', signed_bounds=lambda name: {"noise_multiplier_micro": "2.5"},
    )  # fmt: skip
    return [math.sqrt(sum(float(total.square().sum()) for total in step)) for step in clipped(world)[0]]


@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_gradients_are_clipped_for_the_noise_of_their_step(tmp_path, exactness) -> None:
    """Signed: C = 1 and sigma = 2.5, in blocks with noise s_t = scale. So at most min(1, s_t / 2.5), and hardly less."""
    for number, norm in enumerate(norms_of(tmp_path, exactness)):
        bound = min(1.0, SCALES[number] / 2.5)
        assert 0.95 * bound < norm <= bound, f"step {number + 1}"


@pytest.mark.one_in(99)
@pytest.mark.parametrize("exactness", ["fast", "certified"])
def test_the_test_of_the_clip_sees_bounds_that_stay(tmp_path, monkeypatch, exactness) -> None:
    """Mutation: sums keep the noise of the first phase, twice that of the second, where a contribution is then unprotected."""
    from dptrain.clipping.certified import CertifiedSums
    from dptrain.clipping.fast import FastSums

    for kind in (FastSums, CertifiedSums):
        use, used = kind.use, []

        def once(self, stds, use=use, used=used):
            if not used:
                use(self, stds)
            used.append(stds)

        monkeypatch.setattr(kind, "use", once)
    found = norms_of(tmp_path, exactness)
    assert found[3] > 1.5 * min(1.0, SCALES[3] / 2.5)


def test_certified_integers_keep_their_bounds_under_the_noise_of_their_step(tmp_path) -> None:
    """Theorem 4 step by step, in integers: on the lattice of s_t, within C_i, and within 1/z of the multiplier accounted."""
    world = make_world(
        tmp_path, steps=8, rate="1", per_class=1, classes=ONE_CLASS,
        policy_extra=f'{SCHEDULED}\nexactness = "certified"', signed_bounds=lambda name: {"noise_multiplier_micro": "2.5"},
    )  # fmt: skip
    steps, bits = clipped(world)
    for number, totals in enumerate(steps):
        std = SCALES[number]  # the schedule is 1 everywhere, so these are exact
        integers = torch.cat([total.flatten() for total in totals]) / (std * 2.0**-bits)
        assert torch.equal(integers, integers.round())
        square = sum(int(k) ** 2 for k in integers.tolist())
        z = max(2.5, std)
        assert 0 < square * z**2 <= 2 ** (2 * bits) and square * std**2 <= 2 ** (2 * bits)


def hand(trainer: Trainer, name: str, steps: dict[float, int], **options: bool) -> float:
    """Epsilon of a contribution of class presets from (scale: charged steps), composed outside ledger and engine."""
    policy = trainer.private.policy
    rule = policy.class_rule(name)
    touched = [block.std for block in trainer.private.prepared.schedule.blocks if name in block.classes]
    sigma, clip = rule.bounds.noise_multiplier, rule.bounds.clip_norm
    phases = [
        accountants.Phase(max(sigma, scale * min(touched) / clip), float(rule.sampling_rate), count)
        for scale, count in steps.items()
    ]
    return accountants.epsilon_of_phases(phases, float(policy.delta), **options)


def audited(trainer: Trainer, world: World, directory):
    export = trainer.private.export(directory)
    key = world.ledger.with_suffix(".pub").read_text().strip()
    report = verify_export(export, [key], owner_key=public_bytes(world.owner_key))
    assert report.verdict == "FULL", report.findings
    return report


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", [SCHEDULED, SPLIT, SCHEDULED + '\nexactness = "certified"'])
def test_a_run_is_charged_summed_up_and_audited_by_phase(tmp_path, mode) -> None:
    world = make_world(tmp_path, steps=8, per_class=2, policy_extra=mode)
    trainer = Trainer(world).begin()
    planned = [row["epsilon_planned"] for row in trainer.private.prepared.summary()]
    trainer.run()
    windows = [(w.first_step, w.n_steps) for w in trainer.private.opened.recorder.ledger.state.windows]
    assert windows == [(1, 2), (3, 1), (4, 1), (5, 1), (6, 2), (8, 1)]
    rows = trainer.private.prepared.summary()
    report = audited(trainer, world, tmp_path / "export")
    steps = {2.0: 3, 1.0: 2, 3.5: 3}
    for row, summed, plan in zip(rows, report.classes, planned, strict=True):
        expected = hand(trainer, row["class"], steps)
        assert row["epsilon"] == summed.epsilon == plan == pytest.approx(expected, rel=1e-9)
        assert row["epsilon_replace"] == pytest.approx(hand(trainer, row["class"], steps, replace=True), rel=1e-9)
        assert row["effective_multiplier"] == summed.noise_multiplier
        assert not math.isclose(expected, hand(trainer, row["class"], {1.0: 8}), rel_tol=0.05)
    trainer.close()


@pytest.mark.slow
def test_steps_done_again_over_a_boundary_are_charged_in_their_own_phase(tmp_path) -> None:
    """Saved after step 2, crashed in step 5, resumed: steps 3 (scale 2), 4 and 5 (scale 1) are paid for twice."""
    world = make_world(tmp_path, steps=8, per_class=2, policy_extra=SCHEDULED)
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number == 2:
            first.private.save()
        if step.number == 5:
            break
    first.close()
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 2
    second.run()
    state = second.private.opened.recorder.ledger.state
    assert state.charged_phases == (4, 4, 3)
    report = audited(second, world, tmp_path / "export")
    for summed in report.classes:
        assert summed.epsilon == pytest.approx(hand(second, summed.name, {2.0: 4, 1.0: 4, 3.5: 3}), rel=1e-9)
    second.close()


def test_a_run_resumed_inside_a_phase_has_its_noise_at_once(tmp_path) -> None:
    world = make_world(tmp_path, steps=8, rate=NOBODY, per_class=1, policy_extra=SCHEDULED)
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number == 6:
            first.private.save()
            break
    first.close()
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 6
    assert scores(second)[3.5] < ALARM


def test_a_withdrawal_within_a_phase_stops_the_count_there(tmp_path) -> None:
    world = make_world(tmp_path, steps=8, per_class=2, policy_extra=SCHEDULED)
    trainer = Trainer(world)
    gone = trainer.private.prepared.pool.slots[0]
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 4:  # from the next window on, which is step 5, in the second phase
            ledger = trainer.private.opened.recorder.ledger
            ledger.withdraw(gone.descriptor_hash, "contributor", bytes(32), now=int(time.time()))
    spent = trainer.private.opened.recorder.ledger.epsilon(gone.descriptor_hash)
    assert spent == pytest.approx(hand(trainer, gone.resolution.class_name, {2.0: 3, 1.0: 1}), rel=1e-9)
    audited(trainer, world, tmp_path / "export")
    trainer.close()


def test_public_occurrences_are_counted_at_the_phase_of_their_step(tmp_path) -> None:
    world = make_world(tmp_path, steps=8, rate="0.5", per_class=2, policy_extra=PUBLIC_DRAWS)
    trainer = Trainer(world).begin()
    drawn: list[list[int]] = []
    sampler = trainer.private.prepared.attempt.streams.sampler
    draw = sampler.draw
    sampler.draw = lambda step: (slots := draw(step), drawn.append([int(i) for i in slots]))[0]
    trainer.run()
    for number, slot in enumerate(trainer.private.prepared.pool.slots):
        z = slot.resolution.multiplier
        loss = sum(1.0 / (SCALES[step] * z) ** 2 for step, slots in enumerate(drawn) if number in slots)
        expected = accountants.gaussian.epsilon_of_mu(math.sqrt(loss), 1e-5)
        assert trainer.private.opened.recorder.ledger.epsilon(slot.descriptor_hash) == pytest.approx(expected, rel=1e-9)
    audited(trainer, world, tmp_path / "export")
    trainer.close()


def test_a_public_class_has_no_noise_in_any_phase(tmp_path) -> None:
    classes = ONE_CLASS.replace("0.0, to", "0.67, to") + PUBLIC
    world = make_world(tmp_path, steps=8, rate="0.5", per_class=2, policy_extra=SCHEDULED, classes=classes)
    trainer = Trainer(world)
    trainer.run()
    for window in trainer.private.opened.recorder.ledger.state.windows:
        assert [row.min_std for row in window.classes] == [SCALES[window.first_step - 1], 0.0]
    audited(trainer, world, tmp_path / "export")
    trainer.close()


BUDGETS = SCHEDULED.replace("{ phase", "{ budgets = { embeddings = 0.2, layers = 1, head = 2 }, phase")
FAMILIES = {
    "laplace": SCHEDULED.replace("{ phase", '{ family = "laplace", phase') + '\nexactness = "certified"',
    "discrete_gaussian": SCHEDULED.replace("{ phase", '{ family = "discrete_gaussian", phase')
    + '\nexactness = "certified"\naccountant = "rdp"',
    "skellam": SCHEDULED.replace("{ phase", '{ family = "skellam", phase') + '\nexactness = "certified"\naccountant = "rdp"',
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", [BUDGETS, BUDGETS + '\nexactness = "certified"', *FAMILIES.values()])
def test_phases_go_with_budgets_and_with_every_family(tmp_path, mode) -> None:
    """Every step passes the comparison with its charge, and the auditor agrees with the writer."""
    world = make_world(tmp_path, steps=8, per_class=2, policy_extra=mode)
    trainer = Trainer(world)
    trainer.run()
    rows = trainer.private.prepared.summary()
    report = audited(trainer, world, tmp_path / "export")
    assert [summed.epsilon for summed in report.classes] == pytest.approx([row["epsilon"] for row in rows])
    first, second = (trainer.private.opened.recorder.ledger.state.windows[n].classes for n in (0, 3))
    for twice, once in zip(first, second, strict=True):
        assert twice.min_std == pytest.approx(2 * once.min_std)
    trainer.close()


def test_a_resumed_run_is_told_where_what_is_left_ends(tmp_path) -> None:
    """More was charged than expected: the attempt says at once how far it gets, and no step beyond that runs."""
    world = make_world(tmp_path, steps=8, rate=NOBODY, per_class=1, policy_extra=f"redo_steps = 1\n{SCHEDULED}")
    first = Trainer(world)
    for step in first.steps:
        first.one(step)
        if step.number == 5:
            break
    first.close()
    with pytest.warns(UserWarning, match=r"ends at step 1 of 8; only from a checkpoint at step 4 or later"):
        second = Trainer(world, resume=True).begin()
    done = []
    with pytest.raises(HorizonExceeded, match=r"2 steps would be charged again, redo_steps of the policy allows 1"):
        for step in second.steps:
            second.one(step)
            done.append(step.number)
    assert done == [1]
    assert second.private.opened.recorder.ledger.state.charged_phases == (4, 2, 0)
    second.close()
