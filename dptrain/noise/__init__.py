"""Calibrated noise: a keyed, position-addressed stream and the integer-lattice Gaussian built on it."""

from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import LatticeGaussian

__all__ = ["KeyStream", "LatticeGaussian"]
