"""Signs data: writes one attestation per contribution beside the data.

A `SigningTemplate` is what contributions signed together have in common. `TemplateEncoder` encodes the little in which they
differ.
"""

import itertools
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1
from attest.attestation import SIGNATURE_SIZE, Attestation, CommonTerms, Framing, around, subject_of
from attest.corpus.corpus import Contents
from attest.corpus.records import JSONL, SUFFIX, records_of
from attest.descriptor import SALTS_SIZE, ContributionDescriptor
from attest.errors import CorpusRefused, DescriptorRefused
from attest.files import atomic_writer
from attest.keys import key_id
from attest.keys.signers import Signer, as_signer, sign_all
from attest.schema.plain import SALT_SIZE, check_bytes, commit_content

_NONCES_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningTemplate:
    """Holds what all contributions signed together share; see `ContributionDescriptor` for the fields.

    They share the salts too: an export shows that they were signed together, and nothing else of who signed them.
    """

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
    max_epsilon_micro: int | None = None
    max_delta_pico: int | None = None
    purposes: tuple[str, ...] | None = None
    public_length: int | None = None
    salts: bytes = field(default_factory=lambda: secrets.token_bytes(SALTS_SIZE), repr=False)

    def __post_init__(self) -> None:
        self.descriptor(bytes(32))

    def descriptor(self, content_hash: bytes, nonce: bytes | None = None) -> ContributionDescriptor:
        """Returns the descriptor of one contribution, with a fresh nonce unless one is given."""
        common = {item.name: getattr(self, item.name) for item in fields(self)}
        nonce = secrets.token_bytes(SALT_SIZE) if nonce is None else nonce
        return ContributionDescriptor(content_hash=content_hash, nonce=nonce, **common)


class TemplateEncoder:
    """Encodes what one key signs from one template, by joining pieces that were encoded once.

    Guarantee: `descriptor` and `opening` are `to_cbor()` and `opening()` of `SigningTemplate.descriptor(...)`, `to_be_signed`
    is what `sign1.sign` has signed for it, and `attestation` is `Attestation(...).to_cbor()`, byte for byte.
    """

    __slots__ = ("_attestation", "_framing", "_opening", "to_be_signed")

    def __init__(self, template: SigningTemplate, public_key: bytes) -> None:
        content_hash, nonce = os.urandom(32), os.urandom(SALT_SIZE)
        descriptor = template.descriptor(content_hash, nonce)
        opening = descriptor.opening()
        self._framing = Framing(CommonTerms.of(descriptor.signed, key_id(public_key)))
        self._opening = around(opening, nonce, content_hash)
        self.to_be_signed = self._framing.to_be_signed
        payload = descriptor.to_cbor()
        message = self._framing.message(subject_of(payload), os.urandom(SIGNATURE_SIZE))
        self._attestation = around(Attestation(payload, message, opening).to_cbor(), payload, message, opening)

    def descriptor(self, content_hash: bytes, nonce: bytes) -> bytes:
        """Returns the descriptor of one contribution. Raises DescriptorRefused: code TYPE or RANGE if hash or nonce are not 32
        and 16 bytes."""
        check_bytes(content_hash, "content_hash", 32, error=DescriptorRefused)
        check_bytes(nonce, "nonce", SALT_SIZE, error=DescriptorRefused)
        return self._framing.descriptor(commit_content(content_hash, nonce))

    def opening(self, content_hash: bytes, nonce: bytes) -> bytes:
        """Returns the opening of one contribution, for hash and nonce that `descriptor` took."""
        before, between, after = self._opening
        return b"".join((before, nonce, between, content_hash, after))

    def attestation(self, payload: bytes, subject: bytes, signature: bytes, opening: bytes) -> bytes:
        """Returns the attestation, as one item of an attestation file."""
        before, between, framing, after = self._attestation
        return b"".join((before, payload, between, self._framing.message(subject, signature), framing, opening, after))


def nonces() -> Iterator[bytes]:
    """Returns fresh nonces of 16 bytes without end, from the operating system's generator, drawn in blocks."""
    while True:
        block = os.urandom(SALT_SIZE * _NONCES_AT_ONCE)
        for at in range(0, len(block), SALT_SIZE):
            yield block[at : at + SALT_SIZE]


def sign_content(content_hash: bytes, key: Signer | Ed25519PrivateKey, template: SigningTemplate) -> Attestation:
    """Attests one contribution by the SHA-256 of its content."""
    return sign_descriptor(template.descriptor(content_hash), key)


def sign_descriptor(descriptor: ContributionDescriptor, key: Signer | Ed25519PrivateKey) -> Attestation:
    """Attests one contribution by its descriptor."""
    signed = descriptor.signed
    payload = signed.to_cbor()
    return Attestation(payload, sign1.sign(payload, key, contributor=signed.issuer), descriptor.opening())


def attestations(
    content_hashes: Iterable[bytes],
    key: Signer | Ed25519PrivateKey,
    template: SigningTemplate,
    lengths: Iterable[int | None] | None = None,
) -> Iterator[bytes]:
    """Attests contributions one after another, as items of an attestation file, in their order.

    Memory stays bounded whatever their number: no more hashes are drawn than the signer has in work at once. `lengths`: the
    public length of each, read after its hash; None for that of the template.
    """
    signer = as_signer(key)
    encoders: dict[int | None, TemplateEncoder] = {}
    each = itertools.repeat(template.public_length) if lengths is None else iter(lengths)
    in_work: deque[tuple[TemplateEncoder, bytes, bytes, bytes]] = deque()

    def messages() -> Iterator[bytes]:
        for content_hash, length, nonce in zip(content_hashes, each, nonces(), strict=False):
            encoder = encoders.get(length)
            if encoder is None:
                encoder = encoders[length] = TemplateEncoder(replace(template, public_length=length), signer.public_key)
            payload = encoder.descriptor(content_hash, nonce)
            subject = subject_of(payload)
            in_work.append((encoder, payload, subject, encoder.opening(content_hash, nonce)))
            yield encoder.to_be_signed(payload, subject)

    for signature in sign_all(signer, messages()):
        encoder, payload, subject, opening = in_work.popleft()
        yield encoder.attestation(payload, subject, signature, opening)


def copy_unique(data_path: str | os.PathLike[str], out_path: str | os.PathLike[str]) -> int:
    """Copies a JSONL file without the records whose bytes stand in it before, and counts those that are left out.

    A gate admits a content to training once: of records that are equal it refuses all but the first.

    Raises:
        CorpusRefused: Code CONTENT_MISSING, the data cannot be read; RANGE, either file is no JSONL file.
    """
    data, out = Path(os.path.abspath(data_path)), Path(out_path)
    for path in (data, out):
        if path.suffix != JSONL:
            raise CorpusRefused("RANGE", f"{path.name!r} is no {JSONL} file; repeated records are found in those alone")
    seen: set[bytes] = set()
    repeated = 0
    with atomic_writer(out) as stream, Contents(data.parent) as contents:
        for record in records_of(data.parent, data.name):
            if record.content_hash in seen:
                repeated += 1
                continue
            seen.add(record.content_hash)
            stream.write(contents.read(record.locator) + b"\n")
    return repeated


def sign_corpus(
    data_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str] | None,
    key: Signer | Ed25519PrivateKey,
    template: SigningTemplate,
    progress: Callable[[int], None] | None = None,
    *,
    length_of: Callable[[bytes], int | None] | None = None,
) -> int:
    """Signs a file, every record of a JSONL file, or every file of a folder, and counts the contributions.

    Args:
        out_path: Where the attestations go; None for the data's name with `.attest` added, where the gate looks. The file
            appears complete or not at all.
        progress: Called with the number of contributions signed so far.
        length_of: A content to its public length in tokens; None for that of the template.

    Raises:
        CorpusRefused: The data cannot be read or holds no contribution.
        KeyRefused: The signer refused.
    """
    data = Path(os.path.abspath(data_path))
    if not os.path.lexists(data):
        raise CorpusRefused("CONTENT_MISSING", f"no data at {os.fspath(data_path)!r}; check the path")
    out = Path(out_path) if out_path is not None else data.with_name(data.name + SUFFIX)
    records = records_of(data.parent, data.name)
    count = 0
    with atomic_writer(out) as stream, Contents(data.parent) as contents:
        lengths = None
        if length_of is not None:
            records, again = itertools.tee(records)
            lengths = (length_of(contents.read(record.locator)) for record in again)
        content_hashes = (record.content_hash for record in records)
        for count, attestation in enumerate(attestations(content_hashes, key, template, lengths), start=1):
            stream.write(attestation)
            if progress is not None:
                progress(count)
        if count == 0:
            raise CorpusRefused("CONTENT_MISSING", f"{os.fspath(data_path)!r} holds no record or file to sign")
    return count
