"""Read which contribution a person asks for: by content and nonce, an attestation, a descriptor hash or an anchor file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attest import keys, sign1
from attest.corpus import anchor as anchors
from attest.corpus.records import JSONL
from dptrain.cli.attest.attested import attestation_of, content_hash_of
from dptrain.cli.options import file_option, option

if TYPE_CHECKING:
    # Loaded where they are used, as in `dptrain.cli.ledger.commands`: help and completion need none of them.
    from ledger.leaves import Header
    from ledger.proofs.tracing import Signers
    from ledger.views.trace import Wanted

Content = Annotated[
    str | None,
    option(
        "Find the contribution with this content: its SHA-256 in hex, or a file. With an anchor, held against it.",
        "--content",
        metavar="HASH",
    ),
]
Nonce = Annotated[str | None, option("The nonce of the content's descriptor, 32 hex digits.", "--nonce", metavar="N")]
AnchorFile = Annotated[
    Path | None, file_option("ANCHOR", "Find the contribution of this record, as attest anchor wrote it.", "--anchor")
]
ContributorKey = Annotated[
    Path | None, file_option("PUB", "For an anchor: the contributor's public key, got by another way.", "--pub")
]
ContributorRegistry = Annotated[
    Path | None, file_option("REGISTRY", "For an anchor: the corpus's registry, in place of one key.", "--registry")
]

_HASH = 32
_NONCE = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """A contribution as it was asked for.

    Attributes:
        wanted: The names by which a ledger knows it.
        signers: Ids of the keys that may have signed it, by the header of a run; None where nothing says so.
        anchor: What the anchor file says, for people and as JSON; None without one.
    """

    wanted: "Wanted"
    signers: "Signers | None" = None
    anchor: dict[str, Any] | None = None


def check_together(
    content: str | None, nonce: str | None, anchor: Path | None, pub: Path | None, registry: Path | None, withdrawn: bool
) -> None:
    """Refuses options that make no sense alone, or together.

    Raises:
        typer.BadParameter: there are such.
    """
    if anchor is None and (content is None) != (nonce is None):
        raise typer.BadParameter("--content and --nonce go together: without the nonce nobody finds a contribution")
    if nonce is not None and content is None:
        raise typer.BadParameter("--nonce goes with --content: by itself it says nothing")
    if withdrawn and (content is not None or anchor is not None):
        raise typer.BadParameter("give --content, --anchor or --withdrawn, not two of them")
    check_keys(anchor is not None, pub, registry)


def check_keys(anchored: bool, pub: Path | None, registry: Path | None) -> None:
    """Requires one way to verify an anchor, and none where there is no anchor.

    Raises:
        typer.BadParameter: there is none, or one too many.
    """
    given = (pub is not None) + (registry is not None)
    if anchored and given != 1:
        raise typer.BadParameter("give --pub or --registry: an anchor that nobody verified leads wherever its writer liked")
    if given and not anchored:
        raise typer.BadParameter("--pub and --registry go with an anchor: they verify who signed it")


def by_content(content: str, nonce: str) -> Asked:
    """Returns the contribution with a content, which is its hash or a file, and a nonce.

    Raises:
        typer.BadParameter: hash or nonce is none.
    """
    from ledger.views.trace import Wanted

    salt = _octets(nonce, _NONCE, "--nonce")
    return Asked(Wanted.of_content(_content_hash(content), salt))


def by_anchor(
    path: Path,
    headers: "Sequence[Header]",
    *,
    pub: Path | None,
    registry: Path | None,
    content: str | None = None,
    nonce: str | None = None,
) -> Asked:
    """Verifies an anchor, and returns the contribution to which it leads.

    Args:
        path: the anchor file.
        headers: of the runs that will be asked: the registry must be that of each.
        pub: public key of the contributor, or
        registry: the registry that knows it.
        content: hash or file that must be that of the anchor; None leaves it open what the anchor is of.
        nonce: in hex, where the anchor does not hold it.

    Raises:
        AttestError: the record does not verify, or the content is not the one it is of.
        RegistryRefused: code REGISTRY_ROOT, the registry is not that of a run.
    """
    from ledger.views.trace import Wanted

    payload, message = anchors.read_anchor(path)
    if pub is not None:
        name, raw = keys.load_named_public_key(pub)
        found, ids = anchors.verify_anchor(payload, message, raw), frozenset({keys.key_id(raw)})
    else:
        from ledger.audit.attested import registry_of

        assert registry is not None and headers  # `check_keys` saw to it
        for header in headers:
            found, holder = anchors.verify_enrolled_anchor(payload, message, registry_of(header, registry))
        name, ids = holder.name, frozenset(record.key_id for record in holder.keys)
    if content is not None:
        found.require_content(_content_hash(content), None if nonce is None else _octets(nonce, _NONCE, "--nonce"))
    told = {
        "time": found.time,
        "contributor": name,
        "key_id": sign1.parse(message).key_id.hex(),
        "with_nonce": found.nonce is not None,
        "content_compared": content is not None,
    }
    return Asked(Wanted(found.content, found.descriptor_hash), lambda _: ids, told)


def by_name(
    text: str,
    headers: "Sequence[Header]",
    *,
    nonce: str | None,
    attestations: Path | None,
    record: int | None,
    pub: Path | None,
    registry: Path | None,
    content: str | None,
) -> Asked:
    """Returns the contribution that one word on the command line means: an anchor file, a content, or a hash.

    Args:
        text: an anchor file; a content, with its attestation or nonce; a content hash, with its nonce; or a descriptor hash.
        headers: as for `by_anchor`.
        nonce: in hex.
        attestations, record: as for `attestation_of`.
        pub, registry, content: as for `by_anchor`.

    Raises:
        typer.BadParameter: it is none of these, or options do not go with it.
        AttestError: as for `by_anchor` and `attestation_of`.
    """
    from ledger.views.trace import Wanted

    path = Path(text)
    if is_anchor(text):
        if attestations is not None or record is not None:
            raise typer.BadParameter(f"{text} is an anchor: --attestations and --record go with a content")
        return by_anchor(path, headers, pub=pub, registry=registry, content=content, nonce=nonce)
    if content is not None:
        raise typer.BadParameter("--content goes with an anchor, which it is held against")
    if nonce is not None:
        if attestations is not None or record is not None:
            raise typer.BadParameter("give --nonce, or the attestation that has it")
        return by_content(text, nonce)
    if path.is_file():
        _, descriptor = attestation_of(path, attestations, record)
        return Asked(Wanted(descriptor.signed.content, descriptor.digest()))
    if not re.fullmatch(f"[0-9a-f]{{{2 * _HASH}}}", text):
        raise typer.BadParameter(
            f"{text!r:.100} is no file and no descriptor hash of {2 * _HASH} hex digits; give a content, an anchor or a hash"
        )
    return Asked(Wanted(descriptor_hash=bytes.fromhex(text)))


def is_anchor(text: str) -> bool:
    """Tells whether a word names an anchor file, by its ending."""
    return text.endswith(anchors.SUFFIX) and Path(text).is_file()


def _content_hash(text: str) -> bytes:
    """Returns the hash itself, or that of a file."""
    path = Path(text)
    if re.fullmatch("[0-9a-f]{64}", text) or not path.is_file():
        return _octets(text, _HASH, "--content")
    if path.suffix == JSONL:
        raise typer.BadParameter(
            f"{text} holds many contributions; give the content hash of one, as 'dptrain attest show {text}.attest --record N' "
            "prints it"
        )
    return content_hash_of(path)


def _octets(text: str, size: int, option: str) -> bytes:
    if not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text):
        or_file = ", or a file that is there" if option == "--content" else ""
        raise typer.BadParameter(f"{option} takes {2 * size} hex digits{or_file}, got {text!r:.100}")
    return bytes.fromhex(text)
