"""Depth-selective routing: per-contribution masks, dual clipping and sums on the autograd engine."""

from dptrain.routing.router import FallbackNotice, Router
from dptrain.routing.sums import Bounds, bounds_of

__all__ = ["Bounds", "FallbackNotice", "Router", "bounds_of"]
