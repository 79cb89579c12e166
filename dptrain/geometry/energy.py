"""Compares how much noise three designs of private LoRA put on the product Z = A B^T, in closed form and without torch.

A is m x r and B is n x r. All designs draw noise of one standard deviation tau in every number that they train, after a clip to
one norm; the question is what reaches Z, which is all that the model sees.

* ``factors``: both factors are noised as plain tensors. With xA and xB the noise of each, Z moves by xA B^T + A xB^T, of energy
  tau^2 (m |B|^2 + n |A|^2), and by xA xB^T, of energy tau^4 m n r (the bilinear noise of Sun et al. 2024, arXiv:2403.12313).
* ``frozen``: A is frozen and B alone trained. Z moves by A xB^T, of energy tau^2 n |A|^2. FFA-LoRA (Sun et al. 2024,
  arXiv:2403.12313) freezes peft's ``lora_A``, which is B here; its energy is that of the transposed product, tau^2 m |B|^2.
* ``tangent``: noise in an orthonormal chart of the tangent space (`dptrain.geometry.lora_tangent`) has energy
  tau^2 r (m + n - r). Moving back to rank r adds the curvature, tau^4 (m - r)(n - r) sum_j s_j^-2 to the leading order.

|A| and |B| are Frobenius norms. They depend on the gauge, the third design on Z alone. Signals depend on the gauge just so, so
energies at one tau compare noise and nothing else; benchmarks compare what is learned.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Pair:
    """One LoRA pair, as far as energies of noise depend on it.

    Attributes:
        m, n, r: rows of A, rows of B, and columns of both; r is at most m and n.
        A_sq, B_sq: squared Frobenius norms of the factors.

    Raises:
        ValueError: a size or a norm that no pair has.
    """

    m: int
    n: int
    r: int
    A_sq: float
    B_sq: float

    def __post_init__(self) -> None:
        if not 1 <= self.r <= min(self.m, self.n):
            raise ValueError(f"rank is {self.r}, expected 1 to {min(self.m, self.n)} for a product of {self.m} x {self.n}")
        if not (0.0 <= self.A_sq < math.inf and 0.0 <= self.B_sq < math.inf):
            raise ValueError(f"squared norms are {self.A_sq} and {self.B_sq}, expected finite numbers from 0 on")


def pair_of(m: int, n: int, singular: Sequence[float], gauge: float = 1.0) -> Pair:
    """Returns the pair A = P S^1/2 c, B = Q S^1/2 / c of a product with given singular values.

    Args:
        m, n: rows of A and of B. singular: the r positive singular values S of the product.
        gauge: c, by which A is multiplied and B divided; 1 for a balanced pair.

    Raises:
        ValueError: c or a singular value is not positive, or there are more of these than the product can have.
    """
    if not (gauge > 0.0 and all(value > 0.0 for value in singular)):
        raise ValueError(f"gauge is {gauge} and singular values {list(singular)}, expected positive numbers")
    nuclear = math.fsum(singular)
    return Pair(m, n, len(singular), nuclear * gauge**2, nuclear / gauge**2)


@dataclass(frozen=True)
class Design:
    """A way to train a pair under noise.

    Attributes:
        trained: how many numbers of a pair are trained, and noised.
        first: noise on Z at standard deviation 1, to the first order: its expected squared Frobenius norm.
        noised: directions of Z in which noise is independent, at full rank.
        sentence: what it does.
    """

    trained: Callable[[Pair], int]
    first: Callable[[Pair], float]
    noised: Callable[[Pair], int]
    sentence: str


def _tangent(pair: Pair) -> int:
    return pair.r * (pair.m + pair.n - pair.r)


DESIGNS: Final[dict[str, Design]] = {
    "factors": Design(
        trained=lambda pair: pair.r * (pair.m + pair.n),
        first=lambda pair: pair.m * pair.B_sq + pair.n * pair.A_sq,
        noised=_tangent,
        sentence="trains and noises both factors",
    ),
    "frozen": Design(
        trained=lambda pair: pair.r * pair.n,
        first=lambda pair: pair.n * pair.A_sq,
        noised=lambda pair: pair.r * pair.n,
        sentence="freezes A, trains and noises B",
    ),
    "tangent": Design(
        trained=lambda pair: pair.r * (pair.m + pair.n),
        first=lambda pair: float(_tangent(pair)),
        noised=_tangent,
        sentence="trains both factors, noises the tangent space of their product",
    ),
}
"""The designs by name."""


def noise_on_product(design: str, pair: Pair, std: float = 1.0) -> float:
    """Returns the expected Frobenius norm of the noise that reaches Z in one step of size 1, to the first order.

    It is the root of the expected square: tau sqrt(m |B|^2 + n |A|^2), tau sqrt(n) |A|, or tau sqrt(r (m + n - r)).

    Args:
        design: a name of ``DESIGNS``. pair: the pair. std: tau.

    Raises:
        KeyError: there is no such design.
    """
    return std * math.sqrt(DESIGNS[design].first(pair))


def bilinear_energy(pair: Pair, std: float = 1.0) -> float:
    """Returns the expected squared Frobenius norm of xA xB^T, which both factors noised at once add: tau^4 m n r."""
    return std**4 * pair.m * pair.n * pair.r


def curvature_energy(m: int, n: int, singular: Sequence[float], std: float = 1.0) -> float:
    """Returns the expected squared norm of what a return to rank r adds to tangent noise, to the leading order.

    The term is Xp S^-1 Yp^T for the parts Xp and Yp of noise off both column spaces (Vandereycken 2013, appendix A: the second
    order of the metric projection). Its energy is tau^4 (m - r)(n - r) sum_j s_j^-2. So noise of second order has not gone. It
    is small where tau sqrt(m + n) is far below the least singular value, and only there.

    Args:
        m, n: rows of A and of B. singular: the r positive singular values of the product. std: tau, times the step size.
    """
    r = len(singular)
    return std**4 * (m - r) * (n - r) * math.fsum(value**-2 for value in singular)


def best_gauge(m: int, n: int) -> float:
    """Returns the c of `pair_of` at which noise on both factors puts the least on Z: (m / n)^(1/4).

    There m |B|^2 + n |A|^2 is 2 sqrt(m n) times the sum of the singular values. No other gauge has less, diagonal or not, as
    |A| |B| is at least that sum for every pair. So a public change of gauge before each step removes most of what gauges cost.

    Args:
        m, n: rows of A and of B.
    """
    return (m / n) ** 0.25
