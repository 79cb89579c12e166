"""Who signed the checkpoint under audit: pinned keys, and the auditors and witnesses whom the signed policy names."""

from collections.abc import Callable, Iterable
from typing import Any

from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, SIGNATURE_SUMMARY_V1, VerifierKey
from attest.schema.plain import utc, visible
from ledger import layout
from ledger.audit.carried import Carried
from ledger.audit.findings import Signer
from ledger.audit.remarks import Remarks
from ledger.leaves import Header
from ledger.note import Note
from ledger.rules.rotation import KeyChain
from ledger.trust import AUDITORS, WITNESSES


def pinned_signers(note: Note, origin: str) -> tuple[Signer, ...]:
    """Returns the pinned keys that signed, before the leaves say which of them are the ledger's: those of its name."""
    found = ((signature.key, signature.timestamp) for signature in note.signatures)
    return tuple(Signer(key.name, key.key_id.hex(), time, time is None and key.name == origin) for key, time in found)


def judge_signers(
    notes_of_tree: Iterable[Carried],
    header: Header,
    chain: KeyChain,
    counts: Callable[[int], bool],
    required: bool,
    fault: Callable[[str, str, str], None],
    remarks: Remarks,
) -> dict[str, Any]:
    """Says who signed the checkpoint under audit, and whether auditors and witnesses among them are the quorums asked for.

    Guarantee:
        ``quorum_met`` is True only if as many of the policy's auditors as it asks for have cosigned this checkpoint, each by a
        line that verifies, at a time that counts; ``witness_quorum_met`` says that of its witnesses. Neither kind counts for
        the other.

    Args:
        notes_of_tree: the notes over the checkpoint under audit, all with its text; their lines count together.
        header: leaf 0.
        chain: the keys of the ledger.
        counts: tells whether that checkpoint can have been signed at a time, in POSIX seconds.
        required: whether a quorum that the policy names and that was not reached is a fault, and a policy that names none.
        fault: takes (code, where, sentence) of everything wrong.
        remarks: takes what a reader should know.

    Returns:
        The fields ``signers``, ``auditors``, ``quorum``, ``quorum_met``, ``witnesses``, ``witness_quorum`` and
        ``witness_quorum_met`` of an audit report.
    """
    trust, policy, found = chain.trust_policy(), header.policy, _times(notes_of_tree, counts)
    good = {key for key, time in found.items() if time is None or counts(time)}
    asked = {AUDITORS: policy.auditor_quorum, WITNESSES: policy.witness_quorum}
    met = {kind: trust.has_cosigned(kind, good) if quorum else None for kind, quorum in asked.items()}
    for key, time in found.items():
        if key not in good:
            remarks.note(
                f"the cosignature of {visible(key.name)} counts for nothing: it is dated {utc(time or 0)}, which is before the "
                "last leaf that it covers, or ahead of the clock here"
            )
    for kind, word in ((AUDITORS, "NO_QUORUM"), (WITNESSES, "NO_WITNESS_QUORUM")):
        named = trust.keys_of(kind)
        if not named:
            continue
        cosigned = [visible(key.name) for key in named if key in good]
        told = (
            f"cosigned by {len(cosigned)} of the {len(named)} {kind} whom the policy names"
            f"{': ' if cosigned else ''}{', '.join(cosigned)}; it asks for {asked[kind]}"
        )
        if met[kind]:
            remarks.note(f"{told}, and has them")
        else:
            remarks.qualify(word, f"{told}, so that readers who ask for the quorum refuse this checkpoint")
            if required:
                fault("QUORUM", layout.CHECKPOINT, f"{asked[kind]} {kind} must have cosigned")
    if not policy.auditors:
        strangers = good.difference(trust.keys_of(WITNESSES))
        if any(key.kind == SIGNATURE_COSIGNATURE_V1 for key in strangers):
            remarks.note("the policy names no auditors; the cosignatures are by keys that were pinned")
        else:
            remarks.qualify("NO_AUDITORS")
    if required and not any(asked.values()):
        fault("QUORUM", layout.CHECKPOINT, "the policy names no auditors, and no witnesses")
    return {
        "signers": tuple(
            Signer(key.name, key.key_id.hex(), time, str(key) in chain.vkeys, key in good) for key, time in found.items()
        ),
        "auditors": policy.auditors,
        "quorum": policy.auditor_quorum,
        "quorum_met": met[AUDITORS],
        "witnesses": policy.witnesses,
        "witness_quorum": policy.witness_quorum,
        "witness_quorum_met": met[WITNESSES],
    }


def _times(notes_of_tree: Iterable[Carried], counts: Callable[[int], bool]) -> dict[VerifierKey, int | None]:
    """Tells who signed, and when: each key once, at a time that counts if it has one. Leaves out statements on summaries."""
    found: dict[VerifierKey, int | None] = {}
    for item in notes_of_tree:
        for signature in item.note.signatures:
            if signature.key.kind == SIGNATURE_SUMMARY_V1:
                continue
            known = found.setdefault(signature.key, signature.timestamp)
            if known is not None and signature.timestamp is not None and not counts(known):
                found[signature.key] = signature.timestamp
    return found
