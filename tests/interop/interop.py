"""Other implementations read what we write, and we read what they write: run by `make interop`, not by the test suite.

The other sides run in environments of their own, since `cwt` and `pycose` need an older `cbor2` than these tests:
`INTEROP_CWT` and `INTEROP_PYCOSE` name their interpreters, `INTEROP_NODE` that of Node (default `node`). Nothing is skipped: a
side that cannot be started is a failure.

What `cwt` 3.3 does with messages that we refuse, for comparison (`test_bad_messages_and_what_cwt_makes_of_them` holds this
table in step):

* It accepts, as the standards let a general library do: an issuer, subject or type other than ours, or none; unknown protected
  and unprotected labels; an attached payload; another order of labels, or longer heads, in the protected bytes.
* It also accepts what RFC 9052 forbids: a critical label that it does not know, an empty `crit`, a label that stands twice, no
  algorithm at all, the label of ES256 over an Ed25519 signature (the key decides), and bytes after the message.
* It refuses, as we do: a key id that names no key, a message without tag, S + L, a signature of 63 bytes.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from attest import cbor, keys, sign1
from attest.corpus.anchor import ContentAnchor, sign_anchor
from attest.policy import sign_policy
from attest.registry import KeyStatement
from attest.withdrawal import Withdrawal, sign_withdrawal
from tests.attacks.scene import (
    ISSUER,
    LEFT_OUT,
    attested,
    descriptor,
    envelope,
    header_fields,
    make_scene,
    sealed,
    sig_structure,
    signed,
    with_fields,
)
from tests.vectors.published import vectors
from tests.worlds.gate import ALICE, CORPUS, NOW, OWNER, RAW, registry_bytes

HERE = Path(__file__).parent
OWNER_RAW = keys.public_bytes(OWNER)


class Side:
    """Another implementation, in a process of its own."""

    def __init__(self, *command):
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"]}
        )

    def ask(self, **request):
        """One request, one answer; bytes travel as hex."""
        plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in request.items()}
        self._process.stdin.write(json.dumps(plain) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the other side ended with {self._process.wait()}"
        return json.loads(answer)

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def side(*command):
    """A fixture's value for one implementation."""
    started = Side(*command)
    yield started
    started.close()


@pytest.fixture(scope="module")
def cwt():
    yield from side(os.environ["INTEROP_CWT"], str(HERE / "cwt_side.py"))


@pytest.fixture(scope="module")
def pycose():
    yield from side(os.environ["INTEROP_PYCOSE"], str(HERE / "pycose_side.py"))


@pytest.fixture(scope="module")
def node():
    yield from side(os.environ.get("INTEROP_NODE", "node"), str(HERE / "node_side.mjs"))


def documents():
    """One of each signed document: payload, message, key."""
    scene = make_scene()
    attestation = signed()
    statement = KeyStatement(kind="revoke", registry_id=bytes(16), key=None, time=NOW, revoked_at=NOW)
    entry = cbor.decode_prefix(bytes(registry_bytes()), 0)[0]
    return {
        "attestation": (attestation.descriptor, attestation.sign1, RAW["alice"]),
        "anchor": (*sign_anchor(ContentAnchor(bytes(32), bytes(32), NOW, bytes(16)), ALICE, issuer=ISSUER), RAW["alice"]),
        "withdrawal": (*sign_withdrawal(Withdrawal(bytes(32), CORPUS, NOW, "consent"), ALICE, signer="alice"), RAW["alice"]),
        "policy": (*sign_policy(scene.policy, OWNER, owner="owner", registry_root=scene.registry.root()), OWNER_RAW),
        "key statement": (statement.to_cbor(), statement.sign(ALICE), RAW["alice"]),
        "registry entry": (entry[0], entry[1], OWNER_RAW),
    }


def test_the_versions_that_answer(cwt):
    found = cwt.ask(do="versions")
    assert found["cwt"].startswith("3.3") and int(found["cbor2"].split(".")[0]) < 6


@pytest.mark.parametrize("name", documents())
def test_cwt_verifies_every_signed_document_of_ours(cwt, name):
    payload, message, key = documents()[name]
    assert cwt.ask(do="verify", message=message, payload=payload, key=key) == {"accepted": True}
    other = payload[:-1] + bytes([payload[-1] ^ 1])
    assert not cwt.ask(do="verify", message=message, payload=other, key=key)["accepted"]
    forged = message[:-1] + bytes([message[-1] ^ 1])
    assert not cwt.ask(do="verify", message=forged, payload=payload, key=key)["accepted"]
    stranger = RAW["bob"]
    assert not cwt.ask(do="verify", message=message, payload=payload, key=stranger)["accepted"]


@pytest.mark.parametrize("name", documents())
def test_node_verifies_every_signed_document_of_ours(node, name):
    payload, message, key = documents()[name]
    protected, _, _, signature = cbor.decode(message[1:])
    asked = {"protected": protected, "payload": payload, "signature": signature, "key": key}
    assert node.ask(**asked) == {"accepted": True}
    for part in ("protected", "payload", "signature"):
        changed = asked[part][:-1] + bytes([asked[part][-1] ^ 1])
        assert node.ask(**asked | {part: changed}) == {"accepted": False}


def test_we_verify_what_cwt_signs(cwt):
    payload = descriptor()
    fields = {"kid": keys.key_id(RAW["alice"]), "issuer": ISSUER, "subject": sign1.subject_of(payload)}
    made = cwt.ask(
        do="sign", payload=payload, seed=ALICE.private_bytes_raw(), algorithm=-19, typ=sign1.TYP_ATTESTATION, **fields
    )
    message = bytes.fromhex(made["message"])
    assert sign1.verify(message, payload, RAW["alice"]).issuer == ISSUER
    assert message == signed().sign1, "and to the byte what we sign ourselves"
    assert make_scene().code(attested(payload, message)) == "ADMITTED"


def test_the_deprecated_algorithm_is_accepted_by_cwt_and_pycose_and_not_by_us(cwt, pycose):
    protected = cbor.encode(with_fields(header_fields(descriptor()), {1: -8}))
    attestation = sealed(descriptor(), protected)
    asked = {"message": attestation.sign1, "payload": descriptor(), "key": RAW["alice"]}
    assert cwt.ask(do="verify", algorithm=-8, **asked)["accepted"]
    assert pycose.ask(**asked)["accepted"]
    assert make_scene().code(attestation) == "HEADER"


def test_pycose_and_we_agree_on_the_working_groups_example(pycose):
    vector = vectors("cose")["cose_wg_eddsa_sig_01"]
    assert pycose.ask(message=vector["cbor"], key=vector["x"], payload=None)["accepted"]


def bad_messages():
    """Messages that we refuse: right signatures over wrong forms, by name, and whether `cwt` takes them."""
    payload = descriptor()
    right = header_fields(payload)
    parts = [cbor.encode(label) + cbor.encode(value) for label, value in right.items()]

    def header(changes, **options):
        return sealed(payload, cbor.encode(with_fields(right, changes)), **options).sign1

    good = signed().sign1
    s = int.from_bytes(good[-32:], "little") + 2**252 + 27742317777372353535851937790883648493
    attached = b"".join(sig_structure(cbor.encode(right), payload))
    return {
        "algorithm ES256": (header({1: -7}), True),
        "algorithm left out": (header({1: LEFT_OUT}), True),
        "unknown label 99": (header({99: 1}), True),
        "crit with an unknown label": (header({2: [99], 99: 1}), True),
        "crit empty": (header({2: []}), True),
        "key id of another": (header({4: bytes(8)}), False),
        "issuer of another": (header({15: {1: "bob", 2: sign1.subject_of(payload)}}), True),
        "subject of another": (header({15: {1: ISSUER, 2: sign1.subject_of(b"")}}), True),
        "type of a withdrawal": (header({16: sign1.TYP_WITHDRAWAL}), True),
        "type left out": (header({16: LEFT_OUT}), True),
        "unprotected label": (header({}, unprotected=b"\xa1\x18\x63\x01"), True),
        "labels out of order": (sealed(payload, b"\xa4" + b"".join(reversed(parts))).sign1, True),
        "a label twice": (sealed(payload, b"\xa5" + parts[0] + b"".join(parts)).sign1, True),
        "map head in two bytes": (sealed(payload, b"\xb8\x04" + b"".join(parts)).sign1, True),
        "payload attached": (
            envelope(cbor.encode(right), ALICE.sign(attached), payload=cbor.encode(payload)),
            True,
        ),
        "no tag": (good[1:], False),
        "trailing byte": (good + b"\x00", True),
        "S + L": (good[:-32] + s.to_bytes(32, "little"), False),
        "signature of 63 bytes": (good[:-66] + b"\x58\x3f" + good[-64:-1], False),
    }


@pytest.mark.parametrize("name", bad_messages())
def test_bad_messages_and_what_cwt_makes_of_them(cwt, name):
    message, cwt_accepts = bad_messages()[name]
    answer = cwt.ask(do="verify", message=message, payload=descriptor(), key=RAW["alice"])
    assert make_scene().code(attested(descriptor(), message)) != "ADMITTED"
    assert answer["accepted"] is cwt_accepts, answer
