"""Calibrated noise: a keyed, position-addressed stream and the integer-lattice Gaussian built on it."""

from dptrain.noise.device import DeviceGaussian
from dptrain.noise.keystream import KeyStream
from dptrain.noise.lattice import LatticeGaussian

__all__ = ["DeviceGaussian", "KeyStream", "LatticeGaussian"]
