"""Who signed the checkpoint under audit: pinned keys, and the auditors whom the signed policy names."""

from collections.abc import Callable, Sequence
from typing import Any

from attest.vkeys import SIGNATURE_COSIGNATURE_V1
from ledger import layout
from ledger.audit.findings import Signer
from ledger.errors import NoteError
from ledger.leaves import Header
from ledger.note import Note, open_note
from ledger.rules.rotation import KeyChain


def pinned_signers(note: Note | None, origin: str) -> tuple[Signer, ...]:
    """Returns the pinned keys that signed, before the leaves say which of them are the ledger's: those of its name."""
    if note is None:
        return ()
    found = ((signature.key, signature.timestamp) for signature in note.signatures)
    return tuple(Signer(key.name, key.key_id.hex(), time, time is None and key.name == origin) for key, time in found)


def judge_signers(
    data: bytes | None,
    opened: Note,
    header: Header,
    chain: KeyChain,
    keys: Sequence[str],
    required: bool,
    fault: Callable[[str, str, str], None],
    notes: list[str],
) -> dict[str, Any]:
    """Verifies the lines of the auditors too, and says whether they are the quorum that the policy asks for.

    Args:
        data: the checkpoint note, read again.
        opened: the note as it was verified.
        header: leaf 0.
        chain: the keys of the ledger.
        keys: the pinned keys.
        required: whether a quorum that was not reached is a fault.
        fault: takes (code, where, sentence) of everything wrong.
        notes: takes what a reader should know.

    Returns:
        The fields ``signers``, ``auditors``, ``quorum`` and ``quorum_met`` of an audit report.
    """
    policy, note = chain.trust_policy(), opened
    try:
        note = open_note(data or b"", list(dict.fromkeys([*keys, *policy.vkeys])))
        if note.text != opened.text:
            fault("CHANGED", layout.CHECKPOINT, "the checkpoint changed while it was audited; audit a copy that nobody writes")
    except NoteError as error:
        fault(error.code, layout.CHECKPOINT, error.sentence)
    found = {signature.key: signature.timestamp for signature in note.signatures}
    named = [witness.key for witness in policy.witnesses]
    met = policy.satisfied(found) if named else None
    if named:
        cosigned = [key.name for key in named if key in found]
        notes.append(
            f"cosigned by {len(cosigned)} of the {len(named)} auditors whom the policy names"
            f"{': ' if cosigned else ''}{', '.join(cosigned)}; it asks for {header.policy.auditor_quorum}"
            f"{', and has them' if met else ', so that readers who ask for the quorum refuse this checkpoint'}"
        )
    elif any(key.kind == SIGNATURE_COSIGNATURE_V1 for key in found):
        notes.append("the policy names no auditors; the cosignatures are by keys that were pinned")
    if required and not met:
        wanted = header.policy.auditor_quorum
        fault("QUORUM", layout.CHECKPOINT, f"{wanted} auditors must have cosigned" if named else "the policy names no auditors")
    return {
        "signers": tuple(Signer(key.name, key.key_id.hex(), time, str(key) in chain.vkeys) for key, time in found.items()),
        "auditors": header.policy.auditors,
        "quorum": header.policy.auditor_quorum,
        "quorum_met": met,
    }
