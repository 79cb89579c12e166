"""Lays the noise that three designs of private LoRA put on Z = A B^T over ranks, for all pairs of a model, without torch.

The closed forms of one pair are those of `dptrain.geometry.energy`; over pairs squares add up. What stands for |A| and |B|:

* where factors are at hand, their norms as they are now. At another rank the factors have as many columns more or fewer, of
  the same mean square. That is the law by which peft begins, under which entries of ``lora_A`` have variance 1 / (3 n) at every
  rank: |B|^2 is r / 3, and A zero (`kaiming_uniform_` with a = sqrt(5); He et al. 2015, section 2.2).
* where only shapes are known, orthonormal columns: |A|^2 = |B|^2 = r. Gradients of factors are then as long as coordinates of
  the tangent, but for the part U^T G V, which counts twice. So one clip norm means about the same in every design.

Figures are of Z. A layer adds alpha / r times Z, and gradients by Z hold this factor.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from dptrain.geometry.energy import DESIGNS, Pair, noise_on_product
from dptrain.geometry.shapes import Shape

RANKS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Ranks of a picture, beside that of the model."""


@dataclass(frozen=True, slots=True)
class OnProduct:
    """Noise that each design puts on all products together in one step: roots of expected squared Frobenius norms.

    Attributes:
        factors: Both factors are trained and noised: tau sqrt(m |B|^2 + n |A|^2) of one pair, to the first order.
        frozen: B, peft's ``lora_A``, is frozen as it is, and A is trained and noised (FFA-LoRA; Sun et al. 2024,
            arXiv:2403.12313): tau sqrt(m) |B|. `dptrain.geometry.energy` freezes the other factor, so it is given Z^T.
        tangent: Directions of Z are noised: tau sqrt(r (m + n - r)), at full rank.
    """

    factors: float
    frozen: float
    tangent: float


@dataclass(frozen=True, slots=True)
class AtRank:
    """Noise at one rank.

    Attributes:
        rank: Of all pairs, at most the smaller side of a layer; None where every pair has its own, and they differ.
        own: Whether it is that of the model.
    """

    rank: int | None
    own: bool
    noise: OnProduct

    @property
    def label(self) -> str:
        """Returns the rank as pictures and tables show it: that of the model has a star."""
        return f"{'own' if self.rank is None else self.rank}{'*' if self.own else ''}"


@dataclass(frozen=True, slots=True)
class BlockNoise:
    """A block in which pairs with a geometry lie.

    Attributes:
        pairs: How many. std: Noise on the sum, in each of its coordinates.
        coordinates: What is clipped and noised: the energy of noise of unit variance. energy: What is left of that after
            projection (`attest.schedule.geometry.energies_of`); tensors in no pair keep all of theirs.
    """

    name: str
    pairs: int
    std: float
    coordinates: int
    energy: int


@dataclass(frozen=True, slots=True)
class NoiseOverRank:
    """Holds what a plan says of LoRA pairs.

    Attributes:
        pairs: How many. known: Whether the norms of their factors are; else columns are orthonormal.
        relative: Whether noise is in units of tau, which differs or is not known; else it is that of a release.
        at: By rank, ascending.
        orthonormal: Noise at the rank of the model if its factors had orthonormal columns; None where it has no rank yet.
        coordinates: r (m + n) over all pairs at the rank of the model: what is clipped, summed and noised. energy: What is left
            of noise of unit variance after projection, r (m + n - r). None likewise.
        zero: Pairs with a factor of zero now, from which a first step moves one factor alone.
    """

    pairs: int
    known: bool
    relative: bool
    at: tuple[AtRank, ...]
    orthonormal: OnProduct | None
    coordinates: int | None
    energy: int | None
    zero: int

    @property
    def own(self) -> AtRank | None:
        """Returns what is at the rank of the model; None where it has none yet."""
        return next((one for one in self.at if one.own), None)

    def as_json(self) -> dict[str, Any]:
        """Returns what ``--json`` prints."""
        return asdict(self)


def noise_over_rank(shapes: Sequence[Shape]) -> NoiseOverRank:
    """Returns the noise of every design over `RANKS`, and at the rank of the model.

    Args:
        shapes: Pairs, at least one. Either all have a rank, and factors, or none has.

    Raises:
        ValueError: There is no pair.
    """
    if not shapes:
        raise ValueError("there is no pair, expected at least one")
    relative = any(shape.std is None for shape in shapes)
    taken = [replace(shape, std=1.0) for shape in shapes] if relative else list(shapes)
    own = {shape.rank for shape in taken}
    same = own.pop() if len(own) == 1 else None
    most = max(min(shape.m, shape.n) for shape in taken)
    ranks = sorted({rank for rank in RANKS if rank <= most} | ({same} if same else set()))
    at = [AtRank(rank, rank == same, _noise([_at(shape, rank) for shape in taken])) for rank in ranks]
    if own:  # several ranks
        at.append(AtRank(None, True, _noise([_at(shape, shape.rank) for shape in taken])))
    ranked = all(shape.rank is not None for shape in taken)
    bare = [replace(shape, A_sq=None, B_sq=None) for shape in taken]
    each = [(shape, _kept(shape, shape.rank)) for shape in taken if shape.rank is not None]
    return NoiseOverRank(
        pairs=sum(shape.count for shape in taken),
        known=all(shape.A_sq is not None for shape in taken),
        relative=relative,
        at=tuple(at),
        orthonormal=_noise([_at(shape, shape.rank) for shape in bare]) if ranked else None,
        coordinates=sum(shape.count * (shape.rank or 0) * (shape.m + shape.n) for shape in taken) if ranked else None,
        energy=sum(shape.count * k * (shape.m + shape.n - k) for shape, k in each) if ranked else None,
        zero=sum(shape.count for shape in taken if 0.0 in (shape.A_sq, shape.B_sq)),
    )


def sentences_of(found: NoiseOverRank, design: str) -> Iterator[str]:
    """Yields what figures of noise over rank are of, and what they do not tell.

    Args:
        design: That of the policy, one of `dptrain.geometry.energy.DESIGNS`.
    """
    yield (
        "factors: both are noised; frozen: lora_A stays as it is, lora_B is noised; tangent: directions of Z are, under "
        f'geometry = "lora_tangent". This policy: {design}'
    )
    if found.relative:
        yield "tau: noise of a coordinate of a release, the std of its block over the normalizer"
    star = "" if found.own is None else "*: rank of the model. "
    if not found.known:
        yield (
            f"{star}How long factors are is not known: columns of A (lora_B) and B (lora_A^T) count as orthonormal, where "
            "gradients of factors are about as long as coordinates of the tangent. Another gauge changes noise and signal of "
            "the first two designs, and nothing of tangent"
        )
    elif found.orthonormal is not None:
        bare = ", ".join(f"{name} {getattr(found.orthonormal, name):.4g}" for name in DESIGNS)
        yield (
            f"{star}There A (lora_B) and B (lora_A^T) are as they are now; at other ranks columns count as long as now on "
            "average, which is the law by which peft begins"
        )
        yield (
            "the gauge changes the noise of the first two designs, and their signal with it, and nothing of tangent. With "
            f"orthonormal columns, where signals are about as long, noise at the rank of the model is: {bare}"
        )
    if found.zero:
        pairs = "1 pair has" if found.zero == 1 else f"{found.zero} pairs have"
        yield f"{pairs} a factor of zero: a first step moves the other one alone, and tangent is for the full rank that follows"
    if design == "tangent" and found.energy is not None and found.coordinates:
        told = f"projection leaves {found.energy:,} of {found.coordinates:,} noised coordinates of pairs"
        yield f"{told}: {found.energy / found.coordinates:.1%} of the energy"


def _kept(shape: Shape, rank: int) -> int:
    """Returns the rank that a product of this shape can have."""
    return min(rank, shape.m, shape.n)


def _at(shape: Shape, rank: int | None) -> Shape:
    """Returns a shape at another rank, by the law that this module states; at its own as it is."""
    assert rank is not None
    if shape.A_sq is None or shape.B_sq is None or shape.rank is None:
        kept = float(_kept(shape, rank))
        return replace(shape, rank=rank, A_sq=kept, B_sq=kept)
    wider = rank / shape.rank
    return replace(shape, rank=rank, A_sq=shape.A_sq * wider, B_sq=shape.B_sq * wider)


def _noise(shapes: Sequence[Shape]) -> OnProduct:
    """Returns the noise of every design over pairs with ranks, norms and tau."""
    found = dict.fromkeys(DESIGNS, 0.0)
    for shape in shapes:
        assert shape.rank is not None and shape.A_sq is not None and shape.B_sq is not None and shape.std is not None
        rank = _kept(shape, shape.rank)
        pair = Pair(shape.m, shape.n, rank, shape.A_sq, shape.B_sq)
        turned = Pair(shape.n, shape.m, rank, shape.B_sq, shape.A_sq)  # of Z^T, where B stands first
        for design, one in (("factors", pair), ("frozen", turned), ("tangent", pair)):
            found[design] += shape.count * noise_on_product(design, one, shape.std) ** 2
    return OnProduct(**{design: math.sqrt(energy) for design, energy in found.items()})
