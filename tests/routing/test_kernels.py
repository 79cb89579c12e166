"""Kernels of our own beside float64: norms and narrow gradients, alone with their contribution, or those of libraries."""

import gc
import os
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain import native  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.gradients.forms import (  # noqa: E402
    Dense,
    Gather,
    Outer,
    add_all_weighted,
    add_weighted,
    norm_sq,
    norms_sq,
)
from dptrain.kernels import reductions  # noqa: E402

needs_compiler = pytest.mark.skipif(reductions.library() is None, reason="no C++ compiler here, so libraries compute")

SHAPES = [
    (3, 128, 96, 160), (2, 130, 160, 96), (5, 2, 1024, 1024), (2, 64, 16, 768), (1, 300, 64, 64), (2, 7, 3, 5),
    (2, 33, 16, 1500), (0, 8, 16, 512), (2, 257, 700, 20), (1, 1, 1, 1), (4, 9, 8, 31),
]  # fmt: skip


def factors(shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n, t, d, p = shape
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(n, t, d, generator=generator), torch.randn(n, t, p, generator=generator)
    return a, b, torch.einsum("ntp,ntd->npd", b.double(), a.double())


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_and_narrow_gradients_are_the_float64_ones(shape: tuple[int, int, int, int]) -> None:
    a, b, true_NPD = factors(shape)
    found = reductions.grams(a, b)
    lengths_a, lengths_b = a.double().norm(dim=2), b.double().norm(dim=2)
    torch.testing.assert_close(found.square, true_NPD.square().sum((1, 2)), rtol=1e-5, atol=1e-6)
    for sums, true in (
        (found.reach, (lengths_a * lengths_b).sum(1)), (found.in_a, lengths_a.sum(1)), (found.in_b, lengths_b.sum(1))
    ):  # fmt: skip
        assert bool((sums >= true).all()), "a size that rounding is bounded by lies below the truth"
        torch.testing.assert_close(sums, true, rtol=2e-3, atol=1e-12)
    narrow = reductions.outer(a, b)
    assert (narrow is None) == (min(shape[2:]) > reductions.NARROW)
    if narrow is not None:
        torch.testing.assert_close(narrow.double(), true_NPD, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_lengths_whose_squares_vanish_count() -> None:
    """In float32 the square of 1e-24 is zero, and a large output gradient would hide behind it."""
    a, b = torch.full((1, 4, 8), 1e-24), torch.full((1, 4, 8), 1e17)
    for x, y in ((a, b), (b, a)):
        found = reductions.grams(x, y)
        lengths = x.double().norm(dim=2), y.double().norm(dim=2)
        assert float(found.reach) >= float((lengths[0] * lengths[1]).sum())
        assert float(found.in_a) >= float(lengths[0].sum()) and float(found.in_b) >= float(lengths[1].sum())


@needs_compiler
def test_factors_may_be_views_of_anything() -> None:
    a, b, _ = factors((4, 130, 160, 60))
    for x, y in ((a[:, 1:-1], b[:, 1:-1]), (a[:, :, ::2], b[:, :, 1:]), (a[:, :1].expand(-1, 130, -1), b), (a[::2], b[::2])):
        true_NPD = torch.einsum("ntp,ntd->npd", y.double(), x.double())
        torch.testing.assert_close(reductions.grams(x, y).square, true_NPD.square().sum((1, 2)), rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(reductions.outer(x, y).double(), true_NPD, rtol=1e-3, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
def test_a_contribution_has_the_same_bits_in_any_company_and_on_any_threads(threads: int) -> None:
    """What else is in the microbatch is NaN, infinite, or not there."""
    a, b, _ = factors((5, 140, 300, 48))
    alone = [(reductions.grams(a[i : i + 1], b[i : i + 1]), reductions.outer(a[i : i + 1], b[i : i + 1])) for i in range(5)]
    for hostile in (torch.nan, torch.inf, 1e30):
        x, y = a.clone(), b.clone()
        x[2], y[2, 3] = hostile, -hostile
        found, narrow = reductions.grams(x, y), reductions.outer(x, y)
        for i in (0, 1, 3, 4):
            for name in ("square", "reach", "in_a", "in_b"):
                assert torch.equal(getattr(found, name)[i], getattr(alone[i][0], name)[0])
            assert torch.equal(narrow[i], alone[i][1][0])
        assert hostile == 1e30 or not bool(found.square[2].isfinite())


@needs_compiler
@pytest.mark.parametrize("place", [(0, 0), (63, 7), (139, 299)])
def test_one_entry_that_is_not_a_number_makes_a_norm_that_is_none(place: tuple[int, int]) -> None:
    a, b, _ = factors((1, 140, 300, 48))
    a[0][place] = torch.nan
    b[0, place[0]] = 0.0  # the product with zero is no number either
    assert not bool(reductions.grams(a, b).square.isfinite())


def test_norms_agree_with_those_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in SHAPES:
        a, b, _ = factors(shape)
        found = norm_sq([Outer(a, b)])
        with matmul.using("torch"):
            assert reductions.grams(a, b) is None and reductions.outer(a, b) is None
            torch.testing.assert_close(norm_sq([Outer(a, b)]), found, rtol=1e-4, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------------- building


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is built yet, and the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reductions.library.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    reductions.library.cache_clear()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the source once for all tests, and gives the file that is kept of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("built")))
        reductions.library.cache_clear()
        assert reductions.library() is not None
        (kept,) = native.folder().iterdir()
    reductions.library.cache_clear()
    return kept


@pytest.fixture
def kept(file: Path, unbuilt: Path) -> Path:
    """Puts a file that was built where it is kept."""
    (unbuilt / "dptrain").mkdir(mode=0o700)
    return Path(shutil.copy2(file, unbuilt / "dptrain"))


def sums(found: Any) -> torch.Tensor:
    a, b, _ = factors((3, 40, 100, 70))
    return norm_sq([Outer(a, b)])


@pytest.mark.parametrize("compiler", ["/bin/false", "/nowhere/c++", ""])
def test_without_a_compiler_that_works_libraries_compute(
    compiler: str, unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    assert reductions.library() is None
    a, b, true_NPD = factors((3, 40, 100, 70))
    torch.testing.assert_close(norm_sq([Outer(a, b)]), true_NPD.square().sum((1, 2)), rtol=1e-2, atol=0.0)
    assert not [path for path in unbuilt.rglob("*") if path.is_file()], "what could not be built was left behind"


@needs_compiler
def test_what_is_built_is_kept_and_loaded_again(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reductions.library() is not None
    (kept,) = (unbuilt / "dptrain").iterdir()
    assert kept.suffix == ".so" and not (unbuilt / "dptrain").stat().st_mode & 0o077
    reductions.library.cache_clear()
    monkeypatch.setattr(native, "_built", lambda *_: pytest.fail("it was built once more"))
    assert reductions.library() is not None


@needs_compiler
@pytest.mark.parametrize("spoil", ["cut", "empty", "open to others", "a link"])
def test_what_was_kept_and_is_not_what_was_built_is_built_anew(
    spoil: str, kept: Path, unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, built = kept.read_bytes(), []
    monkeypatch.setattr(native, "_built", lambda *given: built.append(given) or whole)
    assert reductions.library() is not None and not built, "what was kept is loaded"
    if spoil == "a link":
        kept.rename(unbuilt / "elsewhere.so")
        kept.symlink_to(unbuilt / "elsewhere.so")
    elif spoil == "open to others":
        kept.chmod(0o666)
    else:
        kept.write_bytes(whole[: 4096 * (spoil == "cut")])
    reductions.library.cache_clear()
    assert reductions.library() is not None and built, "it was loaded"


@needs_compiler
def test_a_header_that_changed_is_compiled_anew(unbuilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, header = tmp_path / "one.cpp", tmp_path / "number.h"
    source.write_text('#include "number.h"\nextern "C" int number() { return NUMBER; }')
    found = []
    for text in ("#define NUMBER 1", "#define NUMBER 1", "#define NUMBER 2"):
        header.write_text(text)
        found.append(native.built(source, lambda made: None, lambda made: True).number())
    assert found == [1, 1, 2]
    assert len(list((unbuilt / "dptrain").iterdir())) == 2, "what did not change was kept"


@needs_compiler
def test_a_directory_that_others_may_write_is_not_loaded_from(
    file: Path, unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_built", lambda *_: file.read_bytes())
    folder = unbuilt / "dptrain"
    folder.mkdir()
    for open_to_all in (folder, unbuilt):
        os.chmod(open_to_all, 0o777)
        assert native.folder() is None and reductions.library() is not None
        assert list(folder.iterdir()) == [], "it was put where others could put another in its place"
        os.chmod(open_to_all, 0o700)
        reductions.library.cache_clear()


@needs_compiler
def test_nothing_is_built_or_loaded_where_others_may_put_a_file_in_the_place_of_another(
    unbuilt: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds where neither the cache nor the place for temporary files is the user's alone."""
    theirs = tmp_path_factory.mktemp("theirs")
    os.chmod(theirs, 0o777)
    os.chmod(unbuilt, 0o777)
    monkeypatch.setattr(native.tempfile, "gettempdir", lambda: str(theirs))
    assert reductions.library() is None and not list(theirs.iterdir())
    reductions.library.cache_clear()
    os.chmod(unbuilt, 0o700)
    assert reductions.library() is not None and not list(theirs.iterdir()), "the cache is the user's alone"


@needs_compiler
def test_what_does_not_compute_is_not_kept(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "works", lambda found: False)
    assert reductions.library() is None
    assert not list((unbuilt / "dptrain").iterdir())


@needs_compiler
def test_what_a_compiler_built_to_flush_subnormal_numbers_is_not_used(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrapper that adds -ffast-math has some compilers link code that sets it for the whole thread."""
    asked = iter([False, True])
    monkeypatch.setattr(native, "_flushes", lambda: next(asked))
    assert reductions.library() is None
    assert float(torch.tensor(1e-40) * 0.5) != 0.0


@needs_compiler
def test_another_compiler_of_the_same_version_builds_anew(
    kept: Path, unbuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = unbuilt / "c++"
    wrapper.write_text('#!/bin/sh\nexec c++ "$@"\n')
    wrapper.chmod(0o700)
    monkeypatch.setenv("CXX", str(wrapper))
    reductions.library.cache_clear()
    assert reductions.library() is not None
    assert len(list((unbuilt / "dptrain").iterdir())) == 2


@needs_compiler
def test_views_of_minus_a_tensor_are_left_to_libraries() -> None:
    """Their memory holds the numbers with the other sign."""
    a = torch.complex(torch.zeros(2, 5, 1), torch.randn(2, 5, 1)).conj().imag
    b = torch.randn(2, 5, 4)
    assert a.is_neg() and reductions.outer(a, b) is None and reductions.grams(a, b) is None
    torch.testing.assert_close(matmul.per_contribution(a, b), torch.einsum("ntp,ntd->npd", b, a.resolve_neg()))


class Wrong:
    """Kernels of which one is off."""

    def __init__(self, name: str, spoil: Any) -> None:
        self._true, self._name, self._spoil = reductions.library(), name, spoil

    def __getattr__(self, name: str) -> Any:
        run = getattr(self._true, name)

        def spoiled(*args: Any) -> Any:
            found = run(*args)
            return self._spoil(args, found) if name == self._name else found

        return spoiled


def shift(args: tuple, found: None) -> None:
    """Makes the first norm larger by a thousandth."""
    square = (reductions.ctypes.c_double * 1).from_address(args[4])
    square[0] *= 1.001


def mix(args: tuple, found: None) -> None:
    """Gives the second of several the norms of the first, a little longer."""
    own, other = ((reductions.ctypes.c_double * 1).from_address(args[4] + 8 * at) for at in (0, args[6]))
    other[0] = own[0] * (1.0 + 2.0**-30)


def shorten(args: tuple, found: None) -> None:
    """Makes the sum of lengths of the b of the first contribution smaller by a thousandth."""
    in_b = (reductions.ctypes.c_double * 1).from_address(args[4] + 8 * 3 * args[5] * args[6])
    in_b[0] *= 0.999


def flip(args: tuple, found: None) -> None:
    """Flips the sign of the last entry of the first gradient."""
    entry = (reductions.ctypes.c_float * 1).from_address(args[10] + 4 * (args[3] * args[7] - 1))
    entry[0] = -entry[0] + 1.0


def lower(args: tuple, found: float) -> float:
    """Takes one off a sum of squares."""
    return found - 1.0


def vanish(args: tuple, found: float) -> float:
    """Calls zero what is not finite."""
    return found if found < float("inf") else 0.0


def round_up(args: tuple, found: None) -> None:
    """Makes the last integer of a total larger by one."""
    last = (reductions.ctypes.c_double * 1).from_address(args[0] + 8 * (args[1] - 1))
    last[0] += 1.0


def round_last(args: tuple, found: None) -> None:
    """Moves the first number of what was turned to the next one."""
    first = (reductions.ctypes.c_float * 1).from_address(args[5])
    first[0] = float(torch.nextafter(torch.tensor(first[0]), torch.tensor(torch.inf)))


def lengthen(args: tuple, found: None) -> None:
    """Makes the first squared norm of rows larger by 2^-40 of itself."""
    first = (reductions.ctypes.c_double * 1).from_address(args[4])
    first[0] *= 1.0 + 2.0**-40


def hide(args: tuple, found: None) -> None:
    """Calls a norm zero that is not a number."""
    squares = (reductions.ctypes.c_double * args[3]).from_address(args[4])
    for row in range(args[3]):
        squares[row] = squares[row] if squares[row] == squares[row] else 0.0


def add_once_more(args: tuple, found: None) -> None:
    """Adds a little to the last number of the first total."""
    last = (reductions.ctypes.c_double * 1).from_address(args[0][0] + 8 * (args[2][0] - 1))
    last[0] += 1e-9


def add_late(args: tuple, found: None) -> None:
    """Moves the last number of a total to the next one."""
    last = (reductions.ctypes.c_double * 1).from_address(args[0] + 8 * (args[1] * args[4] - 1))
    last[0] = float(torch.nextafter(torch.tensor(last[0], dtype=torch.float64), torch.tensor(torch.inf, dtype=torch.float64)))


def add_last_late(args: tuple, found: None) -> None:
    """Moves the last number of a total to the next one, where all lie as the total does."""
    add_late((*args[:1], args[2], 0, 0, 1), found)


WRONG = [
    ("dptrain_grams", shift), ("dptrain_grams", mix), ("dptrain_grams", shorten), ("dptrain_outer", flip),
    ("dptrain_squares", lower), ("dptrain_squares", vanish),
    ("dptrain_add", round_up), ("dptrain_turn", round_last), ("dptrain_rows_squares", lengthen),
    ("dptrain_rows_squares", hide), ("dptrain_rows_add", add_once_more), ("dptrain_add_turned", add_late),
    ("dptrain_add_floats", add_last_late),
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("name", "spoil"), WRONG, ids=lambda one: getattr(one, "__name__", one))
def test_kernels_that_compute_something_else_are_not_used(name: str, spoil: Any) -> None:
    assert reductions.works(reductions.library())
    assert not reductions.works(Wrong(name, spoil))


@needs_compiler
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e4, 1e30])
def test_the_integers_that_are_squared_are_those_that_are_added_and_those_of_torch(size: float) -> None:
    """To the bit, at halves, just below whole numbers, subnormal, and where a float32 holds whole numbers alone."""
    generator = torch.Generator().manual_seed(1)
    for count in (1, 15, 1024, 5000):
        x = torch.randn(count, generator=generator) * size
        x[::3] = (x[::3] * 2.0).round() / 2.0
        x[::7] = torch.nextafter(x[::7].round(), torch.zeros(()))
        x[::11] = 1e-42
        for step in (1.0, 0.3, 1e3, 2.0**20, 1e-40):
            integers = (x * step).trunc().double()
            total = torch.full((count,), 3.0, dtype=torch.float64)
            assert reductions.add_truncated(total, [(x, step)] * 3)
            assert torch.equal(total, 3.0 + integers + integers + integers)
            square = float(integers.square().sum())
            found = reductions.squares(x, step)
            assert found == square if square < 2.0**53 else found >= 2.0**53


@needs_compiler
def test_what_the_kernel_of_integers_does_not_serve_is_left_as_it_was() -> None:
    x, total = torch.ones(4, 6), torch.zeros(4, 6, dtype=torch.float64)
    assert reductions.squares(x.t(), 1.0) is None and reductions.squares(x.double(), 1.0) is None
    for values, into in ((x.t(), total), (x.double(), total), (x, total.float()), (x, total.t()), (x[:2], total)):
        assert not reductions.add_truncated(into, [(x, 1.0), (values, 1.0)] if values is not x else [(values, 1.0)])
        assert not bool(total.any())
    for bad in (torch.inf, -torch.inf, torch.nan):
        x[1, 2] = bad
        assert not reductions.squares(x, 1.0) < 2.0**53


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_a_factor_is_scaled_and_turned_to_the_bit(threads: int) -> None:
    generator = torch.Generator().manual_seed(2)
    for rows, width in ((1, 1), (15, 17), (16, 16), (100, 33), (2048, 384), (4096, 70), (0, 5), (5, 0)):
        x, weights = torch.randn(rows, width + 3, generator=generator), torch.rand(rows, generator=generator)
        for part in (x[:, 1 : width + 1], x[:, :width].t().contiguous().t()):
            found = reductions.turned(part, weights)
            assert found.is_contiguous() and torch.equal(found, (part * weights[:, None]).t())
    x[2, 1], weights = torch.nan, torch.zeros(5)
    assert reductions.turned(x.double(), weights) is None


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_rows_have_the_norms_and_weighted_sums_of_float64_whatever_their_company(threads: int) -> None:
    generator = torch.Generator().manual_seed(3)
    for rows in (1, 5, 16):
        matrices = [torch.randn(rows, width, generator=generator) * 1e3 for width in (1, 15, 16, 64, 65, 3072, 40000)]
        matrices[3][0] = 1e-44
        matrices[4][rows - 1] = 1e30  # whose square is no float32
        weights = torch.rand(len(matrices), rows, generator=generator, dtype=torch.float64)
        totals = [torch.randn(x.shape[1], generator=generator, dtype=torch.float64) for x in matrices]
        wanted = [total + weight @ x.double() for total, weight, x in zip(totals, weights, matrices, strict=True)]
        squares = reductions.row_squares(matrices)
        reductions.add_rows(totals, matrices, weights)
        for square, x, total, true in zip(squares, matrices, totals, wanted, strict=True):
            torch.testing.assert_close(square, x.double().square().sum(1), rtol=1e-13, atol=0.0)
            torch.testing.assert_close(total, true, rtol=1e-12, atol=1e-9)
            alone = torch.cat([reductions.row_squares([row[None].clone()])[0] for row in x])
            assert torch.equal(square, alone), "a norm depends on who else is there"
            assert [reductions.squared(row) for row in x] == square.tolist(), "asked of one tensor, it is another norm"


@needs_compiler
def test_the_norm_of_one_tensor_is_asked_of_no_kernel_that_does_not_serve_it() -> None:
    x = torch.ones(4, 6)
    assert reductions.squared(x) == 24.0 and reductions.squared(x[:0]) == 0.0
    assert reductions.squared(x.t()) is None and reductions.squared(x.double()) is None


@needs_compiler
def test_norms_and_sums_of_many_tensors_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers every form, numbers that no kernel serves, and one that is not finite."""
    generator = torch.Generator().manual_seed(4)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    merged: list[Any] = [
        [Dense(drawn(4, 3, 5))], [Outer(drawn(4, 6, 3), drawn(4, 6, 5))], [Dense(drawn(4, 7).double())],
        [Dense(drawn(3, 4, 6).transpose(0, 1))], [Dense(drawn(4, 0))], [Dense(drawn(4))],
        [Gather(torch.arange(8).view(4, 2), drawn(4, 2, 5))],
    ]  # fmt: skip
    merged[0][0].g[2, 1, 1] = torch.nan
    found, each = norms_sq(merged), [norm_sq(pieces) for pieces in merged]
    for square, true in zip(found, each, strict=True):
        torch.testing.assert_close(square, true, rtol=1e-6, atol=0.0, equal_nan=True)
    merged[0][0].g[2, 1, 1] = 1.0
    shapes = [(3, 5), (5, 3), (7,), (3, 6), (0,), (), (8, 5)]
    weights = torch.rand(len(merged), 4, generator=generator, dtype=torch.float64)
    one, all_of_them = ([torch.ones(shape, dtype=torch.float64) for shape in shapes] for _ in range(2))
    for pieces, weight, total in zip(merged, weights, one, strict=True):
        add_weighted(pieces, weight, total)
    add_all_weighted(list(zip(merged, weights, all_of_them, strict=True)))
    for total, true in zip(all_of_them, one, strict=True):
        torch.testing.assert_close(total, true, rtol=1e-6, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_a_sum_that_lies_turned_is_added_to_the_bit(threads: int) -> None:
    generator = torch.Generator().manual_seed(5)
    for rows, width in ((1, 1), (15, 17), (16, 16), (100, 33), (700, 1000), (1, 40), (40, 1), (0, 5)):
        total = torch.randn(rows, width, generator=generator, dtype=torch.float64)
        for part in (torch.randn(width, rows, generator=generator).t(), torch.randn(rows, width, generator=generator)):
            true, version = total + part, total._version
            reductions.add_to(total, part)
            assert torch.equal(total, true) and total._version > version
    kept = torch.zeros(3, 8, dtype=torch.float64)
    for part in (torch.ones(8, 6).t()[::2], torch.ones(8, 3, dtype=torch.float64).t(), torch.ones(8).expand(3, 8)):
        reductions.add_to(kept, part)
        assert bool((kept == 1.0).all())
        kept.zero_()
    wide = torch.zeros(3, 16, dtype=torch.float64)[:, ::2]
    reductions.add_to(wide, torch.ones(8, 3).t())
    assert bool((wide == 1.0).all())


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_norms_beside_one_another_are_those_of_each_to_the_bit(threads: int) -> None:
    generator = torch.Generator().manual_seed(6)
    for n, t in ((4, 5), (16, 128), (3, 130), (2, 300), (0, 7)):
        a = torch.randn(n, t, 70, generator=generator)
        several = [torch.randn(n, t, width, generator=generator) for width in (70, 20, 300)]
        several[1] = several[1].transpose(0, 1).contiguous().transpose(0, 1)
        other = torch.randn(n, t + 2, 33, generator=generator)
        found = reductions.grams_of([(a, several), (other, [other]), (a[:, 1:], [several[0][:, 1:]])])
        pairs = [*((a, b) for b in several), (other, other), (a[:, 1:], several[0][:, 1:])]
        for row, (x, b) in enumerate(pairs):
            alone = reductions.grams(x, b)
            for name in ("square", "reach", "in_a", "in_b"):
                assert torch.equal(getattr(found, name)[row], getattr(alone, name))


@needs_compiler
def test_factors_without_width_have_norms_of_zero() -> None:
    for d, p in ((3, 0), (0, 3), (0, 0)):
        found = reductions.grams(torch.ones(2, 4, d), torch.ones(2, 4, p))
        assert not bool(found.square.any()) and bool((found.in_a >= 4 * d**0.5).all())


@needs_compiler
def test_copies_of_factors_last_as_long_as_anybody_works_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may end a call while threads of a pool still work."""
    kept: list[Any] = []
    lined: list[Any] = []
    own = reductions._lined
    monkeypatch.setattr(reductions, "each", lambda count, multiplications, work: kept.append(work))
    monkeypatch.setattr(reductions, "_lined", lambda x: lined.append(weakref.ref(found := own(x))) or found)
    reductions.grams(torch.ones(2, 4, 6)[:, :, ::2], torch.ones(2, 4, 3))
    gc.collect()
    assert kept and lined[0]() is not None


@needs_compiler
def test_queries_keys_and_values_share_what_they_were_made_of_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    own = reductions.grams_of

    def counted(groups: Any) -> Any:
        asked.extend(len(several) for _, several in groups)
        return own(groups)

    monkeypatch.setattr(reductions, "grams_of", counted)
    generator = torch.Generator().manual_seed(7)
    a, other = (torch.randn(3, 9, 12, generator=generator) for _ in range(2))
    b = [torch.randn(3, 9, 12, generator=generator) for _ in range(5)]
    twin = torch.complex(torch.zeros_like(a), a).conj().imag  # minus a, in memory of its own
    merged: list[Any] = [[Outer(a, b[0])], [Outer(other, b[1])], [Outer(a.view(3, 9, 12), b[2])], [Outer(twin, b[3])],
                         [Outer(a[:, :5], b[4][:, :5])]]  # fmt: skip
    found = norms_sq(merged)
    assert sorted(asked) == [1, 1, 2]  # that of the twin is left to torch
    for square, pieces in zip(found, merged, strict=True):
        assert torch.equal(square, norm_sq(pieces))


@needs_compiler
def test_rows_totals_and_weights_that_do_not_fit_reach_no_kernel() -> None:
    x, total = torch.ones(3, 4), torch.zeros(4, dtype=torch.float64)
    with pytest.raises(ValueError):
        reductions.row_squares([x, torch.ones(2, 4)])
    for totals, weights in (([total], torch.ones(1, 2)), ([total[:3]], torch.ones(1, 3)), ([total], torch.ones(2, 3))):
        with pytest.raises(ValueError):
            reductions.add_rows(totals, [x], weights.double())
    assert not bool(total.any())
