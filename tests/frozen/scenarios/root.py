"""`dptrain` itself: help, and words that are no command."""

from tests.frozen.scenario import Case, Scenario
from tests.frozen.worlds import nothing

ROOT = Scenario(
    "dptrain",
    nothing,
    [
        Case("no command", "", code=2, speaks_json=False),
        Case("help", "--help", speaks_json=False),
        Case("help of a group", "ledger --help", speaks_json=False),
        Case("help of a command", "ledger verify --help", speaks_json=False),
        Case("a group without a command", "ledger", code=2, speaks_json=False),
        Case("no such command", "train-faster", code=2, speaks_json=False),
        Case("no such command of a group", "ledger delete", code=2, speaks_json=False),
        Case("no such option", "account --epsilon 1", code=2),
    ],
)
