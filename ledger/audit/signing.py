"""Is the checkpoint under audit signed by who must sign it: the key that the leaves lead to, from a key that was pinned."""

from collections.abc import Callable, Sequence

from attest.keys.vkeys import SIGNATURE_ED25519
from ledger import layout
from ledger.audit.remarks import Remarks
from ledger.errors import NoteError
from ledger.note import Note, parse_verifier_key
from ledger.rules.rotation import KeyChain


def judge_keys(
    data: bytes | None,
    origin: str,
    chain: KeyChain,
    pinned: Sequence[str],
    fault: Callable[[str, str, str], None],
    remarks: Remarks,
) -> Note | None:
    """Follows the changes of the ledger's key from the pinned ones, and verifies the checkpoint under the key that signs now.

    Guarantee:
        Nothing is told to ``fault`` only if a pinned key stands in the ledger's chain of keys, so does every other that was
        pinned for this ledger, and all keys that must have signed a checkpoint of this size did, whose note is returned. An old
        key alone never suffices.

    Args:
        data: the checkpoint note.
        origin: the ledger's name.
        chain: the keys of the ledger, from its leaves.
        pinned: the verifier keys that the auditor trusts.
        fault: takes (code, where, sentence) of everything wrong.
        remarks: takes what a reader should know.
    """
    log_keys = [vkey for vkey in dict.fromkeys(pinned) if _is_log_key(vkey, origin)]
    strangers = [vkey for vkey in log_keys if vkey not in chain.vkeys]
    if len(strangers) == len(log_keys):
        fault("LOG_KEY", layout.CHECKPOINT, f"the ledger is signed by {' and then '.join(chain.vkeys)}, and none was pinned")
        return None
    for vkey in strangers:
        sentence = f"the pinned key {vkey} never signs this ledger: it was cut back to before its key was changed, or forked"
        fault("LOG_KEY", layout.CHECKPOINT, sentence)
    for seq, vkey in chain.changes:
        remarks.note(f"the ledger's key was changed at leaf {seq}, which both keys signed; since then {vkey} signs")
    try:
        note, _ = chain.open_note(data or b"")
    except NoteError as error:
        fault(error.code, layout.CHECKPOINT, error.sentence)
        return None
    return note


def _is_log_key(vkey: str, origin: str) -> bool:
    key = parse_verifier_key(vkey)
    return (key.name, key.kind) == (origin, SIGNATURE_ED25519)
