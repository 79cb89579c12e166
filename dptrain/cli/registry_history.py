"""The entries of a registry in words, and as JSON."""

import re
from typing import Any

from attest.keys import key_id
from attest.registry import (
    Action,
    Contributor,
    Create,
    Enrol,
    Entry,
    Grant,
    KeyStatement,
    Peek,
    Prove,
    Revoke,
    RevokeOwn,
    Rotate,
    SetClock,
)
from attest.registry.entries import signing_key
from attest.schema.plain import utc, visible

MOST = 20
"""Actions of one entry that are told one by one to a person."""


class Who:
    """Whom the entries of a registry speak of: names where they are known, else the beginning of a commitment.

    Args:
        found: The registry.
    """

    def __init__(self, found: Peek) -> None:
        self._of_key = {record.raw: contributor for contributor in found.contributors for record in contributor.keys}
        self._of_commitment: dict[bytes, Contributor] = {}
        for action in (action for entry in found.entries for action in entry.actions):
            if isinstance(action, Enrol) and action.key in self._of_key:
                self._of_commitment[bytes(action.name)] = self._of_key[action.key]

    def __call__(self, commitment: bytes) -> str:
        """Returns the contributor that a commitment stands for."""
        known = self._of_commitment.get(commitment)
        return shown(commitment.hex() if known is None else known.name)

    def principal(self, commitment: bytes) -> str:
        """Returns the principal of that contributor."""
        known = self._of_commitment.get(commitment)
        return shown("" if known is None or known.principal is None else known.principal)

    def of_key(self, raw: bytes | None) -> str:
        """Returns the contributor whose key it is."""
        known = self._of_key.get(raw or b"")
        return "nobody" if known is None else shown(known.name)


def shown(name: str) -> str:
    """Shows a name, or the beginning of the commitment in hex that stands for it where it is not known."""
    return f"({name[:8]})" if re.fullmatch("[0-9a-f]{64}", name) else name


def sentences(entry: Entry, who: Who) -> list[str]:
    """What an entry did, a sentence an action; of many actions the first ones."""
    told = [_sentence(action, who) for action in entry.actions[:MOST]]
    left = len(entry.actions) - len(told)
    return [*told, f"and {left} more"] if left else told


def as_json(entry: Entry, who: Who) -> dict[str, Any]:
    """An entry as JSON, every action in it."""
    return {"seq": entry.seq, "time": entry.time, "actions": [_action_as_json(action, who) for action in entry.actions]}


def _sentence(action: Action, who: Who) -> str:
    match action:
        case Create():
            return f"created by {action.owner}, id {action.registry_id.hex()}"
        case Enrol():
            cap = "" if action.cap is None else f", at most {action.cap} contributions"
            principal = "" if action.principal is None else f", principal {who.principal(bytes(action.name))}"
            return (
                f"enrolled {who(bytes(action.name))} with key {_short(action.key)} from {utc(action.not_before)} until "
                f"{utc(action.not_after)} for {', '.join(action.classes) or 'no class'}{cap}{principal}, on the owner's word"
            )
        case Grant():
            cap = "" if action.cap is None else f", at most {action.cap} contributions"
            return f"granted {who(bytes(action.name))} exactly {', '.join(action.classes) or 'no class'}{cap}"
        case Rotate():
            said = KeyStatement.from_cbor(action.statement)
            return (
                f"{who.of_key(said.key)} followed key {_short(said.key)}, ended {utc(action.old_not_after)}, by "
                f"{_short(said.new_key)}, valid from {utc(action.not_before)} until {utc(action.not_after)}; both signed it"
            )
        case Revoke():
            return f"revoked {_which(action.key)} of {who(bytes(action.name))} from {utc(action.at)} on"
        case Prove():
            said = KeyStatement.from_cbor(action.statement)
            return f"{who.of_key(said.key)} proved that it holds key {_short(said.key)}, which signed that"
        case RevokeOwn():
            said = KeyStatement.from_cbor(action.statement)
            name = who.of_key(said.key or signing_key(action.message))
            return f"{name} revoked {_which(said.key)} of its own from {utc(said.revoked_at or 0)} on"
        case SetClock():
            return f"set the clock back from {utc(action.before)}: {visible(action.reason)}"


def _action_as_json(action: Action, who: Who) -> dict[str, Any]:
    fields = {name: getattr(action, name) for name in action.__slots__}
    if isinstance(action, Enrol | Grant | Revoke):
        fields |= {"name": who(bytes(action.name)), "commitment": action.name}
    if isinstance(action, Enrol) and action.principal is not None:
        fields |= {"principal": who.principal(bytes(action.name)), "committed_principal": action.principal}
    if isinstance(action, Rotate | RevokeOwn | Prove):
        said = KeyStatement.from_cbor(action.statement)
        signing = said.key if isinstance(action, Rotate) else signing_key(action.message)
        said_fields = {name: getattr(said, name) for name in said.__slots__}
        fields = said_fields | {"contributor": who.of_key(signing)} | fields
    return {"action": type(action).__name__.lower()} | {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _short(raw: bytes | None) -> str:
    return key_id(raw or b"").hex()


def _which(raw: bytes | None) -> str:
    return "all keys" if raw is None else f"key {_short(raw)}"
