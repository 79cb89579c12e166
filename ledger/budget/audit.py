"""Verifies an export of a budget log offline, from its files and a pinned key alone: every sum is added up again."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from attest import sign1
from attest.descriptor import GENERATE, SignedDescriptor
from attest.errors import AttestError
from attest.fixed_point import MICRO, PICO
from attest.gate.checks import check_audience, check_bounds, check_purpose, check_validity
from attest.keys import check_public_key
from attest.policy import SignedPolicy, open_policy
from attest.registry import Contributor, KeyRecord, Registry, open_registry
from attest.schema.cards import card
from attest.schema.plain import is_ahead, machine_time, utc
from ledger import layout
from ledger.audit.attested import Known
from ledger.audit.findings import MAX_FINDINGS, QUALIFIERS, AuditReport, Finding, Report, Verdict, Word, headline, word_of
from ledger.audit.given import Export, Leaves, check_keys
from ledger.budget.generation import GenerationRule
from ledger.budget.leaves import CONTRIBUTION, Commit, Epoch, Header, Leaf, Reference, Reserve, decode_leaf, is_budget
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.budget.state import BudgetState
from ledger.errors import BudgetExhausted, ExportChanged, LeafRefused, ProofError
from ledger.trust import auditors_policy

_ROUNDED: Final = 1e-9
"""Part by which two machines may compute another epsilon of a cap."""


WORDS: Final[dict[str, Word]] = QUALIFIERS | {
    "CONSENT_TOLD": Word(
        "that contributors signed what admits their contributions to generation is the operator's word: no signature was "
        "verified",
        "get the registry of the contributors' keys from the corpus owner, and give it with --registry and --owner-key",
        brief="that contributors consented to generation: no signature was verified",
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
        seq: position of the RESERVE leaf. mechanism: its name, and in words what it is, as the header has it.
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
    """

    account: str
    rule: str | None
    admitted: int | None
    withdrawn: int | None
    texts: tuple[ChargedText, ...]
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
        reserves: RESERVE leaves; open: those without a COMMIT leaf.
        reserved_nano: sum over reservations, each counted once; freed_nano: of that, what was never computed.
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


def holds_budget(path: str | Path) -> bool:
    """Tells whether the first leaf of an export says that it is of a budget log. Nothing is verified: it tells which audit to
    ask."""
    export = Export(Path(path), lambda *said: None)
    if not export.scan():
        return False
    names = (layout.entries_path(0, width) for width in range(1, layout.TILE_WIDTH + 1))
    name = next((name for name in names if name in export.names), None)
    data = None if name is None else export.read(name)
    return data is not None and len(data) > 2 and is_budget(data[2 : 2 + int.from_bytes(data[:2], "big")])


def verify_budget(
    path: str | Path,
    keys: Sequence[str],
    *,
    now: int | None = None,
    minimum_size: int | None = None,
    max_age: int | None = None,
    owner_key: bytes | None = None,
    policies: Sequence[str | Path] = (),
    registry: str | Path | None = None,
    contributions: Sequence[bytes] = (),
) -> BudgetReport:
    """Audits an export of a budget log.

    Guarantee: FULL means: the directory holds exactly the files that its signed size calls for; they are the tree whose root a
    pinned key signed, which is the key in the header; every cap in rho is worth no more than its epsilon at its delta; every
    reservation names a mechanism of the header and costs what that says; no unit was above its cap after any leaf; nothing was
    freed but by the one COMMIT leaf of its reservation, and no more than was reserved; thresholds were told when they were
    reached, once; totals are those of the leaves; and no time runs back, or lies ahead of the auditor's clock. Of a log with
    rules of generation it means besides: the owner signed every rule, as it stands, in the policy that it names; every
    contribution that paid was admitted before by what its contributor signed, for generation, for the class of its rule, under
    a key of the registry given that was valid then; and it paid what the numbers of that rule cost at least, never more than
    the rule allows, and nothing behind its withdrawal. Where the policy or the registry is not given the verdict is TOLD, and
    qualifiers say whose word stands in their place. The audit cannot tell whether something was computed for which nothing was
    reserved, or whether a mechanism adds the noise that its rho needs.

    Args:
        keys: verifier keys of the log, obtained from a place that the exporter does not control.
        now: the auditor's clock, POSIX seconds; that of this machine without.
        minimum_size: fail if the checkpoint has fewer leaves; None for unknown.
        max_age: fail if the last leaf is older than this many seconds; None for any age.
        owner_key: public key of the corpus owner, under which policies and registry are read.
        policies: signed policies that the rules of the header name. registry: of the contributors' keys.
        contributions: digests of descriptors of which the report says what was charged, in this order.

    Returns:
        The report. Bad input never raises: it is a finding.
    """
    clock = machine_time() if now is None else now
    findings: list[Finding] = []
    report: dict[str, Any] = {}
    try:
        brought = _Brought.read(owner_key, policies, registry, lambda *said: findings.append(Finding(*said)))
        _verify(Path(path), list(keys), clock, (minimum_size, max_age), findings, report, brought, contributions)
    except Exception as error:  # an input that breaks the auditor must not pass the audit
        findings.append(Finding("INTERNAL", str(path), f"the audit broke off: {type(error).__name__}: {error}"))
    told = {"CONSENT_TOLD", "RULES_TOLD"} & set(report.get("qualifiers", ()))
    verdict: Verdict = "FAILED" if findings else "TOLD" if told else "FULL"
    found = BudgetReport(verdict=verdict, findings=tuple(findings[:MAX_FINDINGS]), now=clock, **report)
    return replace(found, notes=tuple(_notes(found))) if not findings else found


def _verify(
    path: Path,
    keys: list[str],
    now: int,
    asked: tuple[int | None, int | None],
    findings: list[Finding],
    report: dict[str, Any],
    brought: "_Brought",
    wanted: Sequence[bytes],
) -> None:
    def fault(code: str, where: str, sentence: str) -> None:
        findings.append(Finding(code, where, sentence))

    export = Export(path, fault)
    opened = None if not check_keys(keys, fault) or not export.scan() else export.checkpoint(keys)
    if opened is None:
        return
    note, checkpoint = opened
    if note is None:
        fault("UNSIGNED", layout.CHECKPOINT, "none of the keys given signed the checkpoint")
        return
    report.update(origin=checkpoint.origin, size=checkpoint.size, root_hex=checkpoint.root.hex())
    minimum, max_age = asked
    qualifiers: set[str] = set()
    if minimum is None:
        qualifiers.add("UNCOMPARED")
    elif checkpoint.size < minimum:
        sentence = f"the checkpoint has {checkpoint.size} leaves, at least {minimum} are asked for"
        fault("OLD", layout.CHECKPOINT, f"{sentence}: an old copy; ask the operator for the newest export")
    if checkpoint.size == 0:
        fault("EMPTY", layout.CHECKPOINT, "an empty tree has no header")
        return
    leaves = export.leaves(checkpoint) if export.check_names(checkpoint.size) else None
    if leaves is None:
        return
    if export.retained or export.terms or layout.REGISTRY in export.names:
        fault("UNKNOWN_FILE", str(path), "an export of a budget has no pruned leaves, no attestations and no registry")
    consents, charges = _Consents(brought, fault), _Charges(wanted)
    state = _added_up(leaves, findings, report, consents, charges)
    if state is None:
        return
    header = state.header
    consents.judge_rules(header)
    qualifiers |= consents.told(state)
    if header.origin != checkpoint.origin or header.log_vkey not in {str(item.key) for item in note.signatures}:
        sentence = f"the header is of {header.origin!r} under {header.log_vkey}, the checkpoint of {checkpoint.origin!r}"
        fault("ORIGIN", layout.CHECKPOINT, f"{sentence} under another key, or another origin")
    if export.read(layout.POLICY) not in (None, auditors_policy(header.log_vkey).text()):
        fault("POLICY_FILE", layout.POLICY, "the trust policy is not that of the log's key")
    _judge_caps(header, fault)
    if is_ahead(state.last_time, now):
        fault("AHEAD", f"seq {state.size - 1}", f"the last leaf is of {utc(state.last_time)}, the clock here says {utc(now)}")
    if max_age is not None and state.last_time < now - max_age:
        fault("STALE", layout.CHECKPOINT, f"the last leaf is of {utc(state.last_time)}; ask the operator for the newest export")
    report.update(
        began=header.time,
        last_time=state.last_time,
        log_keys=(header.log_vkey,),
        beside=tuple((item.origin, item.size, item.root.hex()) for item in header.beside),
        caps=tuple(_cap_rows(state)),
        reserves=state.reserves,
        open=len(state.open),
        reserved_nano=state.reserved,
        freed_nano=state.freed,
        budget_epochs=state.epochs,
        undelivered=len(state.undelivered),
        qualifiers=tuple(sorted(qualifiers)),
        generation=tuple(consents.rows(state)),
        contributions=tuple(charges.rows(state)),
    )


def _added_up(
    leaves: Leaves, findings: list[Finding], report: dict[str, Any], consents: "_Consents", charges: "_Charges"
) -> BudgetState | None:
    """Replays the leaves; None where there is no header."""
    state: BudgetState | None = None
    behind, at = 0, 0
    try:
        for at, body in enumerate(leaves):  # noqa: B007 (it is where the replay broke off)
            leaf = decode_leaf(body)
            if state is None:
                if not isinstance(leaf, Header):
                    raise LeafRefused("HEADER", "the first leaf is not the header of a budget log", seq=0)
                state = BudgetState(leaf)
                consents.begin(leaf)
                charges.begin(leaf)
                continue
            state.apply(leaf)
            consents.see(leaf)
            charges.see(leaf)
            behind = 0 if isinstance(leaf, Epoch) else behind + 1
        if state is not None and next(state.due(), None) is not None:
            raise LeafRefused("NOTICE", "a threshold was reached by the last leaf, and no NOTICE follows")
    except (LeafRefused, BudgetExhausted, ExportChanged, ProofError) as error:
        findings.append(Finding(error.code, f"seq {at}", error.sentence))
    report.update(behind_epoch=behind)
    return state


def _judge_caps(header: Header, fault: Any) -> None:
    for cap in header.caps:
        worth = epsilon_of_rho(cap.rho_nano / NANO, cap.delta_pico / PICO)
        if worth > cap.epsilon_micro / MICRO * (1 + _ROUNDED):
            sentence = f"the cap of a {cap.unit} is {cap.rho_nano} of 1e-9 rho, worth epsilon {worth:.6f}"
            fault("CAP", "seq 0", f"{sentence}, and the header promises {cap.epsilon_micro / MICRO:.6f}")


def _cap_rows(state: BudgetState) -> list[CapRow]:
    rows = []
    for cap in state.header.caps:
        spent = [account.spent for account in state.accounts.values() if account.unit == cap.unit]
        most, delta = max(spent, default=0), cap.delta_pico / PICO
        epsilon = epsilon_of_rho(most / NANO, delta)
        rows.append(CapRow(cap.unit, cap.epsilon_micro / MICRO, delta, cap.rho_nano, len(spent), most, epsilon))
    return rows


@dataclass(frozen=True, slots=True)
class _Brought:
    """Holds what an auditor brings of a corpus owner: signed policies by digest, and the registry with its keys by key id."""

    policies: dict[bytes, SignedPolicy]
    registry: Registry | None
    known: Known | None

    @classmethod
    def read(
        cls, owner_key: bytes | None, policies: Iterable[str | Path], registry: str | Path | None, fault: Report
    ) -> "_Brought":
        """Reads the files under the owner's key, and reports what is wrong with them."""
        signed: dict[bytes, SignedPolicy] = {}
        opened: Registry | None = None
        if owner_key is None:
            if policies or registry is not None:
                fault("OWNER_KEY", "owner key", "a policy or a registry was given, and no key of its owner to read it by")
            return cls({}, None, None)
        for path in policies:
            try:
                one = open_policy(path, owner_key)
                signed[one.digest] = one
            except AttestError as error:
                fault(error.code, str(path), error.sentence)
        if registry is not None:
            try:
                opened = open_registry(registry, owner_key)
            except AttestError as error:
                fault(error.code, str(registry), error.sentence)
        return cls(signed, opened, None if opened is None else Known.of(opened))


class _Consents:
    """Holds rules and REFERENCE leaves against what an auditor brings: signed policies, and keys of contributors."""

    def __init__(self, brought: _Brought, fault: Report) -> None:
        self._brought, self._fault = brought, fault
        self._rules: dict[str, GenerationRule] = {}
        self._verified: dict[str, int] = {}

    def judge_rules(self, header: Header) -> None:
        """Compares each rule with the policy that it names, where that was given, and the policy with the registry."""
        named = {rule.policy for rule in header.generation}
        for digest in self._brought.policies.keys() - named:
            self._fault("POLICY", "seq 0", f"a policy was given, {digest.hex()}, and no rule of the header names it")
        for rule in header.generation:
            signed, registry = self._brought.policies.get(rule.policy), self._brought.registry
            if signed is None:
                continue
            try:
                expected = GenerationRule.of(signed, rule.name)
            except LeafRefused as error:
                self._fault("RULE", "seq 0", f"the policy that the rule of class {rule.name} names: {error.sentence}")
                continue
            if expected != rule:
                self._fault("RULE", "seq 0", f"the header says {rule}, the owner signed {expected}"[:600])
            root = signed.policy.registry_root
            if registry is not None and (root is None or not registry.extends(root)):
                sentence = f"the registry has the root {registry.root().hex()}, which does not extend the one of the policy"
                self._fault("REGISTRY_ROOT", "seq 0", f"{sentence}; get the latest registry from the corpus owner")

    def see(self, leaf: Leaf) -> None:
        """Takes the next leaf, which the replay took."""
        if not isinstance(leaf, Reference):
            return
        where = f"seq {leaf.seq}"
        if self._brought.known is not None:
            problem = _unsigned(leaf, self._brought.known)
            if problem is not None:
                self._fault(problem[0], where, problem[1])
            self._verified[leaf.rule] = self._verified.get(leaf.rule, 0) + (problem is None)
        signed = SignedDescriptor.from_cbor(leaf.descriptor)
        policy = self._brought.policies.get(self._rules[leaf.rule].policy) if leaf.rule in self._rules else None
        rule = None if policy is None else policy.policy.find_class(leaf.rule)
        if policy is not None and rule is not None:
            try:
                check_audience(signed, policy.policy)
                check_purpose(signed, rule, GENERATE)
                check_validity(signed, rule, policy.policy, leaf.time)
                check_bounds(signed, rule, policy.policy)
            except AttestError as error:
                self._fault(error.code, where, f"its attestation: {error.sentence}")

    def begin(self, header: Header) -> None:
        """Takes the header."""
        self._rules = header.rules()

    def told(self, state: BudgetState) -> set[str]:
        """Returns qualifiers for what was not held against anything."""
        rules = state.header.generation
        if not rules:
            return {"RECORDS_TOLD"} if any(found.unit == CONTRIBUTION for found in state.accounts.values()) else set()
        found = set()
        if any(rule.policy not in self._brought.policies for rule in rules):
            found.add("RULES_TOLD")
        if state.admitted and self._brought.known is None:
            found.add("CONSENT_TOLD")
        return found

    def rows(self, state: BudgetState) -> Iterable[RuleRow]:
        """Yields what contributions spent by rule."""
        delta = next((cap.delta_pico / PICO for cap in state.header.caps if cap.unit == CONTRIBUTION), 0.0)
        for rule in state.header.generation:
            accounts = [account for account, found in state.admitted.items() if found.rule == rule.name]
            most = max(map(state.spent, accounts), default=0)
            yield RuleRow(
                policy=rule.policy.hex(),
                rule=rule,
                token_nano=rule.token_nano,
                signed=rule.policy in self._brought.policies,
                admitted=len(accounts),
                withdrawn=sum(account in state.withdrawn for account in accounts),
                verified=self._verified.get(rule.name, 0),
                most_nano=most,
                most_epsilon=epsilon_of_rho(most / NANO, delta),
                delta=delta,
            )


def _unsigned(leaf: Reference, known: Known) -> tuple[str, str] | None:
    """Returns what is wrong with the signature of a REFERENCE leaf by a registry: code and sentence; None for nothing."""
    message = sign1.read(leaf.sign1)
    name = message.headers.key_id.hex()
    found: list[tuple[Contributor, KeyRecord]] = known.by_key.get(message.headers.key_id, [])
    if not found:
        return "KEY_UNKNOWN", f"its attestation is signed by nobody who is enrolled: key {name} is not in the registry"
    problem = None
    for contributor, record in found:
        try:
            check_public_key(record.raw)
            message.verify(leaf.descriptor, record.raw, typ=sign1.TYP_ATTESTATION)
        except AttestError as error:
            problem = error.code, f"key {name}: {error.sentence}"
            continue
        if record.revoked(leaf.time):
            revoked = utc(record.revoked_at or 0)
            return "KEY_REVOKED", f"key {name} is revoked from {revoked} on, the leaf is of {utc(leaf.time)}"
        if not record.valid(leaf.time):
            valid = f"{utc(record.not_before)} to {utc(record.not_after)}"
            return "KEY_NOT_VALID", f"key {name} is valid from {valid}, the leaf is of {utc(leaf.time)}"
        if leaf.rule not in contributor.classes:
            granted = ", ".join(contributor.classes) or "none"
            return "CLASS_NOT_GRANTED", f"the contributor of key {name} may attest {granted}, not {leaf.rule}"
        return None
    return problem


class _Charges:
    """Gathers what was charged to some contributions, by the digests of their descriptors."""

    def __init__(self, wanted: Iterable[bytes]) -> None:
        self._texts: dict[bytes, dict[int, ChargedText]] = {account: {} for account in wanted}
        self._of: dict[int, bytes] = {}
        self._words: dict[str, str] = {}

    def begin(self, header: Header) -> None:
        """Takes the header."""
        self._words = {item.name: item.parameters for item in header.mechanisms}

    def see(self, leaf: Leaf) -> None:
        """Takes the next leaf, which the replay took."""
        if isinstance(leaf, Reserve) and leaf.unit == CONTRIBUTION and leaf.account in self._texts:
            paid = leaf.mechanism, self._words[leaf.mechanism], leaf.releases, leaf.rho_nano
            self._texts[leaf.account][leaf.seq] = ChargedText(leaf.seq, leaf.time, *paid)
            self._of[leaf.seq] = leaf.account
        elif isinstance(leaf, Commit) and leaf.reserved in self._of:
            texts = self._texts[self._of[leaf.reserved]]
            texts[leaf.reserved] = replace(texts[leaf.reserved], computed=leaf.computed)

    def rows(self, state: BudgetState) -> Iterable[ContributionRow]:
        """Yields what the log has of each."""
        delta = next((cap.delta_pico / PICO for cap in state.header.caps if cap.unit == CONTRIBUTION), None)
        for account, texts in self._texts.items():
            admitted = state.admitted.get(account)
            spent, cap = sum(text.charged_nano for text in texts.values()), state.cap(CONTRIBUTION, account)
            yield ContributionRow(
                account=account.hex(),
                rule=None if admitted is None else admitted.rule,
                admitted=None if admitted is None else admitted.seq,
                withdrawn=state.withdrawn.get(account),
                texts=tuple(texts.values()),
                spent_nano=spent,
                spent_epsilon=None if delta is None else epsilon_of_rho(spent / NANO, delta),
                cap_nano=cap,
                cap_epsilon=None if delta is None or cap is None else epsilon_of_rho(cap / NANO, delta),
                delta=delta,
            )


def _notes(report: BudgetReport) -> list[str]:
    """Says what nothing is wrong with and a reader should know."""
    notes = []
    if report.open:
        notes.append(f"{report.open} reservations have no COMMIT leaf; they count whole")
    if report.behind_epoch:
        notes.append(f"{report.behind_epoch} leaves stand behind the last epoch")
    if report.undelivered:
        notes.append(f"{report.undelivered} notices are not recorded as delivered")
    for row in report.generation:
        if row.admitted:
            told = "whose signatures were not verified" if "CONSENT_TOLD" in report.qualifiers else "under keys of the registry"
            notes.append(f"class {row.rule.name}: {row.admitted} contributions were admitted to generation, {told}")
    return notes
