"""Transcribes the published design of private LoRA in the tangent space, to show by tests where it does not hold what it says.

From the formulas of its summary and of its official program (osu-srml/PRISM-DP-LoRA at 51cddadf), in our letters: Z = A B^T,
M = A^T A, N = B^T B, gA = G B and gB = G^T A. A release there is a PAIR of factors (dA, dB), made up of

* a lift of the clipped sum: dA = gA N^+ - QA QA^T gA N^+ / 2, dB likewise, with QA from a plain QR of A and pseudo-inverses cut
  at a relative 1e-6;
* noise: XA = (I - QA QA^T) OA (N + damp)^-1/2 and XB = OB (M + damp)^-1/2 of standard normals OA and OB, damp = 1e-8.

The adaptive step then works on that pair. Nothing of the product uses this file.
"""

from dataclasses import dataclass, field

import torch

DAMPING = 1e-8
CUT = 1e-6


def orthonormal(factor: torch.Tensor) -> torch.Tensor:
    """Returns Q of a plain QR. Where columns are dependent, it invents directions that the factor does not have."""
    return torch.linalg.qr(factor)[0]


def inverse(gram: torch.Tensor) -> torch.Tensor:
    """Returns the pseudo-inverse of a Gram matrix, eigenvalues below a relative 1e-6 left out."""
    values, turn = torch.linalg.eigh(gram)
    kept = values > CUT * values.amax(-1, keepdim=True).clamp_min(1e-300)
    return (turn * torch.where(kept, 1.0 / values.clamp_min(1e-300), 0.0)[..., None, :]) @ turn.mT


def inverse_root(gram: torch.Tensor, damping: float = 0.0) -> torch.Tensor:
    """Returns (gram + damping)^-1/2."""
    values, turn = torch.linalg.eigh(gram)
    return (turn * (values.clamp_min(0.0) + damping).rsqrt()[..., None, :]) @ turn.mT


def lift(gA: torch.Tensor, gB: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the pair (dA, dB) of gradients of the factors."""
    QA, QB = orthonormal(A), orthonormal(B)
    dA, dB = gA @ inverse(B.mT @ B), gB @ inverse(A.mT @ A)
    return dA - 0.5 * QA @ (QA.mT @ dA), dB - 0.5 * QB @ (QB.mT @ dB)


def noise(
    OA: torch.Tensor, OB: torch.Tensor, A: torch.Tensor, B: torch.Tensor, damping: float = DAMPING
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the pair of noise of standard normals in the shapes of the factors."""
    QA = orthonormal(A)
    XA = OA @ inverse_root(B.mT @ B, damping)
    return XA - QA @ (QA.mT @ XA), OB @ inverse_root(A.mT @ A, damping)


def product(dA: torch.Tensor, dB: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """Returns the direction in Z that a pair stands for."""
    return dA @ B.mT + A @ dB.mT


def horizontal(D: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the pair with A^T dA = dB^T B that stands for a tangent direction D: the re-lift of the published trainer."""
    M, N = A.mT @ A, B.mT @ B
    one = torch.eye(len(M), dtype=torch.float64)
    # S = A^T dA = dB^T B solves S N + M S = A^T D B
    S = torch.linalg.solve(torch.kron(one, N) + torch.kron(M, one), (A.mT @ D @ B).flatten()).view(M.shape)
    dA = torch.linalg.solve(N, (D @ B - A @ S).mT).mT
    dB = torch.linalg.solve(M, (D.mT @ A - B @ S.mT).mT).mT
    return dA, dB


@dataclass
class Adaptive:
    """The published adaptive step, on a pair of factors.

    Attributes:
        tau: standard deviation of noise. floor: f, a share of tau^2 below which no eigenvalue counts; None for none.
        betas: of the mean and of the two r x r matrices.
    """

    tau: float = 0.0
    floor: float | None = 0.5
    betas: tuple[float, float] = (0.9, 0.999)
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    age: int = 0

    def __call__(self, dA: torch.Tensor, dB: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the step of both factors; any leading dimensions are runs of their own."""
        self.age += 1
        first, second = self.betas
        moved = []
        for name, value in (("A", dA), ("B", dB)):
            mean = first * self.kept.get(f"m{name}", 0.0 * value) + (1.0 - first) * value
            gram = value.mT @ value / value.shape[-2]
            square = second * self.kept.get(f"v{name}", 0.0 * gram) + (1.0 - second) * gram
            self.kept |= {f"m{name}": mean, f"v{name}": square}
            moved.append(mean / (1.0 - first**self.age) @ self.root(square / (1.0 - second**self.age)))
        return moved[0], moved[1]

    def root(self, square: torch.Tensor) -> torch.Tensor:
        """Returns the inverse root that preconditions, eigenvalues raised to the floor and to 1e-4 of the largest."""
        values, turn = torch.linalg.eigh(square)
        values = values.clamp_min(0.0) + 1e-8 * (self.floor is not None)
        if self.floor is not None:
            values = values.clamp_min(self.floor * self.tau**2)
        values = torch.maximum(values, values.amax(-1, keepdim=True) * 1e-4)
        return (turn * values.rsqrt()[..., None, :]) @ turn.mT
