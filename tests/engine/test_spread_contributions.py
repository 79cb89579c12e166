"""Contributions of many examples, spread over microbatches: one norm, one clip, one addition, whatever the split."""

import pytest

torch = pytest.importorskip("torch")

from dptrain.clipping import one_contribution as single  # noqa: E402
from dptrain.errors import ConfigError  # noqa: E402
from dptrain.routing.accumulate import Folding  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.worlds.trainer import BertTrainer as Trainer  # noqa: E402
from tests.worlds.training import World, make_world, token_record  # noqa: E402

KEY = b"\x77" * 32
NOW = 1_800_000_000


def several(seed: int) -> list[dict]:
    return [token_record(seed + 17 * j) for j in range((1, 3, 8)[seed % 3])]


class Scaled(Trainer):
    """Losses large enough that every clip bound binds; remembers how many rows the model saw at a time."""

    def losses(self, rows):
        if not self.private.prepared.probe.active:
            self.seen.append(len(rows["labels"]))
        return super().losses(rows) * 50.0


def released(root, level: str, dtype: torch.dtype = torch.float64, **options) -> tuple[list[torch.Tensor], list[int]]:
    """The private gradients of the first step of a fixed world, and the rows of its microbatches."""
    world = make_world(
        root, per_class=3, steps=1, rate="1", record=several, now=NOW,
        policy_extra=f'exactness = "{level}"\n[gate]\nmax_examples = 8\n',
    )  # fmt: skip
    trainer = Scaled(world, insecure_test_key=KEY, dtype=dtype, clock=lambda: NOW, **options)
    trainer.seen = []
    trainer.one(next(iter(trainer.steps)))
    grads = [t.parameter.grad.clone() for _, t in trainer.private.prepared.router.tensors]
    trainer.close()
    return grads, trainer.seen


@pytest.mark.parametrize(
    ("level", "splits"),
    [("fast", (5, 1)), *(pytest.param(level, (8, 5, 3, 2, 1), marks=pytest.mark.slow) for level in ("fast", "certified"))],
)
def test_any_split_gives_the_same_release(tmp_path, level: str, splits: tuple[int, ...]) -> None:
    whole, seen = released(tmp_path / "whole", level, microbatch=3)
    assert max(seen) == 24, "three contributions of eight rows at a time"
    for rows in splits:
        split, seen = released(tmp_path / f"rows{rows}", level, microbatch=3, microbatch_rows=rows)
        assert max(seen) <= rows
        for a, b in zip(whole, split, strict=True):
            step = 9 * 2.0**-21 * 1.5 / 4  # a step of the lattice per contribution at most, of the coarsest block
            assert float((a - b).abs().max()) <= (step if level == "certified" else 1e-9)


@pytest.mark.slow
def test_the_levels_agree_on_a_spread_contribution_in_float32(tmp_path) -> None:
    fast, _ = released(tmp_path / "f", "fast", torch.float32, microbatch=3, microbatch_rows=3)
    certified, _ = released(tmp_path / "c", "certified", torch.float32, microbatch=3, microbatch_rows=3)
    for a, b in zip(fast, certified, strict=True):
        assert float((a - b).norm()) * 4 <= 9 * (2.0**-9 + 1e-4)


def influence(root, level: str, rows: int | None) -> float:
    """How far one contribution of eight examples with a giant gradient moves a release: norm of the difference."""
    world = peers.small_world(
        root, per_class=2, record=lambda s: [token_record(s + 3 * j) | {"seed": s} for j in range(8)], clip="0.7", sigma="1.0",
        policy_extra=f'exactness = "{level}"\n[gate]\nmax_examples = 8\n',
    )  # fmt: skip
    found = peers.signal(world, peers.net, peers.giant(0), microbatch_rows=rows)
    return peers.norm(found)


def check_one_clip(root, level: str) -> None:
    for rows in (None, 3, 1):
        moved = influence(root / f"{rows}", level, rows)
        assert moved <= 0.7 * (1 + 1e-6)
        assert moved > 0.69, "the bound must bind"


@pytest.mark.parametrize("level", ["fast", "certified"])
def test_a_spread_contribution_is_clipped_once(tmp_path, level: str) -> None:
    """H5: eight examples in eight microbatches move the sums by C at most, not by eight times as much."""
    check_one_clip(tmp_path, level)


@pytest.mark.parametrize("level", ["fast", "certified"])
def test_clipping_every_part_shows(tmp_path, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault built in: every part is clipped and added by itself."""

    def apart(self: Folding) -> None:
        self._router.fold(self._bounds)

    monkeypatch.setattr(Folding, "fold", apart)
    peers.must_fail(lambda: check_one_clip(tmp_path, level))


@pytest.mark.slow
def test_losing_or_doubling_a_part_shows(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = single.Spread.add
    for name, times in (("lost", (1, 0)), ("doubled", (1, 2))):
        calls = iter(times * 1000)

        def wrong(self: single.Spread, *args: object, calls=calls) -> None:
            for _ in range(next(calls)):
                right(self, *args)

        monkeypatch.setattr(single.Spread, "add", wrong)
        peers.must_fail(lambda name=name: test_any_split_gives_the_same_release(tmp_path / name, "fast", (5, 1)))


@pytest.mark.slow
def test_a_part_that_is_not_finite_makes_the_whole_contribution_count_as_zero(tmp_path) -> None:
    """And nobody else's: the parts of the next contribution start from nothing."""
    for level in ("fast", "certified"):
        world = peers.small_world(
            tmp_path / level, per_class=3, record=lambda s: [token_record(s + 3 * j) | {"seed": s} for j in range(4)],
            policy_extra=f'exactness = "{level}"\n[gate]\nmax_examples = 4\n',
        )  # fmt: skip

        def poisoned(model, rows):
            scale = torch.ones(len(rows["seeds"]), dtype=torch.float64)
            scale[0] = torch.where(rows["seeds"][0] == 2, torch.nan, 1.0)  # nobody's rows have no seed but 0 and 1
            return peers.per_example(model, rows) * scale

        bad = peers.signal(world, peers.net, poisoned, microbatch_rows=2)
        clean = peers.signal(
            world, peers.net, lambda model, rows: peers.per_example(model, rows) * (rows["seeds"] != 2), microbatch_rows=2
        )
        assert peers.norm(clean) > 0.1
        assert peers.norm({k: bad[k] - clean[k] for k in bad}) <= 1e-12


@pytest.mark.parametrize("level", ["fast", "certified"])
def test_a_part_that_raises_makes_the_whole_contribution_count_as_zero(tmp_path, level: str) -> None:
    """Its other part, which does not raise, adds nothing either; and nobody else's is lost."""
    world = peers.small_world(
        tmp_path, per_class=3, record=lambda s: [token_record(s + 3 * j) | {"seed": 10 * s + j} for j in range(4)],
        policy_extra=f'exactness = "{level}"\n[gate]\nmax_examples = 4\n',
    )  # fmt: skip

    def raises(model, rows):
        if 21 in rows["seeds"].tolist():  # by numbers: a truth of a tensor would be the one that the probes saw
            raise ValueError("a payload")
        return peers.per_example(model, rows)

    def without(model, rows):
        return peers.per_example(model, rows) * (rows["seeds"] // 10 != 2)

    def sums(losses) -> dict[str, torch.Tensor]:
        with peers.Run(world, peers.net(), microbatch_rows=2) as run:
            return run.gradients(next(iter(run.steps)), run.private.loss(losses))

    found, expected, whole = sums(raises), sums(without), sums(peers.per_example)
    assert peers.norm({name: found[name] - expected[name] for name in found}) <= 1e-9
    assert peers.norm({name: found[name] - whole[name] for name in found}) > 0.1, "it was drawn"


def test_fixed_shapes_at_the_certified_level(tmp_path) -> None:
    """The last microbatch is filled up; who fills it moves nothing."""
    filled, seen = released(tmp_path / "c", "certified", microbatch=4)
    assert len(set(seen)) <= 3 and all(count % 4 == 0 for count in seen)
    alone, _ = released(tmp_path / "one", "certified", microbatch=1)
    for a, b in zip(filled, alone, strict=True):
        assert float((a - b).abs().max()) <= 9 * 2.0**-21 * 1.5 / 4


def test_the_limit_must_hold_an_example(tmp_path) -> None:
    world: World = make_world(tmp_path)
    with pytest.raises(ConfigError, match="microbatch_rows is 0"):
        Trainer(world, microbatch_rows=0)
