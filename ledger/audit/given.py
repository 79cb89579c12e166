"""Reads an export that was given: its files, the leaves that hash to the signed root, and what these mean when replayed.

An export is read twice, a file at a time: `Export.leaves` folds every entry bundle to the root of its tile and holds only
these, so that memory does not grow with the leaves; iterating over what it returns reads the bundles again for their meaning,
and folds each again, since the directory may lie where others write.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from pathlib import Path
from typing import Final

from attest.files import read_regular
from ledger import layout, tiles
from ledger.audit.findings import AuditReport, Report
from ledger.errors import ExportChanged, LeafRefused, NoteError, ProofError
from ledger.leaves import Header, Leaf, Previous, decode_leaf, read_header
from ledger.merkle import Frontier, leaf_hash
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
from ledger.retention import RetainedReplay, is_stand_in, named_by_withdrawals
from ledger.tiles import KeptNodes, Subtree, Subtrees, root_over


class TileRoots:
    """Builds the tree over the roots of tiles, as entries or hashes give it; `missing` is the first tile that could not be
    read."""

    def __init__(self) -> None:
        self.roots = Subtrees()
        self.missing: int | None = None

    def add(self, n: int, pieces: list[Subtree] | None) -> None:
        """Adds a tile by the subtrees that begin in it."""
        if pieces is not None and (pieces or self.roots.size > n):
            tiles.add_tile(self.roots, n, pieces)
        elif self.roots.size <= n:
            self.missing = n if self.missing is None else self.missing
            self.roots.append(bytes(layout.HASH_SIZE))

    def root(self) -> bytes | None:
        """Returns the root of all, where no tile is missing."""
        return None if self.missing is not None else self.roots.root(self.roots.size)


def check_keys(keys: list[str], report: Report) -> bool:
    """Tells whether there are keys to hold an export against, each in form; reports what is wrong with them."""
    if not keys:
        report("KEYS", "keys", "no verifier key was given; get the log's key from a trusted place")
    for key in keys:
        try:
            parse_verifier_key(key)
        except NoteError as error:
            report(error.code, "keys", error.sentence)
            return False
    return bool(keys)


MAX_NAMED: Final = 50
"""Missing, unknown or wrong files are named up to this many of each."""


@dataclass(slots=True)
class Export:
    """Reads a directory under audit.

    Attributes:
        retained: how many bundles, from the first on, are those of a pruned ledger (`ledger.layout`).
        nodes: what stands for leaf hashes that are gone, None where all are there.
        size: the signed size, 0 until it is known.
        terms: how many common terms of attestations its files hold, as their names say (`ledger.layout`).
    """

    base: Path
    report: Report
    names: set[str] = field(default_factory=set)
    retained: int = 0
    nodes: KeptNodes | None = None
    size: int = 0
    terms: int = 0
    attested: bool = False

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
                    self.report("NOT_A_FILE", ascii(name)[1:-1], "an export has regular files only: no links, no devices")
        return True

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file, or None after reporting why not. The name is computed, never read."""
        if name not in self.names:
            return None
        limit = layout.max_file_size(name, self.size)
        try:
            data = read_regular(self.base / name, limit)
        except OSError as error:
            self.report("UNREADABLE", name, f"cannot be read: {error.strerror or error}")
            return None
        if data is None:
            self.report("NOT_A_FILE", name, "an export has regular files only")
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
        self.size, widths = size, layout.tile_widths(size)
        self.retained = sum(1 for _ in takewhile(lambda tile: layout.retained_path(*tile) in self.names, widths))
        if layout.RETAINED_NODES in self.names and not self._read_nodes():
            return False
        expected = set(layout.file_paths(size, self.retained, self._has_tile()))
        for name in islice(sorted(expected - self.names), MAX_NAMED):
            self.report("MISSING_FILE", name, f"the checkpoint signs {size} leaves, which need this file")
        self.terms = layout.count_terms(self.names)
        beside = range(-(-size // layout.TILE_WIDTH))
        attestations = self.names.intersection(layout.attestation_paths(size, self.terms, beside))
        self.attested = bool(attestations)
        for name in islice(sorted(self.names - expected - attestations - {layout.REGISTRY}), MAX_NAMED):
            self.report("UNKNOWN_FILE", ascii(name)[1:-1], "this file is no part of an export of the signed size")
        return True

    def leaves(self, checkpoint: Checkpoint) -> "Leaves | None":
        """Returns the leaves if they hash to the signed root, or None after naming the files that do not fit.

        Guarantee: The leaves returned are exactly those under the signed root, but for stand-ins, for which a hash or the root
        of a subtree of stand-ins is; and every hash tile and kept node has been compared with what they give.
        """
        given = TileRoots()
        unlike: list[int] = []
        for n, width in layout.tile_widths(checkpoint.size):
            of_entries = self._of_entries(n, width)
            given.add(n, of_entries)
            if of_entries is not None and self._is_unlike(n, width, of_entries):
                unlike.append(n)
        if given.root() == checkpoint.root:
            self._report_tiles([self._hashes_name(n, checkpoint.size) for n in unlike])
            self._compare_upper(given.roots, checkpoint.size)
            return Leaves(self, given.roots, checkpoint.size)
        self._blame(given, unlike, checkpoint)
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

    def _read_nodes(self) -> bool:
        """Reads what stands for leaf hashes that are gone; False after reporting what is wrong with it."""
        data = self.read(layout.RETAINED_NODES)
        if data is None:
            return False
        try:
            self.nodes = KeptNodes(data, self.size)
        except ProofError as error:
            self.report(error.code, layout.RETAINED_NODES, error.sentence)
            return False
        return True

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

    def pieces(self, n: int, width: int, entries: list[bytes]) -> list[Subtree] | None:
        """Returns what a bundle gives of the tree: the subtrees that begin in it, or None after reporting why not.

        Most are leaf hashes. Of a stand-in it is the tile's, zeros where it has none; where the tile is gone, the kept node's.
        """
        start = n * layout.TILE_WIDTH
        if self.nodes is not None and not self.nodes.has_tile(0, n):
            kept = self.nodes.in_tile(n)
            single = {node.first for node in kept if not node.level}
            for seq, entry in enumerate(entries, start):
                if seq not in single and not is_stand_in(entry):
                    sentence = f"a subtree stands for leaf {seq}, which is there, and which nothing would show to be signed"
                    self.report("NODES", layout.RETAINED_NODES, sentence)
                    return None
            told = {seq: leaf_hash(entry) for seq, entry in enumerate(entries, start) if not is_stand_in(entry)}
            return [Subtree(node.first, node.level, told.get(node.first, node.hash)) for node in kept]
        if n >= self.retained or not any(map(is_stand_in, entries)):
            return [Subtree(seq, 0, leaf_hash(entry)) for seq, entry in enumerate(entries, start)]
        tile = (self.read(layout.tile_path(0, n, width)) or b"").ljust(layout.HASH_SIZE * width, b"\0")
        return [
            Subtree(seq, 0, hash_ if is_stand_in(entry) else leaf_hash(entry))
            for seq, (entry, hash_) in enumerate(zip(entries, _split(tile), strict=False), start)
        ]

    def _of_entries(self, n: int, width: int) -> list[Subtree] | None:
        entries = self.bundle(n, width)
        return None if entries is None else self.pieces(n, width, entries)

    def _of_tile(self, n: int, width: int) -> list[Subtree] | None:
        if self.nodes is not None and not self.nodes.has_tile(0, n):
            return self.nodes.in_tile(n)
        tile = self.read(layout.tile_path(0, n, width))
        if tile is None or len(tile) != layout.HASH_SIZE * width:
            return None
        return [Subtree(seq, 0, hash_) for seq, hash_ in enumerate(_split(tile), n * layout.TILE_WIDTH)]

    def _is_unlike(self, n: int, width: int, pieces: list[Subtree]) -> bool:
        """Tells whether the stored hashes of a tile of level 0, as far as they can be read, are not those that its entries
        give."""
        if self.nodes is not None and not self.nodes.has_tile(0, n):
            return pieces != self.nodes.in_tile(n)
        tile = self.read(layout.tile_path(0, n, width))
        return tile is not None and tile != b"".join(piece.hash for piece in pieces)

    def _hashes_name(self, n: int, size: int) -> str:
        """Returns the file that has the hashes of a tile of level 0."""
        if self.nodes is not None and not self.nodes.has_tile(0, n):
            return layout.RETAINED_NODES
        return layout.tile_path(0, n, layout.width_of(n, size))

    def _has_tile(self) -> layout.HasTile | None:
        return None if self.nodes is None else self.nodes.has_tile

    def _report_tiles(self, names: list[str]) -> None:
        for name in dict.fromkeys(names[:MAX_NAMED]):
            self.report("TILE", name, "it does not hold the hashes of the signed tree")

    def _compare_upper(self, roots: Subtrees, size: int) -> None:
        wrong = []
        for name, expected in tiles.upper_tiles(roots, size, self._has_tile()):
            data = self.read(name)
            if data is not None and data != expected:
                wrong.append(name)
        self._report_tiles(wrong)

    def _blame(self, given: TileRoots, unlike: list[int], checkpoint: Checkpoint) -> None:
        """Names the files at fault when the entries do not give the root: the tiles, if they do, tell which."""
        stored = TileRoots()
        for n, width in layout.tile_widths(checkpoint.size):
            stored.add(n, self._of_tile(n, width))
        sentence = "neither the entries nor the tiles give the signed root"
        if stored.missing is not None:
            self.report("ROOT", self._hashes_name(stored.missing, checkpoint.size), sentence)
            return
        if stored.root() == checkpoint.root:
            self._compare_upper(stored.roots, checkpoint.size)
        elif self.nodes is not None and not unlike and given.missing is None:
            self.report("ROOT", layout.RETAINED_NODES, "with the kept nodes, entries and tiles do not give the signed root")
        else:
            self.report("ROOT", layout.CHECKPOINT, sentence)
        for n in unlike[:MAX_NAMED]:
            self._blame_bundle(n, layout.width_of(n, checkpoint.size))

    def _blame_bundle(self, n: int, width: int) -> None:
        for found, expected in zip(self._of_entries(n, width) or (), self._of_tile(n, width) or (), strict=False):
            if found != expected:
                sentence = f"leaf {found.first} was changed: it does not hash to its place in the tree"
                self.report("LEAF", layout.bundle_path(n, width, self.retained), sentence)


@dataclass(frozen=True, slots=True)
class Leaves:
    """The leaves under a signed root, read from their bundles anew at every use."""

    export: Export
    roots: Subtrees
    size: int

    def __iter__(self) -> Iterator[bytes]:
        """Yields the leaves in order. Raises ExportChanged: a bundle is no longer what was authenticated."""
        for n in range(self.roots.size):
            yield from self.tile(n)

    def between(self, first: int, end: int) -> Iterator[Subtree]:
        """Yields subtrees that tile the leaves from one position up to another (`ledger.tiles.Pieces`). Raises ExportChanged: a
        bundle is no longer what was authenticated; ProofError: code HASHES_GONE if a kept node reaches beyond one of the two.
        """
        if self.export.nodes is not None:
            self.export.nodes.refuse_inside(first)
            self.export.nodes.refuse_inside(end)
        while first < end:
            n, within = divmod(first, layout.TILE_WIDTH)
            whole = None if within or end - first < layout.TILE_WIDTH else self._whole(n)
            if whole is not None:
                yield whole
                first = whole.end
                continue
            for piece in self._read(n)[1]:
                if first <= piece.first < end:
                    yield piece
            first = min(end, (n + 1) * layout.TILE_WIDTH)

    def root_at(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves. Raises ExportChanged: a bundle is no longer what was authenticated;
        ProofError: code HASHES_GONE where a kept node reaches beyond that size."""
        return root_over(self.between(0, size))

    def tile(self, n: int) -> list[bytes]:
        """Returns the entries of a bundle. Raises ExportChanged: it is no longer what was authenticated."""
        return self._read(n)[0]

    @property
    def retained(self) -> int:
        """Returns the position below which an entry may be a stand-in."""
        return self.export.retained * layout.TILE_WIDTH

    def _whole(self, n: int) -> Subtree:
        """Returns the subtree that begins with a full tile: that tile, or a kept one over several."""
        node = None if self.export.nodes is None else self.export.nodes.around(n * layout.TILE_WIDTH)
        level = layout.TILE_HEIGHT if node is None else max(layout.TILE_HEIGHT, node.level)
        (root,) = self.roots.between(n, n + (1 << level - layout.TILE_HEIGHT))
        return Subtree(n * layout.TILE_WIDTH, level, root.hash)

    def _read(self, n: int) -> tuple[list[bytes], list[Subtree]]:
        """Returns entries of a bundle, and the subtrees that begin in it."""
        width = layout.width_of(n, self.size)
        entries = self.export.bundle(n, width)
        pieces = None if entries is None else self.export.pieces(n, width, entries)
        if entries is None or pieces is None or not self._same(n, pieces):
            name = layout.bundle_path(n, width, self.export.retained)
            raise ExportChanged("CHANGED", f"{name} changed while it was audited; audit a copy that nobody writes")
        return entries, pieces

    def _same(self, n: int, pieces: list[Subtree]) -> bool:
        """Tells whether a tile has the root that it had; inside a kept subtree of several there is none."""
        if not pieces or pieces[0].level > layout.TILE_HEIGHT:
            return True
        again = Subtrees()
        tiles.add_tile(again, 0, pieces)
        return again.node(0, 0) == self.roots.node(0, n)


def _claimed(data: bytes, keys: list[str]) -> Checkpoint | None:
    """Returns what a note claims that none of these keys signed, if one of them is named like the log it claims."""
    try:
        found = peek_checkpoint(data)
    except NoteError:
        return None
    named = {(key.name, key.kind) for key in map(parse_verifier_key, keys)}
    return found if (found.origin, SIGNATURE_ED25519) in named else None


def _split(tile: bytes) -> Iterator[bytes]:
    return (tile[at : at + layout.HASH_SIZE] for at in range(0, len(tile), layout.HASH_SIZE))


KEPT_TILES: Final = 64
"""Bundles of which the leaf hashes are kept: some megabytes."""


class Roots:
    """Computes roots by size; each costs what lies in the last tile, whatever lies before it."""

    def __init__(self, leaves: Leaves) -> None:
        """Takes authenticated leaves."""
        self._leaves = leaves
        self._tiles = [Frontier()]  # over the first tiles: none, one, two ...
        self._hashes = lru_cache(KEPT_TILES)(self._of_tile)

    def at(self, size: int) -> bytes:
        """Returns the root over the first ``size`` leaves. Raises ExportChanged, ProofError: as `Leaves.root_at`."""
        if self._leaves.export.nodes is not None:  # some tiles are in one kept node together
            return self._leaves.root_at(size)
        whole, rest = divmod(size, layout.TILE_WIDTH)
        while len(self._tiles) <= whole:
            frontier = self._tiles[-1].copy()
            first = frontier.size
            for piece in self._leaves.between(first, first + layout.TILE_WIDTH):
                frontier.append(piece.hash, piece.level)
            self._tiles.append(frontier)
        found = self._tiles[whole].copy()
        if rest:
            found.extend(self._hashes(whole)[:rest])
        return found.root()

    def _of_tile(self, n: int) -> list[bytes]:
        """Returns leaf hashes of a tile, asked for in halves: a whole one is told by its root alone."""
        first, half = n * layout.TILE_WIDTH, layout.TILE_WIDTH // 2
        edges = [min(place, self._leaves.size) for place in (first, first + half, first + 2 * half)]
        return [piece.hash for low, high in pairwise(edges) for piece in self._leaves.between(low, high)]


def begin(leaves: Leaves, *, recompute: bool = True) -> RetainedReplay:
    """Returns a replay behind leaf 0 of these.

    Recorded epsilons are computed again unless an audit did that before. Raises LeafRefused: code HEADER, the first leaf is
    none; or a WITHDRAW leaf cannot be read.
    """
    header = read_header(leaves)
    names = named_by_withdrawals(leaves) if leaves.retained else {}
    run = RetainedReplay(header, Roots(leaves).at, recompute=recompute, names=names)
    run.tally.pieces = leaves.between
    return run


def lookup(leaves: Leaves) -> Callable[[int], Leaf | None]:
    """Returns a function that gives the leaf at a position, None where its body was pruned; it holds one bundle. What it
    returns raises LeafRefused, ExportChanged: the leaf cannot be read."""
    held: dict[int, list[bytes]] = {}

    def at(seq: int) -> Leaf | None:
        n, within = divmod(seq, layout.TILE_WIDTH)
        if n not in held:
            held.clear()
            held[n] = leaves.tile(n)
        data = held[n][within]
        return None if seq < leaves.retained and is_stand_in(data) else decode_leaf(data)

    return at


def follow(run: RetainedReplay, leaves: Leaves, end: int | None = None) -> Iterator[tuple[Leaf, list[LeafRefused]]]:
    """Applies the leaves behind those that the run has seen, up to `end`; yields each, or what means it where it was pruned,
    with what contradicts the leaves before it. Raises LeafRefused: a leaf cannot be read, so that nothing behind it can be
    judged; ExportChanged, ProofError: roots cannot be made."""
    for data in islice(leaves, run.size, end):
        if run.size < leaves.retained and is_stand_in(data):
            yield run.stand_in(data)
        else:
            leaf = decode_leaf(data)
            yield leaf, run.apply(leaf)


@dataclass(frozen=True, slots=True)
class Given:
    """Holds an export that was given: its leaves under the root that it claims, and the SHA-256 of leaf 0, by which a ledger is
    known."""

    path: Path
    leaves: Leaves
    header: Header
    digest: bytes

    @property
    def origin(self) -> str:
        """Returns the origin of the ledger."""
        return self.header.origin

    @property
    def previous(self) -> tuple[Previous, ...]:
        """Returns what it counts."""
        return self.header.previous

    @property
    def gone(self) -> int:
        """Counts its leaves that have lost their bodies."""
        return sum(map(is_stand_in, islice(self.leaves, self.leaves.retained)))

    def require(self, report: AuditReport) -> None:
        """Holds the leaves against those of which an audit said that they are signed: others may write there. Raises
        ExportChanged: code CHANGED, they are others."""
        require_audited(self.path, self.leaves, report)

    def run(self, end: int | None = None) -> RetainedReplay:
        """Returns the run over its first leaves, up to `end`. They were verified before, so recorded epsilons are not computed
        again."""
        run = begin(self.leaves, recompute=False)
        deque(follow(run, self.leaves, end), maxlen=0)
        return run


def read_leaves(path: Path) -> tuple[Leaves, bytes]:
    """Reads the leaves of an export under the root that it claims, and leaf 0; who signed that root is for the audit. Raises
    LeafRefused: code EARLIER, it is no whole export."""
    faults: list[str] = []
    export = Export(path, lambda code, where, sentence: faults.append(f"{where}: {sentence}"))
    data = export.read(layout.CHECKPOINT) if export.scan() else None
    try:
        checkpoint = None if data is None else peek_checkpoint(data)
    except NoteError as error:
        raise LeafRefused("EARLIER", f"{path} is no whole export: {layout.CHECKPOINT}: {error.sentence}") from error
    leaves = export.leaves(checkpoint) if checkpoint is not None and export.check_names(checkpoint.size) else None
    first = None if leaves is None else next(iter(leaves), None)
    if leaves is None or first is None:
        raise LeafRefused("EARLIER", f"{path} is no whole export: {faults[0] if faults else 'it has no leaf'}")
    return leaves, first


def require_audited(path: Path, leaves: Leaves, report: AuditReport) -> None:
    """Holds leaves against those of which an audit said that they are signed: others may write there. Raises ExportChanged:
    code CHANGED, they are others."""
    if (report.size, report.root_hex) != (leaves.size, leaves.root_at(leaves.size).hex()):
        raise ExportChanged("CHANGED", f"{path} changed while it was audited; audit a copy that nobody writes")


def read_export(path: Path) -> Given:
    """Reads an export of a run under the root that it claims. Raises LeafRefused: as `read_leaves`, or code HEADER, its first
    leaf is no header."""
    leaves, first = read_leaves(path)
    return Given(path, leaves, read_header(leaves), hashlib.sha256(first).digest())
