"""The float32 matrix products of a private microbatch, on the fastest kernels that torch carries.

On CPUs torch sends float32 products to MKL. On AMD processors MKL reaches less than half of what the oneDNN kernels in the
same build reach; on Intel's, for which it is made, it is the faster one (docs/performance.md has the figures). Both multiply
and add in float32, so the rounding that the margins pay for is the same. Products of norms and sums come here by name; those of
forward and backward pass are met where every operation of a microbatch passes (`PRODUCTS`, `dptrain.sandbox.Sandbox`), whatever
module they stand in. The start of a run holds them to torch's own, in the probes and at the size of a full microbatch
(:class:`Holding`).
Everything else (other devices, float64, small products, tensor subclasses) is left to torch.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from dptrain.kernels import activations, attention, reductions
from dptrain.kernels.reductions import Grams
from dptrain.kernels.way import way, wrong
from ledger.leaves.numerics import TORCH


def _rows(x_MK: torch.Tensor, y_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """Returns x y^T, and bias, by oneDNN. A factor that is neither contiguous nor the transpose of what is falls to its slow
    reference."""
    return torch.ops.mkldnn._linear_pointwise(x_MK, y_NK, bias_N, "none", [], "")


def _works() -> bool:
    """Tells whether this torch has the operator, with the meaning it has here (it is internal), and rounds to float32 only."""
    try:
        x_MK = torch.arange(48 * 80, dtype=torch.float32).remainder_(61.0).sub_(30.0).div_(7.0).view(48, 80)
        y_NK = torch.arange(32 * 80, dtype=torch.float32).remainder_(53.0).sub_(26.0).div_(3.0).view(32, 80)
        turned = _rows(x_MK.t().contiguous().t(), y_NK.t().contiguous().t())
        true = x_MK.double() @ y_NK.double().t()
        reach = x_MK.double().abs() @ y_NK.double().abs().t()
        bias_N = torch.arange(32, dtype=torch.float32)
        shifted = _rows(x_MK, y_NK, bias_N) - bias_N
        return all(bool(((z.double() - true).abs() <= 1e-6 * (reach + 32)).all()) for z in (_rows(x_MK, y_NK), turned, shifted))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return False  # the operator is internal to torch: absent or changed, every product is torch's own


def _processor_of_intel() -> bool:
    """Tells whether the processor names Intel as its maker; False where the system does not tell."""
    told = Path("/proc/cpuinfo")
    try:
        return "GenuineIntel" in (told.read_text() if told.exists() else platform.processor())
    except OSError:
        return False


AVAILABLE = _works()
"""This torch carries the oneDNN kernels used here."""

ENABLED = AVAILABLE and not _processor_of_intel()
"""False sends every product to torch; results then differ by float32 rounding. One machine always chooses alike."""

WORTHWHILE = 1 << 20
"""Multiplications below which a call of its own costs more than the faster kernel saves."""


_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def _fits(x: torch.Tensor, y: torch.Tensor, multiplications: int) -> bool:
    return (
        enabled()
        and multiplications >= WORTHWHILE
        and type(x) in _ORDINARY
        and type(y) in _ORDINARY
        and x.dtype == y.dtype == torch.float32
        and x.device.type == y.device.type == "cpu"
    )


def _mm(x_MK: torch.Tensor, y_KN: torch.Tensor) -> torch.Tensor:
    if not _fits(x_MK, y_KN, x_MK.shape[0] * y_KN.numel()):
        return torch.ops.aten.mm.default(x_MK, y_KN)
    return _held(_rows(_plain(x_MK), _plain(y_KN.t())), x_MK, y_KN)


def _addmm(bias_N: torch.Tensor, x_MK: torch.Tensor, y_KN: torch.Tensor, **scales: Any) -> torch.Tensor:
    like = bias_N.shape == y_KN.shape[1:] and bias_N.dtype == torch.float32
    if scales or not like or not _fits(x_MK, y_KN, x_MK.shape[0] * y_KN.numel()):
        return torch.ops.aten.addmm.default(bias_N, x_MK, y_KN, **scales)
    return _held(_rows(_plain(x_MK), _plain(y_KN.t()), bias_N.contiguous()), x_MK, y_KN, bias_N)


def product(x_MK: torch.Tensor, y_KN: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
    """Returns x y, and bias, as the passes of a microbatch compute it: by name where no mode meets the operation, and no
    gradient of it may be asked for, which kernels do not have."""
    ours = enabled() and not torch.is_grad_enabled() and not torch._C._len_torch_dispatch_stack()
    if bias_N is None:
        return _mm(x_MK, y_KN) if ours else torch.mm(x_MK, y_KN)
    return _addmm(bias_N, x_MK, y_KN) if ours else torch.addmm(bias_N, x_MK, y_KN)


def _plain(x: torch.Tensor) -> torch.Tensor:
    """Returns it with strides for which there are fast kernels: contiguous, or the transpose of what is."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


_OTHERS: Final[dict[Any, Callable[..., Any]]] = {**attention.OPERATIONS, **activations.OPERATIONS}

PRODUCTS: Final[dict[Any, Callable[..., Any]]] = {
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
    **_OTHERS,
}
"""Holds what computes in the place of torch's operations in the forward and backward passes of a private microbatch."""


def products_of(products: str) -> Mapping[Any, Callable[..., Any]]:
    """Returns what a sandbox computes in the place of operations: `PRODUCTS`, and nothing where all is left to torch; those of
    matrices are torch's, without a question at each, where its kernels are the fastest."""
    if products == TORCH:
        return {}
    return PRODUCTS if ENABLED else _OTHERS


def enabled() -> bool:
    """Tells whether products go to oneDNN where it serves them."""
    return ENABLED and not way.torch_alone


@contextmanager
def using(products: str) -> Iterator[None]:
    """Computes inside by the fastest kernels at hand, or by torch's own alone (`ledger.leaves.numerics`); nothing may yield."""
    before, way.torch_alone = way.torch_alone, products == TORCH
    try:
        yield
    finally:
        way.torch_alone = before


def begin(owner: object, products: str, holding: "Holding | None" = None) -> None:
    """Sets how a microbatch computes that begins, whatever became of the one before."""
    way.torch_alone, way.holding, way.owner = products == TORCH, holding, owner


def end(owner: object) -> None:
    """Ends the way of a microbatch, unless another one has begun since."""
    if way.owner is owner:
        way.torch_alone, way.holding, way.owner = False, None, None


# ------------------------------------------------------------------------------------------------------ held to torch's own

@dataclass(frozen=True)
class Met:
    """One kind of product that a probe met: shapes and layouts of the factors, and which side grows with the rows."""

    x: torch.Size
    y: torch.Size
    lies: tuple[bool, bool]
    bias: bool
    sums: bool
    rows: int


class Holding:
    """Holds the products of probes to torch's own, on rows that are nobody's, and then those of a full microbatch.

    A product z = x y is right, up to rounding, if z r = x (y r) for a vector r of random signs, each over the length of its
    column of y: one wrong entry of z changes that of its row (Freivalds, 1977). Only where a row is off is the whole product
    formed by torch, entry by entry.
    """

    def __init__(self) -> None:
        self.rows = 1
        self._met: set[Met] = set()
        self._known: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def require(self, found_MN: torch.Tensor, x_MK: torch.Tensor, y_KN: torch.Tensor, bias_N: torch.Tensor | None) -> None:
        """Raises UnsupportedModule, code KERNEL_WRONG, for a product that is not torch's."""
        place = (y_KN.data_ptr(), y_KN.shape, y_KN.stride(), y_KN._version)
        known = self._known.get(place)
        if known is None:  # what stands here of a tensor that is gone does not fit, and then entries are compared
            lengths = _lengths(y_KN, 0)
            chance = torch.Generator().manual_seed(y_KN.shape[1])
            signs = (1.0 - 2.0 * torch.randint(2, lengths.shape, generator=chance)) / lengths.clamp_min(1e-30)
            known = self._known[place] = signs, y_KN @ signs
        signs, summed = known
        size = _lengths(x_MK, 1) * y_KN.shape[1] ** 0.5
        gap = found_MN @ signs - x_MK @ summed
        if bias_N is not None:
            shift = bias_N * signs
            gap, size = gap - shift.sum(), size + torch.linalg.vector_norm(shift)
        if not bool((gap.abs() <= TOLERANCE * size).all()):
            self._compare(found_MN, x_MK, y_KN, bias_N)

    @staticmethod
    def _compare(found_MN: torch.Tensor, x_MK: torch.Tensor, y_KN: torch.Tensor, bias_N: torch.Tensor | None) -> None:
        aten = torch.ops.aten
        true = aten.mm.default(x_MK, y_KN) if bias_N is None else aten.addmm.default(bias_N, x_MK, y_KN)
        entries = torch.outer(_lengths(x_MK, 1), _lengths(y_KN, 0))
        alike = (found_MN - true).abs() <= ENTRY * (entries + true.abs())
        alike |= ~true.isfinite() & ~found_MN.isfinite()
        if not bool(alike.all()):
            at = tuple(torch.nonzero(~alike)[0].tolist())
            what = f"a product of {tuple(x_MK.shape)} and {tuple(y_KN.shape)} in place {at}"
            raise wrong(what, float(found_MN[at]), float(true[at]))

    def forget(self) -> None:
        """Forgets what was found of weights, and what is to be rehearsed."""
        self._known.clear()
        self._met.clear()

    def meet(self, x_MK: torch.Tensor, y_KN: torch.Tensor, bias: bool, sums: bool) -> None:
        """Notes a kind of product, to be rehearsed with a full microbatch."""
        lies = x_MK.is_contiguous(), y_KN.is_contiguous()
        self._met.add(Met(x_MK.shape, y_KN.shape, lies, bias, sums, self.rows))

    def rehearse(self, full: int) -> None:
        """Holds every kind of product that was met, at the rows of a full microbatch and on random numbers, to torch's.

        Kernels are chosen by shape, and probes have few rows.
        """
        met = set(self._met)
        self.forget()
        grown = {(one.lies, one.bias, one.sums, *_grown(one, full)) for one in met}
        for (x_plain, y_plain), bias, sums, m, k, n in sorted(grown):
            chance = torch.Generator().manual_seed(m * 31 + n)
            x = torch.randn(m, k, generator=chance) if x_plain else torch.randn(k, m, generator=chance).t()
            y = torch.randn(k, n, generator=chance) if y_plain else torch.randn(n, k, generator=chance).t()
            before, way.holding = way.holding, self
            try:
                if sums:
                    _weighted(y, x.t(), torch.rand(k, generator=chance))
                elif bias:
                    _addmm(torch.randn(n, generator=chance), x, y)
                else:
                    _mm(x, y)
            finally:
                way.holding = before
                self.forget()


def _lengths(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the lengths of the rows or columns of a matrix; torch's norm alone takes 20 times as long along those that do not
    lie in one piece."""
    if x.stride(dim) == 1:
        return torch.linalg.vector_norm(x, dim=dim)
    total = x.new_zeros(x.shape[1 - dim])
    for part in x.split(128, dim):
        total += part.square().sum(dim)
    return total.sqrt_()


def _grown(one: Met, full: int) -> tuple[int, int, int]:
    """Returns M, K and N of a product of this kind in a full microbatch."""
    (m, k), n = one.x, one.y[1]
    if one.sums:
        return m, min(k * full // one.rows, ROWS), n
    return (m * full // one.rows if one.lies[0] else m), k, n


TOLERANCE = 2.0**-17
"""Distance of a row of a product that was summed up, over the sizes of what was; rounding leaves some 2^-20."""

ENTRY = 2.0**-14
"""Distance of an entry, over the lengths of its row and column."""


def _held(
    found_MN: torch.Tensor, x_MK: torch.Tensor, y_KN: torch.Tensor, bias_N: torch.Tensor | None = None, *, sums: bool = False
) -> torch.Tensor:
    """Returns a product as it is found; in a probe, only if it is torch's."""
    if way.holding is not None:
        way.holding.require(found_MN, x_MK, y_KN, bias_N)
        way.holding.meet(x_MK, y_KN, bias_N is not None, sums)
    return found_MN


def held_grams(found: Grams, a_NTD: torch.Tensor, b_NTP: torch.Tensor) -> Grams:
    """Returns norms as they are found; in a probe, only if they are torch's.

    Raises:
        UnsupportedModule: code KERNEL_WRONG, they are others.
    """
    if way.holding is None:
        return found
    with using(TORCH):
        true = gram_product_sums(a_NTD, b_NTP, 1 << 20)
    lost = a_NTD.shape[2] * (found.in_b + a_NTD.shape[1]).square() + b_NTP.shape[2] * found.in_a.square()  # what underflows
    near = 2.0**-17 * found.reach.square() + torch.finfo(torch.float32).tiny * lost
    alike = ((found.square - true).abs() <= near) | (~true.isfinite() & ~found.square.isfinite())
    if bool(alike.all()):
        return found
    row = int(torch.nonzero(~alike)[0])
    shapes = f"{tuple(a_NTD.shape[1:])} and {tuple(b_NTP.shape[1:])}"
    raise wrong(f"a squared norm from factors of shapes {shapes}", float(found.square[row]), float(true[row]))


def held_together(found: Grams, factors: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Does :func:`held_grams` for the norms of several tensors, a row each."""
    if way.holding is not None:
        for row, (a_NTD, b_NTP) in enumerate(factors):
            held_grams(found.row(row), a_NTD, b_NTP)


def held_rows(found_MN: torch.Tensor, matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns squared norms of rows as they are found; in a probe, only if they are torch's.

    Raises:
        UnsupportedModule: code KERNEL_WRONG, they are others.
    """
    if way.holding is not None:
        for found, matrix in zip(found_MN, matrices, strict=True):
            true = matrix.double().square().sum(1)
            alike = ((found - true).abs() <= 2.0**-40 * true) | (~true.isfinite() & ~found.isfinite())
            if not bool(alike.all()):
                row = int(torch.nonzero(~alike)[0])
                what = f"the squared norm of a gradient of {matrix.shape[1]} numbers"
                raise wrong(what, float(found[row]), float(true[row]))
    return found_MN


def add_rows(totals: list[torch.Tensor], matrices: list[torch.Tensor], weights_MN: torch.Tensor) -> None:
    """Adds the rows of matrices, times their weights, to totals (:func:`reductions.add_rows`); in a probe, as torch does, or it
    raises UnsupportedModule, code KERNEL_WRONG."""
    if way.holding is None:
        reductions.add_rows(totals, matrices, weights_MN)
        return
    before = [total.clone() for total in totals]
    reductions.add_rows(totals, matrices, weights_MN)
    for found, total, matrix, weight in zip(totals, before, matrices, weights_MN, strict=True):
        true, near = total + weight @ matrix.double(), 2.0**-40 * (total.abs() + weight.abs() @ matrix.double().abs())
        if not bool(((found - true).abs() <= near).all()):
            at = int((found - true).abs().argmax())
            raise wrong(f"a weighted sum of gradients of {matrix.shape[1]} numbers", float(found[at]), float(true[at]))


ROWS = 4096
"""Rows of a weighted sum that one product adds; float64 adds up those of several, so that equal rows cannot drift far."""


def weighted_outer(a_NTD: torch.Tensor, b_NTP: torch.Tensor, weight_N: torch.Tensor) -> torch.Tensor:
    """Returns sum_i weight_i sum_t b_it a_it^T, (P, D); the narrower factor carries the weights, which are at most one."""
    n, t, d = a_NTD.shape
    p, weight_N = b_NTP.shape[2], weight_N.to(a_NTD.dtype)
    if n * t <= ROWS and not _fits(a_NTD, b_NTP, n * t * d * p):
        if d < p:
            return b_NTP.reshape(n * t, p).t() @ (a_NTD * weight_N[:, None, None]).reshape(n * t, d)
        return (b_NTP * weight_N[:, None, None]).reshape(n * t, p).t() @ a_NTD.reshape(n * t, d)
    factors = a_NTD.reshape(n * t, d), b_NTP.reshape(n * t, p), weight_N.repeat_interleave(t)
    total: torch.Tensor | None = None
    for a, b, weight in zip(*(x.split(ROWS) for x in factors), strict=True):
        part = _weighted(a, b, weight)
        total = part if total is None else total.double().add_(part)
    assert total is not None
    return total


def _weighted(a_KD: torch.Tensor, b_KP: torch.Tensor, weight_K: torch.Tensor) -> torch.Tensor:
    """Returns b^T diag(weight) a in one product."""
    narrow, wide = (a_KD, b_KP) if a_KD.shape[1] < b_KP.shape[1] else (b_KP, a_KD)
    if not _fits(a_KD, b_KP, a_KD.numel() * b_KP.shape[1]):
        scaled = narrow * weight_K[:, None]
        return b_KP.t() @ scaled if narrow is a_KD else scaled.t() @ a_KD
    turned = reductions.turned(narrow, weight_K)
    if turned is None:
        turned = (narrow * weight_K[:, None]).contiguous().t()
    found = _rows(turned, wide.contiguous().t())
    if way.holding is None:
        return found.t() if narrow is a_KD else found
    scaled = (narrow * weight_K[:, None]).contiguous()
    if not bool(((turned == scaled.t()) | (turned.isnan() & scaled.t().isnan())).all()):
        raise wrong(f"a factor of shape {tuple(narrow.shape)} times its weights", float(turned.sum()), float(scaled.sum()))
    x_PK, y_KD = (b_KP.contiguous().t(), scaled) if narrow is a_KD else (scaled.t(), a_KD.contiguous())
    return _held(found.t() if narrow is a_KD else found, x_PK, y_KD, sums=True)


def per_contribution(a_NTD: torch.Tensor, b_NTP: torch.Tensor) -> torch.Tensor:
    """Returns sum_t b_it a_it^T of every contribution, shape (N, P, D)."""
    n, t, d = a_NTD.shape
    p = b_NTP.shape[2]
    found = reductions.outer(a_NTD, b_NTP)
    if found is not None:
        return found
    if not _fits(a_NTD, b_NTP, t * d * p):
        return torch.bmm(b_NTP.mT, a_NTD)
    a, b = a_NTD.contiguous(), b_NTP.contiguous()
    out = a.new_empty(n, p, d)
    for i in range(n):
        out[i] = _product(a[i], b[i])
    return out


RUN = 1024
"""Terms that a Gram product adds in one call; longer ones are added up call by call, so that rounding stays bounded."""


def gram_terms(width: int) -> int:
    """Returns how many roundings a term of a Gram product of this width goes through at most, in any order: see ``RUN``."""
    return min(width, RUN) + -(-width // RUN)


def gram_product_sums(a_NTD: torch.Tensor, b_NTP: torch.Tensor, elements: int) -> torch.Tensor:
    """Returns sum_{t,s} (a_it . a_is)(b_it . b_is), float64 (N,); ``elements`` bounds the Gram matrices that exist at a time.

    Products are float32, of :func:`gram_terms` roundings each; their sums are float64.
    """
    n, t = a_NTD.shape[:2]
    a, b = a_NTD.contiguous(), b_NTP.contiguous()
    if _fits(a, b, t * t * min(a.shape[2], b.shape[2])):
        found = [_gram(a[i]).mul_(_gram(b[i])).sum(dtype=torch.float64) for i in range(n)]
        return torch.stack(found) if found else a.new_zeros(0, dtype=torch.float64)
    out = torch.empty(n, dtype=torch.float64, device=a.device)
    step = max(1, elements // max(1, t * t))
    for start in range(0, n, step):
        a_i, b_i = a[start : start + step], b[start : start + step]
        gram = inner(a_i, a_i).mul_(inner(b_i, b_i))
        out[start : start + step] = gram.sum(dim=(1, 2), dtype=torch.float64)
    return out


def _gram(x_TD: torch.Tensor) -> torch.Tensor:
    """Returns x x^T by oneDNN, at most ``RUN`` terms at a time."""
    if x_TD.shape[1] <= RUN:
        return _rows(x_TD, x_TD)
    total: torch.Tensor | None = None
    for part in x_TD.split(RUN, dim=1):
        part = part.contiguous()
        found = _rows(part, part)
        total = found if total is None else total.add_(found)
    assert total is not None
    return total


def inner(x_NSD: torch.Tensor, y_NTD: torch.Tensor) -> torch.Tensor:
    """Returns x y^T of every contribution, (N, S, T), by torch: at most ``RUN`` terms at a time."""
    total: torch.Tensor | None = None
    for x, y in zip(x_NSD.split(RUN, dim=2), y_NTD.split(RUN, dim=2), strict=True):
        found = torch.bmm(x, y.mT)
        total = found if total is None else total.add_(found)  # baddbmm may go on adding terms to the total one by one
    assert total is not None
    return total


def outer_of_one(a_TD: torch.Tensor, b_TP: torch.Tensor) -> torch.Tensor:
    """Returns sum_t b_t a_t^T of one contribution, shape (P, D), fresh; the same bits wherever in a batch the contribution lay.

    Kernels may choose by the alignment of what they are given, and the rows of a batch are aligned differently; so a row that
    does not lie as a tensor of its own would is copied first.
    """
    a, b = _settled(a_TD), _settled(b_TP)
    if _fits(a, b, a.shape[0] * a.shape[1] * b.shape[1]):
        found = _product(a, b)
        lies = None if found.is_contiguous() else reductions.turned(found.t(), found.new_ones(found.shape[1]))
        return found.contiguous() if lies is None else lies
    return b.t() @ a


def _product(a_TD: torch.Tensor, b_TP: torch.Tensor) -> torch.Tensor:
    """Returns b^T a by oneDNN, which is three times as fast on a much narrower first factor as on a second one."""
    narrow = 8 * a_TD.shape[1] <= b_TP.shape[1]
    return _rows(a_TD.t(), b_TP.t()).t() if narrow else _rows(b_TP.t(), a_TD.t())


def _settled(x: torch.Tensor) -> torch.Tensor:
    """Returns it contiguous, and aligned as torch aligns what it allocates (64 bytes on the CPU, 512 on a GPU)."""
    aligned = x.is_contiguous() and x.data_ptr() % (64 if x.device.type == "cpu" else 512) == 0
    return x if aligned else x.clone(memory_format=torch.contiguous_format)
