"""Depth-selective routing: per-contribution masks, dual clipping and sums on the autograd engine."""

from dptrain.clipping.fast import Bounds, bounds_of
from dptrain.routing.couplings import fix
from dptrain.routing.router import FallbackNotice, Router

__all__ = ["Bounds", "FallbackNotice", "Router", "bounds_of", "fix"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
