"""Replays the leaves of a budget log: what every unit has spent, what is open, and what leaf may follow.

Writers, readers and auditors hold a log to the same rules here. No sum is stored anywhere else: whoever opens a log adds its
leaves up again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from attest.attestation import Attestation
from attest.schema.plain import utc
from ledger import merkle
from ledger.budget.generation import INK, Admitted, admitted_by, require_new
from ledger.budget.leaves import (
    CONTRIBUTION,
    SESSION,
    Commit,
    Delivered,
    Epoch,
    Header,
    Leaf,
    Notice,
    Reference,
    Reserve,
    Text,
    Withdrawn,
)
from ledger.errors import BudgetExhausted, LeafRefused


@dataclass(slots=True)
class Account:
    """Holds what one unit has spent.

    Attributes:
        unit: its kind. parent: hash of the unit above a session.
        spent: in 1e-9 of rho; open reservations count whole.
        told: percentages that notices said, 0 for the first refusal.
    """

    unit: str
    parent: bytes | None
    spent: int = 0
    told: set[int] = field(default_factory=set)


class BudgetState:
    """Says what the leaves of one log add up to."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.size = 1
        self.last_time = header.time
        self.accounts: dict[bytes, Account] = {}
        self.open: dict[int, Reserve | Text] = {}
        self.requests: set[bytes] = set()
        self.undelivered: dict[int, Notice] = {}
        self.rules = header.rules()
        self.admitted: dict[bytes, Admitted] = {}
        self.contents: set[bytes] = set()
        self.withdrawn: dict[bytes, int] = {}
        self.epochs = 0
        self.reserves = 0
        self.reserved = 0
        self.freed = 0
        self.freed_of_texts = 0
        self._due: list[tuple[bytes, int]] = []

    def spent(self, account: bytes) -> int:
        """Returns what a unit has spent, open reservations included, in 1e-9 of rho; 0 for one that never paid."""
        found = self.accounts.get(account)
        return 0 if found is None else found.spent

    def cap(self, unit: str, account: bytes) -> int | None:
        """Returns the most that a unit may spend, in 1e-9 of rho: the cap of its kind, and of an admitted contribution no more
        than its rule says; None without a cap."""
        cap, found = self.header.cap(unit), self.admitted.get(account)
        if found is None or unit != CONTRIBUTION or cap is None:
            return cap
        return min(cap, self.rules[found.rule].max_rho_nano)

    def left(self, unit: str, account: bytes, *, now: int) -> int | None:
        """Returns what a unit can still pay at a time, in 1e-9 of rho; None without a cap. A contribution can pay nothing once
        it was withdrawn, nor under rules of generation before it is admitted, or when what was signed is valid no more."""
        found = self.admitted.get(account)
        if unit == CONTRIBUTION and (account in self.withdrawn or (self.rules and (found is None or now >= found.until))):
            return 0
        cap = self.cap(unit, account)
        return None if cap is None else cap - self.spent(account)

    def apply(self, leaf: Leaf, *, totals: bool = True) -> None:
        """Takes the next leaf in.

        Guarantee: returns only if no unit of a kind that has a cap is above it after the leaf; a refused leaf changes nothing.

        Args:
            totals: whether the root over all units in an EPOCH leaf is computed again.

        Raises:
            LeafRefused: the leaf contradicts those before it. BudgetExhausted: it is a reservation above a cap.
        """
        if isinstance(leaf, Header):
            raise LeafRefused("KIND", "a log has one header, leaf 0", seq=self.size)
        if leaf.seq != self.size:
            raise LeafRefused("SEQ", f"the leaf says position {leaf.seq}, it is at {self.size}", seq=self.size)
        if leaf.time < self.last_time:
            sentence = f"time runs back from {utc(self.last_time)} to {utc(leaf.time)}"
            raise LeafRefused("CLOCK", sentence, seq=leaf.seq)
        if self._due and not isinstance(leaf, Notice):
            raise LeafRefused("NOTICE", f"a threshold of {self._due[0][1]} % was reached, and no NOTICE follows", seq=leaf.seq)
        match leaf:
            case Reserve() | Text():
                self._reserve(leaf)
            case Commit():
                self._commit(leaf)
            case Notice():
                self._notice(leaf)
            case Delivered():
                if self.undelivered.pop(leaf.notice, None) is None:
                    raise LeafRefused("DELIVERED", f"leaf {leaf.notice} is no notice that is to be delivered", seq=leaf.seq)
            case Epoch():
                if (expected := self.epoch(leaf.seq, leaf.time, leaf.accounts_root if not totals else None)) != leaf:
                    raise LeafRefused("TOTALS", f"the totals are {leaf}, the leaves add up to {expected}"[:600], seq=leaf.seq)
                self.epochs += 1
            case Reference():
                admitted = self.check_reference(leaf)
                self.admitted[leaf.account] = admitted
                self.contents.add(admitted.content)
            case Withdrawn():
                self._withdraw(leaf)
        self.size, self.last_time = leaf.seq + 1, leaf.time

    def check_reserve(self, leaf: Reserve | Text) -> None:
        """Checks a reservation against mechanisms, consent and caps; raises as `apply`, and changes nothing."""
        mechanism = self.header.mechanism(leaf.mechanism)
        if mechanism is None:
            known = ", ".join(item.name for item in self.header.mechanisms)
            raise LeafRefused("MECHANISM", f"{leaf.mechanism!r} is no mechanism of this budget; it has {known}", seq=leaf.seq)
        if leaf.rho_nano < mechanism.rho_nano or (leaf.rho_nano != mechanism.rho_nano and not mechanism.by_request):
            least = "at least " if mechanism.by_request else ""
            sentence = f"a release of {mechanism.name} costs {least}{mechanism.rho_nano} of 1e-9 rho, got {leaf.rho_nano}"
            raise LeafRefused("RHO", sentence, seq=leaf.seq)
        if leaf.request in self.requests:
            raise LeafRefused("REQUEST", "a request of this identifier has an open reservation; commit that", seq=leaf.seq)
        if isinstance(leaf, Text):
            self._check_consent(leaf)
        elif self.rules and leaf.mechanism == INK:
            sentence = f"{INK} makes texts, which contributions pay for under the rules of the header; a {leaf.unit} is to pay"
            raise LeafRefused("MECHANISM", sentence, seq=leaf.seq)
        capped = False
        for unit, account, parent in reversed(leaf.payers()):
            known_account = self.accounts.get(account)
            if known_account is not None and (known_account.unit, known_account.parent) != (unit, parent):
                raise LeafRefused("ACCOUNT", f"a {known_account.unit} pays as {unit}, or under another", seq=leaf.seq)
            cap, spent = self.cap(unit, account), self.spent(account)
            capped |= cap is not None and unit != SESSION
            if cap is not None and spent + leaf.cost > cap:
                raise BudgetExhausted(
                    "EXHAUSTED",
                    f"the {unit} has spent {spent} of {cap} (1e-9 rho), and the request costs {leaf.cost}; nothing may be "
                    "computed for it, and what is spent does not come back",
                    unit=unit,
                    spent=spent,
                    cap=cap,
                    asked=leaf.cost,
                    account=account,
                )
        if not capped:
            kinds = " or ".join(cap.unit for cap in self.header.caps if cap.unit != SESSION)
            raise LeafRefused("NO_CAP", f"nobody with a cap pays for it; name a {kinds}", seq=leaf.seq)

    def check_reference(self, leaf: Reference) -> Admitted:
        """Checks that a contribution may be admitted to generation, by its descriptor and the rule of its class.

        Guarantee: as `ledger.budget.generation.admitted_by`; neither the descriptor nor its commitment to a content was
        admitted before, and the contribution was not withdrawn. A content that was signed anew is another contribution.

        Raises:
            LeafRefused: code REPEATED, WITHDRAWN or DUPLICATE_CONTENT; else as `ledger.budget.generation.admitted_by`.
        """
        account = leaf.account
        if account in self.admitted:
            sentence = f"the contribution was admitted by leaf {self.admitted[account].seq}, and is admitted once"
            raise LeafRefused("REPEATED", sentence, seq=leaf.seq)
        self._require_not_withdrawn(account, leaf.seq)
        signed_as = Attestation(leaf.descriptor, leaf.sign1)
        counts = self.header.over_runs is not None and leaf.rule in self.rules
        allowed = self.header.allowed(leaf.rule) if counts else None
        found = admitted_by(signed_as, leaf.rule, self.rules, seq=leaf.seq, time=leaf.time, allowed_nano=allowed)
        require_new(found, self.contents, leaf.seq)
        return found

    def _check_consent(self, leaf: Text) -> None:
        """Holds what contributions are to pay against their consent, and against the rule under which they gave that.

        Guarantee: returns only if none was withdrawn and, under rules of generation, every one was admitted before, under one
        rule, by what is still valid; they are as many as a text of that rule has references; the text has no more tokens than
        it says, and none of them costs less than its numbers.
        """
        for account in leaf.accounts:
            self._require_not_withdrawn(account, leaf.seq)
        if not self.rules:
            return
        names = set()
        for account in leaf.accounts:
            found = self.admitted.get(account)
            if found is None:
                sentence = f"no REFERENCE leaf admits the contribution {account.hex()} to generation"
                raise LeafRefused("REFERENCE", f"{sentence}; admit what its contributor signed first", seq=leaf.seq)
            if leaf.time >= found.until:
                sentence = f"what its contributor signed was valid until {utc(found.until)}, the leaf is of {utc(leaf.time)}"
                raise LeafRefused("EXPIRED", sentence, seq=leaf.seq)
            names.add(found.rule)
        if len(names) > 1:
            sentence = f"the contributions of one text were admitted under the rules of {' and '.join(sorted(names))}"
            raise LeafRefused("RULE", f"{sentence}; expected one rule", seq=leaf.seq)
        [name] = names
        rule = self.rules[name]
        if len(leaf.accounts) != rule.references:
            sentence = f"a text of class {rule.name} has {rule.references} references, {len(leaf.accounts)} contributions pay"
            raise LeafRefused("REFERENCES", sentence, seq=leaf.seq)
        if leaf.releases > rule.tokens:
            sentence = f"a text of class {rule.name} has at most {rule.tokens} tokens, {leaf.releases} are to be reserved"
            raise LeafRefused("TOKENS", sentence, seq=leaf.seq)
        if leaf.rho_nano < rule.token_nano:
            sentence = f"a token of class {rule.name} costs {rule.token_nano} of 1e-9 rho by the numbers of its rule"
            raise LeafRefused("RHO", f"{sentence}, got {leaf.rho_nano}", seq=leaf.seq)

    def _require_not_withdrawn(self, account: bytes, seq: int) -> None:
        if account in self.withdrawn:
            sentence = f"the contribution {account.hex()} was withdrawn by leaf {self.withdrawn[account]}"
            raise LeafRefused("WITHDRAWN", f"{sentence}; nothing is generated from it any more", seq=seq)

    def _withdraw(self, leaf: Withdrawn) -> None:
        self._require_not_withdrawn(leaf.account, leaf.seq)
        known = self.accounts.get(leaf.account)
        if known is not None and known.unit != CONTRIBUTION:
            raise LeafRefused("ACCOUNT", f"a {known.unit} is withdrawn as a contribution", seq=leaf.seq)
        self.withdrawn[leaf.account] = leaf.seq

    def due(self) -> Iterator[tuple[str, bytes, int, int]]:
        """Yields the notices that must follow: kind of the unit, its hash, the percentage, and what it has spent."""
        for account, percent in self._due:
            found = self.accounts[account]
            yield found.unit, account, percent, found.spent

    def epoch(self, seq: int, time: int, root: bytes | None = None) -> Epoch:
        """Returns the EPOCH leaf that is true now. `root`: over all units, where it need not be computed again."""
        root = self.accounts_root() if root is None else root
        totals = self.reserves, len(self.open), self.reserved, self.freed, len(self.accounts)
        return Epoch(seq, time, self.epochs + 1, *totals, root)

    def accounts_root(self) -> bytes:
        """Returns the RFC 6962 root over one leaf for each unit that ever paid, ascending: its hash, and what it has spent as 8
        bytes, big-endian."""
        return merkle.root([account + found.spent.to_bytes(8, "big") for account, found in sorted(self.accounts.items())])

    def _reserve(self, leaf: Reserve | Text) -> None:
        self.check_reserve(leaf)
        for unit, account, parent in leaf.payers():
            found = self.accounts.setdefault(account, Account(unit, parent))
            found.spent += leaf.cost
            cap = self.cap(unit, account)
            if cap is not None:
                reached = [at for at in self.header.thresholds if at not in found.told and 100 * found.spent >= at * cap]
                self._due += [(account, at) for at in reached]
        self.open[leaf.seq] = leaf
        self.requests.add(leaf.request)
        self.reserves += 1
        self.reserved += leaf.cost * _times(leaf)

    def _commit(self, leaf: Commit) -> None:
        found = self.open.get(leaf.reserved)
        if found is None:
            sentence = f"leaf {leaf.reserved} is no open reservation; it was committed before, or is none"
            raise LeafRefused("COMMITTED", sentence, seq=leaf.seq)
        if leaf.computed > found.releases:
            sentence = f"{leaf.computed} releases were computed, {found.releases} were paid for"
            raise LeafRefused("COMPUTED", f"{sentence}; reserve before computing", seq=leaf.seq)
        back = (found.releases - leaf.computed) * found.rho_nano
        for _, account, _ in found.payers():
            self.accounts[account].spent -= back
        self.freed += back * _times(found)
        self.freed_of_texts += back * _times(found) if isinstance(found, Text) else 0
        del self.open[leaf.reserved]
        self.requests.discard(found.request)

    def _notice(self, leaf: Notice) -> None:
        found = self.accounts.get(leaf.account)
        cap = self.header.cap(leaf.unit)
        unit, spent, told = ("", 0, set[int]()) if found is None else (found.unit, found.spent, found.told)
        known = cap is not None and unit in ("", leaf.unit) and leaf.spent_nano == spent
        if not known or leaf.percent in told or (leaf.unit == SESSION and not leaf.percent):
            sentence = "a notice is of a unit with a cap, of what it has spent, and the first; a refusal is no session's"
            raise LeafRefused("NOTICE", f"{sentence}; got {leaf.percent} % of a {leaf.unit}", seq=leaf.seq)
        if self._due:
            if (leaf.account, leaf.percent) != self._due[0]:
                raise LeafRefused("NOTICE", f"the notice of {self._due[0][1]} % is due, another stands there", seq=leaf.seq)
            del self._due[0]
        elif leaf.percent:
            raise LeafRefused("NOTICE", "a threshold is told that was not reached by the leaf before", seq=leaf.seq)
        self.accounts.setdefault(leaf.account, Account(leaf.unit, None)).told.add(leaf.percent)
        self.undelivered[leaf.seq] = leaf


def _times(leaf: Reserve | Text) -> int:
    """Returns how often a reservation counts in the totals: a text for each of its contributions."""
    return len(leaf.accounts) if isinstance(leaf, Text) else 1
