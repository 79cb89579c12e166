"""Checks of a model or a training script before there is a policy, a ledger or data.

`dptrain.checks.model` starts a real run over rows that are nobody's, and tells what it refuses. `dptrain.checks.script` reads a
program without running it, and without torch.
"""
