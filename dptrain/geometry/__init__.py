"""Geometry of adapters: the space in which contributions are clipped and noised, and the optimizers that move along it.

Loading a name here loads torch; `energy`, `shapes` and `over_rank` go without. `lora_tangent` holds the mathematics of one
pair, `charts` carries it to gradients of a run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_ROOMS = {
    "Euclidean": "base", "Geometry": "base", "LoraTangent": "lora_tangent", "Tangent": "lora_tangent",
    "TangentAdam": "optimizers", "TangentSGD": "optimizers", "balanced": "initial", "check_geometry": "contract",
    "spectral": "initial", "stacked": "initial",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads what needs torch on first use (PEP 562), so that plans can read closed forms without it."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"dptrain.geometry.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
