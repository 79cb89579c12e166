"""Reads a corpus on disk: data, and beside it the attestations.

Attestations of data `X` lie in `X.attest`, a CBOR sequence. `X` is a `.jsonl` file (one contribution per non-empty line, the
k-th attestation belongs to the k-th line), any other file (one contribution), or a folder (every regular file below it is a
contribution; attestations are paired by content hash first, what remains by position). A corpus is one such `X`, or a directory
that is searched for them. `Claims` finds the attestations of a folder by the content that they claim, in bounded memory.
"""

import marshal
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from attest.attestation import Attestation, read_at, read_places, read_sequence
from attest.corpus.digests import DigestTable
from attest.corpus.records import SUFFIX, Locator, Record, file_kind, file_record, folder_sources, open_beneath, records_of
from attest.descriptor import claimed_content
from attest.errors import AttestError, CborError, CorpusRefused

_MAX_DEPTH = 32
"""Directories inside one another that are searched."""


class Item(NamedTuple):
    """Holds one contribution as found: its place, the hash of its bytes, and the attestation that claims it.

    Args:
        content_hash: SHA-256 of the bytes read; None without content, and for data that has no attestation at all.
        problem: Why the item could not be read; the gate refuses it with this code.
    """

    locator: Locator | None
    content_hash: bytes | None
    attestation: Attestation | None
    problem: AttestError | None = None


@dataclass(frozen=True, slots=True)
class Corpus:
    """Yields the contributions below a directory, in a fixed order. `only`: name of the one piece of data that counts, None for
    all."""

    root: Path
    only: str | None = None

    def __iter__(self) -> Iterator[Item]:
        """Reads the corpus once; files are hashed while they stream by."""
        for piece in self.pieces():
            if isinstance(piece, str):
                yield from self.items(piece)
            else:
                yield piece

    def pieces(self) -> Iterator[str | Item]:
        """Yields the names of the data, in the fixed order; what cannot be listed comes as the item that is refused for it."""
        if self.only is not None:
            yield self.only
        else:
            yield from self._search("")

    def beside(self, suffix: str) -> Path:
        """Returns the file beside the corpus with a suffix; its name begins with a dot, so that no corpus takes it for data."""
        place = self.root if self.only is None else self.root / self.only
        return place.with_name(f".{place.name}{suffix}")

    def read(self, locator: Locator) -> bytes:
        """Returns the bytes at a locator, as they are now; compare their hash with the signed one before use. Raises
        CorpusRefused: code CONTENT_MISSING if they cannot be read or are fewer than the locator says."""
        with Contents(self.root) as contents:
            return contents.read(locator)

    def contents(self) -> "Contents":
        """Returns a reader of many contents, for a ``with`` block."""
        return Contents(self.root)

    def _search(self, prefix: str, depth: int = 0) -> Iterator[str | Item]:
        try:
            with os.scandir(self.root / prefix) as entries:
                kinds = {entry.name: _kind(entry) for entry in entries if not entry.name.startswith(".")}
        except OSError as error:
            yield unread(prefix, CorpusRefused("UNATTESTED", f"cannot list {prefix!r}: {error.strerror or error}"))
            return
        for name in sorted(kinds):
            kind, source = kinds[name], prefix + name
            if kind == "link":
                yield unread(source, CorpusRefused("UNATTESTED", f"{source!r} is a symbolic link; put the data itself here"))
            elif name.endswith(SUFFIX) and kind == "file":
                if name.removesuffix(SUFFIX) not in kinds:
                    yield source.removesuffix(SUFFIX)
            elif kind == "folder" and name + SUFFIX not in kinds:
                if depth < _MAX_DEPTH:
                    yield from self._search(source + "/", depth + 1)
                else:
                    yield unread(source, CorpusRefused("UNATTESTED", f"{source!r} is nested too deeply; move it up"))
            else:
                yield source

    def items(self, source: str) -> Iterator[Item]:
        """Yields the contributions of one piece of data, or the attestations that lost theirs."""
        kind = file_kind(self.root, source)
        if file_kind(self.root, source + SUFFIX) != "file":
            yield Item(Locator(source, 0, 0), None, None)
            return
        claims = self._attestations(source + SUFFIX)
        if kind == "folder":
            yield from self._pair_by_hash(source)
        elif kind == "file":
            yield from self._pair_by_position(source, claims)
        else:
            yield from (orphan(claim) for claim in claims)

    def _pair_by_position(self, source: str, attestations: Iterator[Attestation | AttestError]) -> Iterator[Item]:
        records = records_of(self.root, source)
        try:
            for record in records:
                yield item_of(record, next(attestations, None))
        except CorpusRefused as error:
            yield unread(source, error)
        yield from (orphan(claim) for claim in attestations)

    def _pair_by_hash(self, source: str) -> Iterator[Item]:
        """Yields files that an attestation claims; then the other files with the attestations left over, by position."""
        with open_beneath(self.root, source + SUFFIX) as stream, tempfile.TemporaryFile() as unclaimed:
            claims = Claims(stream)
            try:
                for name in folder_sources(self.root, source):
                    try:
                        record = file_record(self.root, name)
                    except CorpusRefused as error:
                        yield unread(name, error)
                        continue
                    claim = claims.take(record.content_hash)
                    if claim is not None:
                        yield item_of(record, claim)
                    else:
                        marshal.dump((tuple(record.locator), record.content_hash), unclaimed)
            except CorpusRefused as error:
                yield unread(source, error)
            rest, end = claims.rest(), unclaimed.tell()
            unclaimed.seek(0)
            while unclaimed.tell() < end:
                place, content_hash = marshal.load(unclaimed)
                yield item_of(Record(Locator(*place), content_hash), next(rest, None))
            yield from (orphan(claim) for claim in rest)

    def _attestations(self, source: str) -> Iterator[Attestation | AttestError]:
        """Yields the attestations of a file; a malformed item comes last, since nothing behind it can be found."""
        try:
            with open_beneath(self.root, source) as stream:
                yield from read_sequence(stream)
        except AttestError as error:
            yield error


class Contents:
    """Reads the bytes at many locators below a directory; a file stays open until the next one is asked for.

    Guarantee: as `attest.corpus.records.open_beneath`, of every file. A file that is replaced under its name in between is read
    to its end as it was: compare hashes, as after `Corpus.read`.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._source: str | None = None
        self._stream: BinaryIO | None = None

    def read(self, locator: Locator) -> bytes:
        """Returns the bytes at a locator; as `Corpus.read`."""
        source, offset, length = locator
        if offset < 0 or length < 0:
            raise CorpusRefused("CONTENT_MISSING", f"{locator} is no place in a file")
        if source != self._source or self._stream is None:
            self.close()
            self._stream, self._source = open_beneath(self._root, source), source
        self._stream.seek(offset)
        content = self._stream.read(length)
        if len(content) != length:
            raise CorpusRefused("CONTENT_MISSING", f"{source!r} is shorter than when it was admitted; restore it")
        return content

    def close(self) -> None:
        """Closes what is open."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> "Contents":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Opens a corpus directory, or one piece of data `X` with `X.attest` beside it. Raises CorpusRefused: code CONTENT_MISSING
    or RANGE."""
    target = Path(os.path.abspath(path))
    if not target.exists():
        raise CorpusRefused("CONTENT_MISSING", f"no corpus at {os.fspath(path)!r}; check the path")
    if target.name.endswith(SUFFIX) and target.is_file():
        raise CorpusRefused("RANGE", f"{os.fspath(path)!r} holds attestations; give the data beside it or the directory")
    if target.is_dir() and not target.with_name(target.name + SUFFIX).is_file():
        return Corpus(target)
    if target.is_symlink():
        raise CorpusRefused("RANGE", f"{os.fspath(path)!r} is a symbolic link; give the path of the data itself")
    return Corpus(target.parent, target.name)


def _kind(entry: os.DirEntry[str]) -> Literal["link", "file", "folder", "other"]:
    """Returns what an entry is: a word, since the entry itself takes several times the memory of its name."""
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def item_of(record: Record, claim: Attestation | AttestError | None) -> Item:
    """Returns a record with what stands for its attestation."""
    if isinstance(claim, AttestError):
        return Item(record.locator, record.content_hash, None, claim)
    return Item(record.locator, record.content_hash, claim)


def orphan(claim: Attestation | AttestError) -> Item:
    """Returns an attestation that has no data."""
    return Item(None, None, None, claim) if isinstance(claim, AttestError) else Item(None, None, claim)


def unread(source: str, problem: AttestError) -> Item:
    """Returns data that cannot be read."""
    return Item(Locator(source, 0, 0), None, None, problem)


class Claims:
    """Takes each attestation of a seekable file once.

    What an attestation claims is read without decoding or verifying it: it serves to pair attestations with files, never to
    admit one.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        # Keys: n + hash, how many claim it; t + hash, how many of these are taken; p + hash + k, where the k-th begins;
        # u + place, that the one beginning there is taken.
        # It stands beside the gate's own tables, so it takes to the disk earlier than these.
        self._table = DigestTable(1 << 17, 1 << 15)
        try:
            for place, attestation in read_places(stream):
                claimed = claimed_content(attestation.opening)
                if claimed is not None:
                    count = self._table.get(b"n" + claimed) or 0
                    self._table.set(b"n" + claimed, count + 1)
                    self._table.set(b"p" + claimed + count.to_bytes(8, "big"), place)
        except CborError:
            return  # `rest` meets it again, and tells.

    def take(self, content_hash: bytes) -> Attestation | CborError | None:
        """Returns the first attestation that claims a content and was not taken yet; an error if it is no longer in the file.
        """
        taken = self._table.get(b"t" + content_hash) or 0
        place = self._table.get(b"p" + content_hash + taken.to_bytes(8, "big"))
        if place is None:
            return None
        self._table.set(b"t" + content_hash, taken + 1)
        self._table.set(b"u" + place.to_bytes(8, "big"), 1)
        try:
            return read_at(self._stream, place)
        except CborError as error:
            return error

    def rest(self) -> Iterator[Attestation | CborError]:
        """Yields attestations that were not taken, in order; a malformed one comes last, since nothing behind it can be found.
        """
        self._stream.seek(0)
        try:
            for place, attestation in read_places(self._stream):
                if self._table.get(b"u" + place.to_bytes(8, "big")) is None:
                    yield attestation
        except CborError as error:
            yield error
