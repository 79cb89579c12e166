"""Signs with a private key in this process, or with anything else that keeps one (an SSH agent, a token, an HSM, a cloud KMS).

`AgentSigner` is a small client of the SSH agent protocol (draft-miller-ssh-agent, sections 3.5 and 3.6): two requests, Ed25519
alone, one request at a time on a connection. The agent may be a program on another machine (a forwarded agent), so its answers
are untrusted: lengths are capped before anything is read, waiting has a limit, and every signature is verified before its use.
"""

import contextlib
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.errors import KeyRefused, SignatureRefused
from attest.keys.ed25519 import check_public_key, public_bytes, verify_signature


@runtime_checkable
class Signer(Protocol):
    """Signs with one Ed25519 key (RFC 8032, the pure variant without context or prehash).

    Nothing else is asked of it: whatever it returns is verified under `public_key` before it is used. A signer whose every call
    takes long may also have `sign_many(messages)`, which takes an iterable and yields the signatures in its order.
    """

    @property
    def public_key(self) -> bytes:
        """Returns the 32 raw bytes of the public half."""

    def sign(self, message: bytes) -> bytes:
        """Returns the 64-byte signature over the whole message."""


class LocalSigner:
    """A private key in this process."""

    __slots__ = ("public_key", "sign")

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        if not isinstance(private_key, Ed25519PrivateKey):
            raise KeyRefused("TYPE", f"private key is {type(private_key).__name__}, expected an Ed25519 private key")
        self.public_key = public_bytes(private_key)
        # The library's method itself: a wrapper would cost what the rest of signing a record costs.
        self.sign = private_key.sign


class CheckedSigner:
    """A signer outside this process, not trusted to sign well.

    Guarantee: what `sign` returns and `sign_many` yields verifies under `public_key` over the message given. So a lying or
    broken signer can refuse, and never brings a bad signature into a file.

    Raises:
        KeyRefused: Code TYPE, RANGE or KEY_WEAK for an unsound public key; SIGNER for an answer that is no signature of it.
    """

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._public_key = signer.public_key
        check_public_key(self._public_key)

    @property
    def public_key(self) -> bytes:
        """Returns the 32 raw bytes of the public half, as they were when this object was made."""
        return self._public_key

    def sign(self, message: bytes) -> bytes:
        """Signs one message."""
        return self._checked(self._signer.sign(message), message)

    def sign_many(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Signs message after message; how far it reads ahead is for the signer to say."""
        waiting: deque[bytes] = deque()

        def remembered() -> Iterator[bytes]:
            for message in messages:
                waiting.append(message)
                yield message

        for signature in _each(self._signer, remembered()):
            if not waiting:
                raise KeyRefused("SIGNER", "the signer returned more signatures than it was given messages; mend it")
            yield self._checked(signature, waiting.popleft())
        if waiting:
            raise KeyRefused("SIGNER", f"the signer returned no signature for {len(waiting)} messages; mend it")

    def _checked(self, signature: bytes, message: bytes) -> bytes:
        if type(signature) is not bytes:
            raise KeyRefused("SIGNER", f"the signer returned {type(signature).__name__}, expected a signature of 64 bytes")
        try:
            verify_signature(self._public_key, signature, message)
        except SignatureRefused as error:
            raise KeyRefused(
                "SIGNER",
                f"the signer for key {self._public_key.hex()} returned a signature that is not one of this key: "
                f"{error.sentence}; nothing was signed, check what holds the key",
            ) from error
        return signature


def as_signer(key: Signer | Ed25519PrivateKey) -> "LocalSigner | CheckedSigner":
    """Returns a private key as a signer; a foreign signer as one whose signatures are checked; ours as it is. Raises
    KeyRefused: code TYPE if it is neither, or as `CheckedSigner`."""
    if isinstance(key, LocalSigner | CheckedSigner):
        return key
    if isinstance(key, Ed25519PrivateKey):
        return LocalSigner(key)
    if not isinstance(key, Signer):
        sentence = f"signer is {type(key).__name__}, expected an Ed25519 private key or an object with public_key and sign"
        raise KeyRefused("TYPE", sentence)
    return CheckedSigner(key)


def sign_all(key: Signer | Ed25519PrivateKey, messages: Iterable[bytes]) -> Iterator[bytes]:
    """Returns the signatures over messages, in order; messages are drawn as they are needed."""
    return _each(as_signer(key), messages)


def _each(signer: Signer, messages: Iterable[bytes]) -> Iterator[bytes]:
    sign_many = getattr(signer, "sign_many", None)
    return map(signer.sign, messages) if sign_many is None else sign_many(messages)


MAX_MESSAGE = 256 * 1024
"""Bytes of one request or answer; OpenSSH's agent hangs up on more."""

MAX_IDENTITIES = 2048
"""Keys that an agent may list."""

TIMEOUT = 60.0
"""Seconds that one answer may take; an agent may ask a person first."""

CONNECTIONS = 4
"""Connections on which many messages are signed: the agent signs one while the others' signatures are verified here. Several
requests on one connection would do as well with OpenSSH, but not every agent reads on before it has answered."""

_FAILURE = 5
_REQUEST_IDENTITIES, _IDENTITIES_ANSWER = 11, 12
_SIGN_REQUEST, _SIGN_RESPONSE = 13, 14
_ALGORITHM = b"ssh-ed25519"
_UINT32 = struct.Struct(">I")


class AgentSigner(CheckedSigner):
    """Signs with a key that an SSH agent holds.

    Guarantee: as `CheckedSigner`; an agent that lies, hangs up or talks nonsense costs a typed error and never yields a
    signature that does not verify.

    Args:
        path: the agent's socket; default: the environment variable SSH_AUTH_SOCK.

    Raises:
        KeyRefused: Code AGENT (no agent, or one that cannot be understood), AGENT_KEY (it does not hold the key), AGENT_REFUSED
            (it will not sign), SIGNER (its signature is not one of the key), or the key is unsound.
    """

    def __init__(self, public_key: bytes, path: str | None = None, timeout: float = TIMEOUT) -> None:
        check_public_key(public_key)
        key = _AgentKey(public_key, agent_path() if path is None else path, timeout)
        held = identities(key.path, timeout)
        if public_key not in held:
            raise KeyRefused(
                "AGENT_KEY",
                f"the agent holds {len(held)} Ed25519 keys and {public_key.hex()} is not among them; "
                "load its private key with ssh-add, or unlock the agent with ssh-add -X if it is locked",
            )
        super().__init__(key)


def agent_path() -> str:
    """Returns the socket of the running agent. Raises KeyRefused: code AGENT if the environment names none."""
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        sentence = "no SSH agent: SSH_AUTH_SOCK is not set; run eval $(ssh-agent) and ssh-add, or give the private key file"
        raise KeyRefused("AGENT", sentence)
    return path


def identities(path: str | None = None, timeout: float = TIMEOUT) -> list[bytes]:
    """Returns the raw Ed25519 public keys that an agent holds, in its order; keys of other kinds are left out. `path`: the
    agent's socket; default: the environment variable SSH_AUTH_SOCK. Raises KeyRefused: code AGENT or AGENT_REFUSED."""
    with _Connection(agent_path() if path is None else path, timeout) as connection:
        connection.send(bytes([_REQUEST_IDENTITIES]))
        return parse_identities(connection.receive(_IDENTITIES_ANSWER, "to list its keys"))


class _AgentKey:
    """A key in an agent, as a signer whose signatures nobody has verified yet."""

    def __init__(self, public_key: bytes, path: str, timeout: float) -> None:
        self.public_key, self.path, self.timeout = public_key, path, timeout

    def sign(self, message: bytes) -> bytes:
        """Returns the signature that the agent returns, on a connection of its own."""
        with _Connection(self.path, self.timeout) as connection:
            self._ask(connection, message)
            return _signature(connection)

    def sign_many(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Signs on several connections in turn; at most `CONNECTIONS` messages are in work at once."""
        with contextlib.ExitStack() as opened:
            waiting: deque[_Connection] = deque()
            for message in messages:
                if len(waiting) < CONNECTIONS:
                    connection = opened.enter_context(_Connection(self.path, self.timeout))
                    self._ask(connection, message)
                else:
                    connection = waiting.popleft()
                    signature = _signature(connection)
                    self._ask(connection, message)
                    yield signature
                waiting.append(connection)
            while waiting:
                yield _signature(waiting.popleft())

    def _ask(self, connection: "_Connection", message: bytes) -> None:
        blob = _string(_ALGORITHM) + _string(self.public_key)
        connection.send(bytes([_SIGN_REQUEST]) + _string(blob) + _string(message) + _UINT32.pack(0))


class _Connection:
    """A connection to an agent that carries one request and one answer at a time."""

    def __init__(self, path: str, timeout: float) -> None:
        self._timeout = timeout
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            sentence = f"no SSH agent answers at {path!r}: {error.strerror or error}; is it running? see SSH_AUTH_SOCK"
            raise KeyRefused("AGENT", sentence) from error

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: bytes) -> None:
        """Sends one request; the answer to the one before has been received."""
        if len(request) > MAX_MESSAGE:
            raise KeyRefused(
                "AGENT",
                f"the document to sign makes a request of {len(request)} bytes, an SSH agent takes {MAX_MESSAGE}; "
                "sign it with the private key file",
            )
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(_string(request))
        except OSError as error:
            raise _broken(error) from error

    def receive(self, kind: int, what: str) -> bytes:
        """Returns the fields of an answer of one kind; `what` was asked, for the message."""
        deadline = time.monotonic() + self._timeout
        (length,) = _UINT32.unpack(self._exactly(4, deadline))
        if not 1 <= length <= MAX_MESSAGE:
            raise _malformed(f"announces an answer of {length} bytes, expected 1 to {MAX_MESSAGE}")
        answer = self._exactly(length, deadline)
        if answer[0] == _FAILURE:
            raise KeyRefused("AGENT_REFUSED", f"the SSH agent refuses {what}; was it locked, or its question answered with no?")
        if answer[0] != kind:
            raise _malformed(f"gives an answer of type {answer[0]}, expected {kind}")
        return answer[1:]

    def _exactly(self, count: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _broken(TimeoutError())
            try:
                self._socket.settimeout(left)
                chunk = self._socket.recv(count - len(received))
            except OSError as error:
                raise _broken(error) from error
            if not chunk:
                raise KeyRefused("AGENT", "the SSH agent hung up before it answered; start it again")
            received += chunk
        return bytes(received)


class _Fields:
    """The fields of an answer, read from the front (RFC 4251 section 5)."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def uint32(self) -> int:
        return int(_UINT32.unpack(self._take(4))[0])

    def string(self) -> bytes:
        return self._take(self.uint32())

    def end(self) -> None:
        if self._at != len(self._data):
            raise _malformed(f"gives an answer with {len(self._data) - self._at} bytes behind its end")

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise _malformed(f"gives an answer that ends inside a field of {count} bytes")
        self._at += count
        return self._data[self._at - count : self._at]


def parse_identities(data: bytes) -> list[bytes]:
    """Returns the Ed25519 keys of an SSH_AGENT_IDENTITIES_ANSWER, given without its type byte. Raises KeyRefused: code AGENT.
    """
    answer = _Fields(data)
    count = answer.uint32()
    if count > MAX_IDENTITIES:
        raise _malformed(f"lists {count} keys, expected at most {MAX_IDENTITIES}")
    found = []
    for _ in range(count):
        key = _Fields(answer.string())
        answer.string()
        if key.string() == _ALGORITHM:
            raw = key.string()
            key.end()
            if len(raw) != 32:
                raise _malformed(f"lists an Ed25519 key of {len(raw)} bytes, expected 32")
            found.append(raw)
    answer.end()
    return found


def _signature(connection: _Connection) -> bytes:
    answer = _Fields(connection.receive(_SIGN_RESPONSE, "to sign"))
    blob = _Fields(answer.string())
    answer.end()
    algorithm, signature = blob.string(), blob.string()
    blob.end()
    if algorithm != _ALGORITHM:
        raise _malformed(f"signs with {algorithm[:40]!a}, expected {_ALGORITHM.decode()}")
    return signature


def _string(data: bytes) -> bytes:
    return _UINT32.pack(len(data)) + data


def _malformed(what: str) -> KeyRefused:
    return KeyRefused("AGENT", f"the SSH agent {what}; it is broken or none, check SSH_AUTH_SOCK")


def _broken(error: OSError) -> KeyRefused:
    if isinstance(error, TimeoutError):
        return KeyRefused("AGENT", "the SSH agent did not answer in time; is it waiting for a person to confirm?")
    return KeyRefused("AGENT", f"the connection to the SSH agent broke: {error.strerror or error}; start it again")
