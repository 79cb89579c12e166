"""Noise of a policy beyond one level: phases of the run, and clip budgets of blocks."""

from dataclasses import dataclass
from typing import ClassVar

from attest.descriptor import MAX_MICRO
from attest.documents import check_fields, declared
from attest.documents.kinds import Scaled, Whole
from attest.errors import PolicyRefused
from attest.micro import MICRO, from_micro

MAX_STEPS = 10**9
MAX_PHASES = 64
"""Most phases; each has a multiplier of its own per contribution, and the accountant composes them all."""

MAX_MICROBATCHES = 1 << 16
"""Most noise injections per step; each costs a draw for every scheduled coordinate."""

MAX_BUDGET_MICRO = 10**9
"""Largest budget weight, 1000 in fixed point. Only ratios count; the widest, 10^9, leaves a block next to nothing."""


@dataclass(frozen=True, slots=True)
class NoisePhase:
    """Steps from `first_step` on, up to the next phase or the horizon, have `scale` times the noise of the schedule.

    A scale is at least 1: class presets are the least noise of a run, so that a contribution's signed multiplier holds in every
    phase under flat clipping too.
    """

    CDDL: ClassVar = "noise-phase"
    TELLS: ClassVar = ("first_step", " of the noise phase from step {}")

    first_step: int = declared(1, Whole(1, MAX_STEPS, "positive"), "Logical step, from 1.", key="from_step")
    scale_micro: int = declared(
        2, Scaled(MICRO, MAX_MICRO, f"{MICRO}..{MAX_MICRO}"), "Factor on every standard deviation of the schedule, at least 1."
    )

    def __post_init__(self) -> None:
        if type(self.scale_micro) is int and self.scale_micro < MICRO:
            raise PolicyRefused(
                "RANGE",
                f"scale of the noise phase from step {self.first_step} is {from_micro(self.scale_micro):g}, expected at least"
                " 1: class presets are the least noise of a run. For less noise later, lower the presets to that, and give the"
                " steps before a larger scale",
            )
        check_fields(self, PolicyRefused)

    @property
    def scale(self) -> float:
        """The factor as a double, for reading; noise is formed from the exact one (`attest.schedule.scaled_std`)."""
        return from_micro(self.scale_micro)


def check_noise(
    injection: str, microbatches: int | None, phases: tuple[NoisePhase, ...], budgets: object, steps: int
) -> None:  # fmt: skip
    """Refuses injections without a number, phases out of order, and what goes with no such injection.

    Args: as the fields of a policy, each checked by itself.

    Raises:
        PolicyRefused: Code RANGE.
    """
    if (microbatches is not None) != (injection == "per_microbatch"):
        raise PolicyRefused(
            "RANGE",
            "noise.injection 'per_microbatch' needs noise.microbatches, the number of injections per step: were it the"
            " number of microbatches that a draw happens to fill, the noise would show who was drawn"
            if microbatches is None
            else f"noise.microbatches goes with noise.injection = 'per_microbatch', not with {injection!r}; leave it out",
        )
    last = 0
    for phase in phases:
        if phase.first_step <= last:
            raise PolicyRefused(
                "RANGE",
                f"a noise phase from step {phase.first_step} follows one from step {last}; write them in the order of the run,"
                " each step once",
            )
        last = phase.first_step
    if last > steps:
        raise PolicyRefused(
            "RANGE", f"a noise phase begins at step {last}, the run has {steps} steps; begin it at {steps} or before"
        )
    if injection != "per_sample":
        return
    for name, found in (("[[noise.phase]]", phases), ("[noise.budgets]", budgets)):
        if found:
            raise PolicyRefused(
                "RANGE",
                f"{name} goes with scheduled noise, and with noise.injection 'per_sample' the noise of a step is that of the"
                " contributions drawn in it; use noise.injection = 'scheduled', or leave it out",
            )
