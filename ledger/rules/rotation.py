"""Changing the key of a ledger's signer: who signs a checkpoint of which size, read from the leaves alone.

A KEY leaf at position i is signed by the key until then and by the next one. Checkpoints of more than i leaves, which are
those that contain it, must be signed by the next key, and the old key's count no more; the first of them, of i + 1 leaves,
carries both signatures. So whoever pinned any key of the chain can follow it, and whoever steals a key that was retired can
sign nothing that extends the ledger. A key that was stolen before it was retired is another matter: a thief could retire it
too, so that ledger ends, and a new one under another origin cites it (`ledger.leaves.previous`).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from attest import cbor
from attest.errors import AttestError
from attest.keys import verify_signature
from attest.keys.vkeys import SIGNATURE_ED25519, VerifierKey
from ledger.errors import LeafRefused, NoteError, TrustError
from ledger.leaves import Header, Key
from ledger.note import Checkpoint, Note, NoteSigner, open_note, parse_checkpoint, parse_verifier_key, peek_checkpoint
from ledger.trust import TrustPolicy

DOMAIN: Final = b"dptrain/rotate-ledger-key/1\0"
"""What the signed statement begins with; a zero byte stands in no note, so no signature of a ledger serves as both."""


def statement(header: Header, seq: int, old_vkey: str, new_vkey: str) -> bytes:
    """Returns what both keys sign: the ledger, the position of the leaf, and the two keys."""
    return DOMAIN + cbor.encode([header.origin, header.run_id, seq, old_vkey, new_vkey])


def rotation(header: Header, seq: int, time: int, old: NoteSigner, new: NoteSigner) -> Key:
    """Returns the KEY leaf by which one signer hands over to another."""
    message = statement(header, seq, old.vkey, new.vkey)
    return Key(seq, time, old.vkey, new.vkey, old.private_key.sign(message), new.private_key.sign(message))


class KeyChain:
    """The keys of a ledger, in the order in which they signed it."""

    def __init__(self, header: Header) -> None:
        """Begins with the key in the header."""
        self._header = header
        self._keys: list[tuple[int, str]] = [(0, header.log_vkey)]
        self._used = {parse_verifier_key(header.log_vkey).public_key}

    @property
    def vkeys(self) -> tuple[str, ...]:
        """All verifier keys, the current one last."""
        return tuple(vkey for _, vkey in self._keys)

    @property
    def current(self) -> str:
        """The verifier key that signs the next checkpoint."""
        return self._keys[-1][1]

    @property
    def changes(self) -> tuple[tuple[int, str], ...]:
        """Position of every KEY leaf, and the key that signs since."""
        return tuple(self._keys[1:])

    def at(self, size: int) -> str:
        """Returns the key that must have signed a checkpoint of this size."""
        return self._keys[max(0, bisect_left(self._keys, size, key=itemgetter(0)) - 1)][1]

    def required(self, size: int) -> tuple[str, ...]:
        """Returns all keys that must have signed it: right after a change both, else one."""
        return tuple(dict.fromkeys((self.at(max(1, size - 1)), self.at(size))))

    def open_note(self, data: bytes) -> tuple[Note, Checkpoint]:
        """Verifies a checkpoint of the ledger under the keys that must have signed one of its size.

        Raises:
            NoteError: it is malformed; code LOG_KEY if a key that must have signed it has not.
        """
        size = peek_checkpoint(data).size
        required = self.required(size)
        try:
            note = open_note(data, required)
        except NoteError as error:
            if error.code != "UNSIGNED":
                raise
            raise self._unsigned(size, required) from error
        if {str(signature.key) for signature in note.signatures} != set(required):
            raise self._unsigned(size, required)
        return note, parse_checkpoint(note.text)

    def trust_policy(self) -> TrustPolicy:
        """Returns the C2SP trust policy of the ledger as it is now."""
        return self._header.trust_policy(self.current)

    def take(self, leaf: Key) -> Iterator[LeafRefused]:
        """Yields what is wrong with a change of the key; it counts unless the new key cannot be one."""
        if leaf.old_vkey != self.current:
            yield LeafRefused("LOG_KEY", f"the ledger is signed by {self.current}, the leaf retires {leaf.old_vkey}")
            return
        try:
            new = _log_key(leaf.new_vkey, self._header.origin)
            self._header.trust_policy(leaf.new_vkey)
            if new.public_key in self._used:
                raise LeafRefused("LOG_KEY", f"the key {leaf.new_vkey} signed this ledger before; a change takes a new key")
            message = statement(self._header, leaf.seq, leaf.old_vkey, leaf.new_vkey)
            for vkey, signature in ((leaf.old_vkey, leaf.old_signature), (leaf.new_vkey, leaf.new_signature)):
                _verify(parse_verifier_key(vkey), signature, message)
        except LeafRefused as error:
            yield error
            return
        except (NoteError, TrustError) as error:
            yield LeafRefused("LOG_KEY", f"{leaf.new_vkey!r:.200} cannot sign this ledger: {error.sentence}")
            return
        self._keys.append((leaf.seq, leaf.new_vkey))
        self._used.add(new.public_key)

    def _unsigned(self, size: int, required: Sequence[str]) -> NoteError:
        since = next((f", the key since leaf {seq}" for seq, vkey in self.changes if vkey == required[-1]), "")
        names = " and ".join(required)
        return NoteError("LOG_KEY", f"a checkpoint of {size} leaves is signed by {names}{since}; this one is not")


def _log_key(vkey: str, origin: str) -> VerifierKey:
    key = parse_verifier_key(vkey)
    if (key.name, key.kind) != (origin, SIGNATURE_ED25519):
        raise LeafRefused("LOG_KEY", f"the new key is named {key.name!r}, expected the origin {origin!r}")
    return key


def _verify(key: VerifierKey, signature: bytes, message: bytes) -> None:
    try:
        verify_signature(key.public_key, signature, message)
    except AttestError as error:
        raise LeafRefused("KEY_SIGNATURE", f"the change of the key is not signed by {key}: {error.sentence}") from error
