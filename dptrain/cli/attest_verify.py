"""`dptrain attest verify`: is what lies here what was signed, under one key, now?"""

import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from attest import keys, sign1
from attest.corpus import Item, open_corpus
from attest.errors import AttestError, CorpusRefused
from attest.schema.plain import utc, visible
from dptrain.cli.output import JsonFlag, console, moment, print_json, styled
from dptrain.progress import contributions_in, progress_bar


def verify(
    data: Annotated[Path, typer.Argument(metavar="DATA", exists=True, help="Data with DATA.attest beside it.")],
    pub: Annotated[Path, typer.Option("--pub", metavar="PUB", exists=True, dir_okay=False, help="The signer's key.")],
    at: Annotated[int | None, moment("Moment at which they must be valid; default: now.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Failures that are listed; all are counted.")] = 20,
    json: JsonFlag = False,
) -> None:
    """Check signature, content and validity of every contribution against one public key.

    The gate checks more: registry, class, bounds, audience, duplicates.
    """
    name, raw = keys.load_named_public_key(pub)
    now = int(time.time()) if at is None else at
    good, codes, listed = 0, Counter[str](), []
    with progress_bar("verifying", lambda: contributions_in(data)) as progress:
        for count, item in enumerate(open_corpus(data), start=1):
            try:
                check_item(item, name, raw, now)
                good += 1
            except AttestError as error:
                codes[str(error.code)] += 1
                if len(listed) < limit:
                    listed.append({"where": _where(item), "code": str(error.code), "sentence": error.sentence})
            if progress is not None:
                progress(count)
    failed = codes.total()
    if json:
        print_json({"verified": good, "failed": failed, "codes": dict(codes.most_common()), "failures": listed})
    else:
        _print(good, codes, listed, name)
    if failed or not good:
        raise typer.Exit(1)


def check_item(item: Item, name: str, raw: bytes, now: int) -> None:
    """Check one contribution under the key `raw` of `name`.

    Raises:
        AttestError: With the code of what is wrong.
    """
    if item.problem is not None:
        raise item.problem
    if item.attestation is None:
        raise CorpusRefused("UNATTESTED", "there is no attestation for this content; sign it with 'dptrain attest sign'")
    if item.locator is None:
        raise CorpusRefused("CONTENT_MISSING", "there is no content for this attestation; put the data back, or drop it")
    headers = sign1.verify(item.attestation.sign1, item.attestation.descriptor, raw)
    descriptor = item.attestation.opened()
    if name != descriptor.contributor:
        raise CorpusRefused("HEADER", f"the key is {name}'s, the attestation is of {descriptor.contributor}")
    if headers.issuer != descriptor.issuer:
        raise CorpusRefused("HEADER", f"the signature names {headers.issuer}, not the commitment {descriptor.issuer}")
    if descriptor.content_hash != item.content_hash:
        raise CorpusRefused("CONTENT_MISMATCH", "the content is not what was signed; restore it or sign it anew")
    if not descriptor.not_before <= now < descriptor.not_after:
        raise CorpusRefused(
            "EXPIRED" if now >= descriptor.not_after else "NOT_YET_VALID",
            f"valid from {utc(descriptor.not_before)} until {utc(descriptor.not_after)}; sign it anew",
        )


def _print(good: int, codes: Counter[str], listed: list[dict[str, str]], name: str) -> None:
    out = console()
    for failure in listed:
        out.print(styled("red", failure["code"], f" {failure['where']}: {failure['sentence']}"))
    if codes.total() > len(listed):
        out.print(f"... and {codes.total() - len(listed):,} more, not listed (--limit)")
    if len(codes) > 1:
        out.print(", ".join(f"{code} {count:,}" for code, count in codes.most_common()))
    out.print(f"{good:,} verified, {codes.total():,} failed, signer {name}")
    if not good and not codes:
        out.print("there was nothing to verify: no data, or no attestations beside it")
    elif not codes:
        out.print("not checked here: registry, class, bounds and corpus; dptrain gate does that")


def _where(item: Item) -> str:
    if not item.locator:
        return "attestation without content"
    return f"{visible(item.locator.source)}, byte {item.locator.offset}"
