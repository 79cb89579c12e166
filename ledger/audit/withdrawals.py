"""Counts the withdrawals of a run, and holds signed ones that are given beside an export against its leaves.

A leaf names its evidence by a hash alone: of a signed withdrawal, or with the reasons of `attest.withdrawal.PASSING` of what
the operator recorded. So who withdrew, and why, is the operator's word until somebody gives the withdrawal itself.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attest import sign1, signed_file
from attest.errors import AttestError
from attest.registry import Contributor, Registry
from attest.withdrawal import EXPIRED, PASSING, REGISTRY_REASONS, Withdrawal, verify_withdrawal
from ledger.audit.findings import Report, WithdrawalCount, WithdrawalEvidence, WithdrawalRow
from ledger.audit.remarks import Remarks
from ledger.leaves import Admit, Header, Leaf, Withdraw
from ledger.leaves.header import TEXTS
from ledger.replay import Replay
from ledger.replay.earlier_texts import WITHDRAWN

MAX_LISTED: Final = 50
"""Withdrawals told one by one; the export has the others, and the counts have them all."""


class Withdrawals:
    """Takes every leaf of a run in order, and keeps no more than `MAX_LISTED` of them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str | None, str]] = Counter()
        self._last: deque[Withdraw] = deque(maxlen=MAX_LISTED)
        self._passing: dict[bytes, tuple[str | None, str]] = {}

    def see(self, leaf: Leaf, run: Replay) -> None:
        """Takes a leaf that the run has applied."""
        if isinstance(leaf, Withdraw):
            key = _class_name(leaf, run), leaf.reason
            if before := self._passing.pop(leaf.descriptor_hash, None):  # it is out once, and now for good
                self._counts[before] -= 1
            if leaf.descriptor_hash in run.passing:
                self._passing[leaf.descriptor_hash] = key
            self._counts[key] += 1
            self._last.append(leaf)

    def counts(self) -> tuple[WithdrawalCount, ...]:
        """Returns how many contributions left by class and last reason, those of no admitted contribution last."""
        counts = (item for item in self._counts.items() if item[1])
        found = sorted(counts, key=lambda item: (item[0][0] is None, item[0][0] or "", item[0][1]))
        return tuple(WithdrawalCount(name, reason, count) for (name, reason), count in found)

    def rows(self, run: Replay) -> tuple[WithdrawalRow, ...]:
        """Returns the last ones in the order of their leaves, with what they have spent by the end of the run."""
        return tuple(_row(leaf, run) for leaf in self._last)


def _class_name(leaf: Withdraw, run: Replay) -> str | None:
    found = run.contributions.get(leaf.descriptor_hash)
    return None if found is None else run.header.policy.classes[found.class_index].name


def _row(leaf: Withdraw, run: Replay) -> WithdrawalRow:
    told = (leaf.seq, leaf.time, leaf.descriptor_hash.hex(), leaf.reason, _class_name(leaf, run))
    found = run.contributions.get(leaf.descriptor_hash)
    if found is None:
        return WithdrawalRow(*told, None, None)
    return WithdrawalRow(*told, run.steps(found), None if run.is_public(found) else run.epsilon(found))


MAX_MISSING: Final = 50
"""Leaves without evidence that are named one by one; the counts have them all."""

_NAMED: Final = 5

_SHOWN: Final = "shown"
_UNPROVEN: Final = "unproven"


@dataclass(frozen=True, slots=True)
class GivenWithdrawal:
    """Holds a withdrawal that was given: read, and not verified yet."""

    name: str
    payload: bytes
    message: bytes
    withdrawal: Withdrawal

    @property
    def issuer(self) -> str:
        """Says who says that it signed."""
        return sign1.peek_issuer(self.message)


def counts_texts(header: Header) -> bool:
    """Tells whether a run counts a budget of texts, so that it may enter what was withdrawn there."""
    return any(item.reason == TEXTS for item in header.previous)


class SignedWithdrawals:
    """Takes every leaf of a run in order, and holds WITHDRAW leaves against the signed withdrawals that were given.

    Guarantee: A leaf counts as shown only if a file was given whose COSE_Sign1 message has the leaf's evidence hash, names that
    contribution, this corpus and the leaf's reason, and verifies: under the owner's key as the owner, or under a key of a
    contributor in the registry, valid when it says that it was signed or when it was entered, of whom the ADMIT leaf names a
    key too. A withdrawal of a contribution whose leaf names another reason is a finding, if it was signed by then, the leaf's
    own evidence is not shown, and no later leaf enters it. What a budget of texts had withdrawn, which the header cites, has no
    reason there: it counts as shown by any such withdrawal that was signed by then. What the registry is said to have taken out
    counts as shown only if the evidence is a root of the registry that was given; what expired, only with the attestation hash
    of its ADMIT leaf as evidence, or the leaf is a finding.
    """

    def __init__(
        self,
        header: Header,
        directory: Path | None,
        registry: Registry | None,
        fault: Report,
        leaf_at: Callable[[int], Leaf | None] = lambda _: None,
    ) -> None:
        """Reads what was given.

        Args:
            directory: where the files lie, each as `attest withdraw` wrote it, whatever its name; None for none.
            leaf_at: gives the leaf at a position before the one that is seen; None where its body was pruned.
        """
        self._header, self._fault, self._registry, self._leaf_at = header, fault, registry, leaf_at
        self._given = directory is not None
        # Not by name: a registry that travels has commitments in place of names.
        self._holders: dict[bytes, list[Contributor]] = {}
        for contributor in () if self._registry is None else self._registry.by_name.values():
            for kid in {record.key_id for record in contributor.keys}:
                self._holders.setdefault(kid, []).append(contributor)
        self._by_digest: dict[bytes, GivenWithdrawal] = {}
        self._by_contribution: dict[bytes, list[GivenWithdrawal]] = {}
        self._others: list[str] = []
        for item in () if directory is None else read_withdrawals(directory, self._others, fault):
            self._by_digest[hashlib.sha256(item.message).digest()] = item
            self._by_contribution.setdefault(item.withdrawal.descriptor_hash, []).append(item)
        self._key_ids: dict[bytes, bytes] = {}
        self._entered: set[bytes] = set()
        self._overruled: dict[bytes, list[tuple[int, str]]] = {}
        self._signed = self._shown = self._unproven = 0
        self._missing: list[int] = []

    def see(self, leaf: Leaf) -> None:
        """Takes a leaf."""
        if isinstance(leaf, Admit) and leaf.descriptor_hash in self._by_contribution:
            self._key_ids[leaf.descriptor_hash] = leaf.key_id
        elif isinstance(leaf, Withdraw):
            self._withdraw(leaf)

    def judge(self, admitted: Callable[[bytes], bool], unnamed: int, remarks: Remarks) -> WithdrawalEvidence | None:
        """Says what became of the evidence, once every leaf was seen; `unnamed` counts those of whom no leaf says who they are.
        """
        missing = self._signed - self._shown
        if not self._given:
            if missing:
                remarks.qualify("WITHDRAWALS_TOLD")
            return None
        told = f"evidence of withdrawals: {self._shown} of {self._signed} leaves hold against the signed withdrawal they name"
        if missing:
            named = ", ".join(map(str, self._missing[:_NAMED])) + (" and more" if missing > _NAMED else "")
            why = f"; of {self._unproven} nothing shows that the signer may withdraw (--registry)" if self._unproven else ""
            remarks.qualify("WITHDRAWALS_TOLD", f"{told}; not shown: leaves {named}{why}")
        else:
            remarks.note(told)
        late = [
            name
            for name in self._by_contribution
            if name not in self._entered and (admitted(name) or (unnamed and self._given_for(name)))
        ]
        for seq, sentence in (found for name in late for found in self._overruled.get(name, ())):
            self._fault("WITHDRAWAL_REASON", f"seq {seq}", sentence)
        shown = list(filter(self._signed_for, late))
        if shown:
            told = f"{len(shown)} contributions have a signed withdrawal that no leaf enters, {min(shown).hex()} among them"
            if hidden := sum(not admitted(name) for name in shown):
                told += f"; whether {hidden} of these are among the {unnamed} that stayed nothing says any more"
            remarks.qualify("WITHDRAWAL_UNENTERED", told)
        if unproven := set(late).difference(shown):
            told = f"withdrawals of {len(unproven)} contributions were given that no leaf enters"
            why = "nothing shows that their signers may withdraw them (--registry)"
            remarks.note(f"{told}, {min(unproven).hex()} among them, and {why}")
        if self._others:
            names = ", ".join(self._others[:_NAMED])
            remarks.note(f"{len(self._others)} files among the withdrawals are none that can be read: {names}")
        return WithdrawalEvidence(self._signed, self._shown, tuple(self._missing))

    def _given_for(self, name: bytes) -> list[GivenWithdrawal]:
        """Returns the withdrawals of a contribution from this corpus that were given."""
        return [item for item in self._by_contribution[name] if item.withdrawal.corpus == self._corpus]

    def _signed_for(self, name: bytes) -> bool:
        """Tells whether a withdrawal of a contribution was given that holds by itself."""
        return any(self._proof(item, None) == _SHOWN for item in self._given_for(name))

    def _withdraw(self, leaf: Withdraw) -> None:
        own = self._by_digest.get(leaf.evidence_hash)
        holds = self._is_shown(leaf) if own is None else self._holds(leaf, own)
        if leaf.reason == EXPIRED and own is None:
            self._expired(leaf)
        else:
            self._signed += 1
            self._shown += holds
            if not holds and len(self._missing) < MAX_MISSING:
                self._missing.append(leaf.seq)
        if self._given and leaf.reason not in PASSING:
            self._entered.add(leaf.descriptor_hash)
        if (own is None or not holds) and not self._from_texts(leaf):
            self._hold_others(leaf, own)

    def _expired(self, leaf: Withdraw) -> None:
        """Holds the evidence of what expired against the ADMIT leaf, if its body is there."""
        admit = None if leaf.admit_seq is None or leaf.admit_seq >= leaf.seq else self._leaf_at(leaf.admit_seq)
        if isinstance(admit, Admit) and admit.attestation_hash != leaf.evidence_hash:
            expected, found = admit.attestation_hash.hex(), leaf.evidence_hash.hex()
            sentence = f"the evidence of what expired is the attestation hash of leaf {admit.seq}, {expected}, not {found}"
            self._fault("WITHDRAWAL_EVIDENCE", f"seq {leaf.seq}", sentence)

    def _is_shown(self, leaf: Withdraw) -> bool:
        """Tells whether a leaf whose evidence was not given stands on something else that was."""
        if not self._from_texts(leaf):
            return self._cites_registry(leaf)
        given = self._given_for(leaf.descriptor_hash) if leaf.descriptor_hash in self._by_contribution else ()
        return any(item.withdrawal.time <= leaf.time and self._proof(item, leaf) == _SHOWN for item in given)

    def _from_texts(self, leaf: Withdraw) -> bool:
        """Tells whether a leaf enters what a budget of texts that the run counts has withdrawn; that says no reason."""
        return leaf.reason == WITHDRAWN and counts_texts(self._header)

    def _cites_registry(self, leaf: Withdraw) -> bool:
        """Tells whether a leaf cites a state of the registry that was given, for one of the reasons that rest on it."""
        return leaf.reason in REGISTRY_REASONS and self._registry is not None and self._registry.extends(leaf.evidence_hash)

    def _hold_others(self, leaf: Withdraw, own: GivenWithdrawal | None) -> None:
        """Finds signed withdrawals of the same contribution that give another reason than the leaf."""
        for other in self._by_contribution.get(leaf.descriptor_hash, ()):
            said = other.withdrawal
            if other is own or said.reason_code == leaf.reason or said.time > leaf.time or said.corpus != self._corpus:
                continue
            if self._proof(other, leaf) == _SHOWN:
                sentence = f"{other.issuer} withdrew it at {said.time} for the reason {said.reason_code!r} ({other.name})"
                sentence += f"; the leaf, of {leaf.time}, says {leaf.reason!r}: ask when the operator had it"
                if leaf.reason in PASSING:  # a later leaf may enter it still
                    self._overruled.setdefault(leaf.descriptor_hash, []).append((leaf.seq, sentence))
                else:
                    self._fault("WITHDRAWAL_REASON", f"seq {leaf.seq}", sentence)

    @property
    def _corpus(self) -> str:
        return self._header.policy.corpus

    def _holds(self, leaf: Withdraw, own: GivenWithdrawal) -> bool:
        """Tells whether the leaf says what its own evidence says, and that was signed by who may; tells what is wrong."""
        said, where = own.withdrawal, f"seq {leaf.seq}"
        facts = (
            ("WITHDRAWAL_EVIDENCE", "contribution", said.descriptor_hash.hex(), leaf.descriptor_hash.hex()),
            ("WITHDRAWAL_EVIDENCE", "corpus", said.corpus, self._corpus),
            ("WITHDRAWAL_REASON", "reason", said.reason_code, leaf.reason),
        )
        wrong = [(code, what, there, here) for code, what, there, here in facts if there != here]
        for code, what, there, here in wrong:
            self._fault(code, where, f"its evidence is {own.name}, of the {what} {there!r}; the leaf stands for {here!r}")
        proof = self._proof(own, leaf)
        if proof == _UNPROVEN:
            self._unproven += 1
        elif proof != _SHOWN:
            self._fault("WITHDRAWAL_EVIDENCE", where, f"its evidence is {own.name}, which does not verify: {proof}")
        return proof == _SHOWN and not wrong

    def _proof(self, item: GivenWithdrawal, leaf: Withdraw | None) -> str:
        """Says whether the signer may withdraw: `_SHOWN`, `_UNPROVEN`, or a sentence where the signature is bad."""
        header, issuer = self._header, item.issuer
        if issuer == header.owner:
            return _verified(item, issuer, header.owner_key)
        # Which contributor a contribution is of, the ADMIT leaf tells by a key; of a pruned one nothing does any more.
        holders = self._holders.get(self._key_ids.get(item.withdrawal.descriptor_hash, b""), [])
        if self._registry is not None and not self._registry.names_missing:
            holders = [contributor for contributor in holders if contributor.name == issuer]
        times = (item.withdrawal.time, *(() if leaf is None else (leaf.time,)))
        named = sign1.parse(item.message).key_id
        found = _UNPROVEN
        # Of a key that is not in the registry nothing is known: it may have been enrolled since this copy was made.
        for record in (record for contributor in holders for record in contributor.keys if record.key_id == named):
            if any(record.valid(time) for time in times):
                found = _verified(item, issuer, record.raw)
                if found == _SHOWN:
                    break
        return found


def _verified(item: GivenWithdrawal, issuer: str, key: bytes) -> str:
    try:
        verify_withdrawal(item.payload, item.message, key, signer=issuer, corpus=item.withdrawal.corpus)
    except AttestError as error:
        return error.sentence
    return _SHOWN


def read_withdrawals(directory: Path, others: list[str], fault: Report) -> Iterator[GivenWithdrawal]:
    """Yields the withdrawals in a directory, by name; the names of other files go to ``others``. No signature is verified."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.is_file())
    except OSError as error:
        fault("WITHDRAWALS", str(directory), f"cannot read the signed withdrawals: {error.strerror or error}")
        return
    for path in paths:
        try:
            payload, message = signed_file.read(path, what="withdrawal")
            headers = sign1.parse(message)
            found = Withdrawal.from_cbor(payload)
        except AttestError:
            others.append(ascii(path.name)[1:-1])
            continue
        if headers.typ != sign1.TYP_WITHDRAWAL or headers.subject != sign1.subject_of(payload):
            others.append(ascii(path.name)[1:-1])
            continue
        yield GivenWithdrawal(ascii(path.name)[1:-1], payload, message, found)
