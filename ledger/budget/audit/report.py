"""Says what an audit of a budget log found: the words that weaken it, caps, rules, and what contributions were charged."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from attest.schema.cards import card
from ledger.audit.findings import QUALIFIERS, AuditReport, Word, headline, word_of
from ledger.budget.generation import GenerationRule

WORDS: Final[dict[str, Word]] = QUALIFIERS | {
    "CONSENT_TOLD": Word(
        "that contributors signed what admits their contributions to generation is the operator's word: no signature was "
        "verified",
        "get the registry of the contributors' keys from the corpus owner, and give it with --registry and --owner-key",
        brief="that contributors consented to generation: no signature was verified",
    ),
    "FREED_TOLD": Word(
        "how many tokens of each text, or releases of another reservation, were computed is the operator's word: what was "
        "reserved for others went back to who paid",
        "count what was reserved, which is shown beside it, where you do not take the operator's word",
        brief="how many tokens were computed: who paid got back the rest",
    ),
    "KEY_REVOKED": Word(
        "texts were paid for by contributions whose contributor's key was revoked by then, as the registry says; the operator "
        "may not have had that entry yet",
        "ask the operator when it learned of the revocation, and whether these contributions were withdrawn since",
        brief="that contributions under revoked keys were left out: some were not",
    ),
    "RECORDS_TOLD": Word(
        "contributions pay by no signed rule: which records they are, and how many texts were made of each, is the operator's "
        "word",
        "decide whether you trust the operator, or ask for a log whose header has rules of a signed policy",
        brief="which records the contributions are: the operator's word",
    ),
    "RULES_TOLD": Word(
        "that the rules of generation are those of a policy which the corpus owner signed is the operator's word: a policy "
        "that they name was not given",
        "get the signed policy from the corpus owner, and give it with --policy and --owner-key",
        brief="that the owner signed the rules of generation: the policy was not given",
    ),
    "USE_TOLD": Word(
        "that no text was made of contributions by reservations which other units paid for is the operator's word: a log says "
        "who paid, and not what was computed",
        "ask the operator what these reservations were for, or for a log by which contributions alone pay",
        brief="what reservations were for that no contribution paid for",
    ),
    "WITHDRAWAL_LATE": Word(
        "texts were paid for by contributions whose withdrawal was signed, or entered in another log, before, by the times of "
        "the leaves, which are the operator's word",
        "ask the operator when it got these withdrawals",
        brief="that withdrawals were heeded from when they were signed or entered: texts followed",
    ),
}
"""Qualifiers of a budget log: those of every audit, and those that speak of contributions which make texts."""


@dataclass(frozen=True, slots=True)
class CapRow:
    """Says what a cap is worth, and the most that a unit of its kind has spent of it: in 1e-9 of rho, and as epsilon at its
    delta. `units`: how many ever paid or were refused."""

    unit: str
    epsilon: float
    delta: float
    cap_nano: int
    units: int
    most_nano: int
    most_epsilon: float


@dataclass(frozen=True, slots=True)
class RuleRow:
    """Says what contributions spent under one rule of generation.

    Attributes:
        policy: SHA-256 of the policy that has it, in hex. rule: class, and the rest of its numbers as in the header.
        token_nano: what a token costs at least by these numbers.
        signed: whether a signed policy with this digest was given, and has the rule.
        admitted: contributions. withdrawn: of these. verified: of these, those whose signature verified under the registry.
        most_nano: the most that one has spent, in 1e-9 of rho; most_epsilon: that as epsilon at delta, the one of the cap.
    """

    policy: str
    rule: GenerationRule
    token_nano: int
    signed: bool
    admitted: int
    withdrawn: int
    verified: int
    most_nano: int
    most_epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class ChargedText:
    """Says what was reserved from a contribution for one text.

    Attributes:
        seq: position of the TEXT leaf. mechanism: its name, and in words what it is, as the header has it.
        releases: tokens reserved, rho_nano: of each. computed: of these, None where no COMMIT leaf says so: then all count.
    """

    seq: int
    time: int
    mechanism: str
    words: str
    releases: int
    rho_nano: int
    computed: int | None = None

    @property
    def charged_nano(self) -> int:
        """Returns what counts, in 1e-9 of rho."""
        return self.rho_nano * (self.releases if self.computed is None else self.computed)


@dataclass(frozen=True, slots=True)
class ContributionRow:
    """Says what a log has of one contribution.

    Attributes:
        account: digest of its descriptor, in hex.
        rule: class under whose rule it was admitted; None where it was not. admitted, withdrawn: positions of the leaves.
        texts: in order. spent_nano: what these add up to; cap_nano: the most that they may. None without a cap.
        reserved_nano: what was reserved for them; freed_nano: of that, what came back, since the operator says that it was
            never computed.
    """

    account: str
    rule: str | None
    admitted: int | None
    withdrawn: int | None
    texts: tuple[ChargedText, ...]
    reserved_nano: int
    freed_nano: int
    spent_nano: int
    spent_epsilon: float | None
    cap_nano: int | None
    cap_epsilon: float | None
    delta: float | None

    def to_json(self) -> dict[str, Any]:
        """Returns a form that ``json.dumps`` takes."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReport(AuditReport):
    """Holds the result of an audit of a budget log. Fields of `AuditReport` that speak of a run keep their defaults.

    Attributes:
        beside: the training ledgers that the header names, as (origin, size, root in hex): what the log's operator said.
        caps: by kind of unit.
        reserves: RESERVE and TEXT leaves; open: those without a COMMIT leaf.
        reserved_nano: sum over reservations, of a text for each contribution; freed_nano: of that, what was never computed.
        budget_epochs: EPOCH leaves.
        behind_epoch: leaves behind the last EPOCH leaf.
        undelivered: notices that nobody is recorded to have had.
        generation: rules by which contributions make texts.
        contributions: those that were asked for.
    """

    beside: tuple[tuple[str, int, str], ...] = ()
    caps: tuple[CapRow, ...] = ()
    reserves: int = 0
    open: int = 0
    reserved_nano: int = 0
    freed_nano: int = 0
    budget_epochs: int = 0
    behind_epoch: int = 0
    undelivered: int = 0
    generation: tuple[RuleRow, ...] = ()
    contributions: tuple[ContributionRow, ...] = ()

    def _repr_html_(self) -> str:
        word = word_of(self.verdict, (one.code for one in self.findings))
        rows: list[tuple[str, Any]] = [(headline(self.verdict, self.qualifiers), word.brief or word.sentence)]
        rows += [(one.code, one.sentence) for one in self.findings]
        rows += [(name, f"not verified: {WORDS[name].brief}") for name in self.qualifiers]
        rows += [("budget log", self.origin), ("leaves", self.size), ("reservations", self.reserves)]
        return card(type(self).__name__, rows)

    def to_json(self) -> dict[str, Any]:
        """Returns a form that ``json.dumps`` takes: what is said of a budget, and nothing of runs."""
        whole = asdict(self)
        amounts = ("reserves", "open", "reserved_nano", "freed_nano")
        own = ("beside", "caps", *amounts, "budget_epochs", "behind_epoch", "undelivered", "generation", "contributions")
        for row in whole["generation"]:
            del row["rule"]["policy"]
        common = ("verdict", "findings", "qualifiers", "notes", "origin", "size", "root_hex", "now", "began", "last_time")
        return {"schema": "dptrain.budget/1", **{name: whole[name] for name in (*common, "log_keys", *own)}}
