"""Holds what a header says of its accountant against the rows of the table: nothing that it says is free.

A header names the accountant that computed its run, by library, version and parameters. Figures are tightened from time to
time, and what was recorded before is an upper bound still. So an auditor asks of a recorded epsilon that it is not below
today's, and not above by more than the version in the header explains.
"""

import re

from attest.policy.mechanism import GAUSSIAN
from ledger.accountants.table import ACCOUNTANTS, Recorder, check, check_accountant
from ledger.errors import AccountantError


def recorders(accountant: str, family: str = GAUSSIAN) -> tuple[Recorder, ...]:
    """Returns everything that has recorded epsilons by an accountant over noise of a family.

    Raises:
        AccountantError: no such accountant goes with that family.
    """
    check_accountant(accountant)
    return check(family, accountant).recorders(accountant)


def check_recorder(accountant: str, library: str, version: str, parameters: str, family: str = GAUSSIAN) -> None:
    """Refuses what no version of this code, or of the package that provides the accountant or family, has recorded with.

    Raises:
        AccountantError: code ACCOUNTANT_VERSION; the sentence has what is known.
    """
    known = recorders(accountant, family)
    for row in known:
        if (row.library, row.parameters) == (library, parameters) and re.fullmatch(row.version, version):
            return
    told = " or ".join(f"{row.library} {row.version} {row.parameters}" for row in known)
    found = f"accountant {accountant} by {library} {version} {parameters} is none that this version knows"
    raise AccountantError("ACCOUNTANT_VERSION", f"{found}, expected {told}; audit with the newest version of dptrain")


def leeway(accountant: str, library: str, version: str, family: str = GAUSSIAN) -> float:
    """Returns by how much an epsilon that a header's accountant recorded may exceed today's.

    Guarantee:
        0.0 for what `describe` says today, except `prv.WIDTH` for `prv`, whose figure is checked against `pld`'s; and for
        versions that are not known. Infinite for `renyi.LOOSER`: its figure is checked to be an upper bound, and no more,
        which the auditor notes.
    """
    return check(family, accountant).leeway(accountant, library, version)


def held_to(accountant: str) -> str:
    """Returns the accountant whose figure an auditor recomputes to hold this one's against: `pld` for `prv`, else itself."""
    check_accountant(accountant)
    return ACCOUNTANTS[accountant].held_to or accountant
