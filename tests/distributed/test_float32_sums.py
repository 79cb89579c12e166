"""Sums over microbatches as float32, where parameters lie over ranks: what that may change, and what pays for it."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.noise.mechanism import Independent, Step  # noqa: E402
from dptrain.parallel import together  # noqa: E402
from dptrain.parallel.placement import Shards  # noqa: E402
from ledger.leaves.numerics import FLOAT32, FLOAT64, SUMS32, additions_of, sums_margin  # noqa: E402
from tests.distributed.jobs import Drawn, Job, loud, net, opened, whole  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import giant, per_example, small_world  # noqa: E402
from tests.worlds.trainer import wrapped  # noqa: E402

MANY = 60
SIZE = 4


@dataclass
class Found:
    """Tells of the first step of a process: sums as noise is added to them, their types, and what was reckoned with."""

    sums: list[Drawn] = field(default_factory=list)
    kinds: set[torch.dtype] = field(default_factory=set)
    word: str = ""
    wire: float = 0.0
    margin: float = 0.0
    drawn: int = 0
    microbatches: int = 0


def sharded() -> nn.Module:
    return wrapped(net(), sharded=True)


def first_step(rank: int, root: Path, seed: int | None, few: bool, most: int | None) -> Found:
    """Takes a step.

    Args:
        seed: of a contribution whose gradient alone is there, a huge one. few: fewer microbatches are reckoned with than come.
        most: so many contributions are drawn at most.
    """
    found, release, take = Found(), Independent.release, Shards.take_one
    losses = loud if seed is None else giant(seed)

    def taken(self: Shards, index: int) -> torch.Tensor:
        total = take(self, index)
        found.kinds.add(total.dtype)
        return total

    def kept(self: Independent, clipped_sum: torch.Tensor, state: None, step: Step) -> torch.Tensor:
        assert clipped_sum.dtype is torch.float64, "as noise of any family is added to it"
        found.sums.append(Drawn(step.number, step.lane, step.offset, clipped_sum.flatten() / step.std))
        return release(self, clipped_sum, state, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Independent, "release", kept)
        if most is not None:
            patch.setattr(together, "most_drawn", lambda policy, classes: most)
        options = {"model": sharded, "wrap": lambda model: model, "microbatch": SIZE}
        run = opened(Job(root, f"{seed}-{few}-{most}", options=options))
        held = run.private.prepared.together
        found.drawn, found.microbatches = held._most_drawn, held._most_microbatches
        if few:
            held._most_microbatches = 1
        for step in run.steps:
            for rows in step:
                if not run.private.prepared.probe.active:
                    patch.setattr(Shards, "take_one", taken)
                shown = per_example if run.private.prepared.probe.active else losses
                run.private.backward(shown(run.net, rows), rows)
            run.optimizer.step()
            break
    sums = run.private.prepared.router.sums
    found.word, found.wire, found.margin = run.private.opened.recorder.ledger.header.numerics.wire, sums.wire, sums.float_margin
    run.private.close()
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    small_world(root, per_class=MANY, steps=1)
    return root


def steps(world: Path, ranks: int, seed: int | None = None, few: bool = False, most: int | None = None) -> list[Found]:
    found: list[Found] = launched(first_step, ranks, world, seed, few, most)
    return found


def test_clip_bounds_pay_for_every_addition_in_float32(world: Path) -> None:
    """The sum of one giant contribution is as long as its clip bound."""
    found = steps(world, 2, seed=4)
    for one in found:
        assert one.word == SUMS32 and one.kinds == {torch.float32}
        assert one.microbatches == additions_of(one.drawn, 2 * SIZE) == math.ceil(1.25 * one.drawn / (SIZE * 2)) + 2
        assert one.wire == sums_margin(one.drawn, 1.0, one.microbatches) > sums_margin(one.drawn, 1.0)
    length = float(whole(found, 1).norm())
    assert length == pytest.approx(1.0 - found[0].margin - found[0].wire, abs=1e-6) and found[0].wire > 1e-4


def test_sums_are_those_of_one_process_within_what_is_paid_for(world: Path) -> None:
    (alone,), both = steps(world, 1), steps(world, 2)
    assert alone.word == FLOAT64 and alone.wire == 0.0
    apart = float((whole([alone], 1) - whole(both, 1)).norm())
    assert 0.0 < apart <= MANY * (both[0].wire + 2.0**-20)


def test_a_step_of_more_microbatches_than_were_reckoned_with_keeps_float64(world: Path) -> None:
    for one in steps(world, 2, few=True):
        assert one.word == SUMS32 and one.kinds == {torch.float64}


@pytest.mark.one_in(9)
@pytest.mark.parametrize(("most", "word"), [(300, SUMS32), (10_000, FLOAT32), (30_000, FLOAT64)])
def test_a_run_of_large_draws_sends_and_keeps_what_the_margin_allows(world: Path, most: int, word: str) -> None:
    kept = torch.float32 if word == SUMS32 else torch.float64
    for one in steps(world, 2, most=most):
        assert one.word == word and one.kinds == {kept}
        assert (one.wire == 0.0) == (word == FLOAT64) and one.wire <= one.margin


