"""Naming a ledger on the command line: its file, or the URL of a database and the state directory that goes with it."""

from pathlib import Path
from typing import Annotated

import typer

from ledger.errors import LedgerError
from ledger.storage.place import Place


def checked(ledger: str | None) -> str | None:
    """A ledger's name whose file, if it is one, is there; a callback of arguments and options.

    Raises:
        typer.BadParameter: the file is missing, or the URL names no ledger.
    """
    if ledger is None:
        return None
    try:
        place = Place.of(ledger)
    except LedgerError as error:
        raise typer.BadParameter(error.sentence) from error
    if place.kind == "sqlite" and not Path(place.target).exists():
        raise typer.BadParameter(f"File '{ledger}' does not exist.")
    if place.kind == "sqlite" and Path(place.target).is_dir():
        raise typer.BadParameter(f"File '{ledger}' is a directory.")
    return ledger


LedgerName = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER.db", callback=checked, help="Ledger of a run: ledger.db, or postgresql://USER@HOST/DATABASE."
    ),
]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="What the signer of a ledger on a server keeps: its record, its key, incoming withdrawals.",
    ),
]


def place_of(ledger: str, state: Path | None) -> Place:
    """Where a ledger lies.

    Raises:
        typer.BadParameter: a state directory where none belongs.
    """
    try:
        return Place.of(ledger, state)
    except LedgerError as error:
        raise typer.BadParameter(error.sentence) from error
