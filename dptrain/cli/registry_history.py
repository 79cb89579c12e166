"""The entries of a registry in words, and as JSON."""

from typing import Any

from attest.keys import key_id
from attest.registry import Action, Create, Enrol, Entry, Grant, KeyStatement, Prove, Revoke, RevokeOwn, Rotate, SetClock
from attest.shown import utc, visible

MOST = 20
"""Actions of one entry that are told one by one to a person."""


def sentences(entry: Entry) -> list[str]:
    """What an entry did, a sentence an action; of many actions the first ones."""
    told = [_sentence(action) for action in entry.actions[:MOST]]
    left = len(entry.actions) - len(told)
    return [*told, f"and {left} more"] if left else told


def as_json(entry: Entry) -> dict[str, Any]:
    """An entry as JSON, every action in it."""
    return {"seq": entry.seq, "time": entry.time, "actions": [_action_as_json(action) for action in entry.actions]}


def _sentence(action: Action) -> str:
    match action:
        case Create():
            return f"created by {action.owner}, id {action.registry_id.hex()}"
        case Enrol():
            cap = "" if action.cap is None else f", at most {action.cap} contributions"
            principal = "" if action.principal is None else f", principal {action.principal}"
            return (
                f"enrolled {action.name} with key {_short(action.key)} from {utc(action.not_before)} until "
                f"{utc(action.not_after)} for {', '.join(action.classes) or 'no class'}{cap}{principal}, on the owner's word"
            )
        case Grant():
            cap = "" if action.cap is None else f", at most {action.cap} contributions"
            return f"granted {action.name} exactly {', '.join(action.classes) or 'no class'}{cap}"
        case Rotate():
            said = KeyStatement.from_cbor(action.statement)
            return (
                f"{said.contributor} followed key {_short(said.key)}, ended {utc(action.old_not_after)}, by "
                f"{_short(said.new_key)}, valid from {utc(action.not_before)} until {utc(action.not_after)}; both signed it"
            )
        case Revoke():
            return f"revoked {_which(action.key)} of {action.name} from {utc(action.at)} on"
        case Prove():
            said = KeyStatement.from_cbor(action.statement)
            return f"{said.contributor} proved that it holds key {_short(said.key)}, which signed that"
        case RevokeOwn():
            said = KeyStatement.from_cbor(action.statement)
            return f"{said.contributor} revoked {_which(said.key)} of its own from {utc(said.revoked_at or 0)} on"
        case SetClock():
            return f"set the clock back from {utc(action.before)}: {visible(action.reason)}"


def _action_as_json(action: Action) -> dict[str, Any]:
    fields = {name: getattr(action, name) for name in action.__slots__}
    if isinstance(action, Rotate | RevokeOwn | Prove):
        said = KeyStatement.from_cbor(action.statement)
        fields = {name: getattr(said, name) for name in said.__slots__} | fields
    return {"action": type(action).__name__.lower()} | {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _short(raw: bytes | None) -> str:
    return key_id(raw or b"").hex()


def _which(raw: bytes | None) -> str:
    return "all keys" if raw is None else f"key {_short(raw)}"
