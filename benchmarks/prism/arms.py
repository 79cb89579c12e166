"""Ways to train LoRA pairs on noised gradients: each is a chart, which is clipped and noised, and a step that follows from it.

A pair is Z = A B^T with A (m x r, peft's ``lora_B.weight``) and B (n x r, ``lora_A.weight`` transposed); leading dimensions are
pairs, or trials of one. Every step sees what was released and public factors, and nothing else. Steps that a paper describes
are written from the paper; where it leaves a choice, the docstring says which was made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dptrain.geometry import Euclidean, Geometry, LoraTangent, TangentAdam
from dptrain.geometry.base import Coordinates
from dptrain.geometry.lora_tangent import frame

Factors = tuple[torch.Tensor, torch.Tensor]
Kept = dict[str, Any]
"""Holds what a step keeps from one call to the next; empty before the first."""
Step = Callable[[Kept, Geometry, Coordinates, Any, Any], Factors]
"""Makes new factors of state, geometry, released coordinates, learning rate and the standard deviation of their noise.

Rate and deviation are numbers, or tensors that broadcast over the factors, as (L, 1, 1)."""


class Frozen(Euclidean):
    """The flat geometry of A alone: a gradient of B has coordinates of zero, and noise in these is taken away."""

    @property
    def dim(self) -> int:
        return self.tensors[0].numel()

    def coordinates(self, *gradients: torch.Tensor) -> Coordinates:
        return gradients[0], torch.zeros_like(gradients[1])

    def project(self, *coordinates: torch.Tensor) -> Coordinates:
        return coordinates[0], torch.zeros_like(coordinates[1])


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        title: for tables. geometry: made of the factors at the start of every step. step: from the release to new factors.
        adaptive: the step does not grow with the release. A rate of the others is meant per clip norm: lr = rate / C.
        rebalance: the factors are brought into the balanced gauge before every step.
    """

    title: str
    geometry: Callable[[torch.Tensor, torch.Tensor], Geometry]
    step: Step
    adaptive: bool = True
    rebalance: bool = False

    def before(self, A: torch.Tensor, B: torch.Tensor) -> Factors:
        """Returns the factors at which a step is taken."""
        return balanced(A, B) if self.rebalance else (A, B)


def balanced(A: torch.Tensor, B: torch.Tensor) -> Factors:
    """Returns the balanced pair (A^T A = B^T B) of the product A B^T that is nearest to (A, B); pairs below rank r stay.

    Balanced pairs of one product differ by a turn. The nearest has that of the polar factor of S_A^T A + S_B^T B for any
    balanced (S_A, S_B), the orthogonal Procrustes problem; so a moment kept for the factors keeps its meaning.
    """
    wide_A, wide_B = A.to(torch.float64), B.to(torch.float64)
    (qa, ra), (qb, rb) = torch.linalg.qr(wide_A), torch.linalg.qr(wide_B)
    left, sizes, right = torch.linalg.svd(ra @ rb.mT, full_matrices=False)
    root = sizes.sqrt()[..., None, :]
    S_A, S_B = qa @ left * root, qb @ right.mT * root
    p, _, q = torch.linalg.svd(S_A.mT @ wide_A + S_B.mT @ wide_B)
    turn = p @ q
    full = (sizes[..., -1:] > 1e-9 * sizes[..., :1])[..., None]
    return torch.where(full, (S_A @ turn).to(A.dtype), A), torch.where(full, (S_B @ turn).to(B.dtype), B)


def sgd(kept: Kept, at: Geometry, released: Coordinates, lr: Any, tau: Any) -> Factors:
    """Moves against the release, as the geometry retracts: DP-SGD in flat factors, a step along the tangent space in ours."""
    A, B = at.retract(at.at(*(value * lr for value in released)), 1.0)
    return A, B


def adam(
    kept: Kept, at: Geometry, released: Coordinates, lr: Any, tau: Any, *, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8, decay: float = 0.0, ratio: float = 1.0, debias: float | None = None, lamb: bool = False,
) -> Factors:  # fmt: skip
    """Moves factors by Adam and what was made of it.

    Args:
        decay: decoupled weight decay (AdamW, Loshchilov and Hutter 2019). ratio: of the rate of A to that of B (LoRA+, Hayou
            et al. 2024, arXiv:2402.12354).
        debias: floor, in units of tau^2, of the second moment after tau^2 is taken off (DP-AdamBC, Tang et al. 2024,
            arXiv:2312.14334, whose floor is a number to tune).
        lamb: the direction, decay included, is brought to the length of the factor (LAMB, You et al. 2020, arXiv:1904.00962,
            algorithm 2 with phi the identity; ratio 1 where a length is 0).
    """
    moved = []
    kept["t"] = kept.get("t", 0) + 1
    first, second = betas
    for name, factor, g, speed in zip("AB", at.tensors, released, (ratio, 1.0), strict=True):
        m = kept.get(f"m{name}", torch.zeros_like(g)) * first + g * (1.0 - first)
        v = kept.get(f"v{name}", torch.zeros_like(g)) * second + g.square() * (1.0 - second)
        kept[f"m{name}"], kept[f"v{name}"] = m, v
        m, v = m / (1.0 - first ** kept["t"]), v / (1.0 - second ** kept["t"])
        if debias is None:
            direction = m / (v.sqrt() + eps)
        else:
            variance = torch.as_tensor(tau, dtype=v.dtype).square()
            direction = m / (torch.maximum(v - variance, debias * variance).sqrt() + eps)
        direction = direction + decay * factor
        if lamb:
            own, other = (torch.linalg.matrix_norm(value, keepdim=True) for value in (factor, direction))
            direction = direction * torch.where((own > 0) & (other > 0), own / other.clamp_min(1e-30), 1.0)
        moved.append(factor - lr * speed * direction)
    return moved[0], moved[1]


def rite(
    kept: Kept, at: Geometry, released: Coordinates, lr: Any, tau: Any, *, betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Factors:  # fmt: skip
    """Moves factors by LoRA-RITE (Yen et al. 2024, arXiv:2410.20625, algorithm 1), on noised gradients of the factors.

    For A, with B = V S: the unmagnified gradient g = gA S^-1, turned moments with P = V_t^T V_(t-1), the second moment
    P v P^T + g^T g / m, the escaped mass rho, the preconditioned step g (v + rho I)^(-1/2), its mean, and A - lr mean S^-T.
    The frame is that of `dptrain.geometry.lora_tangent.frame`, which gives S^-1 = P_B and zero where a factor has no column.

    Written from memory of the paper. Taken so: means with the betas in the place of sums, both with Adam's bias correction;
    the escaped mass decays with the second moment; the mass of a step is the largest fall of a sorted eigenvalue.
    """
    kept["t"] = kept.get("t", 0) + 1
    A, B = at.tensors
    first, second = betas
    moved = []
    for name, factor, other, gradient in (("A", A, B, released[0]), ("B", B, A, released[1])):
        V, inverse, _ = frame(other)
        g = gradient @ inverse
        now = g.mT @ g / g.shape[-2]
        if f"v{name}" in kept:
            turn = V.mT @ kept[f"V{name}"]
            before = kept[f"v{name}"]
            carried = turn @ before @ turn.mT
            lost = (torch.linalg.eigvalsh(before) - torch.linalg.eigvalsh(carried)).amax(-1).clamp_min(0.0)
            rho = second * (kept[f"rho{name}"] + lost)
            v = second * carried + (1.0 - second) * now
            m = kept[f"m{name}"] @ turn.mT
        else:
            v, m, rho = (1.0 - second) * now, torch.zeros_like(g), torch.zeros_like(now[..., 0, 0])
        values, basis = torch.linalg.eigh(v.to(torch.float64))
        roots = ((values.clamp_min(0.0) + rho[..., None]) / (1.0 - second ** kept["t"])).sqrt() + eps
        scaled = ((basis / roots[..., None, :]) @ basis.mT).to(g.dtype)
        m = first * m + (1.0 - first) * (g @ scaled)
        kept |= {f"m{name}": m, f"v{name}": v, f"rho{name}": rho, f"V{name}": V}
        moved.append(factor - lr * (m / (1.0 - first ** kept["t"])) @ inverse.mT)
    return moved[0], moved[1]


def tangent_adam(kept: Kept, at: Geometry, released: Coordinates, lr: Any, tau: Any, **options: Any) -> Factors:
    """Moves pairs as `dptrain.geometry.TangentAdam` does: its directions, then the exact retraction."""
    found = at.at(*released)
    singles = found.X.dim() == 2
    if singles:
        tangent = LoraTangent(at.tensors[0][None], at.tensors[1][None])
        A, B = tangent_adam(kept, tangent, tuple(value[None] for value in released), lr, tau, **options)
        return A[0], B[0]
    places = kept.setdefault("pairs", [{} for _ in range(len(found.X))])
    stds = torch.as_tensor(tau, dtype=found.X.dtype, device=found.X.device).flatten().expand(len(found.X))
    group = {"betas": (0.9, 0.99), "floor": 0.5, "debias": False, "eps": 1e-8} | options
    step = TangentAdam.directions(None, group, places, at, found, stds)  # type: ignore[arg-type]  # it reads nothing of self
    A, B = at.retract(step * lr, 1.0)
    return A, B


LORA_PLUS = 16.0
"""Ratio of rates that Hayou et al. recommend."""
DECAY = 0.01
BC_FLOOR = 0.1
"""Floor of DP-AdamBC in units of the noise's variance; the paper tunes a number for each task, here all have one."""

ARMS: dict[str, Arm] = {
    "sgd": Arm("factor DP-SGD", Euclidean, sgd, adaptive=False),
    "adam": Arm("DP-Adam", Euclidean, adam),
    "adamw": Arm("DP-AdamW", Euclidean, partial(adam, decay=DECAY)),
    "lora_plus": Arm("LoRA+ on DP-Adam", Euclidean, partial(adam, ratio=LORA_PLUS)),
    "lamb": Arm("DP-Lamb", Euclidean, partial(adam, decay=DECAY, lamb=True)),
    "rite": Arm("LoRA-RITE", Euclidean, rite),
    "ffa": Arm("FFA, DP-Adam", Frozen, adam),
    "ffa_sgd": Arm("FFA, DP-SGD", Frozen, sgd, adaptive=False),
    "adam_bc": Arm("DP-AdamBC", Euclidean, partial(adam, debias=BC_FLOOR)),
    "balanced_sgd": Arm("rebalanced DP-SGD", Euclidean, sgd, adaptive=False, rebalance=True),
    "balanced_adam": Arm("rebalanced DP-Adam", Euclidean, adam, rebalance=True),
    "tangent_sgd": Arm("tangent SGD (ours)", LoraTangent, sgd, adaptive=False),
    "tangent_adam": Arm("tangent Adam (ours)", LoraTangent, tangent_adam),
}
OURS = ("tangent_sgd", "tangent_adam")
CONTROLS = {
    "balanced_adam_99": Arm("rebalanced DP-Adam, β2 = 0.99", Euclidean, partial(adam, betas=(0.9, 0.99)), rebalance=True),
    "rite_99": Arm("LoRA-RITE, β2 = 0.99", Euclidean, partial(rite, betas=(0.9, 0.99))),
    "balanced_rite": Arm("rebalanced LoRA-RITE", Euclidean, rite, rebalance=True),
    "balanced_rite_99": Arm(
        "rebalanced LoRA-RITE, β2 = 0.99", Euclidean, partial(rite, betas=(0.9, 0.99)), rebalance=True
    ),
}
"""Combinations that no paper has, which give to others what ours has by default; on the toy alone."""


def starts(
    kind: str, m: int, n: int, r: int, generator: torch.Generator, *, scale: float = 0.1, gauge: float = 1.0,
    base: torch.Tensor | None = None,
) -> Factors:  # fmt: skip
    """Returns first factors in float64, of no private data.

    Args:
        kind: ``zero`` is peft's default (A = 0; B uniform in +-1/sqrt(n), kaiming_uniform with a = sqrt(5)). ``balanced`` is a
            random pair with r singular values ``scale``. ``spectral`` is the leading r singular triples of ``base``.
        gauge: the pair is (gauge A, B / gauge).
        base: (m, n), of ``spectral``; whoever starts so takes A B^T from it.
    """
    def draw(rows: int) -> torch.Tensor:
        return torch.randn(rows, r, generator=generator, dtype=torch.float64)

    if kind == "zero":
        A = torch.zeros(m, r, dtype=torch.float64)
        B = (torch.rand(n, r, generator=generator, dtype=torch.float64) * 2.0 - 1.0) / n**0.5
    elif kind == "balanced":
        A, B = (torch.linalg.qr(draw(rows))[0] * scale**0.5 for rows in (m, n))
    elif kind == "spectral":
        if base is None:
            raise ValueError("a spectral start is made of a base weight, and none was given")
        left, sizes, right = torch.linalg.svd(base.to(torch.float64), full_matrices=False)
        root = sizes[:r].sqrt()
        A, B = left[:, :r] * root, right[:r].mT * root
    else:
        raise ValueError(f"start is {kind!r}, expected zero, balanced or spectral")
    return A * gauge, B / gauge
