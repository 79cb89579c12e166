"""Depth-selective routing: per-contribution masks, dual clipping and sums on the autograd engine."""

from dptrain.routing.router import Bounds, FallbackNotice, Router, bounds_of

__all__ = ["Bounds", "FallbackNotice", "Router", "bounds_of"]
