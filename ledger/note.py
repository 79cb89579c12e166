"""Signs and reads notes and checkpoints: the only bytes by which a ledger commits to its history.

Formats: C2SP signed-note v1.0.0, tlog-checkpoint v1.0.0 and tlog-cosignature v1. Signs and verifies Ed25519 log signatures
(type 0x01) and timestamped cosignatures (type 0x04). Parsing is by anchored ASCII patterns and re-encoding, because Python's
own ``int`` and ``b64decode`` accept several spellings of one value.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.errors import AttestError, KeyRefused
from attest.keys import public_bytes, verify_signature, vkeys
from attest.keys.signers import Signer, as_signer
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, SIGNATURE_ED25519, SIGNATURE_SUMMARY_V1, VerifierKey
from attest.schema.plain import MAX_TIME, read_base64, read_decimal, to_base64
from ledger.errors import NoteError
from ledger.merkle import EMPTY_ROOT, HASH_SIZE, MAX_SIZE

MAX_NOTE_SIZE: Final = 1_000_000
"""Longest note that is looked at, in bytes."""

MAX_SIGNATURES: Final = 100
"""Most signature lines in one note."""

_SIGNATURE_LINE = re.compile(r"— ([^ ]+) ([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True, slots=True)
class Signature:
    """Holds one signature of a note that was verified. `since`: position of the first SUMMARY leaf that a statement on
    summaries vouches for, None for other signatures."""

    key: VerifierKey
    timestamp: int | None
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Holds a note whose text is signed by at least one of the given keys. `ignored`: name and key id of each line by a key
    that was not given: it counts for nothing, but readers should hear of it."""

    text: str
    signatures: tuple[Signature, ...]
    ignored: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Names what a checkpoint commits to: the log's origin, its size, and its root."""

    origin: str
    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class NoteSigner:
    """Signs with the private key of a log, under the log's name (its origin line)."""

    name: str
    private_key: Ed25519PrivateKey

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def verifier(self) -> VerifierKey:
        """Returns the public half."""
        return VerifierKey(self.name, SIGNATURE_ED25519, public_bytes(self.private_key))

    @property
    def vkey(self) -> str:
        """Returns the public half as text, to be pinned by auditors."""
        return str(self.verifier)


@dataclass(frozen=True, slots=True)
class Cosigner:
    """Cosigns with an auditor's key, under the auditor's own name.

    The signed message does not hold the name (C2SP tlog-cosignature, "Ed25519 signed message"), so a key belongs to one
    cosigner only.

    Attributes:
        name: as it stands in signature lines; best a URL without its scheme.
    """

    name: str
    key: Signer | Ed25519PrivateKey

    def __post_init__(self) -> None:
        _check_name(self.name)

    @property
    def verifier(self) -> VerifierKey:
        """Returns the public half."""
        return VerifierKey(self.name, SIGNATURE_COSIGNATURE_V1, as_signer(self.key).public_key)

    @property
    def vkey(self) -> str:
        """Returns the public half as text, to be named in policies."""
        return str(self.verifier)


def parse_verifier_key(vkey: str) -> VerifierKey:
    """Reads ``<name>+<key id>+<base64(type || key)>``. Raises NoteError: if it is malformed, its key id does not fit its key,
    or the key is weak."""
    try:
        return vkeys.parse_verifier_key(vkey)
    except KeyRefused as error:
        raise NoteError(error.code, error.sentence) from error


def sign_note(text: str, *signers: NoteSigner) -> bytes:
    """Signs a note text and returns the whole note, with one line per signer."""
    _check_text(text)
    if not text.endswith("\n"):
        raise NoteError("TEXT", "the text of a note ends in a newline")
    lines = [_signature_line(signer.verifier, signer.private_key.sign(text.encode())) for signer in signers]
    return _with_lines(f"{text}\n".encode(), lines)


def cosign(data: bytes, cosigner: Cosigner, log_keys: Sequence[str], *, time: int) -> bytes:
    """Adds a cosigner's line to a log's checkpoint.

    Only a cosigner who has checked, against its own memory, that the checkpoint extends every one that it cosigned before may
    call this; `ledger.proofs.cosigning` is the way that does.

    Guarantee: The note returned is ``data``, byte for byte, and one further line, which verifies under ``cosigner.vkey``; or
    ``data`` itself, if that line is already in it.

    Args:
        data: a note by the log over a checkpoint without extension lines.
        log_keys: verifier keys of the log, obtained from a trusted place.

    Raises:
        NoteError: the note is not one by the log, is no plain checkpoint, was cosigned under this name with a signature that
            does not verify, or the cosigner's key is the log's.
    """
    if any(parse_verifier_key(key).public_key == cosigner.verifier.public_key for key in log_keys):
        raise NoteError("COSIGNER", f"the key of {cosigner.name} is the log's own: a log that cosigns itself proves nothing")
    note = open_note(data, [*log_keys, cosigner.vkey])
    checkpoint = parse_checkpoint(note.text)
    if note.text != checkpoint_text(checkpoint.origin, checkpoint.size, checkpoint.root):
        raise NoteError("CHECKPOINT", "the checkpoint has extension lines, which no cosigner can vouch for")
    signed = {signature.key for signature in note.signatures}
    if not any((key.name, key.kind) == (checkpoint.origin, SIGNATURE_ED25519) for key in signed):
        raise NoteError("ORIGIN", f"no key named {checkpoint.origin!r} signed this checkpoint of {checkpoint.origin!r}")
    if cosigner.verifier in signed:
        return data
    if type(time) is not int or not 0 <= time < MAX_TIME:
        raise NoteError("TIME", f"the time of a cosignature lies before the year 10000, in seconds since 1970; got {time!r}")
    signature = time.to_bytes(8, "big") + as_signer(cosigner.key).sign(_cosigned_message(time, note.text))
    return _with_lines(data, [_signature_line(cosigner.verifier, signature)])


def merge_notes(base: bytes, others: Sequence[bytes], verifier_keys: Sequence[str]) -> bytes:
    """Adds to a note the signatures that other copies of it carry.

    Guarantee: The note returned is ``base``, byte for byte, and lines of ``others`` after it, each by one of the keys and
    verified, none by a key that signed before. Lines by other keys are not taken over. Merging again adds nothing.

    Args:
        verifier_keys: the keys whose lines count, that of ``base`` among them.

    Raises:
        NoteError: a note is malformed, not signed by one of the keys, or has another text; or there are too many lines.
    """
    opened = open_note(base, verifier_keys)
    seen = {(signature.key.name, signature.key.key_id) for signature in opened.signatures}
    added: list[str] = []
    for other in others:
        note = open_note(other, verifier_keys)
        if note.text != opened.text:
            raise NoteError("OTHER_TEXT", f"the notes sign different texts: {opened.text!r:.200} and {note.text!r:.200}")
        fresh = {(signature.key.name, signature.key.key_id) for signature in note.signatures} - seen
        added.extend(line for line in _split(other)[1] if _signed_by(line) in fresh)
        seen |= fresh
    return _with_lines(base, added)


def open_note(data: bytes, verifier_keys: Sequence[str]) -> Note:
    """Verifies a signed note against pinned keys.

    Guarantee: Returns only if at least one of ``verifier_keys`` signed exactly the returned text, and no line that claims one
    of them fails to verify. Lines by other keys count for nothing, as the format demands, and are told (`Note.ignored`).

    Raises:
        NoteError: if the note or a key is malformed, or no signature counts.
    """
    keys = {(key.name, key.key_id): key for key in map(parse_verifier_key, verifier_keys)}
    text, lines = _split(data)
    found: dict[tuple[str, bytes], Signature] = {}
    ignored: list[tuple[str, bytes]] = []
    for line in lines:
        name, blob = _parse_signature_line(line)
        key = keys.get((name, blob[:4]))
        if key is None:
            ignored.append((name, blob[:4]))
            continue
        if (name, blob[:4]) in found:
            raise NoteError("SIGNATURE_LINE", f"two signatures by the same key of {name}")
        found[name, blob[:4]] = _verify(key, blob[4:], text)
    if not found:
        raise NoteError("UNSIGNED", "no signature by a pinned key; get the log's verifier key from a trusted place")
    return Note(text, tuple(found.values()), tuple(ignored))


def checkpoint_text(origin: str, size: int, root: bytes) -> str:
    """Returns the text of a checkpoint: origin, size and root, one line each, and no extension lines.

    Extension lines would be signed but not under the root, so an auditor could not check them (C2SP advises against).
    """
    text = f"{origin}\n{size}\n{to_base64(root)}\n"
    if parse_checkpoint(text) != Checkpoint(origin, size, root):
        raise NoteError("CHECKPOINT", f"origin {origin!r} and size {size!r} do not make a checkpoint")
    return text


def parse_checkpoint(text: str) -> Checkpoint:
    """Reads a checkpoint text; extension lines are tolerated and not returned. Raises NoteError: if a line is malformed, a
    number or base64 is not canonical, or an empty tree has another root."""
    _check_text(text)
    lines = text.split("\n")
    if len(lines) < 4 or lines.pop() != "":
        raise NoteError("CHECKPOINT", "a checkpoint has at least three lines, each ended by a newline")
    if not all(lines):
        raise NoteError("CHECKPOINT", "a checkpoint has no empty lines")
    origin, decimal, encoded = lines[:3]
    size, root = read_decimal(decimal), _decode_base64(encoded, "root")
    if size is None or size >= MAX_SIZE:
        raise NoteError("CHECKPOINT", f"the size is a decimal below 2^63 without leading zeros, got {decimal[:40]!r}")
    if len(root) != HASH_SIZE:
        raise NoteError("CHECKPOINT", f"the root has {HASH_SIZE} bytes, got {len(root)}")
    if size == 0 and root != EMPTY_ROOT:
        raise NoteError("CHECKPOINT", f"the root of an empty tree is {EMPTY_ROOT.hex()}, got {root.hex()}")
    return Checkpoint(origin, size, root)


def lines_of(data: bytes) -> list[tuple[str, str]]:
    """Returns the signature lines of a note, each behind the name that it claims; nothing is verified."""
    return [(_signed_by(line)[0], line) for line in _split(data)[1]]


def with_lines(data: bytes, lines: Sequence[str]) -> bytes:
    """Returns a note with these signature lines and no others, unverified; raises NoteError where that makes none."""
    text, _ = _split(data)
    return _with_lines(f"{text}\n".encode(), lines)


def with_signature(data: bytes, key: VerifierKey, blob: bytes) -> bytes:
    """Returns a note with one further line, unverified: what signs gives it; raises NoteError for a malformed note."""
    return _with_lines(data, [_signature_line(key, blob)])


def summary_message(timestamp: int, since: int, text: str) -> bytes:
    """Returns what a statement on summaries signs: no checkpoint and no cosignature begins like this, so neither passes for it.
    """
    return f"dptrain/summary/v1\ntime {timestamp}\nsummaries from {since}\n{text}".encode()


def peek_checkpoint(data: bytes) -> Checkpoint:
    """Reads what a note claims to commit to, verifying nothing: good for finding the key to verify it with."""
    return parse_checkpoint(_split(data)[0])


def _split(data: bytes) -> tuple[str, list[str]]:
    """Splits a note into its text and its signature lines."""
    if type(data) is not bytes or len(data) > MAX_NOTE_SIZE:
        raise NoteError("NOTE", f"a note is at most {MAX_NOTE_SIZE} bytes")
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NoteError("NOTE", f"a note is UTF-8; byte {error.start} is not") from error
    _check_text(whole)
    text, blank, signatures = whole.rpartition("\n\n")
    if not blank or not signatures.endswith("\n"):
        raise NoteError("NOTE", "a note is a text, an empty line, and signature lines, each ended by a newline")
    lines = signatures[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise NoteError("NOTE", f"a note has at most {MAX_SIGNATURES} signatures, got {len(lines)}")
    return text + "\n", lines


def _parse_signature_line(line: str) -> tuple[str, bytes]:
    """Reads a line into the name that it claims, and key id with signature."""
    match = _SIGNATURE_LINE.fullmatch(line)
    if match is None:
        raise NoteError("SIGNATURE_LINE", f"expected '— <name> <base64>', got {line[:120]!r}")
    name = match[1]
    _check_name(name)
    blob = _decode_base64(match[2], f"signature of {name}")
    if len(blob) < 5:
        raise NoteError("SIGNATURE_LINE", f"the signature of {name} is shorter than a key id and a signature")
    return name, blob


def _signed_by(line: str) -> tuple[str, bytes]:
    name, blob = _parse_signature_line(line)
    return name, blob[:4]


def _signature_line(key: VerifierKey, signature: bytes) -> str:
    return f"— {key.name} {to_base64(key.key_id + signature)}"


def _with_lines(data: bytes, lines: Sequence[str]) -> bytes:
    """Returns a note with further signature lines; refuses what a reader would."""
    whole = data + "".join(f"{line}\n" for line in lines).encode()
    _split(whole)
    return whole


def _cosigned_message(timestamp: int, text: str) -> bytes:
    """Returns what a cosignature signs (C2SP tlog-cosignature, "Ed25519 signed message")."""
    return f"cosignature/v1\ntime {timestamp}\n{text}".encode()


def _verify(key: VerifierKey, signature: bytes, text: str) -> Signature:
    """Checks one signature by a known key; a known key with a bad signature condemns the note."""
    timestamp, since, message = None, None, text.encode()
    if key.kind == SIGNATURE_SUMMARY_V1:
        timestamp, since = int.from_bytes(signature[:8], "big"), int.from_bytes(signature[8:16], "big")
        signature, message = signature[16:], summary_message(timestamp, since, text)
    elif key.kind == SIGNATURE_COSIGNATURE_V1:
        timestamp, signature = int.from_bytes(signature[:8], "big"), signature[8:]
        message = _cosigned_message(timestamp, text)
    if len(signature) != 64 or max(timestamp or 0, since or 0) >= MAX_SIZE:
        raise NoteError("SIGNATURE_BAD", f"the signature of {key.name} is malformed")
    try:
        verify_signature(key.public_key, signature, message)
    except AttestError as error:
        raise NoteError("SIGNATURE_BAD", f"the signature of {key.name} does not verify: a changed text") from error
    return Signature(key, timestamp, since)


def _decode_base64(encoded: str, what: str) -> bytes:
    data = read_base64(encoded)
    if data is None:
        raise NoteError("BASE64", f"{what}: not the canonical base64 of any bytes")
    return data


def _check_text(text: str) -> None:
    if type(text) is not str or any(char < " " and char != "\n" for char in text):
        raise NoteError("CONTROL", "a note has no control characters other than newline (are the line ends CRLF?)")


def _check_name(name: str) -> None:
    try:
        vkeys.check_key_name(name)
    except KeyRefused as error:
        raise NoteError(error.code, error.sentence) from error
