"""Reads the registry and the attestations of an export, and holds what was signed against ADMIT leaves."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from attest.attestation import SIGNATURE_SIZE, CommonTerms, Framing
from attest.descriptor import TRAIN, SignedDescriptor
from attest.errors import AdmissionRefused, FileRefused, KeyRefused, RegistryRefused
from attest.files import read_limited
from attest.gate.checks import check_audience, check_bounds, check_purpose, check_validity
from attest.keys import check_public_key
from attest.policy import Policy
from attest.registry import MAX_SIZE, Contributor, KeyRecord, Registry, RegistryWalk, open_registry, read_states
from attest.registry.names import beside, names_of
from attest.schema.plain import MAX_TIME, utc
from ledger import layout, tiles
from ledger.audit.findings import Report
from ledger.audit.given import Export
from ledger.errors import LedgerCorrupt, ProofError
from ledger.leaves import Admit, Header
from ledger.leaves.attestations import misfit, unpack

_LATEST: Final = "get the latest registry from the corpus owner"


@dataclass(frozen=True, slots=True)
class Registered:
    """Holds a verified registry, and the state of it by which a run admitted.

    `walk` stands at the state that the header names, and goes on to later ones.

    Guarantee: The header's owner key signed every entry. The log has the root that the signed policy names, and `admitted` is
    its state with the root that the header names, which is that of the policy or a later one.
    """

    admitted: Registry
    latest: Registry
    walk: RegistryWalk


@dataclass(frozen=True, slots=True)
class Known:
    """Holds a state of a registry by which a run goes, and its keys by key id, each with the contributor who has it."""

    state: Registry
    by_key: dict[bytes, list[tuple[Contributor, KeyRecord]]]

    @classmethod
    def of(cls, state: Registry) -> "Known":
        """Returns a state with its keys in order."""
        by_key: dict[bytes, list[tuple[Contributor, KeyRecord]]] = {}
        for contributor in state.by_name.values():
            for record in contributor.keys:
                by_key.setdefault(record.key_id, []).append((contributor, record))
        return cls(state, by_key)


def registry_of(header: Header, path: Path) -> Registry:
    """Opens a registry under the key of the policy's owner, if it is the one that the run began with or a later state of it.
    Raises RegistryRefused: as `attest.registry.open_registry`; code REGISTRY_ROOT, it is another one or an earlier state."""
    known = open_registry(path, header.owner_key)
    if not known.extends(header.registry_root):
        raise RegistryRefused("REGISTRY_ROOT", _not_there(known, header.registry_root, "the run began"))
    return known


def registered(header: Header, export: Export, brought: Path | None, fault: Report) -> Registered | None:
    """Returns the registry by which a run admitted; None without any, or after reporting what is wrong with it. A file
    `brought` by the auditor counts in place of the export's, which it must extend."""
    found, where = None, layout.REGISTRY
    try:
        data = export.read(layout.REGISTRY)
        if data is not None:
            walk = RegistryWalk(data, header.owner_key)
            found = (*read_states(data, header.owner_key, header.registry_root), walk)
        if brought is not None:
            exported, where = found, str(brought)
            found = _brought(header, brought)
            if exported is not None and not found[1].extends(exported[1].root()):
                sentence = _not_there(found[1], exported[1].root(), "the registry in the export ends")
                raise RegistryRefused("REGISTRY_ROOT", sentence)
        return None if found is None else _checked(header, *found)
    except RegistryRefused as error:
        fault(error.code, where, error.sentence)
    return None


def _brought(header: Header, path: Path) -> tuple[Registry | None, Registry, RegistryWalk]:
    """Returns both states of a registry in a file, with the names that lie beside it, and a walk through all of them."""
    try:
        data = read_limited(path, MAX_SIZE, "contributor registry")
    except FileRefused as error:
        raise RegistryRefused(error.code, error.sentence) from error
    named: dict[str, Any] = {"names": names_of(path), "place": str(beside(path))}
    walk = RegistryWalk(data, header.owner_key, **named)
    return *read_states(data, header.owner_key, header.registry_root, **named), walk


def _checked(header: Header, admitted: Registry | None, latest: Registry, walk: RegistryWalk) -> Registered:
    if admitted is None:
        raise RegistryRefused("REGISTRY_ROOT", _not_there(latest, header.registry_root, "the run began"))
    root = header.policy.registry_root
    if root is None or not admitted.extends(root):
        named = "none" if root is None else root.hex()
        told = f"the run began with the root {header.registry_root.hex()}, which does not extend {named}"
        raise RegistryRefused("REGISTRY_ROOT", f"{told}, the one that the policy names: another registry, or an earlier state")
    walk.to(header.registry_root)
    return Registered(admitted, latest, walk)


def _not_there(registry: Registry, root: bytes, what: str) -> str:
    told = f"the registry has the root {registry.root().hex()} and does not extend {root.hex()}, with which {what}"
    return f"{told}; {_LATEST}"


_QUOTED: Final = ("class", "profile", "clip norm", "noise multiplier", "max occurrences", "key", "epsilon limit", "its delta")

Fault = tuple[str, str]
"""Code and sentence of what is wrong."""


@dataclass(frozen=True, slots=True)
class Signing:
    """Holds the key under which attestations of some terms verify; `verify` raises `InvalidSignature`."""

    contributor: Contributor
    record: KeyRecord
    verify: Callable[[bytes, bytes], None]


class Agreed:
    """Holds ADMIT leaves against the attestations of some terms.

    `signing` is None where no registry is known, or it has no key of that id. `share` counts the admissions of the key's
    contributor, and those it may have; all terms of one contributor share it.

    Guarantee: Where `judge` returns nothing, the descriptor made of the terms and the leaf's anchor has the leaf's descriptor
    hash, and with the message made of the signature the leaf's attestation hash; the leaf quotes of it class, bounds, limits
    and key; its time lies in the validity of the attestation and, if the registry is known, of the key, which is not revoked by
    then and under which the signature verifies. Where `problems` yields nothing, the descriptor is for this corpus and to be
    trained on, no longer valid than the policy allows, within the bounds of its class, and that class is for training and
    granted to the key's contributor.
    """

    def __init__(self, terms: CommonTerms, policy: Policy, registry: Known | None) -> None:
        """Takes terms; without a registry only the leaves can be held against them."""
        self.signed: SignedDescriptor = terms.signed
        self.signing: Signing | None = None
        self.share = [0, 0]
        self._key_id, self._policy, self._registry = terms.key_id, policy, registry
        self._framing = Framing(terms)
        self._quoted = _quoted(terms, policy)
        self._first, self._end = self.signed.not_before, self.signed.not_after

    def find_key(self, anchor: bytes, signature: bytes) -> None:
        """Finds the key of these terms in the registry: of several with one id, that under which an attestation verifies."""
        known = [] if self._registry is None else self._registry.by_key.get(self._key_id, [])
        found = [Signing(*item, Ed25519PublicKey.from_public_bytes(item[1].raw).verify) for item in known]
        if len(found) > 1:
            data = self._to_be_signed(anchor)
            found = [item for item in found if _verifies(item, signature, data)] or found
        if found:
            self.signing = found[0]
            record = self.signing.record
            revoked = MAX_TIME if record.revoked_at is None else record.revoked_at
            self._first = max(self._first, record.not_before)
            self._end = min(self._end, record.not_after, revoked)

    def problems(self, time: int) -> Iterator[Fault]:
        """Yields what is wrong with these terms by the time of the first leaf admitted under them."""
        rule = self._policy.find_class(self.signed.admissibility_class)
        try:
            check_audience(self.signed, self._policy)
            if rule is not None:
                check_purpose(self.signed, rule, TRAIN)
                check_validity(self.signed, rule, self._policy, time)
                check_bounds(self.signed, rule, self._policy)
        except AdmissionRefused as error:
            yield error.code, f"its attestation: {error.sentence}"
        if rule is None:
            name = self.signed.admissibility_class
            yield "CLASS_UNKNOWN", f"its attestation is for class {name}, which the policy has not, or not to train on"
        if self._registry is None:
            return
        if self.signing is None:
            told = f"key {self._key_id.hex()} is not in the state of the registry that the run admitted by"
            yield "KEY_UNKNOWN", f"its attestation is signed by nobody who is enrolled: {told}"
            return
        try:
            check_public_key(self.signing.record.raw)
        except KeyRefused as error:
            yield error.code, error.sentence
        granted = self.signing.contributor.classes
        if self.signed.admissibility_class not in granted:
            told = f"the contributor of key {self._key_id.hex()} may attest {', '.join(granted) or 'none'}"
            yield "CLASS_NOT_GRANTED", f"{told}, not {self.signed.admissibility_class}"

    def judge(self, leaf: Admit, signature: bytes) -> Fault | None:
        """Holds a leaf against its attestation; returns the first thing that is wrong."""
        framing = self._framing
        descriptor = framing.descriptor(leaf.anchor)
        digest = hashlib.sha256(descriptor).digest()
        subject = b"sha-256:" + digest.hex().encode("ascii")
        if (
            digest != leaf.descriptor_hash
            or framing.digest(descriptor, framing.message(subject, signature)) != leaf.attestation_hash
        ):
            return "ATTESTATION", f"its attestation is not the one that it quotes: {misfit(leaf, framing, signature)}"
        if _quotes(leaf) != self._quoted:
            return "QUOTED", self._misquoted(leaf)
        if self.signing is not None:
            try:
                self.signing.verify(signature, framing.to_be_signed(descriptor, subject))
            except InvalidSignature:
                told = f"the signature of its attestation does not verify under key {self._key_id.hex()}"
                return "SIG_BAD", f"{told}: its contributor did not sign this"
        return None if self._first <= leaf.time < self._end else self._untimely(leaf.time)

    def _to_be_signed(self, anchor: bytes) -> bytes:
        descriptor = self._framing.descriptor(anchor)
        return self._framing.to_be_signed(descriptor, b"sha-256:" + hashlib.sha256(descriptor).hexdigest().encode("ascii"))

    def _misquoted(self, leaf: Admit) -> str:
        pairs = zip(_QUOTED, _quotes(leaf), self._quoted, strict=True)
        wrong = [f"{what} {_said(here)} where {_said(there)} was signed" for what, here, there in pairs if here != there]
        return f"it says {', '.join(wrong)}"

    def _untimely(self, time: int) -> Fault:
        """Says which validity a time lies outside of."""
        signed = self.signed
        if not signed.not_before <= time < signed.not_after:
            code = "NOT_YET_VALID" if time < signed.not_before else "EXPIRED"
            told = f"its attestation is valid from {utc(signed.not_before)} to {utc(signed.not_after)}"
            return code, f"{told}, not at {utc(time)}"
        assert self.signing is not None
        record = self.signing.record
        if record.revoked(time):
            told = f"key {self._key_id.hex()} is revoked from {utc(record.revoked_at or 0)} on"
            return "KEY_REVOKED", f"{told}, the leaf is of {utc(time)}"
        told = f"key {self._key_id.hex()} is valid from {utc(record.not_before)} to {utc(record.not_after)}"
        return "KEY_NOT_VALID", f"{told}, not at {utc(time)}"


_quotes: Callable[[Admit], tuple[object, ...]] = attrgetter(
    "class_name", "profile_id", "clip_micro", "sigma_micro", "max_occurrences", "key_id", "max_epsilon_micro", "max_delta_pico"
)
"""Returns what a leaf quotes of an attestation, beside digests."""


def _quoted(terms: CommonTerms, policy: Policy) -> tuple[object, ...]:
    """Returns what a leaf must quote of attestations of these terms; no limit where the contribution is public."""
    signed = terms.signed
    names = [rule.name for rule in policy.classes]
    name = signed.admissibility_class
    return name, names.index(name) if name in names else -1, *signed.bounds, terms.key_id, *signed.limit


def _said(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _verifies(signing: Signing, signature: bytes, data: bytes) -> bool:
    try:
        signing.verify(signature, data)
    except InvalidSignature:
        return False
    return True


_BUNDLES: Final = 16
"""Bundles of terms that are kept in memory."""

_HEADS: Final = 4096
"""Numbers of terms whose encoding is kept in memory."""

_SIGNATURE_HEAD: Final = b"\x58\x40"
"""Head of a byte string of 64 bytes."""


class Shown:
    """Reads what an export shows of attestations, in the order of the leaves.

    Memory is bounded: one bundle of signatures and some of terms, whatever the size of the export.
    """

    def __init__(self, export: Export, fault: Report) -> None:
        self._export, self._fault = export, fault
        self._n, self._admits = -1, 0
        self._entries: list[bytes] | None = []
        self._numbers: dict[bytes, int] = {}
        self._bundle = lru_cache(maxsize=_BUNDLES)(self._read_terms)

    def entry(self, seq: int, *, admit: bool = False) -> bytes | None:
        """Returns what stands beside a leaf behind that of the call before: empty where nothing does, None where it cannot be
        read, which was reported. `admit` says that it is an ADMIT leaf whose body is there."""
        n, within = divmod(seq, layout.TILE_WIDTH)
        if n != self._n:
            self._turn(n)
        self._admits += admit
        if self._entries is None:
            return None
        return self._entries[within] if self._entries else b""

    def number(self, entry: bytes, seq: int) -> int | None:
        """Returns the number of the terms of what stands beside an ADMIT leaf, or None after reporting what is wrong."""
        head, signature_head = entry[: -SIGNATURE_SIZE - 2], entry[-SIGNATURE_SIZE - 2 : -SIGNATURE_SIZE]
        number = self._numbers.get(head) if signature_head == _SIGNATURE_HEAD else None
        if number is None:
            try:
                number = unpack(entry)[0]
            except LedgerCorrupt as error:
                self._fault("ATTESTATION", f"seq {seq}", f"what stands beside it is no attestation: {error.sentence}")
                return None
            if len(self._numbers) >= _HEADS:
                self._numbers.clear()
            self._numbers[head] = number
        if number >= self._export.terms:
            there = f"the export has terms 0 to {self._export.terms - 1}" if self._export.terms else "the export has no terms"
            self._fault("TERMS", f"seq {seq}", f"its attestation names terms {number}; {there}")
            return None
        return number

    def terms(self, number: int) -> bytes | None:
        """Returns the bytes of common terms by their number, or None after reporting why not."""
        n, within = divmod(number, layout.TILE_WIDTH)
        bundle = self._bundle(n)
        return None if bundle is None else bundle[within]

    def end(self) -> None:
        """Says that every leaf was seen."""
        self._turn(None)

    def _turn(self, n: int | None) -> None:
        """Reads the bundle of signatures beside another bundle of entries; None at the end."""
        if self._entries and not self._admits:
            name = layout.signed_path(self._n, layout.width_of(self._n, self._export.size))
            self._fault("UNKNOWN_FILE", name, "no ADMIT leaf beside it has a body: nothing belongs here")
        self._admits, self._entries = 0, []
        if n is not None:
            self._n, width = n, layout.width_of(n, self._export.size)
            name = layout.signed_path(n, width)
            if name in self._export.names:
                self._entries = self._split(name, width)

    def _read_terms(self, n: int) -> list[bytes] | None:
        width = layout.width_of(n, self._export.terms)
        return self._split(layout.terms_path(n, width), width)

    def _split(self, name: str, width: int) -> list[bytes] | None:
        data = self._export.read(name)
        try:
            return None if data is None else tiles.split_bundle(data, width)
        except ProofError as error:
            self._fault("BUNDLE", name, error.sentence)
            return None
