"""The products behind norms and sums: the fast kernels, torch's own and float64 agree; extreme inputs do not hide."""

import pytest

torch = pytest.importorskip("torch")

from dptrain.gradients import matmul  # noqa: E402
from dptrain.gradients.forms import Outer, norm_sq  # noqa: E402

SHAPES = [
    (3, 128, 96, 160), (2, 130, 160, 96), (5, 1, 1024, 1024), (2, 64, 16, 768), (1, 300, 64, 64), (2, 128, 16, 1536),
    (0, 8, 512, 512),
]  # fmt: skip


def factors(shape: tuple[int, int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n, t, d, p = shape
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(n, t, d, generator=generator), torch.randn(n, t, p, generator=generator)
    return a, b, torch.rand(n, generator=generator, dtype=torch.float64)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("enabled", [True, False], ids=["onednn", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_product_is_the_float64_one_to_float32_rounding(
    shape: tuple[int, int, int, int], enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul, "ENABLED", enabled and matmul.AVAILABLE)
    a, b, weight = factors(shape)
    full = torch.einsum("ntp,ntd->npd", b.double(), a.double())
    torch.testing.assert_close(matmul.per_contribution(a, b).double(), full, rtol=1e-4, atol=1e-3)
    for one, a_TD, b_TP in zip(full, a, b, strict=True):
        alone = matmul.outer_of_one(a_TD, b_TP)
        torch.testing.assert_close(alone.double(), one, rtol=1e-4, atol=1e-3)
        assert alone.is_contiguous() or not matmul.ENABLED
    summed = torch.einsum("n,npd->pd", weight, full)
    torch.testing.assert_close(matmul.weighted_outer(a, b, weight).double(), summed, rtol=1e-4, atol=1e-3)
    sums = matmul.gram_product_sums(a, b, 1 << 20)
    torch.testing.assert_close(sums, full.square().sum((1, 2)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("enabled", [True, False], ids=["onednn", "torch"])
def test_factors_may_be_views_of_anything(enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices, transposes and expanded tensors: oneDNN takes other strides than those it likes, slowly or wrongly."""
    monkeypatch.setattr(matmul, "ENABLED", enabled and matmul.AVAILABLE)
    a, b, weight = factors((4, 130, 160, 128))
    views = [(a[:, 1:-1], b[:, 1:-1]), (a[:, :, ::2], b[:, :, 1:]), (a[:, :1].expand(-1, 130, -1), b), (a[::2], b[::2])]
    for x, y in views:
        full = torch.einsum("ntp,ntd->npd", y.double(), x.double())
        torch.testing.assert_close(matmul.per_contribution(x, y).double(), full, rtol=1e-4, atol=2e-3)
        w = weight[: x.shape[0]]
        torch.testing.assert_close(
            matmul.weighted_outer(x, y, w).double(), torch.einsum("n,npd->pd", w, full), rtol=1e-4, atol=2e-3
        )
        torch.testing.assert_close(matmul.gram_product_sums(x, y, 1 << 20), full.square().sum((1, 2)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("positions", [1, 2, 64])
def test_inputs_too_small_to_square_do_not_hide_a_gradient(positions: int) -> None:
    """|a|^2 vanishes in float32 while a b^T does not; the norm may be above the truth there, never below."""
    a, b = torch.full((1, positions, 8), 1e-24), torch.full((1, positions, 8), 1e17)
    for x, y in ((a, b), (b, a)):
        true = torch.bmm(y.double().mT, x.double()).square().sum()
        assert float(norm_sq([Outer(x, y)])) >= float(true)


@pytest.mark.parametrize(
    ("told", "intel"),
    [("vendor_id\t: GenuineIntel\n", True), ("vendor_id\t: AuthenticAMD\n", False), (None, False)],
    ids=["Intel", "AMD", "untold"],
)
def test_kernels_are_chosen_by_the_processors_maker(told: str | None, intel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul.Path, "exists", lambda self: told is not None)
    monkeypatch.setattr(matmul.Path, "read_text", lambda self: told)
    monkeypatch.setattr(matmul.platform, "processor", lambda: "")
    assert matmul._processor_of_intel() == intel
