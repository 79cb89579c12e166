"""A.4: no payload changes what a run does or says, and one that nothing can be learnt from counts as zero.

Contributions of a pool of 64 are hostile, at every place in turn. Against the run in which their payloads are the null: the
same forwards, microbatches, shapes, leaves and lines, the same random numbers afterwards, and the same releases. Clocks are not
compared.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pytest

torch = pytest.importorskip("torch")

from dptrain.sandbox import Sandbox  # noqa: E402
from dptrain.sandbox.indices import Total  # noqa: E402
from tests.guarantees.hostile.payloads import KINDS, Kind, null  # noqa: E402
from tests.guarantees.hostile.scene import POOL, Run, Scene, Trace, raising_loss  # noqa: E402

ROUNDING = 1e-5
"""At ``fast`` the others may differ by the rounding of float32 products, relative to the largest entry."""

LEVELS = ("fast", "certified")
OFTEN = 20
"""Steps in which four places are hostile at a time."""
TOGETHER = 4
ALONE = 80
"""Steps with one hostile place at most."""

Turns = dict[int, list[int]]


class Stage:
    """Worlds of this module, the draws of their runs, and the runs in which the payload is the null."""

    def __init__(self, root) -> None:
        self._root = root
        self._count = 0
        self.world = lru_cache(None)(self._world)
        self.turns = lru_cache(None)(self._turns)
        self.nulls = lru_cache(None)(self._nulls)

    def _world(self, scene: Scene):
        return scene.world(self._fresh())

    def _fresh(self):
        self._count += 1
        return self._root / str(self._count)

    def run(self, scene: Scene, swap: Callable[[int], dict[int, Kind]], **options) -> Trace:
        world = self.world(Scene(level=scene.level, steps=scene.steps, several=scene.several))
        return Run(scene, world, swap, **options).go(self._fresh())

    def _turns(self, scene: Scene, each: int) -> Turns:
        """Places that are hostile in a step, each in a step that draws it; the draws follow from the key of the run."""
        drawn = self.run(scene.but(form="plain", decides=""), lambda step: {}).drawn
        turns: Turns = {step: [] for step in range(1, scene.steps + 1)}
        for place in range(POOL):
            step = min(
                (step for step in turns if place in drawn[step - 1] and len(turns[step]) < each),
                key=lambda step: len(turns[step]),
            )
            turns[step].append(place)
        return turns

    def _nulls(self, scene: Scene, each: int) -> Trace:
        return self.run(scene, self.hostile(scene, each, null))

    def hostile(self, scene: Scene, each: int, kind: Callable) -> Callable[[int], dict[int, Callable]]:
        turns = self.turns(Scene(level=scene.level, steps=scene.steps, several=scene.several), each)
        return lambda step: {place: kind for place in turns.get(step, [])}


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    return Stage(tmp_path_factory.mktemp("hostile"))


def check(stage: Stage, scene: Scene, each: int, kind: Kind) -> None:
    """The claim of this page, for one kind of payload."""
    expected = stage.nulls(scene, each)
    found = stage.run(scene, stage.hostile(scene, each, kind))
    assert found.ended is None and found.drawn == expected.drawn
    for what, value in expected.seen.items():
        assert found.seen[what] == value, f"{what} follow the payload"
    if kind.zero:
        assert_same_releases(scene, found, expected)


def assert_same_releases(scene: Scene, found: Trace, expected: Trace) -> None:
    assert found.distance(expected) <= (0.0 if scene.level == "certified" else ROUNDING)
    assert scene.level == "fast" or found.same_releases(expected), "certified: to the bit, and so are the weights"


FIVE = ("infinite loss", "label out of range", "wrong branch", "NaN", "1e38")
PLAIN = [(level, form) for level in LEVELS for form in ("plain", "loss")]


def quick(chosen: Sequence[tuple], every: Sequence[tuple]) -> list:
    """Every combination, those that are not chosen among the slow tests."""
    return [each if each in chosen else pytest.param(*each, marks=pytest.mark.slow) for each in every]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("level", "form", "kind"),
    quick([("fast", "plain", kind) for kind in FIVE], [(*each, kind) for each in PLAIN for kind in KINDS]),
)
def test_no_hostile_payload_at_any_place_is_seen_and_it_counts_as_zero(stage: Stage, level, form, kind) -> None:
    check(stage, Scene(level, form, "truth", steps=OFTEN), TOGETHER, KINDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("level", "form"), [*PLAIN, ("fast", "compile"), ("certified", "compile")])
def test_no_hostile_payload_that_is_alone_in_its_step_is_seen(stage: Stage, level, form, kind) -> None:
    check(stage, Scene(level, form, "truth", steps=ALONE), 1, KINDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_no_hostile_payload_is_seen_in_the_compiled_form(stage: Stage, level) -> None:
    """A sample: every kind at places of its own, all in one run; at every place under ``slow``."""
    scene = Scene(level, "compile", "truth", steps=3)
    zero = [kind for kind in KINDS.values() if kind.zero]

    def swap(step: int) -> dict[int, Kind]:
        return {place: zero[(place // 5 + step) % len(zero)] for place in range(step, POOL, 5)} if step else {}

    expected = stage.run(scene, lambda step: dict.fromkeys(swap(step), null))
    expected = stage.run(scene, lambda step: dict.fromkeys(swap(step), null))  # what the compiler says, it says once
    found = stage.run(scene, swap)
    assert "graph" in found.passes, "some microbatches went through a graph"
    assert found.seen == expected.seen
    assert_same_releases(scene, found, expected)


@pytest.mark.parametrize("kind", [kind if kind == "NaN" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS])
@pytest.mark.parametrize("level", [pytest.param("fast", marks=pytest.mark.slow), "certified"])
def test_one_hostile_example_makes_a_contribution_zero_that_is_spread_over_microbatches(stage: Stage, level, kind) -> None:
    scene = Scene(level, "loss", "truth", steps=3, several=True, rows=2)

    def swap(of: Callable) -> Callable[[int], dict[int, Callable]]:
        return lambda step: {place: of for place in range(step, POOL, 3)} if step else {}

    expected, found = stage.run(scene, swap(null)), stage.run(scene, swap(KINDS[kind]))
    assert found.seen == expected.seen
    if KINDS[kind].zero:
        assert_same_releases(scene, found, expected)


@pytest.mark.parametrize(
    ("level", "form"),
    quick([("fast", "plain"), ("certified", "loss")], [*PLAIN, ("fast", "compile"), ("certified", "compile")]),
)
def test_a_branch_by_content_counts_as_the_way_of_the_probes_makes_it(stage: Stage, level, form) -> None:
    """And so every contribution does: what a model gives that has no other way."""
    scene = Scene(level, form, "truth", steps=3)
    branch = KINDS["wrong branch"]
    found = stage.run(scene, lambda step: {place: branch for place in range(0, POOL, 9)} if step else {})
    straight = stage.run(scene.but(decides=""), lambda step: {place: branch for place in range(0, POOL, 9)} if step else {})
    assert_same_releases(scene, found, straight)


# ------------------------------------------------------------------------------------------------------ what raises


def raising(examples: list[dict]) -> list[dict]:
    return [{**each, "raises": 41 + each["number"]} for each in examples]


def far(examples: list[dict]) -> list[dict]:
    return KINDS["wrong branch"](examples)


RAISES = {"a loss that raises": (raising_loss, "", raising), "a branch by a number": (None, "number", far)}


@pytest.mark.parametrize(
    ("level", "name", "form"),
    quick(
        [("fast", "a loss that raises", "loss")],
        [(level, name, form) for level in LEVELS for name in RAISES for form in ("loss", "compile")],
    ),
)
def test_what_raises_because_of_a_payload_counts_as_zero(stage: Stage, level, name, form) -> None:
    """At every place. The number of forwards alone tells of it: the microbatch is repeated contribution by contribution."""
    loss, decides, kind = RAISES[name]
    scene = Scene(level, form, decides, steps=OFTEN, **({} if loss is None else {"loss": loss}))
    expected = stage.nulls(scene, TOGETHER)
    found = stage.run(scene, stage.hostile(scene, TOGETHER, kind))
    for what in expected.seen.keys() - {"passes"}:
        assert found.seen[what] == expected.seen[what]
    microbatches = [[each for each in trace.passes if each[0] == "microbatch"] for trace in (found, expected)]
    assert microbatches[0] == microbatches[1] and len(found.passes) > len(expected.passes)
    assert_same_releases(scene, found, expected)


def test_all_contributions_that_raise_leave_noise_alone(stage: Stage) -> None:
    scene = Scene("certified", "loss", steps=3, loss=raising_loss)
    everybody = range(POOL)
    found = stage.run(scene, lambda step: dict.fromkeys(everybody, raising) if step else {})
    expected = stage.run(scene, lambda step: dict.fromkeys(everybody, null) if step else {})
    assert found.ended is None and found.leaves == expected.leaves and found.same_releases(expected)


# ----------------------------------------------------------------------------------------------- what is not defended


@pytest.mark.parametrize(
    ("name", "ended"), [("a loss that raises", "Hostile: row"), ("a branch by a number", "UNVERIFIED_MODULE: ")]
)
def test_a_plain_loop_is_stopped_by_what_raises_because_of_a_payload(stage: Stage, name, ended) -> None:
    """Not defended: nobody but the user can repeat what the loop does itself."""
    loss, decides, kind = RAISES[name]
    scene = Scene("fast", "plain", decides, steps=3, **({} if loss is None else {"loss": loss}))
    found = stage.run(scene, lambda step: dict.fromkeys(range(POOL), kind) if step else {})
    assert found.ended is not None and found.ended.startswith(ended)
    assert any(type(leaf).__name__ == "Charge" for leaf in found.leaves), "after the charge"


# ------------------------------------------------------------------------------------------- the tests see the faults


def nothing_is_mended(patch: pytest.MonkeyPatch) -> None:
    made = Total.__init__

    def empty(self: Total, *args) -> None:
        made(self, *args)
        self.handlers.clear()

    patch.setattr(Total, "__init__", empty)


def nothing_is_struck(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sandbox, "strike", lambda self, losses, weight: weight)


def truths_are_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sandbox, "_read", lambda self, func, args, kwargs: func(*args, **kwargs))


def nothing_is_zeroed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dptrain.clipping.fast.zero_rows", lambda piece, bad: None)


FAULTS = {
    "word out of range": nothing_is_mended,
    "label out of range": nothing_is_mended,
    "group out of range": nothing_is_struck,
    "infinite loss": nothing_is_struck,
    "wrong branch": truths_are_told,
    "NaN": nothing_is_zeroed,
    "1e38 that overflows": nothing_is_zeroed,
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", FAULTS)
def test_the_claim_fails_with_the_fault_in_place(stage: Stage, kind, monkeypatch) -> None:
    scene = Scene("fast", "plain", "truth", steps=OFTEN)
    stage.nulls(scene, TOGETHER)  # before there is a fault
    FAULTS[kind](monkeypatch)
    with pytest.raises(AssertionError):
        check(stage, scene, TOGETHER, KINDS[kind])


def test_without_repetition_a_raising_payload_shows(stage: Stage, monkeypatch) -> None:
    """With the error handed on, as torch would."""

    def on(self, model, rows, error):
        raise error

    monkeypatch.setattr("dptrain.routing.repeated.RepeatedLoss.failed", on)
    scene = Scene("fast", "loss", steps=3, loss=raising_loss)
    found = stage.run(scene, lambda step: dict.fromkeys(range(POOL), raising) if step else {})
    assert found.ended is not None and found.ended.startswith("Hostile")
