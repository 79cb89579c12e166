"""From a directory to authenticated leaves: which files are there, and do they hash to the signed root."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from ledger import layout, tiles
from ledger.errors import NoteError, ProofError
from ledger.merkle import leaf_hash, root_of_hashes
from ledger.note import Checkpoint, Note, checkpoint_text, open_note, parse_checkpoint

MAX_NAMED: Final = 50
"""Missing or unknown files are named up to this many of each."""

Report = Callable[[str, str, str], None]


@dataclass(slots=True)
class Export:
    """A directory under audit.

    Attributes:
        base: the directory.
        report: takes (code, where, sentence) of everything wrong.
        names: names of the regular files found.
    """

    base: Path
    report: Report
    names: set[str] = field(default_factory=set)

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

    def checkpoint(self, keys: list[str]) -> tuple[Note, Checkpoint] | None:
        """Returns the checkpoint, verified under the pinned keys."""
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
            self.report(error.code, layout.CHECKPOINT, error.sentence)
            return None
        return note, found

    def check_names(self, size: int) -> bool:
        """Compares the files found with the files an export of this size has; False when it is hopeless to read on."""
        needed = sum(-(-size // layout.TILE_WIDTH ** (level + 1)) for level in range(layout.level_count(size)))
        if needed > len(self.names) + 1000:
            missing = next(name for name in layout.file_paths(size) if name not in self.names)
            self.report("MISSING_FILE", missing, f"the checkpoint signs {size} leaves; most of their files are missing")
            return False
        expected = set(layout.file_paths(size))
        for name in islice(sorted(expected - self.names), MAX_NAMED):
            self.report("MISSING_FILE", name, f"the checkpoint signs {size} leaves, which need this file")
        for name in islice(sorted(self.names - expected), MAX_NAMED):
            self.report("UNKNOWN_FILE", ascii(name)[1:-1], "this file is no part of an export of the signed size")
        return True

    def leaves(self, checkpoint: Checkpoint) -> list[bytes] | None:
        """Returns all leaves if they hash to the signed root, or None after naming the files that do not fit.

        Guarantee:
            The leaves returned are exactly those under the signed root, and every hash tile has been compared with the
            tile that they give.
        """
        entries = self._entries(checkpoint.size)
        if None not in entries:
            whole = [entry for entry in entries if entry is not None]
            hashes = [leaf_hash(entry) for entry in whole]
            if root_of_hashes(hashes) == checkpoint.root:
                self._compare_tiles(hashes)
                return whole
        self._blame(entries, checkpoint)
        return None

    def _entries(self, size: int) -> list[bytes | None]:
        entries: list[bytes | None] = []
        for n, width in layout.tile_widths(size):
            name = layout.entries_path(n, width)
            data = self.read(name)
            try:
                entries.extend([None] * width if data is None else tiles.split_bundle(data, width))
            except ProofError as error:
                self.report("BUNDLE", name, error.sentence)
                entries.extend([None] * width)
        return entries

    def _compare_tiles(self, hashes: list[bytes]) -> None:
        for name, expected in tiles.hash_tiles(hashes):
            data = self.read(name)
            if data is not None and data != expected:
                self.report("TILE", name, "the tile does not hold the hashes of the signed tree")

    def _blame(self, entries: list[bytes | None], checkpoint: Checkpoint) -> None:
        """Names the files at fault when the entries do not give the root: the tiles, if they do, tell which."""
        stored: list[bytes] = []
        for n, width in layout.tile_widths(checkpoint.size):
            data = self.read(layout.tile_path(0, n, width))
            if data is None or len(data) != layout.HASH_SIZE * width:
                name = layout.tile_path(0, n, width)
                self.report("ROOT", name, "neither the entries nor the tiles give the signed root")
                return
            stored.extend(data[at : at + layout.HASH_SIZE] for at in range(0, len(data), layout.HASH_SIZE))
        trusted = root_of_hashes(stored) == checkpoint.root
        if trusted:
            self._compare_tiles(stored)
        else:
            self.report("ROOT", layout.CHECKPOINT, "neither the entries nor the tiles give the signed root")
        for seq, (entry, expected) in enumerate(zip(entries, stored, strict=True)):
            if entry is not None and leaf_hash(entry) != expected:
                n = seq // layout.TILE_WIDTH
                width = min(layout.TILE_WIDTH, checkpoint.size - n * layout.TILE_WIDTH)
                name = layout.entries_path(n, width)
                self.report("LEAF", name, f"leaf {seq} was changed: it does not hash to its place in the tree")
