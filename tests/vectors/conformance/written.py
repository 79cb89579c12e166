"""Small exports as values: read from a directory, taken apart, changed, and signed again with the ledger's own key."""

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ledger import layout, tiles
from ledger.leaves import Leaf, decode_leaf, encode_leaf
from ledger.merkle import leaf_hash, root
from ledger.note import NoteSigner, checkpoint_text, sign_note
from tests.worlds.ledgers import SIGNER

Files = dict[str, bytes]
"""Files of an export by their path in it."""


def read(directory: Path) -> Files:
    """Returns all files below a directory."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(paths)}


def put(files: Files, directory: Path) -> Path:
    """Writes files below a new directory, and returns it."""
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


def text_of(files: Files) -> dict[str, str]:
    """Returns files as a vector has them, in base64."""
    return {name: base64.b64encode(data).decode("ascii") for name, data in sorted(files.items())}


def bytes_of(files: dict[str, str]) -> Files:
    """Returns the files of a vector."""
    return {name: base64.b64decode(text, validate=True) for name, text in files.items()}


FileChange = str | dict[str, Any] | None
"""New contents of a file in base64, what is put in the place of some of its bytes, or null for a file that goes."""


def changes(files: Files, base: Files) -> dict[str, FileChange]:
    """Returns what has to be done to the files of a base to get others."""
    told: dict[str, FileChange] = {
        name: _change(data, base.get(name)) for name, data in files.items() if base.get(name) != data
    }
    told.update((name, None) for name in base if name not in files)
    return dict(sorted(told.items()))


def _change(data: bytes, before: bytes | None) -> FileChange:
    whole = base64.b64encode(data).decode("ascii")
    if before is None:
        return whole
    start = _alike(data, before)
    tail, old = data[start:], before[start:]
    end = _alike(tail[::-1], old[::-1])
    put = base64.b64encode(tail[: len(tail) - end]).decode("ascii")
    return {"at": start, "cut": len(old) - end, "put": put} if len(put) + 40 < len(whole) else whole


def _alike(one: bytes, other: bytes) -> int:
    """Returns with how many equal bytes both begin."""
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))


def changed(base: Files, told: dict[str, FileChange]) -> Files:
    """Returns the files of a base after `changes`."""
    files = {name: data for name, data in base.items() if name not in told}
    for name, change in told.items():
        if isinstance(change, dict):
            at, cut = change["at"], change["cut"]
            files[name] = base[name][:at] + base64.b64decode(change["put"], validate=True) + base[name][at + cut :]
        elif change is not None:
            files[name] = base64.b64decode(change, validate=True)
    return files


@dataclass(frozen=True)
class Pieces:
    """An export of fewer than 256 leaves, none of them pruned, taken apart.

    Attributes:
        bodies: the leaves.
        entries: what stands beside each of its attestation; empty for nothing.
        others: all files that do not depend on the leaves.
        signer: the key that signs the checkpoint.
        lines: signature lines that follow, made from the checkpoint.
    """

    bodies: list[bytes]
    entries: list[bytes]
    others: Files
    signer: NoteSigner = SIGNER
    lines: Callable[[bytes], bytes] = field(default=lambda note: note)

    @classmethod
    def of(cls, files: Files) -> "Pieces":
        """Takes an export apart."""
        (bundle,) = (data for name, data in files.items() if name.startswith("tile/entries/"))
        bodies = tiles.split_bundle(bundle, None)
        beside = [data for name, data in files.items() if name.startswith(layout.SIGNED)]
        entries = tiles.split_bundle(beside[0], len(bodies)) if beside else [b""] * len(bodies)
        apart = (layout.CHECKPOINT, "tile/", layout.SIGNED)
        return cls(bodies, entries, {name: data for name, data in files.items() if not name.startswith(apart)})

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves, read."""
        return [decode_leaf(body) for body in self.bodies]

    def files(self) -> Files:
        """Puts it together again under a checkpoint of its own."""
        size = len(self.bodies)
        note = self.lines(sign_note(checkpoint_text(SIGNER.name, size, root(self.bodies)), self.signer))
        made = {
            layout.CHECKPOINT: note,
            layout.entries_path(0, size): tiles.entry_bundle(self.bodies),
            layout.tile_path(0, 0, size): b"".join(map(leaf_hash, self.bodies)),
        }
        if any(self.entries):
            made[layout.signed_path(0, size)] = tiles.entry_bundle(self.entries)
        return made | self.others

    def saying(self, seq: int, leaf: Leaf | bytes) -> "Pieces":
        """Lets one leaf say something else."""
        body = leaf if isinstance(leaf, bytes) else encode_leaf(leaf)
        return replace(self, bodies=[*self.bodies[:seq], body, *self.bodies[seq + 1 :]])

    def without(self, *places: int) -> "Pieces":
        """Leaves out some leaves; those behind move up."""
        kept = [place for place in range(len(self.bodies)) if place not in places]
        return replace(
            self._renumbered([self.leaves[place] for place in kept]), entries=[self.entries[place] for place in kept]
        )

    def inserted(self, seq: int, leaf: Leaf) -> "Pieces":
        """Puts a leaf before another one; those behind move down."""
        leaves, entries = self.leaves, list(self.entries)
        leaves.insert(seq, leaf)
        entries.insert(seq, b"")
        return replace(self._renumbered(leaves), entries=entries)

    def _renumbered(self, leaves: Iterable[Leaf]) -> "Pieces":
        numbered = [leaf if seq == 0 else replace(leaf, seq=seq) for seq, leaf in enumerate(leaves)]
        return replace(self, bodies=[encode_leaf(leaf) for leaf in numbered])
