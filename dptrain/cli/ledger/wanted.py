"""Read which contribution a person asks for: by content and nonce, an attestation, a descriptor hash or an anchor file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys, sign1
from attest.corpus import anchor as anchors
from attest.corpus.records import JSONL
from dptrain.cli.attest.anchor import attestation_of, content_hash_of
from dptrain.cli.options import file_option, option, wrong_if
from ledger.audit.attested import registry_of
from ledger.leaves import Header
from ledger.proofs.tracing import Signers
from ledger.views.trace import Wanted

Nonce = Annotated[str | None, option("The nonce of the content's descriptor, 32 hex digits.", metavar="N")]
ContributorKey = Annotated[Path | None, file_option("PUB", "For an anchor: the contributor's public key, got by another way.")]
ContributorRegistry = Annotated[
    Path | None, file_option("REGISTRY", "For an anchor: the corpus's registry, in place of one key.")
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

    wanted: Wanted
    signers: Signers | None = None
    anchor: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """Holds what the options say of a contribution.

    Attributes:
        content: Its hash or a file; with an anchor, what that must be of.
        nonce: In hex.
        pub: Public key that verifies an anchor, or
        registry: the registry that knows it.
        attestations: Where the attestation of a content is; default: beside it.
        record: Number of the contribution in a content of many.
    """

    content: str | None
    nonce: str | None
    pub: Path | None
    registry: Path | None
    attestations: Path | None = None
    record: int | None = None

    def require_keys(self, *, anchored: bool) -> None:
        """Requires one way to verify an anchor, and none where there is no anchor."""
        given = (self.pub is not None) + (self.registry is not None)
        if anchored and given != 1:
            raise typer.BadParameter("give --pub or --registry: an anchor that nobody verified leads wherever its writer liked")
        wrong_if(given and not anchored, "--pub and --registry go with an anchor: they verify who signed it")

    def by_content(self, content: str) -> Asked:
        """Returns the contribution with a content, which is its hash or a file, and the nonce."""
        return Asked(Wanted.of_content(_content_hash(content), _octets(self.nonce or "", _NONCE, "--nonce")))

    def by_anchor(self, path: Path, headers: Sequence[Header]) -> Asked:
        """Verifies an anchor, and returns the contribution to which it leads.

        Args:
            path: the anchor file.
            headers: of the runs that will be asked: the registry must be that of each.

        Raises:
            AttestError: the record does not verify, or the content is not the one it is of.
            RegistryRefused: code REGISTRY_ROOT, the registry is not that of a run.
        """
        payload, message = anchors.read_anchor(path)
        if self.pub is not None:
            name, raw = keys.load_named_public_key(self.pub)
            found, ids = anchors.verify_anchor(payload, message, raw), frozenset({keys.key_id(raw)})
        else:
            assert self.registry is not None and headers  # `require_keys` saw to it
            for header in headers:
                found, holder = anchors.verify_enrolled_anchor(payload, message, registry_of(header, self.registry))
            name, ids = holder.name, frozenset(record.key_id for record in holder.keys)
        if self.content is not None:
            nonce = None if self.nonce is None else _octets(self.nonce, _NONCE, "--nonce")
            found.require_content(_content_hash(self.content), nonce)
        told = {
            "time": found.time,
            "contributor": name,
            "key_id": sign1.parse(message).key_id.hex(),
            "with_nonce": found.nonce is not None,
            "content_compared": self.content is not None,
        }
        return Asked(Wanted(found.content, found.descriptor_hash), lambda _: ids, told)

    def by_name(self, text: str, headers: Sequence[Header]) -> Asked:
        """Returns the contribution that one word on the command line means: an anchor file; a content, with its attestation or
        nonce; a content hash, with its nonce; or a descriptor hash. Raises AttestError: as `by_anchor` and `attestation_of`."""
        attested = self.attestations is not None or self.record is not None
        if is_anchor(text):
            wrong_if(attested, f"{text} is an anchor: --attestations and --record go with a content")
            return self.by_anchor(Path(text), headers)
        wrong_if(self.content is not None, "--content goes with an anchor, which it is held against")
        if self.nonce is not None:
            wrong_if(attested, "give --nonce, or the attestation that has it")
            return self.by_content(text)
        if Path(text).is_file():
            _, descriptor = attestation_of(Path(text), self.attestations, self.record)
            return Asked(Wanted(descriptor.signed.content, descriptor.digest()))
        if not _is_hex(text, _HASH):
            what = f"{text!r:.100} is no file and no descriptor hash of {2 * _HASH} hex digits"
            raise typer.BadParameter(f"{what}; give a content, an anchor or a hash")
        return Asked(Wanted(descriptor_hash=bytes.fromhex(text)))


def is_anchor(text: str) -> bool:
    """Tells whether a word names an anchor file, by its ending."""
    return text.endswith(anchors.SUFFIX) and Path(text).is_file()


def _content_hash(text: str) -> bytes:
    """Returns the hash itself, or that of a file."""
    path = Path(text)
    if _is_hex(text, _HASH) or not path.is_file():
        return _octets(text, _HASH, "--content")
    if path.suffix == JSONL:
        raise typer.BadParameter(
            f"{text} holds many contributions; give the content hash of one, as 'dptrain attest show {text}.attest --record N' "
            "prints it"
        )
    return content_hash_of(path)


def _octets(text: str, size: int, option: str) -> bytes:
    if not _is_hex(text, size):
        or_file = ", or a file that is there" if option == "--content" else ""
        raise typer.BadParameter(f"{option} takes {2 * size} hex digits{or_file}, got {text!r:.100}")
    return bytes.fromhex(text)


def _is_hex(text: str, size: int) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text) is not None
