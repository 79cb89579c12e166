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

_GRAM_ELEMENTS = 1 << 23
"""Elements of one chunk of Gram matrices, to bound memory at long T."""

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
    """Gradient of a V x D table: row ids[t] receives b_t; ``padding_idx`` receives nothing."""

    ids_NT: torch.Tensor
    b_NTD: torch.Tensor


@dataclass
class Dense:
    """The gradient itself, N x (shape of the tensor)."""

    g: torch.Tensor


Piece = Outer | Gather | Dense


def outer(a_NTD: torch.Tensor, b_NTP: torch.Tensor, *, transposed: bool, alone: bool) -> Outer | Dense:
    """The cheaper form of an outer-product gradient.

    Instantiating costs no extra multiplication (it is the weight-gradient GEMM, split per contribution) but stores P*D
    numbers instead of T*(P+D); the Gram form stores less and costs 2 T^2 (P+D) more. A tensor used elsewhere too
    (``alone`` false) stays factored, so that the cross terms can be formed.
    """
    t, d, p = a_NTD.shape[1], a_NTD.shape[2], b_NTP.shape[2]
    if not alone or p * d > 2 * t * (p + d):
        return Outer(a_NTD, b_NTP, transposed)
    return Dense(_instantiate(a_NTD, b_NTP, transposed))


def norm_sq(pieces: list[Piece], shape: torch.Size) -> torch.Tensor:
    """Squared Euclidean norm per contribution of the sum of the pieces, float64, shape (N,).

    Guarantee: never below the true squared norm by more than the rounding of a float dot product; where the norm comes
    from Gram matrices, whose cancellation can hide a large gradient, a bound on that rounding is added.
    """
    merged = _merge(pieces, shape)
    if len(merged) == 1:
        piece = merged[0]
        if isinstance(piece, Dense):
            return _sum_sq(piece.g)
        return _gram_norm_sq(piece) if isinstance(piece, Outer) else _gather_norm_sq(piece, shape[0])
    head, table = merged
    assert isinstance(head, Outer) and isinstance(table, Gather)
    return (_gram_norm_sq(head) + _gather_norm_sq(table, shape[0]) + _cross(head, table)).clamp_(min=0.0)


def add_weighted(pieces: list[Piece], weight_N: torch.Tensor, total: torch.Tensor) -> None:
    """``total += sum_i weight_i * gradient_i``, in place, without forming a gradient per contribution."""
    for piece in pieces:
        if isinstance(piece, Dense):
            total.view(-1).addmv_(piece.g.reshape(piece.g.shape[0], -1).t(), weight_N.to(piece.g.dtype))
        elif isinstance(piece, Gather):
            scaled = piece.b_NTD * weight_N.to(piece.b_NTD.dtype)[:, None, None]
            total.index_add_(0, piece.ids_NT.reshape(-1), scaled.reshape(-1, scaled.shape[-1]))
        else:
            a = piece.a_NTD.reshape(-1, piece.a_NTD.shape[-1])
            b = (piece.b_NTP * weight_N.to(piece.b_NTP.dtype)[:, None, None]).reshape(-1, piece.b_NTP.shape[-1])
            total.addmm_(a.t(), b) if piece.transposed else total.addmm_(b.t(), a)


def zero_rows(pieces: list[Piece], bad_N: torch.Tensor) -> None:
    """Replaces the rows of these contributions by zero (not by multiplication: 0 * NaN is NaN)."""
    for piece in pieces:
        for name, value in vars(piece).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                mask = bad_N.to(value.device).view(-1, *([1] * (value.dim() - 1)))
                setattr(piece, name, value.masked_fill(mask, 0.0))


def _merge(pieces: list[Piece], shape: torch.Size) -> list[Piece]:
    """At most one piece, or one Outer and one Gather: the forms whose norm has a formula."""
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
            g = _instantiate(piece.a_NTD, piece.b_NTP, piece.transposed)
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
        a = torch.cat([p.a_NTD for p in outers], dim=1)
        b = torch.cat([p.b_NTP for p in outers], dim=1)
        merged.append(Outer(a, b, outers[0].transposed))
    if gathers:
        ids = torch.cat([p.ids_NT for p in gathers], dim=1)
        merged.append(Gather(ids, torch.cat([p.b_NTD for p in gathers], dim=1)))
    return merged


def _count(pieces: list[Piece]) -> int:
    piece = pieces[0]
    if isinstance(piece, Dense):
        return piece.g.shape[0]
    return piece.b_NTP.shape[0] if isinstance(piece, Outer) else piece.b_NTD.shape[0]


def _instantiate(a_NTD: torch.Tensor, b_NTP: torch.Tensor, transposed: bool) -> torch.Tensor:
    return torch.bmm(a_NTD.mT, b_NTP) if transposed else torch.bmm(b_NTP.mT, a_NTD)


def _sum_sq(g: torch.Tensor) -> torch.Tensor:
    flat = g.reshape(g.shape[0], -1)
    return torch.linalg.vector_norm(flat, dim=1).double().square()


def _gram_norm_sq(piece: Outer) -> torch.Tensor:
    """<A A^T, B B^T> per contribution, plus a bound on its rounding.

    The rounding of one product of Gram entries, and of its sum over a row, is about 2 sqrt(D+P+T) u |a_t||a_s||b_t||b_s|
    (Higham and Mary 2019, probabilistic bound), so that of the norm is at most 2 sqrt(D+P+T) u (sum_t |a_t||b_t|)^2.
    Without it a contribution built to cancel could show a norm far below its own.
    """
    a, b = piece.a_NTD, piece.b_NTP
    n, t = a.shape[:2]
    reach = (torch.linalg.vector_norm(a, dim=2) * torch.linalg.vector_norm(b, dim=2)).sum(1).double().square()
    slack = 2.0 * math.sqrt(a.shape[2] + b.shape[2] + t) * torch.finfo(a.dtype).eps / 2.0 * reach
    if t == 1:
        return reach + slack
    out = torch.empty(n, dtype=torch.float64, device=a.device)
    step = max(1, _GRAM_ELEMENTS // (t * t))
    for start in range(0, n, step):
        a_i, b_i = a[start : start + step], b[start : start + step]
        gram = torch.bmm(a_i, a_i.mT).mul_(torch.bmm(b_i, b_i.mT))
        out[start : start + step] = gram.sum(2).sum(1, dtype=torch.float64)
    return out.clamp_(min=0.0) + slack


def _gather_norm_sq(piece: Gather, rows: int) -> torch.Tensor:
    """Sum of squared norms of the per-row sums: sort by (contribution, row), add up, square."""
    n = piece.ids_NT.shape[0]
    keys = (torch.arange(n, device=piece.ids_NT.device)[:, None] * rows + piece.ids_NT).reshape(-1)
    unique, place = torch.unique(keys, return_inverse=True)
    b = piece.b_NTD.reshape(-1, piece.b_NTD.shape[-1])
    sums = b.new_zeros(unique.numel(), b.shape[1]).index_add_(0, place, b)
    out = torch.zeros(n, dtype=torch.float64, device=b.device)
    return out.index_add_(0, unique // rows, torch.linalg.vector_norm(sums, dim=1).double().square())


def _cross(head: Outer, table: Gather) -> torch.Tensor:
    """2 <head gradient, table gradient> of a tied V x D tensor: 2 sum_{t,s} b_s[x_t] (e_t . a_s)."""
    products_NTS = torch.bmm(table.b_NTD, head.a_NTD.mT)
    ids_NST = table.ids_NT[:, None, :].expand(-1, head.b_NTP.shape[1], -1)
    picked_NTS = head.b_NTP.gather(2, ids_NST).mT
    return 2.0 * (products_NTS * picked_NTS).sum(dim=(1, 2), dtype=torch.float64)
