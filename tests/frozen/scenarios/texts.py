"""`dptrain ledger verify` and `show` over an export of a budget by which contributions make texts."""

from pathlib import Path

from ledger.budget.export import export_budget
from tests.frozen.scenario import Case, Scenario
from tests.worlds.generating import FOUR, brought, generated
from tests.worlds.ledgers import SIGNER


def generating(directory: Path) -> None:
    """Writes the export, what an auditor brings, and what a contributor signed."""
    with generated(directory / "budget.db") as log:
        export_budget(log, directory / "export")
    brought(directory)
    (directory / "log.pub").write_text(f"{SIGNER.vkey}\n")
    (directory / "mine.attest").write_bytes(b"".join(one.to_cbor() for one in FOUR[1:3]))


_KEY = "export --key log.pub"
_PAPERS = "--owner-key owner.pub --policy policy.cose --registry registry.cbor"

TEXTS = Scenario(
    "texts",
    generating,
    [
        Case("verify: with policy and registry", f"ledger verify {_KEY} {_PAPERS} --min-size 20 --require-full", clock=60),
        Case("verify: the operator's word", f"ledger verify {_KEY}", clock=60),
        Case("verify: the operator's word is not enough", f"ledger verify {_KEY} --require-full", code=1, clock=60),
        Case("verify: a policy without its owner's key", f"ledger verify {_KEY} --policy policy.cose", code=2, clock=60),
        Case("verify: no cosignatures", f"ledger verify {_KEY} --require-quorum", code=2, clock=60),
        Case("show: what the units spent", f"ledger show {_KEY}", clock=60),
        Case("show: what my contributions were charged", f"ledger show {_KEY} --attestation mine.attest", clock=60),
        Case("show: nothing of a run", f"ledger show {_KEY} --withdrawn", code=2, clock=60),
    ],
)
