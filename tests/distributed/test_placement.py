"""Where sums are added up over ranks, and who adds the noise of which coordinate: for every number of ranks, in one process.

Ranks are threads here that exchange tensors in memory, so that hundreds of shapes and numbers of ranks take a second.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from dptrain import parallel  # noqa: E402
from dptrain.blocks.stack import Tensor  # noqa: E402
from dptrain.parallel import placement  # noqa: E402
from dptrain.parallel.placement import Exchanged, Sharded, Shards, buckets  # noqa: E402
from dptrain.parallel.ranks import Ranks  # noqa: E402
from dptrain.parallel.sharded import ShardedModel, is_sharded  # noqa: E402
from ledger.leaves.numerics import sums_margin  # noqa: E402
from tests.distributed.jobs import net  # noqa: E402

LIMIT = 20.0


class Meeting:
    """Lets threads exchange tensors as processes of a group do."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._held: dict[int, Any] = {}

    def round(self, rank: int, mine: Any, take: Callable[[dict[int, Any]], object]) -> None:
        """Every thread gives something, takes what it wants of all, and goes on once all have."""
        self._held[rank] = mine
        self._barrier.wait(LIMIT)
        take(self._held)
        self._barrier.wait(LIMIT)

    def abort(self) -> None:
        self._barrier.abort()


class Thread(Ranks):
    """One rank of a meeting; it runs in a thread that is named for it."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank, self.size, self.meeting = rank, meeting.size, meeting


_here = threading.local()


class Done:
    """Work that was done when it was begun."""

    def wait(self) -> None:
        """Waits for nothing."""


def _all_to_all(
    theirs: torch.Tensor,
    mine: torch.Tensor,
    takes: Sequence[int] | None = None,
    gives: Sequence[int] | None = None,
    *,
    async_op: bool = False,
) -> Done:
    me: Thread = _here.ranks
    gives = gives or [mine.numel() // me.size] * me.size
    takes = takes or list(gives)

    def take(held: dict[int, tuple[torch.Tensor, Sequence[int]]]) -> None:
        parts = [held[rank][0].view(-1).split(list(held[rank][1]))[me.rank] for rank in range(me.size)]
        assert [part.numel() for part in parts] == list(takes), "what one gives is what the other takes"
        theirs.view(-1).copy_(torch.cat(parts))

    me.meeting.round(me.rank, (mine.clone(), gives), take)
    return Done()


def _broadcast(part: torch.Tensor, source: int, *, async_op: bool = False) -> Done:
    me: Thread = _here.ranks
    me.meeting.round(me.rank, part.clone(), lambda held: part.copy_(held[source]))
    return Done()


@contextmanager
def _in_memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement.dist, "all_to_all_single", _all_to_all)
        patch.setattr(placement.dist, "broadcast", _broadcast)
        patch.setattr(placement.dist, "get_backend", lambda: "gloo")
        yield


def together(size: int, work: Callable[[Thread], Any]) -> list[Any]:
    """Runs the work of every rank in a thread, and returns what each returned."""
    meeting, found, failed = Meeting(size), [None] * size, list[BaseException]()

    def run(rank: int) -> None:
        _here.ranks = Thread(meeting, rank)
        try:
            found[rank] = work(_here.ranks)
        except BaseException as error:
            failed.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    with _in_memory():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    if failed:
        raise next((error for error in failed if not isinstance(error, threading.BrokenBarrierError)), failed[0])
    return found


@dataclass
class Released:
    """What a rank did: coordinates whose noise it added, by tensor, and the gradients that it has at the end."""

    owned: list[tuple[int, int]]
    gradients: dict[int, torch.Tensor]


def tensors_of(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    named = ((f"t{place}", nn.Parameter(torch.zeros(shape))) for place, shape in enumerate(shapes))
    return [Tensor(name, (name,), (("", 0),), parameter) for name, parameter in named]


def noise(lane: int, offset: int, count: int) -> torch.Tensor:
    """Noise that is a function of tensor and coordinate."""
    return torch.arange(offset, offset + count, dtype=torch.float64) * 1e-3 + lane


def sums_of(rank: int, shapes: Sequence[tuple[int, ...]], scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) * scale for shape in shapes]


def released(made: Any, sums: Iterator[torch.Tensor], wide: bool, public: Iterator[torch.Tensor] | None = None) -> Released:
    """What `PrivateGradients.release` does with a placement, without the rest of it."""
    owned: list[tuple[int, int]] = []
    gradients: dict[int, torch.Tensor] = {}
    for share in made.shares(sums, wide=wide, public=public):
        owned += [(share.lane, place) for place in range(share.offset, share.offset + share.values.numel())]
        share.values.view(-1).add_(noise(share.lane, share.offset, share.values.numel()))
        if share.public is not None:
            share.values.add_(share.public)
        gradients |= dict(made.released(share))
    return Released(owned, gradients | dict(made.rest()))


shapes_of = st.lists(st.sampled_from([(1,), (2,), (5, 3), (7,), (4, 1, 2), (0, 3)]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(shapes=shapes_of, size=st.integers(1, 6), wide=st.booleans(), public=st.booleans(), bucket=st.integers(1, 40))
def test_every_coordinate_has_one_owner_and_every_rank_gets_the_same_bits(
    shapes, size: int, wide: bool, public: bool, bucket: int
) -> None:
    """Also where there are fewer coordinates than ranks, tensors without any, and buckets that begin and end in tensors."""
    tensors = tensors_of(shapes)

    def work(me: Thread) -> Released:
        added = iter(sums_of(me.rank + 100, shapes)) if public else None
        return released(Exchanged(me, tensors, bucket), iter(sums_of(me.rank, shapes)), wide, added)

    found = together(size, work)
    every = [one for each in found for one in each.owned]
    expected = [(lane, place) for lane, tensor in enumerate(tensors) for place in range(tensor.coordinates)]
    assert sorted(every) == expected, "noise of a coordinate is added once"
    kind = torch.float64 if wide else torch.float32
    owners = {one: rank for rank, each in enumerate(found) for one in each.owned}
    for lane, shape in enumerate(shapes):
        total = added_over_ranks(lane, shapes, owners, size, kind)
        total += noise(lane, 0, total.numel())
        if public:
            total += added_over_ranks(lane, shapes, owners, size, kind, first=100)
        for each in found:
            assert torch.equal(each.gradients[lane], total.float().view(shape)), "p.grad"


def added_over_ranks(
    lane: int, shapes: Any, owners: dict[tuple[int, int], int], size: int, kind: torch.dtype, first: int = 0
) -> torch.Tensor:
    """Sums as owners add them up: theirs as they have them, then what others send, in the order of ranks."""
    of_ranks = torch.stack([sums_of(rank + first, shapes)[lane].view(-1) for rank in range(size)])
    total = torch.zeros(of_ranks.shape[1], dtype=torch.float64)
    for place in range(len(total)):
        owner = owners[lane, place]
        total[place] = of_ranks[owner, place]
        for rank in range(size):
            if rank != owner:
                total[place] += of_ranks[rank, place].to(kind).double()
    return total


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 7), st.integers(1, 60))
def test_buckets_deal_every_coordinate_once_in_order_and_evenly(sizes: list[int], ranks: int, most: int) -> None:
    dealt = buckets(sizes, ranks, most)
    pieces = [piece for one in dealt for piece in one.pieces]
    every = [(one.lane, place) for one in pieces for place in range(one.first, one.first + one.count)]
    assert every == [(lane, place) for lane, size in enumerate(sizes) for place in range(size)]
    for number, bucket in enumerate(dealt):
        held = sum(bucket.lengths)
        assert held == most or number == len(dealt) - 1
        assert bucket.width == max(bucket.lengths) == -(-held // ranks), "nobody owns more than an even share"
        assert [piece.owner for piece in bucket.pieces] == sorted(piece.owner for piece in bucket.pieces)


@settings(max_examples=30, deadline=None)
@given(shapes=shapes_of, size=st.integers(1, 5), microbatches=st.integers(1, 3), wide=st.booleans(), narrow=st.booleans())
def test_rows_of_sharded_parameters_get_noise_and_gradient_where_they_lie(
    shapes, size: int, microbatches: int, wide: bool, narrow: bool
) -> None:
    """Parameters are whole here, which says nothing of torch's own cut; that is held by the test of the layout."""
    tensors = tensors_of(shapes)

    def work(me: Thread) -> Released:
        sink = Shards(me, tensors)
        sink.narrow = narrow
        sink.begin(wide=wide)
        for number in range(microbatches):
            for index, total in enumerate(sums_of(me.rank + 10 * number, shapes)):
                sink.add(index, None if (index + number) % 4 == 3 else total)
            sink.flush()
        return released(Sharded(me, tensors), sink.take(), wide)

    found = together(size, work)
    every = [one for each in found for one in each.owned]
    assert sorted(every) == [(lane, place) for lane, tensor in enumerate(tensors) for place in range(tensor.coordinates)]
    kind = torch.float64 if wide else torch.float32
    kept = torch.float32 if narrow and not wide else torch.float64
    for lane, shape in enumerate(shapes):
        if not tensors[lane].coordinates:
            continue
        total = torch.zeros(shape, dtype=torch.float64)
        for number in range(microbatches):
            if (lane + number) % 4 != 3:
                of_all = torch.zeros(shape, dtype=torch.float64)
                for rank in range(size):
                    of_all += sums_of(rank + 10 * number, shapes)[lane].to(kind).double()
                total += of_all
                total = total.to(kept).double()
        total = (total.view(-1) + noise(lane, 0, total.numel())).view(shape)
        got = torch.cat([each.gradients[lane] for each in found if lane in each.gradients and each.gradients[lane].numel()])
        assert torch.equal(got.view(shape), total)


def test_the_exchange_rounds_once_and_by_what_the_page_says() -> None:
    """2^-23 (n + 1) / z: two roundings of sums of n contributions whose whitened norms are at most 1 / z."""
    assert sums_margin(99, 2.0) == 2.0**-23 * 100 / 2.0
    shapes, size = [(64,)], 3
    exact = sum(sums_of(rank, shapes, 1 / 3)[0] for rank in range(size))

    def sent(wide: bool) -> Released:
        tensors = tensors_of(shapes)
        found: list[Released] = together(
            size, lambda me: released(Exchanged(me, tensors), iter(sums_of(me.rank, shapes, 1 / 3)), wide)
        )
        return found[0]

    found, wide = sent(False), sent(True)
    assert torch.equal(wide.gradients[0], (exact + noise(0, 0, 64)).float())
    assert not torch.equal(found.gradients[0], wide.gradients[0])


def test_no_old_memory_lies_beside_what_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient may be saved with all of the bucket that it lies in, also where ranks own fewer coordinates than others."""
    empty = torch.empty

    def soiled(*size: Any, **how: Any) -> torch.Tensor:
        found = empty(*size, **how)
        return found.fill_(torch.nan) if found.is_floating_point() else found

    monkeypatch.setattr(torch, "empty", soiled)
    shapes, size = [(7,), (4,)], 4
    tensors = tensors_of(shapes)
    for each in together(size, lambda me: released(Exchanged(me, tensors), iter(sums_of(me.rank, shapes)), False)):
        for gradient in each.gradients.values():
            beside = torch.tensor(gradient.untyped_storage().tolist(), dtype=torch.uint8).view(torch.float32)
            assert len(beside) == 12 and bool(beside.isfinite().all())


def test_one_process_alone_hears_itself_and_agrees_with_itself() -> None:
    alone, said = parallel.ALONE, []
    assert alone.first(lambda: said.append(1) or b"done") == b"done" and said == [1]
    assert alone.all(b"own") == [b"own"] and alone.texts("held") == ["held"] and alone.leads
    alone.agree({"anything": b"x"})
    with pytest.raises(ZeroDivisionError):
        alone.first(lambda: 1 // 0)  # type: ignore[arg-type, return-value]


# --------------------------------------------------------------------------------- a model that torch has sharded


@pytest.fixture
def group_of_one(tmp_path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_sharded_model_reduces_nothing_and_lies_as_the_optimizer_holds_it_between_microbatches(group_of_one) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    assert is_sharded(model)
    held = list(model.parameters())
    sharded = ShardedModel(model)
    for _ in range(2):
        model(torch.zeros(3, 7, dtype=torch.int64)).sum().backward()
        sharded.rest()
        assert all(parameter.grad is None for parameter in model.parameters()), "a reduced gradient"
        assert all(own is before for own, before in zip(model.parameters(), held, strict=True))
    sharded.close()
    model(torch.zeros(3, 7, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters()), "positive control: torch reduces again"
