"""Exactness `fast` on several processes: what float32 on the wire may change, and that nothing else does."""

from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tests.distributed.jobs import Job, Told, digest, done, loud, net, whole  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import collate, small_world  # noqa: E402
from tests.worlds.training import token_record  # noqa: E402

STEPS = 10
SMALL, LARGE = 9, 60
UNIT = 2.0**-24

FEW = {"microbatch": 1}
"""One contribution a microbatch: products are the same on any number of processes, and the wire alone is left."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[Told]]]:
    """By number of processes and rank: a whole run in microbatches of four, two steps one by one, and a giant among 60."""
    small, large = tmp_path_factory.mktemp("small"), tmp_path_factory.mktemp("large")
    small_world(small, per_class=SMALL, steps=STEPS)
    small_world(large, per_class=LARGE, steps=1)
    jobs = (
        Job(small),
        Job(small, "one-by-one", steps=2, options=FEW),
        Job(large, losses=4, options={"microbatch": 16}),
    )
    return {ranks: launched(done, ranks, *jobs) for ranks in (1, 2)}


def of(found: dict[int, list[list[Told]]], ranks: int, job: int) -> list[Told]:
    return [told[job] for told in found[ranks]]


def apart(found: dict[int, list[list[Told]]], job: int) -> float:
    """Distance of the sums of the first step on one process and on two, in deviations of the noise."""
    return float((whole(of(found, 1, job), 1) - whole(of(found, 2, job), 1)).norm())


def test_one_by_one_two_processes_differ_by_the_rounding_to_float32_and_the_shrink_that_pays_for_it(found) -> None:
    """Every contribution is at most 1 long here, in deviations of the noise: z = C = 1."""
    wire = of(found, 2, 1)[0].wire
    assert 0.0 < apart(found, 1) <= SMALL * wire + SMALL * UNIT


def test_in_microbatches_the_rounding_of_products_is_all_that_comes_on_top(found) -> None:
    wire = of(found, 2, 0)[0].wire
    assert 0.0 < apart(found, 0) <= SMALL * (wire + UNIT + 16 * UNIT)


def test_clip_bounds_shrink_by_what_the_wire_can_add(found) -> None:
    """One giant contribution of 60: its sum is as long as its clip bound, which is shorter by n + 1 roundings."""
    (alone,), several = of(found, 1, 2), of(found, 2, 2)
    least_n = LARGE + 1
    assert alone.wire == 0.0 and several[0].wire >= 2 * UNIT * least_n
    lengths = [float(whole(told, 1).norm()) for told in ([alone], several)]
    shrink = several[0].wire
    assert lengths[0] == pytest.approx(1.0 - alone.margin, abs=1e-6)
    assert lengths[1] == pytest.approx(1.0 - several[0].margin - shrink, abs=1e-6)
    assert shrink > 10e-6, "the shrink is too small to be seen beside rounding"


def test_ranks_have_the_same_bits_at_every_step(found) -> None:
    first, other = of(found, 2, 0)
    for step, (mine, its) in enumerate(zip(first.grads, other.grads, strict=True), start=1):
        assert digest(mine) == digest(its), f"released at step {step}"
    assert digest(first.weights) == digest(other.weights) and digest(first.states) == digest(other.states)
    assert first.head == other.head and first.charged == other.charged == STEPS and first.epsilon == other.epsilon > 0


def test_after_ten_steps_parameters_are_those_of_one_process_up_to_rounding(found) -> None:
    (alone,), (first, _) = of(found, 1, 0), of(found, 2, 0)
    assert alone.epsilon == first.epsilon
    for name, value in alone.weights.items():
        moved = (value - dict(net().named_parameters())[name].detach()).abs().max()
        assert float((value - first.weights[name]).abs().max()) <= 1e-3 * float(moved), name


def test_ranks_run_as_many_microbatches_and_every_contribution_counts_on_one_of_them(found) -> None:
    """Nine contributions on two processes: the second has one too few, and fills up with an idle microbatch."""
    for job, microbatches in ((0, 2), (1, 5)):
        several = of(found, 2, job)
        for step in range(len(several[0].seeds)):
            assert {told.microbatches[step] for told in several} == {microbatches}
            seeds = [seed for told in several for seed in told.seeds[step]]
            assert sorted(seeds) == list(range(SMALL))
            assert all(told.seeds[step] for told in several)


def naive_sum(margin: float, count: int) -> torch.Tensor:
    """Sum over contributions of clipped gradients, one at a time by autograd, float64 and flat."""
    model = net().double()
    total: Sequence[torch.Tensor] = [torch.zeros_like(p) for p in model.parameters()]
    for seed in range(count):
        loss = loud(model, collate([token_record(seed)])).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        length = float(nn.utils.get_total_norm(grads))
        assert length > 1.0, "nothing is clipped"
        total = [t + g * ((1.0 - margin) / length) for t, g in zip(total, grads, strict=True)]
    named = dict(zip((name for name, _ in model.named_parameters()), total, strict=True))
    return torch.cat([value.flatten() for _, value in sorted(named.items())])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("job", [0, 1])
def test_the_sum_over_ranks_is_that_of_a_naive_loop(found, ranks: int, job: int) -> None:
    several = of(found, ranks, job)
    sizes = {name: parameter.numel() for name, parameter in net().named_parameters()}
    expected = naive_sum(several[0].margin + several[0].wire + 2.0**-32 * sum(sizes.values()) ** 0.5, SMALL)
    parts = whole(several, 1).split([sizes[name] for name in several[0].names])
    got = torch.cat([part for _, part in sorted(zip(several[0].names, parts, strict=True))])
    assert float((got - expected).norm()) <= 1e-5 * float(expected.norm())
