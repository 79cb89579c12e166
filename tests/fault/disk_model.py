"""What may be on a disk after the power fails, worked out from a trace of a writer's calls.

A write is on the disk for certain once its file is synced, a name (made, moved or removed) once its directory is. Before
that each may have reached it or not, by itself and in any order, as POSIX leaves it. Memory maps are not traced: the file
that SQLite maps (``-shm``) holds nothing that must last, and is left out.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

OPTIONS: Final = (
    "-y",
    "-xx",
    "-s",
    "1000000",
    "-e",
    "trace=openat,mkdir,pwrite64,write,ftruncate,fsync,fdatasync,rename,unlink,sendto",
)
"""What strace must be told so that its output can be read here."""

LEFT_OUT: Final = ("-shm", ".lock")

_LINE: Final = re.compile(r"^(\w+)\((.*)\) += (\d+)")
_HEX: Final = re.compile(r"\\x([0-9a-f]{2})")

Write = tuple[int, bytes]
"""Where, and what; a file cut short is a write of None at its new end."""


@dataclass(slots=True)
class File:
    """One file, whatever it is called: what is safe, and what was written since."""

    safe: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)

    def content(self, reached: Iterator[bool]) -> bytes:
        """What is there if of the writes since the last sync just those are that ``reached`` says."""
        data = bytearray(self.safe)
        for offset, written in self.since:
            if not next(reached):
                continue
            if written is None:
                del data[offset:]
            else:
                data.extend(bytes(max(0, offset - len(data))))
                data[offset : offset + len(written)] = written
        return bytes(data)

    def all(self) -> bytes:
        """What a running system reads."""
        return self.content(iter([True] * len(self.since)))


@dataclass(slots=True)
class Directory:
    """One directory: the names in it, and those that are safe."""

    names: "dict[str, File | Directory]" = field(default_factory=dict)
    safe: "dict[str, File | Directory]" = field(default_factory=dict)

    def contents(self, names: "dict[str, File | Directory]", share: float, rng: random.Random) -> Iterator[tuple[str, bytes]]:
        """What is there under these names; a directory ends in a slash. Each thing not synced reached the disk by chance."""
        for name, found in names.items():
            if isinstance(found, File):
                yield name, found.content(iter(lambda: rng.random() < share, None))
            else:
                yield f"{name}/", b""
                below = found.names if rng.random() < share else found.safe
                yield from ((f"{name}/{rest}", data) for rest, data in found.contents(below, share, rng))


class Disk:
    """The directory of a ledger while a writer runs, and what is below it."""

    def __init__(self, start: Path) -> None:
        """Begins with what is in a directory, all of it safe."""
        files = {path.name: File(path.read_bytes()) for path in start.iterdir() if not _left_out(path.name)}
        self._root = Directory(dict(files), dict(files))

    def take(self, line: str, directory: Path, *, lying: bool = False) -> tuple[str, str] | None:
        """Does what a line of the trace did.

        Args:
            line: as strace writes it under `OPTIONS`.
            directory: where the writer's ledger was; other files do not matter.
            lying: a sync on this line was reported and not done.

        Returns:
            The call and the name of its file, or ``sendto`` and the report; None if it does not matter.
        """
        match = _LINE.match(line)
        if match is None:
            return None
        call, arguments = match[1], match[2].split(", ")
        if call == "sendto":
            return call, _text(arguments[1]).decode()
        path = Path(_text(arguments[1] if call == "openat" else arguments[0]).decode(errors="replace"))
        if not path.is_relative_to(directory) or _left_out(path.name):
            return None
        parts = path.relative_to(directory).parts
        if call in ("fsync", "fdatasync"):
            if not lying:
                _sync(self._find(parts))
        elif call == "rename":
            target = Path(_text(arguments[1]).decode()).relative_to(directory).parts
            self._names(target)[target[-1]] = self._names(parts).pop(parts[-1])
        elif parts:
            self._do(call, parts, arguments)
        return call, "/".join(parts) or "."

    def _find(self, parts: tuple[str, ...]) -> "File | Directory":
        found: File | Directory = self._root
        for part in parts:
            assert isinstance(found, Directory)
            found = found.names[part]
        return found

    def _names(self, parts: tuple[str, ...]) -> "dict[str, File | Directory]":
        above = self._find(parts[:-1])
        assert isinstance(above, Directory)
        return above.names

    def _do(self, call: str, parts: tuple[str, ...], arguments: list[str]) -> None:
        if call == "openat":
            if "O_CREAT" in arguments[2]:
                self._names(parts).setdefault(parts[-1], File())
        elif call == "mkdir":
            self._names(parts)[parts[-1]] = Directory()
        elif call == "unlink":
            del self._names(parts)[parts[-1]]
        else:
            file = self._find(parts)
            assert isinstance(file, File)
            if call == "ftruncate":
                file.since.append((int(arguments[1]), None))
            else:
                offset = int(arguments[3]) if call == "pwrite64" else len(file.all())
                file.since.append((offset, _text(arguments[1])))

    def states(self, seed: int) -> Iterator[dict[str, bytes]]:
        """What may be there if the power fails now: the extremes, and chance between them."""
        rng = random.Random(seed)
        for names in (self._root.safe, self._root.names):
            for share in (0.0, 0.5, 0.8):
                yield dict(self._root.contents(names, share, rng))


def _sync(found: File | Directory) -> None:
    if isinstance(found, File):
        found.safe, found.since = found.all(), []
    else:
        found.safe = dict(found.names)


def _text(argument: str) -> bytes:
    """The bytes of a string argument, or of the path that ``-y`` shows behind a descriptor."""
    return bytes(int(pair, 16) for pair in _HEX.findall(argument))


def _left_out(name: str) -> bool:
    return name.endswith(LEFT_OUT)
