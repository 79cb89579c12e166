"""Examines what an open ledger keeps beyond its leaves, which opening does not read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attest.attestation import CommonTerms, Framing
from attest.errors import AttestError
from ledger.audit.findings import Finding
from ledger.audit.signatures import ignored_lines, known_keys, tell_ignored
from ledger.errors import LedgerCorrupt, NoteError
from ledger.leaves import Admit, decode_leaf
from ledger.leaves.attestations import MAX_FRAMINGS, misfit, unpack
from ledger.note import open_note
from ledger.replay import Replay
from ledger.storage.appender import Appender
from ledger.storage.beside import Beside, check_beside
from ledger.storage.store import MAX_WRONG, Row, Snapshot

_NAMED = 5
"""Leaves without an attestation that the remark on them names."""


@dataclass(frozen=True, slots=True)
class Signed:
    """Tells what was found of attestations in a database.

    Attributes:
        findings: what is wrong, at most `MAX_WRONG`, each naming its leaf or its terms.
        fitting: ADMIT leaves whose attestation was made again, and is what they quote.
        missing: ADMIT leaves with a body that have none.
        first_missing: positions of the first few of these.
    """

    findings: tuple[Finding, ...] = ()
    fitting: int = 0
    missing: int = 0
    first_missing: tuple[int, ...] = ()

    @property
    def remark(self) -> str | None:
        """Says which ADMIT leaves have no attestation, and what follows; None where all have one."""
        if not self.missing:
            return None
        more = f" and {self.missing - len(self.first_missing)} more" if self.missing > len(self.first_missing) else ""
        which = f"{', '.join(map(str, self.first_missing))}{more}"
        return f"no attestation is kept of the ADMIT leaves {which}; so an export of this ledger goes without any"


@dataclass(frozen=True, slots=True)
class Examination:
    """Tells what an examination found.

    Attributes:
        findings: all that is wrong, each naming its file.
        notes: what a reader should know though nothing is wrong.
        pages: whether the database checked its own pages; not where it has no such check for its users.
        beside: what lies beside the ledger.
        signed: what is kept of attestations.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    pages: bool
    beside: Beside
    signed: Signed


def examine(file: Appender) -> Examination:
    """Checks what opening does not read, under the guarantee of `Ledger.examine`."""
    store, run = file.store, file.replay
    wrong, where = store.examine(), store.place.shown
    pages = [Finding("INTEGRITY", where, f"{sentence}; put the last good copy back") for sentence in wrong or ()]
    lines, notes = _signature_lines(run, file.checkpoints, where)
    beside = check_beside(store.place, run.keys, run.epochs, file.pruned_before, closed=run.closed)
    with store.snapshot() as snapshot:
        signed = check_attestations(snapshot)
    notes += [] if signed.remark is None else [signed.remark]
    findings = (*pages, *signed.findings, *lines, *beside.findings)
    return Examination(findings, tuple(notes), wrong is not None, beside, signed)


def _signature_lines(run: Replay, checkpoints: Mapping[int, bytes], where: str) -> tuple[list[Finding], list[str]]:
    """Returns the lines under the stored checkpoints: those of known keys that do not verify, and a word on those of others."""
    known, opened, found = known_keys(run, ()), [], []
    for size, data in sorted(checkpoints.items()):
        try:
            opened.append(open_note(data, known))
        except NoteError as error:
            sentence = f"the checkpoint of {size} leaves: {error.sentence}; put the last good copy back"
            found.append(Finding(error.code, where, sentence))
    return found, tell_ignored(ignored_lines(opened, known))


def check_attestations(snapshot: Snapshot) -> Signed:
    """Makes every attestation again and compares it with its leaf.

    Guarantee: Without a finding, every attestation that is kept belongs to an ADMIT leaf with a body, and makes exactly the
    descriptor and the message whose digests that leaf quotes; terms are numbered without a gap, and all that are there are
    used. Signatures are not verified: that takes the registry.

    Args:
        snapshot: of a database whose leaves were found whole.
    """
    return _Check(snapshot).run()


@dataclass(slots=True)
class _Check:
    snapshot: Snapshot
    wrong: list[Finding] = field(default_factory=list)
    fitting: int = 0
    missing: int = 0
    first: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    framings: dict[int, Framing] = field(default_factory=dict)

    def run(self) -> Signed:
        kept = self.snapshot.attestations()
        waiting = next(kept, None)
        for row in self.snapshot.rows():
            if row.kind != Admit.KIND or not row.body:
                continue
            while waiting is not None and waiting[0] < row.seq:
                self._left_over(waiting[0])
                waiting = next(kept, None)
            if waiting is not None and waiting[0] == row.seq:
                self._compare(row, waiting[1])
                waiting = next(kept, None)
            else:
                self.missing += 1
                self.first += [row.seq] if len(self.first) < _NAMED else []
        while waiting is not None:
            self._left_over(waiting[0])
            waiting = next(kept, None)
        self._check_terms()
        return Signed(tuple(self.wrong[:MAX_WRONG]), self.fitting, self.missing, tuple(self.first))

    def _left_over(self, seq: int) -> None:
        self._tell("ATTESTATION_LEFT", f"leaf {seq}", "an attestation is kept, and there is no ADMIT leaf with a body")

    def _compare(self, row: Row, data: bytes) -> None:
        where, leaf = f"leaf {row.seq}", decode_leaf(row.body)
        assert isinstance(leaf, Admit)
        try:
            number, signature = unpack(data)
            self.used.add(number)
            problem = misfit(leaf, self._framing(number), signature)
        except (LedgerCorrupt, AttestError) as error:
            problem = error.sentence
        if problem is None:
            self.fitting += 1
        else:
            self._tell("ATTESTATION", where, f"{problem}; put the last good copy back")

    def _framing(self, number: int) -> Framing:
        found = self.framings.get(number)
        if found is None:
            if len(self.framings) >= MAX_FRAMINGS:
                self.framings.clear()
            (data,) = self.snapshot.terms_at([number])
            found = self.framings[number] = Framing(CommonTerms.from_cbor(data))
        return found

    def _check_terms(self) -> None:
        for place, (number, data) in enumerate(self.snapshot.terms()):
            if number != place:
                self._tell("TERMS", f"terms {place}", f"they are missing, the next ones have the number {number}")
                return
            if data and number not in self.used:
                self._tell("TERMS", f"terms {number}", "no attestation names them, and pruning empties such terms")

    def _tell(self, code: str, where: str, sentence: str) -> None:
        if len(self.wrong) < MAX_WRONG:
            self.wrong.append(Finding(code, where, sentence))
