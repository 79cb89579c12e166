"""Trainers of other libraries, whose training step is the private one.

`dptrain.integrations.transformers` has `PrivateTrainer`, `dptrain.integrations.trl` has `PrivateSFTTrainer` and says of every
other trainer of TRL what becomes of it. Each loads its library when it is imported, and no sooner.
"""
