"""Gradients of layer normalisation per contribution by a kernel: torch's, up to rounding, and nobody else's."""

import ctypes
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dptrain.errors import UnsupportedModule  # noqa: E402
from dptrain.gradients import matmul  # noqa: E402
from dptrain.gradients.registry import Call, rule_of  # noqa: E402
from dptrain.kernels import norms, reductions  # noqa: E402
from dptrain.kernels.way import way  # noqa: E402

BUILT = pytest.mark.skipif(norms.library() is None, reason="no C++ compiler here, so torch computes")
SHAPES = [(1, 1, 1), (3, 5, 7), (2, 33, 16), (4, 31, 50), (2, 129, 384), (1, 700, 17)]


def values(n: int, t: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(n * t + d)
    x, b = (torch.randn(n, t, d, generator=chance) for _ in range(2))
    return x * torch.linspace(0.1, 30.0, t)[:, None] + torch.linspace(-50.0, 50.0, t)[:, None], b


def by_torch(x: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    normal = nn.functional.layer_norm(x, x.shape[-1:], None, None, 1e-5)
    return (b * normal).sum(1), b.sum(1)


@BUILT
@pytest.mark.parametrize("shape", SHAPES)
def test_it_gives_what_torch_gives_in_float64(shape: tuple[int, int, int]) -> None:
    x, b = values(*shape)
    found = norms.gradients(x, b, 1e-5)
    assert found is not None
    normal = nn.functional.layer_norm(x.double(), shape[-1:], None, None, 1e-5)
    for one, terms in zip(found, (b * normal, b.double()), strict=True):
        assert bool(((one - terms.sum(1)).abs() <= 1e-4 * (1.0 + terms.abs().sum(1))).all())


@BUILT
def test_numbers_are_the_same_bits_in_any_company_and_on_any_threads() -> None:
    x, b = values(6, 70, 130)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(norms.gradients(x, b, 1e-5))
            for row in range(6):
                alone = norms.gradients(x[row : row + 1].clone(), b[row : row + 1].clone(), 1e-5)
                for one, all_of_them in zip(alone or (), found[-1] or (), strict=True):
                    assert torch.equal(one[0], all_of_them[row])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@BUILT
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_with_its_contribution(bad: float) -> None:
    x, b = values(3, 40, 33)
    clean = norms.gradients(x.clone(), b, 1e-5)
    x[1, 39, 32] = bad
    found = norms.gradients(x, b, 1e-5)
    assert found is not None and clean is not None and bool(found[0][1].isnan().any())
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one[[0, 2]], other[[0, 2]])


@pytest.mark.parametrize("shape", [(16,), (4, 4)])
@pytest.mark.parametrize("wanted", [{"weight"}, {"bias"}, {"weight", "bias"}])
def test_the_rule_gives_the_wanted_tensors_by_either_way(shape: tuple[int, ...], wanted: set[str], monkeypatch) -> None:
    module, (x, grad) = nn.LayerNorm(shape), (torch.randn(6, 5, *shape) for _ in range(2))
    rule: Any = rule_of("norm", module, frozenset(("weight", "bias")))
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(reductions, "ENABLED", enabled)
        found.append(rule(module, Call((x,), {}, 3, 2, wanted=frozenset(wanted)), grad))
    assert found[0].keys() == found[1].keys() == wanted
    for name, form in found[0].items():
        torch.testing.assert_close(form.g.reshape(found[1][name].g.shape), found[1][name].g, rtol=1e-4, atol=1e-4)


def test_what_it_does_not_serve_is_left_to_torch(monkeypatch) -> None:
    x, b = values(2, 5, 8)
    assert norms.gradients(x.double(), b.double(), 1e-5) is None
    assert norms.gradients(x.mT, b.mT, 1e-5) is None
    assert norms.gradients(x[:0], b[:0], 1e-5) is None
    monkeypatch.setattr(norms, "library", lambda: None)
    assert norms.gradients(x, b, 1e-5) is None


@BUILT
def test_a_probe_finds_a_kernel_that_is_off_in_one_number(monkeypatch) -> None:
    class Off:
        def dptrain_normalised(self, *given: Any) -> None:
            library.dptrain_normalised(*given)
            ctypes.cast(given[5], ctypes.POINTER(ctypes.c_float))[3] += 0.5

    library = norms.library()
    x, b = values(2, 40, 16)
    monkeypatch.setattr(norms, "library", Off)
    monkeypatch.setattr(way, "holding", matmul.Holding())
    with pytest.raises(UnsupportedModule) as refused:
        norms.gradients(x, b, 1e-5)
    assert refused.value.code == "KERNEL_WRONG"
    monkeypatch.setattr(norms, "library", lambda: library)
    for far in (0.0, 1.0, 1e4):  # what rounding leaves there is no wrong kernel
        assert norms.gradients(x + far, b, 1e-5) is not None


@BUILT
@pytest.mark.parametrize("seed", range(8))
def test_a_probe_takes_no_rounding_for_a_wrong_kernel(seed: int, monkeypatch) -> None:
    """Of columns that lie at the mean of every row, nothing but what the mean was rounded by is left; nor of zeros."""
    chance = torch.Generator().manual_seed(seed)
    x, b = (torch.randn(3, 8, 16, generator=chance) for _ in range(2))
    x[..., 5] = 0.0
    x[..., :5] -= x.sum(-1, keepdim=True) / 5
    b[0, :, 7], b[1] = 0.0, b[1] * 1e-30
    monkeypatch.setattr(way, "holding", matmul.Holding())
    for eps in (1e-12, 1e-5):
        assert norms.gradients(x, b, eps) is not None and norms.gradients(x * 1e-6, b * 1e6, eps) is not None


def test_where_kernels_are_built_this_one_is() -> None:
    assert (norms.library() is None) == (reductions.library() is None)


@BUILT
def test_a_kernel_that_does_not_compute_is_not_used() -> None:
    class Lazy:
        def dptrain_normalised(self, *given: Any) -> None:
            pass

    assert norms.works(norms.library()) and not norms.works(Lazy())
