"""The engine: from the signed policy to the released gradient, one logical step after the other."""

from dptrain.engine.private_training import PrivateTraining

__all__ = ["PrivateTraining"]
