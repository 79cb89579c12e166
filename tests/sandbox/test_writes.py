"""A private forward leaves nothing in the model: what would be written is a copy, and what was written all the same shows."""

from collections import deque
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.sandbox.untouched import checksums  # noqa: E402
from dptrain.sandbox.writes import DEPTH, ENTRIES, Kept, kept_tensors  # noqa: E402
from tests.sandbox.scene import Scene  # noqa: E402

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


class Bare:
    """An object without a dictionary, that may hold another object."""

    __slots__ = ("table", "unset")

    def __init__(self, table: object) -> None:
        self.table = table


class Keeps(nn.Module):
    """Writes what it keeps, in the way that ``write`` says."""

    shared: torch.Tensor
    listed: list[torch.Tensor]

    def __init__(self, write) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("buffer", torch.zeros(4))
        self.register_buffer("later", None)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.trained = nn.Parameter(torch.ones(4))
        self.plain = torch.zeros(4)
        self.several = [torch.zeros(4)]
        self.held = {"count": torch.zeros(4), 3: [(torch.zeros(4),)]}
        self.line = deque([{"a": torch.zeros(4)}])
        self.object = SimpleNamespace(table=torch.zeros(4), tables=[torch.zeros(4)])
        self.bare = Bare(torch.zeros(4))
        self.objects = [SimpleNamespace(table=torch.zeros(4))]
        self.circle: list = [torch.zeros(4)]
        self.circle.append(self.circle)
        Keeps.shared, Keeps.listed = torch.zeros(4), [torch.zeros(4)]

    @property
    def kept(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in kept_tensors(self)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(self, x)
        return x + 1.0


WRITES = {
    "buffer": lambda m, x: m.buffer.add_(x.mean(0)),
    "buffer by item": lambda m, x: m.buffer.__setitem__(slice(0, 2), x[0, :2]),
    "buffer by data": lambda m, x: m.buffer.data.copy_(x[0]),
    "buffer by view": lambda m, x: m.buffer.view(2, 2)[0].mul_(x[0, 0]),
    "buffer by out": lambda m, x: torch.add(x[0], x[1], out=m.buffer),
    "buffer by foreach": lambda m, x: torch._foreach_add_([m.buffer], [x[0]]),
    "frozen": lambda m, x: m.frozen.copy_(x[0]),
    "frozen by index": lambda m, x: m.frozen.index_put_((torch.tensor([1]),), x[0, :1]),
    "trained": lambda m, x: m.trained.mul_(x[0]),
    "plain": lambda m, x: m.plain.add_(x[0]),
    "plain, by statistics": lambda m, x: torch.batch_norm_update_stats(x, m.plain, None, 0.1),
    "plain, by a norm of batches": lambda m, x: nn.functional.batch_norm(x, m.plain, torch.ones(4), training=True),
    "several": lambda m, x: m.several[0].copy_(x[0]),
    "random": lambda m, x: m.buffer.bernoulli_(0.5),
    "held['count']": lambda m, x: m.held["count"].add_(x[0]),
    "held[3][0][0]": lambda m, x: m.held[3][0][0].add_(x[0]),
    "line[0]['a']": lambda m, x: m.line[0]["a"].add_(x[0]),
    "object.table": lambda m, x: m.object.table.add_(x[0]),
    "object.tables[0]": lambda m, x: m.object.tables[0].add_(x[0]),
    "bare.table": lambda m, x: m.bare.table.add_(x[0]),
    "objects[0].table": lambda m, x: m.objects[0].table.add_(x[0]),
    "circle[0]": lambda m, x: m.circle[0].add_(x[0]),
    "shared": lambda m, x: Keeps.shared.add_(x[0]),
    "listed[0]": lambda m, x: m.listed[0].add_(x[0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_what_the_model_keeps_is_not_carried_out_and_named(name: str) -> None:
    model = Keeps(WRITES[name])
    scene = Scene(model, X)
    before = [each.clone() for each in model.kept]
    assert torch.equal(scene.run(range(8)), X + 1.0), "the forward goes on"
    assert len(before) == 15 and all(torch.equal(a, b) for a, b in zip(before, model.kept, strict=True))
    assert scene.sandbox.kept.written == {"random": "buffer", "several": "several[0]"}.get(name, name.split()[0].rstrip(","))


def test_a_norm_of_batches_that_does_not_train_writes_nothing_and_is_no_write() -> None:
    model = Keeps(lambda m, x: nn.functional.batch_norm(x, m.plain, torch.ones(4), training=False))
    scene = Scene(model, X)
    scene.run(range(8))
    assert scene.sandbox.kept.written is None


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_was_not_carried_out_is_not_counted(name: str) -> None:
    """Versions tell who looks at them that a tensor was written; autograd and the watch over statement A do."""
    model = Keeps(WRITES[name])
    scene = Scene(model, X)
    before, trained = [each._version for each in model.kept], model.trained._version
    scene.run(range(8))
    assert [each._version for each in model.kept] == before
    with torch.no_grad():
        model.trained.add_(1.0)
    assert model.trained._version == trained + 1, "one outside a microbatch is"


def test_the_walk_over_what_a_model_keeps_has_an_end() -> None:
    """An object inside an object is the user's, and so is what lies deeper or further than the bounds."""
    model = nn.Module()
    inner = torch.zeros(1)
    model.objects = SimpleNamespace(inside=Bare(inner))
    model.deep = model.deeper = inner
    for _ in range(DEPTH):
        model.deep = [model.deep]
    for _ in range(DEPTH + 1):
        model.deeper = (model.deeper,)
    model.long = [*range(ENTRIES - 1), torch.zeros(1), torch.zeros(1)]
    assert [name for name, _ in kept_tensors(model)] == ["deep[0][0][0][0]", f"long[{ENTRIES - 1}]"]
    del model.deep
    assert [name for name, _ in kept_tensors(model)] == [f"long[{ENTRIES - 1}]"]


def test_what_took_the_place_of_a_note_of_the_last_call_is_not_taken_for_it() -> None:
    """Memory is known by its place, which torch gives to others once it is free."""

    def notes(model: Keeps, x: torch.Tensor) -> None:
        model.held["note"] = None
        made = [torch.zeros(4).add_(1.0) for _ in range(50)]
        model.held["note"] = made[-1]

    model = Keeps(notes)
    scene = Scene(model, X)
    for _ in range(5):
        scene.run(range(8))
        scene.sandbox.kept.look()
    assert scene.sandbox.kept.written is None


def test_what_a_forward_makes_and_writes_itself_is_written() -> None:
    scene = Scene(nn.Identity(), X, lambda m, x: torch.zeros_like(x).add_(x).mul_(2.0))
    assert torch.equal(scene.run(range(8)), X * 2.0) and scene.sandbox.kept.written is None


def test_a_table_with_a_largest_norm_is_not_renormed() -> None:
    """A frozen one too: without this the released table tells which rows were looked up."""
    table = nn.Embedding(10, 4, max_norm=0.1)
    ids = torch.arange(16).reshape(8, 2) % 10
    before = table.weight.detach().clone()
    scene = Scene(table, ids)
    scene.run(range(8))
    assert torch.equal(table.weight, before) and scene.sandbox.kept.written == "weight"
    table(ids)
    assert not torch.equal(table.weight, before), "the negative control: outside a microbatch torch does it"


BEHIND_TORCH = {
    "numpy": lambda m, x: m.buffer.numpy().__iadd__(1.0),
    "another object": lambda m, x: setattr(m, "buffer", m.buffer + x.mean(0)),
    "another parameter": lambda m, x: setattr(m, "frozen", nn.Parameter(m.frozen + 1.0, requires_grad=False)),
    "later, which was None": lambda m, x: setattr(m, "later", x.mean(0)),
    "fresh buffer": lambda m, x: m.register_buffer("fresh", x.mean(0)),
    "fresh buffer that is not saved": lambda m, x: m.register_buffer("fresh", x.mean(0), persistent=False),
    "plain, by numpy": lambda m, x: m.plain.numpy().__iadd__(1.0),
    "plain, by a tensor over its numpy": lambda m, x: torch.from_numpy(m.plain.numpy()).add_(x[0]),
    "held['count'], by numpy": lambda m, x: m.held["count"].numpy().__iadd__(1.0),
    "object.table, by numpy": lambda m, x: m.object.table.numpy().__iadd__(1.0),
    "shared, by numpy": lambda m, x: Keeps.shared.numpy().__iadd__(1.0),
    "fresh parameter": lambda m, x: m.register_parameter("fresh", nn.Parameter(x.mean(0), requires_grad=False)),
}


@pytest.mark.parametrize("name", BEHIND_TORCH)
def test_a_write_that_no_operation_announces_is_found_at_the_release(name: str) -> None:
    model = Keeps(lambda m, x: None)
    scene = Scene(model, X)
    scene.sandbox.kept.seal()
    model.write = BEHIND_TORCH[name]
    assert not scene.sandbox.kept.changed()
    scene.run(range(8))
    assert scene.sandbox.kept.changed()
    expected = {"numpy": "buffer", "another object": "buffer", "another parameter": "frozen"}
    assert scene.sandbox.kept.written == expected.get(name, name.partition(" ")[0].rstrip(","))


def noted(model: Keeps, x: torch.Tensor) -> None:
    model.plain = x.mean(0)
    model.held["count"] = x.sum(0)
    model.held["more"] = x


def test_a_note_of_the_last_call_is_no_write() -> None:
    model = Keeps(noted)
    scene = Scene(model, X)
    scene.sandbox.kept.seal()
    for _ in range(3):
        scene.sandbox.kept.look()
        scene.run(range(8))
        assert not scene.sandbox.kept.changed()


def test_what_the_loop_writes_between_steps_is_no_write_of_a_forward() -> None:
    model = Keeps(lambda m, x: None)
    kept = Scene(model, X).sandbox.kept
    kept.seal()
    assert not kept.changed()
    model.plain.data.fill_(2.0)
    kept.look()
    assert not kept.changed(), "a rate that falls, say"
    kept.look()
    model.plain.numpy()[:] = 3.0
    assert kept.changed() and kept.written == "plain"
    kept.look()
    assert kept.changed(), "and stays so: later steps read it"


def test_a_look_inside_a_microbatch_takes_no_checksums() -> None:
    """A graph is made there: a write before that would pass for one of the loop."""

    def write(model: Keeps, x: torch.Tensor) -> None:
        model.plain.numpy()[:] = 3.0
        scene.sandbox.kept.look()

    model = Keeps(lambda m, x: None)
    scene = Scene(model, X)
    scene.sandbox.kept.seal()
    assert not scene.sandbox.kept.changed()
    model.write = write
    scene.run(range(8))
    assert scene.sandbox.kept.changed()


def test_an_attribute_over_memory_that_is_trained_takes_no_part_in_the_checksum() -> None:
    model = Keeps(lambda m, x: None)
    model.held["tied"] = model.trained.data.view(2, 2)
    one = torch.zeros(1)
    model.held["few bytes"] = one.expand(1 << 40)
    model.held["no memory"] = torch.zeros(4, device="meta")
    model.held["sparse"] = torch.eye(4).to_sparse()
    kept = Kept(model, frozenset([id(model.trained)]))
    kept.seal()
    with torch.no_grad():
        model.trained.add_(1.0)
    assert not kept.changed()
    one.numpy()[:] = 1.0
    assert kept.changed() and kept.written == "held['few bytes']"


def test_a_buffer_that_was_filled_before_the_seal_is_no_write() -> None:
    """A table that the first forward makes, say, which a probe ran."""

    def once(model: Keeps, x: torch.Tensor) -> None:
        if model.later is None:
            model.later = torch.arange(4.0)

    model = Keeps(once)
    scene = Scene(model, X)
    scene.run(range(8))
    scene.sandbox.kept.seal()
    scene.run(range(8))
    assert model.later is not None and not scene.sandbox.kept.changed() and scene.sandbox.kept.written is None


def checksum(value: torch.Tensor) -> int:
    return int(checksums([value]))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 4096, (1 << 18) - 1, (1 << 18) + 1, (1 << 19) + 12345])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_a_checksum_sees_any_one_change_and_any_swap(count: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    value = torch.randint(0, 100, (count,), generator=generator).to(dtype)
    before = checksum(value)
    assert checksum(value.clone()) == before
    for _ in range(20):
        place = int(torch.randint(0, count, (), generator=generator))
        changed = value.clone()
        changed[place] = ~changed[place] if dtype == torch.bool else changed[place] + 1
        assert checksum(changed) != before
        other = int(torch.randint(0, count, (), generator=generator))
        swapped = value.clone()
        swapped[place], swapped[other] = value[other], value[place]
        assert checksum(swapped) != before or torch.equal(swapped, value)
    assert checksum(torch.cat([value, value[:1]])) != before


def test_a_checksum_sees_swaps_along_every_diagonal_of_its_grid() -> None:
    value = torch.arange(1 << 18, dtype=torch.int64)
    before = checksum(value)
    for far in (1, 511, 512, 513, 1023, 1024, 512 * 509 - 1):
        swapped = value.clone()
        swapped[1000], swapped[1000 + far] = value[1000 + far], value[1000]
        assert checksum(swapped) != before


def test_what_is_trained_takes_no_part_in_the_checksum() -> None:
    model = Keeps(lambda m, x: None)
    kept = Kept(model, frozenset([id(model.trained)]))
    kept.seal()
    with torch.no_grad():
        model.trained.add_(1.0)
    assert not kept.changed()
    with torch.no_grad():
        model.frozen.add_(1.0)
    assert kept.changed() and kept.written == "frozen"
