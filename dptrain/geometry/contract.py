"""Holds a geometry to its contract, as numbers: what a chart must be for clip and noise to mean the same in every direction."""

from collections.abc import Callable

import torch

from dptrain.errors import ConfigError
from dptrain.geometry.base import Coordinates, Geometry

LIMITS = {torch.float64: 1e-9, torch.float32: 2e-5}
"""Relative distance from the truth that a geometry may have, by the type of its tensors."""

_STEP = 1e-4

_QUOTIENT = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Limits the distance of difference quotients, which lose half of the digits."""


def check_geometry(
    geometry: Geometry, *, limit: float | None = None, seed: int = 0, step: float = _STEP
) -> dict[str, float]:
    """Holds a geometry to its contract on random gradients, and returns how far it is off in each clause.

    * ``linear``: coordinates are a linear function of gradients.
    * ``isolated``: those of one row do not change, to the bit, with what lies in other rows (0 or 1).
    * ``projector``: `project` is an orthogonal projector, of rank `dim`, that leaves coordinates of gradients as they are; so
      noise of variance one in every coordinate has it as covariance.
    * ``isometry``: `norm_sq`, the norm of coordinates and that of the direction in the space of `point` are equal.
    * ``projection``: a direction is the orthogonal projection of the gradient of `point`; no public step can do better.
    * ``retraction``: a small step moves `point` along the direction.

    Args:
        geometry: at some tensors, small ones: its space of coordinates is spanned vector by vector.
        limit: distance that is allowed, relative to what is compared; default: that of ``LIMITS`` for the type of the tensors.
        seed: of the gradients. step: length of the small step, relative to `point`. It must be far below the radius at which a
            geometry bends: for a product of rank r, below its least singular value.

    Raises:
        ConfigError: code GEOMETRY, with the clause that does not hold and by how much.
    """
    tensors = geometry.tensors
    kind = tensors[0].dtype
    allowed = LIMITS[kind] if limit is None else limit
    generator = torch.Generator().manual_seed(seed)

    def draw(*leading: int) -> Coordinates:
        return tuple(torch.randn((*leading, *t.shape), generator=generator, dtype=torch.float64).to(t) for t in tensors)

    target, gradients = _gradients(geometry, generator)
    found = {
        "linear": _linear(geometry.coordinates, draw(2)),
        "isolated": _isolated(geometry.coordinates, draw(5), draw()),
        **_isometry(geometry, target, gradients),
        "retraction": _retraction(geometry, draw(), step),
    }
    for clause, distance in found.items():
        most = max(allowed, _QUOTIENT[kind]) if clause == "retraction" else allowed
        if not distance <= most:
            raise ConfigError(
                "GEOMETRY",
                f"{type(geometry).__name__} is off by {distance:.2g} in clause {clause!r} of its contract, expected at most "
                f"{most:.2g}; correct its chart, or no sum, clip or noise over it means what it says",
            )
    return found


def _gradients(geometry: Geometry, generator: torch.Generator) -> tuple[torch.Tensor, Coordinates]:
    """Returns a gradient in the space of `point`, and those of the tensors that follow from it by the chain rule."""
    leaves = [tensor.detach().clone().requires_grad_(True) for tensor in geometry.tensors]
    point = geometry.point(*leaves)
    target = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
    return target, torch.autograd.grad((point * target).sum(), leaves)


def _flat(values: Coordinates) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in values])


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected).clamp_min(1e-30))


def _linear(chart: Callable[..., Coordinates], pair: Coordinates) -> float:
    both = _flat(chart(*(value[0] * 0.75 - value[1] * 3.0 for value in pair)))
    apart = [_flat(chart(*(value[row] for value in pair))) for row in (0, 1)]
    return _relative(both, 0.75 * apart[0] - 3.0 * apart[1])


def _isolated(chart: Callable[..., Coordinates], rows: Coordinates, other: Coordinates) -> float:
    before = chart(*rows)
    changed = [value.clone() for value in rows]
    for value, swapped in zip(changed, other, strict=True):
        value[2] = 1e6 * swapped
    after = chart(*changed)
    kept = [0, 1, 3, 4]
    return float(not all(torch.equal(a[kept], b[kept]) for a, b in zip(before, after, strict=True)))


def _isometry(geometry: Geometry, target: torch.Tensor, gradients: Coordinates) -> dict[str, float]:
    shapes = [tensor.shape for tensor in geometry.tensors]
    sizes = [shape.numel() for shape in shapes]

    def spread(flat: torch.Tensor) -> Coordinates:
        return tuple(
            value.view(shape).to(t) for value, shape, t in zip(flat.split(sizes), shapes, geometry.tensors, strict=True)
        )

    basis = torch.eye(sum(sizes), dtype=torch.float64)
    projector = torch.stack([_flat(geometry.project(*spread(row))) for row in basis], 1)
    coordinates = geometry.coordinates(*gradients)
    flat = _flat(coordinates)
    off = [
        _relative(projector, projector.mT),
        _relative(projector @ projector, projector),
        abs(float(projector.trace()) - geometry.dim) / max(1, geometry.dim),
        _relative(projector @ flat, flat),
    ]
    directions = torch.stack([_flat((geometry.ambient(*geometry.project(*spread(row))),)) for row in basis], 1)
    own = _flat((geometry.ambient(*coordinates),))
    squares = [flat.square().sum(), own.square().sum()]
    norm = geometry.norm_sq(*gradients).double().sum()  # of all pairs of a batch
    lengths = max(_relative(square, norm) for square in squares)
    rest = _flat((target,)) - own
    scale = torch.linalg.vector_norm(_flat((target,)))
    return {
        "projector": max(off),
        "isometry": max(lengths, _relative(directions.mT @ directions, projector)),
        "projection": float((directions.mT @ rest).abs().max() / scale),
    }


def _retraction(geometry: Geometry, drawn: Coordinates, length: float) -> float:
    coordinates = geometry.project(*drawn)
    size = length / float(torch.linalg.vector_norm(_flat(coordinates)).clamp_min(1e-30))  # zero where there is no direction
    size *= float(torch.linalg.vector_norm(_flat((geometry.point(*geometry.tensors),))).clamp_min(1.0))
    if geometry.tensors[0].dtype is torch.float32:
        size *= 30.0
    step = geometry.at(*coordinates)
    there, back = (geometry.point(*geometry.retract(step, sign * size)).double() for sign in (1.0, -1.0))
    return _relative(_flat(((back - there) / (2.0 * size),)), _flat((geometry.ambient(*coordinates),)))
