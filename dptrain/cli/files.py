"""How commands read keys, policies and registries, and where they look when they are not told."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys
from attest.errors import KeyRefused, PolicyRefused
from attest.policy import Policy, SignedPolicy, open_policy
from attest.registry import Registry, open_registry

KeyFile = Annotated[
    Path, typer.Option("--key", metavar="KEY", exists=True, dir_okay=False, help="Private key, as keygen wrote it.")
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        allow_dash=True,
        help="First line is the passphrase of the private key; - reads standard input.",
    ),
]
PolicyFile = Annotated[
    Path, typer.Argument(metavar="POLICY", exists=True, dir_okay=False, help="policy.cose, or policy.toml unsigned.")
]
OwnerKey = Annotated[
    Path | None,
    typer.Option(
        "--owner-key",
        metavar="PUB",
        exists=True,
        dir_okay=False,
        help="Public key of the corpus owner; default: owner.pub beside the policy.",
    ),
]
RegistryFile = Annotated[
    Path | None,
    typer.Option(
        "--registry",
        metavar="REGISTRY",
        exists=True,
        dir_okay=False,
        help="Contributor registry; default: registry.cbor beside the policy.",
    ),
]


def read_passphrase(path: Path | None) -> str | None:
    """The first line of a passphrase file, or of standard input for `-`; None without one."""
    if path is None:
        return None
    if str(path) == "-":
        return sys.stdin.readline().rstrip("\r\n")
    with path.open(encoding="utf-8") as stream:
        return stream.readline().rstrip("\r\n")


def load_key(path: Path, passphrase_file: Path | None, name: str | None, option: str) -> tuple[Ed25519PrivateKey, str]:
    """A private key and the identifier under which it signs.

    Args:
        path: The private key file.
        passphrase_file: Where its passphrase stands, if it has one.
        name: The identifier, if it was given; otherwise it is read from the `.pub` file beside the key.
        option: The option that gives `name`, for the message.

    Raises:
        KeyRefused: Code MISMATCH if the `.pub` file beside the key belongs to another key.
        typer.BadParameter: if no identifier can be found.
    """
    key = keys.load_private_key(path, read_passphrase(passphrase_file))
    if name is not None:
        return key, name
    public = path.with_suffix(".pub")
    if not public.is_file():
        raise typer.BadParameter(f"there is no {public} to read the name from; give {option}")
    found, raw = keys.load_named_public_key(public)
    if raw != keys.public_bytes(key):
        raise KeyRefused("MISMATCH", f"{str(public)!r} is not the public half of {str(path)!r}; give {option} or mend it")
    return key, found


def read_policy(path: Path, owner_key: Path | None) -> tuple[Policy, SignedPolicy | None]:
    """A policy, and its signature if the file is a signed one.

    A `.toml` file is read as it stands, for writing and planning; anything else must be signed by the owner.
    """
    if path.suffix == ".toml":
        try:
            return Policy.from_toml(path.read_text(encoding="utf-8")), None
        except UnicodeDecodeError as error:
            raise PolicyRefused("TOML", f"{str(path)!r} is not UTF-8 text: {error.reason}") from error
    signed = read_signed_policy(path, owner_key)
    return signed.policy, signed


def read_signed_policy(path: Path, owner_key: Path | None) -> SignedPolicy:
    """A policy signed by the owner; an unsigned one is refused with a sentence that says how to sign it."""
    return open_policy(path, keys.load_public_key(beside(path, owner_key, "owner.pub", "--owner-key")))


def read_registry(policy_path: Path, registry: Path | None, owner_key: Path | None = None) -> Registry:
    """The contributor registry that was given, or the one beside the policy, verified under the owner's key."""
    public = keys.load_public_key(beside(policy_path, owner_key, "owner.pub", "--owner-key"))
    return open_registry(beside(policy_path, registry, "registry.cbor", "--registry"), public)


def beside(path: Path, given: Path | None, name: str, option: str) -> Path:
    """The file that was given, or the one called `name` in the directory of `path`.

    Raises:
        typer.BadParameter: if there is neither.
    """
    found = given or path.with_name(name)
    if not found.is_file():
        raise typer.BadParameter(f"there is no {found}; give {option}")
    return found


def refuse_to_overwrite(path: Path) -> None:
    """Commands write new files and never replace one that a person may have edited or handed out.

    Raises:
        typer.BadParameter: if the file exists.
    """
    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name or move it away")
