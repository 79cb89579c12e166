"""Holds runs that are counted together against each other: their noise, their plans, and whether one counts the other."""

from collections.abc import Sequence
from itertools import combinations

from ledger.audit.findings import Report
from ledger.audit.histories import Followed
from ledger.audit.remarks import Remarks
from ledger.replay.budgets import TOLERANCE_MICRO, Account, Use
from ledger.replay.contributions import Contribution
from ledger.replay.earlier_runs import Accounts, Earlier, SpentRegistry
from ledger.replay.earlier_texts import EarlierTexts


class Among:
    """Judges runs that one run or one budget counts; each was verified by itself before."""

    def __init__(self, fault: Report, remarks: Remarks) -> None:
        self._fault, self._remarks = fault, remarks

    def judge_streams(self, whole: Sequence[Followed]) -> None:
        """Refuses a noise stream that two runs share, cited or not; each run by itself was judged as it was verified."""
        seen: set[bytes] = set()
        for run in (item.run for item in whole):
            own = {window.noise_stream for window in run.windows}
            if shared := seen & own:
                told = f"{len(shared)} noise streams of {run.header.origin} were used in another run too"
                told = f"{told}, {min(shared).hex()} among them: the noise of two releases would cancel"
                self._fault("NOISE_REUSED", "seq 0", told)
            seen |= own

    def remark_apart(self, runs: Sequence[Earlier]) -> None:
        """Tells of cited runs that share contributions though neither counts the other, as if both had been first."""
        for one, other in combinations(runs, 2):
            counted = {before.header_digest for run in (one.run, other.run) for before in run.header.previous}
            shared = sum(name in other.run.contributions for name, item in one.run.contributions.items() if not item.unnamed)
            shared += min(sum(one.run.register.unnamed), len(other.run.contributions))  # they may be the same
            shared += min(sum(other.run.register.unnamed), len(one.run.contributions))
            if shared and counted.isdisjoint((one.cited.header_digest, other.cited.header_digest)):
                told = f"{one.cited.origin} and {other.cited.origin} share {shared} contributions and neither counts the other"
                why = "what is said of limits over runs holds if neither was chosen by looking at the other's model"
                self._remarks.qualify("EARLIER_APART", f"{told}: {why}")

    def judge_plans(self, runs: Sequence[Earlier], texts: Sequence[EarlierTexts]) -> None:
        """Holds every cited run, as it was planned, against limits with the runs and budgets that it counts itself.

        A filter lets through what it has room for beforehand: where a run without room stopped early may depend on what it saw.
        """
        for earlier in runs:
            header, own = earlier.run.header, Accounts(earlier.run)
            counted = {before.header_digest for before in header.previous}
            if not counted:
                continue  # its own plan was judged as its export was verified
            registry = SpentRegistry(
                [other for other in runs if other.cited.header_digest in counted],
                [other for other in texts if other.cited.header_digest in counted],
            )
            if any(earlier.run.register.unnamed):
                told = f"what contributions that stayed in {header.origin} had spent before it, and their limits"
                self._remarks.qualify("EARLIER_TOLD", f"{told}, nothing shows any more")
            unheld = 0
            for name, contribution in earlier.run.contributions.items():
                if contribution.unnamed or own.of(name) is None:
                    continue
                use, may = beyond(registry, name, contribution, own.planned(contribution), header.delta)
                if use is not None:
                    told = f"{name.hex()}: {use.limit} over all runs; as {header.origin} was planned that could have been"
                    self._fault(
                        "BUDGET", header.origin, f"{told} {use.epsilon:.6f}, wherever it stopped: it must not have begun"
                    )
                    break
                unheld += may
            self.remark_unheld(unheld, header.origin)

    def remark_unheld(self, count: int, origin: str) -> None:
        """Tells of limits that cannot be held against runs of which nothing says any more who stayed."""
        if count:
            told = f"{count} contributions of {origin}, as it was planned, pass a limit over all runs with what some spent whom"
            why = "an earlier run names no more: whether they are among these nothing shows"
            self._remarks.qualify("EARLIER_TOLD", f"{told} {why}")


def beyond(
    registry: SpentRegistry, name: bytes, contribution: Contribution, planned: Account, delta: float
) -> tuple[Use | None, bool]:
    """Returns the limit that is exceeded by what leaves say, if any; and whether one is exceeded with what the contribution may
    have spent besides, in runs of which nothing says any more who stayed."""
    known = registry.accounts(name, contribution.terms, named=True)
    use = registry.worst(known, planned, delta)
    if use is not None and use.too_much(TOLERANCE_MICRO):
        return use, True
    most = registry.accounts(name, contribution.terms)
    use = None if most == known else registry.worst(most, planned, delta)
    return None, use is not None and use.too_much(TOLERANCE_MICRO)
