"""From a directory to authenticated leaves: which files are there, and do they hash to the signed root.

An export is read twice, a file at a time: `Export.leaves` folds every entry bundle to the root of its tile and holds only
these, so that memory does not grow with the leaves; iterating over what it returns reads the bundles again for their meaning,
and folds each again, since the directory may lie where others write.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

from ledger import layout, tiles
from ledger.errors import ExportChanged, NoteError, ProofError
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.note import (
    SIGNATURE_ED25519,
    Checkpoint,
    Note,
    checkpoint_text,
    open_note,
    parse_checkpoint,
    parse_verifier_key,
    peek_checkpoint,
)
from ledger.retention.retained import is_stand_in

MAX_NAMED: Final = 50
"""Missing, unknown or wrong files are named up to this many of each."""

Report = Callable[[str, str, str], None]


@dataclass(slots=True)
class Export:
    """A directory under audit.

    Attributes:
        base: the directory.
        report: takes (code, where, sentence) of everything wrong.
        names: names of the regular files found.
        retained: how many bundles, from the first on, are those of a pruned ledger (`ledger.layout`).
    """

    base: Path
    report: Report
    names: set[str] = field(default_factory=set)
    retained: int = 0

    def scan(self) -> bool:
        """Lists the directory without following a link; False when there is none."""
        if not self.base.is_dir():
            self.report("MISSING", str(self.base), "there is no such directory; give the directory of an export")
            return False
        pending = [""]
        while pending:
            folder = pending.pop()
            children = sorted(os.scandir(self.base / folder), key=lambda child: child.name)
            if folder and not children:
                self.report("UNKNOWN_FILE", folder, "an empty directory is no part of an export")
            for child in children:
                name = f"{folder}{child.name}"
                if child.is_dir(follow_symlinks=False):
                    pending.append(f"{name}/")
                elif child.is_file(follow_symlinks=False):
                    self.names.add(name)
                else:
                    self.report(
                        "NOT_A_FILE", ascii(name)[1:-1], "an export has regular files only: no links, no devices"
                    )
        return True

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, or None after reporting why not. The name is computed, never read."""
        if name not in self.names:
            return None
        limit = layout.max_file_size(name)
        try:
            descriptor = os.open(self.base / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as stream:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    self.report("NOT_A_FILE", name, "an export has regular files only")
                    return None
                data = stream.read(limit + 1)
        except OSError as error:
            self.report("UNREADABLE", name, f"cannot be read: {error.strerror or error}")
            return None
        if len(data) > limit:
            self.report("TOO_LARGE", name, f"a file of this kind has at most {limit} bytes")
            return None
        return data

    def checkpoint(self, keys: list[str]) -> tuple[Note | None, Checkpoint] | None:
        """Returns the checkpoint, verified under the pinned keys.

        The note is None where none of them signed, but one is named like the log: it may be an older or a later key of it, and
        only the leaves can tell, which are not to be believed before they did.
        """
        if layout.CHECKPOINT not in self.names:
            self.report("MISSING_FILE", layout.CHECKPOINT, "an export has a checkpoint")
        data = self.read(layout.CHECKPOINT)
        if data is None:
            return None
        try:
            note = open_note(data, keys)
            found = parse_checkpoint(note.text)
            if note.text != checkpoint_text(found.origin, found.size, found.root):
                raise NoteError("CHECKPOINT", "the checkpoint has extension lines, which nothing vouches for")
        except NoteError as error:
            claimed = _claimed(data, keys) if error.code == "UNSIGNED" else None
            if claimed is None:
                self.report(error.code, layout.CHECKPOINT, error.sentence)
            return None if claimed is None else (None, claimed)
        return note, found

    def check_names(self, size: int) -> bool:
        """Compares the files found with the files an export of this size has; False when it is hopeless to read on."""
        needed = sum(-(-size // layout.TILE_WIDTH ** (level + 1)) for level in range(layout.level_count(size)))
        if needed > len(self.names) + 1000:
            missing = next(name for name in layout.file_paths(size) if name not in self.names)
            self.report("MISSING_FILE", missing, f"the checkpoint signs {size} leaves; most of their files are missing")
            return False
        widths = layout.tile_widths(size)
        self.retained = sum(1 for _ in takewhile(lambda tile: layout.retained_path(*tile) in self.names, widths))
        expected = set(layout.file_paths(size, self.retained))
        for name in islice(sorted(expected - self.names), MAX_NAMED):
            self.report("MISSING_FILE", name, f"the checkpoint signs {size} leaves, which need this file")
        for name in islice(sorted(self.names - expected), MAX_NAMED):
            self.report("UNKNOWN_FILE", ascii(name)[1:-1], "this file is no part of an export of the signed size")
        return True

    def leaves(self, checkpoint: Checkpoint) -> "Leaves | None":
        """Returns the leaves if they hash to the signed root, or None after naming the files that do not fit.

        Guarantee:
            The leaves returned are exactly those under the signed root, and every hash tile has been compared with the
            tile that they give.
        """
        given: list[bytes | None] = []
        stored: list[bytes | None] = []
        unlike: list[str] = []
        for n, width in layout.tile_widths(checkpoint.size):
            hashes, name = self._hashes(n, width), layout.tile_path(0, n, width)
            tile = self.read(name)
            given.append(None if hashes is None else root_of_hashes(hashes))
            stored.append(_root_of_tile(tile, width))
            if hashes is not None and tile is not None and tile != b"".join(hashes):
                unlike.append(name)
        roots = [root for root in given if root is not None]
        if len(roots) == len(given) and root_of_hashes(roots) == checkpoint.root:
            self._report_tiles(unlike)
            self._compare_upper(roots, checkpoint.size)
            return Leaves(self, roots, checkpoint.size)
        self._blame(given, stored, checkpoint)
        return None

    def bundle(self, n: int, width: int) -> list[bytes] | None:
        """Returns the entries of a bundle, or None after reporting why not."""
        name = layout.bundle_path(n, width, self.retained)
        data = self.read(name)
        try:
            return None if data is None else tiles.split_bundle(data, width)
        except ProofError as error:
            self.report("BUNDLE", name, error.sentence)
            return None

    def notes(self) -> list[bytes]:
        """Returns the checkpoints below which auditors vouch for summaries; none after reporting why not."""
        if not self.retained:
            return []
        data = self.read(layout.RETAINED_NOTES)
        try:
            return [] if data is None else tiles.split_bundle(data, None)
        except ProofError as error:
            self.report("BUNDLE", layout.RETAINED_NOTES, error.sentence)
            return []

    def hashes(self, n: int, width: int, entries: list[bytes]) -> list[bytes]:
        """Returns the leaf hashes of a bundle's entries; those of stand-ins are the tile's, zeros where it has none."""
        if n >= self.retained or not any(map(is_stand_in, entries)):
            return list(map(leaf_hash, entries))
        tile = (self.read(layout.tile_path(0, n, width)) or b"").ljust(layout.HASH_SIZE * width, b"\0")
        stored = (tile[at : at + layout.HASH_SIZE] for at in range(0, len(tile), layout.HASH_SIZE))
        return [hash_ if is_stand_in(entry) else leaf_hash(entry) for entry, hash_ in zip(entries, stored, strict=False)]

    def _hashes(self, n: int, width: int) -> list[bytes] | None:
        entries = self.bundle(n, width)
        return None if entries is None else self.hashes(n, width, entries)

    def _report_tiles(self, names: list[str]) -> None:
        for name in names[:MAX_NAMED]:
            self.report("TILE", name, "the tile does not hold the hashes of the signed tree")

    def _compare_upper(self, roots: list[bytes], size: int) -> None:
        wrong = []
        for name, expected in tiles.upper_tiles(roots[: size // layout.TILE_WIDTH]):
            data = self.read(name)
            if data is not None and data != expected:
                wrong.append(name)
        self._report_tiles(wrong)

    def _blame(self, given: list[bytes | None], stored: list[bytes | None], checkpoint: Checkpoint) -> None:
        """Names the files at fault when the entries do not give the root: the tiles, if they do, tell which."""
        known = [root for root in stored if root is not None]
        if len(known) < len(stored):
            n = stored.index(None)
            name = layout.tile_path(0, n, layout.width_of(n, checkpoint.size))
            self.report("ROOT", name, "neither the entries nor the tiles give the signed root")
            return
        if root_of_hashes(known) == checkpoint.root:
            self._compare_upper(known, checkpoint.size)
        else:
            self.report("ROOT", layout.CHECKPOINT, "neither the entries nor the tiles give the signed root")
        differing = (n for n, (a, b) in enumerate(zip(given, stored, strict=True)) if a is not None and a != b)
        for n in islice(differing, MAX_NAMED):
            self._blame_bundle(n, layout.width_of(n, checkpoint.size))

    def _blame_bundle(self, n: int, width: int) -> None:
        hashes, tile = self._hashes(n, width), self.read(layout.tile_path(0, n, width))
        if hashes is None or tile is None:
            return
        for place, hash_ in enumerate(hashes):
            if tile[place * layout.HASH_SIZE : (place + 1) * layout.HASH_SIZE] != hash_:
                seq = n * layout.TILE_WIDTH + place
                sentence = f"leaf {seq} was changed: it does not hash to its place in the tree"
                self.report("LEAF", layout.bundle_path(n, width, self.retained), sentence)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves under a signed root, read from their bundles anew at every use.

    Attributes:
        export: the directory.
        roots: the root of every tile of 256 leaves, and of the partial one at the end.
        size: number of leaves.
    """

    export: Export
    roots: list[bytes]
    size: int

    def __iter__(self) -> Iterator[bytes]:
        """Yields the leaves in order.

        Raises:
            ExportChanged: a bundle is no longer what was authenticated.
        """
        for n in range(len(self.roots)):
            yield from self._tile(n)

    def hashes(self, first: int, end: int) -> Iterator[bytes]:
        """Yields the leaf hashes from one position up to another.

        Raises:
            ExportChanged: a bundle is no longer what was authenticated.
        """
        for n in range(first // layout.TILE_WIDTH, -(-end // layout.TILE_WIDTH)):
            start = n * layout.TILE_WIDTH
            yield from self._hashes(n)[max(0, first - start) : end - start]

    def root_at(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves.

        Raises:
            ExportChanged: a bundle is no longer what was authenticated.
        """
        whole, rest = divmod(size, layout.TILE_WIDTH)
        roots = self.roots[:whole]
        if rest:
            roots.append(root_of_hashes(self._hashes(whole)[:rest]))
        return root_of_hashes(roots)

    @property
    def retained(self) -> int:
        """Position below which an entry may be a stand-in."""
        return self.export.retained * layout.TILE_WIDTH

    def _tile(self, n: int) -> list[bytes]:
        return self._read(n)[0]

    def _hashes(self, n: int) -> list[bytes]:
        return self._read(n)[1]

    def _read(self, n: int) -> tuple[list[bytes], list[bytes]]:
        """Entries and leaf hashes of a bundle."""
        width = layout.width_of(n, self.size)
        entries = self.export.bundle(n, width)
        hashes = [] if entries is None else self.export.hashes(n, width, entries)
        if entries is None or root_of_hashes(hashes) != self.roots[n]:
            name = layout.bundle_path(n, width, self.export.retained)
            raise ExportChanged("CHANGED", f"{name} changed while it was audited; audit a copy that nobody writes")
        return entries, hashes


def _claimed(data: bytes, keys: list[str]) -> Checkpoint | None:
    """What a note claims that none of these keys signed, if one of them is named like the log it claims."""
    try:
        found = peek_checkpoint(data)
    except NoteError:
        return None
    named = {(key.name, key.kind) for key in map(parse_verifier_key, keys)}
    return found if (found.origin, SIGNATURE_ED25519) in named else None


def _root_of_tile(data: bytes | None, width: int) -> bytes | None:
    if data is None or len(data) != layout.HASH_SIZE * width:
        return None
    return root_of_hashes([data[at : at + layout.HASH_SIZE] for at in range(0, len(data), layout.HASH_SIZE)])
