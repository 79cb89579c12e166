"""Holds texts against limits over all runs: what a log lets a contribution spend, as an account beside those of runs.

A contributor may sign an epsilon for all runs together, and a policy may have one for a class. Where the header of a log says
which runs it counts, contributions with such a limit are admitted, each only if what was spent of it in these runs, and all
that its rule allows over all texts, stay within every limit. Whatever runs later counts the log in turn
(`ledger.replay.earlier_texts`).

The sum is that of `ledger.replay.budgets`: Rényi divergences at one order, fixed beforehand. A log with at most rho of a
contribution is rho-zCDP in it, so at order a its divergence is at most a rho (Bun and Steinke, "Concentrated Differential
Privacy", 2016, Definition 1.1), whatever was read between its texts: its tokens and the steps of later runs are one sequence of
mechanisms, each chosen from the outputs of those before. Neighbours are those of training: the payload of one contribution is
null in one of them.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import SignedDescriptor
from attest.fixed_point import PICO, from_pico
from attest.gate.checks import Share
from attest.policy import Policy
from attest.registry import Registry
from ledger.accountants import renyi
from ledger.budget.leaves import CONTRIBUTION, Header, Reference, Withdrawn, encode_leaf
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.budget.state import BudgetState
from ledger.errors import LeafRefused
from ledger.leaves import Previous, Withdraw
from ledger.leaves.header import TEXTS
from ledger.leaves.kinds import as_leaf
from ledger.replay.budgets import Limit, Spending, Use, limits_over
from ledger.replay.contributions import AdmitSpec
from ledger.replay.earlier_runs import SpentRegistry
from ledger.replay.earlier_texts import WITHDRAWN, Allowed, EarlierTexts


@dataclass(frozen=True, eq=False)
class TextSpending(Spending):
    """Adds up texts, as rho: what is rho-zCDP in a contribution."""

    rho_nano: int = 0

    def __bool__(self) -> bool:
        return self.rho_nano > 0

    def epsilon(self, delta: float) -> float:
        """Returns its epsilon by itself, at any delta."""
        return epsilon_of_rho(self.rho_nano / NANO, delta)

    @cached_property
    def divergences(self) -> tuple[float, ...]:
        """Returns the Rényi divergence at every order of `renyi.ORDERS`: order times rho."""
        return tuple(order * self.rho_nano / NANO for order in renyi.ORDERS)

    def joined(self, members: Sequence[Spending]) -> Spending:
        """Returns what several of these add up to."""
        return spending_of(sum(member.rho_nano for member in members if isinstance(member, TextSpending)))


def spending_of(rho_nano: int) -> TextSpending:
    """Returns rho, in 1e-9, as spending."""
    return TextSpending("zcdp", "texts", rho_nano=rho_nano)


def cited_as(header: Header, size: int, root: bytes) -> Previous:
    """Returns how a header cites a budget log at a size."""
    digest = hashlib.sha256(encode_leaf(header)).digest()
    return Previous(header.origin, size, root, digest, header.log_vkey, TEXTS)


def counted_as(state: BudgetState, root: bytes, withdrawn: Iterable[Withdrawn] = ()) -> EarlierTexts:
    """Returns a budget log as others count it, as it stands at the root.

    Args:
        withdrawn: its WITHDRAWN leaves.
    """
    header, admitted = state.header, state.admitted.values()
    leaves = (
        Withdraw(leaf.seq, leaf.time, leaf.account, None, WITHDRAWN, hashlib.sha256(encode_leaf(leaf)).digest())
        for leaf in withdrawn
    )
    return EarlierTexts(
        cited=cited_as(header, state.size, root),
        began=header.time,
        last_time=state.last_time,
        previous=None if header.over_runs is None else header.over_runs.previous,
        allowed=_allowed(header),
        admitted=frozenset(state.admitted),
        corpora=frozenset(found.corpus for found in admitted),
        withdrawn=tuple(leaves),
    )


def _allowed(header: Header) -> dict[str, Allowed]:
    """Returns what the rules of a log let contributions spend, by class."""
    stated = () if header.over_runs is None else header.over_runs.limits
    limits = {one.name: Limit(one.epsilon_micro, from_pico(one.delta_pico), "class", header.origin) for one in stated}
    return {name: Allowed(spending_of(header.allowed(name)), limits.get(name)) for name in header.rules()}


def require_cited(header: Header, spent: SpentRegistry) -> None:
    """Refuses other ledgers than those that the header of a log counts.

    Raises:
        LeafRefused: code EARLIER.
    """
    cites = () if header.over_runs is None else header.over_runs.previous
    if {one.header_digest for one in cites} != {one.header_digest for one in spent.previous}:
        named = ", ".join(one.origin for one in cites) or "none"
        raise LeafRefused("EARLIER", f"the log counts other ledgers than were named; it counts {named}: name those again")


def own_texts(header: Header) -> EarlierTexts:
    """Returns a log as it counts itself: what its rules let contributions spend, by class."""
    cites = None if header.over_runs is None else header.over_runs.previous
    return EarlierTexts(cited_as(header, 1, bytes(32)), header.time, header.time, cites, _allowed(header))


class Admitting:
    """Judges who may be admitted to a log by what is in no leaf of it: runs that it counts, and shares of contributors.

    Args:
        state: of the log. own: as it counts itself (`own_texts`), one object as long as it is open.
        spent: the runs that the header cites, each as it is cited or longer; None for whom it cites none, or nobody named them.
        shares: by the registry and the policy of the log; None where caps of contributors are not held.
    """

    def __init__(
        self, state: BudgetState, own: EarlierTexts, spent: SpentRegistry | None, shares: "Shares | None" = None
    ) -> None:
        header = state.header
        self._state, self._own, self._spent, self._shares = state, own, spent or SpentRegistry(), shares
        self._delta = next((cap.delta_pico for cap in header.caps if cap.unit == CONTRIBUTION), 0) / PICO
        self._unnamed = () if spent is not None else own.previous or ()
        self._held = Counter[tuple[str, str]]()

    def used(self, descriptor_hash: bytes, signed: SignedDescriptor, *, named: bool = False) -> tuple[bool, Use | None]:
        """Tells whether a contribution has a limit over all runs, and of which limit it could use most with all texts that its
        rule allows; None where it has none.

        Guarantee: where that is not too much, what the contribution spent in the runs that the log counts, and whatever it pays
        for texts of the log, stay within its own limit, that of its class, and those of the policies of these runs.

        Args:
            named: whether to count only what leaves say of it by name, and not what it may have spent besides.
        """
        said = _said(descriptor_hash, signed)
        own = self._own.of(said)
        if own is None:
            return signed.limit[0] > 0, None
        before = self._spent.accounts(descriptor_hash, said, named=named)
        return bool(limits_over((*before, own))), self._spent.worst(before, own, self._delta)

    def refusal(self, descriptor_hash: bytes, signed_as: Attestation) -> LeafRefused | None:
        """Says why a contribution may not be admitted, by the ledgers that the log counts; None where it may. It takes no turn
        of the log.

        Guarantee: where it may, no limit that `used` knows can be passed; it was withdrawn in no ledger that the log counts;
        and no budget that the log counts has admitted it, whose rule is one over all texts.

        Returns:
            LeafRefused: code BUDGET, WITHDRAWN or TOGETHER; EARLIER, the log counts ledgers that nobody named; or that of the
                reader of descriptors.
        """
        try:
            with as_leaf(what="the descriptor of a reference: "):
                signed = SignedDescriptor.from_cbor(signed_as.descriptor)
        except LeafRefused as error:
            return error
        if self._unnamed:
            named = ", ".join(one.origin for one in self._unnamed)
            return LeafRefused("EARLIER", f"the log counts {named}; name these ledgers again, for somebody new to be admitted")
        if descriptor_hash in self._spent.withdrawn:
            origin, withdrawn = self._spent.withdrawn[descriptor_hash]
            return LeafRefused("WITHDRAWN", f"the contribution was withdrawn in {origin} (leaf {withdrawn.seq}); leave it out")
        if (other := self._spent.admitted_to_texts(descriptor_hash)) is not None:
            sentence = f"{other} admitted it too, and its rule there is one over all texts"
            return LeafRefused("TOGETHER", f"{sentence}: have it pay from that budget, or leave it out")
        _, use = self.used(descriptor_hash, signed)
        if use is not None and use.too_much():
            sentence = f"{use.limit} over all runs; with its texts and what was spent before it could use {use.epsilon:.6g}"
            return LeafRefused("BUDGET", f"{sentence}; leave it out")
        return None

    def count(self) -> None:
        """Counts who was admitted to the log as it stands now."""
        if self._shares is not None:
            shares = self._shares
            self._held.update(shares.holder(found.corpus, found.key_id) for found in self._state.admitted.values())

    def require_share(self, leaf: Reference) -> None:
        """Refuses a contribution whose contributor has as many as registry and policy allow.

        Guarantee: with ``shares`` neither the contributor, nor the person behind several, has as many contributions in the log
        as they may, those that were withdrawn since among them.

        Raises:
            LeafRefused: code CONTRIBUTOR_CAP.
        """
        if self._shares is None:
            return
        signed, said = SignedDescriptor.from_cbor(leaf.descriptor), sign1.read(leaf.sign1).headers
        held = self._shares.holder(signed.corpus, said.key_id)
        if self._held[held] >= (most := self._shares.cap(said.key_id)):
            sentence = f"{held[1]} has {self._held[held]} contributions in this log, registry and policy allow {most}"
            raise LeafRefused("CONTRIBUTOR_CAP", f"{sentence}; who withdrew counts on")

    def took(self, leaf: Reference) -> None:
        """Takes in that a leaf was appended."""
        if self._shares is not None:
            found = self._state.admitted[leaf.account]
            self._held[self._shares.holder(found.corpus, found.key_id)] += 1


class Shares:
    """Says under whose name the contribution of a key counts, and how many of that may be admitted.

    Args:
        policy: has the cap. registry: of the contributors' keys, as new as there is.
    """

    def __init__(self, policy: Policy, registry: Registry) -> None:
        found = registry.by_name.values()
        self._by_key = {key.key_id: Share.of(one.name, policy, registry) for one in found for key in one.keys}
        self._most = policy.contributor_cap

    def holder(self, corpus: str, key_id: bytes) -> tuple[str, str]:
        """Returns corpus and name under which it counts; a key that the registry lacks has a name of its own."""
        known = self._by_key.get(key_id)
        return corpus, f"key {key_id.hex()}" if known is None else known.holder

    def cap(self, key_id: bytes) -> int:
        """Returns how many may be admitted under that name."""
        known = self._by_key.get(key_id)
        return self._most if known is None else known.cap


def _said(descriptor_hash: bytes, signed: SignedDescriptor) -> AdmitSpec:
    """Returns what a contributor signed as an admission of a run says it, as far as limits go by that."""
    (clip, sigma, most), (epsilon, delta), nothing = signed.bounds, signed.limit, bytes(32)
    name = signed.admissibility_class
    return AdmitSpec(descriptor_hash, name, 0, clip, sigma, most, nothing, nothing, nothing, 0, epsilon, delta)
