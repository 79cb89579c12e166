"""Options and files that several commands take: keys and passphrases, policies, registries, counts, figures."""

import getpass
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypeVar

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import keys
from attest.attestation import Attestation, read_sequence
from attest.descriptor import BUILT
from attest.errors import KeyRefused, PolicyRefused
from attest.keys.signers import AgentSigner, CheckedSigner, LocalSigner
from attest.policy import Policy, SignedPolicy, open_policy
from attest.policy.signed import with_file
from attest.registry import Registry, open_registry
from attest.schema.plain import visible
from dptrain.cli.options import file_argument, file_option, option, wrong_if
from dptrain.errors import ConfigError, how_to_install, is_missing_extra
from dptrain.planning.figures import SUFFIXES, require_matplotlib

Key = TypeVar("Key")

Purpose = StrEnum("Purpose", BUILT)
"""Uses of a contribution, as contributors sign them and a corpus is judged for them."""

MemberRecords = Annotated[
    list[Path] | None,
    file_option(
        "PROOF.member",
        "Where ADMIT leaves are gone: what 'ledger prove --kind summary' wrote for a contribution; repeat.",
        "--member",
    ),
]

PlotFile = Annotated[
    Path | None, option("Draw it: FILE.svg, FILE.html with tables, or FILE.png.", metavar="FIGURE", dir_okay=False)
]


def require_plot(path: Path | None) -> None:
    """Says before anything is computed if a figure cannot be written. Raises typer.BadParameter: Another suffix, or the file
    exists. ConfigError: matplotlib is missing."""
    if path is None:
        return
    wrong_if(path.suffix not in SUFFIXES, f"{path} is no figure; name a file that ends in {', '.join(SUFFIXES)}")
    wrong_if(path.exists(), f"{path} exists; choose another name or move it away")
    wrong_if(not path.parent.is_dir(), f"there is no directory {path.parent} to write {path.name} to")
    require_matplotlib()


def count_of(text: str, rules: Policy) -> tuple[str, int]:
    """Returns a class of the policy and a number of contributions. Raises typer.BadParameter: The text is not CLASS=N.
    PolicyRefused: The policy has no such class."""
    name, _, count = text.partition("=")
    wrong_if(not (count.isascii() and count.isdigit()), f"{text!r} is not CLASS=N, for example {rules.classes[0].name}=10000")
    rules.class_rule(name)
    return name, int(count)


def goals_of(texts: Iterable[str], rules: Policy) -> dict[str, float]:
    """Returns epsilon per private class, from `2` for all or `sensitive=2` for one; what names a class counts before the rest.
    Raises typer.BadParameter: A text is neither, or no positive finite number. PolicyRefused: The policy has no such class."""
    everywhere: float | None = None
    found: dict[str, float] = {}
    private = [rule.name for rule in rules.classes if not rule.public]
    for text in texts:
        name, given, value = text.rpartition("=")
        try:
            goal = float(value)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} is not an epsilon, nor CLASS=EPSILON, for example {private[0]}=2") from error
        wrong_if(not 0.0 < goal < math.inf, f"a target epsilon is a positive finite number, got {value}")
        if given:
            rules.class_rule(name)
            found[name] = goal
        else:
            everywhere = goal
    return ({name: everywhere for name in private} if everywhere is not None else {}) | found


KeyFile = Annotated[
    Path, file_option("KEY", "Private key file; or the .pub file, to sign with the SSH agent that holds the private half.")
]
Contributor = Annotated[str | None, option("Who signs; default: the name in the .pub file beside the key.")]
PassphraseFile = Annotated[
    Path | None,
    file_option(
        "FILE",
        "First line is the passphrase of the private key; - reads standard input. Default: asked for on a terminal.",
        allow_dash=True,
    ),
]
NewPassphraseFile = Annotated[
    Path | None,
    file_option("FILE", "First line is a passphrase that encrypts the key; - reads standard input.", allow_dash=True),
]


def read_passphrase(path: Path | None) -> str | None:
    """Returns the first line of a passphrase file, or of standard input for `-`; None without one. Raises KeyRefused: Code
    PASSPHRASE if it is not UTF-8 text."""
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
    """Returns the passphrase for a new key: asked for twice, read from a file, or none. Raises typer.BadParameter: if both ways
    are given, nobody is there to ask, or the two answers differ."""
    if not asked:
        return read_passphrase(path)
    wrong_if(path is not None, "give --passphrase or --passphrase-file, not both")
    wrong_if(not sys.stdin.isatty(), "--passphrase asks on a terminal and there is none; give --passphrase-file")
    passphrase = _ask("Passphrase of the new key: ")
    wrong_if(_ask("Once more: ") != passphrase, "the two passphrases differ; nothing was written")
    return passphrase


def read_private_key(path: Path, passphrase_file: Path | None) -> Ed25519PrivateKey:
    """Returns a private key from its file; a missing passphrase is asked for where there is a terminal, up to three times.
    Raises KeyRefused: As `attest.keys.load_private_key`."""
    return read_key_with(keys.load_private_key, path, passphrase_file)


def read_key_with(load: Callable[[Path, str | None], Key], path: Path, passphrase_file: Path | None) -> Key:
    """Returns what ``load`` makes of a key's file and its passphrase; a missing passphrase is asked for where there is a
    terminal, up to three times. Raises KeyRefused: As ``load``."""
    passphrase = read_passphrase(passphrase_file)
    for _ in range(3):
        try:
            return load(path, passphrase)
        except KeyRefused as error:
            if error.code != "PASSPHRASE" or passphrase_file is not None or not sys.stdin.isatty():
                raise
            if passphrase is not None:
                typer.echo(visible(error.sentence), err=True)
        passphrase = _ask(f"Passphrase of {visible(str(path))}: ")
    return load(path, passphrase)


def load_key(
    path: Path, passphrase_file: Path | None, name: str | None, option: str = "--contributor"
) -> tuple[LocalSigner | CheckedSigner, str]:
    """Returns what signs, and the identifier under which it signs: the one given by `option`, or the one in the `.pub` file.

    With a `.pub` file in place of the private key the SSH agent signs. Raises KeyRefused: code MISMATCH if the `.pub` file
    beside the key is of another key; AGENT or AGENT_KEY if no agent has the key; or as `attest.keys.load_private_key`.
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
    wrong_if(not public.is_file(), f"there is no {public} to read the name from; give {option}")
    found, raw = keys.load_named_public_key(public)
    if raw != signer.public_key:
        raise KeyRefused("MISMATCH", f"{str(public)!r} is not the public half of {str(path)!r}; give {option} or mend it")
    return signer, found


def _agent_signer(public: Path, raw: bytes) -> AgentSigner:
    try:
        return AgentSigner(raw)
    except KeyRefused as error:
        private = public.with_suffix(".key")
        if error.code not in ("AGENT", "AGENT_KEY") or not private.is_file():
            raise
        hint = f". Here: ssh-add {private}, or --key {private}"
        if not keys.is_openssh(private):
            hint += "; OpenSSH before 9.6 loads only keys of keygen --format openssh"
        raise KeyRefused(error.code, error.sentence + hint) from error


def _ask(prompt: str) -> str:
    try:
        return getpass.getpass(prompt)
    except EOFError as error:
        raise typer.Abort() from error


PolicyFile = Annotated[Path, file_argument("POLICY", "policy.cose, or policy.toml unsigned.")]
OwnerKey = Annotated[Path | None, file_option("PUB", "Public key of the corpus owner; default: owner.pub beside the policy.")]
RegistryFile = Annotated[
    Path | None, file_option("REGISTRY", "Contributor registry; default: registry.cbor beside the policy.")
]


def read_policy(path: Path, owner_key: Path | None) -> tuple[Policy, SignedPolicy | None]:
    """Returns a policy, and its signature if the file is a signed one.

    A `.toml` file is read as it stands, for writing and planning; anything else must be signed by the owner.
    """
    if path.suffix == ".toml":
        try:
            return with_file(Policy.from_toml(path.read_text(encoding="utf-8")), path), None
        except UnicodeDecodeError as error:
            raise PolicyRefused("TOML", f"{str(path)!r} is not UTF-8 text: {error.reason}") from error
    signed = read_signed_policy(path, owner_key)
    return signed.policy, signed


def read_signed_policy(path: Path, owner_key: Path | None) -> SignedPolicy:
    """Returns a policy signed by the owner; an unsigned one is refused with a sentence that says how to sign it."""
    return open_policy(path, keys.load_public_key(beside(path, owner_key, "owner.pub", "--owner-key")))


def read_registry(policy_path: Path, registry: Path | None, owner_key: Path | None = None) -> Registry:
    """Returns the contributor registry that was given, or the one beside the policy, verified under the owner's key."""
    public = keys.load_public_key(beside(policy_path, owner_key, "owner.pub", "--owner-key"))
    return open_registry(beside(policy_path, registry, "registry.cbor", "--registry"), public)


def beside(path: Path, given: Path | None, name: str, option: str) -> Path:
    """Returns the file that was given, or the one called `name` in the directory of `path`. Raises typer.BadParameter: if there
    is neither."""
    found = given or path.with_name(name)
    wrong_if(not found.is_file(), f"there is no {found}: give {option}, or put the file there")
    return found


def read_attestations(path: Path) -> Iterator[Attestation]:
    """Yields the attestations of a file. Raises CborError: as `attest.attestation.read_sequence`."""
    with path.open("rb") as stream:
        yield from read_sequence(stream)


def load_training(module: str) -> ModuleType:
    """Loads a module that imports torch. Raises ConfigError: Code TRAIN_EXTRA_MISSING, with what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not is_missing_extra(error):
            raise
        raise ConfigError("TRAIN_EXTRA_MISSING", how_to_install(error)) from error


def refuse_to_overwrite(path: Path) -> None:
    """Commands write new files and never replace one that a person may have edited or handed out. Raises typer.BadParameter: if
    the file exists."""
    wrong_if(path.exists(), f"{path} exists; choose another name or move it away")


def octets(text: str, otherwise: str, *, size: int | None = None) -> bytes:
    """Returns bytes, so many of them, from hex digits, or refuses them with a sentence."""
    try:
        found = bytes.fromhex(text)
        if len(found) == (len(found) if size is None else size):
            return found
    except ValueError:
        pass
    raise typer.BadParameter(otherwise)
