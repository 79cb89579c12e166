"""Adds up what contributions spent over several runs of one corpus, and tells whether one more keeps within every limit.

A contribution is known by the hash of its descriptor, which is the same in every run that admits the same attestation. What it
is said to have spent before is the epsilon of the runs composed, at the delta of the policy that says so; it holds if no policy
was chosen by looking at what an earlier run released. Limits do not rest on that (`ledger.replay.budgets`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from attest.withdrawal import PASSING
from ledger.errors import BudgetExceeded, LeafRefused
from ledger.leaves import Header, Previous, Withdraw
from ledger.leaves.header import COMPROMISED
from ledger.replay.budgets import Account, Plans, Spending, Use, composed, limits_over, most_of_run, of_run, reached
from ledger.replay.contributions import AdmitSpec, Contribution, Signed
from ledger.replay.earlier_texts import EarlierTexts, misdated
from ledger.replay.replay import Replay


@dataclass(frozen=True, slots=True)
class Earlier:
    """Holds an earlier run, replayed up to exactly the size that a header cites."""

    cited: Previous
    run: Replay
    withdrawn: tuple[Withdraw, ...] = ()

    @property
    def lost(self) -> bool:
        """Tells whether its key was lost before it was closed: nobody can show what was charged to it behind the cited leaves.
        """
        return self.cited.reason == COMPROMISED and not self.run.closed

    @property
    def previous(self) -> tuple[Previous, ...]:
        """Returns what it counts itself."""
        return self.run.header.previous

    def misdates(self, time: int) -> str | None:
        """Tells why a run that counts this one cannot have begun at a time; None where it can, as clocks may differ."""
        return misdated(self.cited, self.run.last_time, time)


def left_out(counted: Sequence[Earlier | EarlierTexts]) -> Iterator[tuple[str, Previous]]:
    """Yields every ledger that one of these runs and budgets counts and that is none of them, behind the origin of that one."""
    cited = {earlier.cited.header_digest for earlier in counted}
    for earlier in counted:
        for before in earlier.previous or ():
            if before.header_digest not in cited:
                yield earlier.cited.origin, before


class Accounts:
    """Keeps the accounts of one run: one per group of contributions with equal bounds, limits and charges."""

    def __init__(self, run: Replay, *, lost: bool = False) -> None:
        """Takes the run at the size at which it is counted, and whether its key was lost before it was closed."""
        self.run = run
        self._lost = lost
        self._groups: dict[tuple[object, ...], Account] = {}
        self._most: dict[tuple[int, bool], Spending | None] = {}

    def of(self, descriptor_hash: bytes, signed: Signed | None = None, *, named: bool = False) -> Account | None:
        """Returns the account of a contribution; None if the run has none of it, or only as a public one.

        Guarantee: Of a run that was lost the account is what the whole plan could have spent, for everybody whose class its
        policy has: whoever was not admitted in the cited leaves may have been admitted behind them. So it does not matter at
        which size its operator says that the key was lost. Of a run whose ADMIT leaves of who stayed are gone, the account of
        whom no leaf names is no less than that of any unnamed contribution of its class: it may be one of them.

        Args:
            signed: what it signed; needed of a run that was lost, or of which nothing says any more who stayed.
            named: whether to give the account only of whom a leaf names, and not what may have been spent besides.
        """
        if self._lost:
            return self._whole(signed)
        contribution = self.run.contributions.get(descriptor_hash)
        if any(self.run.register.unnamed) and (contribution is None or (contribution.unnamed and signed is not None)):
            return None if named else self.anybody(signed, unnamed=True)
        if contribution is None or self.run.is_public(contribution):
            return None
        key = (contribution.terms, contribution.until, contribution.loss)
        found = self._groups.get(key)
        if found is None:
            planned = self.planned(contribution)
            spent = of_run(self.run, contribution)
            found = self._groups[key] = Account(planned.order, spent, planned.planned, planned.limits)
        return found

    def planned(self, contribution: Contribution) -> Account:
        """Returns what a contribution could have spent in the run, as an account."""
        return self.run.plans.of(contribution.class_index, contribution.terms)

    def _whole(self, signed: Signed | None) -> Account | None:
        """Returns the plan of a lost run for who signed this; None where its policy has no such class, or a public one."""
        if signed is None:
            raise TypeError("a run whose key was lost counts for everybody: give what the contribution signed")
        rules = self.run.header.policy.classes
        place = next((place for place, rule in enumerate(rules) if rule.name == signed.class_name and not rule.public), None)
        return None if place is None else self.run.plans.of(place, signed)

    def anybody(self, signed: Signed | None, *, unnamed: bool = False) -> Account | None:
        """Returns an account that is no less than that of anybody in the class of a contribution; None where nobody is in it.
        `unnamed`: whether to take only those of whom nothing says any more who they are."""
        if signed is None:
            raise TypeError("of this run nothing says any more who stayed: give what the contribution signed")
        run, rules = self.run, self.run.header.policy.classes
        place = next((place for place, rule in enumerate(rules) if rule.name == signed.class_name and not rule.public), None)
        if place is None:
            return None
        if (place, unnamed) not in self._most:
            members = [item for item in run.register.by_number if item.class_index == place and unnamed <= item.unnamed]
            self._most[place, unnamed] = most_of_run(run, members) if members else None
        most, planned = self._most[place, unnamed], self.run.plans.of(place, signed)
        if most is None:
            return None
        key = (most, planned)
        if key not in self._groups:
            self._groups[key] = Account(planned.order, most, planned.planned, planned.limits)
        return self._groups[key]


class SpentRegistry:
    """Keeps what a new run counts: earlier runs, and budgets from which contributions pay for texts."""

    def __init__(self, runs: Sequence[Earlier] = (), texts: Sequence[EarlierTexts] = ()) -> None:
        """Takes the runs and the budgets; none means that nothing was spent before, and nothing is spent beside."""
        self._runs, self._texts = tuple(runs), tuple(texts)
        self._counted: tuple[Earlier | EarlierTexts, ...] = (*self._runs, *self._texts)
        self._ledgers = [Accounts(earlier.run, lost=earlier.lost) for earlier in runs]
        self._composed: dict[tuple[tuple[Account, ...], float], float] = {}
        self._worst: dict[tuple[tuple[Account, ...], Account, float], Use | None] = {}

    @property
    def previous(self) -> tuple[Previous, ...]:
        """Returns what the header of the new run must cite."""
        return tuple(earlier.cited for earlier in self._counted)

    @cached_property
    def withdrawn(self) -> dict[bytes, tuple[str, Withdraw]]:
        """Returns what was withdrawn in the earlier runs and budgets for good, by descriptor hash: the origin of the first of
        them, and the leaf.

        A withdrawal is signed for the corpus, not for a run. What only the state of that day took out (`PASSING`) is for the
        gate to judge anew.
        """
        found: dict[bytes, tuple[str, Withdraw]] = {}
        for earlier in self._counted:
            for leaf in earlier.withdrawn:
                if leaf.reason not in PASSING:
                    found.setdefault(leaf.descriptor_hash, (earlier.cited.origin, leaf))
        return found

    def admitted_to_texts(self, descriptor_hash: bytes) -> str | None:
        """Returns the origin of a budget that admitted a contribution to texts; None without one."""
        return next((texts.cited.origin for texts in self._texts if descriptor_hash in texts.admitted), None)

    def withdrawn_among(self, admitted: Iterable[bytes]) -> Iterator[tuple[bytes, str, bytes]]:
        """Yields descriptor hash, reason and evidence of every withdrawal to enter again where these are admitted."""
        for name in admitted:
            if name in self.withdrawn:
                _, leaf = self.withdrawn[name]
                yield name, leaf.reason, leaf.evidence_hash

    def accounts(self, descriptor_hash: bytes, signed: Signed | None = None, *, named: bool = False) -> tuple[Account, ...]:
        """Returns the accounts of a contribution in the runs that admitted it, may have, or were lost (`Accounts.of`), and in
        the budgets whose rules let it pay for texts (`EarlierTexts.of`)."""
        found = [ledger.of(descriptor_hash, signed, named=named) for ledger in self._ledgers]
        return tuple(account for account in (*found, *self._for_texts(signed)) if account is not None)

    def of_anybody(self, signed: Signed) -> tuple[Account, ...]:
        """Returns accounts that are no less than those of anybody who signed a class of that name, run by run."""
        found = [ledger.anybody(signed) for ledger in self._ledgers]
        return tuple(account for account in (*found, *self._for_texts(signed)) if account is not None)

    def _for_texts(self, signed: Signed | None) -> Iterator[Account | None]:
        for texts in self._texts:
            if signed is None:
                raise TypeError("a budget of texts counts by class: give what the contribution signed")
            yield texts.of(signed)

    def carried(self, descriptor_hash: bytes, delta: float, signed: Signed | None = None) -> float:
        """Returns the epsilon that a contribution has spent in the earlier runs, or may spend for texts, composed, at this
        delta. `signed`: what it signed; needed where the key of an earlier run was lost (`Accounts.of`), and of budgets."""
        return self.composed(self.accounts(descriptor_hash, signed), delta)

    def composed(self, accounts: tuple[Account, ...], delta: float) -> float:
        """Returns the epsilon of these accounts composed, at this delta."""
        found = self._composed.get((accounts, delta))
        if found is None:
            found = self._composed[accounts, delta] = composed((account.spent for account in accounts), delta)
        return found

    def worst(self, before: tuple[Account, ...], own: Account, delta: float) -> Use | None:
        """Returns the limit of which a contribution uses most, relative to it, when one more run is counted as planned.

        None where it has no limit. Counted are all runs together, the new one by itself (`ledger.replay.budgets.reached`), and
        what its admission says to be spent before.
        """
        key = (before, own, delta)
        if key not in self._worst:
            every = (*before, own)
            uses = [Use(limit, reached(limit, every)) for limit in limits_over(every)]
            for limit in own.limits:
                uses.append(Use(limit, reached(limit, (own,))))
                if limit.delta <= delta:
                    uses.append(Use(limit, self.composed(before, delta)))
            self._worst[key] = max(uses, key=Use.share, default=None)
        return self._worst[key]

    def require_countable(self, corpus: str, time: int) -> None:
        """Refuses ledgers that what begins at a time over a corpus cannot count.

        Raises:
            LeafRefused: code EARLIER_CORPUS, a run is of another corpus, and counts nothing here; EARLIER_TIME, a ledger has
                leaves that are dated later.
        """
        for counted in self._counted:
            if wrong := counted.misdates(time):
                how = "set the clock of this machine right, or that of the earlier ledger back (dptrain ledger set-clock)"
                raise LeafRefused("EARLIER_TIME", f"it cannot begin now: {wrong}; {how}")
        for earlier in self._runs:
            if earlier.run.header.policy.corpus != corpus:
                sentence = f"{earlier.cited.origin} is a run over {earlier.run.header.policy.corpus}, none of whose"
                sentence = f"{sentence} contributions can be in {corpus}; name the earlier runs over this corpus"
                raise LeafRefused("EARLIER_CORPUS", sentence)

    def require_within(self, header: Header, admissions: Iterable[AdmitSpec]) -> None:
        """Refuses a run that could bring a contribution above a limit of epsilon over all runs: its own, or of its class.

        Guarantee: When this returns, no charge of the run, up to its horizon with every redone step, can exceed a limit.

        Raises:
            BudgetExceeded: code BUDGET; ``nearest`` is the largest number of steps that would stay within the limit.
            LeafRefused: code EARLIER_CORPUS, an earlier run is of another corpus, and counts nothing here; EARLIER_TIME, one
                has leaves that are dated after the new run begins.
        """
        self.require_countable(header.policy.corpus, header.time)
        plans = Plans(header)
        beyond: dict[tuple[tuple[Account, ...], Account], list[AdmitSpec]] = {}
        for admission in admissions:
            if header.policy.classes[admission.profile_id].public:
                continue
            before, own = self.accounts(admission.descriptor_hash, admission), plans.of(admission.profile_id, admission)
            worst = self.worst(before, own, header.delta)
            if worst is not None and worst.too_much():
                beyond.setdefault((before, own), []).append(admission)
        if beyond:
            raise self._exceeded(header, beyond)

    def _exceeded(
        self, header: Header, beyond: Mapping[tuple[tuple[Account, ...], Account], Sequence[AdmitSpec]]
    ) -> BudgetExceeded:
        """Returns the refusal, by the contribution with the fewest steps left; those with equal accounts have as many."""
        policy = header.policy
        left = {key: self._steps_left(header, key[0], members[0]) for key, members in beyond.items()}
        key = min(left, key=left.__getitem__)
        (before, own), steps, name = key, left[key], beyond[key][0].descriptor_hash.hex()
        worst = self.worst(before, own, header.delta)
        assert worst is not None
        others = sum(map(len, beyond.values())) - 1
        also = f" (as do {others} others)" if others else ""
        within = f"{steps} steps would stay within it" if steps else "not one step stays within it: leave the contribution out"
        return BudgetExceeded(
            "BUDGET",
            f"{name}{also} could pass a limit over all runs. Here {worst.limit}; {reached(worst.limit, before):.6g} of that is "
            f"used, and {policy.steps} steps with {policy.redo_steps} redone could bring it to {worst.epsilon:.6g}; {within}",
            nearest=steps,
        )

    def _steps_left(self, header: Header, before: tuple[Account, ...], admission: AdmitSpec) -> int:
        """Returns how many steps a run may have at most so that a contribution stays within its limits; 0 if not even one."""
        low, high = 0, header.policy.steps  # low stays within the limits, or is 0; high exceeds one
        while high - low > 1:
            middle = (low + high) // 2
            use = self.worst(before, Plans(header, middle).of(admission.profile_id, admission), header.delta)
            low, high = (low, middle) if use is not None and use.too_much() else (middle, high)
        return low
