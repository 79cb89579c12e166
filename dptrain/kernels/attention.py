"""Attention in the forward and backward pass of a private microbatch, by a kernel (attention.cpp beside this).

On CPUs torch computes attention with products of MKL, and scores above a causal diagonal with the others; the kernel takes a
half to a quarter of the time. Where scores are dropped out, or attention is written out, it is a softmax
between products of small matrices in pairs, which have a kernel of their own. What is not served is left to torch: other types,
heads whose width is no multiple of 16, dropout inside.

A query that sees no key gets zeros and gives none back, as from torch.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import torch

from dptrain import native
from dptrain.kernels import reductions
from dptrain.kernels.way import each, way, wrong

FORWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD: Final = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
PAIRS: Final = torch.ops.aten.bmm.default

WIDTH = 16
"""Heads are as wide as a multiple of this."""

MOST = 1 << 14
"""Keys of a head, which bound the room of a thread."""

LEAST, LARGEST = 1 << 20, 1 << 16
"""Multiplications below which a call of its own costs more than it saves; entries of a second factor, which a cache holds."""

_SOURCE = Path(__file__).with_suffix(".cpp")


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns softmax(scale q k^T + mask) v, and the logarithms of the sums of e^score, as torch's operation does.

    Args:
        query: (N, H, T, D). key, value: (N, H, S, D). attn_mask: added to scores, of a shape that expands to (N, H, T, S).
        scale: D^-1/2 by default.

    Raises:
        UnsupportedModule: code KERNEL_WRONG, in a probe: the kernel gives something else than torch.
    """
    given = query, key, value
    if dropout_p or not serves(*given, causal=is_causal, mask=attn_mask):
        return FORWARD(*given, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    found = attend_by(*given, attn_mask, is_causal, scale)
    if way.holding is not None:
        true = FORWARD(*given, 0.0, is_causal, attn_mask=attn_mask, scale=scale)
        _require(found, true, _sizes(*given), _reach(query, key, scale))
    return found


def attend_back(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the gradients of query, key and value, as torch's operation does; raises as :func:`attend`."""
    given = query, key, value, out, logsumexp
    if dropout_p or not serves(*given, grad_out, causal=is_causal, mask=attn_mask):
        return BACKWARD(grad_out, *given, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    found = attend_back_by(grad_out, *given, attn_mask, is_causal, scale)
    if way.holding is not None:
        true = BACKWARD(grad_out, *given, 0.0, is_causal, attn_mask=attn_mask, scale=scale)
        _require(found, true, _sizes_back(grad_out, query, key, value, scale), _reach(query, key, scale))
    return found


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns x y for matrices in pairs, (B, M, K) and (B, K, N), as torch's operation does; raises as :func:`attend`."""
    if not serves_pairs(x, y):
        return PAIRS(x, y)
    found = multiply_by(x, y)
    if way.holding is not None:
        true, sizes = PAIRS(x, y), _lengths(x, 2)[..., None] * _lengths(y, 1)[:, None]
        alike = ((found - true).abs() <= NEAR * (sizes + true.abs())) | (~true.isfinite() & ~found.isfinite())
        if not bool(alike.all()):
            at = tuple(torch.nonzero(~alike)[0].tolist())
            raise wrong(f"a product of pairs, {tuple(x.shape)} and {tuple(y.shape)},", float(found[at]), float(true[at]))
    return found


OPERATIONS: Final[dict[Any, Callable[..., Any]]] = {FORWARD: attend, BACKWARD: attend_back, PAIRS: multiply}
"""Holds what computes in the place of torch's operations."""


def serves(*values: torch.Tensor, causal: bool = False, mask: torch.Tensor | None = None, traced: bool = False) -> bool:
    """Tells whether the kernel serves queries, keys, values and what has their shapes; ``traced``: also without values."""
    query, key, value = values[:3]
    (n, heads, queries, width), keys = query.shape, key.shape[2]
    fits = width % WIDTH == 0 and width > 0 and 0 < keys <= MOST and 0 < queries <= MOST and n * heads > 0
    alike = key.shape == value.shape == (n, heads, keys, width) and not (causal and mask is not None)
    masks = () if mask is None else (mask,)
    known = all(_fits(mask, n, heads, queries, keys) for mask in masks) and reductions.plain(*values, *masks, traced=traced)
    alike &= all(x.shape[:3] == query.shape[:3] for x in values[3:])
    return fits and alike and known and library() is not None


def attend_by(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what :func:`attend` returns, of tensors that the kernel serves."""
    out, logs = results = shapes(query)
    _run(library(), "dptrain_attention", [query, key, value, mask, out, logs], causal, scale, 2)
    return results


def attend_back_by(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logs: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns what :func:`attend_back` returns, of tensors that the kernel serves."""
    found = shapes_back(query, key)
    given = [query, key, value, mask, _lined(out), logs, _lined(grad), *found]
    _run(library(), "dptrain_attention_backward", given, causal, scale, 5)
    return found


def serves_pairs(x: torch.Tensor, y: torch.Tensor, *, traced: bool = False) -> bool:
    """Tells whether the kernel serves a product of matrices in pairs."""
    (pairs, m, k), n = x.shape, y.shape[2]
    fits = 0 < k * n <= LARGEST and pairs * m * k * n >= LEAST and (_lies(y) != TURNED or k % WIDTH == 0)
    return fits and reductions.plain(x, y, traced=traced) and library() is not None


def multiply_by(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns x y of factors that the kernel serves, (B, M, N)."""
    return _multiply(library(), x, y)


def _multiply(found: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (pairs, m, k), n = x.shape, y.shape[2]
    x, y = (one if _lies(one) else one.contiguous() for one in (x, y))
    out = x.new_empty(pairs, m, n)
    told = [(_lies(one) == TURNED, one.stride(0), one.stride(2 if _lies(one) == TURNED else 1)) for one in (x, y)]
    sizes = (ctypes.c_long * 9)(m, n, k, told[0][0], told[1][0], *told[0][1:], *told[1][1:])
    run = found.dptrain_products

    def some(first: int, many: int) -> None:
        room = x.new_empty((n + 2 * WIDTH) * k)
        run(x.data_ptr(), y.data_ptr(), sizes, first, many, out.data_ptr(), room.data_ptr())

    each(pairs, pairs * m * k * n, some)
    return out


IN_ROWS, TURNED = 1, 2


def _lies(x: torch.Tensor) -> int:
    """Tells whether the rows of matrices, or their columns, have one entry behind the other; 0 if neither."""
    return IN_ROWS if x.stride(2) == 1 or x.shape[2] == 1 else TURNED if x.stride(1) == 1 or x.shape[1] == 1 else 0


def shapes(query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tensors like the results, without their values: they lie as torch's do, since a view may be taken of them."""
    n, heads, length, _ = query.shape
    out = torch.empty_like(query)
    return out if out.stride(3) == 1 else _beside(query), query.new_empty(n, length, heads).transpose(1, 2)


def shapes_back(query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tensors like the gradients, without their values."""
    return _beside(query), _beside(key), _beside(key)


def _beside(x: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of that shape, without values, with the heads of a position beside each other, as they were split."""
    n, heads, length, width = x.shape
    return x.new_empty(n, length, heads, width).transpose(1, 2)


def _run(found: Any, name: str, given: Sequence[torch.Tensor | None], causal: bool, scale: float | None, products: int) -> None:
    """Runs a kernel over heads of rows: query, key, value, mask, and what has a position for each of queries or keys."""
    query, key, value, mask, *others = given
    assert query is not None and key is not None
    (n, heads, queries, width), keys = query.shape, key.shape[2]
    spread = None if mask is None else _kept_in_line(mask).expand(n, heads, queries, keys)
    several = [None if x is None else _lined(x) for x in (query, key, value)] + [spread, *others]
    at = (ctypes.c_void_p * len(several))(*(None if x is None else x.data_ptr() for x in several))
    strides = [(0, 0, 0, 0) if x is None else (*x.stride(), 1)[:4] for x in several]
    lay = (ctypes.c_long * (4 * len(several)))(*(stride for one in strides for stride in one))
    sizes = (ctypes.c_long * 5)(heads, queries, keys, width, causal)
    run, floats, factor = getattr(found, name), found.dptrain_attention_room(queries, keys, width), _scale(query, scale)

    def some(first: int, many: int) -> None:
        room = query.new_empty(floats)  # float32, whatever the default type is
        run(at, lay, sizes, factor, first, many, room.data_ptr())

    each(n * heads, n * heads * queries * keys * width * products, some)


def _lined(x: torch.Tensor) -> torch.Tensor:
    """Returns it with entries one behind the other; positions and heads may lie anywhere."""
    return x if x.stride(3) == 1 else x.contiguous()


def _kept_in_line(mask: torch.Tensor) -> torch.Tensor:
    """Returns it with entries one behind the other, or one for all keys; what lies between may be another contribution's."""
    return mask if mask.shape[-1] == 1 or mask.stride(-1) in (0, 1) else mask.contiguous()


def _fits(mask: torch.Tensor, *whole: int) -> bool:
    """Tells whether a mask expands to the shape of all scores, and torch takes one of so many dimensions."""
    like = zip(reversed(mask.shape), reversed(whole), strict=False)
    return mask.dim() in (2, 4) and all(one in (1, other) for one, other in like)


# ------------------------------------------------------------------------------------------------------ held to torch's own

NEAR = 2.0**-18
"""Distance from torch's results, over the sizes of what is added up, that rounding does not reach: it takes an eighth."""

BEYOND = 2.0**16
"""Scores above which e^score is rounding alone; there torch's gradients may be infinite times zero, and the kernel's zero."""


def _require(
    found: Sequence[torch.Tensor], true: Sequence[torch.Tensor], sizes: Sequence[torch.Tensor], reach: torch.Tensor
) -> None:
    """Raises UnsupportedModule, code KERNEL_WRONG, where results are not torch's.

    Args:
        sizes: of what is added up, (N, H, 1). reach: of scores, (N, H, 1); e^score has their rounding.
    """
    for own, other, size in zip(found, true, sizes, strict=True):
        near = NEAR * (1.0 + reach / 4.0) * size
        alike = (own - other).flatten(2).abs() <= near + NEAR * other.flatten(2).abs()
        alike |= ~other.flatten(2).isfinite() & (~own.flatten(2).isfinite() | (reach > BEYOND))
        if not bool(alike.all()):
            n, head, at = torch.nonzero(~alike)[0].tolist()
            values = float(own[n, head].flatten()[at]), float(other[n, head].flatten()[at])
            raise wrong(f"attention, in a tensor of shape {tuple(other.shape)},", *values)


def _lengths(x: torch.Tensor, dim: int = 3) -> torch.Tensor:
    """Returns the lengths of positions, at least those above which products do not fall out of the normal numbers."""
    return torch.linalg.vector_norm(x, dim=dim).clamp_min_(2.0**-60)


def _largest(x: torch.Tensor) -> torch.Tensor:
    """Returns the largest length of a position of each head, (N, H, 1)."""
    return _lengths(x).amax(2, keepdim=True)


def _reach(query: torch.Tensor, key: torch.Tensor, scale: float | None) -> torch.Tensor:
    return abs(_scale(query, scale)) * _largest(query) * _largest(key)


def _sizes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    largest = _largest(value)
    return largest, torch.ones_like(largest)


def _sizes_back(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, ...]:
    """Returns the sizes of what gradients of query, key and value add up: weights of a query are one in sum."""
    grads, s = _lengths(grad), 2.0 * abs(_scale(query, scale)) * _largest(value)
    of_key = torch.linalg.vector_norm(grads * _lengths(query), dim=2, keepdim=True)
    return s * _largest(grad) * _largest(key), s * of_key, torch.linalg.vector_norm(grads, dim=2, keepdim=True)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return query.shape[3] ** -0.5 if scale is None else scale


# ----------------------------------------------------------------------------------------------------------------- building

@cache
def library() -> Any:
    """Returns the built kernel; None where there is no compiler, or what it built does not compute."""
    return native.built(_SOURCE, _declared, works)


def _declared(found: Any) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_long
    found.dptrain_attention_room.argtypes, found.dptrain_attention_room.restype = [number] * 3, number
    for run in (found.dptrain_attention, found.dptrain_attention_backward):
        run.argtypes, run.restype = [pointer, pointer, pointer, ctypes.c_float, number, number, pointer], None
    found.dptrain_products.argtypes = [pointer, pointer, pointer, number, number, pointer, pointer]
    found.dptrain_products.restype = None


def works(found: Any) -> bool:
    """Tells whether kernels compute: attention and its gradients at odd sizes, and so that a NaN stays in its head."""
    for n, heads, queries, keys, width, causal, masked in _TRIED:
        chance = torch.Generator().manual_seed(queries * 131 + keys)
        made = partial(torch.randn, generator=chance, dtype=torch.float32)
        query, grad = (made(n, queries, heads, width).transpose(1, 2) for _ in range(2))
        key, value = (made(n, keys, heads, width).transpose(1, 2) for _ in range(2))
        mask = None
        if masked:
            mask = made(n, 1, queries, keys).masked_fill_(torch.arange(keys) % 3 == 1, -torch.inf)
            mask[0, 0, queries // 2] = -torch.inf
        query[n - 1, heads - 1, queries - 1, 0] = torch.nan
        results = shapes(query)
        _run(found, "dptrain_attention", [query, key, value, mask, *results], causal, None, 2)
        slopes = shapes_back(query, key)
        _run(found, "dptrain_attention_backward", [query, key, value, mask, *results, grad, *slopes], causal, None, 5)
        true = _true(*(x.double() for x in (query, key, value, grad)), mask, causal)
        for own, other in zip((*results, *slopes), true, strict=True):
            near = (own - other).abs() <= 1e-5 * (1.0 + queries**0.5)
            near[n - 1, heads - 1] = bool(own[n - 1, heads - 1].isnan().any())
            if not bool(near.all()):
                return False
    return all(_multiplies(found, m, k, n) for m, k, n in ((1, 16, 1), (7, 32, 33), (65, 64, 70), (9, 5, 64)))


def _multiplies(found: Any, m: int, k: int, n: int) -> bool:
    """Tells whether products of pairs are right however the factors lie, and a NaN stays in its row."""
    x, y = (torch.arange(2 * a * b, dtype=torch.float32).remainder_(37.0).sub_(18.0).view(2, a, b) for a, b in ((m, k), (k, n)))
    true = x.double() @ y.double()
    x[1, m - 1, k - 1] = torch.nan
    for left in (x, x.mT.contiguous().mT):
        for right in (y, y.mT.contiguous().mT) if k % WIDTH == 0 else (y,):
            gap = (_multiply(found, left, right) - true).abs()
            alone = bool(gap[1, m - 1].isnan().all())
            gap[1, m - 1] = 0.0
            if not (alone and bool((gap <= 1e-5 * 324.0 * k).all())):
                return False
    return True


_TRIED = (
    (2, 2, 1, 1, 16, False, False), (1, 2, 7, 33, 32, False, True), (2, 1, 65, 65, 64, True, False),
    (1, 2, 130, 65, 80, True, False), (2, 2, 50, 97, 48, False, True),
)  # fmt: skip
"""Rows, heads, queries, keys, width, whether causal, whether masked."""


def _true(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grad: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, ...]:
    """Returns results, logarithms and gradients by their formulas, in float64."""
    scale = query.shape[3] ** -0.5
    scores = scale * (query @ key.mT)
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).triu(1), -torch.inf)
    blind = (scores == -torch.inf).all(3, keepdim=True)
    logs = torch.logsumexp(scores, 3).masked_fill(blind[..., 0], 0.0)
    weights = torch.exp(scores - logs[..., None])
    out = weights @ value
    change = weights * (grad @ value.mT - (grad * out).sum(3, keepdim=True))
    return out, logs, scale * (change @ key), scale * (change.mT @ query), weights.mT @ grad
