"""Runs logical steps one after the other, from the signed policy to the released gradient."""

from dptrain.engine.options import Clock, Earlier, Metrics, Microbatches, NoiseSource, RunLedger
from dptrain.engine.private_training import PrivateTraining

__all__ = ["Clock", "Earlier", "Metrics", "Microbatches", "NoiseSource", "PrivateTraining", "RunLedger"]


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
