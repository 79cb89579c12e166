"""Runs logical steps one after the other, from the signed policy to the released gradient."""

from dptrain.engine.options import Clock, Earlier, Microbatches, NoiseSource, RunLedger
from dptrain.engine.private_training import PrivateTraining

__all__ = ["Clock", "Earlier", "Microbatches", "NoiseSource", "PrivateTraining", "RunLedger"]
