"""Take along what goes into an export beside the leaves: options of `ledger export` and `release`, and what they say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from dptrain.cli.options import file_option, option
from dptrain.cli.output import styled
from dptrain.cli.results import Shown
from ledger.storage.place import Place

RegistryAlong = Annotated[
    Path | None,
    file_option(
        "REGISTRY",
        "Contributor registry to take along, without its names; default: the one that the run used, if it is still there.",
        "--registry",
    ),
]
WithoutAttestations = Annotated[
    bool,
    option(
        "Leave out what contributors signed, and the registry unless you name it, if you may not share them. Then an "
        "audit has to believe what your ledger says of them: it is TOLD at best.",
        "--without-attestations",
    ),
]


def taken_along(place: Place, registry: Path | None, without: bool) -> dict[str, Any]:
    """Returns the arguments of `Ledger.export` that say what goes along.

    Args:
        place: where the ledger lies.
        registry: the registry that was named.
        without: whether attestations are left out.
    """
    from dptrain.record.registry_watch import registry_of_run

    found = registry_of_run(place) if registry is None and not without else registry
    return {"registry": found, "attestations": not without}


def contained(export: Path) -> dict[str, bool]:
    """Returns what went along, as JSON has it."""
    from ledger import layout

    return {"attestations": (export / layout.ATTESTATIONS).exists(), "registry": (export / layout.REGISTRY).exists()}


def contained_text(export: Path, *, without: bool) -> Iterator[Shown]:
    """Yields what an export goes without, and how to have it.

    Args:
        export: the directory that was written.
        without: whether that was asked for.
    """
    there = contained(export)
    if all(there.values()):
        yield "with it: what its contributors signed, and the registry; no name, no content, no opening"
    elif without:
        yield "without what contributors signed: an audit of it is TOLD at best"
    if not there["attestations"] and not without:
        how = "no contribution was admitted, or the ledger keeps none of some ADMIT leaf ('dptrain ledger fsck' names it)"
        yield styled("yellow", "without attestations", f": {how}")
    if not there["registry"] and not without:
        yield styled("yellow", "without a registry", ": nobody remembers where that of the run lies; give --registry")
