"""Gathers what was charged to some contributions, text by text, out of the leaves of a budget log."""

from collections.abc import Iterable
from dataclasses import replace

from attest.fixed_point import PICO
from ledger.budget.audit.report import ChargedText, ContributionRow
from ledger.budget.leaves import CONTRIBUTION, Commit, Header, Leaf, Text
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.budget.state import BudgetState


class Charges:
    """Gathers what was charged to some contributions, by the digests of their descriptors."""

    def __init__(self, wanted: Iterable[bytes]) -> None:
        self._texts: dict[bytes, dict[int, ChargedText]] = {account: {} for account in wanted}
        self._of: dict[int, list[bytes]] = {}
        self._words: dict[str, str] = {}

    def begin(self, header: Header) -> None:
        """Takes the header."""
        self._words = {item.name: item.parameters for item in header.mechanisms}

    def see(self, leaf: Leaf) -> None:
        """Takes the next leaf, which the replay took."""
        if isinstance(leaf, Text):
            wanted = [account for account in leaf.accounts if account in self._texts]
            paid = leaf.mechanism, self._words[leaf.mechanism], leaf.releases, leaf.rho_nano
            for account in wanted:
                self._texts[account][leaf.seq] = ChargedText(leaf.seq, leaf.time, *paid)
            if wanted:
                self._of[leaf.seq] = wanted
        elif isinstance(leaf, Commit) and leaf.reserved in self._of:
            for account in self._of[leaf.reserved]:
                texts = self._texts[account]
                texts[leaf.reserved] = replace(texts[leaf.reserved], computed=leaf.computed)

    def rows(self, state: BudgetState) -> Iterable[ContributionRow]:
        """Yields what the log has of each."""
        delta = next((cap.delta_pico / PICO for cap in state.header.caps if cap.unit == CONTRIBUTION), None)
        for account, texts in self._texts.items():
            admitted = state.admitted.get(account)
            spent, cap = sum(text.charged_nano for text in texts.values()), state.cap(CONTRIBUTION, account)
            reserved = sum(text.releases * text.rho_nano for text in texts.values())
            yield ContributionRow(
                account=account.hex(),
                rule=None if admitted is None else admitted.rule,
                admitted=None if admitted is None else admitted.seq,
                withdrawn=state.withdrawn.get(account),
                texts=tuple(texts.values()),
                reserved_nano=reserved,
                freed_nano=reserved - spent,
                spent_nano=spent,
                spent_epsilon=None if delta is None else epsilon_of_rho(spent / NANO, delta),
                cap_nano=cap,
                cap_epsilon=None if delta is None or cap is None else epsilon_of_rho(cap / NANO, delta),
                delta=delta,
            )
