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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from attest.attestation import Attestation
from attest.descriptor import SignedDescriptor
from attest.fixed_point import PICO, from_pico
from ledger.accountants import renyi
from ledger.budget.leaves import CONTRIBUTION, Header, Withdrawn, encode_leaf
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.budget.state import BudgetState
from ledger.errors import LeafRefused
from ledger.leaves import Previous, Withdraw
from ledger.leaves.header import TEXTS
from ledger.leaves.kinds import as_leaf
from ledger.replay.budgets import Limit, Spending, Use
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


class OverAllRuns:
    """Holds who is to be admitted to a log against every limit over runs, with what it spent in the runs that the log counts.

    Args:
        header: of a log that counts runs. spent: these runs, each as the header cites it or longer.

    Raises:
        LeafRefused: code EARLIER, these are not the ledgers that the header cites.
    """

    def __init__(self, header: Header, spent: SpentRegistry) -> None:
        over = header.over_runs
        cites = () if over is None else over.previous
        if {one.header_digest for one in cites} != {one.header_digest for one in spent.previous}:
            named = ", ".join(one.origin for one in cites) or "none"
            raise LeafRefused("EARLIER", f"the log counts other ledgers than were named; it counts {named}: name those again")
        self._delta = next(cap.delta_pico for cap in header.caps if cap.unit == CONTRIBUTION) / PICO
        self._spent = spent
        own = cited_as(header, 1, bytes(32))
        self._own = EarlierTexts(own, header.time, header.time, cites, _allowed(header))

    def require_within(self, descriptor_hash: bytes, signed_as: Attestation) -> None:
        """Refuses a contribution that could pass a limit. Raises LeafRefused: code BUDGET; or that of the descriptor's reader.
        """
        with as_leaf(what="the descriptor of a reference: "):
            signed = SignedDescriptor.from_cbor(signed_as.descriptor)
        use = self.beyond(descriptor_hash, signed)
        if use is not None:
            sentence = f"{use.limit} over all runs; with its texts and what was spent before it could use {use.epsilon:.6g}"
            raise LeafRefused("BUDGET", f"{sentence}; leave it out")

    def beyond(self, descriptor_hash: bytes, signed: SignedDescriptor) -> Use | None:
        """Returns the limit that a contribution could pass with all texts that its rule allows, and how far; None where it
        stays within all.

        Guarantee: where this returns None, what the contribution spent in the runs that the log counts, and whatever it pays
        for texts of the log, stay within its own limit, that of its class, and those of the policies of these runs.
        """
        said = _said(descriptor_hash, signed)
        own = self._own.of(said)
        if own is None:
            return None
        use = self._spent.worst(self._spent.accounts(descriptor_hash, said), own, self._delta)
        return use if use is not None and use.too_much() else None


def _said(descriptor_hash: bytes, signed: SignedDescriptor) -> AdmitSpec:
    """Returns what a contributor signed as an admission of a run says it, as far as limits go by that."""
    (clip, sigma, most), (epsilon, delta), nothing = signed.bounds, signed.limit, bytes(32)
    name = signed.admissibility_class
    return AdmitSpec(descriptor_hash, name, 0, clip, sigma, most, nothing, nothing, nothing, 0, epsilon, delta)
