"""`dptrain attest prove`, `rotate` and `revoke`: what a contributor states about its own keys, for the owner to take in."""

import time
from pathlib import Path
from typing import Annotated

import typer

from attest import keys
from attest.registry import KeyStatement, peek
from attest.registry.entries import PROVE, REVOKE, ROTATE, write_statement
from attest.schema.plain import utc
from dptrain.cli.inputs import KeyFile, PassphraseFile, load_key, refuse_to_overwrite
from dptrain.cli.options import file_option, option
from dptrain.cli.output import moment
from dptrain.cli.results import Told, plain

RegistryFile = Annotated[Path | None, file_option("REGISTRY", "The registry that the statement is for.", "--registry")]
RegistryId = Annotated[
    str | None, option("Its id instead, 32 digits, as the owner's 'registry show' prints it.", "--registry-id", metavar="HEX")
]
Contributor = Annotated[
    str | None, option("Who states it; default: the name in the .pub file beside the key.", "--contributor")
]
NewFile = Annotated[Path | None, option("New file; default: NAME-rotation.cose.", "--out", metavar="FILE")]


def prove(
    key: KeyFile,
    registry: RegistryFile = None,
    registry_id: RegistryId = None,
    contributor: Contributor = None,
    out: Annotated[Path | None, option("New file; default: NAME-possession.cose.", metavar="FILE")] = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Sign that you hold a key, for one registry.

    The owner takes it in with `dptrain registry add --statement`, or later with `dptrain registry prove`, within 30 days. Until
    then that the key is yours is the owner's word.

    Example: `dptrain attest prove --key alice.key --registry registry.cbor`
    """
    identity = _registry_id(registry, registry_id)
    signer, name = load_key(key, passphrase_file, contributor, "--contributor")
    statement = KeyStatement(kind=PROVE, registry_id=identity, key=signer.public_key, time=int(time.time()))
    said = f"signed that {name} holds key {_short(statement.key)}"
    return _written(out, name, "possession", statement, [statement.sign(signer)], said)


def rotate(
    key: KeyFile,
    new_key: Annotated[Path, file_option("KEY", "The key that follows, a file or .pub.")],
    registry: RegistryFile = None,
    registry_id: RegistryId = None,
    contributor: Contributor = None,
    out: NewFile = None,
    passphrase_file: PassphraseFile = None,
    new_passphrase_file: Annotated[Path | None, file_option("FILE", "Passphrase of the new key, in the same way.")] = None,
) -> Told:
    """Sign a change of key: the old key says which key follows, and the new one proves that you hold it.

    The owner takes it in with `dptrain registry rotate` within 30 days. Lost the old key? Then the owner revokes it and
    enrols the new one.

    Example: `dptrain attest rotate --key alice.key --new-key new/alice.key --registry registry.cbor`
    """
    identity = _registry_id(registry, registry_id)
    old, name = load_key(key, passphrase_file, contributor, "--contributor")
    new, _ = load_key(new_key, new_passphrase_file, name, "--contributor")
    statement = KeyStatement(
        kind=ROTATE, registry_id=identity, key=old.public_key, time=int(time.time()), new_key=new.public_key
    )
    said = f"signed that key {_short(statement.new_key)} of {name} follows {_short(statement.key)}"
    return _written(out, name, "rotation", statement, [statement.sign(old), statement.sign(new)], said)


def revoke(
    key: KeyFile,
    registry: RegistryFile = None,
    registry_id: RegistryId = None,
    pub: Annotated[Path | None, file_option("PUB", "Revoke this other key of yours; default: the one that signs.")] = None,
    everything: Annotated[bool, option("Revoke every key of yours.", "--all")] = False,
    at: Annotated[int | None, moment("From when on, for instance when the key was lost; default: now.")] = None,
    contributor: Contributor = None,
    out: Annotated[Path | None, option("New file; default: NAME-revocation.cose.", metavar="FILE")] = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Sign that a key of yours is revoked, with that key or with another valid one of yours.

    The owner takes it in with `dptrain registry revoke --statement` within 30 days; a run that is training stops using what
    the key signed at its next charge.

    Example: `dptrain attest revoke --key alice.key --registry registry.cbor`
    """
    if everything and pub is not None:
        raise typer.BadParameter("give --pub for one key or --all for every key, not both")
    identity = _registry_id(registry, registry_id)
    signer, name = load_key(key, passphrase_file, contributor, "--contributor")
    now = int(time.time())
    chosen = None if everything else signer.public_key if pub is None else keys.load_public_key(pub)
    statement = KeyStatement(kind=REVOKE, registry_id=identity, key=chosen, time=now, revoked_at=now if at is None else at)
    which = "all keys" if chosen is None else f"key {_short(chosen)}"
    said = f"signed that {which} of {name} must not be used from {utc(statement.revoked_at or 0)} on"
    return _written(out, name, "revocation", statement, [statement.sign(signer)], said)


def _registry_id(registry: Path | None, text: str | None) -> bytes:
    if (registry is None) == (text is None):
        raise typer.BadParameter("say which registry it is for: --registry with the file, or --registry-id with its id")
    if registry is not None:
        # Unverified on purpose: a wrong id makes a statement that nobody can use.
        return peek(registry).registry_id
    try:
        found = bytes.fromhex(text or "")
    except ValueError:
        found = b""
    if len(found) != 16:
        raise typer.BadParameter(f"{text!r} is not a registry id; it has 32 hexadecimal digits")
    return found


def _written(out: Path | None, name: str, what: str, statement: KeyStatement, messages: list[bytes], said: str) -> Told:
    target = out or Path(f"{name.replace('/', '-')}-{what}.cose")
    refuse_to_overwrite(target)
    write_statement(target, statement, *messages)
    fields = {field: getattr(statement, field) for field in statement.__slots__}
    return Told(plain(fields | {"contributor": name, "path": target}), [f"{said}; send the owner {target}"])


def _short(raw: bytes | None) -> str:
    return keys.key_id(raw or b"").hex()
