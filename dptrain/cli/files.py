"""How commands read keys, policies and registries, and where they look when they are not told."""

from pathlib import Path
from typing import Annotated

import typer

from attest import keys
from attest.errors import PolicyRefused
from attest.policy import Policy, SignedPolicy, open_policy
from attest.registry import Registry, open_registry
from dptrain.cli.options import existing_file
from dptrain.cli.signing_keys import KeyFile, PassphraseFile, load_key

__all__ = [
    "KeyFile",
    "OwnerKey",
    "PassphraseFile",
    "PolicyFile",
    "RegistryFile",
    "beside",
    "load_key",
    "read_policy",
    "read_registry",
    "read_signed_policy",
    "refuse_to_overwrite",
]

PolicyFile = Annotated[
    Path, typer.Argument(metavar="POLICY", exists=True, dir_okay=False, help="policy.cose, or policy.toml unsigned.")
]
OwnerKey = Annotated[
    Path | None,
    existing_file("--owner-key", "PUB", "Public key of the corpus owner; default: owner.pub beside the policy."),
]
RegistryFile = Annotated[
    Path | None,
    existing_file("--registry", "REGISTRY", "Contributor registry; default: registry.cbor beside the policy."),
]


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
        raise typer.BadParameter(f"there is no {found}: give {option}, or put the file there")
    return found


def refuse_to_overwrite(path: Path) -> None:
    """Commands write new files and never replace one that a person may have edited or handed out.

    Raises:
        typer.BadParameter: if the file exists.
    """
    if path.exists():
        raise typer.BadParameter(f"{path} exists; choose another name or move it away")
