"""Whatever holds the key: the same bytes come out, and nothing that it returns is believed."""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attest import keys, sign1
from attest.attestation import read_sequence
from attest.corpus.signing import sign_content
from attest.errors import KeyRefused
from attest.keys.signers import CheckedSigner, LocalSigner, Signer, as_signer, sign_all
from attest.policy import sign_policy, verify_policy
from attest.withdrawal import Withdrawal, sign_withdrawal, verify_withdrawal


@dataclass
class Token:
    """A device that signs with a key that it keeps, and may answer something else."""

    key: object
    answer: object = None
    messages: list = field(default_factory=list)

    @property
    def public_key(self):
        return keys.public_bytes(self.key)

    def sign(self, message):
        self.messages.append(message)
        return self.key.sign(message) if self.answer is None else self.answer


@dataclass
class Batch(Token):
    """One that takes many messages at once, and may lose or add answers."""

    drop: int = 0
    extra: tuple = ()

    def sign_many(self, messages):
        signatures = [self.sign(message) for message in messages]
        yield from signatures[: len(signatures) - self.drop]
        yield from self.extra


def refused(call, *arguments, **options):
    with pytest.raises(KeyRefused) as caught:
        call(*arguments, **options)
    return caught.value


def test_every_signing_function_takes_a_key_or_any_signer_and_makes_the_same_bytes(world):
    token, raw = Token(world.alice), keys.public_bytes(world.alice)
    payload = world.descriptor.to_cbor()
    assert sign1.sign(payload, token, contributor="alice") == sign1.sign(payload, world.alice, contributor="alice")
    attestation = sign_content(bytes(32), token, world.template)
    assert sign1.verify(attestation.sign1, attestation.descriptor, raw).issuer == attestation.opened().issuer
    withdrawal = Withdrawal(world.descriptor.digest(), "clinic-notes-2026", world.now, "consent")
    signed = sign_withdrawal(withdrawal, token, signer="alice")
    assert signed == sign_withdrawal(withdrawal, world.alice, signer="alice")
    assert verify_withdrawal(*signed, raw, signer="alice", corpus="clinic-notes-2026") == withdrawal
    signed = sign_policy(world.policy, token, owner="clinic", registry_root=bytes(32))
    assert signed == sign_policy(world.policy, world.alice, owner="clinic", registry_root=bytes(32))
    assert verify_policy(*signed, raw).owner == "clinic"
    assert len(token.messages) == 4


def test_a_key_becomes_a_local_signer_and_a_foreign_signer_a_checked_one():
    key = keys.generate()
    local, checked = as_signer(key), as_signer(Token(key))
    assert type(local) is LocalSigner and type(checked) is CheckedSigner
    assert as_signer(local) is local and as_signer(checked) is checked
    for signer in (local, checked):
        assert isinstance(signer, Signer)
        assert signer.public_key == keys.public_bytes(key)
        assert signer.sign(b"m") == key.sign(b"m")


@pytest.mark.parametrize(
    "thing",
    [None, b"\x01" * 32, "alice.key", object(), keys.generate().public_key()],
    ids=["nothing", "bytes", "a file name", "an object", "a public key"],
)
def test_what_cannot_sign_is_refused(thing):
    assert refused(as_signer, thing).code == "TYPE"
    assert refused(sign1.sign, b"payload", thing, contributor="alice").code == "TYPE"
    assert refused(LocalSigner, thing).code == "TYPE"


def test_a_foreign_signer_with_an_unsound_public_key_is_refused():
    for raw, code in ((bytes(32), "KEY_WEAK"), (b"short", "RANGE"), ("x" * 32, "TYPE")):

        class Odd:
            public_key = raw

            def sign(self, message):
                raise AssertionError("never asked")

        assert refused(as_signer, Odd()).code == code


@pytest.mark.parametrize(
    "answer",
    [keys.generate().sign(b"m"), bytes(64), b"", b"x" * 63, b"x" * 65, "x" * 64, 7, bytearray(64)],
    ids=["another key's", "zeros", "empty", "short", "long", "text", "a number", "bytearray"],
)
def test_a_signature_that_is_not_one_of_the_key_never_leaves_the_signer(answer):
    key = keys.generate()
    assert refused(as_signer(Token(key, answer)).sign, b"m").code == "SIGNER"
    assert refused(sign1.sign, b"payload", Token(key, answer), contributor="alice").code == "SIGNER"
    assert refused(list, sign_all(Token(key, answer), [b"m"])).code == "SIGNER"


def test_a_signature_over_another_message_is_refused():
    key = keys.generate()
    error = refused(as_signer(Token(key, key.sign(b"other"))).sign, b"m")
    assert error.code == "SIGNER" and keys.public_bytes(key).hex() in error.sentence


def test_sign_all_keeps_the_order_and_draws_messages_as_they_are_needed():
    key = keys.generate()
    messages = [b"%d" % index for index in range(20)]
    for signer in (key, Token(key), Batch(key)):
        assert list(sign_all(signer, iter(messages))) == [key.sign(message) for message in messages]
    token = Token(key)
    some = sign_all(token, iter(messages))
    next(some), next(some)
    assert token.messages == messages[:2]


def test_a_batch_signer_that_loses_adds_or_swaps_answers_is_refused():
    key = keys.generate()
    messages = [b"one", b"two", b"three"]
    assert "no signature for 1" in refused(list, sign_all(Batch(key, drop=1), messages)).sentence
    assert "more signatures" in refused(list, sign_all(Batch(key, extra=(key.sign(b"one"),)), messages)).sentence

    class Swapping(Token):
        def sign_many(self, messages):
            return reversed([self.key.sign(message) for message in messages])

    assert refused(list, sign_all(Swapping(key), [b"one", b"two"])).code == "SIGNER"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_signer_of_the_documentation_signs_a_corpus(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs" / "keys.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    keys.save_private_key("alice.key", world.alice)
    keys.save_public_key("alice.pub", keys.public_bytes(world.alice), "alice")
    Path("notes.jsonl").write_bytes(b'{"n": 1}\n{"n": 2}\n')
    names = {"template": world.template}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    with open("notes.jsonl.attest", "rb") as stream:
        signed = list(read_sequence(stream))
    assert len(signed) == 2
    for item in signed:
        assert sign1.verify(item.sign1, item.descriptor, keys.public_bytes(world.alice)).issuer == item.opened().issuer
