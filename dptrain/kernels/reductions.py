"""Norms and weighted sums of per-sample gradients, by kernels (reductions.cpp beside this).

* :func:`grams_of`: norms from Gram matrices, of many tensors in one call. ``<A A^T, B B^T>`` needs one triangle of two
  symmetric matrices, and of each entry the product alone. A library forms both whole and writes them; the kernel takes half of
  the time of oneDNN.
* :func:`outer`: gradients of narrow tensors (LoRA), contribution by contribution, at two to three times the speed of a batched
  product.
* :func:`turned`: a factor of a weighted sum, scaled and transposed at once, as the products of libraries want it.
* :func:`add_to`: that sum, which may come out turned, added to its total in float64.
* :func:`squares` and :func:`add_truncated`: the integers of certified sums, of which none is ever written.
* :func:`row_squares` and :func:`add_rows`: norms and weighted sums of small tensors (LoRA, biases), of all in one call.

Without a compiler (:mod:`dptrain.native`), or where :data:`ENABLED` is false, products of libraries stand for them
(:mod:`dptrain.gradients.matmul`).
"""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensor

from dptrain import native
from dptrain.kernels.way import each, way

ENABLED = True
"""False sends everything to the products of libraries; results then differ by float32 rounding."""

DEEP = 256
"""Terms of an entry of a Gram matrix that are added one after the other before their sum is added to the others."""

NARROW = 64
"""Gradients with one side up to here are formed by :func:`outer`; a library is as fast on wider ones."""

_SOURCE = Path(__file__).with_suffix(".cpp")
_LANES = 16
_ROUNDED = 1.0 + 2.0**-10
"""At least what lengths must be multiplied by that are square roots of the float32 entries on a diagonal."""


@dataclass(frozen=True)
class Grams:
    """Sums over positions of N contributions, float64 (N,), or (rows, N) of several tensors.

    Attributes:
        square: the squared norm of sum_t b_t a_t^T, as it was rounded.
        reach: at least sum_t |a_t||b_t|, how large the terms of the gradient are before they cancel.
        in_a, in_b: at least sum_t |a_t| and sum_t |b_t|.
    """

    square: torch.Tensor
    reach: torch.Tensor
    in_a: torch.Tensor
    in_b: torch.Tensor

    def row(self, row: int) -> "Grams":
        """Returns those of one of several tensors."""
        return Grams(self.square[row], self.reach[row], self.in_a[row], self.in_b[row])


def terms(width: int) -> int:
    """Returns how many roundings a term of an entry goes through at most."""
    return min(width, DEEP) + -(-width // DEEP)


def grams(a_NTD: torch.Tensor, b_NTP: torch.Tensor) -> Grams | None:
    """Returns the sums behind a norm, or None where the kernel does not serve: another type or device, or nothing was built.

    A contribution's numbers are the same bits whoever else is in the microbatch, and on any number of threads.
    """
    if not serves(a_NTD, b_NTP):
        return None
    return grams_of([(a_NTD, [b_NTP])]).row(0)


def grams_of(groups: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]) -> Grams:
    """Returns :func:`grams` of each b beside the a of its group, one to a row (rows, N), to the bit; in one call of the kernel.

    The matrix of an a is formed once for all that are beside it. Those of all groups are of the same contributions, and
    :func:`serves` every one of them.
    """
    factors = [_lined(x) for a, several in groups for x in (a, *several)]
    (n,), rows = {x.shape[0] for x in factors}, len(factors) - len(groups)
    sums = factors[0].new_empty(4, rows, n, dtype=torch.float64)
    told, run = _told(groups, factors), library().dptrain_grams
    of_a, of_b, t = (sums.new_tensor(found)[:, None] for found in zip(*_lost(groups), strict=True))
    multiplications = sum(x.shape[1] ** 2 * x.shape[2] for x in factors)

    def some(first: int, many: int, lying: object = factors) -> None:  # copies last as long as anybody works on them
        run(told, len(groups), first, many, sums.data_ptr(), rows, n)

    each(n, n * multiplications // 2, some)
    square, reach, in_a, in_b = sums
    reach = _ROUNDED * (reach + of_a * in_b + of_b * in_a + t * of_a * of_b)
    return Grams(square, reach, _ROUNDED * in_a + t * of_a, _ROUNDED * in_b + t * of_b)


def _lost(groups: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]]) -> Iterator[tuple[float, float, int]]:
    """Yields how long rows of an a and of a b may be at most whose squares vanish, and how many they are."""
    tiny = torch.finfo(torch.float32).tiny
    for a, several in groups:
        for b in several:
            yield (a.shape[2] * tiny) ** 0.5, (b.shape[2] * tiny) ** 0.5, a.shape[1]


def _told(groups: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]], factors: Sequence[torch.Tensor]) -> Any:
    """Lists what the kernel of norms is told of groups and their factors."""
    told: list[int] = []
    left = iter(factors)
    for a, several in groups:
        told += (a.shape[1], len(several))
        for x in islice(left, 1 + len(several)):
            told += (x.data_ptr(), x.stride(0), x.stride(1), x.shape[2])
    return (ctypes.c_longlong * len(told))(*told)


def outer(a_NTD: torch.Tensor, b_NTP: torch.Tensor) -> torch.Tensor | None:
    """Returns sum_t b_it a_it^T of every contribution, (N, P, D); None as :func:`grams`, or where neither side is narrow."""
    if min(a_NTD.shape[2], b_NTP.shape[2]) > NARROW or not serves(a_NTD, b_NTP, traced=True):
        return None
    if type(a_NTD) is FakeTensor:  # a graph is made, which holds an operator (`dptrain.routing.graphs`)
        found: torch.Tensor = torch.ops.dptrain.outer(a_NTD, b_NTP)
        return found
    return outer_of(a_NTD, b_NTP)


def outer_of(a_NTD: torch.Tensor, b_NTP: torch.Tensor) -> torch.Tensor:
    """Returns what :func:`outer` returns, of factors that the kernel serves."""
    out = outer_shape(a_NTD, b_NTP)
    (n, t, d), p = a_NTD.shape, b_NTP.shape[2]
    a, b = _lined(a_NTD), _lined(b_NTP)
    run = library().dptrain_outer

    def some(first: int, many: int) -> None:
        panel = a.new_empty(_LANES * t)  # float32, whatever the default type is
        run(*_of(a, b, first, many), out.data_ptr() + 4 * first * p * d, panel.data_ptr())

    each(n, n * t * p * d, some)
    return out


def outer_shape(a_NTD: torch.Tensor, b_NTP: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of the shape of that, without its values."""
    return a_NTD.new_empty(a_NTD.shape[0], b_NTP.shape[2], a_NTD.shape[2])


def turned(x_KW: torch.Tensor, weight_K: torch.Tensor) -> torch.Tensor | None:
    """Returns ``(x * weight[:, None]).t()``, contiguous, to the bit; None as :func:`grams`."""
    if not serves(x_KW, weight_K) or not weight_K.is_contiguous():
        return None
    x = x_KW if x_KW.stride(1) == 1 else x_KW.contiguous()
    rows, width = x.shape
    out = x.new_empty(width, rows)
    run, blocks = library().dptrain_turn, -(-width // _LANES)

    def some(first: int, many: int) -> None:
        start, end = first * _LANES, min((first + many) * _LANES, width)
        places = x.data_ptr() + 4 * start, weight_K.data_ptr(), out.data_ptr() + 4 * start * rows
        run(places[0], x.stride(0), rows, end - start, places[1], places[2])

    each(blocks, x.numel(), some)
    return out


def add_to(total: torch.Tensor, part: torch.Tensor) -> None:
    """Does ``total.add_(part)``, to the bit: in half of the time of torch, and in a third of one that lies turned."""
    served = total.shape == part.shape and total.is_contiguous() and total.dtype == torch.float64 and serves(part)
    turned = served and part.dim() == 2 and not part.is_contiguous() and part.t().is_contiguous()
    if not (served and total.device == part.device and (turned or part.is_contiguous())):
        total.add_(part)
        return
    rows, width = total.shape if turned else (part.numel(), 1)
    run = library().dptrain_add_turned if turned else library().dptrain_add_floats
    blocks = -(-rows // _LANES)

    def some(first: int, many: int) -> None:
        start, end = first * _LANES, min((first + many) * _LANES, rows)
        places = total.data_ptr() + 8 * start * width, part.data_ptr() + 4 * start
        if turned:
            run(places[0], width, places[1], rows, end - start)
        else:
            run(*places, end - start)

    each(blocks, total.numel(), some)
    torch.autograd.graph.increment_version(total)


def squares(values: torch.Tensor, step: float) -> float | None:
    """Returns the sum of the squares of ``trunc(values * step)``; None as :func:`grams`.

    Guarantee: the integers are those that :func:`add_truncated` adds, since a product and a truncation have one result each in
    IEEE 754. Only sums of squares are added up, in some order, so what is below 2^53 is exact (`dptrain.clipping.certified`).
    """
    if not (serves(values) and values.is_contiguous()):
        return None
    return float(library().dptrain_squares(values.data_ptr(), values.numel(), step))


def add_truncated(total: torch.Tensor, parts: Sequence[tuple[torch.Tensor, float]]) -> bool:
    """Adds ``trunc(values * step)`` of each of the parts to a float64 total, in place; False, and nothing added, as ``None``
    of :func:`squares`."""
    alike = all(values.is_contiguous() and values.shape == total.shape for values, _ in parts)
    if not (total.is_contiguous() and total.dtype == torch.float64 and alike and serves(*(values for values, _ in parts))):
        return False
    places = (ctypes.c_void_p * len(parts))(*(values.data_ptr() for values, _ in parts))
    steps = (ctypes.c_float * len(parts))(*(step for _, step in parts))
    library().dptrain_add(total.data_ptr(), total.numel(), places, steps, len(parts))
    return True


def row_squares(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the squared norms of the rows of matrices of N rows each, float64 (len(matrices), N); of those that
    :func:`takes_rows`.

    Every product is exact and added up in float64, in an order that a row's width alone decides.
    """
    rows = _rows_of(matrices)
    out = matrices[0].new_empty(len(matrices), rows, dtype=torch.float64)
    run = library().dptrain_rows_squares

    def some(first: int, many: int) -> None:
        run(*_list(matrices[first : first + many]), many, rows, out.data_ptr() + 8 * first * rows)

    each(len(matrices), sum(x.numel() for x in matrices), some)
    return out


def squared(values: torch.Tensor) -> float | None:
    """Returns the squared norm of one tensor, to the bit that of :func:`row_squares` of it as one row; None as :func:`grams`.

    For calls by the thousand, one per tensor and contribution, of which a tensor for the result would cost as much again.
    """
    if not (serves(values) and values.is_contiguous()):
        return None
    found = ctypes.c_double()
    width = ctypes.c_long(values.numel())
    place = ctypes.c_void_p(values.data_ptr())
    library().dptrain_rows_squares(ctypes.byref(place), ctypes.byref(width), 1, 1, ctypes.byref(found))
    return found.value


def add_rows(totals: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], weights: torch.Tensor) -> None:
    """Adds the rows of each matrix, times its weights, to a total of its width, in place: in float64, from the products on.

    Args:
        totals: float64, contiguous, no two of the same memory. matrices: of N rows each, those that :func:`takes_rows`.
        weights: float64 (len(matrices), N), contiguous.
    """
    rows = _rows_of(matrices)
    if weights.shape != (len(matrices), rows) or [x.numel() for x in totals] != [x.shape[1] for x in matrices]:
        raise ValueError(f"totals or weights {tuple(weights.shape)} that do not fit {len(matrices)} matrices of {rows} rows")
    run = library().dptrain_rows_add

    def some(first: int, many: int) -> None:
        places = (ctypes.c_void_p * many)(*(total.data_ptr() for total in totals[first : first + many]))
        run(places, *_list(matrices[first : first + many]), many, rows, weights.data_ptr() + 8 * first * rows)

    each(len(matrices), sum(x.numel() for x in matrices), some)


def _rows_of(matrices: Sequence[torch.Tensor]) -> int:
    (rows,) = {x.shape[0] for x in matrices}
    return rows


def takes_rows(matrix: torch.Tensor) -> bool:
    """Tells whether :func:`row_squares` and :func:`add_rows` serve a matrix."""
    return matrix.is_contiguous() and serves(matrix)


def _list(matrices: Sequence[torch.Tensor]) -> tuple[Any, Any]:
    places = (ctypes.c_void_p * len(matrices))(*(x.data_ptr() for x in matrices))
    return places, (ctypes.c_long * len(matrices))(*(x.shape[1] for x in matrices))


def serves(*values: torch.Tensor, traced: bool = False) -> bool:
    """Tells whether kernels serve these factors; ``traced``: also those without values, of which a graph is made."""
    return plain(*values, traced=traced) and library() is not None


def lie(*values: torch.Tensor) -> bool:
    """Tells whether kernels serve these factors without a copy."""
    return serves(*values) and all(value.stride(2) == 1 for value in values)


def plain(*values: torch.Tensor, traced: bool = False) -> bool:
    """Tells whether kernels may be given these: float32 numbers in memory of the processor, and nobody left them to torch."""
    kinds = (torch.Tensor, FakeTensor) if traced else (torch.Tensor,)
    known = all(type(x) in kinds and x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_neg() for x in values)
    held = known and all(type(x) is FakeTensor or x.data_ptr() or not x.numel() for x in values)  # not zeros without memory
    return held and ENABLED and not way.torch_alone


def _lined(value: torch.Tensor) -> torch.Tensor:
    """Returns it with a contiguous last dimension; the kernels take any other strides."""
    return value if value.stride(2) == 1 or value.shape[2] <= 1 else value.contiguous()


def _of(a: torch.Tensor, b: torch.Tensor, first: int, many: int) -> tuple[int, ...]:
    """Lists what a kernel is told of the factors of ``many`` contributions."""
    places = [(x.data_ptr() + 4 * first * x.stride(0), x.stride(0), x.stride(1), x.shape[2]) for x in (a, b)]
    return *places[0], *places[1], many, a.shape[1]


# ----------------------------------------------------------------------------------------------------------------- building


@cache
def library() -> Any:
    """Returns the built kernels; None where there is no compiler, or what it built does not compute."""
    return native.built(_SOURCE, _declared, works)


def _declared(found: Any) -> None:
    """Tells the types of what kernels take."""
    pointer, number = ctypes.c_void_p, ctypes.c_long
    factors = [pointer, number, number, number, pointer, number, number, number, number, number]
    found.dptrain_outer.argtypes, found.dptrain_outer.restype = [*factors, pointer, pointer], None
    found.dptrain_grams.argtypes = [pointer, number, number, number, pointer, number, number]
    found.dptrain_turn.argtypes, found.dptrain_turn.restype = [pointer, number, number, number, pointer, pointer], None
    found.dptrain_squares.argtypes, found.dptrain_squares.restype = [pointer, number, ctypes.c_float], ctypes.c_double
    found.dptrain_add.argtypes, found.dptrain_add.restype = [pointer, number, pointer, pointer, number], None
    found.dptrain_add_floats.argtypes, found.dptrain_add_floats.restype = [pointer, pointer, number], None
    found.dptrain_add_turned.argtypes, found.dptrain_add_turned.restype = [pointer, number, pointer, number, number], None
    found.dptrain_rows_squares.argtypes = [pointer, pointer, number, number, pointer]
    found.dptrain_rows_add.argtypes = [pointer, pointer, pointer, number, number, pointer]
    found.dptrain_grams.restype = found.dptrain_rows_squares.restype = found.dptrain_rows_add.restype = None


def works(found: Any) -> bool:
    """Tells whether kernels compute: at odd sizes to float32 rounding, and so that a NaN stays with its contribution."""
    for n, t, d, p in ((3, 1, 1, 5), (2, 37, 50, 300), (2, 130, 17, 64), (3, 128, 256, 40), (2, 5, 33, 16)):
        a, b = (
            torch.arange(n * t * width, dtype=torch.float32).remainder_(prime).sub_(prime / 2).div_(7.0).view(n, t, width)
            for width, prime in ((d, 61.0), (p, 53.0))
        )
        true_NPD = torch.einsum("ntp,ntd->npd", b.double(), a.double())
        length_a, length_b = a.double().norm(dim=2), b.double().norm(dim=2)
        reach = (length_a * length_b).sum(1)
        a[n - 1, t - 1, d - 1] = torch.nan
        out, panel = a.new_zeros(n, p, d), a.new_zeros(_LANES * t)
        groups = [(a, [b, b]), (a[:, t // 2 :], [b[:, t // 2 :]]), (a, [b])]
        sums = torch.zeros(4, 4, n, dtype=torch.float64)
        factors = [x for a_of, several in groups for x in (a_of, *several)]
        found.dptrain_grams(_told(groups, factors), 3, 0, n, sums.data_ptr(), 4, n)
        own, twin, _, last = sums.unbind(1)
        found.dptrain_outer(*_of(a, b, 0, n), out.data_ptr(), panel.data_ptr())
        gaps = (
            (own[0] - true_NPD.square().sum((1, 2))) / reach.square(),
            (own[1] - reach) / reach,
            (own[2] - length_a.sum(1)) / length_a.sum(1),
            (out - true_NPD).abs().amax((1, 2)) / reach,
        )
        for gap in gaps:
            if not bool((gap[:-1].abs() <= 1e-5).all()) or bool(gap[-1].isfinite()):
                return False
        in_b = (own[3] - length_b.sum(1)).abs() <= 1e-5 * length_b.sum(1)
        if not (bool(in_b.all()) and all(torch.equal(own[:, :-1], other[:, :-1]) for other in (twin, last))):
            return False
    return all(
        _truncates(found, count) and _turns(found, count) and _adds_rows(found, count) for count in (1, 7, 16, 1023, 1024, 2087)
    )


def _adds_rows(found: Any, width: int) -> bool:
    """Tells whether kernels form norms and weighted sums of rows, to float64 rounding, and a NaN stays with its row."""
    x = torch.arange(3 * width, dtype=torch.float32).remainder_(61.0).sub_(30.5).div_(7.0).view(3, width)
    weights = torch.tensor([0.7, 0.0, -1e-3], dtype=torch.float64)
    total, squares = torch.ones(width, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    where, widths = (ctypes.c_void_p * 1)(x.data_ptr()), (ctypes.c_long * 1)(width)
    found.dptrain_rows_add((ctypes.c_void_p * 1)(total.data_ptr()), where, widths, 1, 3, weights.data_ptr())
    near = bool(((total - 1.0 - weights @ x.double()).abs() <= 1e-14).all())
    x[1, width - 1] = torch.nan
    found.dptrain_rows_squares(where, widths, 1, 3, squares.data_ptr())
    true = x.double().square().sum(1)
    return near and bool(((squares - true).abs() <= 1e-14 * true)[[0, 2]].all()) and bool(squares[1].isnan())


def _turns(found: Any, rows: int) -> bool:
    """Tells whether kernels scale, transpose and add, to the bit."""
    for width in (1, 16, 37):
        x = torch.arange(rows * width, dtype=torch.float32).remainder_(61.0).sub_(30.5).div_(7.0).view(rows, width)
        weights, out = torch.arange(rows, dtype=torch.float32).div_(rows), x.new_zeros(width, rows)
        found.dptrain_turn(x.data_ptr(), width, rows, width, weights.data_ptr(), out.data_ptr())
        total = torch.arange(rows * width, dtype=torch.float64).view(width, rows)
        true = total + x.t()
        found.dptrain_add_turned(total.data_ptr(), rows, x.data_ptr(), width, width)
        plain = torch.arange(x.numel(), dtype=torch.float64).div_(3.0).view_as(x)
        sums = plain + x
        found.dptrain_add_floats(plain.data_ptr(), x.data_ptr(), x.numel())
        right = torch.equal(total, true) and torch.equal(plain, sums)
        if not torch.equal(out, (x * weights[:, None]).t()) or not right:
            return False
    return True


def _truncates(found: Any, count: int) -> bool:
    """Tells whether kernels form the integers that torch forms, to the bit, as large as they may be, and keep what is not
    finite."""
    x = torch.arange(count, dtype=torch.float32).remainder_(257.0).sub_(128.5).div_(3.0)
    x[:: max(2, count // 5)] = 1e-42
    y = x.flip(0) * 5e4
    for steps in ((1.3, 0.1), (2.0**19, 2.0**-20), (1e5, 12.0)):
        parts = (ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr())
        total = torch.arange(count, dtype=torch.float64) + (2.0**52 - count)
        of_x, of_y = ((value * step).trunc_().double() for value, step in zip((x, y), steps, strict=True))
        true = total + of_x + of_y
        found.dptrain_add(total.data_ptr(), count, parts, (ctypes.c_float * 2)(*steps), 2)
        own = [found.dptrain_squares(value.data_ptr(), count, step) for value, step in zip((x, y), steps, strict=True)]
        right = [float(of.square().sum()) for of in (of_x, of_y)]
        exact = all(a == b if b < 2.0**53 else a >= 2.0**53 for a, b in zip(own, right, strict=True))
        if not (exact and torch.equal(total, true)):
            return False
    for bad in (torch.inf, -torch.inf, torch.nan):
        x[count - 1] = bad
        if found.dptrain_squares(x.data_ptr(), count, 1.3) < torch.inf:
            return False
    return True
