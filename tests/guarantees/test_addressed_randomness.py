"""A contribution's random numbers are its own, to the bit: in other company and packing, spread, recomputed, resumed, compiled.

Held through whole runs. ``Spy`` drops units and writes down which, by (step, contribution and example).
"""

import dataclasses
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from attest import signed_file  # noqa: E402
from attest.keys import public_bytes  # noqa: E402
from attest.policy import open_policy, sign_policy  # noqa: E402
from dptrain.data.microbatch import json_examples  # noqa: E402
from dptrain.engine import start  # noqa: E402
from dptrain.errors import CoupledModel, NotPrivateUse, UnsupportedModule  # noqa: E402
from dptrain.sandbox import interception  # noqa: E402
from tests.guarantees import peers  # noqa: E402
from tests.worlds.training import World, token_record  # noqa: E402

Seen = dict[tuple[int, bytes], list[torch.Tensor]]
PUBLIC_DRAWS = 'disclosure = "occurrences_public"\n'


class Spy(nn.Module):
    """Drops, and notes what it dropped in every private row."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.run: peers.Run | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.functional.dropout(torch.ones_like(x), 0.5)
        sandbox = self.run.private.prepared.sandbox if self.run is not None else None
        if sandbox is not None and sandbox.active and not sandbox.current.learning and sandbox.current.step:
            for name, row in zip(sandbox.current.names, mask.detach(), strict=True):
                self.seen[sandbox.current.step, name].append(row)
        return x * mask


class Checkpointed(nn.Module):
    """A part of a model that is computed once more on the way back."""

    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def masks(world: World, *, wrap: Any = lambda spy: spy, steps: int | None = None, seed: int = 0, **options: Any) -> Seen:
    """Masks of a run, by step and row."""
    seen: Seen = defaultdict(list)
    spy = Spy(seen)
    model = peers.net(lambda: wrap(spy))
    torch.manual_seed(seed)
    with peers.Run(world, model, **options) as run:
        spy.run = run
        for number, _ in enumerate(run.releases(), start=1):
            if number == steps:
                run.optimizer.step()
                run.private.save()
                break
    return seen


def assert_own(first: Seen, second: Seen, *, shared: bool = False) -> None:
    """Whatever row both have, has the same masks in both; ``shared``: and they need not have the same rows."""
    both = first.keys() & second.keys()
    assert both and (shared or first.keys() == second.keys())
    for key in both:
        masks_of = [*first[key], *second[key]]
        assert all(torch.equal(masks_of[0], other) for other in masks_of[1:]), key
    assert len({tuple(found[0].flatten().tolist()) for found in first.values()}) == len(first), "and nobody has another's"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return peers.small_world(tmp_path_factory.mktemp("addressed"), per_class=9, steps=3, rate="0.6")


@pytest.fixture(scope="module")
def plain(world) -> Seen:
    return masks(world, microbatch=4)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_in_microbatches_of_another_size(world, plain, size: int) -> None:
    assert_own(masks(world, microbatch=size), plain)


@pytest.mark.parametrize("key", [b"\x01" * 32, b"\x02" * 32])
def test_beside_others_who_were_drawn(world, plain, key: bytes) -> None:
    """Another key draws others; who is drawn by both keys in a step has the same masks."""
    other = masks(world, microbatch=4, key=key)
    assert other.keys() != plain.keys()
    assert_own(other, plain, shared=True)


@pytest.mark.parametrize("reentrant", [False, True], ids=["not reentrant", "reentrant"])
def test_computed_once_more_by_a_checkpoint(world, reentrant: bool) -> None:
    """Of the reentrant kind within what is frozen, as trained tensors are refused there."""
    found, other = (masks(world, microbatch=size, wrap=lambda spy: Checkpointed(spy, reentrant)) for size in (4, 3))
    assert all(len(rows) == 2 for rows in found.values()), "once on the way forward, once on the way back"
    assert_own(found, other)


def test_spread_over_several_microbatches(tmp_path) -> None:
    world = peers.small_world(
        tmp_path, per_class=3, steps=2, record=lambda s: [token_record(s + 3 * j) | {"seed": s} for j in range(5)],
        policy_extra="[gate]\nmax_examples = 5\n",
    )  # fmt: skip
    whole = masks(world, microbatch=2)
    rows = {name for _, name in whole}
    assert len(rows) == 15
    for most in (1, 2, 3, 4):
        spread = masks(world, microbatch=2, microbatch_rows=most)
        own = {key: value for key, value in spread.items() if key[1] in rows}  # others only pad the last part
        assert_own(own, whole)


def test_at_the_other_level_of_exactness(world, plain, tmp_path) -> None:
    """Names are those of the attestations, so the same corpus is used under another policy."""
    assert_own(masks(certified(world, tmp_path), microbatch=4), plain, shared=True)


def certified(world: World, root: Any) -> World:
    """The same corpus under a policy that asks for the other level."""
    signed = open_policy(world.policy, public_bytes(world.owner_key))
    policy = dataclasses.replace(signed.policy, exactness="certified", registry_root=None)
    for path in (world.root / "owner.pub", world.root / "registry.cbor", world.root / "registry.names"):
        (root / path.name).write_bytes(path.read_bytes())
    payload, message = sign_policy(policy, world.owner_key, owner="owner", registry_root=world.registry.root())
    signed_file.write(root / "policy.cose", payload, message)
    return dataclasses.replace(world, root=root, policy=root / "policy.cose")


def test_in_a_run_that_is_resumed_in_a_process_with_another_seed(tmp_path) -> None:
    world = peers.small_world(tmp_path, per_class=9, steps=4, rate="0.6")
    seen: Seen = defaultdict(list)
    spy = Spy(seen)
    with peers.Run(world, peers.net(lambda: spy), microbatch=4) as run:
        spy.run = run
        steps = iter(run.steps)
        for _ in range(2):
            run.gradients(next(steps))
            run.optimizer.step()
        run.private.save()
        run.gradients(next(steps))
        run.optimizer.step()
        seed = run.private.prepared.sandbox.numbers.seed
    again: Seen = defaultdict(list)
    spy = Spy(again)
    model = peers.net(lambda: spy)
    torch.manual_seed(12345)
    with peers.Run(world, model, microbatch=3, resume=True) as run:
        spy.run = run
        assert run.private.prepared.start_step == 2 and run.private.prepared.sandbox.numbers.seed == seed
        for _ in run.releases():
            pass
    third = {key: value for key, value in seen.items() if key[0] == 3}
    assert_own({key: value for key, value in again.items() if key[0] == 3}, third, shared=True)


def test_another_seed_gives_other_masks(world, plain) -> None:
    """The negative control: it is the addresses that agree above, and not the masks of everybody."""
    other = masks(world, microbatch=4, seed=1)
    assert other.keys() == plain.keys()
    assert all(not torch.equal(other[key][0], plain[key][0]) for key in plain)


def test_of_torchs_own_generator_the_masks_depend_on_company(world, plain, monkeypatch) -> None:
    """The negative control: with masks from the seeded generator, as torch draws them, none of the above holds; and the probes
    at the start see it."""
    monkeypatch.setattr(interception, "draws", lambda func, args, kwargs: False)
    with pytest.raises(CoupledModel, match="REPLACEMENT"):
        masks(world, microbatch=4)
    monkeypatch.setattr(start, "check_company", lambda *args: None)
    one, two = masks(world, microbatch=4), masks(world, microbatch=3)
    assert any(not torch.equal(one[key][0], two[key][0]) for key in one)


# --- collate, and what has no address ---------------------------------------------------------------------------------


class Augments:
    """Collate with augmentation from a common generator, and a note of what it drew."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.seen: dict[tuple[int, ...], list[float]] = defaultdict(list)

    def __call__(self, examples: list[dict]) -> dict[str, torch.Tensor]:
        rows = peers.collate(examples)
        drawn = [float(self.draw()) for _ in examples]
        for example, value in zip(examples, drawn, strict=True):
            self.seen[tuple(example["ids"])].append(value)
        return rows | {"shift": torch.tensor(drawn, dtype=torch.float64)}


def generators() -> dict[str, Any]:
    return {"torch": lambda: torch.rand([]), "random": random.random, "numpy": np.random.rand}


def shifted(model: nn.Module, rows: Any) -> torch.Tensor:
    return peers.per_example(model, rows) * (1.0 + rows["shift"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["torch", "random", "numpy"])
def test_augmentation_in_collate_belongs_to_the_example(world, name: str) -> None:
    """It is called for one example at a time as soon as it draws, under a seed of that example and step."""
    found = []
    for size in (2, 5):
        collate = Augments(generators()[name])
        torch.manual_seed(0)
        with peers.Run(world, peers.net(), microbatch=size, collate_fn=collate) as run:
            collate.seen.clear()
            for _ in run.releases(shifted):
                pass
        found.append({ids: values for ids, values in collate.seen.items()})
    assert found[0] == found[1] and len({v for values in found[0].values() for v in values}) > 5


@pytest.mark.parametrize("name", ["torch", "random", "numpy"])
def test_augmentation_in_collate_is_drawn_anew_in_every_step(world, name: str) -> None:
    collate = Augments(generators()[name])
    with peers.Run(world, peers.net(), microbatch=4, collate_fn=collate) as run:
        collate.seen.clear()
        for _ in run.releases(shifted):
            pass
        drawn_again = [values for values in collate.seen.values() if len(values) > 1]
    assert drawn_again and all(len(set(values)) == len(values) for values in drawn_again)


def test_collate_that_draws_from_a_generator_of_its_own_is_refused(world) -> None:
    own = torch.Generator()
    with pytest.raises(NotPrivateUse, match=r"COLLATE_RANDOM.*'shift'"):
        peers.Run(world, peers.net(), collate_fn=Augments(lambda: torch.rand([], generator=own)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["torch", "random", "numpy"])
def test_augmentation_in_decode_belongs_to_the_contribution(world, name: str) -> None:
    draw, found = generators()[name], []
    for size in (2, 5):
        drawn: dict[bytes, list[float]] = defaultdict(list)

        def decode(content: bytes, drawn=drawn) -> list[dict]:
            drawn[content].append(float(draw()))
            return [example | {"shift": drawn[content][-1]} for example in json_examples(content)]

        def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
            shift = torch.tensor([example["shift"] for example in examples], dtype=torch.float64)
            return peers.collate(examples) | {"shift": shift}

        torch.manual_seed(0), random.seed(size), np.random.seed(size)
        with peers.Run(world, peers.net(), microbatch=size, decode=decode, collate_fn=collate) as run:
            drawn.clear()
            for _ in run.releases(shifted):
                pass
        found.append(dict(drawn))
    assert found[0] == found[1] and len({v for values in found[0].values() for v in values}) > 5


@pytest.mark.parametrize("name", ["torch", "random", "numpy"])
def test_what_decode_draws_does_not_follow_from_whether_another_draws(world, name: str) -> None:
    """Some draw and put the generators back, some draw in the open or, in the second run, not at all."""
    draw, found = generators()[name], []
    kinds: dict[bytes, bool] = {}
    for openly in (True, False):

        def decode(content: bytes, openly=openly) -> list[dict]:
            drawn, hides = 0.0, kinds.setdefault(content, len(kinds) % 2 == 0)
            if hides:
                states = random.getstate(), np.random.get_state(), torch.get_rng_state()
                drawn = float(draw())
                random.setstate(states[0]), np.random.set_state(states[1]), torch.set_rng_state(states[2])
            elif openly:
                drawn = float(draw())
            return [example | {"drawn": drawn, "hides": hides} for example in json_examples(content)]

        torch.manual_seed(0), random.seed(3), np.random.seed(3)
        with peers.Run(world, peers.net(), microbatch=3, decode=decode) as run:
            slots = range(len(run.private.prepared.pool))
            together = run.private.prepared.feeder._examples(slots, 5)
            assert together == [run.private.prepared.feeder._examples([slot], 5)[0] for slot in slots], "in any company"
            assert together != run.private.prepared.feeder._examples(slots, 6), "anew in every step"
        found.append([(example["hides"], example["drawn"]) for examples in together for example in examples])
    hidden, shown = ([[drawn for hides, drawn in one if hides is kind] for one in found] for kind in (True, False))
    assert hidden[0] == hidden[1] and hidden[0] and all(hidden[0])
    assert len(set(shown[0])) == len(shown[0]) > 1 and not any(shown[1])


def test_contributions_that_draw_nothing_are_decoded_once(world) -> None:
    seen: list[bytes] = []

    def decode(content: bytes) -> list[dict]:
        seen.append(content)
        return json_examples(content)

    with peers.Run(world, peers.net(), decode=decode) as run:
        seen.clear()
        run.private.prepared.feeder._examples(range(len(run.private.prepared.pool)), 1)
        assert len(seen) == len(set(seen)) == len(run.private.prepared.pool)


def test_decode_that_draws_from_a_generator_of_its_own_is_refused(world) -> None:
    own = random.Random(0)

    def decode(content: bytes) -> list[dict]:
        return [example | {"label": own.randrange(2)} for example in json_examples(content)]

    with pytest.raises(NotPrivateUse, match=r"COLLATE_RANDOM: decode or collate.*'labels'"):
        peers.Run(world, peers.net(), decode=decode)


def test_a_plain_value_that_follows_the_contribution_is_refused_before_anything_is_charged(world) -> None:
    """All rows of a microbatch would share that of the first: a length, say, by which the forward cuts."""

    def collate(examples: list[dict]) -> dict[str, Any]:
        return peers.collate(examples) | {"longest": max(max(example["ids"]) for example in examples)}

    with pytest.raises(CoupledModel, match=r"COLLATE_VALUE.*'longest'"):
        peers.Run(world, peers.net(), collate_fn=collate)


@pytest.mark.parametrize("name", ["random", "numpy"])
def test_a_forward_that_draws_from_python_or_numpy_is_refused_where_draws_are_secret(world, tmp_path, name: str) -> None:
    draw = generators()[name]

    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        return peers.per_example(model, rows) * (1.0 + draw())

    with peers.Run(world, peers.net()) as run, pytest.raises(NotPrivateUse, match="HOST_RANDOMNESS"):
        run.gradients(next(iter(run.steps)), losses)
    public = peers.small_world(tmp_path, policy_extra=PUBLIC_DRAWS, rate="0.5")
    with peers.Run(public, peers.net()) as run:
        run.gradients(next(iter(run.steps)), losses)


class Pairs(nn.Module):
    """Noise for pairs of rows: nobody's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(len(x), len(x), dtype=x.dtype).mean() * 0.0 + x.sum() * 0.0


def test_a_draw_without_rows_is_refused_at_the_start_by_name_and_charges_nothing(world) -> None:
    with peers.Run(world, peers.net(Pairs)) as run, pytest.raises(UnsupportedModule, match=r"DRAW_ROWS: module 'extra'"):
        run.gradients(next(iter(run.steps)))
    assert not run.private.opened.recorder.begun


def test_the_users_generators_stand_where_they_stood_however_many_microbatches_ran(world) -> None:
    stands = []
    for size in (1, 9):
        with peers.Run(world, peers.net(lambda: nn.Dropout(0.5)), microbatch=size) as run:
            torch.manual_seed(3), random.seed(3), np.random.seed(3)
            for _ in run.releases():
                pass
            stands.append((torch.rand(3).tolist(), random.random(), np.random.rand()))
    assert stands[0] == stands[1]
