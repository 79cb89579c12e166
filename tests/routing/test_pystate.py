"""Every place that plain Python state may lie in, and a key that changes with it and with nothing else."""

import functools
import gc
import types
import weakref
from collections.abc import Callable, Hashable

import numpy
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.routing import pystate  # noqa: E402

SCALE = {"by": 1.0}
DEEP = {"by": 1.0}
HELPERS = types.ModuleType("helpers_of_a_user")
HELPERS.scale = 1.0
HELPERS.unread = 1.0


def inner(x):
    return x * DEEP["by"]


class Slotted:
    __slots__ = ("__hidden", "scale")

    def __init__(self) -> None:
        self.scale = 1.0
        self.__hidden = 1.0

    def hide(self) -> None:
        self.__hidden = 2.0


class Losses:
    factor = 1.0

    def __call__(self, model, rows):
        return self.helper(model(rows)) * self.factor

    def helper(self, x):
        return x * SCALE["by"]


class Model(nn.Module):
    kind_scale = 1.0
    table: tuple = (1, [2, 3])

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self._private = [1.0]
        self.deep = [[[[[[1.0]]]]]]
        self.array = numpy.ones(3)
        self.slotted = Slotted()
        self.number = 1

    def forward(self, x):
        return self.scaled(x) * HELPERS.scale

    def scaled(self, x):
        def apply(y):
            return inner(y) * sum(SCALE.values())

        return apply(x)


def set_deep(model: Model) -> None:
    model.deep[0][0][0][0][0][0] = 2.0


CHANGES: dict[str, Callable[[Model], object]] = {
    "private list": lambda model: model._private.append(2.0),
    "nested list": set_deep,
    "array in place": lambda model: model.array.__setitem__(1, 2.0),
    "slot": lambda model: setattr(model.slotted, "scale", 2.0),
    "private slot": lambda model: model.slotted.hide(),
    "class attribute": lambda model: setattr(Model, "kind_scale", 2.0),
    "container of a class": lambda model: Model.table[1].append(4),
    "global of a nested function": lambda model: SCALE.update(by=2.0),
    "global of a global function": lambda model: DEEP.update(by=2.0),
    "attribute of a module of functions": lambda model: setattr(HELPERS, "scale", 2.0),
    "type of a number": lambda model: setattr(model, "number", 1.0),
    "mode": lambda model: model.eval(),
    "class of an object": lambda model: setattr(Slotted, "unused", 2.0),
}


@pytest.fixture
def restored():
    yield
    SCALE["by"] = DEEP["by"] = HELPERS.scale = HELPERS.unread = Model.kind_scale = Losses.factor = 1.0
    Model.table = (1, [2, 3])
    if hasattr(Slotted, "unused"):
        del Slotted.unused


def key(model: nn.Module) -> tuple[Hashable, ...]:
    return tuple(pystate.of_model(model))


@pytest.mark.parametrize("change", CHANGES)
def test_state_of_a_model_is_seen(change: str, restored) -> None:
    model = Model()
    before = key(model)
    assert before == key(model) and hash(before) == hash(key(model))
    CHANGES[change](model)
    assert key(model) != before


def test_a_name_that_nothing_reads_is_no_state(restored) -> None:
    model = Model()
    before = key(model)
    HELPERS.unread = 2.0
    assert key(model) == before


def losses_with(cell, default):
    def outer(model, rows, given=default):
        return [(lambda y: y * cell[0] * SCALE["by"])(row) for row in rows], given

    return outer


@pytest.mark.parametrize("place", ["cell", "default", "global", "attribute", "partial"])
def test_state_of_a_loss_is_seen(place: str, restored) -> None:
    cell, default, bound = numpy.ones(2), [1.0], [1.0]
    function = losses_with(cell, default)
    loss = functools.partial(function, given=bound)
    before = tuple(pystate.of_function(loss))
    assert before == tuple(pystate.of_function(loss))
    {
        "cell": lambda: cell.fill(2.0),
        "default": lambda: default.append(1.0),
        "global": lambda: SCALE.update(by=2.0),
        "attribute": lambda: setattr(function, "scale", 2.0),
        "partial": lambda: bound.append(1.0),
    }[place]()
    assert tuple(pystate.of_function(loss)) != before


@pytest.mark.parametrize("place", ["global of a helper", "attribute", "class attribute"])
@pytest.mark.parametrize("form", ["object", "method"])
def test_state_of_a_loss_that_is_an_object_is_seen(place: str, form: str, restored) -> None:
    made = Losses()
    loss = made if form == "object" else made.__call__
    before = tuple(pystate.of_function(loss))
    if place == "global of a helper":
        SCALE["by"] = 2.0
    else:
        (made if place == "attribute" else Losses).factor = 2.0
    assert tuple(pystate.of_function(loss)) != before


def test_what_a_key_speaks_of_lives_as_long_as_the_key() -> None:
    """Else another object could get its identity, and pass for it."""

    class Thing:
        pass

    model = Model()
    model.thing = Thing()
    alive = weakref.ref(model.thing)
    before = key(model)
    model.thing = Thing()
    gc.collect()
    assert alive() is not None
    assert key(model) != before
    del before
    gc.collect()
    assert alive() is None


def test_large_data_counts_as_what_it_is(restored) -> None:
    model = Model()
    model.corpus = [[float(i + j) for j in range(1000)] for i in range(1000)]
    model.array = numpy.zeros(100_000)
    model.loop = []
    model.loop.append(model.loop)
    before = key(model)
    assert len(before) < 3 * pystate._ENTRIES
    model.corpus[999][0] = -1.0
    model.array[0] = 1.0
    assert key(model) == before
