"""How commands get at the key they sign with: a private key file, its passphrase, or the SSH agent that holds the key."""

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys
from attest.errors import KeyRefused
from attest.keys.signers import AgentSigner, CheckedSigner, LocalSigner
from attest.schema.plain import visible
from dptrain.cli.options import existing_file

KeyFile = Annotated[
    Path,
    existing_file(
        "--key", "KEY", "Private key file; or the .pub file, to sign with the SSH agent that holds the private half."
    ),
]
PassphraseFile = Annotated[
    Path | None,
    existing_file(
        "--passphrase-file",
        "FILE",
        "First line is the passphrase of the private key; - reads standard input. Default: asked for on a terminal.",
        allow_dash=True,
    ),
]
NewPassphraseFile = Annotated[
    Path | None,
    existing_file(
        "--passphrase-file",
        "FILE",
        "First line is a passphrase that encrypts the key; - reads standard input.",
        allow_dash=True,
    ),
]

_ATTEMPTS = 3
_AGENT_CODES = ("AGENT", "AGENT_KEY")


def read_passphrase(path: Path | None) -> str | None:
    """The first line of a passphrase file, or of standard input for `-`; None without one.

    Raises:
        KeyRefused: Code PASSPHRASE if it is not UTF-8 text.
    """
    if path is None:
        return None
    try:
        if str(path) == "-":
            return sys.stdin.readline().rstrip("\r\n")
        with path.open(encoding="utf-8") as stream:
            return stream.readline().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise KeyRefused("PASSPHRASE", f"the first line of {str(path)!r} is not UTF-8 text: {error.reason}") from error


def new_passphrase(asked: bool, path: Path | None) -> str | None:
    """The passphrase for a new key: asked for twice, read from a file, or none.

    Raises:
        typer.BadParameter: if both ways are given, nobody is there to ask, or the two answers differ.
    """
    if not asked:
        return read_passphrase(path)
    if path is not None:
        raise typer.BadParameter("give --passphrase or --passphrase-file, not both")
    if not sys.stdin.isatty():
        raise typer.BadParameter("--passphrase asks on a terminal and there is none; give --passphrase-file")
    passphrase = _ask("Passphrase of the new key: ")
    if _ask("Once more: ") != passphrase:
        raise typer.BadParameter("the two passphrases differ; nothing was written")
    return passphrase


def read_private_key(path: Path, passphrase_file: Path | None) -> Ed25519PrivateKey:
    """A private key from its file; a missing passphrase is asked for where there is a terminal, up to three times.

    Raises:
        KeyRefused: As `attest.keys.load_private_key`.
    """
    passphrase = read_passphrase(passphrase_file)
    for _ in range(_ATTEMPTS):
        try:
            return keys.load_private_key(path, passphrase)
        except KeyRefused as error:
            if error.code != "PASSPHRASE" or passphrase_file is not None or not sys.stdin.isatty():
                raise
            if passphrase is not None:
                typer.echo(visible(error.sentence), err=True)
        passphrase = _ask(f"Passphrase of {visible(str(path))}: ")
    return keys.load_private_key(path, passphrase)


def load_key(
    path: Path, passphrase_file: Path | None, name: str | None, option: str
) -> tuple[LocalSigner | CheckedSigner, str]:
    """What signs, and the identifier under which it signs.

    Args:
        path: The private key file, or a `.pub` file: then the SSH agent signs.
        passphrase_file: Where the passphrase of the private key stands, if it has one.
        name: The identifier, if it was given; otherwise it is read from the `.pub` file, given or beside the private key.
        option: The option that gives `name`, for the message.

    Raises:
        KeyRefused: Code MISMATCH if the `.pub` file beside the key belongs to another key; AGENT or AGENT_KEY if no agent
            has the key; or as `attest.keys.load_private_key`.
        typer.BadParameter: if no identifier can be found.
    """
    if path.suffix == ".pub":
        found, raw = keys.load_named_public_key(path)
        if passphrase_file is not None:
            raise typer.BadParameter(f"{path} has no passphrase: the SSH agent signs; give the private key file with it")
        return _agent_signer(path, raw), name or found
    signer = LocalSigner(read_private_key(path, passphrase_file))
    if name is not None:
        return signer, name
    public = path.with_suffix(".pub")
    if not public.is_file():
        raise typer.BadParameter(f"there is no {public} to read the name from; give {option}")
    found, raw = keys.load_named_public_key(public)
    if raw != signer.public_key:
        raise KeyRefused("MISMATCH", f"{str(public)!r} is not the public half of {str(path)!r}; give {option} or mend it")
    return signer, found


def _agent_signer(public: Path, raw: bytes) -> AgentSigner:
    try:
        return AgentSigner(raw)
    except KeyRefused as error:
        if error.code not in _AGENT_CODES:
            raise
        raise KeyRefused(error.code, error.sentence + _how_to_load(public)) from error


def _how_to_load(public: Path) -> str:
    private = public.with_suffix(".key")
    if not private.is_file():
        return ""
    hint = f". Here: ssh-add {private}, or --key {private}"
    return hint if keys.is_openssh(private) else f"{hint}; OpenSSH before 9.6 loads only keys of keygen --format openssh"


def _ask(prompt: str) -> str:
    try:
        return getpass.getpass(prompt)
    except EOFError as error:
        raise typer.Abort() from error
