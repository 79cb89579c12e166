"""Correlates noise between steps: strategies and how to choose them (docs/mechanism, correlated noise).

`toeplitz`, `blt` and `dense` choose a strategy for a number of steps, `sensitivity` says by how much a contribution moves what
it releases. `choice` compares strategies at equal epsilon. `CorrelatedGaussian` is the mechanism of a run, and `Privatizer` the
same noise by itself.
"""

from dptrain.noise.correlated import blt, choice, dense, sensitivity, toeplitz
from dptrain.noise.correlated.gaussian import CorrelatedGaussian
from dptrain.noise.correlated.privatizers import Privatizer, State
from ledger.accountants.correlated import (
    Banded,
    BandedInverse,
    Buffered,
    Dense,
    Participation,
    Strategy,
    Toeplitz,
    identity,
)

__all__ = [
    "Banded",
    "BandedInverse",
    "Buffered",
    "CorrelatedGaussian",
    "Dense",
    "Participation",
    "Privatizer",
    "State",
    "Strategy",
    "Toeplitz",
    "blt",
    "choice",
    "dense",
    "identity",
    "sensitivity",
    "toeplitz",
]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
