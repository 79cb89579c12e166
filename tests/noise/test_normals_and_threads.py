"""The numbers of a release do not depend on how the work is cut, buffered or shared among threads."""

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain.kernels import reductions  # noqa: E402
from dptrain.noise import KeyStream, LatticeGaussian, lattice  # noqa: E402
from dptrain.noise import threads as sharing  # noqa: E402
from dptrain.noise.lattice import CHUNK  # noqa: E402
from dptrain.noise.normals import TAIL_LANE, BoxMuller  # noqa: E402
from dptrain.noise.threads import Idle, Threads  # noqa: E402

STREAM = KeyStream("noise", b"r" * 16, 0, bytes(range(32)))


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["team", "pool"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has torch's own threads share the work, or those of a pool, as where there is no compiler."""
    if request.param == "pool":
        monkeypatch.setattr(sharing, "team", lambda: None)
    elif sharing.team() is None:
        pytest.skip("no compiler, or torch runs on something else than OpenMP")
    return request.param


def plain_normals(stream, step: int, lane: int, offset: int, count: int) -> torch.Tensor:
    """The transform as it was first written, one torch operation after another: what every release since has to equal."""
    pairs = (count + 1) // 2
    words = torch.frombuffer(bytearray(stream.read(step, lane, offset // 2, pairs)), dtype=torch.int64).view(pairs, 2)
    first, second = words[:, 0], words[:, 1]
    mantissa, low = (1 << 53) - 1, (1 << 11) - 1
    fine = ((first & low) << 10) + ((second >> 1) & (low >> 1)) + 1
    x = ((first >> 11) & mantissa).double() * 2.0**-54 + fine.double() * 2.0**-75
    for index in torch.nonzero(x < 2.0**-21).flatten().tolist():
        more = stream.read(step, lane | TAIL_LANE, offset // 2 + index, 1)
        x[index] += (int.from_bytes(more[:8], "little") >> 11) * 2.0**-128
    mirrored = (second & 1) == 1
    logarithm = torch.where(mirrored, 1.0 - x, x).log()
    near_one = mirrored & (x < 2.0**-12)
    logarithm[near_one] = torch.log1p(-x[near_one])
    radius = (logarithm * -2.0).sqrt()
    angle = ((second >> 11) & mantissa).double() * (2.0**-53 * 2.0 * math.pi)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1).view(-1)[:count]


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (0, 2), (4, 7), (100, 12345), (CHUNK, CHUNK), (2, 3 * CHUNK + 1)])
def test_normals_are_those_of_the_plain_transform_bit_for_bit(offset: int, count: int) -> None:
    torch.set_num_threads(1)
    assert torch.equal(BoxMuller().normals(STREAM, 3, 1, offset, count), plain_normals(STREAM, 3, 1, offset, count))


def test_normals_of_rare_words_are_those_of_the_plain_transform() -> None:
    """Words with many leading zeros, whose radii lie in the tail or at the centre: one in two million and more."""

    class Rare:
        def read(self, step: int, lane: int, first_block: int, blocks: int) -> bytes:
            tail = lane >= TAIL_LANE
            rows = []
            for k in range(first_block, first_block + blocks):
                own = int.from_bytes(STREAM.read(9, 1 if tail else 0, k, 1), "little")
                first, second = own & (1 << 64) - 1, own >> 64
                rows.append(((first if tail else first >> k % 65) | second << 64).to_bytes(16, "little"))
            return b"".join(rows)

    found = BoxMuller().normals(Rare(), 1, 0, 0, 4000)
    assert torch.equal(found, plain_normals(Rare(), 1, 0, 0, 4000))
    radii = found.view(-1, 2).norm(dim=1)
    assert float(radii.max()) > 8 and float(radii.min()) < 2.0**-12, "both ends were reached"


def test_one_transform_keeps_nothing_of_a_call_for_the_next() -> None:
    kept = BoxMuller()
    for offset, count in ((0, 5000), (0, 10), (8, 5001), (0, 5000)):
        assert torch.equal(kept.normals(STREAM, 1, 2, offset, count), BoxMuller().normals(STREAM, 1, 2, offset, count))
    first = kept.normals(STREAM, 1, 2, 0, 100)
    copy = first.clone()
    kept.normals(STREAM, 1, 2, 100, 100)
    assert torch.equal(first, copy), "what was returned is the caller's"


def released(threads: int, count: int = 5 * CHUNK + 3, dtype: torch.dtype = torch.float64, draws: int = 1) -> torch.Tensor:
    torch.set_num_threads(threads)
    total = torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return LatticeGaussian(STREAM).release_(total, 0.3, 7.0, step=2, lane=4, draws=draws)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("draws", [1, 3])
def test_a_release_is_the_same_on_any_number_of_threads(form: str, dtype: torch.dtype, draws: int) -> None:
    alone = released(1, dtype=dtype, draws=draws)
    assert all(torch.equal(alone, released(threads, dtype=dtype, draws=draws)) for threads in (2, 3, 5))


def test_a_release_is_that_of_the_plain_formula_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    total = torch.randn(5 * CHUNK + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gamma = 0.3 * 2.0**-32
    noise = plain_normals(STREAM, 2, 4, 0, len(total))
    expected = ((total / gamma).round() + (noise * 2.0**32).round()) * (gamma / 7.0)
    assert torch.equal(released(2), expected)
    monkeypatch.setattr(lattice, "CHUNK", 1 << 12)
    assert torch.equal(released(2), expected)


def test_every_piece_is_done_once_by_no_more_threads_than_torch_has(form: str) -> None:
    torch.set_num_threads(5)
    threads, done, lock, meet = Threads(3), [], threading.Lock(), threading.Barrier(3)

    def work(piece: int) -> None:
        with lock:
            done.append((piece, threading.get_ident()))
        if piece < 3:
            meet.wait(30)  # only three threads at a time get past it

    threads.each(work, range(40))
    assert sorted(piece for piece, _ in done) == list(range(40))
    assert len({thread for _, thread in done}) == 3
    torch.set_num_threads(1)
    done.clear()
    threads.each(work, range(3, 9))
    assert done == [(piece, threading.get_ident()) for piece in range(3, 9)], "one thread works in order, by itself"
    threads.close()


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_failure_in_any_thread_is_raised_and_no_thread_is_left_waiting(form: str, where: str) -> None:
    torch.set_num_threads(2)
    threads, here, begun = Threads(2), threading.get_ident(), threading.Event()

    def work(piece: int) -> None:
        mine = (threading.get_ident() == here) == (where == "here")
        if mine:
            begun.set()
            raise ArithmeticError(f"piece {piece}")
        begun.wait(30)

    with pytest.raises(ArithmeticError, match="piece"):
        threads.each(work, range(100))
    threads.close()


def test_a_release_in_inference_mode_is_written_by_every_thread(form: str) -> None:
    """The mode belongs to a thread, and torch changes no inference tensor outside it; an empty draw may be released in it."""
    torch.set_num_threads(2)
    with torch.inference_mode():
        total = torch.zeros(4 * CHUNK, dtype=torch.float64)
        LatticeGaussian(STREAM).release_(total, 1.0, 1.0, step=1, lane=0)
    assert bool((total != 0).any())


def test_no_thread_and_no_key_stream_are_left_after_destroy(form: str) -> None:
    torch.set_num_threads(2)
    before = set(threading.enumerate())  # others may end meanwhile
    gaussian = LatticeGaussian(KeyStream("noise", b"r" * 16, 0, bytes(32)))
    gaussian.release_(torch.zeros(4 * CHUNK, dtype=torch.float64), 1.0, 1.0, step=1, lane=0)
    assert len(set(threading.enumerate()) - before) == (form == "pool")
    gaussian.destroy()
    assert set(threading.enumerate()) <= before


def test_torch_works_on_one_thread_inside_and_on_as_many_as_before_outside(form: str) -> None:
    """A helper from which torch shared work would keep threads for good, and slow the caller."""
    torch.set_num_threads(3)
    threads, seen = Threads(3), []
    for pieces in (1, 12):
        threads.each(lambda _: seen.append((threading.get_ident(), torch.get_num_threads())), range(pieces))
    assert {count for _, count in seen} == {1} and torch.get_num_threads() == 3
    with pytest.raises(ZeroDivisionError):
        threads.each(lambda piece: 1 // piece, range(12))
    assert torch.get_num_threads() == 3
    fresh: list[int] = []
    late = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    late.start()
    late.join()
    assert fresh == [3], "threads to come begin with the setting of before"
    threads.close()


def _of_the_system() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="the system does not list threads")
def test_work_is_shared_among_threads_that_torch_has_already() -> None:
    """Other ones would share cores with those of torch, which wait by spinning."""
    if sharing._parallel() is None or reductions.library() is None:
        pytest.skip("no compiler, or torch runs on something else than OpenMP")
    torch.set_num_threads(2)
    torch.ones(1 << 20).add(1.0)
    before, seen, meet = _of_the_system(), [], threading.Barrier(2)

    def work(piece: int) -> None:
        meet.wait(30)
        seen.append(str(threading.get_native_id()))

    Threads(8).each(work, range(2))
    assert len(set(seen)) == 2 and set(seen) <= before and _of_the_system() <= before


def test_a_piece_that_an_interrupt_took_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt can come where a thread enters the interpreter, and nobody can catch it; the sum would lack a piece."""
    torch.set_num_threads(2)

    def share(threads: int, most: int, pieces: int, one: Callable[[int], None]) -> None:
        for piece in range(1, pieces):
            one(piece)

    monkeypatch.setattr(sharing, "team", lambda: share)
    with pytest.raises(KeyboardInterrupt, match="1 of 5 pieces"):
        Threads(2).each(lambda _: None, range(5))
    assert torch.get_num_threads() == 2


def test_products_round_alike_in_every_thread(form: str) -> None:
    """A thread of torch that shared a product before would compute on several threads inside, by another algorithm of MKL."""
    x, y = torch.randn(17, 1000), torch.randn(1000, 333)
    torch.set_num_threads(1)
    alone = x @ y
    torch.set_num_threads(2)
    for _ in range(3):
        layers = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 64))
        layers(torch.randn(16, 100, 64)).sum().backward()
    meet, found = threading.Barrier(2), []

    def work(piece: int) -> None:
        if piece < 2:
            meet.wait(30)  # so that both threads have pieces
        found.append((threading.get_ident(), torch.equal(x @ y, alone)))

    threads = Threads(2)
    threads.each(work, range(40))
    threads.close()
    assert len({thread for thread, _ in found}) == 2 and all(same for _, same in found)


def test_what_a_signal_handler_raises_is_raised_wherever_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a thread enters the interpreter, and the error would be told and forgotten; others are told as ever."""

    class Preempted(Exception):
        pass

    def share(threads: int, most: int, pieces: int, one: Callable[[int], None]) -> None:
        one(0)
        sys.unraisablehook(SimpleNamespace(object=one, exc_value=Preempted()))
        sys.unraisablehook(SimpleNamespace(object=share, exc_value=ArithmeticError()))
        one(1)

    told: list[Any] = []
    done: list[int] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr(sharing, "_One", lambda one: one)
    monkeypatch.setattr(sharing, "team", lambda: share)
    torch.set_num_threads(2)
    with pytest.raises(BaseException) as raised:
        Threads(2).each(done.append, range(3))
    assert raised.type is Preempted and done == [0] and [one.object for one in told] == [share] and torch.get_num_threads() == 2


def test_ctypes_tells_what_came_out_of_a_function_that_c_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(_: int) -> None:
        raise ArithmeticError

    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    sharing._One(one)(0)
    assert [(each.object, type(each.exc_value)) for each in told] == [(one, ArithmeticError)]


def test_an_interrupt_in_a_piece_is_raised_by_the_caller(form: str) -> None:
    torch.set_num_threads(2)

    def work(piece: int) -> None:
        if piece == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Threads(2).each(work, range(8))


def test_a_team_that_leaves_a_piece_out_or_does_one_twice_is_not_used() -> None:
    class Library:
        def __init__(self, pieces: list[int]) -> None:
            self._pieces = pieces

        def dptrain_share(self, parallel: int, threads: int, most: int, count: int, one: Callable[[int], None]) -> None:
            for piece in self._pieces:
                one(piece)

    assert sharing.works(0, Library([6, 0, 1, 2, 3, 4, 5]))
    assert not sharing.works(0, Library([0, 1, 2, 3, 4, 5]))
    assert not sharing.works(0, Library([0, 0, 1, 2, 3, 4, 5, 6]))


def test_what_is_idle_serves_again_and_what_is_at_work_serves_nobody_else() -> None:
    made: list[object] = []
    idle = Idle(lambda: made.append(object()) or made[-1])
    with idle.one() as first, idle.one() as second:
        assert first is not second
    with pytest.raises(ZeroDivisionError), idle.one():
        raise ZeroDivisionError
    with idle.one() as first, idle.one() as second:
        assert first is not second and len(made) == 2
    idle.clear()
    with idle.one():
        assert len(made) == 3
