"""From whose signature the bounds of contributions were derived: the one place that decides between FULL and TOLD.

Short, because an export holds no attestations in this version. What reads and verifies them belongs here.
"""

from ledger.audit.files import Export
from ledger.replay import Replay


def bounds_are_signed(export: Export, run: Replay) -> bool:
    """Returns whether class, clip norm, noise multiplier and occurrences of every contribution were derived from attestations.

    Guarantee:
        True only if each private ADMIT leaf was held against an attestation that its contributor signed, and says what that
        says. No export of this version has attestations, so it is False of all of them, and the verdict is TOLD at best.

    Args:
        export: the directory.
        run: the run that its leaves tell.
    """
    del export, run
    return False
