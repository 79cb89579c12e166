"""Vectors of what contributors and owners sign: attestations as a gate judges them, policies, registries, withdrawals."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Any
from unittest.mock import patch

from attest import cbor, keys, sign1
from attest.attestation import Attestation
from attest.corpus.anchor import ContentAnchor, sign_anchor, verify_anchor
from attest.errors import AttestError
from attest.gate import Refusal
from attest.keys.vkeys import SIGNATURE_COSIGNATURE_V1, VerifierKey
from attest.policy import NoisePhase, Policy, SamplingRule, sign_policy, unbuilt, verify_policy
from attest.registry import Create, Entry, KeyStatement, Registry
from attest.registry.entries import join, split
from attest.registry.log import read_states
from attest.registry.names import Named, Names
from attest.withdrawal import Withdrawal, sign_withdrawal, verify_withdrawal
from tests.attacks.attestation.test_attested_through_the_command import THROUGH_THE_COMMAND
from tests.attacks.attestation.test_numbers_and_sizes import BOUNDS
from tests.attacks.attestation.test_validity_and_clocks import VALIDITY
from tests.attacks.mutations import TRICKY
from tests.attacks.scene import ISSUER, Scene, descriptor, envelope, header_fields, make_scene, signed, with_fields
from tests.attest.test_policy_words import PLAIN, WORDS
from tests.vectors.conformance import consenting, correlated, geometries, groups, narrowed
from tests.vectors.conformance.leaves import mutations
from tests.vectors.conformance.values import told
from tests.worlds.gate import (
    ALICE,
    BOB,
    CONTENT,
    CORPUS,
    MALLORY,
    MICRO,
    NOW,
    OTHER_CORPUS,
    OWNER,
    RAW,
    YEAR,
    key_of,
    registry_bytes,
)
from tests.worlds.registries import RegistryBytes, continued, load

OWNER_RAW = keys.public_bytes(OWNER)
CAROL, DAVE = key_of(5), key_of(6)

Row = dict[str, Any]


def sha256(data: bytes) -> bytes:
    """Returns the hash by which contents are known."""
    return hashlib.sha256(data).digest()


def _refused(call: Callable[[], object]) -> str | None:
    """The code of a refusal, None where there is none."""
    try:
        call()
    except AttestError as error:
        return error.code
    return None


def _answer(row: Row, call: Callable[[], object]) -> Row:
    code = _refused(call)
    return row | ({"answer": "accepted"} if code is None else {"answer": "refused", "code": code})


# --- attestations -----------------------------------------------------------------------------------------------------------


@cache
def scene() -> Scene:
    """The registry and the policy that attestations are judged by."""
    return make_scene()


def world() -> Row:
    """Returns what stands around the attestations."""
    found, registry = scene(), registry_bytes()
    payload, message = sign_policy(found.policy, OWNER, owner="owner", registry_root=found.registry.root())
    generating = sign_policy(consenting.both(found.policy), OWNER, owner="owner", registry_root=found.registry.root())
    return {
        "owner": OWNER_RAW.hex(),
        "policy": {"payload": payload.hex(), "sign1": message.hex()},
        "generating": {"payload": generating[0].hex(), "sign1": generating[1].hex()},
        "registry": bytes(registry).hex(),
        "names": registry.names.hex(),
        "content": CONTENT.hex(),
    }


def _judged(
    name: str,
    attestation: Attestation | None,
    *,
    now: int = NOW,
    content: bytes | None = CONTENT,
    purpose: str | None = None,
) -> Row:
    row: Row = {"name": name}
    if attestation is not None:
        row |= {
            "descriptor": attestation.descriptor.hex(),
            "sign1": attestation.sign1.hex(),
            "opening": attestation.opening.hex(),
        }
    if now != NOW:
        row["now"] = now
    if content != CONTENT:
        row["content"] = None if content is None else content.hex()
    if purpose is None:
        outcome = scene().outcome(attestation, now=now, content=content)
    else:
        row["purpose"] = purpose
        policy = consenting.both(scene().policy)
        outcome = scene().outcome(attestation, now=now, content=content, policy=policy, purpose=purpose)
    if isinstance(outcome, Refusal):
        return row | {"answer": "refused", "code": str(outcome.code)}
    return row | {"answer": "admitted"}


def attestations() -> Iterator[Row]:
    """Yields attestations, each judged by itself: nothing was admitted or withdrawn before."""
    yield _judged("the example of docs/formats", signed())
    for number, changes in enumerate(TRICKY):
        if "content hash" not in changes:
            yield _judged(f"fields that look like others, {number}", signed(changes))
    for name, (changes, _) in BOUNDS.items():
        yield _judged(name, signed(changes))
    for name, (changes, now, _) in VALIDITY.items():
        yield _judged(name, signed(changes), now=now)
    seen: dict[str, int] = {}
    for name, (make, code) in THROUGH_THE_COMMAND.items():
        attestation, row = make(), name.split(" ")[0]
        key = f"{row} {code}"
        seen[key] = seen.get(key, 0) + 1
        if row not in ("A16", "A20") and seen[key] <= 3 and len(attestation.descriptor) < 1000:
            yield _judged(name, attestation)
    yield _judged("other content", signed(), content=b"other")
    yield _judged("no content", signed(), content=None)
    yield _judged("no attestation", None)
    yield _judged("an opening of another contribution", replace(signed(), opening=signed(nonce=bytes(16)).opening))
    yield _judged("no opening", replace(signed(), opening=b""))
    yield _judged("for a purpose that nobody serves", signed({16: ["query"]}))
    yield _judged("for one that nobody serves, beside training", signed({16: ["query", "train"]}))
    yield _judged("to generate alone", signed({16: ["generate"]}))
    yield _judged("to generate and train", signed({16: ["generate", "train"]}))
    yield _judged("to train and generate, out of order", signed({16: ["train", "generate"]}))
    for purpose in ("generate", "train"):
        for words in (None, ["train"], ["generate"], ["generate", "train"]):
            told_words = "for nothing by name" if words is None else f"to {' and '.join(words)}"
            changes = {} if words is None else {16: words}
            yield _judged(f"{told_words}, asked to {purpose}", signed(changes), purpose=purpose)
    bob = {"contributor": "bob", 4: "open", 16: ["generate", "train"]}
    yield _judged("of a class that does not generate", signed(bob, key=BOB), purpose="generate")
    yield _judged("of a class that trains alone, asked to train", signed(bob, key=BOB), purpose="train")
    yield _judged("with a public length that the class does not offer", signed({17: 512}))
    yield _judged("the purpose train written out", signed({16: ["train"]}))
    yield _judged("one example written out", signed({13: 1}))
    yield _judged("signed by bob", signed(key=BOB))
    yield _judged("a clock of the year 10000", signed(), now=253402300800)


# --- policies ---------------------------------------------------------------------------------------------------------------


def _policies() -> Iterator[tuple[str, Policy]]:
    policy = scene().policy
    auditor = str(VerifierKey("auditor.example/anna", SIGNATURE_COSIGNATURE_V1, RAW["alice"]))
    witness = str(VerifierKey("witness.example/w", SIGNATURE_COSIGNATURE_V1, RAW["bob"]))
    audited = replace(policy, auditors=(auditor,), auditor_quorum=1)
    turns = tuple(replace(rule, sampling_rate=Fraction(1, 30)) for rule in policy.classes)
    yield "two classes", policy
    yield "auditors", audited
    yield "auditors and witnesses", replace(audited, witnesses=(witness,), witness_quorum=1)
    yield "two horizons", replace(audited, retention_epochs=1, retention_hash_epochs=2)
    yield "phases", replace(policy, noise_phases=(NoisePhase(1, 2 * MICRO), NoisePhase(2, MICRO)))
    yield "budgets", replace(policy, noise_budgets=(1, 10**9, MICRO))
    yield "statement A", replace(policy, isolation_required=True)
    yield (
        "lengths that everybody may know",
        replace(policy, classes=(replace(policy.classes[0], public_lengths=(128, 512)), *policy.classes[1:])),
    )
    public: dict[str, Any] = {"disclosure": "occurrences_public", "classes": turns}
    for order in ("cyclic", "shuffled"):
        yield f"{order} order", replace(policy, sampling=SamplingRule(order), **public)
    in_files = (correlated.BANDS_IN_FILE, correlated.COLUMNS, correlated.DENSE)
    for rule in (correlated.BANDS, correlated.NORMALIZED, correlated.INVERSE, correlated.BUFFERS, *in_files):
        name = f"{rule.name}{', normalized' * getattr(rule.parameters, 'normalized', False)}"
        name += ", in a file" if rule is correlated.BANDS_IN_FILE else ""
        yield name, replace(policy, sampling=SamplingRule("cyclic"), mechanism=rule, **public)
    secret = replace(policy, disclosure="secret_draws", sampling=groups.turns_of(3))
    yield "groups", secret
    yield "groups and bands", replace(secret, mechanism=groups.THREE)
    yield "most groups, in phases", replace(secret, sampling=groups.turns_of(10**9), noise_phases=(NoisePhase(1, 2 * MICRO),))
    yield "groups of public draws, which no header may have", replace(secret, disclosure="occurrences_public")
    yield from geometries.policies(policy)
    yield from narrowed.policies(policy)
    yield from consenting.policies(policy)


def _written_out(fields: dict[Any, Any]) -> Iterator[tuple[str, bytes]]:
    """Yields policies that say a default, or parameters where there are none, or a word that no version has."""

    def policy(**changes: Any) -> bytes:
        return cbor.encode(dict(sorted((fields | {int(key[1:]): value for key, value in changes.items()}).items())))

    def class_of(beside: dict[int, Any] | None = None, **changes: Any) -> bytes:
        own = dict(sorted((fields[22][0] | {int(key[1:]): value for key, value in changes.items()}).items()))
        return policy(_22=[own, *fields[22][1:]], **{f"_{key}": value for key, value in (beside or {}).items()})

    public: dict[str, Any] = {"_6": "occurrences_public"}
    yield "the purpose train written out", class_of(_10=["train"])
    yield "Poisson draws written out", policy(_26=["poisson", {}])
    yield "Poisson draws written out, and public", policy(**public, _26=["poisson", {}])
    yield "a class that is said not to be public", class_of(_7=False)
    yield "statement A said not to be asked for", policy(_31=False)
    yield "no limit over runs written out", class_of(_8=None)
    for name, said in geometries.malformed():
        yield f"a geometry: {name}", cbor.encode(dict(sorted((fields | said).items())))
    for name, own in narrowed.malformed():
        yield f"reads: {name}", class_of({31: True}, **{f"_{key}": value for key, value in own.items()})
    for name, own in consenting.malformed():
        yield name, class_of(**{f"_{key}": value for key, value in own.items()})
    yield "reads without statement A", class_of(_9={1: ["clinic"]})
    yield "one phase of the whole noise written out", policy(_24=[[1, MICRO]])
    yield "a parameter of Gaussian noise", policy(_13=["gaussian", {"scale": 1}, None])
    yield "a digest of Gaussian noise", policy(_13=["gaussian", {}, bytes(32)])
    yield "a parameter of a cyclic order", policy(**public, _26=["cyclic", {"groups": 1}])
    yield "noise of a family that is none", policy(_13=["cauchy", {}, None])
    for name, rule in _strategies():
        yield f"noise of {name}", policy(_13=rule)
    for name, said in _groups():
        yield name, policy(**said)
    yield "an order that is none", policy(**public, _26=["random", {}])
    yield "a purpose that is none", class_of(_10=["sell"])
    yield "key 29", policy(_29=1)


def _groups() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields draws from groups that are malformed, or with what they do not go with."""
    secret: dict[str, Any] = {"_6": "secret_draws"}
    yield "groups of secret Poisson draws", {"_26": ["cyclic_poisson", {1: 3}]}
    yield "groups without their number", secret | {"_26": ["cyclic_poisson", {}]}
    yield "one group", secret | {"_26": ["cyclic_poisson", {1: 1}]}
    yield "too many groups", secret | {"_26": ["cyclic_poisson", {1: 10**9 + 1}]}
    yield "groups by name", secret | {"_26": ["cyclic_poisson", {"groups": 3}]}
    yield "groups with a field more", secret | {"_26": ["cyclic_poisson", {1: 3, 2: 3}]}
    yield "half a group more", secret | {"_26": ["cyclic_poisson", {1: 3.5}]}
    yield "groups with null behind them", secret | {"_26": ["cyclic_poisson", {1: 3}, None]}
    yield "secret draws without an order", secret
    yield "secret draws in a cyclic order", secret | {"_26": ["cyclic", {}]}


def _strategies() -> Iterator[tuple[str, list[Any]]]:
    """Yields laws of noise whose strategy is malformed."""
    one, half = 1 << 20, 1 << 39
    yield "bands without coefficients and digest", ["banded_toeplitz", {1: 2}, None]
    yield "bands with coefficients and a digest", ["banded_toeplitz", {1: 2, 2: [one, 5]}, bytes(32)]
    yield "more bands than coefficients", ["banded_toeplitz", {1: 3, 2: [one, 5]}, None]
    yield "one band", ["banded_toeplitz", {1: 1, 2: [one]}, None]
    yield "a first coefficient below one", ["banded_inverse", {1: 2, 2: [one - 1, 5]}, None]
    yield "a coefficient above one", ["banded_inverse", {1: 2, 2: [one, -one - 1]}, None]
    yield "a coefficient that is a float", ["banded_toeplitz", {1: 2, 2: [one, 0.5]}, None]
    yield "a coefficient that is true", ["banded_toeplitz", {1: 2, 2: [one, True]}, None]
    yield "bands said not to be normalized", ["banded_toeplitz", {1: 2, 2: [one, 5], 3: False}, None]
    yield "bands with a field more", ["banded_toeplitz", {1: 2, 2: [one, 5], 4: 1}, None]
    yield "bands without a digest's place", ["banded_toeplitz", {1: 2, 2: [one, 5]}]
    yield "buffers that are bands", ["buffered_toeplitz", {1: 2, 2: [one, 5]}, None]
    yield "buffers with fewer scales", ["buffered_toeplitz", {1: [half, half], 2: [half]}, None]
    yield "no buffer", ["buffered_toeplitz", {1: [], 2: []}, None]
    yield "17 buffers", ["buffered_toeplitz", {1: [half] * 17, 2: [1] * 17}, None]
    yield "a decay of one", ["buffered_toeplitz", {1: [1 << 40], 2: [half]}, None]
    yield "a scale of nothing", ["buffered_toeplitz", {1: [half], 2: [0]}, None]
    yield "buffers with a digest", ["buffered_toeplitz", {1: [half], 2: [half]}, bytes(32)]


def policies() -> Iterator[Row]:
    """Yields signed policies."""

    def row(name: str, payload: bytes, message: bytes, key: bytes = OWNER_RAW) -> Row:
        made = {"name": name, "payload": payload.hex(), "sign1": message.hex(), "key": key.hex()}
        return _answer(made, lambda: verify_policy(payload, message, key))

    root = scene().registry.root()
    for name, policy in _policies():
        payload, message = sign_policy(policy, OWNER, owner="owner", registry_root=root)
        yield row(name, payload, message) | {"fields": told(cbor.decode(payload, max_size=1 << 20))}
    payload, message = sign_policy(scene().policy, OWNER, owner="owner", registry_root=root)
    yield row("another key pinned", payload, message, RAW["alice"])
    yield row("a bit of the signature", payload, message[:-1] + bytes([message[-1] ^ 1]))
    yield row("signed as a withdrawal", payload, sign1.sign(payload, OWNER, contributor="owner", typ=sign1.TYP_WITHDRAWAL))
    for name, bad in islice(mutations(cbor.decode(payload), each=1), 0, None, 3):
        found = row(name, bad, sign1.sign(bad, OWNER, contributor="owner", typ=sign1.TYP_POLICY))
        if found["answer"] == "refused":
            yield found
    for name, bad in _written_out(cbor.decode(payload)):
        message = sign1.sign(bad, OWNER, contributor="owner", typ=sign1.TYP_POLICY)
        yield row(name, bad, message)
    for (key, word), changes in WORDS.items():
        with patch.object(unbuilt, "UNBUILT", {}):
            payload = replace(PLAIN, registry_root=root, **changes).to_cbor()
        message = sign1.sign(payload, OWNER, contributor="owner", typ=sign1.TYP_POLICY)
        yield row(f"specified, not built: {key} {word}", payload, message)


# --- registries -------------------------------------------------------------------------------------------------------------


def _statement(registry: Registry, **fields: Any) -> KeyStatement:
    return KeyStatement(registry_id=registry.registry_id, time=NOW - 100, **fields)


@cache
def _long_registry() -> RegistryBytes:
    """A registry with every kind of action; the salts of all names are fixed."""
    first = Entry(0, bytes(32), NOW - YEAR, (Create(b"vectors-registry", "owner"),)).to_cbor()
    begun = RegistryBytes(cbor.encode([first, sign1.sign(first, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY)]))
    begun.names = Names(Named(name, name[:1].encode() * 16) for name in ("alice", "bob", "carol")).to_cbor()
    valid: dict[str, Any] = {"not_before": NOW - YEAR, "not_after": NOW + YEAR, "now": NOW - YEAR}
    carol, dave = keys.public_bytes(CAROL), keys.public_bytes(DAVE)
    known = load(
        continued(
            begun,
            OWNER,
            lambda log: log.enrol("alice", RAW["alice"], classes=("sensitive",), **valid),
            lambda log: log.enrol("bob", RAW["bob"], classes=("open", "sensitive"), cap=3, **valid),
        ),
        OWNER,
    )
    rotation = _statement(known, kind="rotate", key=RAW["alice"], new_key=dave)
    possession = _statement(known, kind="prove", key=RAW["bob"])
    revocation = _statement(known, kind="revoke", key=carol, revoked_at=NOW - 50)
    times = {"not_before": NOW - 90, "not_after": NOW + YEAR, "old_not_after": NOW + 10, "now": NOW - 90}
    return continued(
        begun,
        OWNER,
        lambda log: log.enrol("alice", RAW["alice"], classes=("sensitive",), **valid),
        lambda log: log.enrol("bob", RAW["bob"], classes=("open", "sensitive"), cap=3, **valid),
        lambda log: log.enrol("carol", carol, classes=("open",), **valid),
        lambda log: log.grant("alice", classes=("open", "sensitive"), cap=7, now=NOW - 95),
        lambda log: log.rotate(rotation, rotation.sign(ALICE), rotation.sign(DAVE), **times),
        lambda log: log.prove(possession, possession.sign(BOB), now=NOW - 90),
        lambda log: log.revoke_own(revocation, revocation.sign(CAROL), now=NOW - 80),
        lambda log: log.revoke("bob", RAW["bob"], at=NOW + 5, now=NOW + 5000),
        lambda log: log.set_clock("the clock was ahead by an hour", now=NOW),
    )


def _state(registry: Registry) -> Row:
    """What a registry amounts to for whoever has no names."""
    return {
        "roots": [root.hex() for root in registry.roots],
        "time": registry.time,
        "contributors": [
            {
                "commitment": one.name,
                "classes": list(one.classes),
                "cap": one.cap,
                "keys": [
                    {
                        "key": key.raw.hex(),
                        "not_before": key.not_before,
                        "not_after": key.not_after,
                        "revoked_at": key.revoked_at,
                        "proved": key.proved,
                    }
                    for key in one.keys
                ],
            }
            for one in sorted(registry.contributors, key=lambda one: one.name)
        ],
    }


def _bad_registries() -> Iterator[tuple[str, bytes, bytes]]:
    """Yields registries that are refused whole, each with the key that its reader pins."""
    items = list(split(_long_registry()))
    yield "another owner's key", join(items), RAW["alice"]
    yield "the first entry is missing", join(items[1:]), OWNER_RAW
    yield "an entry in the middle is missing", join([*items[:2], *items[3:]]), OWNER_RAW
    yield "two entries traded places", join([*items[:2], items[3], items[2], *items[4:]]), OWNER_RAW
    yield "an entry twice", join([*items, items[-1]]), OWNER_RAW
    yield "signatures traded places", join([(items[0][0], items[1][1]), (items[1][0], items[0][1])]), OWNER_RAW
    payload = items[1][0].replace(RAW["alice"], RAW["mallory"])
    yield "a key exchanged", join([items[0], (payload, items[1][1])]), OWNER_RAW
    forged = sign1.sign(payload, MALLORY, contributor="owner", typ=sign1.TYP_REGISTRY)
    yield "a key exchanged, and signed by another", join([items[0], (payload, forged)]), OWNER_RAW
    yield "cut in the middle of an item", join(items)[:-1], OWNER_RAW
    yield "a byte behind it", join(items) + b"\x00", OWNER_RAW
    last = items[1][0]
    for name, bad in islice(mutations(cbor.decode(last), each=1), 0, None, 2):
        message = sign1.sign(bad, OWNER, contributor="owner", typ=sign1.TYP_REGISTRY)
        yield f"entry 1: {name}", join([items[0], (bad, message)]), OWNER_RAW


def registries() -> Iterator[Row]:
    """Yields registry files, and what they amount to."""
    data = bytes(_long_registry())
    _, latest = read_states(data, OWNER_RAW, bytes(32))
    yield {"name": "every kind of action", "registry": data.hex(), "key": OWNER_RAW.hex(), "answer": "accepted"} | _state(
        latest
    )
    items = list(split(data))
    cut = join(items[:3])
    _, early = read_states(cut, OWNER_RAW, bytes(32))
    yield {"name": "an earlier state of it", "registry": cut.hex(), "key": OWNER_RAW.hex(), "answer": "accepted"} | _state(
        early
    )
    for name, bad, key in _bad_registries():
        code = _refused(lambda bad=bad, key=key: read_states(bad, key, bytes(32)))
        if code is not None:
            yield {"name": name, "registry": bad.hex(), "key": key.hex(), "answer": "refused", "code": code}


# --- withdrawals and anchors ------------------------------------------------------------------------------------------------


def withdrawals() -> Iterator[Row]:
    """Yields signed withdrawals, read as one by alice of something in the corpus."""
    good = Withdrawal(bytes(range(32)), CORPUS, NOW, "consent")

    def row(name: str, payload: bytes, message: bytes) -> Row:
        made = {"name": name, "payload": payload.hex(), "sign1": message.hex(), "key": RAW["alice"].hex()}
        made |= {"issuer": "alice", "corpus": CORPUS}
        return _answer(made, lambda: verify_withdrawal(payload, message, RAW["alice"], signer="alice", corpus=CORPUS))

    payload, message = sign_withdrawal(good, ALICE, signer="alice")
    yield row("by its contributor", payload, message) | {"fields": told(cbor.decode(payload))}
    yield row("by another key", *sign_withdrawal(good, BOB, signer="alice"))
    yield row("under another name", *sign_withdrawal(good, ALICE, signer="bob"))
    yield row("of another corpus", *sign_withdrawal(replace(good, corpus=OTHER_CORPUS), ALICE, signer="alice"))
    yield row("signed as an attestation", payload, sign1.sign(payload, ALICE, contributor="alice", typ=sign1.TYP_ATTESTATION))
    for name, bad in mutations(cbor.decode(payload), each=2):
        found = row(name, bad, sign1.sign(bad, ALICE, contributor="alice", typ=sign1.TYP_WITHDRAWAL))
        if found["answer"] == "refused":
            yield found
    for reason in ("expired", "key-revoked", "class-not-granted"):
        bad = cbor.encode(cbor.decode(payload) | {5: reason})
        yield row(f"the reason {reason}", bad, sign1.sign(bad, ALICE, contributor="alice", typ=sign1.TYP_WITHDRAWAL))


def anchors() -> Iterator[Row]:
    """Yields content anchors, read under alice's key."""
    good = ContentAnchor(bytes(range(32)), bytes(32), NOW, bytes(16))

    def row(name: str, payload: bytes, message: bytes) -> Row:
        made = {"name": name, "payload": payload.hex(), "sign1": message.hex(), "key": RAW["alice"].hex()}
        return _answer(made, lambda: verify_anchor(payload, message, RAW["alice"]))

    for name, anchor in (("with its nonce", good), ("without", replace(good, nonce=None))):
        payload, message = sign_anchor(anchor, ALICE, issuer=ISSUER)
        yield row(name, payload, message) | {"fields": told(cbor.decode(payload))}
    yield row("by another key", *sign_anchor(good, MALLORY, issuer=ISSUER))
    payload, message = sign_anchor(good, ALICE, issuer=ISSUER)
    yield row("signed as an attestation", payload, sign1.sign(payload, ALICE, contributor=ISSUER, typ=sign1.TYP_ATTESTATION))
    for name, bad in mutations(cbor.decode(payload), each=2):
        found = row(name, bad, sign1.sign(bad, ALICE, contributor=ISSUER, typ=sign1.TYP_ANCHOR))
        if found["answer"] == "refused":
            yield found


# --- messages ---------------------------------------------------------------------------------------------------------------


def messages() -> Iterator[Row]:
    """Yields COSE_Sign1 messages over one descriptor, read as an attestation's under alice's key."""
    payload = descriptor()

    def row(name: str, message: bytes) -> Row:
        made = {"name": name, "payload": payload.hex(), "sign1": message.hex(), "key": RAW["alice"].hex()}
        return _answer(made, lambda: sign1.verify(message, payload, RAW["alice"], typ=sign1.TYP_ATTESTATION))

    good = signed().sign1
    protected, signature = cbor.decode(good[1:])[0], good[-64:]
    yield row("as it should be", good)
    yield row("without its tag", good[1:])
    yield row("another tag", b"\xd1" + good[1:])
    yield row("the payload attached", envelope(protected, signature, payload=cbor.encode(payload)))
    yield row("an unprotected label", envelope(protected, signature, unprotected=b"\xa1\x04\x41\x00"))
    yield row("a signature of 63 bytes", envelope(protected, signature[:-1]))
    yield row("a byte behind it", good + b"\x00")
    for name, changes in (
        ("another algorithm", {1: -8}),
        ("crit", {2: [99]}),
        ("an unknown label", {99: 1}),
        ("no type", {16: 0}),
    ):
        fields = with_fields(header_fields(payload), changes)
        ordered = dict(sorted(fields.items()))
        yield row(name, sign_over(ordered, payload))


def sign_over(fields: dict[Any, Any], payload: bytes) -> bytes:
    """Returns a message whose signature is right over whatever header it has."""
    protected = cbor.encode(fields)
    return envelope(protected, ALICE.sign(sign1.to_be_signed(protected, payload)))


def vectors() -> dict[str, Any]:
    """Returns all vectors of documents."""
    return {
        "world": world(),
        "attestations": list(attestations()),
        "messages": list(messages()),
        "policies": list(policies()),
        "registries": list(registries()),
        "withdrawals": list(withdrawals()),
        "anchors": list(anchors()),
    }
