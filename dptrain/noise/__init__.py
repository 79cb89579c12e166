"""Draws calibrated noise: a keyed, position-addressed stream, and a table of mechanisms that read it."""

from dptrain.noise import families
from dptrain.noise.device import DeviceGaussian
from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import LatticeGaussian
from dptrain.noise.mechanism import MECHANISMS, Independent, Mechanism, Source, Step, mechanism_of, register_mechanism

__all__ = [
    "MECHANISMS",
    "DeviceGaussian",
    "Independent",
    "KeyStream",
    "LatticeGaussian",
    "Mechanism",
    "Source",
    "Step",
    "families",
    "mechanism_of",
    "register_mechanism",
]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
