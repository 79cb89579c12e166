"""Judges whose signatures make a checkpoint one to rely on: the log's, and quorums of auditors and witnesses.

Format: C2SP tlog-policy. A file of lines ``log <vkey> [<url>]``, ``witness <name> <vkey> [<url>]``, ``group <name> all|any|<k>
<name>...`` and one ``quorum <name>|none``. It is read as octets: names are compared byte for byte, and only space and tab
separate. What this reader asks beyond the format: key ids fit their keys, a witness has no key of a log (a log that cosigns
itself proves nothing), and keys are Ed25519 (types 0x01 for logs and 0x04 for witnesses).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from attest.schema.plain import EARLIEST, is_ahead, machine_time, utc, visible
from ledger.errors import LedgerWrongRun, NoteError, TrustError
from ledger.note import (
    SIGNATURE_COSIGNATURE_V1,
    SIGNATURE_ED25519,
    Checkpoint,
    Signature,
    VerifierKey,
    open_note,
    parse_checkpoint,
    parse_verifier_key,
)

MAX_POLICY_SIZE: Final = 1_000_000
"""Longest policy that is looked at, in bytes."""

MAX_LINES: Final = 1_000
"""Most definitions in one policy; implementations must take 32 logs, 32 witnesses and 32 groups."""

NO_QUORUM: Final = "none"
"""The predefined name of a quorum that asks for no cosignature."""

AUDITORS: Final = "auditors"
"""The group of the auditors whom a ledger's own policy names."""

WITNESSES: Final = "witnesses"
"""The group of its witnesses."""

BOTH: Final = "auditors-and-witnesses"
"""The group of both groups, the quorum where the policy names both."""

_FORBIDDEN = re.compile(rb"[^\t\n\x20-\x7e\x80-\xff]")
_BLANKS = re.compile("[ \t]+")
_THRESHOLD = re.compile("[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True)
class Witness:
    """Names a cosigner that a policy knows: its name inside the policy, and its key."""

    name: str
    key: VerifierKey


@dataclass(frozen=True, slots=True)
class Group:
    """Joins witnesses and groups, of which ``threshold`` make the group count as one that has cosigned."""

    name: str
    threshold: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrustedCheckpoint:
    """Holds a checkpoint that satisfies a policy.

    Attributes:
        cosigned: the verified cosignatures by witnesses of the policy that count, in the order of their lines.
        ignored: name and key id of each line by a key that the policy does not know; it counts for nothing.
        misdated: verified cosignatures by witnesses of the policy that count for nothing, for their time.
    """

    checkpoint: Checkpoint
    log: VerifierKey
    cosigned: tuple[Signature, ...]
    ignored: tuple[tuple[str, bytes], ...] = ()
    misdated: tuple[Signature, ...] = ()


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """Says which logs count, and which cosignatures a checkpoint of theirs needs.

    Attributes:
        groups: in the order of their definition, so that members come before.
        quorum: the witness or group that must have cosigned, or ``none``.
    """

    logs: tuple[VerifierKey, ...]
    witnesses: tuple[Witness, ...] = ()
    groups: tuple[Group, ...] = ()
    quorum: str = NO_QUORUM

    @property
    def vkeys(self) -> list[str]:
        """Returns all keys of the policy, as `open_note` takes them."""
        return [str(key) for key in (*self.logs, *(witness.key for witness in self.witnesses))]

    def satisfied(self, cosigners: Collection[VerifierKey]) -> bool:
        """Tells whether these cosigners are a quorum."""
        return self.quorum == NO_QUORUM or self.quorum in self._names(cosigners)

    def keys_of(self, group: str) -> tuple[VerifierKey, ...]:
        """Returns the keys of the witnesses that are members of a group themselves; none where there is no such group."""
        members = next((item.members for item in self.groups if item.name == group), ())
        return tuple(witness.key for witness in self.witnesses if witness.name in members)

    def has_cosigned(self, group: str, cosigners: Collection[VerifierKey]) -> bool:
        """Tells whether enough of these cosigners are members of a group."""
        return group in self._names(cosigners)

    def open_checkpoint(self, data: bytes, *, now: int | None = None) -> TrustedCheckpoint:
        """Opens a checkpoint under this policy.

        Guarantee: Returns only if a log of the policy, named like the checkpoint's origin, signed it, and cosigners that are a
        quorum did, over this very size and root, at times in [`attest.schema.plain.EARLIEST`, ``now`` +
        `attest.schema.plain.AHEAD_SECONDS`]; and no line that claims a key of the policy fails to verify. So two readers with
        one policy, whose quorums share an honest cosigner, never accept different histories of one log.

        Args:
            now: the caller's clock, POSIX seconds; that of this machine without.

        Raises:
            NoteError: the note is malformed, or a line by a known key does not verify.
            LedgerWrongRun: it is a checkpoint of another log.
            TrustError: the log's own signature, or the quorum, is missing.
        """
        if not self.logs:
            raise TrustError("NO_LOG", "the policy names no log; add 'log <vkey>' with the log's verifier key")
        note = open_note(data, self.vkeys)
        checkpoint = parse_checkpoint(note.text)
        named = [key for key in self.logs if key.name == checkpoint.origin]
        if not named:
            known = ", ".join(sorted(key.name for key in self.logs))
            raise LedgerWrongRun("ORIGIN", f"the checkpoint is of {checkpoint.origin!r}, the policy is for {known}")
        signed = [signature.key for signature in note.signatures]
        log = next((key for key in named if key in signed), None)
        if log is None:
            raise TrustError("LOG_UNSIGNED", f"the checkpoint of {checkpoint.origin!r} is not signed by the log's own key")
        clock = machine_time() if now is None else now
        lines = tuple(item for item in note.signatures if item.key.kind == SIGNATURE_COSIGNATURE_V1)
        ahead = tuple(item for item in lines if is_ahead(item.timestamp or 0, clock))
        found = TrustedCheckpoint(checkpoint, log, tuple(item for item in lines if item not in ahead), note.ignored, ahead)
        return self.judged_since(found, EARLIEST)

    def judged_since(self, found: TrustedCheckpoint, since: int) -> TrustedCheckpoint:
        """Returns an opened checkpoint without the cosignatures that are older than a leaf under it. `since`: time of the last
        leaf under it that the caller knows of: who cosigned before had not seen that. Raises TrustError: code QUORUM, the
        others are no quorum."""
        early = tuple(item for item in found.cosigned if (item.timestamp or 0) < since)
        cosigned, misdated = tuple(item for item in found.cosigned if item not in early), (*found.misdated, *early)
        if not self.satisfied({item.key for item in cosigned}):
            raise TrustError("QUORUM", self._missing(cosigned, misdated))
        return replace(found, cosigned=cosigned, misdated=misdated)

    def text(self) -> bytes:
        """Returns the policy as a file, without URLs and comments; `parse_policy` reads it back as equal."""
        lines = [f"log {key}" for key in self.logs]
        lines += [f"witness {witness.name} {witness.key}" for witness in self.witnesses]
        lines += [f"group {group.name} {group.threshold} {' '.join(group.members)}" for group in self.groups]
        return "".join(f"{line}\n" for line in (*lines, f"quorum {self.quorum}")).encode("utf-8", "surrogateescape")

    def _names(self, cosigners: Collection[VerifierKey]) -> set[str]:
        """Returns the witnesses and groups that count as having cosigned; members are defined before their group."""
        names = {witness.name for witness in self.witnesses if witness.key in cosigners}
        for group in self.groups:
            if len(names.intersection(group.members)) >= group.threshold:
                names.add(group.name)
        return names

    def _missing(self, cosigned: Iterable[Signature], misdated: Iterable[Signature]) -> str:
        there = ", ".join(visible(item.key.name) for item in cosigned) or "nobody"
        dated = ", ".join(f"{visible(item.key.name)} ({utc(item.timestamp or 0)})" for item in misdated)
        wrong = f" (dated before the leaf, or ahead of the clock here, and of no account: {dated})" if dated else ""
        return (
            f"the policy asks for cosignatures of {self.quorum!r}, and the checkpoint is cosigned by {there}{wrong}; ask "
            "its auditors and witnesses"
        )


def auditors_policy(
    log_vkey: str, auditors: Sequence[str] = (), quorum: int = 0, witnesses: Sequence[str] = (), witness_quorum: int = 0
) -> TrustPolicy:
    """Returns the policy of one log under which ``quorum`` of these auditors, and ``witness_quorum`` of these witnesses, must
    have cosigned; 0 asks for none. Raises NoteError: a key is malformed; TrustError: as `parse_policy`."""
    return _written([log_vkey], auditors, quorum, witnesses, witness_quorum)


def policy_of_keys(vkeys: Sequence[str], quorum: int = 0) -> TrustPolicy:
    """Returns the policy over verifier keys by their types: logs (0x01), and auditors (0x04) of whom ``quorum`` must cosign.
    Raises NoteError: a key is malformed; TrustError: as `parse_policy`."""
    kinds = [(vkey, parse_verifier_key(vkey).kind) for vkey in vkeys]
    logs = [vkey for vkey, kind in kinds if kind == SIGNATURE_ED25519]
    return _written(logs, [vkey for vkey, kind in kinds if kind == SIGNATURE_COSIGNATURE_V1], quorum)


def parse_policy(data: bytes) -> TrustPolicy:
    """Reads a trust policy. Raises TrustError: the text is not a policy; the sentence names the line."""
    if type(data) is not bytes or len(data) > MAX_POLICY_SIZE:
        raise TrustError("SIZE", f"a trust policy has at most {MAX_POLICY_SIZE} bytes")
    found = _FORBIDDEN.search(data)
    if found is not None:
        raise TrustError("OCTET", f"byte {found.start()} is 0x{found[0][0]:02x}: a trust policy has no control characters")
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    stated = [(number, words) for number, line in enumerate(lines, start=1) if (words := _words(line))]
    if len(stated) > MAX_LINES:
        raise TrustError("SIZE", f"a trust policy has at most {MAX_LINES} definitions, got {len(stated)}")
    reader = _Reader()
    for number, words in stated:
        try:
            reader.take(words)
        except (NoteError, TrustError) as error:
            raise TrustError(error.code, f"line {number} of the trust policy: {error.sentence}") from error
    return reader.policy()


def _written(
    logs: Sequence[str], auditors: Sequence[str], quorum: int, witnesses: Sequence[str] = (), witness_quorum: int = 0
) -> TrustPolicy:
    lines, groups = [f"log {vkey}" for vkey in logs], []
    for group, kind, vkeys, asked in (
        (AUDITORS, "auditor", auditors, quorum),
        (WITNESSES, "witness", witnesses, witness_quorum),
    ):
        names = [f"{kind}-{number}" for number in range(1, len(vkeys) + 1)]
        lines += [f"witness {name} {vkey}" for name, vkey in zip(names, vkeys, strict=True)]
        if asked:
            lines.append(" ".join(["group", group, str(asked), *names]))
            groups.append(group)
    if len(groups) == 2:
        lines.append(" ".join(["group", BOTH, "all", *groups]))
    lines.append(f"quorum {(groups[0] if len(groups) == 1 else BOTH) if groups else NO_QUORUM}")
    return parse_policy("".join(f"{line}\n" for line in lines).encode())


def _words(line: str) -> list[str]:
    stripped = line.strip(" \t")
    return [] if not stripped or stripped.startswith("#") else _BLANKS.split(stripped)


class _Reader:
    """Collects definitions line by line; a line can refer only to what came before it."""

    def __init__(self) -> None:
        self._logs: list[VerifierKey] = []
        self._witnesses: list[Witness] = []
        self._groups: list[Group] = []
        self._quorum: str | None = None
        self._names: set[str] = set()
        self._members: set[str] = set()

    def take(self, words: list[str]) -> None:
        readers = {"log": self._log, "witness": self._witness, "group": self._group, "quorum": self._set_quorum}
        if words[0] not in readers:
            raise TrustError("KEYWORD", f"unknown keyword {words[0]!r:.60}; expected log, witness, group or quorum")
        readers[words[0]](words[1:])

    def policy(self) -> TrustPolicy:
        if self._quorum is None:
            raise TrustError("NO_QUORUM", "the trust policy has no quorum line; write 'quorum none' to ask for no cosignature")
        return TrustPolicy(tuple(self._logs), tuple(self._witnesses), tuple(self._groups), self._quorum)

    def _log(self, words: list[str]) -> None:
        if len(words) not in (1, 2):
            raise TrustError("LOG", f"expected 'log <vkey> [<url>]', got {len(words)} items")
        self._logs.append(self._key(words[0], SIGNATURE_ED25519, "log"))

    def _witness(self, words: list[str]) -> None:
        if len(words) not in (2, 3):
            raise TrustError("WITNESS", f"expected 'witness <name> <vkey> [<url>]', got {len(words)} items")
        self._define(words[0])
        self._witnesses.append(Witness(words[0], self._key(words[1], SIGNATURE_COSIGNATURE_V1, "witness")))

    def _group(self, words: list[str]) -> None:
        if len(words) < 3:
            raise TrustError("GROUP", f"expected 'group <name> all|any|<k> <name>...', got {len(words)} items")
        name, wanted, *members = words
        for member in members:
            if member not in self._names:
                raise TrustError("MEMBER", f"member {member!r} of group {name!r} is not defined on a line before")
            if member in self._members:
                raise TrustError("MEMBER", f"{member!r} is a member of a group twice, so that it would count twice")
            self._members.add(member)
        self._define(name)
        self._groups.append(Group(name, _threshold(wanted, len(members)), tuple(members)))

    def _set_quorum(self, words: list[str]) -> None:
        if len(words) != 1:
            raise TrustError("QUORUM_LINE", f"expected 'quorum <name>', got {len(words)} items")
        if self._quorum is not None:
            raise TrustError("QUORUM_LINE", "a second quorum line; a trust policy has exactly one")
        if words[0] != NO_QUORUM and words[0] not in self._names:
            raise TrustError("QUORUM_LINE", f"the quorum {words[0]!r} is not defined on a line before")
        self._quorum = words[0]

    def _define(self, name: str) -> None:
        if name == NO_QUORUM or name in self._names:
            what = "is reserved" if name == NO_QUORUM else "is defined twice"
            raise TrustError("NAME", f"the name {name!r} {what}; choose another")
        self._names.add(name)

    def _key(self, vkey: str, kind: int, what: str) -> VerifierKey:
        key = parse_verifier_key(vkey)
        if key.kind != kind:
            raise TrustError("KEY_TYPE", f"the key of a {what} has type {kind:02x}, got {key.kind:02x} of {key.name!r}")
        known = (*self._logs, *(witness.key for witness in self._witnesses))
        same = next((other for other in known if other.public_key == key.public_key), None)
        if same is not None:
            raise TrustError("DUPLICATE_KEY", f"{key.name!r} and {same.name!r} have one public key, and are one signer")
        return key


def _threshold(wanted: str, members: int) -> int:
    if wanted in ("all", "any"):
        return members if wanted == "all" else 1
    if _THRESHOLD.fullmatch(wanted) is None or int(wanted) > members:
        raise TrustError("THRESHOLD", f"the threshold of a group is all, any or 1 to {members}, got {wanted!r:.40}")
    return int(wanted)
