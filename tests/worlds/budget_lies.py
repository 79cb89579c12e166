"""An honest budget log with leaves of every kind, the same at every call, and the lies that a holder of its key can tell."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.budget import Beside, Unit
from ledger.budget.leaves import Cap, Commit, Epoch, Header, Leaf, Notice, Reserve
from ledger.budget.log import BudgetLog
from ledger.errors import BudgetExhausted
from ledger.note import NoteSigner
from tests.worlds.budgets import ANNA, UNIT_COST, cap_of, created
from tests.worlds.ledgers import LOG_KEY, SIGNER, START

BEN = Unit("user", "ben")
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def lived(path: Path) -> BudgetLog:
    """A log with leaves of every kind, and some behind its last epoch."""
    beside = [Beside("ledger.example/training", 12, bytes(range(32)))]
    log = created(path, 10, caps={"user": cap_of(10), "session": cap_of(9)}, beside=beside)
    first = log.reserve(ANNA, "token", 6, now=START, request=b"1" * 16)
    log.commit(first, 2, now=START + 1)
    log.reserve(Unit("session", "s", BEN), "token", 9, now=START + 2, request=b"2" * 16)
    log.deliver(lambda notice: None, now=START + 3)
    log.close_epoch(SIGNER, now=START + 4)
    log.reserve(ANNA, "asked", 3, rho_nano=11, now=START + 5, request=b"3" * 16)
    with pytest.raises(BudgetExhausted):
        log.reserve(ANNA, "token", 9, now=START + 6)
    log.close_epoch(SIGNER, now=START + 7)
    return log


def edited(change: Callable[[Any], Any], kind: type, number: int = 0) -> Callable[[list[Leaf]], list[Leaf]]:
    """Changes the n-th leaf of a kind."""

    def edit(leaves: list[Leaf]) -> list[Leaf]:
        at = [place for place, leaf in enumerate(leaves) if isinstance(leaf, kind)][number]
        return [*leaves[:at], change(leaves[at]), *leaves[at + 1 :]]

    return edit


def without(kind: type, number: int = 0) -> Callable[[list[Leaf]], list[Leaf]]:
    """Leaves the n-th leaf of a kind out, and numbers what follows anew."""

    def edit(leaves: list[Leaf]) -> list[Leaf]:
        at = [place for place, leaf in enumerate(leaves) if isinstance(leaf, kind)][number]
        return [*leaves[:at], *(replace(leaf, seq=leaf.seq - 1) for leaf in leaves[at + 1 :])]

    return edit


def looser(header: Header) -> Header:
    caps = tuple(Cap(cap.unit, cap.epsilon_micro, cap.delta_pico, cap.rho_nano + 1_000) for cap in header.caps)
    return replace(header, caps=caps)


LIES: dict[str, tuple[Callable[[list[Leaf]], list[Leaf]], set[str]]] = {
    "a release for less": (edited(lambda leaf: replace(leaf, rho_nano=UNIT_COST - 1), Reserve), {"RHO"}),
    "fewer releases": (edited(lambda leaf: replace(leaf, releases=1), Reserve), {"NOTICE", "COMPUTED"}),
    "more than the cap": (edited(lambda leaf: replace(leaf, releases=11), Reserve), {"EXHAUSTED"}),
    "a session of another": (edited(lambda leaf: replace(leaf, parent=bytes(32)), Reserve, 1), {"NOTICE"}),
    "no such mechanism": (edited(lambda leaf: replace(leaf, mechanism="free"), Reserve), {"MECHANISM"}),
    "more freed": (edited(lambda leaf: replace(leaf, computed=0), Commit), {"TOTALS"}),
    "freed twice": (
        lambda leaves: [*leaves, Commit(len(leaves), leaves[-1].time, 1, 2)],
        {"COMMITTED"},
    ),
    "more computed than paid": (edited(lambda leaf: replace(leaf, computed=7), Commit), {"COMPUTED"}),
    "a reservation left out": (without(Reserve, 2), {"TOTALS", "EXHAUSTED", "NOTICE"}),
    "a threshold not told": (without(Notice), {"NOTICE"}),
    "a threshold told that was not reached": (edited(lambda leaf: replace(leaf, percent=80), Notice), {"NOTICE"}),
    "other totals": (edited(lambda leaf: replace(leaf, reserved_nano=leaf.reserved_nano - 1), Epoch), {"TOTALS"}),
    "other balances": (edited(lambda leaf: replace(leaf, accounts_root=bytes(32)), Epoch, 1), {"TOTALS"}),
    "an epoch left out": (without(Epoch), {"TOTALS"}),
    "time runs back": (edited(lambda leaf: replace(leaf, time=START - 1), Commit), {"CLOCK"}),
    "another position": (edited(lambda leaf: replace(leaf, seq=leaf.seq + 1), Commit), {"SEQ"}),
    "a cap worth more than it says": (edited(looser, Header), {"CAP"}),
    "another origin": (
        edited(lambda leaf: replace(leaf, origin="another", log_vkey=NoteSigner("another", LOG_KEY).vkey), Header),
        {"ORIGIN", "POLICY_FILE"},
    ),
    "another key": (
        edited(lambda leaf: replace(leaf, log_vkey=NoteSigner(SIGNER.name, OTHER_KEY).vkey), Header),
        {"ORIGIN", "POLICY_FILE"},
    ),
    "two headers": (lambda leaves: [*leaves, leaves[0]], {"KIND"}),
    "no header": (lambda leaves: leaves[1:], {"HEADER"}),
}
