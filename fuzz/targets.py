"""What is fuzzed: for each target a function of bytes, its seeds, and the length of its longest input.

A target raises where one of these is broken, and the fuzzer stops there:

* nothing but a typed `AttestError` comes out of a reader;
* what a reader accepts encodes to the bytes that were read;
* nothing is admitted but what the holder of a key signed;
* no input takes more than `LIMIT` seconds.
"""

import base64
import hashlib
import io
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cbor2

from attest import cbor, keys, sign1, signed_file
from attest.attestation import Attestation, read_sequence
from attest.corpus import Item, Locator
from attest.corpus.anchor import ContentAnchor, anchor_of, sign_anchor, verify_anchor, verify_enrolled_anchor
from attest.descriptor import SignedDescriptor
from attest.errors import AttestError
from attest.gate import Admission, Gate, Seen, decide
from attest.gate.admission import Admitted
from attest.gate.reading import Verified
from attest.keys.signers import parse_identities
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey
from attest.policy import NoisePhase, Policy, SamplingRule
from attest.registry import Enrol, Entry, Grant, KeyStatement, Prove, RegistryReader, Revoke, RevokeOwn, Rotate, SetClock
from attest.registry.entries import join, read_statement
from attest.registry.names import Names
from attest.withdrawal import Withdrawal
from fuzz.budgets import BUDGET_TARGETS
from fuzz.exports import EXPORT_TARGETS
from fuzz.invariants import LIMIT, BrokenInvariant, Target, require, timed
from fuzz.notes import NOTE_TARGETS
from fuzz.printers import PRINTER_TARGETS
from tests.attacks.mutations import COPIES, TRICKY, claimed_content, make_originals, parts_of
from tests.attacks.scene import (
    ISSUER,
    OPENING,
    commitments,
    descriptor,
    descriptor_fields,
    envelope,
    header_fields,
    make_scene,
    sig_structure,
    signed,
)
from tests.vectors.published import vectors
from tests.worlds.gate import ALICE, BOB, CONTENT, CORPUS, MALLORY, NOW, OWNER, RAW, make_registry, registry_bytes
from tests.worlds.registries import RegistryBytes

__all__ = ["LIMIT", "TARGETS", "BrokenInvariant", "Target", "timed"]

# --- readers of one document -------------------------------------------------------


def run_cbor(data: bytes) -> None:
    """The strict decoder against itself and against a second library."""
    triple = cbor.byte_string_triple(data, 0)
    if triple is not None:
        *parts, end = triple
        require(cbor.decode_prefix(data, 0, max_size=len(data)) == (parts, end), "three byte strings are read otherwise")
    try:
        value = cbor.decode(data)
    except AttestError:
        return
    require(cbor.encode(value) == data, "accepted bytes do not encode to themselves")
    require(repr(cbor2.loads(data)) == repr(value), "a second library reads another value")
    require(cbor.decode_prefix(data + b"\x00", 0) == (value, len(data)), "a prefix is read otherwise than the whole")


def _document(kind: type) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        try:
            found = kind.from_cbor(data)
        except AttestError:
            return
        require(found.to_cbor() == data, f"an accepted {kind.__name__} does not encode to itself")
        require(repr(cbor2.loads(data)) == repr(cbor.decode(data, max_size=len(data))), "a second library reads another value")

    return run


def run_header(data: bytes) -> None:
    """A COSE_Sign1 message as it comes."""
    try:
        headers = sign1.parse(data)
    except AttestError:
        return
    fields = {1: -19, 4: headers.key_id, 15: {1: headers.issuer, 2: headers.subject}, 16: headers.typ}
    require(envelope(cbor.encode(fields), data[-64:]) == data, "a message is not what its header says")


def run_sequence(data: bytes) -> None:
    """An attestation file."""
    read = b""
    try:
        for attestation in read_sequence(io.BytesIO(data)):
            read += attestation.to_cbor()
    except AttestError:
        require(data.startswith(read), "attestations before a malformed one are not those of the file")
        return
    require(read == data, "an attestation file does not encode to itself")


_SCRATCH = Path(tempfile.mkdtemp(prefix="dptrain-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)) / "x.cose"


def run_signed_file(data: bytes) -> None:
    """A file of payload and signature."""
    _SCRATCH.write_bytes(data)
    try:
        payload, message = signed_file.read(_SCRATCH)
    except AttestError:
        return
    require(cbor.encode([payload, message]) == data, "a signed file does not encode to itself")


def run_statement_file(data: bytes) -> None:
    """A contributor's statement on its way to the owner."""
    _SCRATCH.write_bytes(data)
    try:
        statement, messages = read_statement(_SCRATCH)
    except AttestError:
        return
    require(cbor.encode([statement.to_cbor(), *messages]) == data, "a statement file does not encode to itself")


def run_public_key_file(data: bytes) -> None:
    """One line of text with a public key."""
    _SCRATCH.write_bytes(data)
    try:
        name, raw = keys.load_named_public_key(_SCRATCH)
    except AttestError:
        return
    line = f"dptrain-key-v1 {name} {base64.b64encode(raw).decode()}".encode()
    require(data in (line, line + b"\n"), "a key file is read that is not the one line of its key")
    keys.check_public_key(raw)


def run_agent_identities(data: bytes) -> None:
    """What an SSH agent answers when asked for its keys."""
    try:
        found = parse_identities(data)
    except AttestError:
        return
    require(all(raw in data and len(raw) == 32 for raw in found), "a key is read that the agent did not list")


def run_anchor_file(data: bytes) -> None:
    """An anchor file as it comes: only what Alice signed is believed, under her key and under the registry."""
    try:
        payload, message = signed_file.split(data, "the record", max_size=len(data))
        found = verify_anchor(payload, message, RAW["alice"])
    except AttestError:
        return
    require(data in _ANCHOR_FILES, "a record is believed that nobody signed")
    require(verify_enrolled_anchor(payload, message, SCENE.registry)[0] == found, "a key alone believes more than a registry")


# --- the gate -------------------------------------------------------

SCENE = make_scene()
ORIGINALS = [original for original in make_originals() if original.corpus == CORPUS]
_GENUINE = {original.whole for original in ORIGINALS}
_GATE = Gate(SCENE.policy, SCENE.registry, workers=1, remember=Verified())
_WARM = [Item(Locator("first", n, 1), o.content_hash, o.attestation) for n, o in enumerate(ORIGINALS[:: len(TRICKY)][:COPIES])]
"""Contributions of one form, which the gate knows after them."""


def pack(attestation: Attestation) -> bytes:
    """Packs an attestation as a fuzzer's input: lengths of descriptor and opening in two bytes each, and the three parts."""
    lengths = (len(part).to_bytes(2, "big") for part in (attestation.descriptor, attestation.opening))
    return b"".join((*lengths, attestation.descriptor, attestation.opening, attestation.sign1))


def unpack(data: bytes) -> Attestation:
    """The attestation of an input, whatever the input is."""
    end = 4 + int.from_bytes(data[:2], "big")
    last = end + int.from_bytes(data[2:4], "big")
    return Attestation(data[4:end], data[last:], data[end:last])


def judged(attestation: Attestation, content: bytes) -> Admission | str:
    """`decide` and a gate that has just admitted some of one form: both must say the same."""
    alone = decide(attestation, content, policy=SCENE.policy, registry=SCENE.registry, now=NOW, seen=Seen())
    item = Item(Locator("last", 0, 1), content, attestation)
    *warm, outcome = _GATE.judge([*_WARM, item], now=NOW)
    require(all(isinstance(found, Admitted) for found in warm), "a good contribution was refused")
    if isinstance(alone, Admission):
        again = content in [found.content_hash for found in _WARM]
        require(isinstance(outcome, Admitted) or again, "decide admits what the gate refuses")
        return alone
    require(not isinstance(outcome, Admitted), "the gate admits what decide refuses")
    require(outcome.refusal == alone, "decide and the gate refuse for different reasons")
    return str(alone.code)


def run_attestation(data: bytes) -> None:
    """An attestation that nobody signed, with the content that it claims."""
    attestation = unpack(data)
    content = claimed_content(attestation)
    if isinstance(judged(attestation, content), Admission):
        require((*parts_of(attestation), content) in _GENUINE, "something else than an original is admitted")


def run_signed_descriptor(data: bytes) -> None:
    """Any bytes as a descriptor with a good opening, signed by Alice: what a hostile contributor can do."""
    _signed_by_alice(data, OPENING)


def run_opening(data: bytes) -> None:
    """Any bytes as an opening, beside a descriptor that commits to what they say where they say anything, signed by Alice."""
    try:
        fields = cbor.decode(data)
        payload = cbor.encode(descriptor_fields() | commitments(fields))
    except (AttestError, AttributeError, TypeError):
        payload = _PAYLOAD
    _signed_by_alice(payload, data)


def _signed_by_alice(data: bytes, opening: bytes) -> None:
    protected = cbor.encode(header_fields(data))
    attestation = Attestation(data, envelope(protected, ALICE.sign(b"".join(sig_structure(protected, data)))), opening)
    outcome = judged(attestation, claimed_content(attestation))
    if not isinstance(outcome, Admission):
        return
    found = attestation.opened()
    rule = SCENE.policy.class_rule("sensitive")
    require((found.to_cbor(), found.opening()) == (data, opening), "what is admitted does not encode to itself")
    require(found.contributor == "alice" and found.corpus == CORPUS, "admitted for another contributor or corpus")
    require(found.admissibility_class == "sensitive", "admitted in a class that is not granted")
    require(SCENE.policy.min_clip_norm_micro <= found.clip_norm_micro <= rule.clip_norm_micro, "clip norm out of bounds")
    require(found.noise_multiplier_micro >= rule.noise_multiplier_micro, "noise multiplier out of bounds")
    require(found.not_before <= NOW < found.not_after <= found.not_before + 90 * 86400, "validity out of bounds")
    require((found.max_examples or 1) <= SCENE.policy.max_examples, "examples out of bounds")


_PAYLOAD = descriptor()
_PROTECTED = cbor.encode(header_fields(_PAYLOAD))


def run_signed_header(data: bytes) -> None:
    """Any bytes as a protected header, signed by Alice over a good descriptor."""
    attestation = Attestation(_PAYLOAD, envelope(data, ALICE.sign(b"".join(sig_structure(data, _PAYLOAD)))), OPENING)
    outcome = judged(attestation, hashlib.sha256(CONTENT).digest())
    require(isinstance(outcome, Admission) == (data == _PROTECTED), "another header than the one of the profile is admitted")


# --- the registry -------------------------------------------------------

REGISTRY = registry_bytes()
_OWNER_KEY = OWNER.public_key().public_bytes_raw()


def run_registry(data: bytes) -> None:
    """A registry file as it comes: only the owner's own log, or its beginning, is read."""
    try:
        RegistryReader("registry.cbor", _OWNER_KEY).advance(data)
    except AttestError:
        return
    require(REGISTRY.startswith(data), "a registry is read that the owner did not sign")


def run_registry_entry(data: bytes) -> None:
    """Any bytes as an entry, signed by the owner after those that are there."""
    message = sign1.sign(data, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY)
    try:
        state = RegistryReader("registry.cbor", _OWNER_KEY).advance(REGISTRY + join([(data, message)]))
    except AttestError:
        return
    entry = Entry.from_cbor(data)
    require(entry.to_cbor() == data, "an accepted entry does not encode to itself")
    require(entry.previous == make_registry().root(), "an entry is accepted that does not follow the last one")
    require(len(state.roots) == entry.seq + 1, "an entry is accepted out of its place")


# --- all of them -------------------------------------------------------


def registry_entries() -> list[bytes]:
    """Entries that follow the registry: every kind of action."""
    registry = make_registry()
    rotation = KeyStatement(
        kind="rotate", registry_id=registry.registry_id, key=RAW["alice"], time=NOW, new_key=RAW["mallory"]
    )
    revocation = KeyStatement(kind="revoke", registry_id=registry.registry_id, key=None, time=NOW, revoked_at=NOW)
    possession = KeyStatement(kind="prove", registry_id=registry.registry_id, key=RAW["alice"], time=NOW)
    actions = [
        Enrol("carol", RAW["mallory"], NOW, NOW + 1000, ["open"], 5, "group-1"),
        Grant("alice", ["open", "sensitive"], None),
        Revoke("alice", None, NOW),
        Rotate(rotation.to_cbor(), rotation.sign(ALICE), rotation.sign(MALLORY), NOW, NOW + 1000, NOW + 10),
        RevokeOwn(revocation.to_cbor(), revocation.sign(BOB)),
        Prove(possession.to_cbor(), possession.sign(ALICE)),
    ]
    committed, _ = _names_of(REGISTRY).committed(actions)
    entries = [Entry(len(registry.roots), registry.root(), NOW, (action,)) for action in committed]
    back = SetClock(registry.time, "the clock was ahead")
    return [entry.to_cbor() for entry in (*entries, Entry(len(registry.roots), registry.root(), registry.time - 1, (back,)))]


def _names_of(registry: RegistryBytes) -> Names:
    _SCRATCH.write_bytes(registry.names)
    return Names.read(_SCRATCH)


def run_registry_names(data: bytes) -> None:
    """Reads a file of names: what is read encodes to itself, and names only whom it opens the commitments of."""
    _SCRATCH.write_bytes(data)
    try:
        names = Names.read(_SCRATCH)
    except AttestError:
        return
    require(names.to_cbor() == data, "accepted names do not encode to themselves")
    by_name, missing = RegistryReader("registry.cbor", _OWNER_KEY).advance(REGISTRY).named(names, "registry.names")
    require(missing != "" or set(by_name) == {"alice", "bob"}, "names are complete that name others")


def key_statements() -> list[bytes]:
    fields = {"registry_id": bytes(16), "time": NOW}
    return [
        KeyStatement(kind="rotate", key=bytes(32), new_key=bytes(range(32)), **fields).to_cbor(),
        KeyStatement(kind="revoke", key=None, revoked_at=NOW, **fields).to_cbor(),
        KeyStatement(kind="prove", key=bytes(32), **fields).to_cbor(),
    ]


def _messages() -> list[bytes]:
    cose = vectors("cose")
    published = [case["cbor"] for case in [*cose["cose_wg_sign1_tests"], *cose["go_cose_negative"]]]
    return [bytes.fromhex(text) for text in [*published, *cose["rfc9942_examples"].values()]]


_ITEMS = [original.attestation.to_cbor() for original in ORIGINALS]
_WITHDRAWAL = Withdrawal(bytes(32), CORPUS, NOW, "consent").to_cbor()
_ANCHORED = [anchor_of(signed().opened(), time=NOW, opened=opened) for opened in (False, True)]
ANCHORS = [anchor.to_cbor() for anchor in _ANCHORED]
_ANCHOR_FILES = [cbor.encode(list(sign_anchor(anchor, ALICE, issuer=ISSUER))) for anchor in _ANCHORED]
_POLICY = SCENE.policy.to_cbor()
_MASKED = replace(
    SCENE.policy,
    classes=tuple(
        replace(rule, depth=replace(rule.depth, heads=(0, 3), experts=(1, 300))) if rule.depth.band else rule
        for rule in SCENE.policy.classes
    ),
).to_cbor()
_ORDERED = replace(
    SCENE.policy,
    disclosure="occurrences_public",
    sampling=SamplingRule("shuffled"),
    classes=tuple(replace(rule, sampling_rate=Fraction(1, 30)) for rule in SCENE.policy.classes),
).to_cbor()
_PHASES = (NoisePhase(1, 2_000_000), NoisePhase(2, 1_000_000))
_VARIED = replace(
    SCENE.policy,
    noise_phases=_PHASES,
    noise_budgets=(200_000, 1_000_000, 2_000_000),
    auditors=(str(VerifierKey("anna", SIGNATURE_COSIGNATURE_V1, RAW["alice"])),),
    auditor_quorum=1,
    witnesses=(str(VerifierKey("wanda", SIGNATURE_COSIGNATURE_V1, RAW["bob"])),),
    witness_quorum=1,
).to_cbor()

_KEY_LINE = b"dptrain-key-v1 alice " + base64.b64encode(RAW["alice"]) + b"\n"


def _fields(*parts: bytes) -> bytes:
    """Strings of the agent's protocol: each after its length in 32 bits."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


_IDENTITIES = b"\x00\x00\x00\x02" + _fields(
    _fields(b"ssh-ed25519", RAW["alice"]), b"alice@clinic", _fields(b"ssh-rsa", b"\x01\x00\x01", b"\x00" * 20), b"old"
)

TARGETS: dict[str, Target] = {
    "cbor": Target(
        run_cbor,
        [bytes.fromhex(case["hex"]) for case in vectors("cbor_rfc8949_appendix_a")["accept"]] + [_POLICY, _PAYLOAD],
        20000,
    ),
    "header": Target(run_header, [*_messages(), *(o.attestation.sign1 for o in ORIGINALS[:4])], 1200),
    "sequence": Target(run_sequence, [_ITEMS[0], b"".join(_ITEMS[:3]), b""]),
    "signed_file": Target(run_signed_file, [cbor.encode([_POLICY, ORIGINALS[0].attestation.sign1]), _ITEMS[0]]),
    "descriptor": Target(
        _document(SignedDescriptor), [o.attestation.descriptor for o in ORIGINALS[: len(TRICKY)]], 20000
    ),
    "opening": Target(run_opening, [OPENING, *(o.attestation.opening for o in ORIGINALS[: len(TRICKY)])], 600),
    "policy": Target(_document(Policy), [_POLICY, _MASKED, _VARIED, _ORDERED]),
    "withdrawal": Target(_document(Withdrawal), [_WITHDRAWAL]),
    "anchor": Target(_document(ContentAnchor), ANCHORS, 400),
    "anchor_file": Target(run_anchor_file, [*_ANCHOR_FILES, _ITEMS[0]], 1200),
    "key_statement": Target(_document(KeyStatement), key_statements(), 1200),
    "statement_file": Target(
        run_statement_file, [cbor.encode([statement, ORIGINALS[0].attestation.sign1]) for statement in key_statements()]
    ),
    "public_key_file": Target(run_public_key_file, [_KEY_LINE, _KEY_LINE[:-1]], 200),
    "agent_identities": Target(run_agent_identities, [_IDENTITIES, b"\x00\x00\x00\x00"]),
    "attestation": Target(run_attestation, [pack(o.attestation) for o in ORIGINALS[: len(TRICKY) + 4]], 20000),
    "signed_descriptor": Target(
        run_signed_descriptor, [o.attestation.descriptor for o in ORIGINALS[: len(TRICKY)]] + [signed().descriptor], 20000
    ),
    "signed_header": Target(
        run_signed_header, [_PROTECTED, *(cbor.decode(o.attestation.sign1[1:])[0] for o in ORIGINALS[:2])], 1200
    ),
    "registry": Target(run_registry, [REGISTRY]),
    "registry_entry": Target(run_registry_entry, registry_entries()),
    "registry_names": Target(run_registry_names, [REGISTRY.names, b""], 300),
    **NOTE_TARGETS,
    **EXPORT_TARGETS,
    **BUDGET_TARGETS,
    **PRINTER_TARGETS,
}
"""Every reader of bytes from outside, and the printers of what they read, by name."""
