"""Exports of budgets of texts, which readers of runs are given, and runs that count them."""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.budget import GenerationRule, Mechanism, Unit
from ledger.budget.export import export_budget
from ledger.budget.log import BudgetLog, BudgetSpec
from ledger.note import NoteSigner
from tests.vectors.conformance.written import Files, read
from tests.worlds.attested_ledgers import attestation
from tests.worlds.ledgers import START

SIGNED_FOR_BOTH: Final = ("generate", "train")
TEXTS_SIGNER: Final = NoteSigner("ledger.example/texts", Ed25519PrivateKey.from_private_bytes(bytes(range(7, 39))))
RULE: Final = GenerationRule(bytes(range(32)), "open", 2, 140_000, 1_100_000, 20, 50, 50_000_000)
"""At most 0.05 of rho for each contribution of class `open`, over all texts."""


def _unit(n: int) -> Unit:
    return Unit("contribution", attestation(n, purposes=SIGNED_FOR_BOTH).opened().digest().hex())


def _texts(log: BudgetLog) -> None:
    """Two contributions are admitted, and pay for a text of three tokens."""
    log.admit([attestation(n, purposes=SIGNED_FOR_BOTH) for n in (1, 2)], now=START + 1)
    text = log.reserve_text([_unit(1), _unit(2)], "invisibleink", 3, rho_nano=RULE.token_nano, request=bytes(16), now=START + 2)
    log.commit(text, 3, now=START + 3)
    log.close_epoch(TEXTS_SIGNER, now=START + 3)


def _withdrawn(n: int) -> Callable[[BudgetLog], None]:
    def life(log: BudgetLog) -> None:
        _texts(log)
        log.withdraw(_unit(n), now=START + 4)
        log.close_epoch(TEXTS_SIGNER, now=START + 5)

    return life


LIVES: Final[dict[str, Callable[[BudgetLog], object]]] = {
    "a budget": _withdrawn(2),
    "a budget, before": _texts,
    "a budget, another history": _withdrawn(1),
    "a budget of nobody yet": lambda log: log.close_epoch(TEXTS_SIGNER, now=START),
}


@cache
def budget_files(name: str) -> Files:
    """Returns the files of the export of a budget."""
    with tempfile.TemporaryDirectory() as folder:
        spec = BudgetSpec(
            caps={"contribution": (10_000_000, 1_000_000)},
            mechanisms=[Mechanism("invisibleink", 1, True, "tokens drawn from clipped logits")],
            generation=[RULE],
            log_id=bytes(16),
            secret=bytes(32),
        )
        with BudgetLog.create(Path(folder) / "budget.db", spec, TEXTS_SIGNER, now=START) as log:
            LIVES[name](log)
            return read(export_budget(log, Path(folder) / "export"))


def signed_for_both(**changes: Any) -> dict[str, Any]:
    """Returns what a contribution signs that trains and makes texts."""
    return {"purposes": SIGNED_FOR_BOTH, **changes}
