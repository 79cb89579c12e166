"""Auditors vouch for summaries: the statement without which no body is ever pruned.

The line of an auditor stands under a name of its own, ``<auditor>/summary-v1``, below a checkpoint that covers the SUMMARY leaf
(C2SP tlog-cosignature leaves additional statements to separate names). It is made with the key that the policy names for the
auditor, over a message that no cosignature begins with: cosignatures of C2SP do not sign the name, so that under the same
message anybody could pass an auditor's cosignature off as this statement.

By it the auditor says: I had an export with every body for which the SUMMARY leaves from number ``since`` on speak, and
recomputed every field of them. These bodies are those of their ranges, and the ADMIT leaves to whose records they commit. I
also had the ADMIT leaf of everybody who had not left, and held it against what its contributor signed, through every charge
under this checkpoint. Below a checkpoint that covers CLOSE it says so of the whole run.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from attest.keys.signers import as_signer
from attest.keys.vkeys import SIGNATURE_SUMMARY_V1, VerifierKey
from attest.schema.plain import MAX_TIME
from ledger.errors import NoteError
from ledger.leaves import Header, Summary
from ledger.merkle import MAX_SIZE
from ledger.note import Cosigner, open_note, parse_verifier_key, summary_message, with_signature
from ledger.replay.signer import Timeline

NAME_SUFFIX: Final = "/summary-v1"
"""Behind an auditor's name, the name under which it vouches for summaries."""


def summary_key(auditor: str | VerifierKey) -> VerifierKey:
    """Returns the verifier key of an auditor's statements on summaries, from the one of its cosignatures.

    Raises:
        NoteError: it is malformed.
    """
    key = parse_verifier_key(auditor) if isinstance(auditor, str) else auditor
    return VerifierKey(key.name + NAME_SUFFIX, SIGNATURE_SUMMARY_V1, key.public_key)


def summary_keys(header: Header) -> list[str]:
    """Returns these keys of the auditors whom the policy names, as `open_note` takes them."""
    return [str(summary_key(auditor)) for auditor in header.policy.auditors]


def vouch(data: bytes, cosigner: Cosigner, log_keys: Iterable[str], *, since: int, time: int) -> bytes:
    """Adds an auditor's statement on summaries to a checkpoint of the log.

    Only an auditor who has audited all bodies of these ranges may call this; `ledger.proofs.cosigning` is the way that does.

    Args:
        data: a note by the log.
        cosigner: the auditor.
        log_keys: verifier keys of the log.
        since: position of the first SUMMARY leaf that it vouches for.
        time: POSIX seconds of signing.

    Raises:
        NoteError: the note is not one by the log, or the line of this auditor in it does not verify.
    """
    key = summary_key(cosigner.verifier)
    note = open_note(data, [*log_keys, str(key)])
    if any(signature.key == key for signature in note.signatures):
        return data
    if not 0 <= time < MAX_TIME or not 0 < since < MAX_SIZE:
        sentence = f"expected a time before the year 10000 and a first summary in 1..2^63-1, got {time} and {since}"
        raise NoteError("TIME", sentence)
    signature = as_signer(cosigner.key).sign(summary_message(time, since, note.text))
    return with_signature(data, key, time.to_bytes(8, "big") + since.to_bytes(8, "big") + signature)


def statements(header: Header, note: bytes, counts: Callable[[int], bool] = lambda time: True) -> dict[str, int]:
    """Returns who of the policy's auditors vouches in a note, by name, and since which SUMMARY leaf.

    Args:
        header: leaf 0.
        note: a checkpoint of its ledger.
        counts: tells whether a statement can have been made at a time, in POSIX seconds; one that cannot is left out.

    Raises:
        NoteError: the note is malformed, or such a line does not verify.
    """
    keys = summary_keys(header)
    if not keys or NAME_SUFFIX.encode() not in note:
        return {}
    try:
        found = open_note(note, keys).signatures
    except NoteError as error:
        if error.code == "UNSIGNED":
            return {}
        raise
    made = (signature for signature in found if counts(signature.timestamp or 0))
    return {signature.key.name.removesuffix(NAME_SUFFIX): signature.since or 0 for signature in made}


def vouchers(
    header: Header, notes: Mapping[int, bytes], summaries: Iterable[Summary], timeline: Timeline, now: int | None
) -> dict[int, tuple[str, ...]]:
    """Returns by position of each SUMMARY leaf the names of the policy's auditors who vouch for it.

    Guarantee:
        A statement counts only if its time lies where `Timeline.counts` lets it: not before the last leaf under the note, and
        not ahead of the clock.

    Args:
        header: leaf 0.
        notes: checkpoint notes by size, whose text is known to be the ledger's.
        summaries: the SUMMARY leaves.
        timeline: the times of the leaves.
        now: POSIX seconds by the clock of whoever asks; None to leave statements that are dated ahead to an auditor.

    Raises:
        NoteError: a line that claims to be an auditor's does not verify.
    """
    said = _said(header, notes, timeline, now)
    return {
        leaf.seq: tuple(
            sorted(
                {name for size, names in said.items() for name, since in names.items() if size > leaf.seq and since <= leaf.seq}
            )
        )
        for leaf in summaries
    }


def vouchers_of_close(
    header: Header, notes: Mapping[int, bytes], closed_at: int | None, timeline: Timeline, now: int | None
) -> frozenset[str]:
    """Returns the names of the policy's auditors who vouch below a checkpoint that covers CLOSE.

    Guarantee:
        Each of them held whoever stayed against what was signed, through the last charge of the run: so nobody who stayed was
        charged for after their attestation had ended, or their key was revoked.

    Args:
        header: leaf 0.
        notes: as for `vouchers`.
        closed_at: position of CLOSE; None before it, and then there are none.
        timeline: the times of the leaves.
        now: as for `vouchers`.

    Raises:
        NoteError: a line that claims to be an auditor's does not verify.
    """
    if closed_at is None:
        return frozenset()
    said = _said(header, notes, timeline, now)
    return frozenset(name for size, names in said.items() if size > closed_at for name in names)


def _said(header: Header, notes: Mapping[int, bytes], timeline: Timeline, now: int | None) -> dict[int, dict[str, int]]:
    """Returns, for each checkpoint, the auditors who vouch at times that count, and since which SUMMARY leaf."""
    return {size: statements(header, note, partial(timeline.counts, size=size, now=now)) for size, note in notes.items()}


def vouched_end(header: Header, summaries: Iterable[Summary], names: Mapping[int, tuple[str, ...]]) -> int:
    """Returns the end of the ranges, from the first on, that a quorum of the policy's auditors vouches for; 0 for none.

    A policy without auditors has no quorum: nothing may be pruned under it.
    """
    end, quorum = 0, header.policy.auditor_quorum
    for leaf in summaries:
        if not quorum or len(names[leaf.seq]) < quorum:
            break
        end = leaf.end
    return end
