"""Who signs: a private key in this process, or anything else that keeps one (an agent, a token, an HSM, a cloud KMS)."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.errors import KeyRefused, SignatureRefused
from attest.keys import check_public_key, public_bytes, verify_signature


@runtime_checkable
class Signer(Protocol):
    """Signs with one Ed25519 key (RFC 8032, the pure variant without context or prehash).

    Nothing else is asked of it: whatever it returns is verified under `public_key` before it is used. A signer whose every
    call takes long may also have `sign_many(messages)`, which takes an iterable and yields the signatures in its order.
    """

    @property
    def public_key(self) -> bytes:
        """The 32 raw bytes of the public half."""

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over the whole message."""


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

    Guarantee: what `sign` returns and `sign_many` yields verifies under `public_key` over the message given. So a lying
    or broken signer can refuse, and never brings a bad signature into a file.

    Raises:
        KeyRefused: Code TYPE, RANGE or KEY_WEAK for an unsound public key; SIGNER for an answer that is no signature of it.
    """

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._public_key = signer.public_key
        check_public_key(self._public_key)

    @property
    def public_key(self) -> bytes:
        """The 32 raw bytes of the public half, as they were when this object was made."""
        return self._public_key

    def sign(self, message: bytes) -> bytes:
        """Sign one message."""
        return self._checked(self._signer.sign(message), message)

    def sign_many(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        """Sign message after message; how far it reads ahead is for the signer to say."""
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
    """A private key as a signer; a foreign signer as one whose signatures are checked; ours as it is.

    Raises:
        KeyRefused: Code TYPE if it is neither, or as `CheckedSigner`.
    """
    if isinstance(key, LocalSigner | CheckedSigner):
        return key
    if isinstance(key, Ed25519PrivateKey):
        return LocalSigner(key)
    if not isinstance(key, Signer):
        raise KeyRefused(
            "TYPE", f"signer is {type(key).__name__}, expected an Ed25519 private key or an object with public_key and sign"
        )
    return CheckedSigner(key)


def sign_all(key: Signer | Ed25519PrivateKey, messages: Iterable[bytes]) -> Iterator[bytes]:
    """The signatures over messages, in order; messages are drawn as they are needed."""
    return _each(as_signer(key), messages)


def _each(signer: Signer, messages: Iterable[bytes]) -> Iterator[bytes]:
    sign_many = getattr(signer, "sign_many", None)
    return map(signer.sign, messages) if sign_many is None else sign_many(messages)
