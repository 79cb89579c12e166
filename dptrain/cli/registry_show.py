"""`dptrain registry show` and `dptrain registry verify`: what a registry says, and whether it is true."""

from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys
from attest.errors import RegistryRefused
from attest.registry import Contributor, KeyRecord, Peek, Registry, open_registry, peek
from attest.registry.replay import look_alikes
from attest.schema.plain import day, machine_time, utc
from dptrain.cli.options import existing_file
from dptrain.cli.output import JsonFlag, console, counting, moment, print_json, styled, table
from dptrain.cli.registry_history import Who, sentences, shown
from dptrain.cli.registry_history import as_json as entry_as_json

ExistingRegistry = Annotated[
    Path, typer.Argument(metavar="REGISTRY", exists=True, dir_okay=False, help="Registry file, registry.cbor.")
]
OwnerKey = Annotated[
    Path | None,
    existing_file("--owner-key", "PUB", "Public key of the corpus owner; default: owner.pub beside the registry."),
]


def show(
    registry: ExistingRegistry,
    history: Annotated[bool, typer.Option("--history", help="List what every entry did.")] = False,
    owner_key: OwnerKey = None,
    json: JsonFlag = False,
) -> None:
    """List contributors, keys and granted classes, or with --history the entries that led there.

    Without the owner's public key nothing can be verified: the file is shown all the same, marked NOT VERIFIED, and the
    exit code is 1.
    """
    public = owner_key or registry.with_name("owner.pub")
    known = open_registry(registry, keys.load_public_key(public)) if public.is_file() else None
    found = peek(registry) if history or known is None else None
    if json:
        print_json(as_json(known or found, verified=known is not None, history=found if history else None))
    else:
        _print_unverified(known)
        _print_history(found) if history and found is not None else _print_contributors(known or found)
        _print_unverified(known)
    if known is None:
        raise typer.Exit(1)


def verify(
    registry: ExistingRegistry,
    owner_key: OwnerKey = None,
    root: Annotated[
        str | None, typer.Option(metavar="HEX", help="A root seen before, which the registry must still extend.")
    ] = None,
    now: Annotated[int | None, moment("What the clock says, which no entry may be ahead of; default: now.")] = None,
    json: JsonFlag = False,
) -> None:
    """Verify every entry, every contributor's statement and every key; exit code 1 if anything is refused.

    A last entry that lies more than an hour ahead of the clock is refused: nothing could be revoked until then.
    """
    public = owner_key or registry.with_name("owner.pub")
    if not public.is_file():
        raise typer.BadParameter(f"there is no {public}; give the corpus owner's public key with --owner-key")
    known = open_registry(registry, keys.load_public_key(public))
    known.require_not_ahead(machine_time() if now is None else now)
    if root is not None and not known.extends(_hex(root, "--root")):
        raise RegistryRefused(
            "REGISTRY_ROOT",
            f"registry has the root {known.root().hex()} and does not extend {root}; it is another one, or it was cut back",
        )
    enrolled = [record.raw for contributor in known.contributors for record in contributor.keys]
    with counting("checking keys") as progress:
        for number, raw in enumerate(enrolled, start=1):
            keys.check_public_key(raw)
            progress(number)
    proved = sum(record.proved for contributor in known.contributors for record in contributor.keys)
    # Commitments have no looks.
    alike = None if known.names_missing else look_alikes((known.owner, *known.by_name))
    if json:
        told = {
            "keys": len(enrolled),
            "proved": proved,
            "look_alikes": None if alike is None else [list(group) for group in alike],
        }
        print_json(as_json(known, verified=True) | told)
        return
    out = console()
    out.print(
        f"verified {len(known.roots)} entries by {known.owner}: {len(known.by_name)} contributors, {len(enrolled)} keys, "
        f"{proved} of them with proof of possession\n"
        f"registry id {known.registry_id.hex()}\nregistry root {known.root().hex()}"
    )
    if alike is None:
        out.print(styled("yellow", "note", f": names that look alike were not looked for: {known.names_missing}"))
    for group in alike or ():
        out.print(styled("yellow", "note", f": names that look alike: {', '.join(group)}"))


def register(app: typer.Typer) -> None:
    """Add the commands to the group `registry`."""
    app.command()(show)
    app.command()(verify)


def _hex(text: str, option: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r} is not in hex") from error


def _print_unverified(known: Registry | None) -> None:
    if known is None:
        console().print(
            styled("bold red", "NOT VERIFIED", ": nobody checked who signed this; give the owner's public key with --owner-key")
        )


def _print_contributors(found: Registry | Peek) -> None:
    rows = table("contributor", "key id", "possession", "classes", "cap", "valid from", "valid until", "revoked")
    for contributor in found.contributors:
        name = shown(contributor.name)
        for record in contributor.keys:
            rows.add_row(
                name if contributor.principal is None else f"{name} ({shown(contributor.principal)})",
                record.key_id.hex(),
                possession(record),
                ", ".join(contributor.classes),
                "" if contributor.cap is None else str(contributor.cap),
                # Days are enough to look at, and fit a terminal; --json has the seconds.
                day(record.not_before),
                day(record.not_after),
                "" if record.revoked_at is None else utc(record.revoked_at),
            )
    out = console()
    out.print(rows)
    if isinstance(found, Registry) and found.names_missing:
        out.print(f"contributors are shown by the beginning of their commitments: {found.names_missing}")
    out.print(f"owner {found.owner}, id {found.registry_id.hex()}\nroot {found.roots[-1].hex()}")
    out.print("possession: proved, by a statement that the key signed for this registry; or the word of the owner who enrolled")


def possession(record: KeyRecord) -> str:
    """Says on whose word a key is the contributor's: that of the key itself, or of the owner."""
    return "proved" if record.proved else "owner's word"


def _print_history(found: Peek) -> None:
    out, who = console(), Who(found)
    for entry, root in zip(found.entries, found.roots, strict=True):
        out.print(f"entry {entry.seq}, {utc(entry.time)}, root {root.hex()}")
        for sentence in sentences(entry, who):
            out.print(f"  {sentence}")


def as_json(
    found: Registry | Peek, *, verified: bool, history: Peek | None = None, names: list[str] | None = None
) -> dict[str, Any]:
    """A registry as JSON; a command that changed it names only whom it changed, of perhaps very many."""
    chosen = [item for item in found.contributors if names is None or item.name in names]
    data: dict[str, Any] = {
        "verified": verified,
        "root": found.roots[-1].hex(),
        "registry_id": found.registry_id.hex(),
        "owner": found.owner,
        "entries": len(found.roots),
        "contributors": [_contributor_as_json(item) for item in chosen],
    }
    if history is not None:
        who = Who(history)
        data["history"] = [
            entry_as_json(entry, who) | {"root": root.hex()} for entry, root in zip(history.entries, history.roots, strict=True)
        ]
    return data


def _contributor_as_json(contributor: Contributor) -> dict[str, Any]:
    return {
        "name": shown(contributor.name),
        "classes": list(contributor.classes),
        "cap": contributor.cap,
        "principal": None if contributor.principal is None else shown(contributor.principal),
        "keys": [
            {
                "key_id": record.key_id.hex(),
                "not_before": record.not_before,
                "not_after": record.not_after,
                "revoked_at": record.revoked_at,
                "proved": record.proved,
            }
            for record in contributor.keys
        ],
    }
