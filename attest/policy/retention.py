"""When leaves of a ledger may go: first the bodies of those that old summaries speak for, then their hashes."""

from typing import TYPE_CHECKING

from attest.checks import check_int
from attest.errors import PolicyRefused
from attest.policy.noise import MAX_STEPS

if TYPE_CHECKING:
    from attest.policy.rules import Policy


def check_retention(policy: "Policy") -> None:
    """Refuse horizons that are none, or that let hashes go before bodies do, or without anybody who could vouch for them.

    Raises:
        PolicyRefused: Code TYPE or RANGE.
    """
    bodies, hashes = policy.retention_epochs, policy.retention_hash_epochs
    check_int(bodies, "retention_epochs", 0, MAX_STEPS, error=PolicyRefused)
    check_int(hashes, "retention_hash_epochs", 0, MAX_STEPS, error=PolicyRefused)
    if not hashes:
        return
    if not 0 < bodies <= hashes:
        raise PolicyRefused(
            "RANGE",
            f"retention_hash_epochs is {hashes}, and retention_epochs {bodies}: hashes go after bodies, so it takes"
            " retention_epochs above 0 and at least as many epochs as that; or 0, to keep hashes for ever",
        )
    if not policy.auditors:
        raise PolicyRefused(
            "RANGE", "retention_hash_epochs goes with ledger.auditors: nothing is pruned that nobody vouches for"
        )
