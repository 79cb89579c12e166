"""How a draw falls to ranks: every contribution to one of them, whole, and as many microbatches to each."""

from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from attest.policy import open_policy  # noqa: E402
from dptrain.data.packing import Drawn, Planned, in_step  # noqa: E402
from dptrain.engine.draw import microbatches_of  # noqa: E402
from dptrain.engine.options import Microbatches  # noqa: E402
from tests.distributed.jobs import Job, Told, done, whole  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import small_world  # noqa: E402
from tests.worlds.training import token_record  # noqa: E402

LEVELS = ("fast", "certified")


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], object]:
    """Policies by exactness, and by noise per step (0) or in three draws per step."""
    found = {}
    for level in LEVELS:
        for draws in (0, 3):
            extra = f'exactness = "{level}"\n'
            extra += f'[noise]\ninjection = "per_microbatch"\nmicrobatches = {draws}\n' if draws else ""
            world = small_world(tmp_path_factory.mktemp("policy"), per_class=1, policy_extra=extra)
            found[level, draws] = open_policy(world.policy, world.owner_key.public_key().public_bytes_raw()).policy
    return found


draws_of = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7), st.sampled_from([8, 16]), st.booleans()), max_size=24)


@settings(max_examples=60, deadline=None)
@given(drawn=draws_of, ranks=st.integers(1, 5), size=st.integers(1, 5), rows=st.sampled_from([None, 2, 4]), data=st.data())
def test_every_contribution_falls_to_one_rank_whole_and_every_rank_runs_as_many_microbatches(
    policies, drawn, ranks: int, size: int, rows: int | None, data
) -> None:
    policy = policies[data.draw(st.sampled_from(sorted(policies)))]
    one_class = [Drawn(slot, depth, examples, length) for slot, (depth, examples, length, _) in enumerate(drawn)]
    public = [entry[3] for entry in drawn]
    how = Microbatches(size, rows)
    plans = [microbatches_of(one_class, public, policy, how, rank, ranks) for rank in range(ranks)]
    runs = [in_step(plans, rank) for rank in range(ranks)]
    assert len({len(run) for run in runs}) == 1 and len(runs[0]) == max(map(len, plans))
    for rank, run in enumerate(runs):
        assert [one for one in run if not one.idle] == plans[rank]
        for place, one in enumerate(run):
            assert not one.idle or any(len(other) > place and replace(one, idle=False) == other[place] for other in plans)
    counted = Counter[int]()
    for run in plans:
        counted.update(slot for one in run if one.last for slot in one.slots)
        spread: list[Planned] = []
        for one in run:
            spread = [*spread, one] if one.part is not None else []
            if one.part is not None and one.last:
                assert {part.slots for part in spread} == {one.slots}, "parts of two contributions between each other"
                examples = [place for part in spread for place in range(*part.part)]
                assert examples == list(range(one_class[one.slots[0]].examples))
                spread = []
        assert not spread, "a contribution that ends at another rank"
    assert counted == Counter(range(len(drawn))), "a contribution on two ranks, or on none"


@settings(max_examples=40, deadline=None)
@given(drawn=draws_of, ranks=st.integers(2, 4), size=st.integers(1, 5))
def test_at_certified_the_microbatches_of_all_ranks_are_those_of_one_process(policies, drawn, ranks: int, size: int) -> None:
    every = [Drawn(slot, depth, examples, length) for slot, (depth, examples, length, _) in enumerate(drawn)]
    public = [entry[3] for entry in drawn]
    for draws in (0, 3):
        given_ = every, public, policies["certified", draws], Microbatches(size, 4)
        alone = microbatches_of(*given_)
        dealt = [one for rank in range(ranks) for one in microbatches_of(*given_, rank, ranks)]
        assert sorted(map(repr, dealt)) == sorted(map(repr, alone))


# --------------------------------------------------------------------------------------------------- in a run

EXAMPLES = 5
PEOPLE = 5
MANY = 5
"""Steps in which hardly anybody is drawn."""


def several(seed: int) -> list[dict]:
    """Five examples of one contribution, which are all told by its seed."""
    return [{**token_record(seed + 100 * place), "seed": seed} for place in range(EXAMPLES)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[Told]]]:
    """By number of processes and rank: one giant among contributions that are spread over microbatches of two rows, at both
    levels, and a run of which most steps draw nobody."""
    jobs = []
    for level in LEVELS:
        root = tmp_path_factory.mktemp(level)
        extra = f'exactness = "{level}"\n[gate]\nmax_examples = {EXAMPLES}\n'
        small_world(root, per_class=PEOPLE, steps=1, record=several, policy_extra=extra)
        jobs.append(Job(root, losses=2, options={"microbatch_rows": 2}))
    seldom = tmp_path_factory.mktemp("seldom")
    small_world(seldom, per_class=2, steps=MANY, rate="0.1")
    jobs.append(Job(seldom))
    return {ranks: launched(done, ranks, *jobs) for ranks in (1, 2)}


@pytest.mark.parametrize("job", [0, 1])
def test_a_contribution_that_is_spread_over_microbatches_is_clipped_once_on_one_rank(found, job: int) -> None:
    """Clipped part by part, or part of it on another rank, it would be up to three times as long."""
    told = [ranks[job] for ranks in found[2]]
    length = float(whole(told, 1).norm())
    assert length <= 1.0 and length == pytest.approx(1.0 - told[0].margin, abs=1e-4)
    alone = whole(found[1][0][job : job + 1], 1)
    assert torch.equal(whole(told, 1), alone) if job else float((whole(told, 1) - alone).norm()) < 1e-5
    assert {each.microbatches[0] for each in told} == {9}, "three contributions of three parts, the other rank has two"


def test_a_step_that_draws_nobody_is_a_step_of_every_rank(found) -> None:
    """Charged, noised and taken like any other; so is one that draws somebody of one rank alone."""
    (alone,), told = [ranks[2] for ranks in found[1]], [ranks[2] for ranks in found[2]]
    empty = [step for step in range(MANY) if not any(each.seeds[step] for each in told)]
    assert empty and len(empty) < MANY, "the key must draw nobody in some steps and somebody in others"
    for each in told:
        assert each.charged == len(each.grads) == MANY
        for step in empty:
            assert each.microbatches[step] == 0
            noise = each.flat(step)
            assert torch.equal(noise, alone.flat(step)) and 0.9 < float(noise.std()) < 1.1
    lone = [step for step in range(MANY) if sum(bool(each.seeds[step]) for each in told) == 1]
    assert lone, "the key must draw one alone in some step"
    for step in lone:
        assert {each.microbatches[step] for each in told} == {1}
