"""`dptrain attest anchor`: write the signed record that lies beside a content and leads to its contribution, once found."""

import time
from itertools import islice
from pathlib import Path
from typing import Annotated

from attest import keys, sign1, signed_file
from attest.attestation import Attestation
from attest.corpus import anchor as anchors
from attest.corpus import records
from attest.corpus.anchor import anchor_of, sign_anchor
from attest.corpus.records import JSONL, file_record, jsonl_records
from attest.descriptor import ContributionDescriptor, claimed_content
from attest.errors import CorpusRefused
from dptrain.cli.inputs import Contributor, KeyFile, PassphraseFile, load_key, read_attestations, refuse_to_overwrite
from dptrain.cli.options import file_argument, file_option, option, wrong_if
from dptrain.cli.results import Told

AttestationsOption = Annotated[
    Path | None, file_option("DATA.attest", "Where the attestation of the content is; default: CONTENT.attest beside it.")
]
RecordOption = Annotated[int | None, option("Number of the contribution, from 1, where the content is a .jsonl file.", min=1)]


def content_hash_of(path: Path, record: int | None = None) -> bytes:
    """Returns the SHA-256 of a content: of a file, or of a line of a `.jsonl` file, counted from 1 among those not empty."""
    place = path.resolve()
    if path.suffix != JSONL:
        return file_record(place.parent, place.name).content_hash
    wrong_if(record is None, f"{path} holds many contributions; give the number of one with --record")
    found = next(islice(jsonl_records(place.parent, place.name), record - 1, None), None)
    wrong_if(found is None, f"{path} has no line {record}")
    return found.content_hash


def attestation_of(content: Path, attestations: Path | None, record: int | None) -> tuple[Attestation, ContributionDescriptor]:
    """Returns the attestation of a content and its opened descriptor; the signature is not verified.

    It is looked for in the file named, or beside the content; by its number, from 1, or else by the content. Raises
    CorpusRefused: code CONTENT_MISMATCH, none is of this content: it changed since. AttestError: it cannot be read.
    """
    path = attestations or content.with_name(content.name + records.SUFFIX)
    wrong_if(not path.is_file(), f"there is no {path}: give --attestations, or put it beside the content")
    content_hash = content_hash_of(content, record if content.suffix == JSONL else None)
    if record is None:
        found = [item for item in read_attestations(path) if claimed_content(item.opening) == content_hash]
    else:
        found = list(islice(read_attestations(path), record - 1, record))
    wrong_if(record is not None and not found, f"{path} holds no attestation {record}")
    wrong_if(len(found) > 1, f"{path} holds {len(found)} attestations of {content}; give the number of one with --record")
    descriptor = found[0].opened() if found else None
    if descriptor is None or descriptor.content_hash != content_hash:
        raise CorpusRefused(
            "CONTENT_MISMATCH",
            f"{content} is not what was signed in {path}: it changed since, or its attestation is in another file; restore it, "
            "or give --attestations",
        )
    return found[0], descriptor


def anchor(
    content: Annotated[Path, file_argument("CONTENT", "The content, exactly as it was signed.")],
    key: KeyFile,
    attestations: AttestationsOption = None,
    record: RecordOption = None,
    with_nonce: Annotated[
        bool,
        option(
            "Put the nonce into the record: then it confirms this content to everybody who has both, for ever. "
            "Without it the record is of no content.",
            "--with-nonce",
        ),
    ] = False,
    contributor: Contributor = None,
    out: Annotated[Path | None, option("New file; default: .CONTENT.anchor beside it.", metavar="FILE")] = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Write a signed record that leads from a content to its contribution in every ledger that admitted it.

    `dptrain ledger show --anchor` and `dptrain ledger trace` read it. It names the contribution as ledgers do, and nobody.
    Whoever has it and an export learns what became of the contribution; docs/tracing.md says where to put it, and where not.

    When a content is to lead to its contribution, for its own contributor or for everybody: the record lies beside the content,
    or in its C2PA manifest. With `--with-nonce` it shows that exactly this content was contributed, and a guess of a short or
    predictable content is confirmed too: give that to nobody who may not know. Where to put which, docs/tracing.md says.

    Example: `dptrain attest anchor scan.png --key alice.key`
    """
    signer, name = load_key(key, passphrase_file, contributor)
    attestation, descriptor = attestation_of(content, attestations, record)
    if name != descriptor.contributor:
        raise CorpusRefused("HEADER", f"the key is {name}'s, the attestation is of {descriptor.contributor}")
    same = sign1.parse(attestation.sign1).key_id == keys.key_id(signer.public_key)
    if same:
        sign1.verify(attestation.sign1, attestation.descriptor, signer.public_key)
    number = "" if record is None else f".{record}"
    target = out or content.with_name(f".{content.name}{number}{anchors.SUFFIX}")
    refuse_to_overwrite(target)
    made = anchor_of(descriptor, time=int(time.time()), opened=with_nonce)
    signed_file.write(target, *sign_anchor(made, signer, issuer=descriptor.issuer))
    what = "confirms this content to whoever has it" if with_nonce else "holds no nonce: it confirms no content"
    other = "the attestation is by another key of yours: who reads the record needs the registry, which knows both"
    return Told(
        {
            "path": str(target),
            "descriptor_hash": made.descriptor_hash.hex(),
            "content": made.content.hex(),
            "time": made.time,
            "with_nonce": with_nonce,
            "key_id": keys.key_id(signer.public_key).hex(),
            "key_of_attestation": same,
        },
        [
            f"wrote {target}, signed as {name}; it {what}\nleads to contribution {made.descriptor_hash.hex()}",
            *([] if same else [other]),
        ],
    )
