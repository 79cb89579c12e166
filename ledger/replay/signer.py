"""Follows the key and the clock of a ledger's signer through its leaves.

A leaf says when it was written by the clock of the writer, and nothing else shows that. What is judged here: times follow one
another; a CLOCK leaf says which time it takes back; and how far the last one lies from the clock of whoever asks.

A KEY leaf at position i is signed by the key until then and by the next one. Checkpoints of more than i leaves, which are those
that contain it, must be signed by the next key, and the old key's count no more; the first of them, of i + 1 leaves, carries
both signatures. So whoever pinned any key of the chain can follow it, and whoever steals a key that was retired can sign
nothing that extends the ledger. A key that was stolen before it was retired is another matter: a thief could retire it too, so
that ledger ends, and a new one under another origin cites it (`ledger.leaves.header`).
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from attest import cbor
from attest.errors import AttestError
from attest.keys import verify_signature
from attest.keys.vkeys import SIGNATURE_ED25519, VerifierKey
from attest.schema.plain import AHEAD_SECONDS, is_ahead, utc
from ledger.errors import LeafRefused, NoteError, TrustError
from ledger.leaves import Clock, Header, Key, Leaf
from ledger.note import Checkpoint, Note, NoteSigner, open_note, parse_checkpoint, parse_verifier_key, peek_checkpoint
from ledger.trust import TrustPolicy

JUMP_SECONDS: Final = 14 * 86400
"""Seconds that may lie between two leaves of a run that goes on. Beyond it the writer asks whether its clock is right: what a
false clock lets expire is withdrawn for good."""


class Timeline:
    """Takes the time of every leaf in order. `loose`: whether the leaf before was pruned: its time is gone, and was that of the
    last one that is kept, or a later one."""

    def __init__(self, header: Header) -> None:
        self.last = header.time
        self.sets: list[Clock] = []
        self.loose = False
        self._seqs, self._times = array("q", [0]), array("q", [header.time])  # where the time changes, and to what

    def take(self, leaf: Leaf, seq: int) -> Iterator[LeafRefused]:
        """Takes the leaf at ``seq``, and yields what is wrong with its time.

        Guarantee: Without a problem the time is no earlier than that of any leaf since the last CLOCK leaf; and a CLOCK leaf
        says the time of the leaf before it, so that it takes back what stands there and no other time (of a leaf that was
        pruned, no earlier time than that of the last one that is kept).
        """
        loose, self.loose = self.loose, False
        if isinstance(leaf, Clock):
            if leaf.before < self.last or (leaf.before > self.last and not loose):
                yield LeafRefused("CLOCK", f"the leaf takes back the time {leaf.before}, the leaf before it says {self.last}")
                return
            self.sets.append(leaf)
        elif leaf.time < self.last:
            sentence = f"time runs back from {self.last} to {leaf.time}, and no CLOCK leaf says why"
            yield LeafRefused("CLOCK", sentence)
            return
        if leaf.time != self.last:
            self._seqs.append(seq)
            self._times.append(leaf.time)
            self.last = leaf.time

    def at(self, size: int) -> int:
        """Returns the time of the last one of the first ``size`` leaves."""
        return self._times[bisect_right(self._seqs, size - 1) - 1]

    def counts(self, time: int, size: int, now: int | None) -> bool:
        """Tells whether somebody can have signed a checkpoint at a time.

        A reader without a clock gives None, and then the end is not judged.

        Guarantee: True only for times in [time of the last leaf under the checkpoint, ``now`` + `AHEAD_SECONDS`]: nobody signs
        a leaf before it is written, or tomorrow.
        """
        return self.at(size) <= time and (now is None or not is_ahead(time, now))

    def require_not_ahead(self, now: int) -> None:
        """Holds the times since the last CLOCK leaf against a clock; what that leaf took back is told, and no fault. Raises
        LeafRefused: code CLOCK, with the position of the first leaf that lies ahead."""
        if not is_ahead(self.last, now):
            return
        since = self.sets[-1].seq if self.sets else 0
        first = next(seq for seq, time in zip(self._seqs, self._times, strict=True) if seq >= since and is_ahead(time, now))
        sentence = (
            f"it is dated {utc(self.at(first + 1))}, {self.at(first + 1) - now} s ahead of the clock here ({utc(now)}); "
            f"expected {AHEAD_SECONDS} s at most. Whose clock is wrong? A ledger's is set back by 'dptrain ledger set-clock'"
        )
        raise LeafRefused("CLOCK", sentence, seq=first)

    def require_no_jump(self, now: int, accepted: int) -> None:
        """Refuses to go on where the clock is so far ahead of the last leaf that it may be wrong.

        A time `accepted` is a reading of the clock that somebody vouched for; 0 for none. Raises LeafRefused: code CLOCK_JUMP.
        """
        known = max(self.last, accepted)
        if now <= known + JUMP_SECONDS:
            return
        raise LeafRefused(
            "CLOCK_JUMP",
            f"the clock says {utc(now)} and the last leaf is of {utc(self.last)}, {(now - self.last) // 86400} days before; "
            f"more than {JUMP_SECONDS // 86400} are not taken unasked, since what a false clock lets expire stays withdrawn. "
            "Set the clock right, or if it is, say so with --clock-jump-ok (clock_jump_ok=True); nothing was written",
        )


DOMAIN: Final = b"dptrain/rotate-ledger-key/1\0"
"""Begins the signed statement; a zero byte stands in no note, so no signature of a ledger serves as both."""


def statement(header: Header, seq: int, old_vkey: str, new_vkey: str) -> bytes:
    """Returns what both keys sign: the ledger, the position of the leaf, and the two keys."""
    return DOMAIN + cbor.encode([header.origin, header.run_id, seq, old_vkey, new_vkey])


def rotation(header: Header, seq: int, time: int, old: NoteSigner, new: NoteSigner) -> Key:
    """Returns the KEY leaf by which one signer hands over to another."""
    message = statement(header, seq, old.vkey, new.vkey)
    return Key(seq, time, old.vkey, new.vkey, old.private_key.sign(message), new.private_key.sign(message))


class KeyChain:
    """Follows the keys of a ledger, in the order in which they signed it."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._keys: list[tuple[int, str]] = [(0, header.log_vkey)]
        self._used = {parse_verifier_key(header.log_vkey).public_key}

    @property
    def vkeys(self) -> tuple[str, ...]:
        """Returns all verifier keys, the current one last."""
        return tuple(vkey for _, vkey in self._keys)

    @property
    def current(self) -> str:
        """Returns the verifier key that signs the next checkpoint."""
        return self._keys[-1][1]

    @property
    def changes(self) -> tuple[tuple[int, str], ...]:
        """Returns the position of every KEY leaf, and the key that signs since."""
        return tuple(self._keys[1:])

    def at(self, size: int) -> str:
        """Returns the key that must have signed a checkpoint of this size."""
        return self._keys[max(0, bisect_left(self._keys, size, key=itemgetter(0)) - 1)][1]

    def required(self, size: int) -> tuple[str, ...]:
        """Returns all keys that must have signed it: right after a change both, else one."""
        return tuple(dict.fromkeys((self.at(max(1, size - 1)), self.at(size))))

    def open_note(self, data: bytes) -> tuple[Note, Checkpoint]:
        """Verifies a checkpoint of the ledger under the keys that must have signed one of its size. Raises NoteError: it is
        malformed; code LOG_KEY if a key that must have signed it has not."""
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
