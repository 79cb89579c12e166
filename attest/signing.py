"""Signing data: one attestation per contribution, written beside the data."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1
from attest.attestation import Attestation
from attest.descriptor import ContributionDescriptor
from attest.errors import CorpusRefused
from attest.files import atomic_writer
from attest.framing import subject_of
from attest.records import SUFFIX, records_of
from attest.signer import Signer, as_signer, sign_all
from attest.template import SigningTemplate, TemplateEncoder, nonces

__all__ = ["SigningTemplate", "attestations", "sign_content", "sign_corpus"]


def sign_content(content_hash: bytes, key: Signer | Ed25519PrivateKey, template: SigningTemplate) -> Attestation:
    """Attest one contribution by the SHA-256 of its content."""
    return sign_descriptor(template.descriptor(content_hash), key)


def sign_descriptor(descriptor: ContributionDescriptor, key: Signer | Ed25519PrivateKey) -> Attestation:
    """Attest one contribution by its descriptor."""
    signed = descriptor.signed
    payload = signed.to_cbor()
    return Attestation(payload, sign1.sign(payload, key, contributor=signed.issuer), descriptor.opening())


def attestations(
    content_hashes: Iterable[bytes], key: Signer | Ed25519PrivateKey, template: SigningTemplate
) -> Iterator[bytes]:
    """Attest contributions one after another, as items of an attestation file, in their order.

    Memory stays bounded whatever their number: no more hashes are drawn than the signer has in work at once.
    """
    signer = as_signer(key)
    encoder = TemplateEncoder(template, signer.public_key)
    in_work: deque[tuple[bytes, bytes, bytes]] = deque()

    def messages() -> Iterator[bytes]:
        for content_hash, nonce in zip(content_hashes, nonces(), strict=False):
            payload = encoder.descriptor(content_hash, nonce)
            subject = subject_of(payload)
            in_work.append((payload, subject, encoder.opening(content_hash, nonce)))
            yield encoder.to_be_signed(payload, subject)

    for signature in sign_all(signer, messages()):
        payload, subject, opening = in_work.popleft()
        yield encoder.attestation(payload, subject, signature, opening)


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
        KeyRefused: The signer refused.
    """
    data = Path(os.path.abspath(data_path))
    if not os.path.lexists(data):
        raise CorpusRefused("CONTENT_MISSING", f"no data at {os.fspath(data_path)!r}; check the path")
    out = Path(out_path) if out_path is not None else data.with_name(data.name + SUFFIX)
    content_hashes = (record.content_hash for record in records_of(data.parent, data.name))
    count = 0
    with atomic_writer(out) as stream:
        for count, attestation in enumerate(attestations(content_hashes, key, template), start=1):
            stream.write(attestation)
            if progress is not None:
                progress(count)
        if count == 0:
            raise CorpusRefused("CONTENT_MISSING", f"{os.fspath(data_path)!r} holds no record or file to sign")
    return count
