"""Tensors whose own modules do not tell contributions apart train at a module around them, exactly; what couples contributions
is refused there too, and no private content has a say in where they are taken."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402

from dptrain.blocks.stack import EMBEDDINGS, HEAD  # noqa: E402
from dptrain.errors import CoupledModel, UnsupportedModule  # noqa: E402
from dptrain.gradients import gradient_rule, registry  # noqa: E402
from dptrain.gradients.rules import linear  # noqa: E402
from dptrain.routing import FallbackNotice, Router  # noqa: E402
from tests.guarantees.peers import Net, Run, net, per_example, small_world  # noqa: E402
from tests.worlds.training import World, token_record  # noqa: E402
from tests.zoo import records  # noqa: E402
from tests.zoo.exact import compare  # noqa: E402
from tests.zoo.family import LIBRARY, Family, replace  # noqa: E402
from tests.zoo.start import EXACT, start  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::dptrain.routing.FallbackNotice", "ignore::dptrain.engine.start.Unprobed")


class Past(nn.Module):
    """Uses a weight past its module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(nn.functional.linear(x, self.inner.weight)))


class PastAndThrough(Past):
    """Uses a weight past its module and through it: half of its gradient is seen there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.inner(x) + nn.functional.linear(x, self.inner.weight)))


class SharedTable(nn.Module):
    """Looks up one table of positions for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(16, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(x + self.table(torch.arange(x.shape[1]))))


class FirstOfTable(nn.Module):
    """Gives a table one row in front, and takes the first of what comes out as that of all, as the positions of Swin v2 do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Linear(2, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], dtype=x.dtype)
        bias = self.table(torch.stack([place, place.square()], -1)[None]).view(-1, 8)[: x.shape[1]]
        return self.last(torch.tanh(x + bias))


class Windows(nn.Module):
    """Sees two halves of an example as two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, : x.shape[1] // 2 * 2].unflatten(1, (2, -1)).flatten(0, 1)
        return self.last(self.norm(rows).tanh().unflatten(0, (len(x), 2)).flatten(1, 2))


class TimeFirst(nn.Module):
    """Runs a recurrent network of torch over time first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.GRU(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x.transpose(0, 1))[0].transpose(0, 1))


class Cache:
    """What a layer is called with, and might write to."""


class WithCache(nn.Module):
    """Calls a module without a rule with an object that may change from call to call."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((8,), 0.5))

        def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
            return torch.tanh(x * self.scale)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = self.Inner(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x, Cache()))


TAKEN = {
    Past: ({"inner.weight"}, "GRADIENT_MISMATCH"),
    PastAndThrough: ({"inner.weight"}, "GRADIENT_MISMATCH"),
    SharedTable: ({"table.weight"}, "BATCH_DIMENSION"),
    FirstOfTable: ({"table.weight", "table.bias"}, "CROSS_SAMPLE_GRADIENT"),
    Windows: ({"norm.weight", "norm.bias"}, "BATCH_DIMENSION"),
    TimeFirst: ({f"inner.{kind}_{way}_l0" for kind in ("weight", "bias") for way in ("ih", "hh")}, "BATCH_DIMENSION"),
    WithCache: ({"inner.scale"}, "STATE_IN_GENERIC_PATH"),
}
"""Modules, which of their tensors are taken around their own modules, and what is refused without that."""


def family(make: Callable[[], nn.Module], loss: Callable = per_example) -> Family:
    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        found = records.labelled(examples)
        return {"ids": found["input_ids"], "labels": found["labels"] % 3}

    return Family("around", "test", make, records.text, collate, loss, ("layers",))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("around"), per_class=6)


@pytest.mark.parametrize("kind", TAKEN)
def test_a_tensor_is_taken_around_its_own_module_and_its_gradient_is_every_contributions_own(kind: type[nn.Module]) -> None:
    """Through the start of a run, against one contribution at a time; all other tensors keep their rules."""
    one = family(lambda: Net(kind()))
    found = start(one, LIBRARY)
    assert (found.verdict, found.sentence) == (EXACT, "")
    assert dict(found.around) == {f"extra.{name}": "extra" for name in TAKEN[kind][0]}
    compared = compare(one, LIBRARY, found.layers, found.around)
    assert all(c.exact and c.dtype == torch.float64 for c in compared.values()), {k: c.worst for k, c in compared.items()}
    assert {f"extra.{name}" for name in TAKEN[kind][0]} <= set().union(*(c.live for c in compared.values()))


@pytest.mark.parametrize("kind", TAKEN)
def test_the_notice_names_what_runs_again_and_why(kind: type[nn.Module], world: World) -> None:
    names, code = TAKEN[kind]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", FallbackNotice)
        with Run(world, net(kind)) as run:
            run.gradients(next(iter(run.steps)))
            slow = {site.name for site in run.private.prepared.router.sites if site.rule.slow}
            assert slow == {"extra"}
    [text] = [str(one.message) for one in told if "inside it" in str(one.message)]
    assert text.startswith(f"extra ({kind.__name__}) runs once more per microbatch") and f"({code})" in text
    assert all(name in text for name in names)


@pytest.mark.parametrize("kind", TAKEN)
def test_where_nothing_else_trains_it_is_taken_all_the_same(kind: type[nn.Module]) -> None:
    """Its own module may never run, so that losses carry no graph at first."""
    others = ("embed", "layers", "head", "last")
    one = replace(family(lambda: Net(kind())), frozen=others, shallow=True)
    found = start(one, LIBRARY)
    assert (found.verdict, found.sentence) == (EXACT, "")
    assert all(c.exact for c in compare(one, LIBRARY, found.layers, found.around).values())


class Tied(Net):
    """Uses the table of its tokens past its module in another place: the nearest module around both is the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.extra(self.embed(ids)) @ self.embed.weight.T @ self.embed.weight
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1))


def test_a_tensor_used_in_places_far_apart_is_taken_around_all_of_them() -> None:
    found = start(family(Tied), LIBRARY)
    assert (found.verdict, found.around) == (EXACT, (("embed.weight", ""),))
    assert all(c.exact for c in compare(family(Tied), LIBRARY, "layers", found.around).values())


# --- what couples contributions -------------------------------------------------------------------------------------------


MIXES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda y: y - y.mean(0, keepdim=True),
    "detached mean": lambda y: y - y.detach().mean(0, keepdim=True),
    "count": lambda y: y * len(y),
    "next row": lambda y: y + 0.1 * y.roll(1, 0),
    "next row, detached": lambda y: y + 0.1 * y.detach().roll(1, 0),
    "decision": lambda y: y * (y.detach().mean((0, 1)) > 0.0),
}


class Mixed(nn.Module):
    """Uses a weight past its module, and mixes rows behind it: inside the module around, or inside the one around that."""

    class Inner(nn.Module):
        def __init__(self, mix: Callable | None) -> None:
            super().__init__()
            self.table, self.mix = nn.Linear(8, 8, bias=False), mix

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x + nn.functional.linear(x, self.table.weight)
            return y if self.mix is None else self.mix(y)

    def __init__(self, mix: Callable, *, far: bool) -> None:
        super().__init__()
        self.inner, self.mix = self.Inner(None if far else mix), mix if far else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y if self.mix is None else self.mix(y)


REFUSED = r"CROSS_SAMPLE_GRADIENT|REPLACEMENT|GRADIENT_MISMATCH"


@pytest.mark.parametrize("alone", [False, True], ids=["all", "alone"])
@pytest.mark.parametrize("far", [False, True], ids=["inside", "outside"])
@pytest.mark.parametrize("mix", MIXES)
def test_rows_that_are_mixed_are_refused_after_a_tensor_was_taken_around(
    world: World, mix: str, far: bool, alone: bool
) -> None:
    model = net(lambda: Mixed(MIXES[mix], far=far))
    if alone:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == "extra.inner.table.weight")
    with Run(world, model) as run:
        with pytest.raises((CoupledModel, UnsupportedModule), match=REFUSED):
            run.gradients(next(iter(run.steps)))
        assert not run.private.opened.recorder.begun and all(p.grad is None for p in model.parameters())


class SharedInput(nn.Module):
    """Gives the module around the tensor what all rows have in common, which is made of their content."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Linear(8, 8, bias=False)

        def forward(self, x: torch.Tensor, common: torch.Tensor) -> torch.Tensor:
            return x + nn.functional.linear(common, self.table.weight)

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x.detach().mean((0, 1)))


def test_content_of_others_that_comes_in_as_what_all_share_is_refused(world: World) -> None:
    """Its gradients add up to autograd's own; only other company shows whose content they are made of."""
    with Run(world, net(SharedInput)) as run, pytest.raises(CoupledModel, match="REPLACEMENT"):
        run.gradients(next(iter(run.steps)))


# --- the order of depth ---------------------------------------------------------------------------------------------------


class Places(Net):
    """Uses the weight of its head, which counts as above the layers, past its module; where, only the call tells."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(8, 8, bias=False)

    def forward(self, ids: torch.Tensor, where: str) -> torch.Tensor:
        x = self.embed(ids)
        if where == "below":
            x = x @ self.table.weight
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x.mean(1) if where == "below" else x.mean(1) @ self.table.weight)


@pytest.mark.parametrize(("where", "taken"), [("below", False), ("above", True)])
def test_a_tensor_that_acts_on_the_other_side_of_the_layers_is_refused(world: World, where: str, taken: bool) -> None:
    def losses(model: nn.Module, rows: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(rows["ids"], where), rows["labels"], reduction="none")

    torch.manual_seed(0)
    with Run(world, Places().double()) as run:
        assert {t.places for _, t in run.private.prepared.router.tensors if t.name == "table.weight"} == {(("", HEAD),)}
        if taken:
            run.gradients(next(iter(run.steps)), losses)
            assert list(run.private.prepared.router.around.values()) == [""]
            return
        with pytest.raises(UnsupportedModule, match=r"DEPTH_ORDER.*'table\.weight'.*above the last layer"):
            run.gradients(next(iter(run.steps)), losses)


class Below(Places):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids, "below")


def test_a_tensor_used_past_its_module_lies_where_it_is_used(world: World) -> None:
    """Its module never runs, and is registered behind the layers."""
    torch.manual_seed(0)
    with Run(world, Below().double()) as run:
        assert {t.places for _, t in run.private.prepared.router.tensors if t.name == "table.weight"} == {(("", EMBEDDINGS),)}
        run.gradients(next(iter(run.steps)))
        assert list(run.private.prepared.router.around.values()) == [""]


# --- who decides ----------------------------------------------------------------------------------------------------------


def moves(world: World, kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, dict[int, str]]]:
    """All that a run did to its sites: whether anything was begun then, and where tensors went."""
    found: list[tuple[bool, dict[int, str]]] = []
    begun = [False]
    real = Router.place
    with monkeypatch.context() as patch:
        patch.setattr(Router, "place", lambda self, around: (found.append((begun[0], dict(around))), real(self, around))[1])
        with Run(world, net(kind)) as run:
            for rows in next(iter(run.steps)):
                begun[0] = run.private.prepared.attempt is not None
                run.private.backward(per_example(run.net, rows), rows)
    return found


def test_tensors_are_taken_elsewhere_before_anything_is_charged_and_whatever_contributions_say(tmp_path, monkeypatch) -> None:
    """Private content is seen after the last move, and two corpora move alike."""
    one, other = (
        moves(small_world(tmp_path / str(seed), record=lambda k, seed=seed: token_record(k + seed)), Past, monkeypatch)
        for seed in (0, 5_000)
    )
    assert one == other and len(one) == 2 and not any(begun for begun, _ in one)
    assert list(one[1][1].values()) == ["extra"]


def test_in_a_private_microbatch_nothing_moves(world: World) -> None:
    """What keeps examples apart in the probes and not behind them is refused where it is met."""
    flat = [False]

    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.flatten(0, 1)).view(x.shape) if flat[0] else self.inner(x)

    with Run(world, net(Turns)) as run:
        router = run.private.prepared.router
        for rows in next(iter(run.steps)):
            flat[0] = run.private.prepared.attempt is not None
            if flat[0]:
                assert router.noted is None
                with pytest.raises(UnsupportedModule, match=r"BATCH_DIMENSION.*'extra\.inner'"):
                    run.private.backward(per_example(run.net, rows), rows)
                break
            run.private.backward(per_example(run.net, rows), rows)
        assert flat[0] and router.around == {}


def test_a_wrong_rule_of_somebody_elses_is_told_and_not_passed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", registry._entries)

    @gradient_rule(nn.Linear, replace=True)
    def halved(module: nn.Module, call: Any, grad: torch.Tensor) -> Any:
        return linear(module, call, 0.5 * grad)

    with Run(world, net(Past)) as run, pytest.raises(UnsupportedModule, match=r"GRADIENT_MISMATCH.*is probably wrong"):
        run.gradients(next(iter(run.steps)))


def test_what_no_module_around_shows_is_refused_with_the_first_cause_and_the_last(world: World) -> None:
    class Kept(Past):
        def __init__(self) -> None:
            super().__init__()
            self.tensors = [self.inner.weight]  # no other run of it can give this another tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x @ self.tensors[0])

    with Run(world, net(Kept)) as run:
        with pytest.raises(UnsupportedModule, match=r"(?s)^GRADIENT_MISMATCH: tensor 'extra\.inner\.weight'.*No module around"):
            run.gradients(next(iter(run.steps)))
        assert run.private.prepared.router.noted is None
