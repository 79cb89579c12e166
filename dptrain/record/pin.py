"""Pin a model checkpoint to its place in the ledger: `pin.cose`, with the digest of its states, signed with the ledger's key.

Whoever checks one needs no torch: `dptrain ledger fsck` holds every checkpoint beside a ledger against its pin, too.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from attest.errors import FileRefused
from attest.files import read_limited
from attest.schema import declared, wire
from ledger.errors import LeafRefused, LedgerError, PinRefused
from ledger.leaves.kinds import SHA256, UINT, WORDS, Checked
from ledger.log import Ledger
from ledger.log.pinned import MAX_PINNED, Pin

PIN = "pin.cose"
STATE = "state.pt"
"""The two files of a model checkpoint."""

KIND = "dptrain.checkpoint/1"

_NAME = re.compile(r"step-([0-9]{8})")

Table = dict[str, list[Any]]
"""Size and SHA-256 in hex of every file of a checkpoint, by its path in the folder."""

HOW_ON = "remove the checkpoint to resume from an older one, whose later steps are charged again"


@dataclass(frozen=True)
class PinRecord(Checked):
    """A model checkpoint as its pin tells it: `pin` is where the ledger stood when it was taken, fields 2 to 5 of the bytes."""

    CDDL: ClassVar = "checkpoint"
    pin: Pin
    step: int = declared(6, UINT, "Last step in it.")
    attempt: int = declared(7, UINT, "The attempt that took it.")
    isolation: str = declared(8, WORDS, "How statement A stood then (`dptrain.sandbox.isolation.Isolation.told`).")
    state_bytes: int = declared(9, UINT, "Size of `state.pt`.")
    state_sha256: bytes = declared(10, SHA256, "SHA-256 of `state.pt`: model, optimizer and registered states.")
    noise_sha256: bytes | None = declared(
        11,
        SHA256,
        "SHA-256 of the table of the noise's state, which lies beside the ledger; null where steps have noise of their own.",
        default=None,
        nil=True,
    )


def sign_record(
    ledger: Ledger, step: int, isolation: str, state_bytes: int, state_sha256: bytes, noise_sha256: bytes | None = None
) -> bytes:
    """Returns the bytes of ``pin.cose``; arguments as the attributes of `PinRecord`."""
    attempt = ledger.state.attempt
    record = PinRecord(ledger.pin(), step, attempt, isolation, state_bytes, state_sha256, noise_sha256)
    return ledger.sign_pinned(KIND, wire.encode_row(record))


def found(directory: Path) -> list[tuple[int, Path]]:
    """Lists (step, path) of what has the name of a checkpoint in a directory, oldest first."""
    if not directory.is_dir():
        return []
    hits = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted((int(match.group(1)), path) for match, path in hits)


def folder_name(step: int) -> str:
    """Returns the name of the directory of a checkpoint."""
    return f"step-{step:08d}"


def read_record(ledger: Ledger, folder: Path) -> PinRecord:
    """Reads and verifies the pin of a checkpoint.

    Guarantee: as `open_record`; and the checkpoint has the name of its own step, so that none is passed off as a later one.

    Raises:
        PinRefused: code PIN_MISSING or CHECKPOINT_MOVED, or as `open_record`.
        LedgerWrongRun, LedgerBehind, LedgerForked, ProofError: as `open_record`.
    """
    path = folder / PIN
    if not path.is_file():
        sentence = f"{folder} has no {PIN}: nothing says which states it must hold"
        raise PinRefused("PIN_MISSING", f"{sentence}; restore it, or {HOW_ON}")
    record = open_record(ledger, path)
    if folder.name != folder_name(record.step):
        sentence = f"{folder} holds the checkpoint of step {record.step}, expected under {folder_name(record.step)}"
        raise PinRefused("CHECKPOINT_MOVED", f"{sentence}; give it its own name")
    return record


def open_record(ledger: Ledger, path: Path) -> PinRecord:
    """Reads and verifies a ``pin.cose``.

    Guarantee: on return the key that signed this ledger at the size pinned signed exactly this record, and the ledger still
    holds, unchanged, all that it held then.

    Raises:
        PinRefused: code PIN, the file cannot be read or is malformed; UNSIGNED, it is not signed by that key.
        LedgerWrongRun, LedgerBehind, LedgerForked, ProofError: it is of another ledger, or of a past that this one lacks.
    """
    try:
        pin, values = ledger.open_pinned(read_limited(path, MAX_PINNED, "pin of a model checkpoint"), KIND)
        if len(values) != 6:
            raise PinRefused("PIN", f"it holds {len(values)} values, expected 6")
        return PinRecord(pin, *values)
    except (FileRefused, LeafRefused) as error:
        raise PinRefused("PIN", f"{path}: {error.sentence}; {HOW_ON}") from error
    except PinRefused as error:
        code = error.code if error.code == "UNSIGNED" else "PIN"
        raise PinRefused(code, f"{path}: {error.sentence}; {HOW_ON}") from error
    except LedgerError as error:
        raise type(error)(error.code, f"{path}: {error.sentence}") from error


@contextmanager
def opened_state(folder: Path, record: PinRecord) -> Iterator[BinaryIO]:
    """Opens the states of a checkpoint, read through once and found to be those that its pin names.

    Guarantee: what the caller reads is the file that was digested, also if another one gets its name meanwhile. No byte of it
    was parsed before its digest was compared. Memory does not grow with the file.

    Raises:
        PinRefused: code STATE_MISSING, or STATE_CHANGED.
    """
    path = folder / STATE
    try:
        # Not blocking, so that a pipe under this name is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise PinRefused("STATE_MISSING", f"cannot read {path}: {error.strerror or error}; restore it, or {HOW_ON}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != record.state_bytes:
            sentence = f"{path} is no file of {record.state_bytes} bytes, as its pin says; it has {status.st_size}"
            raise PinRefused("STATE_CHANGED", f"{sentence}. Restore it, or {HOW_ON}")
        found = hashlib.file_digest(file, "sha256").digest()
        if found != record.state_sha256:
            sentence = f"{path} has the digest {found.hex()}, its pin names {record.state_sha256.hex()}: other states"
            raise PinRefused("STATE_CHANGED", f"{sentence}. Restore it, or {HOW_ON}")
        file.seek(0)
        yield file


def table_in(data: bytes, folder: Path) -> Table | None:
    """Returns the table that a ``state.pt`` is; None where that holds the states themselves.

    Raises:
        PinRefused: code CHECKPOINT_MOVED, it is that of a folder of another name.
    """
    if not data.startswith(b"{"):
        return None
    told = json.loads(data)
    if told["folder"] != folder.name:
        sentence = f"{folder} holds what was saved as {told['folder']}"
        raise PinRefused("CHECKPOINT_MOVED", f"{sentence}; give it its own name, so that none passes for a later one")
    files: Table = told["files"]
    return files


@contextmanager
def opened_file(path: Path, size: int, digest: str) -> Iterator[BinaryIO]:
    """Opens a file that has this size and digest; raises PinRefused for any other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise PinRefused("STATE_MISSING", f"cannot read {path}: {error.strerror or error}; restore it, or {HOW_ON}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            sentence = f"{path} is no file of {size} bytes, as its table says; it has {status.st_size}"
            raise PinRefused("STATE_CHANGED", f"{sentence}. Restore it, or {HOW_ON}")
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise PinRefused("STATE_CHANGED", f"{path} has another digest than its table says. Restore it, or {HOW_ON}")
        file.seek(0)
        yield file


def noise_table(folder: Path, digest: bytes) -> Table:
    """Returns the table of files of a state of the noise, which has this digest. Raises PinRefused: code NOISE_STATE."""
    path = folder / STATE
    how = "restore it, or go on from another checkpoint, whose later steps are charged again"
    try:
        data = path.read_bytes()
    except OSError as error:
        sentence = f"cannot read {path}: {error.strerror or error}; the noise of the next step is made of it"
        raise PinRefused("NOISE_STATE", f"{sentence}. {how.capitalize()}") from error
    if hashlib.sha256(data).digest() != digest:
        sentence = f"{path} is not the state of the noise that the pin of the checkpoint names"
        raise PinRefused("NOISE_STATE", f"{sentence}: under another one the noise of two steps could cancel; {how}")
    return table_in(data, folder) or {}


def require_files(folder: Path, record: PinRecord, noise: Path | None) -> None:
    """Holds the files of a checkpoint against its pin: ``state.pt``, and where that is a table, all files in it; and the state
    of the noise after its step, in the directory ``noise``, where the pin names one; None does not ask for it.

    Raises:
        PinRefused: as `opened_state`, `opened_file` and `noise_table`; code CHECKPOINT_MOVED.
    """
    with opened_state(folder, record) as file:
        head = file.read(1)
        table = table_in(head + file.read(), folder) if head == b"{" else None
    files = [(folder / name, *told) for name, told in (table or {}).items()]
    if record.noise_sha256 is not None and noise is not None:
        beside = noise / folder.name
        files += [(beside / name, *told) for name, told in noise_table(beside, record.noise_sha256).items()]
    for path, size, digest in files:
        with opened_file(path, size, digest):
            pass
