"""What a policy may say of its noise beyond one level: phases of the run, and clip budgets of blocks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attest.checks import check_int
from attest.descriptor import MAX_MICRO
from attest.errors import PolicyRefused
from attest.micro import MICRO, from_micro

if TYPE_CHECKING:
    from attest.policy.rules import Policy

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

    Args:
        first_step: Logical step, from 1.
        scale_micro: Factor on every standard deviation of the schedule in 1e-6, at least 1: class presets are the least noise
            of a run, so that a contribution's signed multiplier holds in every phase under flat clipping too.
    """

    first_step: int
    scale_micro: int

    def __post_init__(self) -> None:
        check_int(self.first_step, "from_step of a noise phase", 1, MAX_STEPS, error=PolicyRefused)
        if type(self.scale_micro) is int and self.scale_micro < MICRO:
            raise PolicyRefused(
                "RANGE",
                f"scale of the noise phase from step {self.first_step} is {from_micro(self.scale_micro):g}, expected at least"
                " 1: class presets are the least noise of a run. For less noise later, lower the presets to that, and give the"
                " steps before a larger scale",
            )
        check_int(
            self.scale_micro,
            f"scale of the noise phase from step {self.first_step} in 1e-6",
            MICRO,
            MAX_MICRO,
            error=PolicyRefused,
        )

    @property
    def scale(self) -> float:
        """The factor as a double, for reading; noise is formed from the exact one (`attest.schedule.scaled_std`)."""
        return from_micro(self.scale_micro)


def check_noise(policy: "Policy") -> None:
    """Refuse phases and budgets that are none, or that go with no such injection.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """
    _check_microbatches(policy.noise_microbatches, policy.noise_injection)
    _check_phases(policy.noise_phases, policy.steps)
    _check_budgets(policy.noise_budgets)
    if policy.noise_injection != "per_sample":
        return
    for name, found in (("[[noise.phase]]", policy.noise_phases), ("[noise.budgets]", policy.noise_budgets)):
        if found:
            raise PolicyRefused(
                "RANGE",
                f"{name} goes with scheduled noise, and with noise.injection 'per_sample' the noise of a step is that of the"
                " contributions drawn in it; use noise.injection = 'scheduled', or leave it out",
            )


def _check_microbatches(count: object, injection: str) -> None:
    if (count is not None) != (injection == "per_microbatch"):
        raise PolicyRefused(
            "RANGE",
            "noise.injection 'per_microbatch' needs noise.microbatches, the number of injections per step: were it the"
            " number of microbatches that a draw happens to fill, the noise would show who was drawn"
            if count is None
            else f"noise.microbatches goes with noise.injection = 'per_microbatch', not with {injection!r}; leave it out",
        )
    if count is not None:
        check_int(count, "noise.microbatches", 1, MAX_MICROBATCHES, error=PolicyRefused)


def _check_phases(phases: object, steps: int) -> None:
    if type(phases) is not tuple or len(phases) > MAX_PHASES:
        found = len(phases) if type(phases) is tuple else type(phases).__name__
        raise PolicyRefused("TYPE", f"noise phases are {found}, expected a tuple of at most {MAX_PHASES}")
    last = 0
    for phase in phases:
        if type(phase) is not NoisePhase:
            raise PolicyRefused("TYPE", f"noise phases hold {type(phase).__name__}, expected NoisePhase")
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


def _check_budgets(budgets: object) -> None:
    if budgets is None:
        return
    if type(budgets) is not tuple or len(budgets) != 3:
        raise PolicyRefused("TYPE", "noise budgets are not three weights, for embeddings, layers and head")
    for name, weight in zip(("embeddings", "layers", "head"), budgets, strict=True):
        check_int(weight, f"noise.budgets.{name} in 1e-6", 1, MAX_BUDGET_MICRO, error=PolicyRefused)
