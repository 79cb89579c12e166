"""The kernel of products of matrices in pairs beside float64 and torch's operation."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.kernels import attention  # noqa: E402
from dptrain.kernels.way import way  # noqa: E402

pytestmark = pytest.mark.skipif(attention.library() is None, reason="no C++ compiler here, so torch computes")

SIZES = [(3, 1, 16, 1), (2, 7, 32, 33), (2, 65, 64, 70), (4, 9, 5, 64), (2, 8, 48, 32), (1, 130, 1, 31), (2, 6, 16, 16)]
"""Pairs, rows, terms, columns."""

LAYOUTS = {
    "plain": lambda x: x,
    "turned": lambda x: x.mT.contiguous().mT,
    "part": lambda x: torch.cat([x, x], 2)[..., : x.shape[2]],
    "part of turned": lambda x: torch.cat([x.mT, x.mT], 2)[..., : x.shape[1]].mT,
    "every other": lambda x: x.repeat_interleave(2, 2)[..., ::2],
    "odd place": lambda x: torch.cat([torch.full((5,), torch.nan), x.flatten()])[5:].view(x.shape),
    "one for all": lambda x: x[:1].expand_as(x),
}


def two(pairs: int, m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(m + k + n)
    return torch.randn(pairs, m, k, generator=chance), torch.randn(pairs, k, n, generator=chance)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LEAST", 1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("lay_x", LAYOUTS.values(), ids=LAYOUTS)
def test_products_are_those_of_float64_wherever_factors_lie(size: tuple[int, ...], lay_x: Any) -> None:
    x, y = two(*size)
    for lay_y in LAYOUTS.values():
        left, right = lay_x(x), lay_y(y)
        found = attention.multiply(left, right)
        torch.testing.assert_close(found.double(), left.double() @ right.double(), rtol=1e-5, atol=1e-5)
        assert found.stride() == attention.PAIRS(left, right).stride()


@pytest.mark.parametrize("hostile", [torch.nan, torch.inf, 3e38])
def test_a_pair_has_the_same_bits_in_any_company(hostile: float) -> None:
    for lay in (LAYOUTS["plain"], LAYOUTS["turned"]):
        x, y = two(4, 13, 48, 37)
        alone = [attention.multiply(lay(x[at : at + 1]), lay(y[at : at + 1])) for at in range(4)]
        x[1], y[2, 3] = hostile, hostile
        found = attention.multiply(lay(x), lay(y))
        assert torch.equal(found[0], alone[0][0]) and torch.equal(found[3], alone[3][0])


def test_room_is_of_float32_whatever_the_default_type(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = two(2, 7, 32, 33)
    room: list[int] = []
    made: dict[int, torch.Tensor] = {}
    empty = torch.Tensor.new_empty

    class Watched:
        def dptrain_products(self, *given: Any) -> None:
            room.append(given[-1])

    def kept(self: torch.Tensor, *sizes: Any) -> torch.Tensor:
        found = empty(self, *sizes)
        made[found.data_ptr()] = found
        return found

    monkeypatch.setattr(torch.Tensor, "new_empty", kept)
    torch.set_default_dtype(torch.bfloat16)
    try:
        attention._multiply(Watched(), x, y)
    finally:
        torch.set_default_dtype(torch.float32)
    assert made[room[0]].dtype == torch.float32 and made[room[0]].numel() >= (33 + 31) * 32


def test_what_the_kernel_does_not_serve_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "multiply_by", lambda *given: pytest.fail("the kernel was asked"))
    x, y = two(2, 7, 20, 33)
    for left, right in ((x, y.mT.contiguous().mT), (x.double(), y.double()), (x[:0], y[:0]), (x[:, :0], y)):
        torch.testing.assert_close(attention.multiply(left, right), left @ right)
    with matmul.using("torch"):
        attention.multiply(x, y)


def test_a_right_kernel_is_refused_for_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "holding", matmul.Holding())
    x, y = two(3, 40, 64, 40)
    for of_x, of_y in ((1.0, 1.0), (1e-25, 1.0), (1e-25, 1e-20), (1e-42, 1.0), (1e10, 1e10), (0.0, 1.0), (1e30, 1e30)):
        attention.multiply(of_x * x, of_y * y)
        attention.multiply(of_x * torch.cat([x, x], 2), of_y * torch.cat([y, -y], 1))  # it cancels, but for rounding


@pytest.mark.parametrize("wrong", [0.01, torch.nan, torch.inf])
@pytest.mark.parametrize("place", [(0, 0, 0), (2, 39, 39)])
def test_one_entry_that_is_wrong_is_found(place: tuple[int, ...], wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "holding", matmul.Holding())
    own = attention.multiply_by

    def spoiled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = own(x, y)
        found[place] += wrong
        return found

    monkeypatch.setattr(attention, "multiply_by", spoiled)
    with pytest.raises(UnsupportedModule, match="KERNEL_WRONG"):
        attention.multiply(*two(3, 40, 64, 40))
