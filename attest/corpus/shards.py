"""Cuts a corpus into shards, each of which a process of its own reads.

All attestation files, one behind the other in the order of the corpus, make one sequence of bytes. It is cut into N ranges of
equal length, and a shard holds the contributions whose attestations begin in its range. Where to cut follows from names and
sizes alone, so every process finds its shard without reading the others. Of a JSONL file that several shards share, what lies
before the range is walked through and not hashed. Data that is no JSONL file belongs to one shard as a whole.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from attest import cbor
from attest.attestation import Attestation, read_places
from attest.corpus.corpus import Corpus, Item, item_of, orphan, unread
from attest.corpus.records import JSONL, SUFFIX, file_kind, jsonl_records, open_beneath
from attest.errors import AttestError, CorpusRefused

MAX_SHARDS: Final = 1 << 16


class ShardNumber(NamedTuple):
    """Names a shard: the `number`-th `of` so many, from 1."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "ShardNumber":
        """Reads `3/8`. Raises CorpusRefused: code SHARD, it is no shard."""
        first, _, second = text.partition("/")
        if not (first.isascii() and first.isdigit() and second.isascii() and second.isdigit() and len(text) <= 11):
            raise CorpusRefused("SHARD", f"{ascii(text)[:40]} is no shard; write 3/8 for the third of eight")
        return cls.checked(int(first), int(second))

    @classmethod
    def checked(cls, number: int, of: int) -> "ShardNumber":
        """Returns a shard whose numbers are in range. Raises CorpusRefused: code SHARD, they are not."""
        if not (type(number) is type(of) is int and 1 <= number <= of <= MAX_SHARDS):
            raise CorpusRefused("SHARD", f"there is no shard {number} of {of}; of at most {MAX_SHARDS} they count from 1")
        return cls(number, of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class Extent(NamedTuple):
    """Says how large a corpus is, and which.

    Args:
        length: Bytes of all attestation files, and one more for each piece of data.
        digest: SHA-256 over the name, kind and sizes of every piece of data and its attestation file.
    """

    length: int
    digest: bytes

    @classmethod
    def of(cls, corpus: Corpus) -> "Extent":
        """Looks at the sizes of all files of a corpus, and reads none."""
        length, digest = 0, hashlib.sha256()
        for piece in _pieces(corpus):
            digest.update(piece.told())
            length += piece.size + 1
        return cls(length, digest.digest())


@dataclass(frozen=True, slots=True)
class Shard:
    """Yields the contributions of one shard, in the order of the corpus.

    Guarantee: for an unchanged corpus, the shards 1 to N of N one after the other yield what the corpus yields, item for item.

    Args:
        extent: Of the corpus, as every shard must find it.
    """

    corpus: Corpus
    shard: ShardNumber
    extent: Extent

    def __iter__(self) -> Iterator[Item]:
        """Reads the shard once. Raises CorpusRefused: code CORPUS_CHANGED, the corpus has other files or sizes than it had."""
        number, of = self.shard
        first, last = (self.extent.length * edge // of for edge in (number - 1, number))
        start, digest = 0, hashlib.sha256()
        for piece in _pieces(self.corpus):
            digest.update(piece.told())
            end = start + piece.size + 1
            if start < last and end > first:
                if piece.cut:
                    yield from _cut(self.corpus, piece, first - start, last - start)
                elif first <= start:
                    yield from [piece.what] if isinstance(piece.what, Item) else self.corpus.items(piece.what)
            start = end
        if (start, digest.digest()) != self.extent:
            sentence = "the corpus changed while a shard of it was read: files came, went or grew; judge all shards again"
            raise CorpusRefused("CORPUS_CHANGED", sentence)


class _Piece(NamedTuple):
    """A piece of data by its name, or the item that stands for what cannot be listed; bytes of its attestation file."""

    what: str | Item
    size: int
    data: int
    kind: str

    @property
    def cut(self) -> bool:
        """Tells whether several shards may share it."""
        return isinstance(self.what, str) and self.kind == "file" and self.what.endswith(JSONL) and self.size > 0

    def told(self) -> bytes:
        """Returns what it adds to the digest of an extent."""
        what = self.what
        if isinstance(what, Item):
            what = "" if what.locator is None else what.locator.source
        return cbor.encode([os.fsencode(what), self.kind, self.size, self.data])


def _pieces(corpus: Corpus) -> Iterator[_Piece]:
    for what in corpus.pieces():
        if isinstance(what, Item):
            yield _Piece(what, 0, 0, "unread")
        else:
            kind = file_kind(corpus.root, what)
            yield _Piece(what, _size(corpus, what + SUFFIX), _size(corpus, what) if kind == "file" else 0, kind)


def _size(corpus: Corpus, source: str) -> int:
    try:
        found = os.lstat(os.path.join(corpus.root, source))
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _cut(corpus: Corpus, piece: _Piece, first: int, last: int) -> Iterator[Item]:
    """Yields the items of a JSONL file whose attestations begin in a range of bytes.

    What has no attestation that can be read stands behind all of them, where the file of attestations ends.
    """
    source, places = str(piece.what), _claims(corpus, piece)
    at, claim = next(places, (piece.size, None))
    records = jsonl_records(corpus.root, source, lambda: first <= at < last)
    try:
        for record in records:
            if at >= last:
                return
            if at >= first:
                yield item_of(record, claim)
            at, claim = next(places, (piece.size, None))
    except CorpusRefused as error:
        if first <= at < last:
            yield unread(source, error)
    while claim is not None and at < last:
        if at >= first:
            yield orphan(claim)
        at, claim = next(places, (piece.size, None))


def _claims(corpus: Corpus, piece: _Piece) -> Iterator[tuple[int, Attestation | AttestError]]:
    """Yields attestations and where they begin; a malformed item comes last, at the end, as nothing behind it can be found."""
    try:
        with open_beneath(corpus.root, f"{piece.what}{SUFFIX}") as stream:
            for place, attestation in read_places(stream):
                yield min(place, piece.size), attestation
    except AttestError as error:
        yield piece.size, error
