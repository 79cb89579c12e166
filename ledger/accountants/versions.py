"""Which accountants have recorded epsilons, by library, version and parameters: what a header may say of them.

A header names the accountant that computed its run. Nothing that it says is free: it is a row of `recorders`, or refused.
Figures are tightened from time to time, and what was recorded before is an upper bound still. So an auditor asks of a recorded
epsilon that it is not below today's, and not above by more than the version in the header explains.
"""

import math
import re
from dataclasses import dataclass
from typing import Final

from ledger.accountants import core, families, prv, renyi
from ledger.accountants.pld import composed as pld
from ledger.errors import AccountantError

_RELEASE: Final = r"[0-9]+(\.[0-9]+){1,3}([a-z]{1,4}[0-9]+)?"
"""Version numbers of libraries that others publish; what they compute is recomputed, or held to a bracket, whatever it is."""

LOOSER: Final = {
    ("rdp", "dptrain", "renyi-1"),
    ("moments", "dptrain", "renyi-1"),
}
"""(accountant, library, version) of Gaussian figures that were larger than today's wherever they differ: Renyi figures
converted by `renyi.of_order` alone, and for `moments` by its tail bound alone, which have a floor however little is spent."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """What a header may say of an accountant.

    Attributes:
        library: who computed.
        version: pattern of its versions, of which the whole must match.
        parameters: in the words of `ledger.accountants.describe`.
    """

    library: str
    version: str
    parameters: str


def recorders(accountant: str, family: str = families.GAUSSIAN) -> tuple[Recorder, ...]:
    """Returns everything that has recorded epsilons by an accountant over noise of a family.

    Raises:
        AccountantError: no such accountant goes with that family.
    """
    core.check_accountant(accountant)
    if family != families.GAUSSIAN:
        _, library, version, parameters = families.describe(family, accountant)
        return (Recorder(library, _RELEASE if library == "dp-accounting" else re.escape(version), parameters),)
    if accountant == "prv":
        plugged = (Recorder(name, rf"{_RELEASE}\+{pld.KERNEL}", prv.within_bracket(said)) for name, said in prv.SOURCES.items())
        return (Recorder("dptrain", pld.KERNEL, prv.ALONE), *plugged)
    if accountant == "pld":
        return (Recorder("dptrain", pld.KERNEL, pld.PARAMETERS),)
    earlier = [row[1:] for row in sorted(LOOSER) if row[0] == accountant]
    parameters = renyi.described(accountant)
    return tuple(Recorder(library, version, parameters) for library, version in (("dptrain", renyi.KERNEL), *earlier))


def check_recorder(accountant: str, library: str, version: str, parameters: str, family: str = families.GAUSSIAN) -> None:
    """Refuses what no version of this code has recorded with.

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


def leeway(accountant: str, library: str, version: str, family: str = families.GAUSSIAN) -> float:
    """Returns by how much an epsilon that a header's accountant recorded may exceed today's.

    Guarantee:
        0.0 for what `describe` says today, except `prv.WIDTH` for `prv`, whose figure is checked against `pld`'s; and for
        versions that are not known. Infinite for a version of `LOOSER`: its figure is checked to be an upper bound,
        and no more, which the auditor notes.
    """
    if family == families.GAUSSIAN and (accountant, library, version) in LOOSER:
        return math.inf
    return prv.WIDTH if accountant == "prv" else 0.0
