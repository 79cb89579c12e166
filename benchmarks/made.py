"""A corpus whose payloads are made when they are read, for benchmarks of corpora that are larger than a disk should hold.

Attestations lie on disk, in files without data beside them. A record follows from its number, so whoever signs, judges or
trains makes it again at each reading, and hashes it as it would a line of a file.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.corpus import Contents, Corpus, Item, Locator, SigningTemplate
from attest.corpus.corpus import item_of, orphan
from attest.corpus.records import SUFFIX, Record
from attest.corpus.signing import attestations
from attest.errors import CorpusRefused
from attest.files import atomic_writer

PAYLOAD = 100
"""Bytes of a record."""


def payload(number: int) -> bytes:
    """Makes the record of a number: `PAYLOAD` bytes of JSON."""
    text = hashlib.sha256(number.to_bytes(8, "big")).hexdigest()
    return b'{"text":"%s","number":%0*d}' % (text.encode(), PAYLOAD - len(text) - 21, number + 10**14)


@dataclass(frozen=True, slots=True)
class MadeCorpus(Corpus):
    """Yields contributions as `Corpus` does, from attestation files alone, which `sign` writes.

    Args:
        size: Contributions in all. per_file: Those of each attestation file but the last.
    """

    size: int = 0
    per_file: int = 1

    @property
    def files(self) -> list[str]:
        """Lists the names of the pieces of data, in the order of the corpus."""
        return [f"{number:05d}" for number in range(-(-self.size // self.per_file))]

    def numbers(self, source: str) -> range:
        """Returns the numbers of the records of one piece of data."""
        start = int(source) * self.per_file
        return range(start, min(start + self.per_file, self.size))

    def sign(self, source: str, key: Ed25519PrivateKey, template: SigningTemplate) -> None:
        """Signs one piece of data, as `attest.corpus.sign_corpus` signs a file."""
        hashes = (hashlib.sha256(payload(number)).digest() for number in self.numbers(source))
        with atomic_writer(self.root / (source + SUFFIX)) as stream:
            stream.writelines(attestations(hashes, key, template))

    def items(self, source: str) -> Iterator[Item]:
        """Yields the contributions of one piece of data, each made and hashed now."""
        claims = self._attestations(source + SUFFIX)
        for place, number in enumerate(self.numbers(source)):
            record = Record(Locator(source, place * PAYLOAD, PAYLOAD), hashlib.sha256(payload(number)).digest())
            yield item_of(record, next(claims, None))
        yield from (orphan(claim) for claim in claims)

    def locator(self, number: int) -> Locator:
        """Returns where the gate finds a record."""
        return Locator(f"{number // self.per_file:05d}", number % self.per_file * PAYLOAD, PAYLOAD)

    def read(self, locator: Locator) -> bytes:
        """Makes the record at a locator. Raises CorpusRefused: code CONTENT_MISSING, there is none."""
        number = int(locator.source) * self.per_file + locator.offset // PAYLOAD
        if locator != self.locator(number) or number >= self.size:
            raise CorpusRefused("CONTENT_MISSING", f"{locator} is no record of this corpus; ask for one that the gate found")
        return payload(number)

    def contents(self) -> Contents:
        """Returns a reader of many contents, for a ``with`` block."""
        return _MadeContents(self)


class _MadeContents(Contents):
    """Reads many contents by making them."""

    def __init__(self, corpus: MadeCorpus) -> None:
        super().__init__(corpus.root)
        self._corpus = corpus

    def read(self, locator: Locator) -> bytes:
        return self._corpus.read(locator)
