"""Holds consent to generation against what an auditor brings: signed policies, and the registry of the contributors' keys."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from attest import sign1
from attest.descriptor import GENERATE, SignedDescriptor
from attest.errors import AttestError
from attest.fixed_point import PICO
from attest.gate.checks import Share, check_audience, check_bounds, check_purpose, check_validity
from attest.keys import check_public_key
from attest.policy import Policy, SignedPolicy, open_policy
from attest.registry import Contributor, KeyRecord, Registry, RegistryPast, open_registry
from attest.schema.plain import utc
from ledger.audit.attested import Known
from ledger.audit.findings import Report
from ledger.audit.withdrawals import GivenWithdrawal, read_withdrawals
from ledger.budget.audit.report import RuleRow
from ledger.budget.generation import ClassLimit, GenerationRule
from ledger.budget.leaves import CONTRIBUTION, Header, Leaf, Reference, Reserve, Text, Withdrawn
from ledger.budget.rho import NANO, epsilon_of_rho
from ledger.budget.state import BudgetState
from ledger.errors import LeafRefused


@dataclass(frozen=True, slots=True)
class Brought:
    """Holds what an auditor brings: signed policies by digest, the registry with its keys by key id, and withdrawals.

    Attributes:
        others: files among the withdrawals that are none. past: the states that the registry had.
    """

    policies: dict[bytes, SignedPolicy] = field(default_factory=dict)
    registry: Registry | None = None
    known: Known | None = None
    owner_key: bytes | None = None
    withdrawals: tuple[GivenWithdrawal, ...] = ()
    others: tuple[str, ...] = ()
    past: Path | None = None

    @classmethod
    def read(
        cls,
        owner_key: bytes | None,
        policies: Iterable[str | Path],
        registry: str | Path | None,
        withdrawals: str | Path | None,
        fault: Report,
    ) -> "Brought":
        """Reads the files, those of the owner under its key, and reports what is wrong with them."""
        signed: dict[bytes, SignedPolicy] = {}
        opened: Registry | None = None
        others: list[str] = []
        given = () if withdrawals is None else tuple(read_withdrawals(Path(withdrawals), others, fault))
        if owner_key is None:
            if policies or registry is not None:
                fault("OWNER_KEY", "owner key", "a policy or a registry was given, and no key of its owner to read it by")
            return cls(withdrawals=given, others=tuple(others))
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
        known = None if opened is None else Known.of(opened)
        past = None if opened is None or registry is None else Path(registry)
        return cls(signed, opened, known, owner_key, given, tuple(others), past)


class Consents:
    """Holds rules and REFERENCE leaves against what an auditor brings: signed policies, and keys of contributors.

    Attributes:
        last_paid: time of the last text that each contribution paid for. withdrawn_at: of its WITHDRAWN leaf.
        signed_at: time of a withdrawal that was given, by who may withdraw.
        notes: what a reader should know.
    """

    def __init__(self, brought: Brought, fault: Report) -> None:
        self._brought, self._fault = brought, fault
        self._rules: dict[str, GenerationRule] = {}
        self._verified: dict[str, int] = {}
        self._shares: dict[tuple[str, str], int] = {}
        self._past: RegistryPast | None = None
        self._holders: dict[bytes, tuple[Contributor, KeyRecord]] = {}
        self._corpora: dict[bytes, str] = {}
        self._late = False
        self._elsewhere = 0
        self._given = {given.withdrawal.descriptor_hash for given in brought.withdrawals}
        self._paid: list[tuple[bytes, int]] = []  # by contributions of which a withdrawal was given, and when
        self.last_paid: dict[bytes, int] = {}
        self.withdrawn_at: dict[bytes, int] = {}
        self.signed_at: dict[bytes, int] = {}
        self.notes: list[str] = []

    def judge_rules(self, header: Header) -> None:
        """Compares each rule with the policy that it names, where that was given, and the policy with the registry."""
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
            limits = () if header.over_runs is None else header.over_runs.limits
            stated = next((one for one in limits if one.name == rule.name), None)
            if (owed := ClassLimit.of(signed, rule.name)) != stated:
                said = f"of what class {rule.name} may spend over all runs the header says {stated or 'nothing'}"
                self._fault("RULE", "seq 0", f"{said}, the owner signed {owed or 'no limit'}"[:600])
            root = signed.policy.registry_root
            if registry is not None and (root is None or not registry.extends(root)):
                sentence = f"the registry has the root {registry.root().hex()}, which does not extend the one of the policy"
                self._fault("REGISTRY_ROOT", "seq 0", f"{sentence}; get the latest registry from the corpus owner")

    def see(self, leaf: Leaf) -> None:
        """Takes the next leaf, which the replay took."""
        self._elsewhere += isinstance(leaf, Reserve)
        if isinstance(leaf, Text):
            holders = (self._holders[account] for account in leaf.accounts if account in self._holders)
            self._late |= any(key.revoked(leaf.time) for _, key in holders)
            self._paid += [(account, leaf.time) for account in leaf.accounts if account in self._given]
            self.last_paid.update(dict.fromkeys(leaf.accounts, leaf.time))
        if isinstance(leaf, Withdrawn):
            self.withdrawn_at[leaf.account] = leaf.time
        if not isinstance(leaf, Reference):
            return
        where = f"seq {leaf.seq}"
        if self._brought.known is not None:
            found = holder_of(leaf, self._brought.known)
            if isinstance(found[0], str):
                self._fault(found[0], where, found[1])
            else:
                self._holders[leaf.account] = found
                self._verified[leaf.rule] = self._verified.get(leaf.rule, 0) + 1
        signed = SignedDescriptor.from_cbor(leaf.descriptor)
        if self._brought.withdrawals:
            self._corpora[leaf.account] = signed.corpus
        policy = self._brought.policies.get(self._rules[leaf.rule].policy) if leaf.rule in self._rules else None
        rule = None if policy is None else policy.policy.find_class(leaf.rule)
        if policy is not None and self._brought.registry is not None and leaf.account in self._holders:
            self._count(self._holders[leaf.account][0], policy.policy, leaf.time, where)
        if policy is not None and rule is not None:
            try:
                check_audience(signed, policy.policy)
                check_purpose(signed, rule, GENERATE)
                check_validity(signed, rule, policy.policy, leaf.time)
                check_bounds(signed, rule, policy.policy)
            except AttestError as error:
                self._fault(error.code, where, f"its attestation: {error.sentence}")

    def _count(self, contributor: Contributor, policy: Policy, time: int, where: str) -> None:
        """Counts an admission of a contributor, or of the person behind it, as the gate did: who withdraws counts on, and the
        cap is that of the registry at the time, or of the one that was given where that allows more."""
        brought = self._brought
        assert brought.registry is not None and brought.past is not None and brought.owner_key is not None
        if self._past is None:
            self._past = RegistryPast(brought.past, brought.owner_key)
        then, now = self._past.at(time), Share.of(contributor.name, policy, brought.registry)
        share = now if then is None or then.find(contributor.name) is None else Share.of(contributor.name, policy, then)
        held, most = (policy.corpus, share.holder), max(share.cap, now.cap)
        self._shares[held] = count = self._shares.get(held, 0) + 1
        if count > most:
            sentence = f"{share.holder} has {count} contributions admitted by now, registry and policy allow {most}"
            self._fault("CONTRIBUTOR_CAP", where, sentence)

    def begin(self, header: Header) -> None:
        """Takes the header."""
        self._rules = header.rules()

    def told(self, state: BudgetState) -> set[str]:
        """Returns qualifiers for what was not held against anything."""
        rules = state.header.generation
        found = {"FREED_TOLD"} if (state.freed if rules else state.freed_of_texts) else set()
        if not rules:
            pays = any(account.unit == CONTRIBUTION for account in state.accounts.values())
            return found | ({"RECORDS_TOLD"} if pays else set())
        if any(rule.policy not in self._brought.policies for rule in rules):
            found.add("RULES_TOLD")
        if state.admitted and self._brought.known is None:
            found.add("CONSENT_TOLD")
        if self._late:
            found.add("KEY_REVOKED")
        if self._elsewhere:
            found.add("USE_TOLD")
            told = f"{self._elsewhere} reservations were paid for by no contribution"
            self.notes.append(f"{told}; that no text was made of contributions by them is the operator's word")
        return found | self._of_withdrawals(state)

    def _of_withdrawals(self, state: BudgetState) -> set[str]:
        """Returns qualifiers for withdrawals that were given, by who may withdraw, of admitted contributions: that no leaf
        enters one, and that a text was paid for after one was signed."""
        late: set[bytes] = set()
        unproven: set[bytes] = set()
        for given in self._brought.withdrawals:
            account, time = given.withdrawal.descriptor_hash, given.withdrawal.time
            if account not in state.admitted:
                continue
            signer = self._holders.get(account, (None, None))[0]
            proved = may_withdraw(given, signer, self._corpora.get(account), self._brought.owner_key)
            if proved:
                self.signed_at[account] = min(time, self.signed_at.get(account, time))
            if account not in state.withdrawn:
                (late if proved else unproven).add(account)
        after = [account for account, time in self._paid if time > self.signed_at.get(account, time)]
        if after:
            told = f"{len(set(after))} contributions paid {len(after)} times for a text after their withdrawal was signed"
            self.notes.append(f"{told}, {min(after).hex()} among them; the times of leaves are the operator's word")
        if late:
            told = f"{len(late)} contributions have a signed withdrawal that no leaf enters"
            self.notes.append(f"{told}, {min(late).hex()} among them")
        if unproven - late:
            told = f"withdrawals of {len(unproven - late)} contributions were given that no leaf enters"
            self.notes.append(f"{told}, and nothing shows that their signers may withdraw them (--registry)")
        if self._brought.others:
            self.notes.append(f"{len(self._brought.others)} files beside the withdrawals that were given are none")
        return ({"WITHDRAWAL_UNENTERED"} if late else set()) | ({"WITHDRAWAL_LATE"} if after else set())

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


def may_withdraw(
    given: GivenWithdrawal, contributor: Contributor | None, corpus: str | None, owner_key: bytes | None
) -> bool:
    """Tells whether the signer of a withdrawal may withdraw what it names.

    Guarantee: True means that it is for the corpus given, and signed by a key that the registry has of the contributor who
    signed the contribution, or by the owner of the corpus; nobody else's signature is enough.

    Args:
        contributor: who signed the contribution, as `holder_of` says; None where nothing shows it.
        corpus: for which the contribution was signed. owner_key: 32 raw bytes; None where it is not known.
    """
    raws = [] if contributor is None else [record.raw for record in contributor.keys]
    if corpus is None or given.withdrawal.corpus != corpus:
        return False
    for raw in raws if owner_key is None else [*raws, owner_key]:
        try:
            sign1.verify(given.message, given.payload, raw, typ=sign1.TYP_WITHDRAWAL)
        except AttestError:
            continue
        return True
    return False


def holder_of(leaf: Reference, known: Known) -> tuple[Contributor, KeyRecord] | tuple[str, str]:
    """Returns who signed a REFERENCE leaf, with the key, by a registry; or code and sentence of what is wrong with that."""
    message = sign1.read(leaf.sign1)
    name = message.headers.key_id.hex()
    found: list[tuple[Contributor, KeyRecord]] = known.by_key.get(message.headers.key_id, [])
    if not found:
        return "KEY_UNKNOWN", f"its attestation is signed by nobody who is enrolled: key {name} is not in the registry"
    problem = "KEY_UNKNOWN", ""
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
        return contributor, record
    return problem
