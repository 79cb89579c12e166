"""The noise of several processes: that of one, every coordinate once, and nothing that hangs together or comes again.

Losses are zero here, so that what is released is the noise.
"""

from functools import lru_cache
from itertools import combinations, product
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.distributed.jobs import Job, Told, done, net  # noqa: E402
from tests.distributed.launched import launched  # noqa: E402
from tests.guarantees.peers import small_world  # noqa: E402

CERTIFIED = 'exactness = "certified"\n'
FAMILIES = {
    "gaussian": "",
    "gaussian, certified": CERTIFIED,
    "gaussian on a device": "",
    "laplace": CERTIFIED + 'accountant = "pld"\n[noise]\nfamily = "laplace"\n',
    "discrete_gaussian": CERTIFIED + 'accountant = "rdp"\n[noise]\nfamily = "discrete_gaussian"\n',
    "skellam": CERTIFIED + 'accountant = "rdp"\n[noise]\nfamily = "skellam"\n',
}
"""What a policy says, by family."""

VARIANCE = {"laplace": 2.0}
"""Of the noise, in squares of its scale; else 1."""

STEPS = 2

LEAST = 100
"""Coordinates from which on a correlation counts; an alarm is five deviations, wrong in one of two million."""

QUICK = ("gaussian", "gaussian, certified")
MANY = [family if family in QUICK else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
NUMBERS = [(family, ranks) for family in FAMILIES for ranks in (1, 2, 4)]
EACH = [
    pytest.param(family, ranks, marks=() if family in QUICK and ranks < 4 else pytest.mark.slow) for family, ranks in NUMBERS
]


class Found:
    """Two attempts at a run of every family, on so many processes; those of the quick families are launched together."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._launch = lru_cache(None)(self._launched)
        self._world = lru_cache(None)(self._made)

    def __call__(self, ranks: int, family: str) -> tuple[list[Told], list[Told]]:
        """What ranks tell of the first attempt, and of the second."""
        together = QUICK if family in QUICK else tuple(name for name in FAMILIES if name not in QUICK)
        place = 2 * together.index(family)
        told = self._launch(ranks, together)
        return [each[place] for each in told], [each[place + 1] for each in told]

    def _launched(self, ranks: int, families: tuple[str, ...]) -> list[list[Told]]:
        jobs = []
        for family in families:
            options = {"noise_generator": "device"} if "device" in family else {}
            for again in ({}, {"from": ranks}):
                jobs.append(Job(self._world(family), losses="nothing", steps=STEPS, options=options | again))
        return launched(done, ranks, *jobs, limit=240)

    def _made(self, family: str) -> Path:
        root = self._root / family
        small_world(root, per_class=2, steps=STEPS, policy_extra="redo_steps = 8\n" + FAMILIES[family])
        return root


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return Found(tmp_path_factory.mktemp("noise"))


def pieces(found: Found, family: str) -> dict[tuple[int, int, int, int, int], torch.Tensor]:
    """Noise on two processes by attempt, step, tensor, and rank; and where in the tensor it begins."""
    made = {}
    for attempt, told in enumerate(found(2, family)):
        for rank, each in enumerate(told):
            for one in each.sums:
                released = each.grads[one.step - 1][each.names[one.lane]].double().flatten()
                part = released[one.offset : one.offset + len(one.values)]
                if len(part) >= LEAST:
                    made[attempt, one.step, one.lane, rank, one.offset] = part
    return made


@pytest.mark.parametrize(("family", "ranks"), [one for one in EACH if one.values[1] > 1])
def test_noise_is_that_of_one_process_to_the_bit(found: Found, family: str, ranks: int) -> None:
    for told, (expected,) in zip(found(ranks, family), found(1, family), strict=True):
        for each in told:
            assert each.attempt == expected.attempt and len(each.grads) == STEPS
            for mine, its in zip(each.grads, expected.grads, strict=True):
                assert all(torch.equal(mine[name], its[name]) for name in expected.names)


@pytest.mark.parametrize(("family", "ranks"), EACH)
def test_every_coordinate_gets_its_noise_once(found: Found, family: str, ranks: int) -> None:
    sizes = {name: parameter.numel() for name, parameter in net().named_parameters()}
    for told in found(ranks, family):
        for step, (lane, name) in product(range(1, STEPS + 1), enumerate(told[0].names)):
            parts = [one for each in told for one in each.sums if (one.step, one.lane) == (step, lane)]
            owned = sorted(place for one in parts for place in range(one.offset, one.offset + len(one.values)))
            assert owned == list(range(sizes[name])), f"{name} at step {step}"
            assert all(not one.values.any() for one in parts), "the sums were to be zero"


@pytest.mark.parametrize("family", MANY)
def test_noise_has_the_size_that_is_accounted(found: Found, family: str) -> None:
    for told in found(2, family):
        noise = torch.cat([told[1].flat(step) for step in range(STEPS)])
        expected = VARIANCE.get(family, 1.0)
        deviation = (20.0 if family == "laplace" else 2.0) ** 0.5 / len(noise) ** 0.5
        assert float(noise.square().mean()) == pytest.approx(expected, abs=6 * deviation)


@pytest.mark.parametrize("family", MANY)
def test_noise_of_shards_steps_tensors_and_attempts_hangs_together_nowhere(found: Found, family: str) -> None:
    """From the beginning of each part, as ranks that draw from a stream of their own would, and at equal coordinates."""
    made = pieces(found, family)
    assert {key[3] for key in made} == {0, 1} and {key[0] for key in made} == {0, 1} and {key[1] for key in made} == {1, 2}
    assert any(key[4] for key in made), "some part must begin inside its tensor"
    for (one, first), (other, second) in combinations(made.items(), 2):
        count = min(len(first), len(second))
        alike = float(torch.corrcoef(torch.stack([first[:count], second[:count]]))[0, 1])
        assert abs(alike) < 5 / count**0.5, f"{one} and {other}"


@pytest.mark.parametrize(("family", "ranks"), EACH)
def test_an_attempt_after_another_draws_other_noise_for_the_same_steps(found: Found, family: str, ranks: int) -> None:
    first, second = found(ranks, family)
    assert [each.attempt for each in first] == [0] * ranks and [each.attempt for each in second] == [1] * ranks
    assert all(each.begins == 0 for each in second), "the second attempt was to take the same steps again"
    for step in range(STEPS):
        one, other = first[0].flat(step), second[0].flat(step)
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / len(one) ** 0.5
        assert float((one == other).double().mean()) < 0.05


def test_without_a_test_key_runs_have_noise_of_their_own(tmp_path: Path) -> None:
    """And ranks agree about it, and about who is drawn, though nobody gave them a key."""
    small_world(tmp_path, per_class=9, steps=STEPS, rate="0.5")
    jobs = [Job(tmp_path, name, losses="nothing", options={"key": None}) for name in ("first", "second")]
    ranks = launched(done, 2, *jobs)
    for told in zip(*ranks, strict=True):
        assert all(torch.equal(told[0].flat(step), told[1].flat(step)) for step in range(STEPS))
    noise = [told.flat(step) for told in ranks[0] for step in range(STEPS)]
    for one, other in combinations(noise, 2):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 5 / len(one) ** 0.5
