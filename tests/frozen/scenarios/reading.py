"""`dptrain ledger verify` and `show` over exports of many kinds of run, from the published vectors."""

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import published

AUDITED = (
    "phases", "budgets", "public class", "shuffled order", "noise per sample and stricter bounds", "auditors and witness",
    "hashes gone", "resumed", "limit", "later run",
)  # fmt: skip
"""Names of vectors; each is a directory of the world."""

SHOWN = ("public class", "shuffled order", "phases")

_LIMITED = "7914538dccc7885586ed66421d4ad3d5f4e0f387092a3b52416b89fdfaae6bff"
"""Descriptor hash of a contribution of the vectors that has a limit over all runs."""

_COUNTED = "f72654c9f1ddfb3acb115cc9aa32a7c1fd3eaa149cb392190691e2a7dad2e499"
"""Descriptor hash of one in a run that counts another."""

_KEYS = "--key log.pub --owner-key owner.pub"

READING = Scenario(
    "ledger-read",
    published("poisson", *AUDITED),
    [
        *(Case(f"verify: {name}", f"ledger verify '{name}' {_KEYS}") for name in AUDITED),
        Case("verify: a run beside the one that it counts", f"ledger verify 'later run' {_KEYS} --earlier poisson"),
        Case("trace: under a limit over all runs", f"ledger trace {_LIMITED} limit {_KEYS}"),
        Case("trace: without the run that was counted", f"ledger trace {_COUNTED} 'later run' {_KEYS}"),
        *(Case(f"show: {name}", f"ledger show '{name}' {_KEYS}") for name in SHOWN),
    ],
)
