"""What an epsilon is a function of, beside the charges of the run: what was signed, when one came, when one left."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """How far a run had been charged at some moment.

    Attributes:
        window: number of the last charged window, 0 before the first.
        attempt: at an admission the running attempt; at a withdrawal the last one that had charged a step.
        charged: steps charged over all attempts, per phase of the noise.
    """

    window: int
    attempt: int
    charged: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """What contributions that were admitted alike share; one object for all of them, compared by identity.

    Attributes:
        class_index: place of the class in the policy.
        class_name: its name.
        clip_micro: signed clip norm in 1e-6.
        sigma_micro: signed noise multiplier in 1e-6.
        max_occurrences: most steps in which one may take part, 0 for no cap.
        carried_micro: what the ADMIT leaf says that one had spent in earlier runs, in 1e-6.
        max_epsilon_micro: most epsilon over all runs that it signed, in 1e-6, 0 for no limit.
        max_delta_pico: the delta of that limit, in 1e-12.
        since: how far the run had been charged at the admission.
    """

    class_index: int
    class_name: str
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    carried_micro: int
    max_epsilon_micro: int
    max_delta_pico: int
    since: Moment


@dataclass(slots=True, eq=False, kw_only=True)
class Standing:
    """How one contribution, or all contributions of a group, stand in a run.

    Attributes:
        terms: what was signed, and when one came.
        until: how far the run had been charged when one was withdrawn, None while active.
        occurrences: steps in which one took part, where the ledger says so; else 0.
        loss: sum over them of 1/z^2.
    """

    terms: Terms
    until: Moment | None = None
    occurrences: int = 0
    loss: float = 0.0

    @property
    def class_index(self) -> int:
        """Place of the class in the policy."""
        return self.terms.class_index

    @property
    def active(self) -> bool:
        """Whether one is still in the pool."""
        return self.until is None
