"""The kernel of attention beside float64 and torch's operation: its numbers, its memory, and who is left to torch."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.kernels import attention  # noqa: E402
from dptrain.kernels.way import way  # noqa: E402
from dptrain.routing import graphs  # noqa: E402

pytestmark = pytest.mark.skipif(attention.library() is None, reason="no C++ compiler here, so torch computes")
assert graphs  # has the operators of graphs

SHAPES = [
    (2, 2, 1, 1, 16), (1, 3, 1, 70, 80), (2, 1, 7, 33, 32), (2, 2, 50, 97, 48), (1, 2, 130, 65, 64), (1, 1, 65, 65, 256),
    (2, 2, 9, 31, 16),
]  # fmt: skip
"""Rows, heads, queries, keys, width."""

BLIND = -torch.inf


def made(n: int, heads: int, length: int, width: int, seed: int = 0) -> torch.Tensor:
    """Returns numbers that lie as a model's heads do: those of a position beside each other."""
    chance = torch.Generator().manual_seed(seed + length * 131 + width)
    return torch.randn(n, length, heads, width, generator=chance).transpose(1, 2)


def four(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Returns queries, keys, values and a gradient of the results."""
    n, heads, queries, keys, width = shape
    return tuple(made(n, heads, length, width, seed) for seed, length in enumerate((queries, keys, keys, queries)))


def by_definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grad: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> list[torch.Tensor]:
    """Returns results and gradients by float64 and autograd; a query that sees no key is taken out."""
    query, key, value = (x.double().detach().requires_grad_() for x in (query, key, value))
    scores = query.shape[3] ** -0.5 * (query @ key.mT)
    seen = torch.ones(scores.shape, dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if mask is not None:
        seen = seen & (mask != BLIND)
        scores = scores + mask.double().masked_fill(mask == BLIND, 0.0)
    blind = ~seen.any(3, keepdim=True)
    weights = scores.masked_fill(~seen & ~blind, BLIND).softmax(3) * ~blind
    out = weights @ value
    return [out.detach(), *torch.autograd.grad(out, (query, key, value), grad.double())]


def by_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grad: torch.Tensor, mask: torch.Tensor | None = None,
    causal: bool = False,
) -> list[torch.Tensor]:  # fmt: skip
    out, logs = attention.attend(query, key, value, 0.0, causal, attn_mask=mask)
    return [out, *attention.attend_back(grad, query, key, value, out, logs, 0.0, causal, attn_mask=mask)]


@pytest.fixture
def only_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORWARD", "BACKWARD"):
        monkeypatch.setattr(attention, name, lambda *given, **options: pytest.fail("it was left to torch"))


def near(found: list[torch.Tensor], true: list[torch.Tensor]) -> None:
    for own, other in zip(found, true, strict=True):
        torch.testing.assert_close(own.double(), other, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_results_and_gradients_are_those_of_float64(shape: tuple[int, ...], causal: bool, only_kernel: None) -> None:
    given = four(shape)
    near(by_kernel(*given, causal=causal), by_definition(*given, None, causal))


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x.contiguous(),
    "fused": lambda x: torch.cat([x, x + 1.0, x], 3).chunk(3, 3)[1] - 0.0,
    "part of a row": lambda x: torch.cat([x, x], 3)[..., : x.shape[3]],
    "turned": lambda x: x.mT.contiguous().mT,
    "odd place": lambda x: torch.cat([torch.zeros(3), x.flatten()])[3:].view(x.shape),
    "one for all": lambda x: x[:1, :1].expand_as(x),
    "one position": lambda x: x[:, :, :1].expand_as(x),
    "one number": lambda x: x[..., :1].expand_as(x),
}  # fmt: skip


@pytest.mark.parametrize("lay", LAYOUTS.values(), ids=LAYOUTS)
def test_all_may_lie_anywhere(lay: Callable[[torch.Tensor], torch.Tensor], only_kernel: None) -> None:
    given = [lay(x) for x in four((2, 2, 21, 37, 32))]
    near(by_kernel(*given), by_definition(*given, None, False))


def masks(n: int, heads: int, queries: int, keys: int) -> dict[str, torch.Tensor]:
    """Returns masks in all shapes and strides in which they come."""
    chance = torch.Generator().manual_seed(5)
    whole = torch.randn(n, heads, queries, keys, generator=chance)
    blind = whole.clone()
    blind[..., ::3], blind[0, 0, 2] = BLIND, BLIND
    padding = torch.zeros(keys, n).masked_fill_(torch.arange(keys)[:, None] > torch.arange(n) + keys // 2, BLIND)
    return {
        "whole": whole, "blind": blind, "of keys": whole[:, :1, :1], "of queries": whole[:, :, :, :1],
        "one": whole[:1, :1, :1, :1],
        "two dimensions": whole[0, 0], "of heads": whole[:1], "spread": whole[:, :1, :, :1].expand(n, heads, queries, keys),
        "every other": torch.randn(n, 1, queries, 2 * keys, generator=chance)[..., ::2],
        "turned": torch.randn(n, 1, keys, queries, generator=chance).mT,
        "positions before rows": padding.t()[:, None, None],
        "and spread": padding.t()[:, None, None].expand(n, 1, queries, keys),
        "by distance": torch.randn(queries + keys, generator=chance).as_strided((queries, keys), (1, 1)),
        "odd place": torch.randn(queries * keys + 1, generator=chance)[1:].view(queries, keys),
    }  # fmt: skip


@pytest.mark.parametrize("name", masks(2, 2, 3, 5))
def test_a_mask_is_added_in_whatever_strides_it_lies(name: str, only_kernel: None) -> None:
    given, mask = four((2, 2, 13, 37, 16)), masks(2, 2, 13, 37)[name]
    near(by_kernel(*given, mask), by_definition(*given, mask, False))


def test_a_mask_of_which_positions_come_before_rows_is_that_of_its_row_alone() -> None:
    """What lies behind a number of such a mask is that of another contribution."""
    given = four((4, 2, 20, 20, 16))
    mask = torch.zeros(20, 4)
    alone = by_kernel(*given, mask.t()[:, None, None])
    mask[11:, 1:] = BLIND
    for own, other in zip(by_kernel(*given, mask.t()[:, None, None]), alone, strict=True):
        assert torch.equal(own[0], other[0]) and not torch.equal(own[1], other[1])


@pytest.mark.parametrize("threads", [1, 2, 3], indirect=True)
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_has_the_same_bits_in_any_company_and_on_any_threads(threads: int, causal: bool, only_kernel: None) -> None:
    """What else is in the microbatch is NaN, infinite, huge, or not there; and so is what its mask says."""
    given = four((5, 2, 61, 61, 48))
    mask = None if causal else torch.randn(5, 1, 61, 61, generator=torch.Generator().manual_seed(1))
    row = lambda x, at: None if x is None else x[at : at + 1]  # noqa: E731
    alone = [by_kernel(*(row(x, at) for x in given), row(mask, at), causal) for at in range(5)]
    for hostile in (torch.nan, torch.inf, -torch.inf, 3e38, 1e-42):
        for place in range(4):
            spoiled = [x.clone() for x in given]
            spoiled[place][2, 0, 30:] = hostile
            wall = None if mask is None else mask.clone()
            if wall is not None and hostile == BLIND:
                wall[2] = BLIND
            shifted = [torch.cat([torch.zeros(5), x.flatten()])[5:].view(x.shape) for x in spoiled]
            found = by_kernel(*shifted, wall, causal)
            for own, *others in zip(found, *alone, strict=True):
                for at in (0, 1, 3, 4):
                    assert torch.equal(own[at], others[at][0])
                if wall is None or hostile != BLIND:
                    assert torch.equal(own[2, 1], others[2][0, 1]), "it reached another head"
    assert not bool(found[0].isnan().any())


def test_what_is_not_a_number_stays_so_in_its_head(only_kernel: None) -> None:
    for place in range(4):
        given = four((1, 2, 19, 19, 16))
        given[place][0, 1, 18, 15] = torch.nan
        found = by_kernel(*given)
        assert any(bool(x[0, 1].isnan().any()) for x in found) and all(bool(x[0, 0].isfinite().all()) for x in found)


def test_a_query_that_sees_no_key_gets_zeros_and_gives_none_back(only_kernel: None) -> None:
    query, key, value, grad = four((1, 2, 9, 20, 16))
    mask = torch.zeros(9, 20)
    mask[4] = BLIND
    out, of_query, of_key, _ = by_kernel(query, key, value, grad, mask)
    assert not bool(out[:, :, 4].any()) and not bool(of_query[:, :, 4].any()) and bool(of_query[:, :, 3].any())
    assert bool(of_key.isfinite().all())


@pytest.mark.parametrize("causal", [False, True])
def test_either_goes_back_from_what_the_other_kept(causal: bool) -> None:
    query, key, value, grad = four((2, 2, 40, 50, 32))
    mask = None if causal else masks(2, 2, 40, 50)["blind"]
    own = attention.attend_by(query, key, value, mask, causal, None)
    torchs = attention.FORWARD(query, key, value, 0.0, causal, attn_mask=mask)
    found = [attention.attend_back_by(grad, query, key, value, *kept, mask, causal, None) for kept in (own, torchs)]
    true = [attention.BACKWARD(grad, query, key, value, *kept, 0.0, causal, attn_mask=mask) for kept in (own, torchs)]
    for one in (*found, *true):
        near(list(one), [x.double() for x in true[1]])


def lying(found: Any) -> list[tuple[int, ...]]:
    return [tuple(x.stride()) for x in found]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in ("turned", "one number")])
def test_all_lies_as_torchs_does_in_a_graph_too(name: str) -> None:
    """A view that a model takes of results must be one here; torch does not serve what is left out."""
    query, key, value, grad = (LAYOUTS[name](x) for x in four((2, 3, 21, 37, 32)))
    out, logs = found = attention.attend_by(query, key, value, None, False, None)
    assert lying(found) == lying(attention.FORWARD(query, key, value))
    back = attention.attend_back_by(grad, query, key, value, out, logs, None, False, None)
    assert lying(back) == lying(attention.BACKWARD(grad, query, key, value, out, logs, 0.0, False))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (grad, query, key, value, out, logs)]
        ours = torch.ops.dptrain
        assert lying(ours.attention(*fakes[1:4], None, False, None)) == lying(found)
        assert lying(ours.attention_backward(*fakes, None, False, None)) == lying(back)


def test_what_the_kernel_does_not_serve_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attend_by", lambda *given: pytest.fail("the kernel was asked"))
    monkeypatch.setattr(attention, "attend_back_by", lambda *given: pytest.fail("the kernel was asked"))
    plain, narrow, fewer = made(2, 4, 9, 32), made(2, 4, 9, 24), made(2, 2, 9, 32)
    turned = torch.complex(torch.zeros(2, 4, 9, 32), plain.contiguous()).conj().imag
    own = type("Own", (torch.Tensor,), {})
    lone = torch.zeros(9, 9)
    for query, key, mask in (
        (narrow, narrow, None), (plain.double(), plain.double(), None), (plain.bfloat16(), plain.bfloat16(), None),
        (plain, fewer, None), (turned, plain, None), (plain.as_subclass(own), plain, None), (plain, plain, lone.double()),
    ):  # fmt: skip
        assert not attention.serves(query, key, key, mask=mask), "a kernel would read what is not there"
        if mask is None or mask.dtype == query.dtype:
            out, logs = attention.attend(query, key, key, attn_mask=mask)
            attention.attend_back(torch.ones_like(out), query, key, key, out, logs, 0.0, False, attn_mask=mask)
    for mask in (torch.zeros(9), torch.zeros(4, 9, 9), torch.zeros(3, 9), torch.zeros(2, 5, 9, 9)):
        assert not attention.serves(plain, plain, plain, mask=mask)
    assert not attention.serves(plain, plain, plain, causal=True, mask=lone)
    assert attention.serves(plain, plain, plain, mask=lone)
    for empty in (plain[:0], plain[:, :, :0]):
        assert not attention.serves(empty, empty, empty)
    assert not attention.serves(plain, plain, plain, plain[:, :, 1:], plain[..., 0], plain), "results of fewer positions"
    with matmul.using("torch"):
        assert not attention.serves(plain, plain, plain)
        attention.attend(plain, plain, plain)


def test_attention_that_drops_is_not_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attend_by", lambda *given: pytest.fail("the kernel was asked"))
    asked: list[float] = []
    monkeypatch.setattr(attention, "FORWARD", lambda q, k, v, dropout, *given, **options: asked.append(dropout))
    attention.attend(*four((1, 1, 5, 5, 16))[:3], 0.5)
    assert asked == [0.5]


def test_room_is_of_float32_whatever_the_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it would be there under bfloat16, and other memory written behind it."""
    library, room = attention.library(), []

    class Watched:
        dptrain_attention_room = library.dptrain_attention_room

        def dptrain_attention(self, *given: Any) -> None:
            room.append(given[-1])

    empty = torch.Tensor.new_empty

    def kept(self: torch.Tensor, *sizes: Any) -> torch.Tensor:
        found = empty(self, *sizes)
        made_here[found.data_ptr()] = found
        return found

    made_here: dict[int, torch.Tensor] = {}
    monkeypatch.setattr(torch.Tensor, "new_empty", kept)
    monkeypatch.setattr(attention, "library", Watched)
    query, key, value, _ = four((1, 1, 5, 9, 16))
    torch.set_default_dtype(torch.bfloat16)
    try:
        attention.attend_by(query, key, value, None, False, None)
        held = made_here[room[0]]
        assert held.dtype == torch.float32 and held.numel() >= library.dptrain_attention_room(5, 9, 16)
        assert attention.works(library)
    finally:
        torch.set_default_dtype(torch.float32)


# ------------------------------------------------------------------------------------------------------ held to torch's own

@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "holding", matmul.Holding())


@pytest.mark.one_in(7)
@pytest.mark.parametrize("length", [1, 33, 512])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_kernel_is_refused_for_no_numbers(length: int, causal: bool, probe: None) -> None:
    """Scores of thousands, gradients of nothing, numbers below the normal ones, and those that overflow."""
    query, key, value, grad = four((1, 2, length, length, 16))
    for size in (1.0, 8.0, 50.0, 1e-30, 1e-41, 1e10):
        by_kernel(size * query, size * key, value, grad, causal=causal)
    sizes = (1e-42, 1.0), (1e-25, 1e-20), (1e10, 1e-42), (1e10, 1e10), (0.0, 1.0), (1.0, 0.0), (1e-42, 1e-30)
    for of_value, of_grad in sizes:
        by_kernel(query, key, of_value * value, of_grad * grad, causal=causal)
    spread = torch.logspace(-38, 3, length)[:, None]
    by_kernel(query, key, value, spread * grad, causal=causal)


@pytest.mark.parametrize("wall", [-torch.inf, torch.finfo(torch.float32).min, -1e4])
def test_nor_for_what_masks_hide(wall: float, probe: None) -> None:
    given = four((2, 2, 70, 70, 32))
    padded, future = torch.zeros(2, 1, 70, 70), torch.full((70, 70), wall)
    padded[0, ..., 20:] = padded[1] = wall
    for mask in (padded, future.triu(1), future.tril()):
        by_kernel(*given, torch.where(mask == 0.0, 0.0, mask))


PLACES = {"first": (0, 0, 0, 0), "last": (1, 1, 32, 31), "tail": (0, 1, 17, 31)}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("wrong", [0.01, torch.nan, torch.inf])
def test_one_entry_that_is_wrong_is_found(
    place: tuple[int, ...], which: int, wrong: float, probe: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = four((2, 2, 33, 33, 32))
    name, at = ("attend_by", which) if which < 2 else ("attend_back_by", which - 2)
    own = getattr(attention, name)

    def spoiled(*values: Any) -> Any:
        found = own(*values)
        entry = place[:3] if found[at].dim() == 3 else place
        found[at][entry] += wrong
        return found

    monkeypatch.setattr(attention, name, spoiled)
    with pytest.raises(UnsupportedModule) as refused:
        by_kernel(*given)
    assert refused.value.code == "KERNEL_WRONG" and "products='torch'" in refused.value.sentence


class Wrong:
    """A library of which one result is off."""

    dptrain_attention_room = attention.library().dptrain_attention_room if attention.library() else None

    def __init__(self, name: str, which: int, spoil: Callable[[Any], None]) -> None:
        self._name, self._which, self._spoil = name, which, spoil

    def __getattr__(self, name: str) -> Any:
        run = getattr(attention.library(), name)

        def spoiled(at: Any, *given: Any) -> None:
            run(at, *given)
            self._spoil((attention.ctypes.c_float * 1).from_address(at[self._which]))

        return spoiled if name == self._name else run


def shift(entry: Any) -> None:
    entry[0] += 1e-3


def hide(entry: Any) -> None:
    entry[0] = torch.nan


@pytest.mark.parametrize("spoil", [shift, hide])
@pytest.mark.parametrize(
    ("name", "which"), [*(("dptrain_attention", k) for k in (4, 5)), *(("dptrain_attention_backward", k) for k in (7, 8, 9))]
)
def test_a_library_that_computes_something_else_is_not_used(name: str, which: int, spoil: Callable[[Any], None]) -> None:
    assert not attention.works(Wrong(name, which, spoil))
