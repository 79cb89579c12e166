"""The state of a registry after its last entry, and the rules by which one state follows from another.

Readers and writers both go through the rules. A writer also refuses names that a person takes for each other.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attest import sign1
from attest.errors import AttestError, KeyRefused, RegistryRefused, SignatureRefused
from attest.registry.enrolled import Enrolled, Opened, read_enrolments
from attest.registry.entries import (
    MAX_AGE,
    NO_ROOT,
    PROVE,
    REVOKE,
    ROTATE,
    Action,
    Contributor,
    Create,
    Enrol,
    Entry,
    Grant,
    KeyRecord,
    KeyStatement,
    Prove,
    Revoke,
    RevokeOwn,
    Rotate,
    SetClock,
    root_of,
    signing_key,
)
from attest.registry.names import Names
from attest.schema import check_fields
from attest.schema.plain import AHEAD_SECONDS, MAX_TIME, check_int, is_ahead, skeleton, utc


@dataclass(frozen=True, slots=True, eq=False)
class Registry:
    """Says who may attest what, by a verified log; immutable.

    `open_registry` and `RegistryLog` make these. Guarantee of both: the corpus owner signed every entry, each follows the one
    before it, no key stands twice (under one name or two), so that a signature names one contributor, and every statement of a
    contributor among the entries verified under a key that was valid when it was taken in.

    Args:
        registry_id: 16 random bytes that tell this log from every other.
        owner_key: 32 raw bytes of the key under which the entries verified.
        by_name: The contributors, by name; by commitment in hex where the name is not known.
        names_missing: Why not all names are known, for `require_names`; "" if they are.
        revocations: Keys that were revoked, by their 32 raw bytes, each with the first second from which on it was, and the log
            said so.
    """

    registry_id: bytes
    owner: str
    owner_key: bytes
    time: int
    roots: tuple[bytes, ...] = field(repr=False)
    by_name: Mapping[str, Contributor] = field(repr=False)
    names_missing: str = ""
    revocations: Mapping[bytes, int] = field(default_factory=dict, repr=False)

    def require_names(self) -> None:
        """Checks that every contributor is known by name, as whoever asks by name must. Raises RegistryRefused: code NAMES,
        with the file that is missing."""
        if self.names_missing:
            raise RegistryRefused("NAMES", self.names_missing)

    @property
    def contributors(self) -> tuple[Contributor, ...]:
        """Returns all contributors, sorted by name."""
        return tuple(self.by_name[name] for name in sorted(self.by_name))

    def find(self, name: str) -> Contributor | None:
        """Returns the contributor of that name, or None."""
        return self.by_name.get(name)

    def holder(self, key: bytes) -> Contributor | None:
        """Returns the contributor whose key it is, by its 32 raw bytes; None if it is enrolled for nobody."""
        if isinstance(self.by_name, Enrolled):
            name = self.by_name.holder(key)
            return None if name is None else self.by_name[name]
        if isinstance(self.by_name, Opened):
            return self.by_name.holder(key)
        return next((item for item in self.by_name.values() if any(record.raw == key for record in item.keys)), None)

    def keys_valid_at(self, name: str, now: int) -> tuple[KeyRecord, ...]:
        """Returns keys of a contributor that may be used at `now`; empty for an unknown contributor."""
        contributor = self.find(name)
        return tuple(record for record in contributor.keys if record.valid(now)) if contributor else ()

    def root(self) -> bytes:
        """Names this state and all that led to it: the SHA-256 over the last entry, which holds the one before."""
        return self.roots[-1]

    def extends(self, root: bytes) -> bool:
        """Tells whether `root` is this registry's root or that of an earlier state of the same log."""
        return root in self.roots

    def require_not_ahead(self, now: int) -> None:
        """Holds the time of the last entry against a clock.

        Guarantee: Where it returns, no entry since the owner's clock was last set back is dated more than
        `attest.schema.plain.AHEAD_SECONDS` after ``now``: what is revoked at the true time can be appended to it.

        Raises:
            RegistryRefused: Code CLOCK.
        """
        if is_ahead(self.time, now):
            raise RegistryRefused(
                "CLOCK",
                f"the last entry of the registry is dated {utc(self.time)}, {self.time - now} s ahead of the clock here"
                f" ({utc(now)}); set the clock right, or if it is, let the owner run 'dptrain registry set-clock'",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return (self.owner_key, self.roots, dict(self.by_name)) == (other.owner_key, other.roots, dict(other.by_name))

    def __hash__(self) -> int:
        return hash(self.roots[-1])


def look_alikes(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the groups of different names that look alike, sorted."""
    groups: dict[str, set[str]] = {}
    for name in names:
        groups.setdefault(skeleton(name), set()).add(name)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def require_unlike(actions: Iterable[Action], registry: Registry) -> None:
    """Refuses enrolments under a new name, or for a new principal, that looks like one that is there.

    The rule binds who writes, and not who reads: a registry with such names, by the will of its owner, is a registry.

    Raises:
        RegistryRefused: Code LOOK_ALIKE, naming both.
    """
    fresh = [action for action in actions if isinstance(action, Enrol)]
    if fresh:
        _require_unlike("contributor", [action.name for action in fresh], (registry.owner, *registry.by_name))
        known = (contributor.principal for contributor in registry.by_name.values())
        _require_unlike("principal", [action.principal for action in fresh], [name for name in known if name is not None])


def _require_unlike(what: str, names: Iterable[object], known: Iterable[str]) -> None:
    there = set(known)
    by_look = {skeleton(name): name for name in there}
    for name in names:
        # What is no text is refused as such, where the action is applied.
        if type(name) is not str or name in there:
            continue
        other = by_look.setdefault(skeleton(name), name)
        if other != name:
            raise RegistryRefused(
                "LOOK_ALIKE",
                f"{what} {ascii(name)[:80]} looks like {ascii(other)[:80]}, and a person takes one for the other: take another "
                "name, or say that it is meant, with --allow-look-alike",
            )


class State:
    """Adds up the entries, one at a time.

    Contributors and principals stand here by their commitments in hex, which is all that the entries say of them.

    Guarantee: `accept` raises for every entry that the rules forbid. The state is then worth nothing any more: whoever wants to
    go on from it works on a `copy`.
    """

    def __init__(self) -> None:
        self.registry_id = b""
        self.owner = ""
        self.time = 0
        self.roots: list[bytes] = []
        self.by_name = Enrolled()
        self.revocations: dict[bytes, int] = {}
        self._taken_in: set[bytes] = set()
        self._known_classes: dict[tuple[str, ...], tuple[str, ...]] = {}

    def copy(self) -> "State":
        """Returns a state that goes its own way from here."""
        other = State()
        other.registry_id, other.owner, other.time = self.registry_id, self.owner, self.time
        other.roots, other.by_name = self.roots.copy(), self.by_name.copy()
        other._taken_in, other._known_classes = self._taken_in.copy(), self._known_classes
        other.revocations = self.revocations.copy()
        return other

    def view(self, owner_key: bytes, names: Names | None, place: str) -> Registry:
        """Returns the state as it is now, for those who ask and change nothing."""
        by_name, missing = self.named(names, place)
        state = (self.registry_id, self.owner, owner_key, self.time, tuple(self.roots), by_name, missing)
        return Registry(*state, revocations=self.revocations.copy())

    def named(self, names: Names | None, place: str) -> tuple[Mapping[str, Contributor], str]:
        """Returns contributors by name, by commitment where that is not known, and what is missing, "" if nothing is."""
        if self.by_name.has_runs:
            found = None if names is None else Opened.of(self.by_name.copy(), names)
            if found is not None:
                return found, ""
            if names is None:
                return self.by_name.copy(), _missing(f"there is no {place!r}")
        by_name, missing = dict[str, Contributor](), ""
        for contributor in self.by_name.values():
            opened = None if names is None else names.opened(contributor)
            if opened is None:
                what = f"there is no {place!r}" if names is None else f"{place!r} does not name {contributor.name[:8]}"
                missing = missing or _missing(what)
            by_name[(opened or contributor).name] = opened or contributor
        if len(by_name) != len(self.by_name):
            raise RegistryRefused("NAMES", f"{place!r} gives one name to two contributors; restore the file")
        return by_name, missing

    def accept(self, payload: bytes, message: bytes, owner_key: bytes | None) -> None:
        """Takes one entry further, or refuses it. `owner_key`: 32 raw bytes of the owner's key; None to look without verifying,
        for display only. Raises RegistryRefused: with the number of the entry and the code of what is wrong with it."""
        try:
            issuer = _issuer(payload, message, owner_key)
            if not self._enrol_runs(payload, issuer):
                self._follow(Entry.from_cbor(payload), issuer)
        except AttestError as error:
            sentence = f"entry {len(self.roots)} of the registry is refused: {error.sentence}"
            raise RegistryRefused(error.code, sentence) from error
        self.roots.append(root_of(payload))

    def _enrol_runs(self, payload: bytes, issuer: str) -> bool:
        """Takes in an entry that enrols many contributors alike; False leaves it, whatever it is, to `_follow`.

        Guarantee: an entry that is taken in here is one that `_follow` accepts, and leads to an equal state.
        """
        found = read_enrolments(payload)
        if found is None or not self.roots or issuer != self.owner:
            return False
        entry = found.head
        follows = entry.seq == len(self.roots) and entry.previous == self.roots[-1] and entry.time >= self.time
        if not follows or not self.by_name.take(found.runs):
            return False
        self.time = entry.time
        return True

    def _follow(self, entry: Entry, issuer: str) -> None:
        if entry.seq != len(self.roots):
            raise RegistryRefused("SEQ", f"its number is {entry.seq}; an entry is missing, repeated or out of order")
        if entry.previous != (self.roots[-1] if self.roots else NO_ROOT):
            raise RegistryRefused("PREVIOUS", "it does not follow the entry before it, but another; the log was altered")
        self._follow_time(entry)
        if type(entry.actions[0]) is not Create and not self.roots:
            raise RegistryRefused("SCHEMA", "a registry begins with the action 'create'")
        self.time = entry.time
        for position, action in enumerate(entry.actions):
            if type(action) is Create and (self.roots or position):
                raise RegistryRefused("SCHEMA", "'create' stands elsewhere than at the very start")
            if type(action) is SetClock and position:
                raise RegistryRefused("SCHEMA", "'set clock' stands elsewhere than at the start of its entry")
            check_fields(action, RegistryRefused)
            self._apply(action)
        if issuer != self.owner:
            raise RegistryRefused("HEADER", f"it is issued by {issuer}, the registry belongs to {self.owner}")

    def _follow_time(self, entry: Entry) -> None:
        """Holds the time of an entry against that of the entry before: it runs back only where the owner says so."""
        first = entry.actions[0]
        if type(first) is SetClock:
            if first.before != self.time or entry.time >= self.time:
                sentence = f"it sets the clock back from {ascii(first.before)[:40]} to {entry.time}; it stands at {self.time}"
                raise RegistryRefused("CLOCK", sentence)
        elif entry.time < self.time:
            sentence = f"its time is {entry.time}, {self.time - entry.time} s before the entry before it, without 'set clock'"
            raise RegistryRefused("CLOCK", sentence)

    def _apply(self, action: Action) -> None:
        match action:
            case Enrol():
                self._enrol(action)
            case Create():
                self.registry_id, self.owner = action.registry_id, action.owner
            case Grant():
                known = self._known(action.name)
                self.by_name[known.name] = replace(known, classes=self._classes(action.classes), cap=action.cap)
            case Rotate():
                self._rotate(action)
            case Revoke():
                self._end(self._known(action.name), action.key, action.at)
            case RevokeOwn():
                self._revoke_own(action)
            case Prove():
                self._prove(action)
            case SetClock():
                pass  # What it sets is the time of the entry, which `_follow_time` held against it.

    def _enrol(self, action: Enrol) -> None:
        classes = self._classes(action.classes)
        record = KeyRecord(action.key, action.not_before, action.not_after)
        name = _in_hex(action.name)
        principal = None if action.principal is None else _in_hex(action.principal)
        known = self.by_name.get(name)
        if known is None:
            changed = Contributor(name, (record,), classes, action.cap, principal)
        else:
            if principal not in (None, known.principal) and known.principal is not None:
                sentence = f"{known.name} has another principal already, and once stated it stays; enrol another name"
                raise RegistryRefused("RANGE", sentence)
            changed = Contributor(
                known.name,
                (*known.keys, record),
                self._classes(sorted({*known.classes, *classes})),
                known.cap if action.cap is None else action.cap,
                known.principal if principal is None else principal,
            )
        self._claim(record.raw, changed.name)
        self.by_name[changed.name] = changed

    def _rotate(self, action: Rotate) -> None:
        statement = self._statement(action.statement, ROTATE)
        old, new = statement.key or b"", statement.new_key or b""
        known = self._holder(old, "the old key of the rotation")
        record = next(record for record in known.keys if record.raw == old)
        if not record.valid(self.time):
            sentence = f"the old key of the rotation is no valid key of {known.name} at {self.time}; enrol the new key instead"
            raise RegistryRefused("KEY_UNKNOWN", sentence)
        self._check_signed(statement, action.by_old, old, "old")
        self._check_signed(statement, action.by_new, new, "new")
        check_int(action.old_not_after, "end of the old key", 0, record.not_after, error=RegistryRefused)
        shortened = replace(record, not_after=action.old_not_after, proved=True)
        fresh = KeyRecord(new, action.not_before, action.not_after, proved=True)
        self._claim(new, known.name)
        keys = (*(shortened if item.raw == old else item for item in known.keys), fresh)
        self.by_name[known.name] = replace(known, keys=keys)

    def _prove(self, action: Prove) -> None:
        statement = self._statement(action.statement, PROVE)
        key = statement.key or b""
        known = self._holder(key, "the key that the statement proves")
        self._check_signed(statement, action.message, key, "proved")
        keys = tuple(replace(record, proved=True) if record.raw == key else record for record in known.keys)
        self.by_name[known.name] = replace(known, keys=keys)

    def _revoke_own(self, action: RevokeOwn) -> None:
        statement = self._statement(action.statement, REVOKE)
        signing = signing_key(action.message)
        known = self._holder(signing, "the key that signed the revocation")
        if not any(record.raw == signing and record.valid(self.time) for record in known.keys):
            raise RegistryRefused("SIG_BAD", f"the revocation is signed by no key of {known.name} that is valid at {self.time}")
        self._check_signed(statement, action.message, signing, "signing")
        self._end(known, statement.key, statement.revoked_at or 0)

    def _end(self, known: Contributor, key: bytes | None, at: int) -> None:
        if key is not None and key not in [record.raw for record in known.keys]:
            raise RegistryRefused("KEY_UNKNOWN", f"contributor {known.name} has no such key; 'registry show' lists them")
        keys = tuple(
            replace(record, revoked_at=at if record.revoked_at is None else min(at, record.revoked_at))
            if key in (None, record.raw)
            else record
            for record in known.keys
        )
        self.by_name[known.name] = replace(known, keys=keys)
        for raw in (record.raw for record in keys if key in (None, record.raw)):
            self.revocations[raw] = min(max(self.time, at), self.revocations.get(raw, MAX_TIME))

    def _statement(self, data: bytes, kind: str) -> KeyStatement:
        """Returns a statement that may be taken in here and now; its signatures are still to be checked."""
        statement = KeyStatement.from_cbor(data)
        if statement.kind != kind:
            raise RegistryRefused("SCHEMA", f"the statement is to {statement.kind}, expected to {kind}")
        if statement.registry_id != self.registry_id:
            raise RegistryRefused(
                "AUDIENCE",
                f"the statement is for registry {statement.registry_id.hex()}, this one is {self.registry_id.hex()};"
                " it must be signed for this one",
            )
        if not statement.time - AHEAD_SECONDS <= self.time <= statement.time + MAX_AGE:
            raise RegistryRefused(
                "STALE",
                f"the statement was signed at {statement.time} and taken in at {self.time}; it is good for"
                f" {MAX_AGE // 86400} days, sign it again",
            )
        digest = hashlib.sha256(data).digest()
        if digest in self._taken_in:
            raise RegistryRefused("REPLAYED", "the statement was taken in before; each is good for once")
        self._taken_in.add(digest)
        return statement

    def _check_signed(self, statement: KeyStatement, message: Any, key: bytes, which: str) -> None:
        try:
            headers = sign1.verify(message, statement.to_cbor(), key, typ=sign1.TYP_KEY)
        except KeyRefused as error:
            raise RegistryRefused(error.code, error.sentence) from error
        except SignatureRefused as error:
            raise SignatureRefused(error.code, f"the statement is not signed by the {which} key: {error.sentence}") from error
        if headers.issuer != key.hex():
            raise SignatureRefused("HEADER", f"the statement is issued by {headers.issuer}, not by the {which} key in hex")

    def _known(self, name: str | bytes) -> Contributor:
        known = self.by_name.get(_in_hex(name))
        if known is None:
            raise RegistryRefused("KEY_UNKNOWN", "an action is on a contributor who is not in the registry")
        return known

    def _holder(self, raw: bytes, what: str) -> Contributor:
        """Says whose key it is: every key stands in one contributor only."""
        name = self.by_name.holder(raw)
        if name is None:
            raise RegistryRefused("KEY_UNKNOWN", f"{what}, {raw.hex()}, is not in the registry")
        return self.by_name[name]

    def _claim(self, raw: bytes, name: str) -> None:
        holder = self.by_name.holder(raw)
        if holder is not None:
            sentence = f"key {raw.hex()} is enrolled for {holder} already; every contributor needs keys of its own"
            raise RegistryRefused("KEY_IN_USE", sentence)
        self.by_name.claim(raw, name)

    def _classes(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns names of classes as the one tuple that all contributors with these classes share."""
        classes = tuple(names)
        return self._known_classes.setdefault(classes, classes)


def _in_hex(commitment: str | bytes) -> str:
    """Returns the hex under which a commitment is kept."""
    return commitment if isinstance(commitment, str) else commitment.hex()


def _missing(what: str) -> str:
    """Returns the sentence that names are missing."""
    return f"{what}: it holds the names of contributors; get the one of this registry from the owner"


def _issuer(payload: bytes, message: bytes, owner_key: bytes | None) -> str:
    if owner_key is None:
        return sign1.parse(message).issuer
    try:
        return sign1.verify(message, payload, owner_key, typ=sign1.TYP_REGISTRY).issuer
    except SignatureRefused as error:
        sentence = f"{error.sentence}; the owner's key given is another one, or the file was altered"
        raise SignatureRefused(error.code, sentence) from error
