"""Show a registry and its history, in words and as JSON."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table

from attest import keys
from attest import registry as log
from attest.errors import RegistryRefused
from attest.keys import key_id
from attest.registry.entries import signing_key
from attest.registry.replay import look_alikes
from attest.schema.plain import day, machine_time, utc, visible
from dptrain.cli.inputs import octets
from dptrain.cli.options import file_argument, file_option, moment, option, wrong_if
from dptrain.cli.output import counting, styled, table_of
from dptrain.cli.results import Shown, Told, pick, plain

MOST = 20
"""Actions of one entry that are told one by one to a person."""


class Who:
    """Names whom the entries of a registry speak of: names where they are known, else the beginning of a commitment.

    Args:
        found: The registry.
    """

    def __init__(self, found: log.Peek) -> None:
        self._of_key = {record.raw: contributor for contributor in found.contributors for record in contributor.keys}
        self._of_commitment: dict[bytes, log.Contributor] = {}
        for action in (action for entry in found.entries for action in entry.actions):
            if isinstance(action, log.Enrol) and action.key in self._of_key:
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


def _sentence(action: log.Action, who: Who) -> str:
    match action:
        case log.Create():
            return f"created by {action.owner}, id {action.registry_id.hex()}"
        case log.Enrol():
            cap = "" if action.cap is None else f", at most {action.cap} contributions"
            principal = "" if action.principal is None else f", principal {who.principal(bytes(action.name))}"
            return (
                f"enrolled {who(bytes(action.name))} with key {_short(action.key)} from {utc(action.not_before)} until "
                f"{utc(action.not_after)} for {', '.join(action.classes) or 'no class'}{cap}{principal}, on the owner's word"
            )
        case log.Grant():
            cap = "" if action.cap is None else f", at most {action.cap} contributions"
            return f"granted {who(bytes(action.name))} exactly {', '.join(action.classes) or 'no class'}{cap}"
        case log.Rotate():
            said = log.KeyStatement.from_cbor(action.statement)
            return (
                f"{who.of_key(said.key)} followed key {_short(said.key)}, ended {utc(action.old_not_after)}, by "
                f"{_short(said.new_key)}, valid from {utc(action.not_before)} until {utc(action.not_after)}; both signed it"
            )
        case log.Revoke():
            return f"revoked {_which(action.key)} of {who(bytes(action.name))} from {utc(action.at)} on"
        case log.Prove():
            said = log.KeyStatement.from_cbor(action.statement)
            return f"{who.of_key(said.key)} proved that it holds key {_short(said.key)}, which signed that"
        case log.RevokeOwn():
            said = log.KeyStatement.from_cbor(action.statement)
            name = who.of_key(said.key or signing_key(action.message))
            return f"{name} revoked {_which(said.key)} of its own from {utc(said.revoked_at or 0)} on"
        case log.SetClock():
            return f"set the clock back from {utc(action.before)}: {visible(action.reason)}"


def _action_as_json(action: log.Action, who: Who) -> dict[str, Any]:
    fields = pick(action, " ".join(action.__slots__))
    if isinstance(action, log.Enrol | log.Grant | log.Revoke):
        fields |= {"name": who(bytes(action.name)), "commitment": plain(action.name)}
    if isinstance(action, log.Enrol) and action.principal is not None:
        fields |= {"principal": who.principal(bytes(action.name)), "committed_principal": plain(action.principal)}
    if isinstance(action, log.Rotate | log.RevokeOwn | log.Prove):
        said = log.KeyStatement.from_cbor(action.statement)
        signing = said.key if isinstance(action, log.Rotate) else signing_key(action.message)
        fields = pick(said, " ".join(said.__slots__)) | {"contributor": who.of_key(signing)} | fields
    return {"action": type(action).__name__.lower()} | fields


def _short(raw: bytes | None) -> str:
    return key_id(raw or b"").hex()


def _which(raw: bytes | None) -> str:
    return "all keys" if raw is None else f"key {_short(raw)}"


ExistingRegistry = Annotated[Path, file_argument("REGISTRY", "Registry file, registry.cbor.")]
OwnerKey = Annotated[Path | None, file_option("PUB", "Public key of the corpus owner; default: owner.pub beside the registry.")]


def show(
    registry: ExistingRegistry,
    history: Annotated[bool, option("List what every entry did.", "--history")] = False,
    owner_key: OwnerKey = None,
) -> Told:
    """List contributors, keys and granted classes, or with --history the entries that led there.

    Without the owner's public key nothing can be verified: the file is shown all the same, marked NOT VERIFIED, and the
    exit code is 1.

    Example: `dptrain registry show registry.cbor`
    """
    public = owner_key or registry.with_name("owner.pub")
    known = log.open_registry(registry, keys.load_public_key(public)) if public.is_file() else None
    found = log.peek(registry) if history or known is None else None
    data = as_json(known or found, verified=known is not None, history=found if history else None)
    text = _history_text(found) if history and found is not None else _contributors_text(known or found)
    sentence = ": nobody checked who signed this; give the owner's public key with --owner-key"
    mark = [] if known else [styled("bold red", "NOT VERIFIED", sentence)]
    return Told(data, [*mark, *text, *mark], exit_code=known is None)


def verify(
    registry: ExistingRegistry,
    owner_key: OwnerKey = None,
    root: Annotated[str | None, option("A root seen before, which the registry must still extend.", metavar="HEX")] = None,
    now: Annotated[int | None, moment("What the clock says, which no entry may be ahead of; default: now.")] = None,
) -> Told:
    """Verify every entry, every contributor's statement and every key; exit code 1 if anything is refused.

    A last entry that lies more than an hour ahead of the clock is refused: nothing could be revoked until then.

    Example: `dptrain registry verify registry.cbor --owner-key owner.pub`
    """
    public = owner_key or registry.with_name("owner.pub")
    wrong_if(not public.is_file(), f"there is no {public}; give the corpus owner's public key with --owner-key")
    known = log.open_registry(registry, keys.load_public_key(public))
    known.require_not_ahead(machine_time() if now is None else now)
    if root is not None and not known.extends(octets(root, f"--root {root!r} is not in hex")):
        raise RegistryRefused(
            "REGISTRY_ROOT",
            f"registry has the root {known.root().hex()} and does not extend {root}; it is another one, or it was cut back",
        )
    enrolled = [record for contributor in known.contributors for record in contributor.keys]
    with counting("checking keys") as progress:
        for number, record in enumerate(enrolled, start=1):
            keys.check_public_key(record.raw)
            progress(number)
    proved = sum(record.proved for record in enrolled)
    # Commitments have no looks.
    alike = None if known.names_missing else look_alikes((known.owner, *known.by_name))
    told = {"keys": len(enrolled), "proved": proved, "look_alikes": plain(alike)}
    notes = [f": names that look alike: {', '.join(group)}" for group in alike or ()]
    if alike is None:
        notes = [f": names that look alike were not looked for: {known.names_missing}"]
    return Told(
        as_json(known, verified=True) | told,
        [
            f"verified {len(known.roots)} entries by {known.owner}: {len(known.by_name)} contributors, {len(enrolled)} keys, "
            f"{proved} of them with proof of possession\n"
            f"registry id {known.registry_id.hex()}\nregistry root {known.root().hex()}",
            *(styled("yellow", "note", note) for note in notes),
        ],
    )


def keys_table(contributors: Iterable[log.Contributor]) -> Table:
    """Returns a row for each key: on whose word it is the contributor's, what it may attest, and from when to when."""
    # Days are enough to look at, and fit a terminal; --json has the seconds.
    return table_of(
        [(contributor, record) for contributor in contributors for record in contributor.keys],
        {
            "contributor": lambda row: shown(row[0].name) + (f" ({shown(row[0].principal)})" if row[0].principal else ""),
            "key id": lambda row: row[1].key_id.hex(),
            "possession": lambda row: "proved" if row[1].proved else "owner's word",
            "classes": lambda row: ", ".join(row[0].classes),
            "cap": lambda row: "" if row[0].cap is None else str(row[0].cap),
            "valid from": lambda row: day(row[1].not_before),
            "valid until": lambda row: day(row[1].not_after),
            "revoked": lambda row: "" if row[1].revoked_at is None else utc(row[1].revoked_at),
        },
    )


def _contributors_text(found: log.Registry | log.Peek) -> Iterator[Shown]:
    yield keys_table(found.contributors)
    if isinstance(found, log.Registry) and found.names_missing:
        yield f"contributors are shown by the beginning of their commitments: {found.names_missing}"
    yield f"owner {found.owner}, id {found.registry_id.hex()}\nroot {found.roots[-1].hex()}"
    yield "possession: proved, by a statement that the key signed for this registry; or the word of the owner who enrolled"


def _history_text(found: log.Peek) -> Iterator[Shown]:
    who = Who(found)
    for entry, root in zip(found.entries, found.roots, strict=True):
        yield f"entry {entry.seq}, {utc(entry.time)}, root {root.hex()}"
        yield from (f"  {_sentence(action, who)}" for action in entry.actions[:MOST])
        if len(entry.actions) > MOST:
            yield f"  and {len(entry.actions) - MOST} more"


def as_json(
    found: log.Registry | log.Peek, *, verified: bool, history: log.Peek | None = None, names: list[str] | None = None
) -> dict[str, Any]:
    """Returns a registry as JSON; a command that changed it names only whom it changed, of perhaps very many."""
    chosen = [item for item in found.contributors if names is None or item.name in names]
    data: dict[str, Any] = {
        "verified": verified,
        "root": found.roots[-1].hex(),
        "registry_id": found.registry_id.hex(),
        "owner": found.owner,
        "entries": len(found.roots),
        "contributors": [
            {
                "name": shown(item.name),
                **pick(item, "classes cap"),
                "principal": None if item.principal is None else shown(item.principal),
                "keys": [pick(record, "key_id not_before not_after revoked_at proved") for record in item.keys],
            }
            for item in chosen
        ],
    }
    if history is not None:
        who = Who(history)
        data["history"] = [
            pick(entry, "seq time")
            | {"actions": [_action_as_json(action, who) for action in entry.actions], "root": root.hex()}
            for entry, root in zip(history.entries, history.roots, strict=True)
        ]
    return data
