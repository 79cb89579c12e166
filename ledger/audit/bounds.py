"""Follows a run leaf by leaf, and holds what it admits, charges and withdraws against what contributors signed."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Final

from attest.attestation import SIGNATURE_SIZE, CommonTerms
from attest.corpus.digests import DigestTable
from attest.errors import AttestError, RegistryRefused
from attest.gate.checks import Share
from attest.keys import key_id
from attest.schema.plain import MAX_TIME, utc
from attest.withdrawal import EXPIRED, REGISTRY_REASONS
from ledger import layout
from ledger.audit.attested import Agreed, Known, Registered, Shown
from ledger.audit.findings import BoundsEvidence, Report
from ledger.audit.given import Export
from ledger.audit.remarks import Remarks
from ledger.leaves import Admit, Charge, Header, Leaf, Registry, Withdraw
from ledger.note import parse_verifier_key
from ledger.replay.contributions import Contribution
from ledger.retention import RetainedReplay


class AttestedPool:
    """Counts the contributions in the pool by the terms of their attestations.

    What a charge asks takes time in the terms that ended, not in the contributions: their ends lie in a heap.
    """

    def __init__(self, classes: int) -> None:
        self._active, self._not_before, self._not_after, self._revoked_at = (array("q") for _ in range(4))
        self._starts: list[tuple[int, int]] = []  # the latest first
        self._ends: list[tuple[int, int]] = []
        self._revocations: list[tuple[int, int]] = []
        self._late: set[int] = set()
        self._barred: dict[int, int] = {}
        self._terms_of = [array("i") for _ in range(classes)]  # by the slot of a contribution in its class

    @property
    def size(self) -> int:
        """Returns the number of terms."""
        return len(self._active)

    def add_terms(self, not_before: int, not_after: int, revoked_at: int = MAX_TIME) -> None:
        """Takes the next terms: first second of validity, first second after it, and first second of the key's revocation by
        the owner's log."""
        self._active.append(0)
        self._not_before.append(not_before)
        self._not_after.append(not_after)
        self._revoked_at.append(revoked_at)

    def bar(self, number: int, since: int | None) -> None:
        """Takes from when on the state of the registry by which the run goes supports some terms no more; None for never."""
        if since is None:
            self._barred.pop(number, None)
        else:
            self._barred[number] = since

    def barred(self, time: int) -> int:
        """Returns how many contributions are in the pool that the state in force supports no more; takes time in such terms."""
        return sum(self._active[number] for number, since in self._barred.items() if since <= time)

    def is_barred(self, contribution: Contribution, time: int) -> bool | None:
        """Returns whether the state in force supports a contribution no more; None where its terms are not known."""
        number = self._number(contribution)
        return None if number < 0 else self._barred.get(number, time + 1) <= time

    def enter(self, contribution: Contribution, number: int | None) -> None:
        """Takes an admitted contribution; number of its terms, None where these are not known."""
        terms_of = self._terms_of[contribution.class_index]
        terms_of.extend([-1] * (contribution.slot - len(terms_of)))
        terms_of.append(-1 if number is None else number)
        if number is None:
            return
        if not self._active[number]:
            heappush(self._starts, (-self._not_before[number], number))
            heappush(self._ends, (self._not_after[number], number))
            if self._revoked_at[number] < MAX_TIME:
                heappush(self._revocations, (self._revoked_at[number], number))
        self._active[number] += 1

    def leave(self, contribution: Contribution) -> int | None:
        """Takes a contribution out; returns the first second after its attestation, None where that is not known."""
        number = self._number(contribution)
        if number < 0:
            return None
        self._active[number] -= 1
        return self._not_after[number]

    def _number(self, contribution: Contribution) -> int:
        terms_of = self._terms_of[contribution.class_index]
        return terms_of[contribution.slot] if contribution.slot < len(terms_of) else -1

    def ended(self, time: int) -> Iterator[tuple[int, int]]:
        """Yields the first second after validity, and number of contributions, of terms that ended by a time; each once."""
        for number in _due(self._ends, time):
            if self._active[number]:
                yield self._not_after[number], self._active[number]

    def early(self, time: int) -> int:
        """Returns how many contributions are in the pool whose attestations are not valid yet; looks at all terms if some are.
        """
        while self._starts and not self._active[self._starts[0][1]]:
            heappop(self._starts)
        if not self._starts or -self._starts[0][0] <= time:
            return 0
        return sum(count for count, first in zip(self._active, self._not_before, strict=True) if first > time)

    def revoked(self, time: int) -> int:
        """Returns how many contributions are in the pool whose key was revoked by a time, as the owner's log then said."""
        self._late.update(_due(self._revocations, time))
        return sum(self._active[number] for number in self._late)


def _due(heap: list[tuple[int, int]], time: int) -> Iterable[int]:
    """Takes from a heap of (moment, number) what is due by a time; each number once."""
    found: dict[int, None] = {}
    while heap and heap[0][0] <= time:
        found[heappop(heap)[1]] = None
    return found

_KNOWN: Final = 2048
"""Terms that are kept in memory, held against policy and registry."""


class Bounds:
    """Takes every leaf of a run in order, and holds it against the attestations of the export.

    `admits` counts ADMIT leaves whose bodies are there; `held` those that hold against an attestation, under a key if a
    registry is known.

    Guarantee: Without a finding, no content commitment was admitted twice; and where the export holds attestations, each ADMIT
    leaf whose body is there, private or public, holds against one (`ledger.audit.attested.Agreed`), no contributor has more
    admissions than its cap, no contribution was in the pool of a charge before its attestation began or after it ended, and
    none was withdrawn as expired before. By the state of the registry that was in force then (of the header, or of the last
    REGISTRY leaf) every admission holds, no contribution was in the pool of a charge whose key was revoked or whose class was
    not granted, and none was withdrawn for such a reason which that state supports. Which contributors are one person no export
    shows: caps count by contributor.
    """

    def __init__(self, header: Header, export: Export, registry: Registered | None, fault: Report) -> None:
        """Begins behind leaf 0; the registry is that by which the run went, None where it is not known."""
        self._policy, self._export, self._registry, self._fault = header.policy, export, registry, fault
        self._state = None if registry is None else Known.of(registry.admitted)
        # By key and class: numbers of the terms, and from when on the state in force supports them no more.
        self._signers: dict[tuple[bytes, str], tuple[list[int], int | None]] = {}
        self._shown = Shown(export, fault)
        self._pool = AttestedPool(len(header.policy.classes))
        self._known: dict[int, Agreed] = {}
        self._shares: dict[str, list[int]] = {}
        self._keys: set[bytes] = set()
        self._anchors, self._attestations, self._terms = DigestTable(), DigestTable(), DigestTable(1 << 16, 1 << 14)
        self._late: list[int] = []
        self._most_late = self._gone = self.admits = self.held = 0
        self._owner, self._others = key_id(header.owner_key), False
        self._stray(0)

    def see(self, leaf: Leaf, run: RetainedReplay) -> None:
        """Takes a leaf that the run has applied."""
        seq = run.size - 1
        if isinstance(leaf, Admit):
            gone = bool(run.pruned) and run.pruned[-1] == seq
            number = None
            if gone:
                self._gone += 1
                self._stray(seq)
            else:
                number = self._admit(seq, leaf)
            contribution = run.contributions.get(leaf.descriptor_hash)
            if contribution is not None and contribution.seq == seq:
                self._pool.enter(contribution, number)
            return
        self._stray(seq)
        if isinstance(leaf, Charge):
            self._charge(seq, leaf, run)
        elif isinstance(leaf, Withdraw):
            self._withdraw(seq, leaf, run)
        elif isinstance(leaf, Registry):
            self._take_registry(seq, leaf)

    def judge(self, run: RetainedReplay, remarks: Remarks) -> BoundsEvidence:
        """Says what became of the attestations, once every leaf was seen."""
        self._shown.end()
        export, unused = self._export, self._export.terms - self._pool.size
        if unused and run.size == export.size:
            last = layout.terms_path(*list(layout.tile_widths(export.terms))[-1])
            self._fault("TERMS", last, f"the last {unused} of {export.terms} terms are those of no admitted contribution")
        if not export.attested and (self.admits or not self._gone):
            remarks.note(
                "the export holds no attestations: the bounds of contributions are what the operator wrote into ADMIT leaves"
            )
        elif self.admits and self._registry is None:
            remarks.note(
                f"{self.held} of {self.admits} ADMIT leaves hold against attestations whose signatures nothing shows to be "
                "contributors': the export holds no registry; get it from the corpus owner, and give it with --registry"
            )
        elif self._registry is not None and self.admits:
            hidden = ": which contributors are one person no export shows" if self._registry.admitted.names_missing else ""
            remarks.note(
                f"{self.held} of {self.admits} ADMIT leaves hold against attestations that verify under {len(self._keys)} keys "
                f"of the registry; caps count by contributor{hidden}"
            )
        if self._gone:
            remarks.note(
                f"{self._gone} ADMIT leaves were pruned with their attestations: that they said what was signed rests on the "
                "auditors who vouch for their summaries, and who had these attestations"
            )
        holders = {parse_verifier_key(vkey).public_key for vkey in run.keys.vkeys}
        if self.admits and not self._others and not self._gone and holders == {run.header.owner_key}:
            remarks.qualify("ONE_PARTY")
        if self._late:
            remarks.qualify(
                "KEY_REVOKED",
                f"{len(self._late)} windows were charged with contributions in the pool ({self._most_late} at most) whose key "
                f"the registry said to be revoked by then; the first is leaf {self._late[0]}",
            )
        root = None if self._registry is None else self._registry.latest.root().hex()
        return BoundsEvidence(self.admits, self._gone, self.held, export.attested, len(self._keys), root)

    def _admit(self, seq: int, leaf: Admit) -> int | None:
        """Holds an ADMIT leaf against its attestation; returns the number of its terms if they are known."""
        self.admits += 1
        self._others = self._others or leaf.key_id != self._owner
        where = f"seq {seq}"
        self._commits_once(seq, leaf)
        entry = self._shown.entry(seq, admit=True)
        if not entry:
            if entry is not None and self._export.attested:
                told = "the export holds attestations, and none of this contribution; ask the operator for the whole export"
                self._fault("ATTESTATION_MISSING", where, told)
            self._once(seq, leaf)
            return None
        number = self._shown.number(entry, seq)
        if number is None:
            return None
        signature = entry[-SIGNATURE_SIZE:]
        agreed = self._known.get(number) or self._agreed(number, seq, leaf, signature)
        if agreed is None:
            return None
        wrong = agreed.judge(leaf, signature)
        if wrong is None:
            self.held += 1
        else:
            self._fault(wrong[0], where, wrong[1])
        self._count(agreed, where)
        return number

    def _commits_once(self, seq: int, leaf: Admit) -> None:
        """Finds a content that is committed to twice, by leaves whose bodies are there; of others nothing says it."""
        earlier = self._anchors.setdefault(leaf.anchor, seq) if any(leaf.anchor) else None
        if earlier is not None:
            told = f"the content was admitted already, by leaf {earlier}: both commit to {leaf.anchor.hex()}"
            self._fault("DUPLICATE_CONTENT", f"seq {seq}", told)

    def _once(self, seq: int, leaf: Admit) -> None:
        """Finds an attestation that is quoted twice; where it is shown, that of another descriptor has another hash."""
        earlier = self._attestations.setdefault(leaf.attestation_hash, seq)
        if earlier is not None:
            told = f"it quotes the attestation {leaf.attestation_hash.hex()}, as leaf {earlier} does; each is good for one"
            self._fault("REPLAYED", f"seq {seq}", told)

    def _agreed(self, number: int, seq: int, leaf: Admit, signature: bytes) -> Agreed | None:
        """Reads terms and holds them against policy and registry, or returns None after reporting what is wrong with them."""
        where, data = f"seq {seq}", self._shown.terms(number)
        if data is None:
            return None
        if number > self._pool.size:
            told = f"its attestation names terms {number} before any names terms {self._pool.size}"
            self._fault("TERMS", where, f"{told}; they are numbered as contributions first use them")
            return None
        first, known = number == self._pool.size, self._terms.setdefault(hashlib.sha256(data).digest(), number)
        if not first and known != number:
            self._fault("CHANGED", where, f"terms {number} changed while they were audited; audit a copy that nobody writes")
            return None
        if first and known is not None:
            self._fault("TERMS", where, f"terms {number} are terms {known} again; the same terms stand once")
        try:
            agreed = Agreed(CommonTerms.from_cbor(data), self._policy, self._state)
        except AttestError as error:
            self._fault(error.code, where, f"the terms of its attestation cannot be read: {error.sentence}")
            if first:
                self._pool.add_terms(0, MAX_TIME)
            return None
        agreed.find_key(leaf.anchor, signature)
        if first:
            self._pool.add_terms(agreed.signed.not_before, agreed.signed.not_after, self._revoked_at(agreed))
            if agreed.signing is not None:
                signer = agreed.signing.record.raw, agreed.signed.admissibility_class
                numbers, _ = self._signers.setdefault(signer, ([], None))
                numbers.append(number)
                since = self._unsupported(*signer)
                self._signers[signer] = numbers, since
                self._pool.bar(number, since)
        for code, sentence in agreed.problems(leaf.time):
            self._fault(code, where, sentence)
        self._keep(number, agreed)
        return agreed

    def _take_registry(self, seq: int, leaf: Registry) -> None:
        """Goes by a later state from here on: who signed under which key, for which class, and up to which cap."""
        if self._registry is None:
            return
        try:
            state = self._registry.walk.to(leaf.after)
        except RegistryRefused:  # told already, when the registry was opened
            return
        if state is None:
            told = f"the registry has no state {leaf.after.hex()} behind that by which the run went until then"
            self._fault("REGISTRY_ROOT", f"seq {seq}", f"{told}; get the latest registry from the corpus owner")
            return
        self._state = Known.of(state)
        self._known.clear()
        for signer, (numbers, before) in list(self._signers.items()):
            since = self._unsupported(*signer)
            if since != before:
                self._signers[signer] = numbers, since
                for number in numbers:
                    self._pool.bar(number, since)

    def _unsupported(self, raw: bytes, class_name: str) -> int | None:
        """Returns from when on the state in force supports a key and a class no more; None for never.

        Who may not sign for a class in that state may not at any time: a clock that was set back gives nothing back.
        """
        known = () if self._state is None else self._state.by_key.get(key_id(raw), ())
        found = next((item for item in known if item[1].raw == raw), None)
        if found is None:
            return None
        contributor, record = found
        return record.revoked_at if class_name in contributor.classes else 0

    def _revoked_at(self, agreed: Agreed) -> int:
        if self._registry is None or agreed.signing is None:
            return MAX_TIME
        return self._registry.latest.revocations.get(agreed.signing.record.raw, MAX_TIME)

    def _keep(self, number: int, agreed: Agreed) -> None:
        if self._state is not None and agreed.signing is not None:
            share = Share.of(agreed.signing.contributor.name, self._policy, self._state.state)
            agreed.share = self._shares.setdefault(share.holder, [0, share.cap])
            agreed.share[1] = share.cap
            self._keys.add(agreed.signing.record.key_id)
        if len(self._known) >= _KNOWN:
            del self._known[next(iter(self._known))]
        self._known[number] = agreed

    def _count(self, agreed: Agreed, where: str) -> None:
        """Counts an admission of the contributor of a key."""
        if agreed.signing is None:
            return
        agreed.share[0] += 1
        count, cap = agreed.share
        if count > cap:
            told = f"the contributor of key {agreed.signing.record.key_id.hex()} has {count} admissions by now"
            self._fault("CONTRIBUTOR_CAP", where, f"{told}; registry and policy allow {cap}")

    def _stray(self, seq: int) -> None:
        """Finds what stands as an attestation beside a leaf that has none."""
        if self._shown.entry(seq):
            told = "something stands as an attestation beside it; only an ADMIT leaf whose body is there has one"
            self._fault("ATTESTATION", f"seq {seq}", told)

    def _charge(self, seq: int, leaf: Charge, run: RetainedReplay) -> None:
        if run.timeline.sets and (early := self._pool.early(leaf.time)):  # else no charge is before an admission
            told = f"{early} contributions are in the pool at {utc(leaf.time)} whose attestations are not valid yet"
            self._fault("NOT_YET_VALID", f"seq {seq}", f"{told}: a clock that was ahead let them be admitted")
        for not_after, count in self._pool.ended(leaf.time):
            told = f"{count} contributions are in the pool at {utc(leaf.time)} whose attestations ended at {utc(not_after)}"
            self._fault("EXPIRED", f"seq {seq}", f"{told}; they should have been withdrawn before the charge")
        if barred := self._pool.barred(leaf.time):
            told = f"{barred} contributions are in the pool at {utc(leaf.time)} that the registry supports no more"
            why = "by the state that the run had taken in a key is revoked, or a class is not granted"
            self._fault("BARRED", f"seq {seq}", f"{told}: {why}")
        late = self._pool.revoked(leaf.time) - barred
        if late > 0:
            self._late.append(seq)
            self._most_late = max(self._most_late, late)

    def _withdraw(self, seq: int, leaf: Withdraw, run: RetainedReplay) -> None:
        contribution = run.contributions.get(leaf.descriptor_hash)
        if contribution is None or run.withdrawals.get(leaf.descriptor_hash) != seq:
            return
        barred = self._pool.is_barred(contribution, leaf.time)
        not_after = self._pool.leave(contribution)
        if leaf.reason in REGISTRY_REASONS and self._registry is not None and barred is False:
            told = f"it says {leaf.reason}, and the state of the registry by which the run went supports the contribution"
            self._fault("NOT_BARRED", f"seq {seq}", f"{told} at {utc(leaf.time)}; ask the operator why it was withdrawn")
        if leaf.reason == EXPIRED and not_after is not None and leaf.time < not_after:
            told = f"it says at {utc(leaf.time)} that the attestation has expired, which is valid until {utc(not_after)}"
            self._fault("NOT_EXPIRED", f"seq {seq}", f"{told}; ask the operator why the contribution was withdrawn")


def bounds_are_signed(bounds: BoundsEvidence) -> bool:
    """Returns whether class, clip norm, noise multiplier and occurrences of contributions were derived from attestations.

    Guarantee: True only if each ADMIT leaf whose body is there, of a run without findings, says what an attestation says that
    verifies under a key of a registry; and there is one, or all are gone, for which a quorum of auditors then vouches (else the
    run has a finding). The one place that decides whether a verdict is TOLD.
    """
    if not bounds.admits:
        return bounds.pruned > 0
    return bounds.attested and bounds.registry_root is not None and bounds.held == bounds.admits
