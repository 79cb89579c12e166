"""The crowd audit: from a release, nobody tells whether a contribution was drawn by what happened to the others.

Amplification by sampling rests on it: the sum of the others is the same whether a contribution was drawn or not. The
adversary is that of :mod:`tests.guarantees.crowd.lockstep`. Three measurements in every scene:

* the separation of the others' sums in both worlds, in deviations of the noise, exact;
* a reader of draws, who must not beat chance (one-sided binomial test of each audited contribution, put together; false-alarm
  rate ``ALARM``);
* a reader of payloads, whose lower bound on epsilon must not exceed the claim (Clopper and Pearson, wrong with probability
  ``ALARM`` at most).

Keys, nonces, seeds and coins follow from the name of the scene, so an outcome is the same in every run on one machine.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")

from ledger import accountants  # noqa: E402
from tests.guarantees.crowd import readers  # noqa: E402
from tests.guarantees.crowd.lockstep import (  # noqa: E402
    DELTA,
    HORIZON,
    RATE,
    Measured,
    Refused,
    compared,
    masks_from_one_generator,
    measured,
)
from tests.guarantees.crowd.readers import Readings  # noqa: E402
from tests.guarantees.crowd.scenes import MAIN, NET, PACKED, Scene, TwoLayers, dropout  # noqa: E402
from tests.guarantees.crowd.verdicts import (  # noqa: E402
    ALARM,
    chance_of_reading,
    lower_bound,
    lower_bound_by_releases,
    noise_seen,
    read_right,
)

LIMIT = {"fast": 1e-5, "certified": 0.0}
"""Largest separation of the others' sums, in deviations of the noise: rounding at ``fast``, nothing at ``certified``."""

RUNS = 500
"""Simulated runs of each kind, for the lower bound on epsilon in the ordinary suite."""

QUICK = ("two layers, fast", "two layers, certified")
"""Scenes of the ordinary suite."""

FEW = {"audited": 2}
SOME = 48
"""Contributions that are audited there, and draws: 24 of each. The reader of draws beats chance with 99 % power where the
separation is 3.5; the separation itself is measured to rounding at every draw."""

CROWDED = {"two layers, certified": {"drawn": 60, "microbatch": 32}}
"""What makes the crowd of a scene large enough for the old behaviour to refute the claim, too."""

BRIEF = 2
"""Steps where the separation alone is measured."""

DRAWS = 5000
"""Draws per scene in the long version; the reader of draws then has 96 % power at a separation of 0.6."""

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.compiled.CompileNotice")


def check_separation(scene: Scene, found: Readings) -> None:
    assert float(found.own.min()) > 0.5, "the audited contribution must have a gradient of its own"
    assert float(found.separation.max()) <= LIMIT[scene.level]


def check_reader_of_draws(found: Measured) -> None:
    assert chance_of_reading(found) >= ALARM, f"{read_right(found)} of {len(found.readings)} draws read right"


def check_bound(found: Measured, bound: float) -> None:
    assert bound <= found.claim, f"epsilon is at least {bound:.2f}, and {found.claim:.2f} is claimed"


def check_noise(found: Measured) -> None:
    """Without it the simulated runs of a bound would be runs of another mechanism."""
    assert readers.as_loud_as_claimed(noise_seen(found), ALARM)


def check_caught(found: Measured, scene: Scene) -> None:
    """Every one of the three checks is red."""
    for check, given in (
        (check_separation, (scene, found.readings)),
        (check_reader_of_draws, (found,)),
        (check_bound, (found, lower_bound(found, RUNS))),
    ):
        with pytest.raises(AssertionError):
            check(*given)


@pytest.fixture(scope="module", params=QUICK)
def quick(request: pytest.FixtureRequest) -> tuple[Scene, int]:
    """A scene and its number of draws; tests of one scene run one after the other and share what was measured."""
    return MAIN[request.param].but(request.param, **FEW), SOME


@pytest.mark.one_in(9)
def test_the_sum_of_the_others_is_the_same_whoever_is_drawn(quick: tuple[Scene, int]) -> None:
    check_separation(quick[0], measured(*quick).readings)


def test_the_reader_of_draws_does_not_beat_chance(quick: tuple[Scene, int]) -> None:
    check_reader_of_draws(measured(*quick))


def test_the_lower_bound_on_epsilon_is_at_most_the_claim(quick: tuple[Scene, int]) -> None:
    check_bound(measured(*quick), lower_bound(measured(*quick), RUNS))


def test_the_noise_of_the_releases_is_what_the_bound_supposes(quick: tuple[Scene, int]) -> None:
    check_noise(measured(*quick))


def test_the_claim_is_that_of_the_accountant(quick: tuple[Scene, int]) -> None:
    assert measured(*quick).claim == pytest.approx(accountants.epsilon(1.0, RATE, HORIZON, DELTA), abs=1e-3)


def test_the_adversary_knows_the_sums_of_the_audited_run(quick: tuple[Scene, int]) -> None:
    """Or its blindness would be no virtue of the engine: a wrong seed, generator or parameter shows here."""
    assert measured(*quick).misjudged <= LIMIT[quick[0].level]


@pytest.mark.one_in(9)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two layers, fast", "two layers, certified"])
def test_masks_of_one_generator_are_caught(name: str) -> None:
    """And by an adversary who knows the sums of that engine as well. For BERT, which needs a large crowd, see below."""
    scene = MAIN[name]
    crowded = scene.but(f"{name}, crowded", **FEW, **CROWDED.get(name, {}))
    found = measured(crowded, SOME, old=True)
    assert found.misjudged <= LIMIT[scene.level]
    check_caught(found, crowded)


@pytest.fixture(
    params=[
        name if name.startswith("spread") or "fast" in name else pytest.param(name, marks=pytest.mark.slow)
        for name in PACKED if "compiled" not in name
    ]
)  # fmt: skip
def packed(request: pytest.FixtureRequest) -> Scene:
    return PACKED[request.param]


class TestPacking:
    """The audited contribution changes who shares a microbatch with whom, or takes several."""

    @pytest.mark.one_in(4)
    def test_neither_the_others_nor_the_own_gradient_depend_on_packing(self, packed: Scene) -> None:
        found, added = compared(packed, BRIEF)
        check_separation(packed, found)
        assert added <= LIMIT[packed.level], "a contribution adds other things in company than alone"

    @pytest.mark.one_in(4)
    def test_masks_of_one_generator_are_caught(self, packed: Scene) -> None:
        with masks_from_one_generator():
            found, added = compared(packed, 1)
        assert float(found.separation.min()) > 1.0
        assert added > 1.0

    @pytest.mark.slow
    def test_without_random_numbers_nothing_depends_on_who_is_drawn(self, packed: Scene) -> None:
        """The measurement itself adds nothing: here it is green whatever the masks hang on."""
        silent = packed.but(f"{packed.name}, no dropout", model=dropout(0.0))
        check_separation(silent, compared(silent, BRIEF)[0])


class PatternOfRows(torch.nn.Module):
    """Row r of a microbatch passes through pattern r: the same in every forward, and no random number is drawn."""

    def __init__(self) -> None:
        super().__init__()
        pattern = torch.rand(64, 64, generator=torch.Generator().manual_seed(7)) < 0.5
        self.register_buffer("pattern", pattern.float() * 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.pattern[: len(x)]


@pytest.mark.parametrize("level", ["fast", "certified"])
def test_masks_that_go_by_row_are_caught_or_refused(level: str) -> None:
    """A fault in the model that no generator shows: the audit sees it in every engine that takes the model."""
    scene = NET.but(f"patterns of rows, {level}", model=lambda: TwoLayers(PatternOfRows()), level=level)
    try:
        found = measured(scene.but(scene.name, **FEW), SOME)
    except Refused as refused:
        assert refused.charged == 0
        return
    check_caught(found, scene)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PACKED if "compiled" in name])
def test_spread_contributions_in_the_compiled_form(name: str) -> None:
    found, added = compared(PACKED[name], BRIEF)
    check_separation(PACKED[name], found)
    assert added <= LIMIT[PACKED[name].level]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_the_whole_audit_of_5000_draws(name: str) -> None:
    """Separation, reader of draws, and both readers of payloads: simulated runs, and runs of real releases."""
    scene = MAIN[name]
    found = measured(scene, DRAWS)
    assert found.graphs >= 1 or not scene.compiled
    check_separation(scene, found.readings)
    check_reader_of_draws(found)
    check_noise(found)
    check_bound(found, lower_bound(found, runs=20_000))
    check_bound(found, lower_bound_by_releases(found)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_masks_of_one_generator_are_caught_in_the_long_version(name: str) -> None:
    scene = MAIN[name]
    scene = scene.but(f"{name}, crowded", drawn=120, microbatch=32, **FEW)
    found = measured(scene, 200 if scene.level == "fast" else 100, old=True)
    assert float(found.readings.separation.min()) > 1.0
    check_caught(found, scene)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [NET, MAIN["BERT, fast"]], ids=lambda scene: scene.name)
def test_under_one_generator_the_separation_grows_with_the_root_of_the_crowd(scene: Scene) -> None:
    sizes = (scene.but(f"{scene.name}, {drawn} drawn", drawn=drawn, audited=2) for drawn in (16, 256))
    few, many = (float(measured(size, 24, old=True).readings.separation.mean()) for size in sizes)
    assert 2.5 < many / few < 6.0
