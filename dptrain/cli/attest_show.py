"""`dptrain attest verify` and `dptrain attest show`: what attestations say, and whether it is true."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attest import keys, sign1
from attest.attestation import read_sequence
from attest.corpus import Item, open_corpus
from attest.descriptor import ContributionDescriptor
from attest.errors import AttestError, CorpusRefused
from dptrain.cli.output import JsonFlag, console, moment, number, print_json, styled, table, utc

AttestationFile = Annotated[
    Path, typer.Argument(metavar="DATA.attest", exists=True, dir_okay=False, help="Attestations, as sign wrote them.")
]


def verify(
    data: Annotated[Path, typer.Argument(metavar="DATA", exists=True, help="Data with DATA.attest beside it.")],
    pub: Annotated[Path, typer.Option("--pub", metavar="PUB", exists=True, dir_okay=False, help="The signer's key.")],
    at: Annotated[int | None, moment("Moment at which they must be valid; default: now.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Failures that are listed.")] = 20,
    json: JsonFlag = False,
) -> None:
    """Check signature, content and validity of every contribution against one public key.

    The gate checks more: registry, class, bounds, audience, duplicates.
    """
    name, raw = keys.load_named_public_key(pub)
    now = int(time.time()) if at is None else at
    good, failures = 0, []
    for item in open_corpus(data):
        try:
            _check_item(item, name, raw, now)
            good += 1
        except AttestError as error:
            failures.append({"where": _where(item), "code": error.code, "sentence": error.sentence})
    if json:
        print_json({"verified": good, "failed": len(failures), "failures": failures})
    else:
        out = console()
        for failure in failures[:limit]:
            out.print(styled("red", failure["code"], f" {failure['where']}: {failure['sentence']}"))
        out.print(f"{good} verified, {len(failures)} failed, signer {name}")
    if failures or not good:
        raise typer.Exit(1)


def show(
    attestations: AttestationFile,
    limit: Annotated[int, typer.Option(min=1, help="Attestations that are shown.")] = 20,
    json: JsonFlag = False,
) -> None:
    """Show what attestations say. Nothing is verified here; `verify` and the gate do that."""
    with attestations.open("rb") as stream:
        descriptors = [ContributionDescriptor.from_cbor(item.descriptor) for item in read_sequence(stream)]
    if json:
        print_json({"count": len(descriptors), "descriptors": [_as_json(item) for item in descriptors[:limit]]})
        return
    rows = table("#", "contributor", "class", "corpus", "clip norm", "noise multiplier", "valid until", "descriptor hash")
    for index, item in enumerate(descriptors[:limit], start=1):
        rows.add_row(
            str(index),
            item.contributor,
            item.admissibility_class,
            item.corpus,
            number(item.clip_norm, 6),
            number(item.noise_multiplier, 6),
            utc(item.not_after),
            item.digest().hex()[:16],
        )
    out = console()
    out.print(rows)
    out.print(f"{len(descriptors)} attestations, not verified here")


def register(group: typer.Typer) -> None:
    """Add the commands to `dptrain attest`."""
    group.command(epilog="Example: dptrain attest verify notes.jsonl --pub alice.pub")(verify)
    group.command(epilog="Example: dptrain attest show notes.jsonl.attest --limit 3")(show)


def _check_item(item: Item, name: str, raw: bytes, now: int) -> None:
    if item.problem is not None:
        raise item.problem
    if item.attestation is None:
        raise CorpusRefused("UNATTESTED", "there is no attestation for this content")
    if item.locator is None:
        raise CorpusRefused("CONTENT_MISSING", "there is no content for this attestation")
    headers = sign1.verify(item.attestation.sign1, item.attestation.descriptor, raw)
    descriptor = ContributionDescriptor.from_cbor(item.attestation.descriptor)
    if not headers.issuer == descriptor.contributor == name:
        raise CorpusRefused(
            "HEADER", f"the key is {name}'s, the signature is issued by {headers.issuer} for {descriptor.contributor}"
        )
    if descriptor.content_hash != item.content_hash:
        raise CorpusRefused("CONTENT_MISMATCH", "the content is not what was signed; restore it or sign it anew")
    if not descriptor.not_before <= now < descriptor.not_after:
        raise CorpusRefused(
            "EXPIRED" if now >= descriptor.not_after else "NOT_YET_VALID",
            f"valid from {utc(descriptor.not_before)} until {utc(descriptor.not_after)}",
        )


def _where(item: Item) -> str:
    return f"{item.locator.source}, byte {item.locator.offset}" if item.locator else "attestation without content"


def _as_json(descriptor: ContributionDescriptor) -> dict[str, Any]:
    return {
        "descriptor_hash": descriptor.digest().hex(),
        "contributor": descriptor.contributor,
        "data_class": descriptor.data_class,
        "class": descriptor.admissibility_class,
        "corpus": descriptor.corpus,
        "clip_norm": descriptor.clip_norm,
        "noise_multiplier": descriptor.noise_multiplier,
        "content_hash": descriptor.content_hash.hex(),
        "not_before": descriptor.not_before,
        "not_after": descriptor.not_after,
        "max_occurrences": descriptor.max_occurrences,
        "max_examples": descriptor.max_examples,
        "principal": descriptor.principal,
    }
