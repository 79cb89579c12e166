"""An SSH agent signs as the key itself would; one that lies, stalls or breaks off costs a typed error and nothing else."""

import contextlib
import os
import struct
import subprocess
import time
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attest import keys, sign1
from attest.attestation import read_sequence
from attest.corpus.signing import sign_corpus
from attest.errors import KeyRefused
from attest.keys import signers
from attest.keys.signers import AgentSigner, CheckedSigner, as_signer, sign_all
from tests.worlds.ssh_agents import (
    fake_agent,
    identities_answer,
    key_blob,
    needs_openssh,
    openssh_agent,
    signature_answer,
    ssh_add,
    string,
)

KEY = keys.generate()
RAW = keys.public_bytes(KEY)
LISTED = identities_answer(key_blob(RAW))


def refused(call, *arguments, **options):
    with pytest.raises(KeyRefused) as caught:
        call(*arguments, **options)
    return caught.value


def answering(signing, listing=LISTED):
    """What an agent answers that lists the key, and does `signing(message)` when asked to sign."""

    def answer(request):
        if request[0] == 11:
            return listing(request) if callable(listing) else listing
        assert request[0] == 13
        (size,) = struct.unpack(">I", request[1:5])
        (length,) = struct.unpack(">I", request[5 + size : 9 + size])
        assert request[5 : 5 + size] == key_blob(RAW) and request[9 + size + length :] == bytes(4)
        return signing(request[9 + size : 9 + size + length])

    return answer


def honest(message):
    return signature_answer(KEY.sign(message))


@pytest.fixture
def held(tmp_path):
    """OpenSSH's agent, with the key in it; yields its socket."""
    keys.save_private_key(tmp_path / "alice.key", KEY, form="openssh")
    with openssh_agent() as path:
        ssh_add(path, tmp_path / "alice.key")
        yield path


@needs_openssh
def test_openssh_signs_what_the_key_would_sign(held):
    signer = AgentSigner(RAW, held)
    assert signers.identities(held) == [RAW] and signer.public_key == RAW
    assert isinstance(signer, CheckedSigner) and as_signer(signer) is signer
    for message in (b"", b"m", bytes(5000), os.urandom(200_000)):
        assert signer.sign(message) == KEY.sign(message)
    messages = [b"%d" % number for number in range(50)]
    assert list(sign_all(signer, iter(messages))) == [KEY.sign(message) for message in messages]
    assert list(sign_all(signer, [])) == []
    assert sign1.sign(b"payload", signer, contributor="alice") == sign1.sign(b"payload", KEY, contributor="alice")


@needs_openssh
def test_a_corpus_signed_through_openssh_verifies(held, world, tmp_path, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", held)
    data = tmp_path / "notes.jsonl"
    data.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(200)))
    assert sign_corpus(data, None, AgentSigner(RAW), world.template) == 200
    with open(f"{data}.attest", "rb") as stream:
        signed = list(read_sequence(stream))
    assert len(signed) == 200
    for item in signed:
        sign1.verify(item.sign1, item.descriptor, RAW)
        item.opened()


@needs_openssh
def test_a_key_that_openssh_does_not_hold_or_has_locked_away_is_named(held):
    other = keys.public_bytes(keys.generate())
    error = refused(AgentSigner, other, held)
    assert error.code == "AGENT_KEY" and other.hex() in error.sentence and "ssh-add" in error.sentence
    signer = AgentSigner(RAW, held)
    ssh_add(held, "-D")
    assert refused(signer.sign, b"m").code == "AGENT_REFUSED"
    assert refused(list, signer.sign_many([b"m", b"n"])).code == "AGENT_REFUSED"
    assert refused(AgentSigner, RAW, held).code == "AGENT_KEY"


@needs_openssh
def test_a_key_that_asks_for_confirmation_and_gets_none_is_refused(tmp_path):
    keys.save_private_key(tmp_path / "alice.key", KEY, form="openssh")
    with openssh_agent() as path:
        ssh_add(path, "-c", tmp_path / "alice.key")
        assert refused(AgentSigner(RAW, path).sign, b"m").code == "AGENT_REFUSED"


@needs_openssh
def test_keys_of_other_kinds_in_the_agent_are_passed_over(held, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "ecdsa"], check=True)
    ssh_add(held, tmp_path / "ecdsa")
    assert signers.identities(held) == [RAW]


@needs_openssh
def test_a_document_too_long_for_an_agent_says_so(held):
    signer = AgentSigner(RAW, held)
    overhead = 1 + len(string(key_blob(RAW))) + 4 + 4
    fits = bytes(signers.MAX_MESSAGE - overhead)
    assert signer.sign(fits) == KEY.sign(fits)
    error = refused(signer.sign, fits + b"x")
    assert error.code == "AGENT" and "private key file" in error.sentence


def test_the_fake_agent_is_an_agent():
    with fake_agent(answering(honest)) as path:
        messages = [b"%d" % number for number in range(30)]
        assert list(AgentSigner(RAW, path).sign_many(messages)) == [KEY.sign(message) for message in messages]


def test_without_an_agent_the_sentence_says_what_to_start(monkeypatch, tmp_path):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    error = refused(AgentSigner, RAW)
    assert error.code == "AGENT" and "SSH_AUTH_SOCK is not set" in error.sentence and "ssh-add" in error.sentence
    monkeypatch.setenv("SSH_AUTH_SOCK", "")
    assert refused(signers.identities).code == "AGENT"
    (tmp_path / "file").touch()
    for path in (tmp_path / "absent", tmp_path / "file", tmp_path / ("x" * 200)):
        error = refused(AgentSigner, RAW, str(path))
        assert error.code == "AGENT" and "is it running" in error.sentence


def test_an_unsound_key_is_not_looked_for():
    assert refused(AgentSigner, bytes(32), "/nowhere").code == "KEY_WEAK"


BAD_LISTS = {
    "nothing": b"",
    "another type": b"\x0e" + LISTED[1:],
    "no count": b"\x0c",
    "half a count": b"\x0c\x00\x00",
    "more keys than it gives": b"\x0c" + struct.pack(">I", 2) + LISTED[5:],
    "more keys than anybody has": b"\x0c" + struct.pack(">I", 2**32 - 1) + LISTED[5:],
    "fewer keys than it gives": b"\x0c" + struct.pack(">I", 0) + LISTED[5:],
    "a byte behind": LISTED + b"\x00",
    "a key that ends early": identities_answer(key_blob(RAW)[:-1]),
    "a key of 31 bytes": identities_answer(key_blob(RAW[:-1])),
    "a key of 33 bytes": identities_answer(key_blob(RAW + b"x")),
    "a byte behind the key": identities_answer(key_blob(RAW) + b"x"),
    "an empty key": identities_answer(b""),
    "a key type longer than the key": identities_answer(struct.pack(">I", 2**32 - 1) + b"ssh-ed25519"),
    "a list without comments": b"\x0c" + struct.pack(">I", 1) + string(key_blob(RAW)),
}


def test_a_list_of_more_keys_than_an_agent_can_hold_is_refused_though_it_is_whole():
    blob = key_blob(RAW)
    assert signers.parse_identities(identities_answer(*[blob] * signers.MAX_IDENTITIES)[1:]) == [RAW] * signers.MAX_IDENTITIES
    listing = identities_answer(*[blob] * (signers.MAX_IDENTITIES + 1))
    assert "at most 2048" in refused(signers.parse_identities, listing[1:]).sentence


@pytest.mark.parametrize("name", BAD_LISTS)
def test_a_malformed_list_of_keys_is_refused(name):
    with fake_agent(answering(honest, BAD_LISTS[name])) as path:
        assert refused(AgentSigner, RAW, path).code == "AGENT"


def test_keys_of_other_kinds_may_have_any_form():
    listing = identities_answer(string(b"ssh-rsa") + b"whatever", key_blob(RAW), string(b"ssh-ed25519-cert-v01@openssh.com"))
    with fake_agent(answering(honest, listing)) as path:
        assert signers.identities(path) == [RAW]


SIGNATURE = KEY.sign(b"m")
BAD_SIGNATURES = {
    "nothing": (b"", "AGENT"),
    "another type": (b"\x0c" + signature_answer(SIGNATURE)[1:], "AGENT"),
    "refusal": (b"\x05", "AGENT_REFUSED"),
    "extension failure": (b"\x1c", "AGENT"),
    "no signature": (b"\x0e", "AGENT"),
    "empty signature blob": (b"\x0e" + string(b""), "AGENT"),
    "another algorithm": (signature_answer(SIGNATURE, b"ssh-rsa"), "AGENT"),
    "a byte behind": (signature_answer(SIGNATURE) + b"x", "AGENT"),
    "a byte behind the signature": (b"\x0e" + string(string(b"ssh-ed25519") + string(SIGNATURE) + b"x"), "AGENT"),
    "length beyond the end": (b"\x0e" + struct.pack(">I", 2**32 - 1), "AGENT"),
    "63 bytes": (signature_answer(SIGNATURE[:-1]), "SIGNER"),
    "65 bytes": (signature_answer(SIGNATURE + b"x"), "SIGNER"),
    "zeros": (signature_answer(bytes(64)), "SIGNER"),
    "over another message": (signature_answer(KEY.sign(b"other")), "SIGNER"),
    "of another key": (signature_answer(keys.generate().sign(b"m")), "SIGNER"),
    "one bit wrong": (signature_answer(bytes([SIGNATURE[0] ^ 1]) + SIGNATURE[1:]), "SIGNER"),
    "hanging up": (None, "AGENT"),
}


@pytest.mark.parametrize("name", BAD_SIGNATURES)
def test_a_bad_answer_to_a_request_to_sign_is_refused(name):
    reply, code = BAD_SIGNATURES[name]
    with fake_agent(answering(lambda message: reply)) as path:
        signer = AgentSigner(RAW, path)
        assert refused(signer.sign, b"m").code == code
        assert refused(list, signer.sign_many([b"m"] * 10)).code == code


def test_no_bit_of_a_signature_answer_can_be_flipped_unnoticed():
    good, flipped = signature_answer(SIGNATURE), {}
    with fake_agent(answering(lambda message: flipped["answer"])) as path:
        signer = AgentSigner(RAW, path)
        flipped["answer"] = good
        assert signer.sign(b"m") == SIGNATURE
        for bit in range(8 * len(good)):
            body = bytearray(good)
            body[bit // 8] ^= 1 << bit % 8
            flipped["answer"] = bytes(body)
            assert refused(signer.sign, b"m").code in ("AGENT", "SIGNER"), bit


@given(st.binary(max_size=200), st.integers(0, 4))
@settings(max_examples=300, deadline=None)
def test_whatever_an_agent_says_ends_in_a_list_or_a_typed_refusal(said, count):
    for answer in (said, struct.pack(">I", count) + said, LISTED[1:] + said, LISTED[1:5] + said + LISTED[5:]):
        with contextlib.suppress(KeyRefused):
            assert all(len(raw) == 32 for raw in signers.parse_identities(answer))


def test_answers_of_absurd_length_are_refused_before_they_are_read():
    for length in (0, signers.MAX_MESSAGE + 1, 2**32 - 1):
        with fake_agent(lambda request, length=length: struct.pack(">I", length) + b"\x0c" * 100, framed=False) as path:
            error = refused(signers.identities, path)
            assert error.code == "AGENT" and str(length) in error.sentence


def test_a_lying_agent_leaves_no_attestations(world, tmp_path):
    """It signs a hundred records well and then one record wrongly: no file appears."""
    asked = count(1)

    def turning(message):
        return honest(message if next(asked) <= 100 else message + b"!")

    data = tmp_path / "notes.jsonl"
    data.write_bytes(b"".join(b'{"n": %d}\n' % number for number in range(200)))
    with fake_agent(answering(turning)) as path:
        assert refused(sign_corpus, data, None, AgentSigner(RAW, path), world.template).code == "SIGNER"
    assert os.listdir(tmp_path) == ["notes.jsonl"]


def test_an_agent_that_swaps_two_answers_is_refused():
    """Each signature is one of the key, and over a message that it was asked to sign: not over this one."""
    seen = []

    def late(message):
        seen.append(message)
        return honest(seen[0])

    with fake_agent(answering(late)) as path:
        signed = AgentSigner(RAW, path).sign_many([b"one", b"two"])
        assert refused(list, signed).code == "SIGNER"


def test_waiting_has_a_limit_even_for_one_who_answers_byte_by_byte():
    for options in ({"answer": lambda request: time.sleep(3)}, {"answer": answering(honest), "pause": 0.1}):
        with fake_agent(**options) as path:
            start = time.monotonic()
            error = refused(signers.identities, path, timeout=0.3)
            assert error.code == "AGENT" and "in time" in error.sentence
            assert time.monotonic() - start < 2


def test_the_limit_holds_for_the_whole_answer_not_for_each_part():
    def first_half_late(request):
        time.sleep(0.8)
        return b"\0\0"

    with fake_agent(first_half_late, framed=False) as path:
        start = time.monotonic()
        assert "in time" in refused(signers.identities, path, timeout=1.0).sentence
        assert 0.9 < time.monotonic() - start < 1.6


def test_one_who_answers_byte_by_byte_in_time_is_understood():
    with fake_agent(answering(honest), pause=0.0) as path:
        assert AgentSigner(RAW, path).sign(b"m") == SIGNATURE


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_stopping_early_closes_every_connection():
    ended = []
    with fake_agent(answering(honest), ended=ended) as path:
        signed = AgentSigner(RAW, path).sign_many(b"%d" % number for number in range(100))
        assert next(signed) == KEY.sign(b"0")
        signed.close()
        deadline = time.monotonic() + 5
        while len(ended) < 1 + signers.CONNECTIONS and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(ended) == 1 + signers.CONNECTIONS


def test_no_more_messages_are_drawn_than_there_are_connections():
    drawn = []
    with fake_agent(answering(honest)) as path:
        signed = AgentSigner(RAW, path).sign_many(drawn.append(number) or b"%d" % number for number in range(100))
        next(signed)
        assert len(drawn) == signers.CONNECTIONS + 1
        signed.close()
