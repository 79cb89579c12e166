"""INSECURE, FOR TESTS ONLY: the interface of client and server in plain numpy, where nothing is encrypted.

It lets what is built on the interface be tested where TenSEAL is not installed. Its bytes begin with words that say what they
are, and the real client and server refuse them.
"""

import secrets
import warnings
from typing import Any, Final

import numpy as np

from dptrain.inference.he.adapter import Adapter, Array, as_array
from dptrain.inference.he.scheme import WIDTHS, EncryptionRefused
from dptrain.inference.he.sessions import Sessions

MARK: Final = b"insecure-test-only\n"
_NAME = 16


class InsecureWarning(UserWarning):
    """Says that states are not encrypted."""


class InsecureKeys:
    """Has the methods of `HEKeys`, and no secret."""

    insecure_test_only: Final = True

    def __init__(self, width: int, name: bytes) -> None:
        self.width, self._name = width, name
        self.public = MARK + name

    @classmethod
    def generate(cls, width: int = WIDTHS[-1]) -> "InsecureKeys":
        """Makes a name, and warns."""
        warnings.warn("InsecureKeys encrypts nothing: it is for tests only; use HEKeys", InsecureWarning, stacklevel=2)
        return cls(width, secrets.token_bytes(_NAME))

    def encrypt(self, state: Any) -> bytes:
        """Returns the state IN CLEAR, with a few random bytes, so that two of one state differ as real ones do."""
        return MARK + self._name + secrets.token_bytes(_NAME) + as_array(state).tobytes()

    def decrypt(self, answer: bytes) -> Array:
        """Returns delta."""
        return np.frombuffer(_opened(answer, self._name), np.float64).copy()

    def close(self) -> None:
        """Does nothing."""


class InsecureServer:
    """Has the methods of `AdapterServer`, and reads every state."""

    insecure_test_only: Final = True

    def __init__(self, sessions: int = 16) -> None:
        warnings.warn("InsecureServer reads states: it is for tests only; use AdapterServer", InsecureWarning, stacklevel=2)
        self._sessions: Sessions[bytes] = Sessions(sessions)

    def register_keys(self, session: str, bundle: bytes) -> None:
        """Takes the name of keys; raises `NOT_A_BUNDLE`, and as `Sessions.add`."""
        if not isinstance(bundle, bytes) or not bundle.startswith(MARK) or len(bundle) != len(MARK) + _NAME:
            raise EncryptionRefused("NOT_A_BUNDLE", "these are no keys of the insecure test; send InsecureKeys.public")
        self._sessions.add(session, bundle.removeprefix(MARK))

    def forget(self, session: str) -> None:
        """Lets a session go."""
        self._sessions.forget(session)

    def prepare(self, adapter: Adapter, width: int | None = None) -> None:
        """Does nothing."""

    def apply(self, session: str, adapter: Adapter, state: bytes) -> bytes:
        """Returns scaling · B A h IN CLEAR; raises as `AdapterServer.apply`."""
        name = self._sessions.of(session)
        values = np.frombuffer(_opened(state, name), np.float64)
        if len(values) != adapter.A.shape[1]:
            raise EncryptionRefused("WRONG_LENGTH", f"the state is {len(values)} long, the adapter takes {adapter.A.shape[1]}")
        return MARK + name + secrets.token_bytes(_NAME) + (adapter.scaling * (adapter.B @ (adapter.A @ values))).tobytes()


def _opened(data: object, name: bytes) -> bytes:
    if not isinstance(data, bytes):
        raise EncryptionRefused("STATE_IN_CLEAR", f"a {type(data).__name__} came; send what encrypt gives")
    if not data.startswith(MARK) or (len(data) - len(MARK)) % 8:
        raise EncryptionRefused("NOT_A_CIPHERTEXT", "these bytes are of no insecure test; send what encrypt gave")
    if data[len(MARK) :][:_NAME] != name:
        raise EncryptionRefused("WRONG_KEYS", "the bytes are under other keys; use those of the session")
    return data[len(MARK) + 2 * _NAME :]
