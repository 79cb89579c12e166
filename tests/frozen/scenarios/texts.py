"""`dptrain ledger verify`, `show` and `withdraw` over a budget by which contributions make texts."""

import hashlib
from pathlib import Path

from attest import signed_file
from attest.withdrawal import Withdrawal, sign_withdrawal
from ledger.budget.export import export_budget
from tests.frozen.scenario import NOW, Case, Scenario
from tests.worlds.gate import ALICE, CORPUS
from tests.worlds.generating import FOUR, brought, generated
from tests.worlds.ledgers import SIGNER


def generating(directory: Path) -> None:
    """Writes the log and its export, what an auditor brings, and what a contributor signed."""
    with generated(directory / "budget.db") as log:
        export_budget(log, directory / "export")
    brought(directory)
    (directory / "log.pub").write_text(f"{SIGNER.vkey}\n")
    (directory / "mine.attest").write_bytes(b"".join(one.to_cbor() for one in FOUR[1:3]))
    (directory / "sent").mkdir()
    digest = hashlib.sha256(FOUR[1].descriptor).digest()
    signed = sign_withdrawal(Withdrawal(digest, CORPUS, NOW + 10, "consent"), ALICE, signer="alice")
    signed_file.write(directory / "sent" / "mine.cose", *signed)


_KEY = "export --key log.pub"
_PAPERS = "--owner-key owner.pub --policy policy.cose --registry registry.cbor"

TEXTS = Scenario(
    "texts",
    generating,
    [
        Case("verify: with policy and registry", f"ledger verify {_KEY} {_PAPERS} --min-size 18 --require-full", clock=60),
        Case("verify: the operator's word", f"ledger verify {_KEY}", clock=60),
        Case("verify: the operator's word is not enough", f"ledger verify {_KEY} --require-full", code=1, clock=60),
        Case("verify: a policy without its owner's key", f"ledger verify {_KEY} --policy policy.cose", code=2, clock=60),
        Case("verify: no cosignatures", f"ledger verify {_KEY} --require-quorum", code=2, clock=60),
        Case("verify: a withdrawal that no leaf enters", f"ledger verify {_KEY} {_PAPERS} --withdrawals sent", clock=60),
        Case("verify: the same log twice", f"ledger verify {_KEY} {_PAPERS} --earlier export", code=1, clock=60),
        Case("show: what the units spent", f"ledger show {_KEY}", clock=60),
        Case("show: what my contributions were charged", f"ledger show {_KEY} --attestation mine.attest", clock=60),
        Case("withdraw: nobody shows that they may", "ledger withdraw budget.db sent/mine.cose --owner-key owner.pub", code=1),
        Case("withdraw: whose corpus it is", "ledger withdraw budget.db sent/mine.cose", code=2),
        Case(
            "withdraw: by its contributor",
            "ledger withdraw budget.db sent/mine.cose --owner-key owner.pub --registry registry.cbor",
            clock=60,
        ),
        Case("show: nothing of a run", f"ledger show {_KEY} --withdrawn", code=2, clock=60),
    ],
)
