"""What earlier versions of the accountants said, for auditors of ledgers that were written by them.

Figures are tightened from time to time, and what was recorded before is an upper bound still. So an auditor asks of a recorded
epsilon that it is not below today's, and not above by more than the version in the header explains.
"""

import math
from typing import Final

from ledger.accountants import prv

LOOSER: Final = {
    ("rdp", "dptrain", "renyi-1"),
    ("moments", "dptrain", "renyi-1"),
    ("pld", "dp-accounting", "0.6.0"),
    ("prv", "dp-accounting", "0.6.0"),
    ("prv", "opacus", "1.6.0"),
}
"""(accountant, library, version) of Gaussian figures that were larger than today's wherever they differ: Renyi figures
converted by `renyi.of_order` alone, and for `moments` by its tail bound alone, which have a floor however little is spent; and
loss distributions that dp-accounting composed, at a delta smaller by 1e-15 per step, with 1e-15 of their tails at infinity;
they were the bracket of `prv` too."""


def leeway(accountant: str, library: str, version: str, family: str = "gaussian") -> float:
    """Returns by how much an epsilon that a header's accountant recorded may exceed today's.

    Guarantee:
        0.0 for what `describe` says today, except `prv.WIDTH` for `prv`, whose figure is checked against `pld`'s; and for
        versions that are not known. Infinite for a version of `LOOSER`: its figure is checked to be an upper bound,
        and no more, which the auditor notes.
    """
    if family == "gaussian" and (accountant, library, version) in LOOSER:
        return math.inf
    return prv.WIDTH if accountant == "prv" else 0.0
