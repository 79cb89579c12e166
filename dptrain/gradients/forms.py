"""Per-contribution gradients in the cheapest exact form, their norms and their weighted sums.

Shape letters: N contributions, T positions (those of all examples of a contribution, concatenated), D width in, P width
out, V rows of a table, S positions of a second use. ``a`` is what went into a module, ``b`` the gradient of what came out.
A tensor used k times has k pieces, and its gradient is their SUM; every norm below is the norm of that sum.

Sources: Goodfellow (arXiv:1510.01799) for the norm without the gradient; Li et al. (arXiv:2110.05679) for sequences;
Bu et al. (arXiv:2210.00038) for book-keeping, one backward pass and a weighted GEMM.
"""

import math
from dataclasses import dataclass

import torch

from dptrain.blocks.slices import Part
from dptrain.errors import UnsupportedModule
from dptrain.gradients import matmul

_GRAM_ELEMENTS = 1 << 23
"""Elements of one chunk of Gram matrices, to bound memory at long T."""

_RUN = 1024
"""Elements whose squares are added in the working precision before float64 takes over."""

_MATERIALIZE_ELEMENTS = 1 << 24
"""Above this, a tied pair takes its norm by the cross term instead of N x V x D gradients."""


@dataclass
class Outer:
    """Gradient sum_t b_t a_t^T of a P x D weight (``transposed``: a_t b_t^T of a D x P one)."""

    a_NTD: torch.Tensor
    b_NTP: torch.Tensor
    transposed: bool = False


@dataclass
class Gather:
    """Gradient of a V x D table: row ids[t] receives b_t. Within a contribution no row receives two that are not zero."""

    ids_NT: torch.Tensor
    b_NTD: torch.Tensor


@dataclass
class Dense:
    """The gradient itself, N x (shape of the tensor)."""

    g: torch.Tensor


Piece = Outer | Gather | Dense


def outer(a_NTD: torch.Tensor, b_NTP: torch.Tensor, *, transposed: bool, alone: bool) -> Outer | Dense:
    """The form of an outer-product gradient that stores less.

    Instantiating costs no extra multiplication (it is the weight-gradient GEMM, split per contribution) but stores P*D
    numbers instead of T*(P+D); the Gram form costs 2 T^2 (P+D) more, a few hundredths of a step on the kernels of
    :mod:`dptrain.gradients.matmul`. A tensor used elsewhere too (``alone`` false) stays factored, so that the cross terms
    can be formed.
    """
    t, d, p = a_NTD.shape[1], a_NTD.shape[2], b_NTP.shape[2]
    if not alone or p * d > t * (p + d):
        return Outer(a_NTD, b_NTP, transposed)
    return Dense(_instantiate(a_NTD, b_NTP, transposed))


def gather(ids_NT: torch.Tensor, b_NTD: torch.Tensor, rows: int) -> Gather:
    """Adds up what a contribution sends to the same row and puts it at the row's first position, zero at the others.

    Norm and sum are then formed from the same numbers: added up after the clip, large terms that cancel within a
    contribution would leave their rounding in everybody's sum.
    """
    n, t = ids_NT.shape
    keys = (torch.arange(n, device=ids_NT.device)[:, None] * rows + ids_NT).reshape(-1)
    # No shape depends on a value, so that a graph can be made of this (dptrain.routing.compiled).
    run, order = torch.sort(keys, stable=True)
    begins = torch.ones_like(run, dtype=torch.bool)
    begins[1:] = run[1:] != run[:-1]
    spots = torch.arange(n * t, device=keys.device)
    start = torch.where(begins, spots, torch.zeros_like(spots)).cummax(0).values
    first = torch.empty_like(order).scatter_(0, order, order[start])
    b = b_NTD.reshape(n * t, -1)
    return Gather(ids_NT, torch.zeros_like(b).index_add_(0, first, b).view_as(b_NTD))


def norm_sq(pieces: list[Piece]) -> torch.Tensor:
    """Squared Euclidean norm per contribution of the sum of merged pieces, float64, shape (N,); see :func:`merge`.

    Guarantee: not below the true squared norm by more than the rounding of a float dot product; where the norm comes from
    Gram matrices or cross terms, whose cancellation can hide a large gradient, a bound on that rounding is added.
    """
    if len(pieces) == 1:
        piece = pieces[0]
        if isinstance(piece, Dense):
            return _sum_sq(piece.g.reshape(piece.g.shape[0], -1))
        if isinstance(piece, Outer):
            a_NT, b_NT = _lengths(piece.a_NTD), _lengths(piece.b_NTP)
            return _gram_norm_sq(piece) + _slack(piece, a_NT, b_NT, _reach(a_NT, b_NT))
        return _sum_sq(piece.b_NTD.reshape(piece.b_NTD.shape[0], -1))
    head, table = pieces
    assert isinstance(head, Outer) and isinstance(table, Gather)
    square = _gram_norm_sq(head) + _sum_sq(table.b_NTD.reshape(table.b_NTD.shape[0], -1)) + _cross(head, table)
    a_NT, b_NT = _lengths(head.a_NTD), _lengths(head.b_NTP)
    reach = _reach(a_NT, b_NT) + _lengths(table.b_NTD).sum(1)
    return _not_negative(square) + _slack(head, a_NT, b_NT, reach)


def add_weighted(pieces: list[Piece], weight_N: torch.Tensor, total: torch.Tensor) -> None:
    """``total += sum_i weight_i * gradient_i``, in place, without forming a gradient per contribution.

    Guarantee: ``total`` is float64 and each microbatch reaches it as one addition, so what earlier and later microbatches
    hold cannot move the share of a contribution by more than float64 rounding.
    """
    for piece in pieces:
        if isinstance(piece, Dense):
            part = piece.g.reshape(piece.g.shape[0], -1).t().mv(weight_N.to(piece.g.dtype))
            total.view(-1).add_(part)
        elif isinstance(piece, Gather):
            scaled = piece.b_NTD * weight_N.to(piece.b_NTD.dtype)[:, None, None]
            total.index_add_(0, piece.ids_NT.reshape(-1), scaled.reshape(-1, scaled.shape[-1]).to(total.dtype))
        else:
            part = matmul.weighted_outer(piece.a_NTD, piece.b_NTP, weight_N)
            part = part.t() if piece.transposed else part
            total.view(part.shape).add_(part)  # a convolution's weight has more than two dimensions


def zero_rows(pieces: list[Piece], bad_N: torch.Tensor) -> None:
    """Replaces the rows of these contributions by zero (not by multiplication: 0 * NaN is NaN)."""
    for piece in pieces:
        for name, value in vars(piece).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                mask = bad_N.to(value.device).view(-1, *([1] * (value.dim() - 1)))
                setattr(piece, name, value.masked_fill(mask, 0.0))


def merge(pieces: list[Piece], shape: torch.Size) -> list[Piece]:
    """At most one piece, or one Outer and one Gather: the forms whose norm has a formula.

    Norm and weighted sum must both be taken from what this returns, so that they speak of the same numbers.
    """
    if len(pieces) == 1:
        return pieces
    outers = [p for p in pieces if isinstance(p, Outer)]
    gathers = [p for p in pieces if isinstance(p, Gather)]
    dense = [p.g for p in pieces if isinstance(p, Dense)]
    count = _count(pieces)
    materialize = bool(dense) or len({p.transposed for p in outers}) > 1 or any(p.transposed for p in outers if gathers)
    if materialize or (outers and gathers and count * math.prod(shape) <= _MATERIALIZE_ELEMENTS):
        total = sum(dense[1:], dense[0].clone()) if dense else None
        for piece in outers:
            g = _instantiate(piece.a_NTD, piece.b_NTP, piece.transposed).reshape(count, *shape)
            total = g if total is None else total.add_(g)
        for piece in gathers:
            if total is None:
                total = piece.b_NTD.new_zeros(count, *shape)
            rows = torch.arange(count, device=piece.ids_NT.device)[:, None] * shape[0] + piece.ids_NT
            total.view(-1, shape[-1]).index_add_(0, rows.reshape(-1), piece.b_NTD.reshape(-1, shape[-1]))
        assert total is not None
        return [Dense(total)]
    merged: list[Piece] = []
    if outers:
        a = _cat([p.a_NTD for p in outers])
        b = _cat([p.b_NTP for p in outers])
        merged.append(Outer(a, b, outers[0].transposed))
    if gathers:
        ids = _cat([p.ids_NT for p in gathers])
        b = _cat([p.b_NTD for p in gathers])
        merged.append(gather(ids, b, shape[0]) if len(gathers) > 1 else gathers[0])
    return merged


def _cat(values: list[torch.Tensor]) -> torch.Tensor:
    """Along the positions; one alone is not copied (the output gradient of a language-model head is large)."""
    return values[0] if len(values) == 1 else torch.cat(values, dim=1)


def _count(pieces: list[Piece]) -> int:
    piece = pieces[0]
    if isinstance(piece, Dense):
        return piece.g.shape[0]
    return piece.b_NTP.shape[0] if isinstance(piece, Outer) else piece.b_NTD.shape[0]


def _instantiate(a_NTD: torch.Tensor, b_NTP: torch.Tensor, transposed: bool) -> torch.Tensor:
    return matmul.per_contribution(b_NTP, a_NTD) if transposed else matmul.per_contribution(a_NTD, b_NTP)


def _sum_sq(flat: torch.Tensor) -> torch.Tensor:
    """Squared norm of every row of (N, K), float64; float32 only within runs of 1024, where its rounding is small."""
    n, k = flat.shape
    whole = k - k % _RUN
    out = torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square()
    if whole:
        runs = torch.linalg.vector_norm(flat[:, :whole].reshape(n, -1, _RUN), dim=2)
        out += runs.double().square_().sum(1)
    return out


def _lengths(value_NTW: torch.Tensor) -> torch.Tensor:
    """Norm of every position, float64 (N, T), not below the true one where the squares of small entries vanish."""
    floor = math.sqrt(value_NTW.shape[2] * torch.finfo(value_NTW.dtype).tiny)
    return torch.linalg.vector_norm(value_NTW, dim=2).double() + floor


def _reach(a_NT: torch.Tensor, b_NT: torch.Tensor) -> torch.Tensor:
    """sum_t |a_t||b_t| per contribution, float64: how large the terms of the gradient are before they cancel."""
    return (a_NT * b_NT).sum(1)


def _slack(piece: Outer, a_NT: torch.Tensor, b_NT: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """Bound on the rounding of a squared norm from Gram matrices, whatever the values and the order of additions.

    A float32 dot product of k roundings is off by at most k u / (1 - k u) times the sum of its absolute terms (Higham 2002,
    section 3.1), so a product of two Gram entries by (k_D + k_P + 1) u |a_t||a_s||b_t||b_s| and a little more, and the squared
    norm by that times (sum_t |a_t||b_t|)^2; sums of entries are float64. Kernels add up to :data:`matmul.RUN` terms one after
    the other, and a contribution can be built for which each is lost, so a bound that expects errors to cancel would not hold.
    What underflows is lost on top: at most the smallest normal number per product, so that tiny inputs cannot hide behind a
    large output gradient.
    """
    t, d, p = piece.a_NTD.shape[1], piece.a_NTD.shape[2], piece.b_NTP.shape[2]
    numbers = torch.finfo(piece.a_NTD.dtype)
    lost = d * (b_NT.sum(1) + t).square() + p * a_NT.sum(1).square()
    roundings = matmul.gram_terms(d) + matmul.gram_terms(p) + 4
    return 1.01 * roundings * (numbers.eps / 2) * reach.square() + numbers.tiny * lost


def _gram_norm_sq(piece: Outer) -> torch.Tensor:
    """<A A^T, B B^T> per contribution."""
    if piece.a_NTD.shape[1] == 1:
        return _reach(_lengths(piece.a_NTD), _lengths(piece.b_NTP)).square()
    return _not_negative(matmul.gram_product_sums(piece.a_NTD, piece.b_NTP, _GRAM_ELEMENTS))


def _not_negative(square_N: torch.Tensor) -> torch.Tensor:
    """What rounding took below zero is zero; minus infinity is an overflow of terms that cancel, and no norm of zero."""
    return square_N.clamp(min=0.0).masked_fill_(torch.isneginf(square_N), torch.inf)


def _cross(head: Outer, table: Gather) -> torch.Tensor:
    """2 <head gradient, table gradient> of a tied V x D tensor: 2 sum_{t,s} b_s[x_t] (e_t . a_s)."""
    products_NTS = matmul.inner(table.b_NTD, head.a_NTD)
    ids_NST = table.ids_NT[:, None, :].expand(-1, head.b_NTP.shape[1], -1)
    picked_NTS = head.b_NTP.gather(2, ids_NST).mT
    return 2.0 * (products_NTS * picked_NTS).sum(dim=(1, 2), dtype=torch.float64)


def narrow(piece: Piece, part: Part, shape: torch.Size) -> Piece:
    """The piece of a part, from the piece of the whole tensor of this shape.

    Guarantee: its gradient is ``part.select`` of the whole one's, computed from the same numbers; nothing outside the part
    enters its norm or its sum. Pieces of several parts may share storage.

    Raises:
        UnsupportedModule: the form of the piece has no factor along the dimension of the part.
    """
    if isinstance(piece, Dense):
        return Dense(part.select(piece.g, part.dim + 1).contiguous())
    if isinstance(piece, Outer) and (part.dim == 0 or len(shape) == 2):
        if (part.dim == 0) != piece.transposed:  # along the outputs, which come first in W and last in a transposed W
            return Outer(piece.a_NTD, part.select(piece.b_NTP, 2), piece.transposed)
        if len(shape) == 2:
            return Outer(part.select(piece.a_NTD, 2), piece.b_NTP, piece.transposed)
    if isinstance(piece, Gather) and part.dim == 1:
        return Gather(piece.ids_NT, part.select(piece.b_NTD, 2))
    raise UnsupportedModule(
        "PART_OF_PIECE",
        f"a tensor of shape {tuple(shape)} is split along dimension {part.dim}, for which there is no gradient in the form "
        f"{type(piece).__name__}; sign a policy without masks of heads or experts there, or freeze the tensor",
    )
