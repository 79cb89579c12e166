"""Holds what the leaves of a run say so far: data that every rule reads, and that `Replay` alone writes."""

from ledger.leaves import Charge, Epoch, Header
from ledger.replay.contributions import Contribution, Register
from ledger.replay.expenditure import Expenditure


class RunState:
    """The state of a run after its first ``size`` leaves. Rules, summaries and views read it; `Replay` alone writes it.

    Attributes:
        attempt: running attempt, 0 before the first resume.
        position: last released step of the running attempt.
        charged_phases: steps charged over all attempts, per phase of the noise.
        charged_attempt: last attempt that has charged a step.
        windows: all CHARGE leaves.
        open_window: the window that has been charged and not settled in this attempt.
        unsettled: windows that were never settled because their attempt was abandoned.
        spends: number of rows of SPEND leaves.
        register: all admitted contributions, and the pools of those that are active.
        withdrawals: position of the first WITHDRAW leaf by descriptor hash, unknown hashes included.
        shown_members: positions of ADMIT leaves of whom a WITHDRAW leaf shows whom they admitted.
        passing: of these hashes those whose only WITHDRAW leaf has a reason of `attest.withdrawal.PASSING`: a later run may
            admit such a contribution again, until somebody signs its withdrawal.
        closed_at: position of CLOSE; None before it.
        registry_roots: the states of the contributor registry by which the run went: that of the header, then those of REGISTRY
            leaves; the last one is in force.
    """

    def __init__(self, header: Header) -> None:
        self.header, self.size = header, 1
        self.attempt = self.position = self.charged_attempt = 0
        self.charged_phases = (0,) * len(header.phases.scales)
        self.windows: list[Charge] = []
        self.open_window: Charge | None = None
        self.unsettled: list[Charge] = []
        self.epochs: list[Epoch] = []
        self.spends = self.draws = 0
        self.register = Register(header.policy.classes, occurrences_public=header.occurrences_public)
        self.expenditure = Expenditure(header)
        self.withdrawals: dict[bytes, int] = {}
        self.shown_members: set[int] = set()
        self.passing: set[bytes] = set()
        self.closed_at: int | None = None
        self.registry_roots: list[bytes] = [header.registry_root]

    @property
    def closed(self) -> bool:
        """Tells whether CLOSE has been seen."""
        return self.closed_at is not None

    @property
    def contributions(self) -> dict[bytes, Contribution]:
        """Returns all admitted contributions by descriptor hash, in order of admission."""
        return self.register.by_hash

    @property
    def charged(self) -> int:
        """Returns steps charged over all attempts."""
        return sum(self.charged_phases)
