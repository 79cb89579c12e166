"""Points of LoRA pairs at which geometries are tested: of full rank and not, well and badly conditioned, in odd gauges."""

from collections.abc import Sequence

import torch
from torch import nn

from dptrain.geometry import LoraTangent, Tangent

SHAPES = {
    "tall": (7, 6, 3), "small": (6, 5, 2), "wide": (3, 8, 3), "rank one": (6, 9, 1), "square": (4, 4, 4), "r > m": (3, 8, 5),
}  # fmt: skip
"""m, n and r."""

KINDS = (
    "full", "zero A", "zero B", "A lost", "B lost", "both lost", "thin 1e-3", "thin 1e-4", "thin 1e-5", "gauge",
)  # fmt: skip
"""What is particular to the factors: nothing, one of them zero, a rank lost, a least singular value, a gauge of 1e-3 to 1e3."""


def point(shape: Sequence[int], kind: str = "full", *, seed: int = 3, dtype: torch.dtype = torch.float64):
    """Returns A and B of a shape (m, n, r)."""
    m, n, r = shape
    A, B = (factor(size, r, seed=seed + size) for size in (m, n))
    if kind == "zero A":
        A = A * 0.0
    elif kind == "zero B":
        B = B * 0.0
    elif kind.endswith("lost"):
        A = with_least(A, 0.0) if kind != "B lost" else A
        B = with_least(B, 0.0) if kind != "A lost" else B
    elif kind.startswith("thin"):
        A = with_least(A, float(kind.split()[1]))
    elif kind == "gauge":
        turn = torch.logspace(-3, 3, r, dtype=torch.float64)
        A, B = A * turn, B / turn
    return A.to(dtype), B.to(dtype)


def factor(rows: int, r: int, *, seed: int) -> torch.Tensor:
    """Returns a factor of singular values between 1 and 1.5."""
    drawn = torch.randn(rows, r, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    left, sizes, right = torch.linalg.svd(drawn, full_matrices=False)
    return left * torch.linspace(1.5, 1.0, len(sizes), dtype=torch.float64) @ right


def with_least(value: torch.Tensor, least: float) -> torch.Tensor:
    """Returns a factor with another least singular value."""
    left, sizes, right = torch.linalg.svd(value, full_matrices=False)
    sizes[-1] = least
    return left * sizes @ right


def ranks_of(shape: Sequence[int], kind: str) -> tuple[int, int]:
    """Returns the ranks of both factors, as `point` made them."""
    m, n, r = shape
    a, b = min(m, r), min(n, r)
    if kind == "zero A":
        return 0, b
    if kind == "zero B":
        return a, 0
    if kind.endswith("lost"):
        return a - (kind != "B lost"), b - (kind != "A lost")
    return a, b


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    """Returns standard normals in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def of_dense(at: LoraTangent, G: torch.Tensor) -> Tangent:
    """Returns the tangent that a dense gradient G of Z has at a point: what a run without noise would release."""
    return at.lift(G @ at.B, G.mT @ at.A)


class Adapted(nn.Module):
    """A linear map beside a LoRA pair, as peft names them, without peft."""

    def __init__(self, A: torch.Tensor, B: torch.Tensor) -> None:
        super().__init__()
        (m, r), n = A.shape, len(B)
        self.base_layer = nn.Linear(n, m, dtype=A.dtype)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(n, r, bias=False, dtype=A.dtype)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(r, m, bias=False, dtype=A.dtype)})
        self.base_layer.weight.requires_grad_(False)
        with torch.no_grad():
            self.base_layer.bias.zero_()
            self.lora_A["default"].weight.copy_(B.mT)
            self.lora_B["default"].weight.copy_(A)

    @property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns A and B as they are."""
        return self.lora_B["default"].weight.detach(), self.lora_A["default"].weight.detach().mT

    @property
    def Z(self) -> torch.Tensor:
        """Returns their product."""
        A, B = self.factors
        return A @ B.mT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))
