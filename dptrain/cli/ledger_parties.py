"""What `dptrain ledger show --header` says of who signs: owner, ledger, auditors, and contributors by their commitments."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attest.files import read_limited
from attest.schema.plain import utc
from dptrain.cli.output import console, print_json, print_table, styled, table

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger`: help and completion need none of them.
    from attest.registry import Contributor, Registry
    from ledger.replay import Replay

HeaderAsked = Annotated[
    bool,
    typer.Option("--header", help="Who signs: owner, ledger and auditors, and of an export with a registry the contributors."),
]


def show_parties(run: "Replay", ledger: str, *, json: bool) -> None:
    """Prints the signing parties of a run, and where each key was read.

    Args:
        run: the run; of an export, one that was audited.
        ledger: the ledger, or the directory of an export.
        json: print JSON.

    Raises:
        RegistryRefused: the registry in the export does not verify.
    """
    registry = _registry(run, Path(ledger))
    contributors = None if registry is None else [_told(item) for item in registry.contributors]
    data = {"parties": parties(run), "contributors": contributors}
    if json:
        print_json(data)
        return
    out, rows = console(), table("who", "name", "key", "read from")
    for item in data["parties"] or ():
        rows.add_row(item["role"], item["name"], item["key"], item["source"])
    print_table(rows)
    if registry is None:
        out.print("contributors: no registry here")
        return
    keys = table("contributor", "key id", "valid from", "until", "revoked", "holds the key", "classes", "cap")
    for item in data["contributors"] or ():
        for key in item["keys"]:
            times = (utc(key["not_before"]), utc(key["not_after"]), "" if key["revoked_at"] is None else utc(key["revoked_at"]))
            proved = "proved" if key["proved"] else "owner's word"
            cap = "" if item["cap"] is None else str(item["cap"])
            keys.add_row(item["commitment"][:16], key["key_id"], *times, proved, ", ".join(item["classes"]), cap)
    out.print(styled("bold", "contributors", f", as commitments, in a registry with the root {registry.root().hex()}"))
    print_table(keys)


def parties(run: "Replay") -> list[dict[str, str]]:
    """Returns who signs what of a run: role, name, key, and where the key was read."""
    from ledger.note import parse_verifier_key

    header = run.header
    owner = {"role": "owner", "name": header.owner, "key": header.owner_key.hex(), "source": "header; it signs the policy"}
    found = [owner]
    for place, vkey in enumerate(run.keys.vkeys):
        source = "KEY leaf, signed by the key before" if place else "header"
        found.append({"role": "ledger", "name": parse_verifier_key(vkey).name, "key": vkey, "source": source})
    for vkey in header.policy.auditors:
        found.append({"role": "auditor", "name": parse_verifier_key(vkey).name, "key": vkey, "source": "signed policy"})
    return found


def _registry(run: "Replay", export: Path) -> "Registry | None":
    """The last state of the registry in an export; None without one."""
    from attest.registry import read_states
    from ledger import layout

    path = export / layout.REGISTRY
    if not path.is_file():
        return None
    data = read_limited(path, layout.MAX_REGISTRY_SIZE, "contributor registry")
    return read_states(data, run.header.owner_key, run.header.registry_root)[1]


def _told(contributor: "Contributor") -> dict[str, Any]:
    keys = [
        {
            "key_id": record.key_id.hex(),
            "key": record.raw.hex(),
            "not_before": record.not_before,
            "not_after": record.not_after,
            "revoked_at": record.revoked_at,
            "proved": record.proved,
        }
        for record in contributor.keys
    ]
    return {"commitment": contributor.name, "classes": list(contributor.classes), "cap": contributor.cap, "keys": keys}
