"""Keeps one value for each of a few sessions: the public keys of a client."""

import threading
from typing import Generic, TypeVar

from dptrain.inference.he.scheme import EncryptionRefused

Keys = TypeVar("Keys")


class Sessions(Generic[Keys]):
    """Holds the keys of at most so many sessions; those of one are never exchanged for others unseen."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[str, Keys] = {}
        self._lock = threading.Lock()

    def refuse(self, session: str) -> None:
        """Refuses a session that cannot be added, before its keys are read.

        Raises:
            EncryptionRefused: `SESSION_TAKEN` or `SESSIONS_FULL`.
        """
        if session in self._held:
            raise EncryptionRefused("SESSION_TAKEN", "this session has keys; forget it first, or take another name")
        if len(self._held) >= self._most:
            raise EncryptionRefused("SESSIONS_FULL", f"{self._most} sessions have keys, the most there may be; ask later")

    def has(self, session: str) -> bool:
        """Tells whether a session has keys."""
        return session in self._held

    def add(self, session: str, keys: Keys, *, replace: bool = False) -> None:
        """Takes the keys of a session, in place of its own if they are to be replaced; raises as `refuse`."""
        with self._lock:
            if not (replace and session in self._held):
                self.refuse(session)
            self._held[session] = keys

    def of(self, session: str) -> Keys:
        """Returns the keys of a session.

        Raises:
            EncryptionRefused: `NO_KEYS`.
        """
        try:
            return self._held[session]
        except KeyError:
            raise EncryptionRefused("NO_KEYS", "this session has no keys; register HEKeys.public first") from None

    def forget(self, session: str) -> None:
        """Lets the keys of a session go; it may register others."""
        with self._lock:
            self._held.pop(session, None)
