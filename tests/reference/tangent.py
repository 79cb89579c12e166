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
