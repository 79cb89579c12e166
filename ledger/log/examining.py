"""Examines what an open ledger keeps beyond its leaves, which opening does not read."""

from collections.abc import Mapping
from dataclasses import dataclass

from ledger.audit.findings import Finding
from ledger.audit.signatures import ignored_lines, known_keys, tell_ignored
from ledger.errors import NoteError
from ledger.note import open_note
from ledger.replay import Replay
from ledger.storage.appender import Appender
from ledger.storage.beside import Beside, check_beside
from ledger.storage.fsck import Signed, check_attestations


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
    beside = check_beside(store.place, run.keys, run.epochs, file.pruned_before)
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
