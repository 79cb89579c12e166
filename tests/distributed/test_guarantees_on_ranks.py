"""What one process guarantees about payloads holds on two: isolation, hostile payloads, writes, and the crowd audit."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from dptrain.record import recorder  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.crowd.lockstep import Lockstep, Measured, masks_from_one_generator, world_of  # noqa: E402
from tests.guarantees.crowd.scenes import MAIN  # noqa: E402
from tests.guarantees.crowd.verdicts import lower_bound  # noqa: E402
from tests.guarantees.hostile.payloads import KINDS, null  # noqa: E402
from tests.guarantees.hostile.scene import POOL, Run, Scene, Trace, raising_loss  # noqa: E402
from tests.guarantees.test_crowd_audit import (  # noqa: E402
    FEW,
    LIMIT,
    RUNS,
    check_bound,
    check_caught,
    check_noise,
    check_reader_of_draws,
    check_separation,
)
from tests.guarantees.test_hostile_payloads import ROUNDING, raising  # noqa: E402
from tests.guarantees.test_hostile_writes import BEHIND, WINDOW, Writing  # noqa: E402
from tests.guarantees.test_hostile_writes import STEPS as LONG  # noqa: E402
from tests.guarantees.test_hostile_writes import swap as written_at  # noqa: E402
from tests.guarantees.test_isolation import assert_isolated, two_worlds  # noqa: E402
from tests.worlds.training import World  # noqa: E402

# ------------------------------------------------------------------------------------------------------- isolation


def isolated(rank: int, roots: Sequence[Path], family: str, steps: int) -> None:
    assert_isolated(World.at(roots[0]), World.at(roots[1]), family, steps)


@pytest.mark.parametrize(
    ("family", "steps"), [("bert", 2), *(pytest.param(name, 4, marks=pytest.mark.slow) for name in ("bert", "gpt2_tied"))]
)
def test_a_restricted_payload_changes_no_bit_outside_its_band_at_any_rank(tmp_path: Path, family: str, steps: int) -> None:
    """Before every step both runs have the same states; on whichever rank the payload lies, all ranks are compared."""
    roots = [world.root for world in two_worlds(tmp_path, steps)]
    launched(isolated, 2, roots, family, steps)


# ------------------------------------------------------------------------------------------------ hostile payloads


Swap = Callable[[int], dict[int, Any]]


def scattered(kind: Any) -> Swap:
    """In every step other contributions say it, on both ranks."""
    return lambda step: dict.fromkeys(range(step, POOL, 5), kind) if step else {}


def at_rank_1(rank: int, kind: Any) -> Swap:
    """Half of those say it whom rank 1 reads."""
    return lambda step: dict.fromkeys(range(0, POOL, 2), kind) if step and rank == 1 else {}


def hostile(rank: int, root: Path, scene: Scene, names: Sequence[str]) -> dict[str, Trace]:
    """Runs of a scene: with the null in the place of hostile payloads, and with every kind."""
    swaps = {"null": scattered(null)} | {name: scattered(KINDS[name]) for name in names}
    return {name: _traced(root, scene, name, swap) for name, swap in swaps.items()}


def _traced(root: Path, scene: Scene, name: str, swap: Swap) -> Trace:
    return Run(scene, World.at(root), swap).go(root / f"{name}.db")


def assert_same(scene: Scene, found: Trace, expected: Trace) -> None:
    """The releases of a run: to the bit at ``certified``."""
    assert found.distance(expected) <= (0.0 if scene.level == "certified" else ROUNDING)
    assert scene.level == "fast" or found.same_releases(expected)


SOME = ("NaN", "infinite loss", "label out of range", "1e38 that overflows")
WAYS = [("fast", SOME), *(pytest.param(level, tuple(KINDS), marks=pytest.mark.slow) for level in ("fast", "certified"))]


@pytest.mark.parametrize(("level", "names"), WAYS)
def test_no_hostile_payload_is_seen_at_any_rank_and_it_counts_as_zero(tmp_path: Path, level: str, names: Sequence[str]) -> None:
    scene = Scene(level, steps=2)
    scene.world(tmp_path)
    ranks = launched(hostile, 2, tmp_path, scene, names, limit=240.0)
    for found in ranks:
        expected = found["null"]
        for name in names:
            assert found[name].ended is None and found[name].drawn == expected.drawn
            for what, value in expected.seen.items():
                assert found[name].seen[what] == value, f"{what} follow the payload {name}"
            if KINDS[name].zero:
                assert_same(scene, found[name], expected)
    for name in ("null", *names):
        first, other = (found[name] for found in ranks)
        for mine, its in zip(first.released, other.released, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True)), "ranks apart"
        assert all(torch.equal(a, b) for a, b in zip(first.parameters, other.parameters, strict=True))


def raised(rank: int, root: Path, scene: Scene) -> tuple[Trace, Trace]:
    """A run in which contributions of rank 1 say nothing, and one in which they raise in the loss."""
    return tuple(_traced(root, scene, name, at_rank_1(rank, kind)) for name, kind in (("null", null), ("raise", raising)))


@pytest.mark.parametrize("level", ["fast", pytest.param("certified", marks=pytest.mark.slow)])
def test_a_loss_that_raises_at_one_rank_counts_as_zero_there_and_no_rank_waits(tmp_path: Path, level: str) -> None:
    scene = Scene(level, "loss", steps=2, loss=raising_loss)
    scene.world(tmp_path)
    ranks = launched(raised, 2, tmp_path, scene)
    for expected, found in ranks:
        assert found.ended is None and found.drawn == expected.drawn and found.leaves == expected.leaves
        assert_same(scene, found, expected)
    (quiet, first), (still, other) = ranks
    assert first.passes == quiet.passes, "rank 0 repeats no microbatch"
    assert len(other.passes) > len(still.passes), "rank 1 was to repeat its own"


# ---------------------------------------------------------------------------------------------------------- writes


def writing() -> Writing:
    return Writing(BEHIND["buffer, by numpy"])


def wrote(rank: int, root: Path) -> tuple[Trace, Trace]:
    """A run in which a forward of rank 1 writes what the model keeps, and one in which everybody says nothing from then on."""
    scene = Scene(steps=LONG, window=WINDOW, model=writing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "SHORT", 0)
        noise = _traced(root, scene, "noise", written_at(7.0, alone=True))
        swap = written_at(7.0)
        return noise, _traced(root, scene, "wrote", lambda step: swap(step) if rank == 1 else {})


def test_a_forward_that_writes_at_one_rank_leaves_noise_alone_at_all_and_ends_all(tmp_path: Path) -> None:
    """Behind torch's back, so that the write is found at the release: of step 2, whose window ends with step 3."""
    Scene(steps=LONG, window=WINDOW, model=writing).world(tmp_path)
    for noise, found in launched(wrote, 2, tmp_path):
        assert noise.ended is None and len(noise.released) == LONG
        assert found.ended is not None and found.ended.startswith("FORWARD_WROTE: in this window a private microbatch wrote")
        assert len(found.released) == WINDOW
        for mine, its in zip(found.released, noise.released, strict=False):
            assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))


# ----------------------------------------------------------------------------------------------------- crowd audit


def audited(rank: int, root: Path, name: str, draws: int, old: bool) -> Measured:
    """The audited run and its adversary, each on these processes; with ``old``, under the masks of one generator."""
    scene = MAIN[name].but(f"{name}, on ranks", **FEW)
    if rank == 0:
        world_of(scene, root)
    dist.barrier()
    with masks_from_one_generator() if old else pytest.MonkeyPatch.context():
        pace = Lockstep(scene, root, 0, World.at(root))
        try:
            found = pace.readings(draws)
            return Measured(found, pace.audited.claim, pace.graphs, pace.misjudged)
        finally:
            pace.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two layers, fast", "two layers, certified"])
def test_nobody_tells_from_a_release_of_two_processes_who_was_drawn(tmp_path: Path, name: str) -> None:
    scene = MAIN[name]
    ranks = launched(audited, 2, tmp_path, name, 24, False, limit=500.0)
    for found in ranks:
        check_separation(scene, found.readings)
        check_reader_of_draws(found)
        check_noise(found)
        check_bound(found, lower_bound(found, RUNS))
        assert found.misjudged <= LIMIT[scene.level]


@pytest.mark.slow
def test_masks_of_one_generator_are_caught_on_two_processes(tmp_path: Path) -> None:
    """The control: an engine whose random numbers depend on who else is drawn."""
    for found in launched(audited, 2, tmp_path, "two layers, fast", 24, True, limit=500.0):
        check_caught(found, MAIN["two layers, fast"])
