"""Forms of per-contribution gradients: how each is stored, its norm, and its weighted sum over contributions.

Shape letters: N contributions, T positions (those of all examples of a contribution, concatenated), D width in, P width
out, V rows of a table, S positions of a second use. ``a`` is what went into a module, ``b`` the gradient of what came out.
A tensor used k times has k pieces, and its gradient is their SUM; every norm below is the norm of that sum.

A rule returns raw forms; the router hands in what :meth:`Form.settled` makes of them. To add a form, write one class here.

Sources: Goodfellow (arXiv:1510.01799) for the norm without the gradient; Li et al. (arXiv:2110.05679) for sequences;
Bu et al. (arXiv:2210.00038) for book-keeping, one backward pass and a weighted GEMM.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dptrain.blocks.slices import Part
from dptrain.errors import UnsupportedModule
from dptrain.gradients import matmul
from dptrain.kernels import reductions
from dptrain.kernels.reductions import Grams

_GRAM_ELEMENTS = 1 << 23
"""Elements of one chunk of Gram matrices, to bound memory at long T."""

_RUN = 1024
"""Elements whose squares are added in the working precision before float64 takes over."""

_MATERIALIZE_ELEMENTS = 1 << 24
"""Above this, a tied pair takes its norm by the cross term instead of N x V x D gradients."""


def promote(value: torch.Tensor) -> torch.Tensor:
    """Widens half precision to float32; norms and sums are never formed in half precision."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value


@dataclass
class Form:
    """The gradients of one tensor by N contributions, in one call of a module; row i is that of contribution i.

    Norm and weighted sum of a form are taken from the same numbers. So a contribution is clipped by what it adds, whatever
    those numbers are.
    """

    def fault(self, contributions: int, shape: torch.Size) -> str:
        """Tells how this differs from gradients of a tensor of this shape by so many contributions; empty where it does not."""
        raise NotImplementedError

    def settled(self, shape: torch.Size, *, alone: bool) -> "Form":
        """Makes the form that is stored: at least float32, and the cheapest for a tensor of this shape.

        Args:
            alone: no other module uses the tensor, so that no cross term with another form will be needed.
        """
        raise NotImplementedError

    @property
    def count(self) -> int:
        """N."""
        raise NotImplementedError

    def norm_sq(self) -> torch.Tensor:
        """Squared Euclidean norm per contribution, float64 (N,); see :func:`norm_sq` for the guarantee."""
        raise NotImplementedError

    def add_weighted(self, weight_N: torch.Tensor, total: torch.Tensor) -> None:
        """``total += sum_i weight_i * gradient_i``, in place; see :func:`add_weighted` for the guarantee."""
        raise NotImplementedError

    def dense(self, shape: torch.Size) -> torch.Tensor:
        """Forms all gradients, N x shape."""
        raise NotImplementedError

    def of_one(self, row: int) -> torch.Tensor:
        """Forms the gradient of one contribution, not always in its shape; the same bits wherever in the batch it lay."""
        raise NotImplementedError

    def part(self, part: Part, shape: torch.Size) -> "Form | None":
        """Takes a slice of a tensor of this shape; None where no factor runs along the dimension of the slice."""
        raise NotImplementedError


@dataclass
class Outer(Form):
    """Gradient sum_t b_t a_t^T of a P x D weight (``transposed``: a_t b_t^T of a D x P one)."""

    a_NTD: torch.Tensor
    b_NTP: torch.Tensor
    transposed: bool = False

    def fault(self, contributions: int, shape: torch.Size) -> str:
        a, b = self.a_NTD, self.b_NTP
        if a.dim() != 3 or b.dim() != 3 or a.shape[:2] != b.shape[:2] or b.shape[0] != contributions:
            return f"factors of shapes {_size(a)} and {_size(b)}, expected ({contributions}, T, D) and ({contributions}, T, P)"
        p, d = b.shape[2], a.shape[2]
        expected = (shape[0], math.prod(shape[1:])) if len(shape) > 2 else tuple(shape)
        if ((d, p) if self.transposed else (p, d)) != expected:
            return f"a product of shape {(d, p) if self.transposed else (p, d)}, expected {expected}"
        return "" if a.is_floating_point() and b.is_floating_point() else "factors that are not floating point"

    def settled(self, shape: torch.Size, *, alone: bool) -> "Outer | Dense":
        """Chooses between the factors and the gradient itself, whichever stores less.

        Instantiating costs no extra multiplication (it is the weight-gradient GEMM, split per contribution) but stores P*D
        numbers instead of T*(P+D); the Gram form costs 2 T^2 (P+D) more, a few hundredths of a step on the kernels of
        :mod:`dptrain.gradients.matmul`. A tensor used elsewhere too (``alone`` false) stays factored, so that the cross terms
        can be formed.
        """
        b = promote(self.b_NTP)
        a = promote(self.a_NTD).to(b.dtype)
        t, d, p = a.shape[1], a.shape[2], b.shape[2]
        if not alone or p * d > t * (p + d):
            return Outer(a, b, self.transposed)
        found = _instantiate(a, b, self.transposed)
        return Dense(found if found.shape[1:] == shape else found.reshape(-1, *shape))

    @property
    def count(self) -> int:
        return self.b_NTP.shape[0]

    def norm_sq(self) -> torch.Tensor:
        found = _grams(self)
        return _not_negative(found.square) + _slack([self], found)

    def add_weighted(self, weight_N: torch.Tensor, total: torch.Tensor) -> None:
        part = matmul.weighted_outer(self.a_NTD, self.b_NTP, weight_N)
        part = part.t() if self.transposed else part
        reductions.add_to(total.view(part.shape), part)  # a convolution's weight has more than two dimensions

    def dense(self, shape: torch.Size) -> torch.Tensor:
        return _instantiate(self.a_NTD, self.b_NTP, self.transposed).reshape(self.count, *shape)

    def of_one(self, row: int) -> torch.Tensor:
        a, b = self.a_NTD[row], self.b_NTP[row]
        return matmul.outer_of_one(b, a) if self.transposed else matmul.outer_of_one(a, b)

    def part(self, part: Part, shape: torch.Size) -> "Outer | None":
        if part.dim != 0 and len(shape) != 2:
            return None
        if (part.dim == 0) != self.transposed:  # along the outputs, which come first in W and last in a transposed W
            return Outer(self.a_NTD, part.select(self.b_NTP, 2), self.transposed)
        return Outer(part.select(self.a_NTD, 2), self.b_NTP, self.transposed) if len(shape) == 2 else None


@dataclass
class Gather(Form):
    """Gradient of a V x D table: row ids[t] receives b_t.

    Once settled, no row receives two of a contribution that are not zero.
    """

    ids_NT: torch.Tensor
    b_NTD: torch.Tensor

    def fault(self, contributions: int, shape: torch.Size) -> str:
        ids, b = self.ids_NT, self.b_NTD
        if ids.dim() != 2 or b.dim() != 3 or ids.shape != b.shape[:2] or ids.shape[0] != contributions:
            expected = f"({contributions}, T) and ({contributions}, T, D)"
            return f"ids and rows of shapes {_size(ids)} and {_size(b)}, expected {expected}"
        if len(shape) != 2 or b.shape[2] != shape[1]:
            return f"rows of width {b.shape[2]} for a tensor of shape {_size(shape)}"
        whole = not ids.is_floating_point() and ids.dtype != torch.bool
        return "" if whole and b.is_floating_point() else f"ids of type {ids.dtype} and rows of type {b.dtype}"

    def settled(self, shape: torch.Size, *, alone: bool) -> "Gather":
        # An id out of range would fall on a row of the next contribution; its own counts as zero (dptrain.sandbox).
        return gather(self.ids_NT.clamp(0, shape[0] - 1), promote(self.b_NTD), shape[0])

    @property
    def count(self) -> int:
        return self.b_NTD.shape[0]

    def norm_sq(self) -> torch.Tensor:
        return _sum_sq(self.b_NTD.flatten(1))

    def add_weighted(self, weight_N: torch.Tensor, total: torch.Tensor) -> None:
        ids, rows = self.weighted(weight_N)
        total.index_add_(0, ids, rows.to(total.dtype))

    def weighted(self, weight_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rows of the table that are added to, (N T,), and what is added to each, (N T, D)."""
        scaled = self.b_NTD * weight_N.to(self.b_NTD.dtype)[:, None, None]
        return self.ids_NT.reshape(-1), scaled.reshape(-1, scaled.shape[-1])

    def dense(self, shape: torch.Size) -> torch.Tensor:
        return self.add_into(self.b_NTD.new_zeros(self.count, *shape))

    def add_into(self, total: torch.Tensor) -> torch.Tensor:
        """Adds the gradients to dense ones, N x V x D, in place."""
        rows = torch.arange(self.count, device=self.ids_NT.device)[:, None] * total.shape[1] + self.ids_NT
        total.view(-1, total.shape[-1]).index_add_(0, rows.reshape(-1), self.b_NTD.reshape(-1, total.shape[-1]))
        return total

    def part(self, part: Part, shape: torch.Size) -> "Gather | None":
        return Gather(self.ids_NT, part.select(self.b_NTD, 2)) if part.dim == 1 else None


@dataclass
class Dense(Form):
    """The gradient itself, N x (shape of the tensor)."""

    g: torch.Tensor

    def fault(self, contributions: int, shape: torch.Size) -> str:
        if self.g.shape != (contributions, *shape):
            return f"gradients of shape {_size(self.g)}, expected {(contributions, *shape)}"
        return "" if self.g.is_floating_point() else f"gradients of type {self.g.dtype}"

    def settled(self, shape: torch.Size, *, alone: bool) -> "Dense":
        return Dense(promote(self.g))

    @property
    def count(self) -> int:
        return self.g.shape[0]

    def norm_sq(self) -> torch.Tensor:
        return _sum_sq(self.g.reshape(self.count, math.prod(self.g.shape[1:])))

    def add_weighted(self, weight_N: torch.Tensor, total: torch.Tensor) -> None:
        flat = self.g.reshape(self.count, math.prod(self.g.shape[1:]))
        for rows, weight in zip(flat.split(matmul.ROWS), weight_N.to(flat.dtype).split(matmul.ROWS), strict=True):
            total.view(-1).add_(rows.t().mv(weight))

    def dense(self, shape: torch.Size) -> torch.Tensor:
        return self.g.clone()

    def of_one(self, row: int) -> torch.Tensor:
        return self.g[row]

    def part(self, part: Part, shape: torch.Size) -> "Dense":
        return Dense(part.select(self.g, part.dim + 1).contiguous())


Piece = Outer | Gather | Dense
"""The forms that norms, sums and slices know; a rule returns nothing else."""


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
    b = b_NTD.reshape(n * t, b_NTD.shape[2])
    return Gather(ids_NT, torch.zeros_like(b).index_add_(0, first, b).view_as(b_NTD))


def norm_sq(pieces: list[Piece]) -> torch.Tensor:
    """Squared Euclidean norm per contribution of the sum of merged pieces, float64, shape (N,); see :func:`merge`.

    Guarantee: not below the true squared norm by more than the rounding of a float dot product of 1024 terms, however wide the
    tensor; where the norm comes from Gram matrices or cross terms, whose cancellation can hide a large gradient, a bound on
    that rounding is added.
    """
    if len(pieces) == 1:
        return pieces[0].norm_sq()
    head, table = pieces
    assert isinstance(head, Outer) and isinstance(table, Gather)
    found = _grams(head)
    square = _not_negative(found.square) + table.norm_sq() + _cross(head, table)
    wider = replace(found, reach=found.reach + _lengths(table.b_NTD).sum(1))
    return _not_negative(square) + _slack([head], wider, table.b_NTD.shape[1])


def add_weighted(pieces: list[Piece], weight_N: torch.Tensor, total: torch.Tensor) -> None:
    """``total += sum_i weight_i * gradient_i``, in place, without forming a gradient per contribution.

    Guarantee: ``total`` is float64 and a microbatch reaches it 4096 rows at a time, so what earlier and later microbatches
    hold cannot move the share of a contribution by more than float64 rounding, and rows that are equal cannot drift.
    """
    for piece in pieces:
        piece.add_weighted(weight_N, total)


def norms_sq(merged: Sequence[list[Piece]]) -> list[torch.Tensor]:
    """Takes :func:`norm_sq` of many tensors: of gradients that are formed and small, in one call of a kernel."""
    together = {place: flat for place, pieces in enumerate(merged) if (flat := _rows(pieces)) is not None}
    found = {}
    if together:
        squares = reductions.row_squares(list(together.values()))
        found = dict(zip(together, matmul.held_rows(squares, list(together.values())), strict=True))
    found.update(_norms_together(merged))
    return [found[place] if place in found else norm_sq(pieces) for place, pieces in enumerate(merged)]


def _norms_together(merged: Sequence[list[Piece]]) -> dict[int, torch.Tensor]:
    """Takes the norms of outer products in one call of a kernel, by their places; of those that it serves as they lie."""
    alike: dict[tuple[object, ...], list[int]] = {}
    outers = {}
    for place, pieces in enumerate(merged):
        (piece,) = pieces if len(pieces) == 1 else (None,)
        if isinstance(piece, Outer) and piece.a_NTD.shape[1] > 1 and reductions.lie(piece.a_NTD, piece.b_NTP):
            a = piece.a_NTD
            alike.setdefault((a.data_ptr(), a.shape, a.stride()), []).append(place)  # queries, keys and values are made of one
            outers[place] = piece
    if not outers:
        return {}
    groups = [(outers[places[0]].a_NTD, [outers[at].b_NTP for at in places]) for places in alike.values()]
    together = reductions.grams_of(groups)
    ordered = {place: outers[place] for places in alike.values() for place in places}
    matmul.held_together(together, [(piece.a_NTD, piece.b_NTP) for piece in ordered.values()])
    found = _not_negative(together.square) + _slack(list(ordered.values()), together)
    return dict(zip(ordered, found, strict=True))


def add_all_weighted(parts: Sequence[tuple[list[Piece], torch.Tensor, torch.Tensor]]) -> None:
    """Does :func:`add_weighted` for many tensors, each with its weights and its total; likewise."""
    together = []
    for pieces, weight_N, total in parts:
        flat = _rows(pieces)
        plain = total.is_contiguous() and total.dtype == weight_N.dtype == torch.float64 and total.device.type == "cpu"
        if flat is not None and plain and flat.shape == (len(weight_N), total.numel()):
            together.append((total.view(-1), flat, weight_N))
        else:
            add_weighted(pieces, weight_N, total)
    if together:
        totals, rows, weights = (list(values) for values in zip(*together, strict=True))
        matmul.add_rows(totals, rows, torch.stack(weights))


def is_formed(pieces: list[Piece]) -> bool:
    """Tells whether merged pieces are the gradients themselves."""
    return len(pieces) == 1 and type(pieces[0]) is Dense


def _rows(pieces: list[Piece]) -> torch.Tensor | None:
    """Returns gradients that are formed as rows, (N, numbers), where a kernel takes them."""
    (piece,) = pieces if is_formed(pieces) else (None,)
    if not isinstance(piece, Dense) or not piece.g.numel() or not reductions.takes_rows(piece.g):
        return None
    return piece.g.view(piece.g.shape[0], -1)


def widened(form: Form, least: torch.dtype) -> Form:
    """Makes a form of at least this type; from there on its norm and sum are formed in it, whatever came before rounded to."""
    wider: dict[str, torch.Tensor] = {}
    for name, value in vars(form).items():
        if torch.is_tensor(value) and value.is_floating_point():
            wide = torch.promote_types(value.dtype, least)
            if wide != value.dtype:
                wider[name] = value.to(wide)
    return replace(form, **wider) if wider else form


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
    materialize = bool(dense) or len({p.transposed for p in outers}) > 1 or any(p.transposed for p in outers if gathers)
    if materialize or (outers and gathers and pieces[0].count * math.prod(shape) <= _MATERIALIZE_ELEMENTS):
        total = sum(dense[1:], dense[0].clone()) if dense else None
        for piece in outers:
            g = piece.dense(shape)
            total = g if total is None else total.add_(g)
        for piece in gathers:
            total = piece.dense(shape) if total is None else piece.add_into(total)
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


def _size(value: torch.Tensor | torch.Size) -> tuple[int, ...]:
    return tuple(value.shape if isinstance(value, torch.Tensor) else value)


def _instantiate(a_NTD: torch.Tensor, b_NTP: torch.Tensor, transposed: bool) -> torch.Tensor:
    return matmul.per_contribution(b_NTP, a_NTD) if transposed else matmul.per_contribution(a_NTD, b_NTP)


def _sum_sq(value: torch.Tensor) -> torch.Tensor:
    """Squared norm over the last dimension, float64; float32 only within runs of 1024, where its rounding is small."""
    whole = value.shape[-1] - value.shape[-1] % _RUN
    out = torch.linalg.vector_norm(value[..., whole:], dim=-1).double().square()
    if whole:
        runs = torch.linalg.vector_norm(value[..., :whole].unflatten(-1, (whole // _RUN, _RUN)), dim=-1)
        out += runs.double().square_().sum(-1)
    return out


def _lengths(value_NTW: torch.Tensor) -> torch.Tensor:
    """Norm of every position, float64 (N, T), not below the true one where the squares of small entries vanish."""
    return _sum_sq(value_NTW).sqrt_() + math.sqrt(value_NTW.shape[2] * torch.finfo(value_NTW.dtype).tiny)


def _grams(piece: Outer) -> Grams:
    """Forms <A A^T, B B^T> per contribution, and the sizes that its rounding is bounded by."""
    a, b = piece.a_NTD, piece.b_NTP
    found = reductions.grams(a, b) if a.shape[1] > 1 else None
    if found is not None:
        return matmul.held_grams(found, a, b)
    a_NT, b_NT = _lengths(a), _lengths(b)
    reach = (a_NT * b_NT).sum(1)
    if a.shape[1] == 1:
        return Grams(reach.square(), reach, a_NT.sum(1), b_NT.sum(1))  # of no kernel, and above the norm where squares vanish
    return matmul.held_grams(Grams(matmul.gram_product_sums(a, b, _GRAM_ELEMENTS), reach, a_NT.sum(1), b_NT.sum(1)), a, b)


def _slack(pieces: Sequence[Outer], found: Grams, others: int = 0) -> torch.Tensor:
    """Bound on the rounding of squared norms from Gram matrices, whatever the values and the order of additions.

    A float32 dot product of k roundings is off by at most k u / (1 - k u) times the sum of its absolute terms (Higham 2002,
    section 3.1), so a product of two Gram entries by (k_D + k_P + 1) u |a_t||a_s||b_t||b_s| and a little more, and the squared
    norm by that times (sum_t |a_t||b_t|)^2; the sum of at most (T + others)^2 entries is float64. Kernels add up to
    :data:`matmul.RUN` terms one after the other, and a contribution can be built for which each is lost, so a bound that
    expects errors to cancel would not hold. What underflows is lost on top: at most the smallest normal number per product, so
    that tiny inputs cannot hide behind a large output gradient.

    Args:
        pieces: those of the rows of ``found``, which is on the CPU, or the one whose numbers it has.
    """
    sizes = [(*piece.a_NTD.shape[1:], piece.b_NTP.shape[2]) for piece in pieces]
    numbers = torch.finfo(pieces[0].a_NTD.dtype)
    factors = []
    for t, d, p in sizes:
        roundings = sum(max(matmul.gram_terms(width), reductions.terms(width)) for width in (d, p)) + 4
        factors.append(1.01 * (roundings * (numbers.eps / 2) + (t + others) ** 2 * 2.0**-53))
    columns: list[Any] = [factors, *zip(*sizes, strict=True)]
    if found.square.dim() == 1:
        ((factor,), (t,), (d,), (p,)) = columns
    else:
        factor, t, d, p = (found.reach.new_tensor(of)[:, None] for of in columns)
    lost = d * (found.in_b + t).square() + p * found.in_a.square()
    return factor * found.reach.square() + numbers.tiny * lost


def _not_negative(square_N: torch.Tensor) -> torch.Tensor:
    """Raises to zero what rounding took below; minus infinity, an overflow of terms that cancel, is no norm of zero."""
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
    found = piece.part(part, shape)
    if found is not None:
        return found
    raise UnsupportedModule(
        "PART_OF_PIECE",
        f"a tensor of shape {tuple(shape)} is split along dimension {part.dim}, for which there is no gradient in the form "
        f"{type(piece).__name__}; sign a policy without masks of heads or experts there, or freeze the tensor",
    )
