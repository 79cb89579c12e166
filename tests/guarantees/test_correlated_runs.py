"""Runs whose noise is correlated between steps: what they release, what they spend, resumed, and audited."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attest.policy import Policy  # noqa: E402
from attest.schema.rounding import at_most  # noqa: E402
from dptrain.cli.attest import words  # noqa: E402
from dptrain.clipping.own_noise import own_bounds, own_noise  # noqa: E402
from dptrain.engine.options import NoiseSource  # noqa: E402
from dptrain.errors import ResumeRefused, UnsupportedPolicy  # noqa: E402
from dptrain.noise.correlated import CorrelatedGaussian  # noqa: E402
from dptrain.parallel.ranks import ALONE  # noqa: E402
from dptrain.planning.changes import noise_lines  # noqa: E402
from dptrain.planning.plan import spent  # noqa: E402
from dptrain.record.noise_states import NoiseStates  # noqa: E402
from dptrain.record.pin import PinRecord, read_record, require_files  # noqa: E402
from dptrain.record.pin import found as checkpoint_folders  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.accountants import Phase  # noqa: E402
from ledger.accountants.correlated import Banded, Dense, costs, rule_of, strategy_of  # noqa: E402
from ledger.accountants.gaussian import epsilon_of_mu  # noqa: E402
from ledger.errors import LeafRefused, PinRefused  # noqa: E402
from ledger.leaves import Draw, decode_leaf  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from ledger.log.pinned import Pin  # noqa: E402
from ledger.replay.budgets import of_plan  # noqa: E402
from ledger.views.summary import preset_epsilon  # noqa: E402
from tests.worlds.trainer import Trainer, audited, foreseen_holds, interrupted  # noqa: E402
from tests.worlds.training import PUBLIC, SENSITIVE, make_world  # noqa: E402

TURNS = 'disclosure = "occurrences_public"\nsampling = { order = "cyclic" }\n'
ONE = 1 << 20
FAMILIES = {
    "bands": f'family = "banded_toeplitz", parameters = {{ bands = 4, coefficients = [{ONE}, 524288, 393216, 327680] }}',
    "normalised": f'family = "banded_toeplitz", parameters = {{ bands = 3, coefficients = [{ONE}, 524288, 393216], '
    "normalized = true }",
    "inverse": f'family = "banded_inverse", parameters = {{ bands = 3, coefficients = [{ONE}, -524288, -131072] }}',
    "buffers": f'family = "buffered_toeplitz", parameters = {{ decays = [{1 << 39}], scales = [{1 << 38}] }}',
}
STEPS = 8
OWN = np.random.default_rng(7).random((STEPS, STEPS))
IN_FILES = {
    "columns": rule_of(Banded(1.0 + OWN[:, :5])),
    "dense": rule_of(Dense(np.tril(np.where(np.eye(STEPS), 1.0 + OWN, 0.8 * OWN - 0.3)))),
}
"""Noise whose coefficients lie in a file: columns of their own, scaled to norm 1, and a matrix with negative numbers."""
FAMILIES |= {name: ", ".join(noise_lines(rule)) for name, rule in IN_FILES.items()}
BESIDE_PUBLIC = SENSITIVE + PUBLIC.replace("{q}", "0.5")


def world_of(path, family="bands", extra="", **changes):
    said = TURNS + f"noise = {{ {FAMILIES[family]} }}\n" + extra
    beside = IN_FILES[family].coefficients if family in IN_FILES else None
    told = {"steps": STEPS, "rate": '"1/3"', "per_class": 4, "policy_extra": said, "coefficients": beside}
    return make_world(path, **told | changes)


def draws_of(trainer) -> list[Draw]:
    with trainer.private.opened.recorder.ledger.rows() as rows:
        return [leaf for row in rows if isinstance(leaf := decode_leaf(row.body), Draw)]


def states_of(world):
    return world.ledger.with_name(world.ledger.name + ".noise")


def expected_losses(trainer, draws) -> list[float]:
    """By brute force from the matrix: what each contribution moves the rows that were executed by, in units of its own 1/z.

    The last execution of every step is the timeline that survives; every other one is a row of its own, which moves by the
    magnitudes of all turns up to it.
    """
    policy = trainer.private.opened.policy
    matrix = strategy_of(policy.mechanism, policy.steps).matrix(policy.steps)
    largest = (matrix**2).sum(axis=0).max()
    gram, matrix = np.abs(matrix.T @ matrix), np.abs(matrix)
    found = []
    for number, slot in enumerate(trainer.private.prepared.pool.slots):
        steps = sorted({leaf.step - 1 for leaf in draws if number in leaf.drawn})
        total = gram[np.ix_(steps, steps)].sum()
        seen: set[int] = set()
        for leaf in draws:
            if leaf.step in seen:
                total += matrix[leaf.step - 1, [step for step in steps if step < leaf.step]].sum() ** 2
            seen.add(leaf.step)
        found.append(total / largest / slot.resolution.multiplier**2)
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_everybody_spends_is_what_they_move_the_releases_by(tmp_path, family) -> None:
    world = world_of(tmp_path, family)
    trainer = Trainer(world)
    trainer.run()
    losses = expected_losses(trainer, draws_of(trainer))
    entries = trainer.private.opened.recorder.ledger.state.contributions
    for slot, expected in zip(trainer.private.prepared.pool.slots, losses, strict=True):
        entry = entries[slot.descriptor_hash]
        rel = 4e-6 if family == "dense" else 1e-9  # readers count a slack in the place of its inverse
        assert entry.loss == pytest.approx(expected, rel=rel) and entry.loss >= expected * (1 - 1e-13)
        z = slot.resolution.multiplier
        if family not in ("normalised", "columns", "dense"):  # which cost more than without correlation, or less
            assert entry.occurrences / z**2 <= entry.loss * (1 + 1e-12)
        epsilon = accountants.gaussian.epsilon_of_mu(math.sqrt(expected), 1e-5)
        assert trainer.private.opened.recorder.ledger.epsilon(slot.descriptor_hash) == pytest.approx(epsilon, rel=rel)
    rows = trainer.private.prepared.summary()
    report = audited(trainer, world, tmp_path / "export")
    for row, found in zip(rows, report.classes, strict=True):
        assert found.epsilon == row["epsilon"] <= row["epsilon_planned"] * (1 + 1e-12)
        assert row["epsilon_planned"] == pytest.approx(row["epsilon"], rel=1e-9)
    assert not states_of(world).exists()
    trainer.close()


class Recorded:
    """Records what a run releases, and takes the gradient out of it: what is left is noise."""

    def __init__(self, monkeypatch) -> None:
        self.steps: list[tuple[int, int, torch.Tensor]] = []
        release = CorrelatedGaussian.release

        def recording(noise, clipped_sum, state, step):
            clipped_sum.zero_()
            released = release(noise, clipped_sum, state, step)
            self.steps.append((step.number, step.lane, released.clone().flatten() * step.normalizer / step.std))
            return released

        monkeypatch.setattr(CorrelatedGaussian, "release", recording)

    def rows(self, first: int = 0) -> np.ndarray:
        """Returns noise over its scale, shape (steps, coordinates), of executions from one on."""
        lanes = 1 + max(lane for _, lane, _ in self.steps)
        whole = [self.steps[begin : begin + lanes] for begin in range(0, len(self.steps), lanes)]
        return np.array([torch.cat([value for _, _, value in step]).double().numpy() for step in whole[first:]])


@pytest.mark.one_in(99)
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "normalised"])
def test_the_noise_of_a_run_is_that_of_its_strategy(tmp_path, monkeypatch, family) -> None:
    """C times what was released is independent noise of deviation 1 over the largest column norm."""
    recorded = Recorded(monkeypatch)
    trainer = Trainer(world_of(tmp_path, family))
    trainer.run()
    policy = trainer.private.opened.policy
    matrix = strategy_of(policy.mechanism, STEPS).matrix(STEPS)
    noise = matrix @ recorded.rows() / np.sqrt((matrix**2).sum(axis=0).max())
    count = noise.shape[1]
    covariance = noise @ noise.T / count
    assert np.abs(covariance - np.eye(STEPS)).max() < 6 * math.sqrt(2 / count)
    trainer.close()


@pytest.mark.one_in(23)
@pytest.mark.parametrize("family", ["bands", "buffers", "columns", "dense"])
def test_a_resumed_run_goes_on_with_the_noise_that_it_had_and_pays_for_rows_done_again(tmp_path, monkeypatch, family) -> None:
    recorded = Recorded(monkeypatch)
    world = world_of(tmp_path, family)
    interrupted(world, saved=4, stopped=6)
    assert [path.name for path in sorted(states_of(world).iterdir())] == ["step-00000004"]
    assert states_of(world).stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (states_of(world) / "step-00000004").iterdir())
    second = Trainer(world, resume=True)
    second.run()
    foreseen_holds(second, redone=2)
    draws = draws_of(second)
    assert [leaf.step for leaf in draws] == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8]
    entries = second.private.opened.recorder.ledger.state.contributions
    for slot, expected in zip(second.private.prepared.pool.slots, expected_losses(second, draws), strict=True):
        assert entries[slot.descriptor_hash].loss == pytest.approx(expected, rel=4e-6 if family == "dense" else 1e-9)
    matrix = strategy_of(second.private.opened.policy.mechanism, STEPS).matrix(STEPS)
    rows = recorded.rows()
    norm = np.sqrt((matrix**2).sum(axis=0).max())
    survived, lost = [*rows[:4], *rows[6:]], [*rows[:4], *rows[4:6]]
    noise = np.concatenate([matrix @ survived, (matrix[:6, :6] @ lost)[4:]]) / norm
    covariance = noise @ noise.T / noise.shape[1]
    assert np.abs(covariance - np.eye(10)).max() < 6 * math.sqrt(2 / noise.shape[1])
    audited(second, world, tmp_path / "export")
    second.close()
    assert not states_of(world).exists()


def fsck(world) -> None:
    """Holds the checkpoints beside a ledger against their pins, as `dptrain ledger fsck` does."""
    folder = checkpoint_folders(world.ledger.with_name(world.ledger.name + ".checkpoints"))[-1][1]
    with Ledger.open(world.ledger) as ledger:
        require_files(folder, read_record(ledger, folder), states_of(world))


@pytest.mark.one_in(23)
@pytest.mark.parametrize("change", ["gone", "another", "a byte"])
def test_another_state_of_the_noise_is_refused_before_anything_is_charged(tmp_path, change) -> None:
    world = world_of(tmp_path)
    interrupted(world, saved=2, stopped=4)
    interrupted(world, saved=3, stopped=4, resume=True)
    of = states_of(world)
    fsck(world)
    if change == "gone":
        os.rename(of, of.with_name("elsewhere"))
    elif change == "another":
        for path in (of / "step-00000003").iterdir():
            path.write_bytes((of / "step-00000002" / path.name).read_bytes())
    else:
        path = of / "step-00000003" / "rank-0.pt"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(PinRefused) as found:
        fsck(world)
    trainer = Trainer(world, resume=True)
    charged, attempt = (getattr(trainer.private.opened.recorder.ledger.state, name) for name in ("charged", "attempt"))
    with pytest.raises(PinRefused) as refused:
        trainer.run()
    assert refused.value.code == found.value.code == ("STATE_CHANGED" if change == "a byte" else "NOISE_STATE")
    state = trainer.private.opened.recorder.ledger.state
    assert (state.charged, state.attempt) == (charged, attempt)
    trainer.close()


def test_a_state_that_was_just_written_stays_beside_those_of_later_steps(tmp_path) -> None:
    """As where a run went back behind two states that an earlier attempt had saved."""
    of = tmp_path / "ledger.noise"
    states = NoiseStates(of, ALONE, correlated=True)
    pin = PinRecord(Pin("example.org", 1, bytes(32), bytes(32)), 5, 1, "held", 1, bytes(32))
    digests = {step: states.save(step, {"step 0 0": torch.tensor(step)}) for step in (8, 10, 5)}
    assert [path.name for path in sorted(of.iterdir())] == ["step-00000005", "step-00000010"]
    assert states.restored(replace(pin, noise_sha256=digests[5])) == {"step 0 0": torch.tensor(5)}
    (of / ".step-00000006.1").mkdir()
    for step in (11, 12, 13):
        states.save(step, {"step 0 0": torch.tensor(step)}, pinned=(5,))
    assert [path.name for path in sorted(of.iterdir())] == ["step-00000005", "step-00000012", "step-00000013"]


GROUPS = 'disclosure = "secret_draws"\nsampling = { order = "cyclic_poisson", parameters = { groups = 4 } }\n'


@pytest.mark.one_in(99)
@pytest.mark.parametrize("order", [TURNS, GROUPS], ids=["turns", "groups"])
def test_a_checkpoint_that_names_no_state_of_the_noise_is_refused(tmp_path, monkeypatch, order) -> None:
    from dptrain.engine.release import PrivateGradients

    world = world_of(tmp_path, policy_extra=order + f"noise = {{ {FAMILIES['bands']} }}\n")
    monkeypatch.setattr(PrivateGradients, "keeps_noise", property(lambda self: False))
    interrupted(world, saved=4, stopped=6)
    monkeypatch.undo()
    trainer = Trainer(world, resume=True)
    with pytest.raises(ResumeRefused, match="names no state of the noise"):
        trainer.run()
    trainer.close()


def test_two_forks_of_one_checkpoint_pay_for_every_row_that_was_executed(tmp_path) -> None:
    world = world_of(tmp_path)
    interrupted(world, saved=3, stopped=5)
    interrupted(world, saved=0, stopped=4, resume=True)
    third = Trainer(world, resume=True)
    third.run()
    draws = draws_of(third)
    assert [leaf.step for leaf in draws] == [1, 2, 3, 4, 5, 4, 4, 5, 6, 7, 8]
    entries = third.private.opened.recorder.ledger.state.contributions
    for slot, expected in zip(third.private.prepared.pool.slots, expected_losses(third, draws), strict=True):
        assert entries[slot.descriptor_hash].loss == pytest.approx(expected, rel=1e-9)
    audited(third, world, tmp_path / "export")
    third.close()


def test_who_withdrew_pays_for_rows_done_again_in_which_its_gradient_still_is(tmp_path) -> None:
    from time import time

    world = world_of(tmp_path)
    first = Trainer(world)
    gone = first.private.prepared.pool.slots[0]
    before = 0.0
    for step in first.steps:
        first.one(step)
        if step.number == 2:
            first.private.save()
        if step.number == 4:  # the end of a window
            ledger = first.private.opened.recorder.ledger
            ledger.withdraw(gone.descriptor_hash, "contributor", bytes(32), now=int(time()))
            before = ledger.state.contributions[gone.descriptor_hash].loss
        if step.number == 6:
            break
    first.private.prepared.saved = STEPS
    first.close()
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 2
    second.run()
    draws = draws_of(second)
    entry = second.private.opened.recorder.ledger.state.contributions[gone.descriptor_hash]
    expected = expected_losses(second, draws)[entry.number]
    assert not entry.active and entry.loss > before
    assert expected * (1 - 1e-12) <= entry.loss <= 1.5 * expected
    audited(second, world, tmp_path / "export")
    second.close()


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ('noise.phase = [{ from_step = 1, scale = 2 }, { from_step = 5, scale = 1 }]', "one level of noise"),
        ('noise.injection = "per_microbatch"\nnoise.microbatches = 2', "noise.injection 'scheduled'"),
        ('noise.injection = "per_sample"', "noise.injection 'scheduled'"),
    ],
)
def test_what_does_not_go_with_it_is_refused_by_name(tmp_path, extra, told) -> None:
    said = TURNS + "\n".join(f"noise.{pair}" for pair in _pairs(FAMILIES["bands"])) + f"\n{extra}\n"
    world = make_world(tmp_path, steps=STEPS, rate='"1/3"', per_class=1, policy_extra=said)
    with pytest.raises(UnsupportedPolicy, match=told):
        Trainer(world)


def test_classes_of_many_periods_are_added_up_together(monkeypatch) -> None:
    monkeypatch.setattr(costs, "MOST_WORK", 40)
    text = 'corpus = "c"\ndelta = 1e-6\nsteps = 12\nnormalizer = 4\n' + TURNS + f"noise = {{ {FAMILIES['buffers']} }}\n"
    one = '[[class]]\nname = "{}"\nclip_norm = 1\nnoise_multiplier = 1\nsampling_rate = {}\ndepth = {{ from = 0, to = 1 }}\n'
    alike = Policy.from_toml(text + one.format("a", 0.5) + one.format("b", 0.5))
    assert accountants.refusal_of(alike) is not None  # 72 by itself
    monkeypatch.setattr(costs, "MOST_WORK", 72)
    assert accountants.refusal_of(alike) is None
    other = Policy.from_toml(text + one.format("a", 0.5) + one.format("b", 0.25))
    assert "of all periods of its classes together" in (accountants.refusal_of(other) or "")


def test_a_dry_run_of_fewer_steps_than_it_has_tries_those_that_there_are(tmp_path, capsys) -> None:
    world = world_of(tmp_path, steps=2, per_class=2)
    trainer = Trainer(world, dry_run=True)
    trainer.run()
    trainer.close()
    assert "2 steps on rows that are nobody's" in capsys.readouterr().err
    assert not states_of(world).exists() and not world.ledger.exists()


@pytest.mark.parametrize("order", ["shuffled", "poisson"])
def test_no_other_order_goes_with_it(tmp_path, order) -> None:
    said = f'disclosure = "occurrences_public"\nsampling = {{ order = "{order}" }}\nnoise = {{ {FAMILIES["bands"]} }}\n'
    world = make_world(tmp_path, steps=STEPS, rate='"1/3"', per_class=1, policy_extra=said)
    with pytest.raises(UnsupportedPolicy, match=r"goes with sampling\.order 'cyclic'"):
        Trainer(world)


def _pairs(text: str) -> list[str]:
    family, _, parameters = text.partition(", parameters")
    return [family, "parameters" + parameters]


def test_a_header_says_what_policy_and_strategy_give(tmp_path) -> None:
    trainer = Trainer(world_of(tmp_path)).begin()
    header = trainer.private.opened.recorder.ledger.header
    trainer.close()
    told = header.turns
    assert [one.period for one in told] == [3, 3, 3] and told[0].most > 3.0 and told[0].again > 1.0
    for changed in (
        (),
        told[:2],
        (replace(told[0], most=told[0].most * (1 - 2**-52)), *told[1:]),
        (replace(told[0], again=told[0].again * (1 + 2**-52)), *told[1:]),
        (replace(told[0], period=4), *told[1:]),
    ):
        with pytest.raises(LeafRefused) as refused:
            replace(header, turns=changed)
        assert refused.value.code == "TURNS"


def test_plans_say_what_turns_and_steps_done_again_can_come_to(tmp_path) -> None:
    """`of_plan`, `dptrain plan`, what suffices for a limit, and what `attest show` tells, each from the matrix."""
    trainer = Trainer(world_of(tmp_path, "buffers", "redo_steps = 2\n", per_class=1))
    policy, z = trainer.private.policy, 1.5
    matrix = strategy_of(policy.mechanism, STEPS).matrix(STEPS)
    matrix = np.abs(matrix) / np.sqrt((matrix**2).sum(axis=0).max())
    sums = [matrix[:, first::3].sum(axis=1) for first in range(3)]
    most, again = max(float(row @ row) for row in sums), max(float((row**2).max()) for row in sums)
    assert most > 3.2 and again > 1.0  # more than three turns by themselves
    planned = of_plan(policy, 0, (z,))
    assert (planned.family, planned.loss) == ("gaussian", pytest.approx((most + 2 * again) / z**2, rel=1e-9))
    phases = [Phase(z, 1 / 3, STEPS)]
    for options, loss in (({}, most), ({"redo": 2}, most + 2 * again), ({"replace": True}, 4 * most)):
        assert spent(policy, phases, **options) == pytest.approx(epsilon_of_mu(math.sqrt(loss) / z, 1e-5), rel=1e-9)
    first_two = max(float((matrix[:, [o, o + 3]].sum(axis=1) ** 2).sum()) for o in range(3))
    assert spent(policy, phases, cap=2) == pytest.approx(epsilon_of_mu(math.sqrt(first_two) / z, 1e-5), rel=1e-9)
    own = own_bounds(policy, policy.classes[0].name, policy.classes[0].bounds, (500_000, 10**7))
    assert own is not None
    multiplier = own_noise(own).multiplier
    assert epsilon_of_mu(math.sqrt(most + 2 * again) / multiplier, 1e-5) == pytest.approx(0.5, rel=1e-4)
    signed = trainer.private.opened.gate.admitted[0].admission.descriptor
    told = words.epsilon(signed, policy, signed_policy=True)
    whole, redone = (epsilon_of_mu(math.sqrt(x) / signed.bounds.noise_multiplier, 1e-5) for x in (most, most + 2 * again))
    assert f"epsilon is at most {at_most(whole)} against" in told
    assert f"If every step that may be repeated after crashes is, it is at most {at_most(redone)};" in told
    trainer.close()


def test_presets_bound_everybody_and_public_classes_pay_nothing(tmp_path) -> None:
    world = world_of(tmp_path, "buffers", classes=BESIDE_PUBLIC, per_class=3)
    interrupted(world, saved=4, stopped=6)
    trainer = Trainer(world, resume=True)
    trainer.run()
    run = trainer.private.opened.recorder.ledger.state
    losses = {place: [one.loss for one in run.register.by_number if one.class_index == place] for place in (0, 1)}
    assert max(losses[0]) > 0.0 and set(losses[1]) == {0.0}
    z = run.expenditure.multipliers(0, trainer.private.policy.classes[0].bounds)[0]
    own = [one.loss * run.expenditure.of_contribution(one)[0] ** 2 for one in run.register.by_number if one.class_index == 0]
    assert preset_epsilon(run, 0) == pytest.approx(epsilon_of_mu(math.sqrt(max(own)) / z, 1e-5), rel=1e-9)
    assert preset_epsilon(run, 1) is None
    audited(trainer, world, tmp_path / "export")
    trainer.close()


def test_a_strategy_without_memory_is_independent_noise_to_the_bit(tmp_path) -> None:
    """Has the gradients of independent noise under the same keys, with a second coefficient of nothing."""
    key = bytes(range(32))
    found = []
    for family in (f'noise = {{ family = "banded_toeplitz", parameters = {{ bands = 2, coefficients = [{ONE}, 0] }} }}\n', ""):
        world = make_world(
            tmp_path / str(len(found)), steps=4, rate='"1/3"', per_class=2, policy_extra=TURNS + family
        )
        trainer = Trainer(world, noise=NoiseSource(insecure_test_key=key))
        trainer.run()
        found.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
        trainer.close()
    assert all(map(torch.equal, *found))


def test_a_strategy_that_no_noise_is_made_of_is_refused_before_there_is_a_ledger(tmp_path) -> None:
    steep = np.where(np.eye(STEPS), 2.0**-4, np.tril(np.ones((STEPS, STEPS))))
    for place, (matrix, code) in enumerate(((steep, "STRATEGY"), (np.tril(np.ones((STEPS, STEPS))), "COEFFICIENTS"))):
        rule = rule_of(Dense(matrix, share=1.0))
        said = TURNS + f"noise = {{ {', '.join(noise_lines(rule))} }}\n"
        beside = rule.coefficients if code == "STRATEGY" else None
        world = make_world(
            tmp_path / str(place), steps=STEPS, rate='"1/3"', per_class=1, policy_extra=said, coefficients=beside
        )
        with pytest.raises(UnsupportedPolicy) as refused:
            Trainer(world)
        assert refused.value.code == code and not world.ledger.exists()
