"""Find the attestation of one content: where commands look for it, and which of a file it is."""

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from attest.attestation import Attestation, read_sequence
from attest.corpus.records import JSONL, SUFFIX, file_record, jsonl_records
from attest.descriptor import ContributionDescriptor, claimed_content
from attest.errors import CorpusRefused
from dptrain.cli.options import file_option, option

AttestationsOption = Annotated[
    Path | None, file_option("DATA.attest", "Where the attestation of the content is; default: CONTENT.attest beside it.")
]
RecordOption = Annotated[int | None, option("Number of the contribution, from 1, where the content is a .jsonl file.", min=1)]


def content_hash_of(path: Path, record: int | None = None) -> bytes:
    """Returns the SHA-256 of a content: of a file, or of a line of a `.jsonl` file.

    Args:
        path: The file.
        record: Number of the line among those that are not empty, from 1; None for the file as one contribution.

    Raises:
        typer.BadParameter: The file holds many contributions and no number is given, or fewer than that.
        CorpusRefused: It cannot be read.
    """
    place = path.resolve()
    if path.suffix != JSONL:
        return file_record(place.parent, place.name).content_hash
    if record is None:
        raise typer.BadParameter(f"{path} holds many contributions; give the number of one with --record")
    found = next(islice(jsonl_records(place.parent, place.name), record - 1, None), None)
    if found is None:
        raise typer.BadParameter(f"{path} has no line {record}")
    return found.content_hash


def attestation_of(content: Path, attestations: Path | None, record: int | None) -> tuple[Attestation, ContributionDescriptor]:
    """Returns the attestation of a content and its opened descriptor; the signature is not verified.

    Args:
        content: A file, or a `.jsonl` file with `record`.
        attestations: Where to look; None for the file beside the content.
        record: Number of the contribution, from 1. Without it the attestation is found by the content.

    Raises:
        typer.BadParameter: There is no such file or number, or several attestations are of this content.
        CorpusRefused: Code CONTENT_MISMATCH, none is of this content: it changed since it was signed.
        AttestError: The attestation cannot be read.
    """
    path = attestations or content.with_name(content.name + SUFFIX)
    if not path.is_file():
        raise typer.BadParameter(f"there is no {path}: give --attestations, or put it beside the content")
    content_hash = content_hash_of(content, record if content.suffix == JSONL else None)
    with path.open("rb") as stream:
        if record is None:
            found = [item for item in read_sequence(stream) if claimed_content(item.opening) == content_hash]
        else:
            found = list(islice(read_sequence(stream), record - 1, record))
    if record is not None and not found:
        raise typer.BadParameter(f"{path} holds no attestation {record}")
    if len(found) > 1:
        raise typer.BadParameter(f"{path} holds {len(found)} attestations of {content}; give the number of one with --record")
    descriptor = found[0].opened() if found else None
    if descriptor is None or descriptor.content_hash != content_hash:
        raise CorpusRefused(
            "CONTENT_MISMATCH",
            f"{content} is not what was signed in {path}: it changed since, or its attestation is in another file; restore it, "
            "or give --attestations",
        )
    return found[0], descriptor
