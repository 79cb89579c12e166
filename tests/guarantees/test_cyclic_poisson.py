"""Secret draws from groups in turn: who is drawn when, and what it costs, with noise that is correlated and without."""

import math
import random
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attest.policy import MechanismRule, Policy  # noqa: E402
from attest.policy.mechanism import Bands  # noqa: E402
from dptrain.clipping.own_noise import own_bounds, own_noise  # noqa: E402
from dptrain.data.sampling import PoissonSampler, expected_draw  # noqa: E402
from dptrain.errors import UnsupportedPolicy  # noqa: E402
from dptrain.noise import KeyStream  # noqa: E402
from ledger import accountants  # noqa: E402
from ledger.accountants import Phase, to_micro_up  # noqa: E402
from ledger.accountants.correlated import Toeplitz  # noqa: E402
from ledger.errors import HorizonExceeded  # noqa: E402
from ledger.log import Ledger  # noqa: E402
from ledger.replay.budgets import of_plan  # noqa: E402
from ledger.replay.influence import class_costs  # noqa: E402
from ledger.replay.state import Copies  # noqa: E402
from tests.vectors.conformance import groups as in_secret  # noqa: E402
from tests.worlds.attested_ledgers import AttestedDriver, attested_header, attested_policy  # noqa: E402
from tests.worlds.ledgers import SIGNER, START  # noqa: E402
from tests.worlds.trainer import Trainer, audited, interrupted  # noqa: E402
from tests.worlds.training import make_world  # noqa: E402

ONE = 1 << 20
GROUPS = 3
DRAWS = 'disclosure = "secret_draws"\nsampling = {{ order = "cyclic_poisson", parameters = {{ groups = {} }} }}\n'
BANDS = f'noise = {{ family = "banded_toeplitz", parameters = {{ bands = 3, coefficients = [{ONE}, 524288, 393216] }} }}\n'
BUFFERS = f'noise = {{ family = "buffered_toeplitz", parameters = {{ decays = [{1 << 39}], scales = [{1 << 38}] }} }}\n'
TWO_LEVELS = "noise = { phase = [{ from_step = 1, scale = 2 }, { from_step = 4, scale = 1 }] }\n"
STEPS = 8


def world_of(path, noise=BANDS, groups=GROUPS, extra="", **changes):
    said = extra + DRAWS.format(groups) + noise
    return make_world(path, **{"steps": STEPS, "rate": "0.5", "per_class": 5, "policy_extra": said} | changes)


def epsilons_of(trainer) -> dict[str, set[float]]:
    """Epsilons of the contributions of every class."""
    ledger, found = trainer.private.opened.recorder.ledger, {}
    for slot in trainer.private.prepared.pool.slots:
        found.setdefault(slot.resolution.class_name, set()).add(ledger.epsilon(slot.descriptor_hash))
    return found


def expected(trainer, *counts: tuple[int, int]) -> dict[str, float]:
    """Epsilons of so many draws, each with a number of copies of its rows beside the first."""
    found = {}
    for slot in trainer.private.prepared.pool.slots:
        z = slot.resolution.multiplier
        phases = [Phase(z / math.sqrt(1 + more), 0.5, count) for count, more in counts]
        found[slot.resolution.class_name] = accountants.epsilon_of_phases(phases, 1e-5)
    return found


# ------------------------------------------------------------------------------------------------------------- who is drawn


def test_a_step_draws_from_its_group_alone_each_by_itself_at_the_rate() -> None:
    count, steps, rate = 900, 60, Fraction(1, 4)
    turns = np.arange(count, dtype=np.uint32) % GROUPS
    stream = KeyStream("sampling", bytes(16), 0, bytes(range(32)))
    sampler = PoissonSampler(stream, [rate], [0], np.zeros(count, dtype=np.int64), (GROUPS, turns))
    drawn = [sampler.draw(step) for step in range(1, steps + 1)]
    for step, slots in enumerate(drawn, start=1):
        assert set(turns[slots]) <= {(step - 1) % GROUPS}
    total = sum(map(len, drawn))
    mean, deviation = count * steps / GROUPS * 0.25, math.sqrt(count * steps / GROUPS * 0.25 * 0.75)
    assert abs(total - mean) < 5 * deviation
    often = Counter(slot for slots in drawn for slot in slots.tolist())
    assert abs(np.var([often[slot] for slot in range(count)]) - 20 * 0.25 * 0.75) < 1.0  # binomial, slot by slot
    plain = PoissonSampler(stream, [rate], [0], np.zeros(count, dtype=np.int64))
    assert all(set(slots.tolist()) <= set(plain.draw(step).tolist()) for step, slots in enumerate(drawn, start=1))


def test_the_groups_of_a_run_are_those_of_the_order_of_admission(tmp_path) -> None:
    trainer = Trainer(world_of(tmp_path)).begin()
    sampler = trainer.private.prepared.attempt.streams.sampler
    entries = trainer.private.opened.recorder.ledger.state.register.by_number
    groups, group_of = sampler._turns
    assert groups == GROUPS and [entry.slot % GROUPS for entry in entries] == group_of.tolist()
    assert sorted(group_of.tolist()) == sorted([0, 1, 2, 0, 1] * 3)
    policy = trainer.private.policy
    assert expected_draw(policy, [policy.classes[0].name] * 6) == pytest.approx(1.0)
    trainer.close()


# --------------------------------------------------------------------------------------------------------- what it costs


@pytest.mark.one_in(99)
@pytest.mark.parametrize("noise", ["", BANDS], ids=["independent", "correlated"])
def test_a_contribution_pays_for_the_draws_of_its_group(tmp_path, noise) -> None:
    """Eight steps in turns of three: a group has three of them at most."""
    world = world_of(tmp_path, noise)
    trainer = Trainer(world)
    trainer.run()
    found = epsilons_of(trainer)
    for name, epsilon in expected(trainer, (3, 0)).items():
        assert found[name] == {epsilon}
    ungrouped = expected(trainer, (STEPS, 0))
    assert all(epsilon < ungrouped[name] for name, (epsilon,) in found.items())
    report = audited(trainer, world, tmp_path / "export")
    for row, told in zip(trainer.private.prepared.summary(), report.classes, strict=True):
        assert row["epsilon"] == row["epsilon_planned"] == told.epsilon and told.steps == 3
        assert row["epsilon_replace"] == told.epsilon_replace > told.epsilon
    trainer.close()


def test_a_run_that_stops_early_pays_for_the_steps_of_the_group_that_had_most(tmp_path) -> None:
    trainer = Trainer(world_of(tmp_path, window_steps=1))
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 4:
            break
    trainer.private.prepared.settle(4)
    assert epsilons_of(trainer) == {name: {epsilon} for name, epsilon in expected(trainer, (2, 0)).items()}
    trainer.close()


@pytest.mark.one_in(99)
@pytest.mark.parametrize("noise", ["", BANDS], ids=["independent", "correlated"])
def test_steps_done_again_are_draws_more_and_copies_of_those_whose_noise_was_still_there(tmp_path, noise) -> None:
    """Saved after step 4, ended after step 6: these two are drawn again, and their rows show the draws of 3 and 4 twice."""
    world = world_of(tmp_path, noise, window_steps=1)
    interrupted(world, saved=4, stopped=6)
    second = Trainer(world, resume=True)
    assert second.private.prepared.start_step == 4
    second.run()
    # Turns of the groups: 1 4 7, 2 5 8 and 3 6; steps 5 and 6 were charged twice, so the second has four draws.
    counts = [(4, 0)] if not noise else [(3, 0), (1, 1)]
    found = epsilons_of(second)
    assert found == {name: {epsilon} for name, epsilon in expected(second, *counts).items()}
    report = audited(second, world, tmp_path / "export")
    assert [row["epsilon"] for row in second.private.prepared.summary()] == [told.epsilon for told in report.classes]
    places = [rule.name for rule in second.private.policy.classes]
    for slot in second.private.prepared.pool.slots:
        name, z = slot.resolution.class_name, slot.resolution.multiplier
        assert max(found[name]) <= of_plan(second.private.policy, places.index(name), (z,)).epsilon(1e-5)
    second.close()


@pytest.mark.parametrize(("bands", "groups"), [(2, 2), (2, 3), (3, 3), (3, 5)])
def test_no_draw_shows_in_more_copies_than_are_counted(bands, groups) -> None:
    """Trees of attempts by brute force: of every draw the norm of its column over all rows that were released behind it."""
    for seed in range(30):
        _tree(random.Random(seed), bands, groups)


def _tree(chance: random.Random, bands: int, groups: int) -> None:
    steps = 14
    column = np.array([1.0, 0.7, 0.4][:bands])
    column /= np.linalg.norm(column)
    whole = tuple(round(value / column[0] * ONE) for value in column)
    noise = MechanismRule("banded_toeplitz", Bands(bands=bands, coefficients=whole))
    policy = SimpleNamespace(sampling=SimpleNamespace(groups=groups), mechanism=noise, steps=steps, redo_steps=99)
    copies = Copies(SimpleNamespace(policy=policy))
    assert copies.memory == bands - 1
    # A timeline is a list of ids of executed draws, one per step; forks share the beginning.
    timelines, now, squared, step_of = [[]], [], Counter(), {}
    charged, free = Counter(), 0
    for _ in range(6):
        for _ in range(chance.randint(0, 5)):
            if len(now) == steps:
                break
            step, free = len(now) + 1, free + 1
            now = [*now, free]
            step_of[free] = step
            charged[step] += 1
            copies.charge(step, step)
            for back in range(min(bands, step)):
                squared[now[step - 1 - back]] += column[back] ** 2
            timelines.append(now)
        old = chance.choice(timelines)
        now = old[: chance.randint(0, len(old))]
        copies.resume(len(now))
    levels = copies.levels()
    for group in range(groups):
        of_group = [squared[draw] for draw, step in step_of.items() if (step - 1) % groups == group]
        for level in range(8):
            more = sum(value > 1 + level + 1e-9 for value in of_group)
            assert more <= (levels[level][0] if level < len(levels) else 0), (group, level)
    assert [level for _, level in levels] == list(range(1, len(levels) + 1))
    assert not levels or sum(charged.values()) - len(charged) > 0  # a copy more takes a step done again


def test_no_run_can_come_to_more_than_was_planned_for_it(tmp_path) -> None:
    """Steps of one group, repeated by a run that never ends, are counted against redo_steps."""
    world = world_of(tmp_path, "", extra="redo_steps = 1\n", window_steps=1)
    for attempt in range(3):
        trainer = Trainer(world, resume=attempt > 0)
        trainer.begin()
        prepared = trainer.private.prepared
        if attempt == 2:
            with pytest.raises(HorizonExceeded, match="redo_steps of the policy allows 1"):
                prepared.charge(1)
        else:
            prepared.charge(1)
        prepared.saved = STEPS
        trainer.close()


def test_the_plan_counts_what_redone_steps_may_copy(tmp_path) -> None:
    """With R steps done again at most 2 R draws show in R copies more; a run that is not over says so beforehand."""
    world = world_of(tmp_path, extra="redo_steps = 2\n", window_steps=1)
    trainer = Trainer(world)
    for step in trainer.steps:
        trainer.one(step)
        if step.number == 2:
            break
    trainer.private.prepared.settle(2)
    run = trainer.private.opened.recorder.ledger.state
    costs = class_costs(run)
    for place, rule in enumerate(trainer.private.policy.classes):
        z = max(run.expenditure.of_contribution(one)[0] for one in run.register.by_number if one.class_index == place)
        phases = [Phase(z, 0.5, 1), Phase(z / math.sqrt(3), 0.5, 4)]
        assert set(of_plan(trainer.private.policy, place, (z,)).phases) == set(phases)
        assert costs[place][0] == accountants.epsilon_of_phases(phases, 1e-5), rule.name
    trainer.close()


def test_who_left_has_a_row_again_where_its_draws_have_copies_more(tmp_path) -> None:
    from time import time

    world = world_of(tmp_path, window_steps=1)
    first = Trainer(world)
    gone = first.private.prepared.pool.slots[0]
    for step in first.steps:
        first.one(step)
        if step.number == 3:
            first.private.save()
        if step.number == 4:
            ledger = first.private.opened.recorder.ledger
            ledger.withdraw(gone.descriptor_hash, "contributor", bytes(32), now=int(time()))
        if step.number == 6:
            break
    first.private.prepared.saved = STEPS
    before = first.private.opened.recorder.ledger.epsilon(gone.descriptor_hash)
    first.close()
    second = Trainer(world, resume=True)
    second.run()
    assert second.private.opened.recorder.ledger.epsilon(gone.descriptor_hash) > before
    audited(second, world, tmp_path / "export")
    entry = second.private.opened.recorder.ledger.state.contributions[gone.descriptor_hash]
    assert entry.group.epsilon_micro >= second.private.opened.recorder.ledger.epsilon(gone.descriptor_hash) * 1e6
    second.close()


@pytest.mark.parametrize(
    "life", [in_secret.one_step_again, in_secret.begun_again, in_secret.gone_before, in_secret.forked_twice]
)
def test_the_last_row_of_everybody_says_what_its_draws_come_to_with_their_copies(tmp_path, life) -> None:
    """Also where a step is done again by which nobody has more steps, and where one whose draws have copies is."""
    spec = attested_header(attested_policy(**in_secret.under(in_secret.THREE)))
    with Ledger.create(tmp_path / "ledger.db", spec, SIGNER, now=START) as ledger:
        life(AttestedDriver(ledger, now=START))
        assert ledger.state.expenditure.copies.levels()
        for one in ledger.state.contributions.values():
            assert one.group.epsilon_micro == to_micro_up(ledger.state.epsilon(one))


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("groups", "noise", "told"),
    [
        (2, BANDS, "it has 3, and there are 2"),
        (3, BUFFERS, "it has all"),
        (4097, "", "take 4096 at most"),
        (2049, TWO_LEVELS, "2049 groups in 2 phases of the noise, .* take 2048 at most"),
        (3, BANDS.replace("noise =", "redo_steps = 5000\nnoise ="), "redo_steps of 4096 at most"),
        (3, 'exactness = "certified"\nnoise = { family = "laplace" }\n', "disclosure 'secret_poisson'"),
    ],
)  # fmt: skip
def test_what_is_not_proved_is_refused_by_name(tmp_path, groups, noise, told) -> None:
    world = world_of(tmp_path, noise, groups, per_class=1)
    with pytest.raises(UnsupportedPolicy, match=told):
        Trainer(world)


def test_groups_go_with_secret_draws_alone(tmp_path) -> None:
    said = DRAWS.format(3).replace("secret_draws", "occurrences_public")
    world = make_world(tmp_path, steps=STEPS, rate="0.5", per_class=1, policy_extra=said)
    with pytest.raises(UnsupportedPolicy, match="goes with disclosure 'secret_draws'"):
        Trainer(world)


def test_the_plan_is_what_the_run_comes_to(tmp_path) -> None:
    from dptrain.planning.plan import spent_by

    world = world_of(tmp_path, per_class=1)
    trainer = Trainer(world)
    policy: Policy = trainer.private.policy
    planned = {name: one.planned for name, one in trainer.private.epsilon().items()}
    assert planned == expected(trainer, (3, 0))
    own = own_bounds(policy, policy.classes[0].name, policy.classes[0].bounds, (2_000_000, 10**7))
    assert own is not None and own.expected == 1.5
    assert of_plan(policy, 0, (own_noise(own).multiplier,)).epsilon(1e-5) == pytest.approx(2.0, rel=1e-4)
    most = {name: one.if_all_redone for name, one in trainer.private.epsilon().items()}
    for place, row in enumerate(trainer.private.prepared.summary()):
        at_worst = of_plan(policy, place, (row["effective_multiplier"],)).epsilon(1e-5)
        assert most[row["class"]] == at_worst > planned[row["class"]]
    assert spent_by(policy, 1.0, 0.5, policy.sampling.most_steps(policy.steps)) == accountants.epsilon(1.0, 0.5, 3, 1e-5)
    assert Toeplitz((1.0, 0.5, 0.375)).bands == policy.sampling.groups
    trainer.close()
