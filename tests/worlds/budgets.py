"""Budget logs of the tests, in both databases, and what processes of their own do with them."""

import os
import time
from pathlib import Path
from typing import Any

from ledger.budget import Mechanism, Unit
from ledger.budget.log import BudgetLog, BudgetSpec
from ledger.errors import BudgetExhausted
from ledger.storage.place import Place
from tests.worlds.ledgers import SIGNER, START

UNIT_COST = 1_000_000
"""Of one release of the mechanism `token`, in 1e-9 of rho."""

ANNA = Unit("user", "anna")


def spec(releases: int = 100, **changes: Any) -> BudgetSpec:
    """Returns a budget whose users can pay for so many releases of `token`."""
    return BudgetSpec(
        **{
            "caps": {"user": cap_of(releases)},
            "mechanisms": [Mechanism("token", UNIT_COST, False, "a token"), Mechanism("asked", 5, True, "as asked")],
            "log_id": bytes(16),
            "secret": bytes(32),
            **changes,
        }
    )


def cap_of(releases: int, delta_pico: int = 10_000_000) -> tuple[int, int]:
    """Returns the least epsilon in 1e-6, and delta, whose rho pays for so many releases of `token` and not for one more."""
    from ledger.budget.rho import cap_nano, epsilon_of_rho

    epsilon = int(epsilon_of_rho(releases * UNIT_COST / 1e9, delta_pico / 1e12) * 1e6) + 1
    assert releases * UNIT_COST <= cap_nano(epsilon, delta_pico) < (releases + 1) * UNIT_COST
    return epsilon, delta_pico


def created(place: Any, releases: int = 100, **changes: Any) -> BudgetLog:
    """Returns a fresh log."""
    return BudgetLog.create(place, spec(releases, **changes), SIGNER, now=START)


together: Any = None
"""Barrier at which processes of a race wait for each other."""


def wait_for(barrier: Any) -> None:
    """Takes the barrier of a race, in a process of it."""
    global together
    together = barrier


def granted(place: Place, asked: int, unit: Unit = ANNA, log: type[BudgetLog] = BudgetLog) -> int:
    """Asks for single releases in a process of its own, once all others have come; returns how many were granted."""
    count = 0
    with log.open(place) as found:
        if together is not None:
            together.wait(120)
        for _ in range(asked):
            try:
                found.reserve(unit, "token", 1, now=START)
            except BudgetExhausted:
                continue
            count += 1
    return count


def granted_texts(place: Place, asked: int, units: list[Unit]) -> int:
    """As `granted`, for single releases that several units pay together."""
    count = 0
    with BudgetLog.open(place) as found:
        if together is not None:
            together.wait(120)
        for _ in range(asked):
            try:
                found.reserve_text(units, "token", 1, now=START)
            except BudgetExhausted:
                continue
            count += 1
    return count


class WithoutTurns(BudgetLog):
    """A log whose lock beside the database keeps nobody out, as it does between machines."""

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "WithoutTurns":
        from ledger.budget import mark

        mark.fcntl.flock = lambda *said: None  # type: ignore[assignment]
        return super().open(*args, **options)  # type: ignore[return-value]


def copied(place: Place, name: str) -> Path:
    """Copies a log in one file, with everything beside it, into another folder; returns where it lies."""
    import shutil

    assert place.file is not None
    target = place.file.parent / name
    target.mkdir()
    for path in place.file.parent.glob(f"{place.file.name}*"):
        shutil.copy(path, target / path.name)
    return target / place.file.name


class ReadThenWrite(BudgetLog):
    """A faulty copy, as one writes it first: it looks at the balance, and charges when that was enough."""

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "ReadThenWrite":
        from ledger.budget.state import BudgetState

        BudgetState.check_reserve = lambda self, leaf: None  # type: ignore[method-assign]
        return super().open(*args, **options)  # type: ignore[return-value]

    def reserve(self, unit: Unit, mechanism: str, releases: int, **more: Any) -> Any:
        found = self.balance(unit)
        if found.spent + releases * UNIT_COST > (found.cap or 0):
            asked = releases * UNIT_COST
            raise BudgetExhausted("EXHAUSTED", "", unit=unit.kind, spent=found.spent, cap=found.cap or 0, asked=asked)
        time.sleep(0.003)
        return super().reserve(unit, mechanism, releases, **more)


def reserves_for_ever(place: Place) -> None:
    """Reserves single releases until it is killed; says each that was granted with a byte on its standard output."""
    with BudgetLog.open(place) as log:
        while True:
            log.reserve(ANNA, "token", 1, now=START)
            os.write(1, b".")


def texts_for_ever(path: str, names: list[str]) -> None:
    """Reserves single releases of several contributions until it is killed; says each text that was granted with a byte."""
    with BudgetLog.open(path) as log:
        while True:
            log.reserve_text([Unit("contribution", name) for name in names], "token", 1, now=START)
            os.write(1, b".")
