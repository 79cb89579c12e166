"""Geometry of adapters: the space in which contributions are clipped and noised, and the optimizers that move along it.

Loading a name here loads torch. `lora_tangent` holds the mathematics of one pair, `charts` carries it to gradients of a run.
"""

from dptrain.geometry.base import Euclidean, Geometry
from dptrain.geometry.contract import check_geometry
from dptrain.geometry.initial import balanced, spectral, stacked
from dptrain.geometry.lora_tangent import LoraTangent, Tangent
from dptrain.geometry.optimizers import TangentAdam, TangentSGD

__all__ = [
    "Euclidean",
    "Geometry",
    "LoraTangent",
    "Tangent",
    "TangentAdam",
    "TangentSGD",
    "balanced",
    "check_geometry",
    "spectral",
    "stacked",
]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
