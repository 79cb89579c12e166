"""`dptrain ledger verify` and `show` over exports of many kinds of run, from the published vectors."""

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import published

AUDITED = (
    "phases", "budgets", "public class", "shuffled order", "noise per sample and stricter bounds", "auditors and witness",
    "hashes gone", "resumed", "limit", "later run",
)  # fmt: skip
"""Names of vectors; each is a directory of the world."""

SHOWN = ("public class", "shuffled order", "phases")

_KEYS = "--key log.pub --owner-key owner.pub"

READING = Scenario(
    "ledger-read",
    published("poisson", *AUDITED),
    [
        *(Case(f"verify: {name}", f"ledger verify '{name}' {_KEYS}") for name in AUDITED),
        Case("verify: a run beside the one that it counts", f"ledger verify 'later run' {_KEYS} --earlier poisson"),
        *(Case(f"show: {name}", f"ledger show '{name}' {_KEYS}") for name in SHOWN),
    ],
)
