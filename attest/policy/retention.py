"""When leaves of a ledger may go: first the bodies of those that old summaries speak for, then their hashes."""

from attest.errors import PolicyRefused


def check_retention(bodies: int, hashes: int, auditors: tuple[str, ...]) -> None:
    """Refuses horizons that let hashes go before bodies do, or without anybody who could vouch for them.

    Args:
        bodies: Epochs after which bodies may go, 0 for never.
        hashes: Epochs after which the hashes of what is gone may go, 0 for never.
        auditors: Verifier keys of the auditors.

    Raises:
        PolicyRefused: Code RANGE.
    """
    if not hashes:
        return
    if not 0 < bodies <= hashes:
        raise PolicyRefused(
            "RANGE",
            f"retention_hash_epochs is {hashes}, and retention_epochs {bodies}: hashes go after bodies, so it takes"
            " retention_epochs above 0 and at least as many epochs as that; or 0, to keep hashes for ever",
        )
    if not auditors:
        raise PolicyRefused(
            "RANGE", "retention_hash_epochs goes with ledger.auditors: nothing is pruned that nobody vouches for"
        )
