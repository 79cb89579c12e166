"""The signer's own memory, outside the database: the largest tree it has ever committed to.

A database can lose its tail (one flipped bit in a write-ahead log drops committed rows without an error) or be rolled
back whole, note and all. The signer compares before it signs again, so neither goes unseen.
"""

import os
from pathlib import Path

from attest.errors import FileRefused
from attest.files import atomic_write, read_limited
from ledger.errors import LedgerCorrupt, NoteError, StorageFailed
from ledger.note import (
    MAX_NOTE_SIZE,
    Checkpoint,
    NoteSigner,
    checkpoint_text,
    open_note,
    parse_checkpoint,
    peek_checkpoint,
    sign_note,
)
from ledger.replay.signer import KeyChain
from ledger.storage.disks import is_there
from ledger.storage.place import Place


def path_of(ledger: Place | str | os.PathLike[str]) -> Path:
    """Returns where the high-water file of a ledger lies: beside it, or in its state directory."""
    return Place.of(ledger).side(".highwater")


def exists(ledger: Place | str | os.PathLike[str]) -> bool:
    """Tells whether a ledger has a high-water file; raises StorageFailed where the disk cannot tell."""
    return is_there(path_of(ledger))


def read_bytes(ledger: Place | str | os.PathLike[str]) -> bytes | None:
    """Reads the high-water file; None if there is none. Raises StorageFailed if it cannot be read."""
    path = path_of(ledger)
    if not exists(ledger):
        return None
    try:
        return read_limited(path, MAX_NOTE_SIZE, "high-water file")
    except FileRefused as error:
        raise StorageFailed("HIGHWATER", error.sentence) from error


def parse(data: bytes, keys: KeyChain) -> Checkpoint:
    """Verifies what `read_bytes` read; raises LedgerCorrupt unless it is a checkpoint signed by the ledger's key of its size.

    Right after a change of the key the new one suffices: the signer that wrote the file then was the new one.
    """
    try:
        checkpoint = peek_checkpoint(data)
        return parse_checkpoint(open_note(data, [keys.at(checkpoint.size)]).text)
    except NoteError as error:
        why = error.sentence
        if error.code == "UNSIGNED":
            # The usual way to it: an old copy of the database is put back beside the record of a key that it does not know yet.
            why = (
                f"it speaks of {checkpoint.size} leaves of {checkpoint.origin!r} under a key that this ledger does not have "
                "there. Either the ledger is an old copy, from before its key was changed: put the newer one back; or the file "
                "is another ledger's"
            )
        raise LedgerCorrupt("HIGHWATER", f"the signer's high-water file is not its own: {why}") from error


def write(ledger: Place | str | os.PathLike[str], signer: NoteSigner, size: int, root: bytes) -> None:
    """Records a new largest tree: written beside, synced, renamed over, directory synced."""
    note = sign_note(checkpoint_text(signer.name, size, root), signer)
    try:
        atomic_write(path_of(ledger), note)
    except OSError as error:
        raise StorageFailed(
            "HIGHWATER",
            f"cannot write {path_of(ledger)}: {error.strerror or error}; free space or mend the disk, then open the ledger "
            "again: what was being written is in it, and no step that it pays for ran",
        ) from error


def set_aside(ledger: Place | str | os.PathLike[str], name: str) -> None:
    """Renames the high-water file of a ledger that is set aside under a name."""
    path = path_of(ledger)
    path.rename(path.with_name(f"{path.name}.{name}"))


def committed(data: bytes | None, signer: NoteSigner) -> int | None:
    """Returns how many leaves of its ledger this signer committed to by the file; None if the file says no such thing."""
    if data is None:
        return None
    try:
        found = parse_checkpoint(open_note(data, [signer.vkey]).text)
    except NoteError:
        return None
    return found.size if found.origin == signer.name else None
