"""`dptrain attest anchor`: write the signed record that lies beside a content and leads to its contribution."""

import time
from pathlib import Path
from typing import Annotated

from attest import keys, sign1, signed_file
from attest.corpus.anchor import SUFFIX, anchor_of, sign_anchor
from attest.errors import CorpusRefused
from dptrain.cli.attest.attested import AttestationsOption, RecordOption, attestation_of
from dptrain.cli.inputs import KeyFile, PassphraseFile, load_key, refuse_to_overwrite
from dptrain.cli.options import file_argument, option
from dptrain.cli.results import Told


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
    contributor: Annotated[str | None, option("Who signs; default: the name in the .pub file beside the key.")] = None,
    out: Annotated[Path | None, option("New file; default: .CONTENT.anchor beside it.", metavar="FILE")] = None,
    passphrase_file: PassphraseFile = None,
) -> Told:
    """Write a signed record that leads from a content to its contribution in every ledger that admitted it.

    `dptrain ledger show --anchor` and `dptrain ledger trace` read it. It names the contribution as ledgers do, and nobody.
    Whoever has it and an export learns what became of the contribution; docs/tracing.md says where to put it, and where not.

    When a content is to lead to its contribution, for its own contributor or for everybody: the record lies beside the
    content, or in its C2PA manifest. With `--with-nonce` it shows that exactly this content was contributed, and a guess of a
    short or predictable content is confirmed too: give that to nobody who may not know. Where to put which, docs/tracing.md
    says.

    Example: `dptrain attest anchor scan.png --key alice.key`
    """
    signer, name = load_key(key, passphrase_file, contributor, "--contributor")
    attestation, descriptor = attestation_of(content, attestations, record)
    if name != descriptor.contributor:
        raise CorpusRefused("HEADER", f"the key is {name}'s, the attestation is of {descriptor.contributor}")
    same = sign1.parse(attestation.sign1).key_id == keys.key_id(signer.public_key)
    if same:
        sign1.verify(attestation.sign1, attestation.descriptor, signer.public_key)
    number = "" if record is None else f".{record}"
    target = out or content.with_name(f".{content.name}{number}{SUFFIX}")
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
