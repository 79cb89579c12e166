"""Transcribes the tangent space of a LoRA pair in dense matrices, as the definitions have it, and nothing for speed.

Matrices of m x n are flattened row by row, so L Z R has the matrix kron(L, R^T). Everything is float64.
"""

import torch


def span(factor: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns the orthogonal projector onto the leading ``rank`` left singular vectors of a factor."""
    left = torch.linalg.svd(factor.double(), full_matrices=False)[0][:, :rank]
    return left @ left.mT


def projector(A: torch.Tensor, B: torch.Tensor, ranks: tuple[int, int]) -> torch.Tensor:
    """Returns the projector onto {dA B^T + A dB^T}, (mn, mn): I x PiB + PiA x I - PiA x PiB.

    Args:
        A: (m, r). B: (n, r). ranks: of both.
    """
    onto_A, onto_B = span(A, ranks[0]), span(B, ranks[1])
    one_A, one_B = torch.eye(len(A), dtype=torch.float64), torch.eye(len(B), dtype=torch.float64)
    return torch.kron(one_A, onto_B) + torch.kron(onto_A, one_B) - torch.kron(onto_A, onto_B)


def projected(G: torch.Tensor, A: torch.Tensor, B: torch.Tensor, ranks: tuple[int, int]) -> torch.Tensor:
    """Returns the projection of a matrix onto the tangent space."""
    return (projector(A, B, ranks) @ G.double().flatten()).view(G.shape)


def truncated(Z: torch.Tensor, rank: int) -> torch.Tensor:
    """Returns the nearest matrix of this rank, by the SVD of the whole matrix."""
    left, sizes, right = torch.linalg.svd(Z, full_matrices=False)
    return (left[:, :rank] * sizes[:rank]) @ right[:rank]


class Adaptive:
    """The adaptive direction in matrices of Z alone: no factors, no frames, and so nothing that a gauge could change.

    D is the released direction, PiA and PiB are the projectors at Z. The mean of directions is carried along by projection. SB
    is the mean of (D PiB)^T (D PiB) / m, n x n, and SA that of (PiA D)(PiA D)^T / n, m x m; projectors carry both along.
    """

    def __init__(
        self, rank: int, betas: tuple[float, float] = (0.9, 0.99), floor: float = 0.5, debias: bool = False
    ) -> None:
        self.rank, self.betas, self.floor, self.debias = rank, betas, floor, debias
        self.mean, self.SA, self.SB, self.age = 0.0, 0.0, 0.0, 0

    def tangent(self, Z: torch.Tensor):
        """Returns the projection onto the tangent space at Z."""
        PiA, PiB = span(Z, self.rank), span(Z.mT, self.rank)
        return lambda G: PiA @ G + G @ PiB - PiA @ G @ PiB

    def direction(self, Z: torch.Tensor, G: torch.Tensor, tau: float) -> torch.Tensor:
        """Returns the direction of a step at Z, of a release G under noise of deviation tau."""
        first, second = self.betas
        PiA, PiB, onto = span(Z, self.rank), span(Z.mT, self.rank), self.tangent(Z)
        D = onto(G)
        m, n = D.shape
        self.age += 1
        self.mean = first * onto(self.mean * torch.ones_like(D)) + (1 - first) * D
        self.SB = second * (PiB @ (self.SB * torch.ones(n, n).double()) @ PiB) + (1 - second) * PiB @ D.mT @ D @ PiB / m
        self.SA = second * (PiA @ (self.SA * torch.ones(m, m).double()) @ PiA) + (1 - second) * PiA @ D @ D.mT @ PiA / n
        mean, seen = self.mean / (1 - first**self.age), 1 - second**self.age
        HA = mean @ PiB @ self._root(self.SB / seen, tau)
        HB = self._root(self.SA / seen, tau) @ PiA @ mean
        return HA @ PiB - PiA @ HA @ PiB + PiA @ HB - PiA @ HB @ PiB + PiA @ (HA + HB) @ PiB / 2

    def _root(self, S: torch.Tensor, tau: float) -> torch.Tensor:
        values, turn = torch.linalg.eigh(S)
        values, turn = values[-self.rank :], turn[:, -self.rank :]  # those of the space that it lives on
        raised = torch.maximum(values - tau**2 * self.debias, torch.tensor(self.floor * tau**2, dtype=torch.float64))
        return (turn / (raised.clamp_min(0.0).sqrt() + 1e-8)) @ turn.mT


def worst(signal: torch.Tensor, noise: torch.Tensor, norm: torch.Tensor) -> float:
    """Returns the most that a signal of norm one shows over noise of unit deviation: 1 for a Gaussian mechanism as accounted.

    It is the largest whitened length of ``signal @ g`` under the covariance ``noise @ noise.T``, over all g whose clipped norm
    |norm @ g| is one. Infinite means that part of the signal lies where there is no noise at all.

    Args:
        signal: matrix from gradients to what is released. noise: from standard normals to what is released.
        norm: from gradients to coordinates whose Euclidean norm is clipped.
    """
    left, sizes, _ = torch.linalg.svd(noise.double(), full_matrices=False)
    kept = sizes > 1e-12 * sizes[0]
    left, sizes = left[:, kept], sizes[kept]
    outside = signal - left @ (left.mT @ signal)
    if float(torch.linalg.matrix_norm(outside, 2)) > 1e-9 * float(torch.linalg.matrix_norm(signal, 2)):
        return float("inf")
    _, clipped, back = torch.linalg.svd(norm.double(), full_matrices=False)
    seen = clipped > 1e-12 * clipped[0]
    basis = back[seen].mT / clipped[seen]  # gradients whose clipped coordinates are orthonormal
    return float(torch.linalg.matrix_norm((left.mT @ signal @ basis) / sizes[:, None], 2))


def matrix_of(map_, *shapes: tuple[int, ...]) -> torch.Tensor:
    """Returns the matrix of a linear map of tensors of these shapes; several results are flattened one after the other."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    columns = []
    for row in torch.eye(sum(sizes), dtype=torch.float64):
        found = map_(*(part.view(shape) for part, shape in zip(row.split(sizes), shapes, strict=True)))
        found = found if isinstance(found, tuple) else (found,)
        columns.append(torch.cat([value.flatten() for value in found]))
    return torch.stack(columns, 1)
