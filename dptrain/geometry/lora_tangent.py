"""Tangent spaces of LoRA pairs: an orthonormal chart of the directions in which a product of rank r moves, and steps along it.

A pair is Z = A B^T with A (m x r, peft's ``lora_B.weight``) and B (n x r, ``lora_A.weight`` transposed). Another pair
(A R, B R^-T) has the same product: the gauge. What is here depends on Z alone, but for the choice of an orthonormal frame,
under which coordinates turn and nothing else changes.

With orthonormal frames U = A P_A and V = B P_B, a gradient G = dl/dZ has the coordinates X = G V (m x r) and
Y = (I - V V^T) G^T U (n x r). The direction that they stand for is X V^T + U Y^T, the projection of G onto the tangent space
(Koch and Lubich 2007, equation 2.5), and |X|^2 + |Y|^2 is its squared Frobenius norm. X is free and V^T Y = 0, so the space has
r m + r (n - r) dimensions (Vandereycken 2013, section 2.1). Autograd gives G B and G^T A, so X = (G B) P_B and
Y = (I - V V^T) (G^T A) P_A: nothing of m x n is ever formed.

Frames are rank-revealing: the r columns of that of a factor of rank k < r span k directions, and U U^T is the projector onto
them. They are polar factors, and a step turns the new factors towards the old ones, so that neither jumps with rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dptrain.geometry.base import Coordinates, Geometry

TOLERANCE = 2.0**-20
"""Relative size below which a direction of a factor, with columns of length one, counts as absent: that of float32 rounding."""


def small(decompose: Any, matrices: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
    """Decomposes small matrices on the processor, one after the other, and returns the parts where the matrices lie.

    Kernels of devices may work on a batch until all of it has converged, so that bits of one matrix would follow another's.
    """
    return tuple(part.to(matrices.device) for part in decompose(matrices.cpu(), **options))


def frame(factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns an orthonormal frame of the column space of a factor F, computed in float64.

    Columns are brought to length one first, so that a gauge that scales them changes nothing. The frame is the polar factor of
    what results: of all frames the nearest one, which follows small changes of the factor.

    Args:
        factor: (..., m, r).

    Returns:
        The frame U = F P, (..., m, r), with U U^T the projector onto the column space, and U^T U = I at full rank; the map P,
        (..., r, r); and the ranks k, (...), int64.
    """
    wide = factor.detach().to(torch.float64)
    lengths = torch.linalg.vector_norm(wide, dim=-2, keepdim=True)
    scale = torch.where(lengths > 0, 1.0 / lengths.clamp_min(torch.finfo(torch.float64).tiny), 1.0)
    orthonormal, triangular = torch.linalg.qr(wide * scale)
    left, sizes, right = small(torch.linalg.svd, triangular, full_matrices=False)
    kept = sizes > TOLERANCE * sizes[..., :1].clamp_min(torch.finfo(torch.float64).tiny)
    inverse = torch.where(kept, 1.0 / torch.where(kept, sizes, 1.0), 0.0)
    u = (orthonormal @ left) * kept[..., None, :] @ right
    p = scale.mT * right.mT * inverse[..., None, :] @ right
    return u.to(factor.dtype), p.to(factor.dtype), kept.sum(-1)


@dataclass(frozen=True)
class Tangent:
    """A direction in the tangent space of one pair, or of a batch of pairs, at the frames U and V: X V^T + U Y^T.

    Attributes:
        X: (..., m, r). Y: (..., n, r), without a part along V. U: (..., m, r). V: (..., n, r).
    """

    X: torch.Tensor
    Y: torch.Tensor
    U: torch.Tensor
    V: torch.Tensor

    @property
    def K(self) -> torch.Tensor:
        """Returns U^T X, (..., r, r): the part that lies in both spaces."""
        return self.U.mT @ self.X

    @property
    def Xp(self) -> torch.Tensor:
        """Returns X without its part along U, (..., m, r)."""
        return self.X - self.U @ self.K

    @property
    def Yp(self) -> torch.Tensor:
        """Returns Y, which has no part along V."""
        return self.Y

    @property
    def full(self) -> torch.Tensor:
        """Returns Y with the part that X carries, G^T U for a projected gradient G, (..., n, r)."""
        return self.Y + self.V @ self.K.mT

    def dense(self) -> torch.Tensor:
        """Returns the direction as a matrix, (..., m, n)."""
        return self.X @ self.V.mT + self.U @ self.Y.mT

    def norm_sq(self) -> torch.Tensor:
        """Returns the squared Frobenius norm of the direction, (...)."""
        return self.X.square().sum((-2, -1)) + self.Y.square().sum((-2, -1))

    def __add__(self, other: "Tangent") -> "Tangent":
        """Adds a direction at the same frames."""
        return replace(self, X=self.X + other.X, Y=self.Y + other.Y)

    def __sub__(self, other: "Tangent") -> "Tangent":
        return self + other * -1.0

    def __mul__(self, factor: Any) -> "Tangent":
        """Scales it by a number, or a tensor that broadcasts."""
        return replace(self, X=self.X * factor, Y=self.Y * factor)

    __rmul__ = __mul__


class LoraTangent(Geometry):
    """The tangent space at the product of a LoRA pair, or of a batch of pairs of one shape.

    Args:
        A: (..., m, r). B: (..., n, r). frames: U and V of both where they are known; PA, PB and ranks are then not made.

    Attributes:
        U, V: orthonormal frames, in the shapes of A and B. PA, PB: (..., r, r), with U = A PA and V = B PB.
        rank_A, rank_B: ranks of the factors, int64 of the leading dimensions.
    """

    def __init__(
        self, A: torch.Tensor, B: torch.Tensor, frames: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> None:
        if A.dim() < 2 or B.dim() < 2 or A.shape[:-2] != B.shape[:-2] or A.shape[-1] != B.shape[-1]:
            raise ValueError(f"factors have shapes {tuple(A.shape)} and {tuple(B.shape)}, expected (..., m, r) and (..., n, r)")
        self.A, self.B = A.detach(), B.detach()
        if frames is not None:
            self.U, self.V = frames
            return
        self.U, self.PA, self.rank_A = frame(self.A)
        self.V, self.PB, self.rank_B = frame(self.B)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.A, self.B

    @property
    def dim(self) -> int:
        """Returns k_B m + k_A (n - k_B), summed over the pairs: r (m + n - r) of a pair at full rank."""
        m, n = self.A.shape[-2], self.B.shape[-2]
        return int((self.rank_B * m + self.rank_A * (n - self.rank_B)).sum())

    def take(self, places: Sequence[int]) -> "LoraTangent":
        """Returns the spaces of some pairs of a batch."""
        found = LoraTangent(self.A[places], self.B[places], (self.U[places], self.V[places]))
        for name in ("PA", "PB", "rank_A", "rank_B"):
            setattr(found, name, getattr(self, name)[places])
        return found

    @property
    def degenerate(self) -> torch.Tensor:
        """Tells of which pairs a factor has lost rank without being zero, bool of the leading dimensions."""
        found = []
        for factor, rank in ((self.A, self.rank_A), (self.B, self.rank_B)):
            found.append((rank > 0) & (rank < min(factor.shape[-2:])))
        beyond = [~torch.isfinite(P).flatten(-2).all(-1) for P in (self.PA, self.PB)]  # of factors too small for their type
        return found[0] | found[1] | beyond[0] | beyond[1]

    def coordinates(self, *gradients: torch.Tensor) -> Coordinates:
        """Returns X and Y of gradients of the factors: gA = G B, (..., m, r), and gB = G^T A, (..., n, r)."""
        gA, gB = gradients
        return gA @ self.PB, self._off_V(gB @ self.PA)

    def project(self, *coordinates: torch.Tensor) -> Coordinates:
        """Takes from the rows of X what V does not carry, and from Y what U does not, and its part along V."""
        X, Y = coordinates
        return X @ _carried(self.V, self.rank_B), self._off_V(Y @ _carried(self.U, self.rank_A))

    def point(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Returns A B^T, (..., m, n)."""
        A, B = tensors
        return A @ B.mT

    def ambient(self, *coordinates: torch.Tensor) -> torch.Tensor:
        return self.at(*coordinates).dense()

    def at(self, *coordinates: torch.Tensor) -> Tangent:
        """Returns the direction of coordinates X and Y."""
        X, Y = coordinates
        return Tangent(X, Y, self.U, self.V)

    def lift(self, gA: torch.Tensor, gB: torch.Tensor) -> Tangent:
        """Returns the projection of a gradient onto the tangent space, from gradients of the factors; linear in both.

        Args:
            gA: of A, G B. gB: of B, G^T A. Any leading dimensions (contributions) are carried along.
        """
        return self.at(*self.coordinates(gA, gB))

    def norm_sq(self, *gradients: torch.Tensor) -> torch.Tensor:
        """Returns the squared Frobenius norm of the projected gradient, one for each of the leading dimensions."""
        return self.lift(*gradients).norm_sq()

    def factors(self, step: Tangent) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a direction as a change of the factors, dA B^T + A dB^T: the canonical lift, which splits K evenly.

        It is for study. A noised direction handed on as a pair shows A^T dA, which noise on Z alone does not cover.
        """
        K = step.K
        return (step.X - 0.5 * self.U @ K) @ self.PB.mT, (step.Y + 0.5 * self.V @ K.mT) @ self.PA.mT

    def noise(self, std: float, rng: Any = None) -> Tangent:
        """Draws N(0, std^2) in every direction of the tangent space, for study; a run draws its noise on a lattice.

        Args:
            rng: a torch.Generator, or a generator of numpy; default: torch's own.
        """
        return self.at(*self.project(*(_normal(own, rng) * std for own in (self.A, self.B))))

    def retract(self, step: Tangent, lr: float, *, decay: float = 0.0, exact: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a balanced pair (A^T A = B^T B) of rank r near (1 - decay) Z - lr step, turned towards the present one.

        Args:
            step: (..., ) a direction at these frames. lr: of the step. decay: part of Z that is taken away besides.
            exact: take the nearest product of rank r, by QR and a small SVD (Vandereycken 2013, algorithm 6). Else one step
                of subspace iteration with a polar factor, off from it in the third order and several times cheaper.
        """
        U, V, X, Y = (value.to(torch.float64) for value in (self.U, self.V, step.X, step.Y))
        core = (U.mT @ self.A.to(torch.float64)) @ (V.mT @ self.B.to(torch.float64)).mT * (1.0 - decay)
        K = U.mT @ X
        Xp = X - U @ K
        K = core - lr * K
        A, B = _truncated(U, V, Xp, Y, K, lr) if exact else _polar(U, V, Xp, Y, K, lr)
        turn = _turn(A.mT @ self.A.to(torch.float64) + B.mT @ self.B.to(torch.float64))
        return (A @ turn).to(self.A.dtype), (B @ turn).to(self.B.dtype)

    def transport(self, step: Tangent, after: "LoraTangent") -> Tangent:
        """Carries a direction over to another point by projection onto its tangent space, in O((m + n) r^2)."""
        X = step.X @ (step.V.mT @ after.V) + step.U @ (step.Y.mT @ after.V)
        Y = step.V @ (step.X.mT @ after.U) + step.Y @ (step.U.mT @ after.U)
        return after.at(X, after._off_V(Y))

    def _off_V(self, Y: torch.Tensor) -> torch.Tensor:
        """Takes the part along V away, twice: once leaves rounding of what was large."""
        for _ in range(2):
            Y = Y - self.V @ (self.V.mT @ Y)
        return Y


def _carried(frame: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """Returns the projector F^T F onto what a frame carries, (..., r, r): the identity at full rank, to the bit."""
    r = frame.shape[-1]
    whole = torch.eye(r, dtype=frame.dtype, device=frame.device)
    return torch.where((rank == r)[..., None, None], whole, frame.mT @ frame)


def _normal(like: torch.Tensor, rng: Any) -> torch.Tensor:
    if rng is None or isinstance(rng, torch.Generator):
        return torch.randn(like.shape, generator=rng, dtype=like.dtype, device=like.device)
    return torch.as_tensor(rng.standard_normal(tuple(like.shape))).to(like)


def _truncated(
    U: torch.Tensor, V: torch.Tensor, Xp: torch.Tensor, Yp: torch.Tensor, K: torch.Tensor, lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the nearest balanced pair of rank r to U K V^T - lr (Xp V^T + U Yp^T)."""
    r = K.shape[-1]
    left, upper = torch.linalg.qr(torch.cat([U, Xp], -1))
    right, lower = torch.linalg.qr(torch.cat([V, Yp], -1))
    off = -lr * torch.eye(r, dtype=K.dtype, device=K.device).expand_as(K)
    middle = torch.cat([torch.cat([K, off], -1), torch.cat([off, torch.zeros_like(K)], -1)], -2)
    p, sizes, q = small(torch.linalg.svd, upper @ middle @ lower.mT, full_matrices=False)
    root = sizes[..., None, :r].sqrt()
    return _padded(left @ p[..., :r] * root, r), _padded(right @ q.mT[..., :r] * root, r)


def _polar(
    U: torch.Tensor, V: torch.Tensor, Xp: torch.Tensor, Yp: torch.Tensor, K: torch.Tensor, lr: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a balanced pair of Q Q^T M for M = U K V^T - lr (Xp V^T + U Yp^T), Q an orthonormal frame of M V."""
    Q, _, _ = frame(U @ K - lr * Xp)
    inner = U.mT @ Q
    B = V @ (K.mT @ inner - lr * (Xp.mT @ Q)) - lr * (Yp @ inner)
    squares, turn = small(torch.linalg.eigh, B.mT @ B)
    sizes = squares.clamp_min(0.0).sqrt()[..., None, :]
    alive = sizes > TOLERANCE**2 * sizes.amax(-1, keepdim=True)
    root = sizes.sqrt()
    return Q @ turn * root, torch.where(alive, B @ turn / torch.where(alive, root, 1.0), 0.0)


def _turn(overlap: torch.Tensor) -> torch.Tensor:
    """Returns the rotation Q, (..., r, r), with the largest trace of Q^T M: the Procrustes problem (Schönemann 1966)."""
    left, _, right = small(torch.linalg.svd, overlap)
    return left @ right


def _padded(value: torch.Tensor, r: int) -> torch.Tensor:
    """Adds columns of zeros where a matrix is too small to have r."""
    return torch.nn.functional.pad(value, (0, r - value.shape[-1])) if value.shape[-1] < r else value
