"""A27 of the attack list: whoever reads an export and guesses rightly learns nothing from it.

The attacker has all that an export shows of a run, which are the registry and of attestations terms and signature too, and the
descriptors and messages that these make again. It has the true
contents, contributors, data classes and principals as its dictionary; only nonces and salts are missing. It hashes every guess
under every domain of the project, with everything in the export as a salt, and looks for the digest anywhere. The same attacker
is set on commitments that are weak in ways that come to mind, and confirms every guess there: so the test can fail.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from attest import cbor, keys, sign1
from attest.attestation import SIGNATURE_SIZE, CommonTerms
from attest.corpus import Item, Locator
from attest.corpus.signing import SigningTemplate, sign_descriptor
from attest.descriptor import ContributionDescriptor
from attest.gate import run_gate
from attest.gate.admission import SharedTerms
from attest.policy import sign_policy, verify_policy
from attest.schedule.stack import HEAD, NO_TOWER, Stack, StackTensor, Tower
from attest.schema.plain import CONTENT, CONTRIBUTOR, DATA_CLASS, PRINCIPAL, commit
from ledger.leaves import HELD, HeaderSpec
from ledger.leaves.header import ADDRESSED
from ledger.leaves.weights import WeightRecord
from ledger.log.ledger import AdmitSpec, Ledger
from ledger.note import NoteSigner
from tests.worlds.gate import CORPUS, MICRO, NOW, OWNER, YEAR, key_of, make_policy, registry_bytes
from tests.worlds.registries import continued, load, put

CLASSES = ("sensitive", "open")
CONTRIBUTORS = ("hospital-berne", "hospital-basel", "practice-keller", "practice-favre")
IN_GROUPS = {"practice-favre": "group-of-friends"}
"""Principals that the registry states; the attestations of the other contributors state principals themselves."""

EACH = 12
SOURCES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Published:
    """What an export shows, and where somebody would look for salts in it.

    Args:
        files: Bytes of every file of the export, and of descriptor and signature of every attestation.
        common: What stands in it once: ids, keys, names in the clear.
        single: What stands in it for single contributions.
    """

    files: tuple[bytes, ...]
    common: frozenset[bytes]
    single: frozenset[bytes]


@dataclass(frozen=True)
class Run:
    """A run that was trained and exported, and what its export must not confirm."""

    export: tuple[bytes, ...]
    header: tuple[bytes, ...]
    opened: tuple[ContributionDescriptor, ...]
    messages: tuple[bytes, ...]
    contents: tuple[bytes, ...]
    names: bytes

    @property
    def truth(self):
        """The dictionary: everything true that might be guessed, by kind."""
        guesses = {("content", content) for content in self.contents}
        for one in self.opened:
            guesses |= {("contributor", one.contributor.encode()), ("data class", one.data_class.encode())}
            guesses |= {("principal", one.principal.encode())} if one.principal else set()
        return guesses

    @property
    def enrolled(self):
        """The principals that the registry commits to."""
        return {("principal", principal.encode()) for principal in IN_GROUPS.values()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Attestations through the gate into a ledger, some steps, and its export."""
    place = tmp_path_factory.mktemp("exported")
    signers = {name: key_of(40 + number) for number, name in enumerate(CONTRIBUTORS)}
    valid = {"not_before": NOW - YEAR, "not_after": NOW + YEAR, "now": NOW - YEAR}
    enrolled = continued(
        registry_bytes(),
        OWNER,
        *(
            lambda log, name=name, key=key: log.enrol(
                name, keys.public_bytes(key), classes=CLASSES, principal=IN_GROUPS.get(name), **valid
            )
            for name, key in signers.items()
        ),
    )
    registry = load(enrolled, OWNER)
    opened, contents = [], []
    for number, name in enumerate(CONTRIBUTORS):
        template = SigningTemplate(
            contributor=name,
            data_class=f"{('oncology', 'cardiology')[number % 2]}/letters",
            admissibility_class=CLASSES[number % 2],
            clip_norm_micro=MICRO,
            noise_multiplier_micro=1_100_000,
            corpus=CORPUS,
            not_before=NOW - 1000,
            not_after=NOW + 1000,
            principal=f"patient-{number}" if number < 3 else None,
        )
        for record in range(EACH):
            contents.append(f'{{"text": "letter {record} of {name}"}}'.encode())
            opened.append(template.descriptor(hashlib.sha256(contents[-1]).digest()))
    attestations = [sign_descriptor(one, signers[one.contributor]) for one in opened]
    items = [Item(Locator("x", n, 1), one.content_hash, a) for n, (one, a) in enumerate(zip(opened, attestations, strict=True))]
    payload, message = sign_policy(make_policy(registry), OWNER, owner="owner", registry_root=registry.root())
    policy = verify_policy(payload, message, keys.public_bytes(OWNER))
    admitted = run_gate(items, policy.policy, registry, now=NOW).admitted
    assert len(admitted) == len(opened)
    put(place / "registry.cbor", enrolled)
    export, header = recorded(place, policy, registry, [item.admission for item in admitted])
    messages = tuple(attestation.sign1 for attestation in attestations)
    header += tuple(record.raw for contributor in registry.contributors for record in contributor.keys)
    assert bytes(enrolled) in export
    return Run(export, header, tuple(opened), messages, tuple(contents), enrolled.names)


def recorded(place, policy, registry, admissions):
    """The files of the export of a run over these admissions, and the ids in its header."""
    signer = NoteSigner("clinic-notes-2026/ledger", key_of(9))
    spec = HeaderSpec(
        policy=policy,
        owner_key=keys.public_bytes(OWNER),
        registry_root=registry.root(),
        model_fingerprint=bytes(range(32)),
        stack=Stack(
            (Tower(NO_TOWER, "", ("layers.0",)),),
            (
                StackTensor(("head.weight",), 2, ((NO_TOWER, HEAD),)),
                StackTensor(("layers.0.weight",), 100, ((NO_TOWER, 0),)),
            ),
        ),
        isolation=HELD,
        randomness=ADDRESSED,
        unprobed=(),
    )
    weights = WeightRecord(("head.weight",), None, True, "F32", (2,), hashlib.sha256(bytes(8)).digest())
    with Ledger.create(place / "ledger.db", spec, signer, now=NOW) as log:
        terms = SharedTerms()
        log.admit([specification(admission, terms) for admission in admissions], now=NOW)
        window = log.charge(1, 5, now=NOW, noise_stream=bytes(range(16)))
        log.settle(window, 5, now=NOW)
        log.close_epoch(5, log.keep_weights([weights]), isolation=HELD, now=NOW)
        log.export(place / "export", registry=place / "registry.cbor")
        ids = (log.header.run_id, registry.root(), registry.registry_id, keys.public_bytes(OWNER), signer.vkey.encode())
    return tuple(path.read_bytes() for path in sorted((place / "export").rglob("*")) if path.is_file()), ids


def specification(admission, terms):
    """An admission as a run records it."""
    signed = admission.descriptor
    return AdmitSpec(
        descriptor_hash=admission.descriptor_hash,
        class_name=signed.admissibility_class,
        profile_id=CLASSES.index(signed.admissibility_class),
        **signed.bounds._asdict(),
        attestation_hash=admission.attestation_hash,
        key_id=admission.key_id,
        anchor=signed.commitments()["content"],
        attestation=(terms.of(admission), admission.signature),
    )


def published(run, payload_of=lambda run, number: run.opened[number].to_cbor()):
    """What is shown of a run whose descriptors are these bytes."""
    payloads = [payload_of(run, number) for number in range(len(run.opened))]
    common = {bytes(16), bytes(32), b"salt", CORPUS.encode(), b"owner", *run.header}
    single = set()
    for number, (payload, message) in enumerate(zip(payloads, run.messages, strict=True)):
        headers = sign1.parse(message)
        common |= {headers.key_id, headers.issuer.encode(), bytes.fromhex(headers.issuer)}
        if number % EACH < 2:
            parts = (message[-64:-32], message[-32:], hashlib.sha256(payload).digest(), headers.subject.encode())
            attestation_hash = hashlib.sha256(cbor.encode([payload, message])).digest()
            single |= {attestation_hash, str(number).encode(), number.to_bytes(8, "big"), *parts}
            single |= {value for value in cbor.decode(payload).values() if type(value) is bytes}
    return Published((*run.export, *payloads, *run.messages), frozenset(common), frozenset(single))


# --- the attacker ----------------------------------------------------------------------------------------------------


def domains():
    """Every domain and schema that the project's sources name, with and without a zero byte, and none."""
    found = {b""}
    for folder in ("attest", "ledger", "dptrain"):
        for path in (SOURCES / folder).rglob("*.py"):
            for text in re.findall(rb'"(dptrain[./][a-z./-]+/[0-9]+)', path.read_bytes()):
                found |= {text, text + b"\0"}
    assert {CONTENT, CONTRIBUTOR, DATA_CLASS, PRINCIPAL} <= found and len(found) > 25
    return sorted(found)


class Attacker:
    """Tries a dictionary on what is published."""

    def __init__(self, shown):
        self._files = shown.files
        self._seen = set()
        for data in shown.files:
            self._note(data)
            for run in re.findall(rb"[0-9a-fA-F]{16,}", data):
                for text in (run[: len(run) // 2 * 2], run[1 : 1 + (len(run) - 1) // 2 * 2]):
                    self._note(bytes.fromhex(text.decode()))
            for run in re.findall(rb"[A-Za-z0-9+/]{12,}", data):
                for start in range(4):
                    self._note(base64.b64decode(run[start : start + (len(run) - start) // 4 * 4]))
        ours = [domain for domain in domains() if b"commit" in domain or not domain]
        around = {(domain, b"") for domain in domains()} | {(b"", domain) for domain in domains()}
        for salts, under in ((shown.common, domains()), (shown.single, ours)):
            for salt in salts:
                around |= {pair for d in under for pair in ((d, salt), (d + salt, b""), (salt + d, b""))}
        self._around = sorted(around, key=lambda pair: len(pair[0] + pair[1]))

    def _note(self, data):
        self._seen.update(data[at : at + 8] for at in range(len(data) - 7))

    def confirms(self, value):
        """Whether anything that is published tells a right guess of this value from a wrong one."""
        digest = hashlib.sha256(value)
        forms = [value, value.hex().encode(), digest.digest(), digest.hexdigest().encode(), base64.b64encode(value)]
        if any(form in data for form in forms for data in self._files) or digest.digest()[:8] in self._seen:
            return True
        sha256, seen = hashlib.sha256, self._seen
        return any(sha256(before + form + after).digest()[:8] in seen for before, after in self._around for form in forms)


def confirmed(shown, truth):
    """The guesses that an attacker confirms."""
    attacker = Attacker(shown)
    return {(kind, value) for kind, value in truth if attacker.confirms(value)}


# --- the claims --------------------------------------------------------------------------------------------------------


def test_A27_an_export_has_every_signature_and_makes_every_descriptor_again(run):
    """So the attacks here are on an export with attestations and registry, and not on one that lacks them."""
    shown = b"".join(run.export)
    assert all(message[-SIGNATURE_SIZE:] in shown for message in run.messages)
    terms = {CommonTerms.of(one.signed, sign1.parse(m).key_id) for one, m in zip(run.opened, run.messages, strict=True)}
    assert len(terms) == len(CONTRIBUTORS) and all(one.to_cbor() in shown for one in terms)
    assert all(one.commitments()["content"] in shown for one in run.opened)


def test_A27_no_file_of_an_export_has_an_opening_or_a_name_of_the_registry(run):
    secret = {value for one in run.opened for value in (one.nonce, one.salts, one.opening())}
    secret |= {one.salts[at : at + 16] for one in run.opened for at in (0, 16, 32)}
    secret |= set(re.findall(rb"\x50(.{16})", run.names, re.DOTALL)) | {name.encode() for name in CONTRIBUTORS}
    shown = b"".join(run.export)
    assert run.names and not any(value in shown for value in secret)


def test_A27_nobody_is_confirmed_by_an_export_and_all_descriptors_and_signatures(run):
    truth = run.truth | run.enrolled
    assert len(truth) == len(CONTRIBUTORS) * (EACH + 1) + 2 + 3 + 1
    assert not confirmed(published(run), truth)


WEAK = {
    "plain digests": lambda run, number, domain, value: hashlib.sha256(value).digest() if len(value) != 32 else value,
    "no salt": lambda run, number, domain, value: commit(domain, value, b""),
    "no salt and no domain": lambda run, number, domain, value: commit(b"", value, b""),
    "another domain of the project": lambda run, number, domain, value: commit(b"dptrain.order/1\0", value, b""),
    "a salt of zeros": lambda run, number, domain, value: commit(domain, value, bytes(16)),
    "the run's id as salt": lambda run, number, domain, value: commit(domain, value, run.header[0]),
    "the key id as salt": lambda run, number, domain, value: commit(domain, value, sign1.parse(run.messages[number]).key_id),
    "the salt before the value": lambda run, number, domain, value: commit(domain + run.header[0], value, b""),
    "half of a digest": lambda run, number, domain, value: commit(domain, value, b"")[:16] + bytes(16),
    "values in hex": lambda run, number, domain, value: value.hex().encode(),
}
COMMITTED = {2: CONTRIBUTOR, 3: DATA_CLASS, 7: CONTENT, 10: PRINCIPAL}


@pytest.mark.parametrize("name", WEAK)
@pytest.mark.one_in(99)
def test_A27_the_same_attack_confirms_everybody_where_commitments_are_weak(run, name):
    def payload_of(run, number):
        one = run.opened[number]
        words = (one.contributor.encode(), one.data_class.encode(), one.content_hash, (one.principal or "").encode())
        values = zip(COMMITTED, words, strict=True)
        weak = {key: WEAK[name](run, number, COMMITTED[key], value) for key, value in values}
        return cbor.encode(cbor.decode(one.to_cbor()) | weak)

    assert confirmed(published(run, payload_of), run.truth) == run.truth


@pytest.mark.parametrize("field", COMMITTED)
@pytest.mark.one_in(99)
def test_A27_the_same_attack_finds_a_single_field_that_is_weak(run, field):
    """One field of one contribution is enough, and nothing else is confirmed."""
    one = run.opened[5]
    values = {2: one.contributor.encode(), 3: one.data_class.encode(), 7: run.contents[5], 10: one.principal.encode()}
    of_what = {2: "contributor", 3: "data class", 7: "content", 10: "principal"}[field]
    value = one.content_hash if field == 7 else values[field]

    def payload_of(run, number):
        weak = {field: commit(COMMITTED[field], value, b"")} if number == 5 else {}
        return cbor.encode(cbor.decode(run.opened[number].to_cbor()) | weak)

    assert confirmed(published(run, payload_of), run.truth) == {(of_what, values[field])}


def test_A27_the_same_attack_confirms_everybody_enrolled_once_the_registrys_names_are_published(run):
    shown, enrolled = published(run), run.enrolled | {guess for guess in run.truth if guess[0] == "contributor"}
    assert confirmed(Published((*shown.files, run.names), shown.common, shown.single), enrolled) == enrolled
    salts = {value for value in re.findall(rb"\x50(.{16})", run.names, re.DOTALL)}
    assert confirmed(Published(shown.files, shown.common | salts, shown.single), enrolled) == enrolled


def test_A27_who_has_an_opening_confirms_it_and_no_other(run):
    """Salts and nonce are what is missing: with the opening of one contribution, its own content is confirmed alone."""
    shown, one = published(run), run.opened[5]
    told = Published(shown.files, shown.common | {one.nonce, one.salts[:16]}, shown.single)
    found = confirmed(told, {guess for guess in run.truth if guess[0] in ("content", "contributor")})
    assert found == {("content", run.contents[5]), ("contributor", one.contributor.encode())}
