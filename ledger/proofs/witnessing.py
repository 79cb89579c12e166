"""Asking a witness to cosign: the body of a request, and what its answer says (C2SP tlog-witness, "add-checkpoint").

A witness vouches for history alone: the tree under a checkpoint extends every tree of that log which it cosigned before. It is
sent the size that it cosigned last, the proof that the tree extends that one, and the checkpoint. It answers with its signature
lines, which are merged into the checkpoint as an auditor's are. Nothing here speaks HTTP: bodies are files.
"""

import base64
import re
from dataclasses import dataclass
from typing import Final

from attest.schema.plain import read_decimal
from ledger.errors import NoteError, WitnessRefused
from ledger.merkle import MAX_SIZE
from ledger.note import MAX_NOTE_SIZE, MAX_SIGNATURES, lines_of, peek_checkpoint, with_lines
from ledger.proofs.prover import Node, consistency_proof

MAX_ANSWER_SIZE: Final = 1_000_000
"""Longest answer that is looked at, in bytes."""

MAX_REQUEST_SIZE: Final = MAX_NOTE_SIZE + 4_096
"""Longest request that is read back, in bytes: a note, and 64 lines."""

_STATUS_LINE = re.compile(rb"HTTP/[0-9.]+ ([0-9]{3})[^\r\n]*\r?\n")

_REFUSALS: Final = {
    400: ("WITNESS_REQUEST", "the witness does not understand the request; write it again with 'ledger witness-request'"),
    403: ("WITNESS_FORBIDDEN", "the witness trusts no key that signed this checkpoint; give it the ledger's present key"),
    404: ("WITNESS_UNKNOWN", "the witness does not know this ledger; ask who runs it to add the ledger's verifier key"),
    422: (
        "WITNESS_PROOF",
        "the witness says that the tree does not extend the one it cosigned: it has seen another history of this ledger, or "
        "the request is not what was written; keep both, and have the ledger audited",
    ),
}
"""Code and sentence for each status by which a witness refuses."""


@dataclass(frozen=True, slots=True)
class WitnessRequest:
    """A request to cosign.

    Attributes:
        since: the size that the witness cosigned last, 0 for none.
        note: the checkpoint, signed by the ledger alone.
    """

    since: int
    note: bytes


def make_request(node: Node, note: bytes, since: int) -> bytes:
    """Returns the body of an ``add-checkpoint`` request.

    It holds the checkpoint with the ledger's own lines alone: who else cosigned it is no business of the witness.

    Args:
        node: gives nodes of the tree under the checkpoint (`ledger.proofs.prover`).
        note: the signed checkpoint.
        since: the size that the witness cosigned last, 0 for none.

    Raises:
        NoteError: the note is malformed.
        ProofError: the size lies beyond the checkpoint; code HASHES_GONE where the ledger cannot make that proof any more.
    """
    checkpoint = peek_checkpoint(note)
    own = [line for name, line in lines_of(note) if name == checkpoint.origin]
    proof = consistency_proof(node, since, checkpoint.size) if since else []
    lines = [f"old {since}", *(base64.b64encode(hash_).decode() for hash_ in proof), ""]
    return "".join(f"{line}\n" for line in lines).encode() + with_lines(note, own)


def read_request(data: bytes) -> WitnessRequest:
    """Reads a request back for its checkpoint; the proof is not looked at.

    Raises:
        WitnessRefused: code WITNESS_REQUEST, it is none.
    """
    head, blank, note = data.partition(b"\n\n")
    first = head.split(b"\n", 1)[0].decode("ascii", "replace")
    since = read_decimal(first.removeprefix("old ")) if first.startswith("old ") else None
    if not blank or since is None or since >= MAX_SIZE or len(data) > MAX_REQUEST_SIZE:
        raise WitnessRefused("WITNESS_REQUEST", "expected the request that was sent, as 'ledger witness-request' wrote it")
    return WitnessRequest(since, note)


def read_answer(data: bytes, request: WitnessRequest) -> bytes:
    """Returns the checkpoint of a request with the lines that a witness answered; nothing of them is verified yet.

    Guarantee:
        A note is returned only where the answer is one or more signature lines and nothing else. It has the text of the
        request, so that whoever verifies it (`ledger.note.merge_notes`) verifies what was asked for.

    Args:
        data: the body of the answer; status line and headers may stand before it, as ``curl -i`` prints them. Without these
            the body tells whether it is a cosignature or, by a size, status 409.
        request: what was asked.

    Raises:
        WitnessRefused: the witness did not cosign; the code says why, and ``size`` what it cosigned before, where it tells.
    """
    if len(data) > MAX_ANSWER_SIZE:
        raise WitnessRefused("WITNESS_ANSWER", f"an answer has at most {MAX_ANSWER_SIZE} bytes")
    status, body = _unwrapped(data)
    text = body.decode("utf-8", "replace")
    size = read_decimal(text[:-1]) if text.endswith("\n") else None
    if status == 409 or (status is None and size is not None):
        raise _conflict(size, request)
    if status not in (None, 200):
        code, sentence = _REFUSALS.get(status, ("WITNESS_STATUS", f"the witness answered with status {status}"))
        raise WitnessRefused(code, f"{sentence} (it says: {text.strip()!a:.200})" if text.strip() else sentence)
    lines = text.split("\n")
    if lines.pop() != "" or not 0 < len(lines) <= MAX_SIGNATURES or not all(line.startswith("— ") for line in lines):
        sentence = f"expected signature lines, each beginning with a dash and ended by a newline, got {text!a:.200}"
        raise WitnessRefused("WITNESS_ANSWER", f"{sentence}; save the answer with 'curl -i', so that its status is in it")
    try:
        note = with_lines(request.note, [line for _, line in lines_of(request.note)] + lines)
        lines_of(note)  # each line must be one of a signed note
    except NoteError as error:
        raise WitnessRefused("WITNESS_ANSWER", f"the lines of the answer make no note: {error.sentence}") from error
    return note


def _unwrapped(data: bytes) -> tuple[int | None, bytes]:
    """Splits status lines and headers off; the last status counts, since proxies and 100 Continue come before it."""
    status = None
    while (match := _STATUS_LINE.match(data)) is not None:
        status = int(match[1])
        found = re.search(rb"\r?\n\r?\n", data[match.end() - 2 :])
        data = data[match.end() - 2 + found.end() :] if found is not None else b""
    return status, data


def _conflict(size: int | None, request: WitnessRequest) -> WitnessRefused:
    if size is None:
        return WitnessRefused("WITNESS_CONFLICT", "the witness cosigned another size before, and does not say which")
    how = f"write the request again with --since {size}"
    if size == request.since:
        how = "it says the size that was asked for: ask again, and whoever runs it if that does not help"
    elif size > peek_checkpoint(request.note).size:
        how = "that is more than this checkpoint has: use the newest one, and ask who signed a larger tree if there is none"
    told = f"the witness cosigned {size} leaves of this ledger before, and was asked from {request.since} on"
    return WitnessRefused("WITNESS_CONFLICT", f"{told}; {how}", size=size)
