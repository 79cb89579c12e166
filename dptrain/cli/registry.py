"""`dptrain registry`: which contributor key may attest which classes."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys
from attest.registry import Registry
from dptrain.cli.output import JsonFlag, console, moment, print_json, table, utc

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Which contributor key may attest which classes.")

_DAY = 86400

RegistryPath = Annotated[Path, typer.Argument(metavar="REGISTRY", dir_okay=False, help="Registry file, registry.cbor.")]
ExistingRegistry = Annotated[
    Path, typer.Argument(metavar="REGISTRY", exists=True, dir_okay=False, help="Registry file, registry.cbor.")
]


@app.command(epilog="Example: dptrain registry add registry.cbor --pub alice.pub --class sensitive --class public")
def add(
    registry: RegistryPath,
    pub: Annotated[Path, typer.Option("--pub", metavar="PUB", exists=True, dir_okay=False, help="Public key file.")],
    classes: Annotated[list[str], typer.Option("--class", help="Class that may be attested; repeat for several.")],
    contributor: Annotated[
        str | None, typer.Option(help="Identifier of the contributor; default: the name in the public key file.")
    ] = None,
    not_before: Annotated[int | None, moment("First moment of the key; default: now.")] = None,
    days: Annotated[int, typer.Option(min=1, help="Days for which the key is valid.")] = 730,
    cap: Annotated[int | None, typer.Option(min=0, help="Contributions admitted at most from this contributor.")] = None,
    json: JsonFlag = False,
) -> None:
    """Enrol a contributor's public key and grant classes; makes the file if it is missing.

    The key is checked for weakness first. A changed registry has a new root, so the policy must be signed again.
    """
    name, raw = keys.load_named_public_key(pub)
    start = int(time.time()) if not_before is None else not_before
    known = Registry.load(registry) if registry.exists() else Registry()
    changed = known.add(contributor or name, raw, classes=classes, not_before=start, not_after=start + days * _DAY, cap=cap)
    changed.save(registry)
    _report(changed, json, f"enrolled {contributor or name} for {', '.join(sorted(set(classes)))}")


@app.command(epilog="Example: dptrain registry revoke registry.cbor --contributor alice --key-id 9f86d081884c7d65")
def revoke(
    registry: ExistingRegistry,
    contributor: Annotated[str, typer.Option(help="Identifier of the contributor.")],
    key_id: Annotated[str | None, typer.Option(metavar="HEX", help="One key; default: all keys.")] = None,
    at: Annotated[int | None, moment("From when on; default: now.")] = None,
    json: JsonFlag = False,
) -> None:
    """Revoke a contributor's keys from a moment on.

    What was admitted and charged before stands in the ledger; take contributions back with `attest withdraw`.
    """
    moment = int(time.time()) if at is None else at
    changed = Registry.load(registry).revoke(contributor, _key_id(key_id), at=moment)
    changed.save(registry)
    _report(changed, json, f"revoked {key_id or 'all keys'} of {contributor} from {utc(moment)} on")


@app.command(epilog="Example: dptrain registry show registry.cbor")
def show(registry: ExistingRegistry, json: JsonFlag = False) -> None:
    """List contributors, keys and granted classes."""
    known = Registry.load(registry)
    if json:
        print_json(_as_json(known))
        return
    rows = table("contributor", "key id", "classes", "valid from", "valid until", "revoked")
    for contributor in known.contributors:
        for record in contributor.keys:
            rows.add_row(
                contributor.name,
                record.key_id.hex(),
                ", ".join(contributor.classes),
                utc(record.not_before),
                utc(record.not_after),
                "" if record.revoked_at is None else utc(record.revoked_at),
            )
    out = console()
    out.print(rows)
    out.print(f"root {known.root().hex()}")


def _key_id(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a key id in hex; 'registry show' lists them") from error


def _report(registry: Registry, json: bool, sentence: str) -> None:
    if json:
        print_json(_as_json(registry))
    else:
        console().print(f"{sentence}\nregistry root {registry.root().hex()}")


def _as_json(registry: Registry) -> dict[str, Any]:
    return {
        "root": registry.root().hex(),
        "contributors": [
            {
                "name": contributor.name,
                "classes": list(contributor.classes),
                "cap": contributor.cap,
                "keys": [
                    {
                        "key_id": record.key_id.hex(),
                        "not_before": record.not_before,
                        "not_after": record.not_after,
                        "revoked_at": record.revoked_at,
                    }
                    for record in contributor.keys
                ],
            }
            for contributor in registry.contributors
        ],
    }
