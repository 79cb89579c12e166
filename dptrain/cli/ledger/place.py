"""Naming a ledger on the command line: its file, or the URL of a database and the state directory that goes with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dptrain.cli.inputs import read_private_key
from dptrain.cli.options import argument, file_option, folder_option
from dptrain.cli.output import counting, moment
from ledger.errors import LedgerError
from ledger.note import NoteSigner
from ledger.storage.place import Place

if TYPE_CHECKING:
    from ledger.log import Ledger


def checked(ledger: str | None) -> str | None:
    """Returns a ledger's name whose file, if it is one, is there; a callback of arguments and options.

    Raises:
        typer.BadParameter: the file is missing, or the URL names no ledger.
    """
    if ledger is None:
        return None
    try:
        place = Place.of(ledger)
    except LedgerError as error:
        raise typer.BadParameter(error.sentence) from error
    if place.file is not None and not place.file.exists():
        raise typer.BadParameter(f"File '{ledger}' does not exist.")
    if place.file is not None and place.file.is_dir():
        what = "an export" if (Path(ledger) / "checkpoint").is_file() else "a directory"
        how = "of exports 'ledger verify', 'show', 'report' and 'prove' speak"
        raise typer.BadParameter(f"'{ledger}' is {what}, and no ledger; {how}")
    return ledger


LedgerName = Annotated[
    str, argument("Ledger of a run: ledger.db, or postgresql://USER@HOST/DATABASE.", metavar="LEDGER.db", callback=checked)
]
StateDirectory = Annotated[
    Path | None,
    folder_option(
        "DIR", "What the signer of a ledger on a server keeps: its record, its key, incoming withdrawals.", "--state"
    ),
]


def place_of(ledger: str, state: Path | None) -> Place:
    """Returns where a ledger lies.

    Raises:
        typer.BadParameter: a state directory where none belongs.
    """
    try:
        return Place.of(ledger, state)
    except LedgerError as error:
        raise typer.BadParameter(error.sentence) from error


@contextmanager
def opened_to_sign(place: Place, key: Path | None, passphrase_file: Path | None) -> Iterator["Ledger"]:
    """Yields the ledger, opened with its signing key: the one given, or the one beside it.

    Raises:
        typer.BadParameter: there is no key.
    """
    from ledger.log import Ledger

    private_key = ledger_key(place, key, passphrase_file)
    with counting(f"reading {place.shown}"):
        with Ledger.open(place, read_only=True) as log:
            origin = log.header.origin
        opened = Ledger.open(place, NoteSigner(origin, private_key))
    with opened as log:
        yield log


def ledger_key(place: Place | None, key: Path | None, passphrase_file: Path | None) -> Ed25519PrivateKey:
    """Returns the private key of a ledger: the one given, or the one beside it.

    Raises:
        typer.BadParameter: there is none.
    """
    found = key or (None if place is None else place.key)
    if found is None or not found.is_file():
        where = "" if found is None else f"there is no {found}; "
        raise typer.BadParameter(f"{where}give the ledger's private key with --ledger-key")
    return read_private_key(found, passphrase_file)


def ledger_or_export(ledger: str) -> str:
    """Returns a directory that export wrote, or a name that `checked` takes; a callback.

    Raises:
        typer.BadParameter: as `checked`.
    """
    return ledger if (Path(ledger) / "checkpoint").is_file() else checked(ledger) or ledger


LedgerOrExport = Annotated[
    str, argument("Ledger of a run, or the directory that export wrote.", metavar="LEDGER", callback=ledger_or_export)
]
Now = Annotated[
    int | None, moment("What the clock says, which no time in the ledger may be ahead of by more than an hour; default: now.")
]
LedgerKey = Annotated[Path | None, file_option("KEY", "Private key of the ledger; default: LEDGER.key.", "--ledger-key")]
