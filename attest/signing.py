"""Signing data: one attestation per contribution, written beside the data."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import ContributionDescriptor
from attest.errors import CorpusRefused
from attest.files import atomic_writer
from attest.records import SUFFIX, records_of
from attest.signer import Signer


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningTemplate:
    """What all contributions signed together have in common; see `ContributionDescriptor` for the fields."""

    contributor: str
    data_class: str
    admissibility_class: str
    clip_norm_micro: int
    noise_multiplier_micro: int
    corpus: str
    not_before: int
    not_after: int
    max_occurrences: int = 0
    principal: str | None = None
    max_examples: int | None = None

    def __post_init__(self) -> None:
        self.descriptor(bytes(32))

    def descriptor(self, content_hash: bytes) -> ContributionDescriptor:
        """The descriptor of one contribution, with a fresh nonce."""
        return ContributionDescriptor(
            contributor=self.contributor,
            data_class=self.data_class,
            admissibility_class=self.admissibility_class,
            clip_norm_micro=self.clip_norm_micro,
            noise_multiplier_micro=self.noise_multiplier_micro,
            content_hash=content_hash,
            not_before=self.not_before,
            not_after=self.not_after,
            nonce=secrets.token_bytes(16),
            corpus=self.corpus,
            max_occurrences=self.max_occurrences,
            principal=self.principal,
            max_examples=self.max_examples,
        )


def sign_content(content_hash: bytes, key: Signer | Ed25519PrivateKey, template: SigningTemplate) -> Attestation:
    """Attest one contribution by the SHA-256 of its content."""
    payload = template.descriptor(content_hash).to_cbor()
    return Attestation(payload, sign1.sign(payload, key, contributor=template.contributor))


def sign_corpus(
    data_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str] | None,
    key: Signer | Ed25519PrivateKey,
    template: SigningTemplate,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Sign a file, every record of a JSONL file, or every file of a folder.

    Args:
        data_path: The data.
        out_path: Where the attestations go; None for the data's name with `.attest` added, where the gate looks.
            The file appears complete or not at all.
        key: The contributor's key, or what signs with it.
        template: Bounds, validity and audience for all of them.
        progress: Called with the number signed so far.

    Returns:
        The number of contributions signed.

    Raises:
        CorpusRefused: The data cannot be read or holds no contribution.
    """
    data = Path(os.path.abspath(data_path))
    if not os.path.lexists(data):
        raise CorpusRefused("CONTENT_MISSING", f"no data at {os.fspath(data_path)!r}; check the path")
    out = Path(out_path) if out_path is not None else data.with_name(data.name + SUFFIX)
    count = 0
    with atomic_writer(out) as stream:
        for record in records_of(data.parent, data.name):
            stream.write(sign_content(record.content_hash, key, template).to_cbor())
            count += 1
            if progress is not None:
                progress(count)
        if count == 0:
            raise CorpusRefused("CONTENT_MISSING", f"{os.fspath(data_path)!r} holds no record or file to sign")
    return count
