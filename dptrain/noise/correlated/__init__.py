"""Correlates noise between steps: strategies and how to choose them (docs/mechanism, correlated noise).

`toeplitz`, `blt` and `dense` choose a strategy for a number of steps, `sensitivity` says by how much a contribution moves what
it releases.
"""

from dptrain.noise.correlated import blt, dense, sensitivity, toeplitz

__all__ = ["blt", "dense", "sensitivity", "toeplitz"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
