"""Name a ledger or an export, and the keys that they are read and signed with: options of the commands over ledgers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys
from dptrain.cli.inputs import read_private_key
from dptrain.cli.options import argument, file_option, folder_argument, folder_option, moment, option, wrong_if
from dptrain.cli.output import counting
from ledger.errors import LedgerError
from ledger.note import NoteSigner
from ledger.storage.place import Place

if TYPE_CHECKING:
    # As in gate and release: help and completion of other commands load none of what opens a ledger.
    from ledger.log import Ledger


def checked(ledger: str | None) -> str | None:
    """Returns a ledger's name whose file, if it is one, is there; a callback of arguments and options. Raises
    typer.BadParameter: the file is missing, or the URL names no ledger."""
    if ledger is None:
        return None
    try:
        place = Place.of(ledger)
    except LedgerError as error:
        raise typer.BadParameter(error.sentence) from error
    wrong_if(place.file is not None and not place.file.exists(), f"File '{ledger}' does not exist.")
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
    folder_option("DIR", "What the signer of a ledger on a server keeps: its record, its key, incoming withdrawals."),
]


def place_of(ledger: str, state: Path | None) -> Place:
    """Returns where a ledger lies. Raises typer.BadParameter: a state directory where none belongs."""
    try:
        return Place.of(ledger, state)
    except LedgerError as error:
        raise typer.BadParameter(error.sentence) from error


@contextmanager
def opened_to_sign(place: Place, key: Path | None, passphrase_file: Path | None) -> Iterator["Ledger"]:
    """Yields the ledger, opened with its signing key: the one given, or the one beside it. Raises typer.BadParameter: there is
    no key."""
    from ledger.log import Ledger

    private_key = ledger_key(place, key, passphrase_file)
    with counting(f"reading {place.shown}"):
        with Ledger.open(place, read_only=True) as log:
            origin = log.header.origin
        opened = Ledger.open(place, NoteSigner(origin, private_key))
    with opened as log:
        yield log


def ledger_key(place: Place | None, key: Path | None, passphrase_file: Path | None) -> Ed25519PrivateKey:
    """Returns the private key of a ledger: the one given, or the one beside it. Raises typer.BadParameter: there is none."""
    found = key or (None if place is None else place.key)
    if found is None or not found.is_file():
        where = "" if found is None else f"there is no {found}; "
        raise typer.BadParameter(f"{where}give the ledger's private key with --ledger-key")
    return read_private_key(found, passphrase_file)


def ledger_or_export(ledger: str) -> str:
    """Returns a directory that export wrote, or a name that `checked` takes; a callback. Raises typer.BadParameter: as
    `checked`."""
    return ledger if (Path(ledger) / "checkpoint").is_file() else checked(ledger) or ledger


LedgerOrExport = Annotated[
    str, argument("Ledger of a run, or the directory that export wrote.", metavar="LEDGER", callback=ledger_or_export)
]
Now = Annotated[
    int | None, moment("What the clock says, which no time in the ledger may be ahead of by more than an hour; default: now.")
]
LedgerKey = Annotated[Path | None, file_option("KEY", "Private key of the ledger; default: LEDGER.key.", "--ledger-key")]
ExportDirectory = Annotated[Path, folder_argument("EXPORT", "Directory that export wrote.")]
RegistryAlong = Annotated[
    Path | None,
    file_option(
        "REGISTRY",
        "Contributor registry to take along, without its names; default: the one that the run used, if it is still there.",
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
LOG_KEYS = "Public key of the ledger: a file of verifier keys, or one itself; repeat."
VerifierKeys = Annotated[list[str], option(LOG_KEYS, metavar="PUB")]
OwnersKey = Annotated[Path | None, file_option("PUB", "Require a policy signed by this corpus owner.")]


def verifier_keys(text: str) -> list[str]:
    """Returns the verifier keys of a file, one a line, or the one given itself: `<name>+<key id>+<base64>`. Raises
    typer.BadParameter: there is none. A wrong file is wrong use, and no verdict on what it was meant to verify."""
    path = Path(text)
    if not path.is_file():
        wrong_if(text.count("+") < 2, f"{text!r} is neither a file nor a verifier key; give the .pub file of the ledger")
        return [text]
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    found = [line for line in lines if line and not line.startswith("#")]
    if found and found[0].startswith("dptrain-key-v1 "):
        raise typer.BadParameter(
            f"{text!r} is the public key of a person; the key of a ledger stands in its ledger.pub, that of an auditor is what "
            f"'dptrain ledger auditor-key {text}' prints"
        )
    if not found or any(line.count("+") < 2 for line in found):
        raise typer.BadParameter(f"{text!r} holds no verifier key, NAME+ID+BASE64; give the .pub file of the ledger")
    return found


def trusted(pinned: list[str], owner_key: Path | None) -> tuple[bytes | None, list[str]]:
    """Returns the owner's raw key, if any, and the verifier keys of the logs. Raises KeyRefused, typer.BadParameter: a file
    holds no such key."""
    owner = None if owner_key is None else keys.load_public_key(owner_key)
    return owner, [vkey for text in pinned for vkey in verifier_keys(text)]
