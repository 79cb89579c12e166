"""Says who may ask: bearer tokens, compared in constant time, each of one privacy unit; and how often.

The file of tokens has SHA-256 hashes alone, so that reading it lets nobody in. A token has 32 random bytes, which no dictionary
has, so a plain hash suffices (RFC 6750 for how it is sent).
"""

import hashlib
import hmac
import json
import secrets
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from attest.errors import AttestError
from attest.files import atomic_write
from dptrain.errors import ConfigError
from dptrain.serve.config import Name, Table
from dptrain.serve.wire import Refused
from ledger.budget import Unit
from ledger.errors import LedgerError
from ledger.release import Rights

PREFIX: Final = "dpt_"
"""Begins every token, so that scanners for leaked secrets can know one."""

CLIENT: Final = "client"
OPERATOR: Final = "operator"
"""Role that sees the posture, all budgets and the operator's page, and asks for no text."""


class TokenRow(Table):
    """Is one entry of the file: ``[[token]]``."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    client: Name
    role: Literal["client", "operator"] = CLIENT
    unit: Literal["user", "corpus"] = "user"
    rights: dict[str, Any] | None = None


class _Tokens(Table):
    token: list[TokenRow] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Client:
    """Is who asks.

    Attributes:
        name: identifier, and that of the privacy unit that pays. role: `CLIENT` or `OPERATOR`.
        unit: who pays. rights: those of the configuration; None where each request brings an envelope.
        digest: SHA-256 of the token by which it asks.
    """

    name: str
    role: str
    unit: Unit
    rights: Rights | None
    digest: bytes = field(repr=False)


class Access:
    """Knows the clients by their tokens.

    Guarantee: a token is compared with every entry, in constant time each, whatever was found before.

    Attributes:
        clients: all that may ask.
    """

    def __init__(self, rows: list[TokenRow]) -> None:
        """Raises ConfigError: code TOKENS, an entry stands twice."""
        self.clients: list[Client] = []
        for row in rows:
            rights = None if row.rights is None else Rights.from_table(row.rights)
            unit = Unit(row.unit, row.client)
            self.clients.append(Client(row.client, row.role, unit, rights, bytes.fromhex(row.sha256)))
        if len({client.digest for client in self.clients}) != len(rows):
            raise ConfigError("TOKENS", "one token stands twice in the file of tokens; leave one entry")

    @classmethod
    def load(cls, path: Path) -> "Access":
        """Reads a file of tokens. Raises ConfigError: code TOKENS."""
        try:
            found = _Tokens.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            sentence = f"cannot read the tokens in {path}: {error.strerror or error}"
            raise ConfigError("TOKENS", f"{sentence}; make one: dptrain serve SERVE.toml --add-token CLIENT") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ConfigError("TOKENS", f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except ValueError as error:
            raise ConfigError("TOKENS", f"{path} is no TOML: {error}; mend the file") from error
        try:
            return cls(found.token)
        except (LedgerError, AttestError) as error:
            raise ConfigError("TOKENS", f"{path}: {error.sentence}") from error

    def client(self, header: str | None) -> Client:
        """Returns who sent an ``Authorization`` header. Raises Refused: 401."""
        scheme, _, token = (header or "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for client in self.clients:
            if hmac.compare_digest(client.digest, digest):
                found = client
        if found is None or scheme.lower() != "bearer":
            if not token or scheme.lower() != "bearer":
                sentence = "no token came; send one of this server: Authorization: Bearer dpt_..."
            else:
                sentence = "the token is none that this server knows; a new one counts after SIGHUP or a restart"
            raise Refused(401, "authentication_error", "TOKEN", sentence)
        return found

    def present(self, client: Client) -> Client:
        """Returns what the file says now of a client that was let in earlier: its rights may be others since.

        Raises:
            Refused: 401, its token is gone, or is another client's, or pays from another unit.
        """
        for found in self.clients:
            same = (found.name, found.role, found.unit) == (client.name, client.role, client.unit)
            if same and hmac.compare_digest(found.digest, client.digest):
                return found
        sentence = "the token of this conversation was taken back since it began"
        raise Refused(401, "authentication_error", "TOKEN", f"{sentence}; begin another one with one that holds")


def add_token(path: Path, client: str, *, role: str = CLIENT, unit: str = "user", rights: Rights | None = None) -> str:
    """Adds an entry to a file of tokens, which is made where there is none, and returns the token: it is kept nowhere.

    Raises:
        ConfigError: code TOKENS, the file or an argument is refused.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    said = {"sha256": digest, "client": client, "role": role, "unit": unit}
    lines = ["[[token]]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
    if rights is not None:
        table = rights.as_table()
        lines += ["[token.rights]", *(f"{key} = {str(value).lower()}" for key, value in table.items() if key != "classes")]
        lines.append("[token.rights.classes]")
        lines += [f"{json.dumps(name)} = {json.dumps(most)}" for name, most in table["classes"].items()]
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = before + ("\n" if before else "") + "\n".join(lines) + "\n"
        Access(_Tokens.model_validate(tomllib.loads(whole)).token)
        atomic_write(path, whole.encode(), mode=0o600)
    except OSError as error:
        raise ConfigError("TOKENS", f"cannot write {path}: {error.strerror or error}") from error
    except (ValueError, LedgerError, AttestError) as error:
        raise ConfigError("TOKENS", f"no token for {client!r:.80} in {path}: {error}") from error
    return token


class RateLimit:
    """Counts what a client asked in a moving window; in memory, and anew when the server starts.

    A limit slows somebody who copies an adapter by asking. It does not keep anybody from it who has time.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``most``: of a client in ``seconds``."""
        self._most, self._seconds, self._clock = most, seconds, clock
        self._seen: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def take(self, client: str, what: str) -> None:
        """Counts one. Raises Refused: 429, with the seconds after which to ask again."""
        now = self._clock()
        with self._lock:
            seen = self._seen.setdefault(client, deque())
            while seen and seen[0] <= now - self._seconds:
                seen.popleft()
            if len(seen) >= self._most:
                after = max(1, int(seen[0] + self._seconds - now) + 1)
                sentence = f"{self._most} {what} are answered in {self._seconds:g} seconds"
                raise Refused(429, "rate_limit_exceeded", "RATE", f"{sentence}; ask again in {after} s", after=after)
            seen.append(now)
