"""The schedule of noise: blocks of a model, the noise of each, and the steps in which contributions take turns.

* `allocation`: from signed bounds to the noise of every block. The arithmetic of single levels is exported here.
* `convex`: the least noise energy under budgets. `turns`: the steps in which a contribution takes part under an order.
* `stack`: a model's layers and parameters by name. `blocks`: the blocks that a policy makes of them. `geometry`: the pairs of
  LoRA factors that move along the tangent space of their product. `reads`: what the forward of each class reads.
"""

from attest.schedule.allocation import (
    Phases,
    block_std,
    effective_multiplier,
    occurrence_loss,
    phase_multipliers,
    phase_std,
    realised_std,
    scheduled_std,
    sufficient_variance,
    waste,
)

__all__ = [
    "Phases", "block_std", "effective_multiplier", "occurrence_loss", "phase_multipliers", "phase_std", "realised_std",
    "scheduled_std", "sufficient_variance", "waste",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
