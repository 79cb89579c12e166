"""Maps digests to numbers in bounded memory: what does not fit lies in a temporary file.

The gate remembers what it admitted, and finds the attestation of a file, through this map; so a corpus of any size is judged in
the memory of a small one.
"""

import hashlib
import os
import secrets
import tempfile
from array import array
from collections.abc import Callable
from typing import Any, NoReturn

from attest.errors import GateFailed

MEMORY_ENTRIES = 1 << 19
"""Entries kept in memory (24 bytes each, pages half full); beyond, the pages move to a temporary file."""

RECENT = 1 << 17
"""Entries that wait in a dictionary, at some 250 bytes each but without a digest of their own, before they enter the pages."""

_KEY = 16
_ENTRY = _KEY + 8
_PAGE_ENTRIES = 168
_PAGE = _ENTRY * _PAGE_ENTRIES
_FIRST_PAGES = 16


class DigestTable:
    """Maps byte strings to integers from 0 to 2^64 - 1.

    Guarantee: two different keys are confused with probability at most n^2 / 2^129 for n entries, whoever chose them: keys
    enter the pages through BLAKE2b under a secret of this table, so nobody can search for collisions or crowd a page. Memory
    stays below some 80 MB for any n; beyond `MEMORY_ENTRIES` it takes a system call or two per access. A table that could not
    be written in full answers nothing any more: it might call a key new that it was given.

    Args:
        memory_entries: Entries up to which nothing is written to disk.

    Raises:
        GateFailed: Code STORAGE, from every method, once the temporary file failed, or an interruption left it half written.
    """

    def __init__(self, memory_entries: int = MEMORY_ENTRIES, recent: int | None = None) -> None:
        self._secret = secrets.token_bytes(32)
        self._memory_entries = memory_entries
        self._most_recent = RECENT if recent is None else recent
        self._recent: dict[bytes, int] = {}
        self._count = 0
        self._fill = array("H", bytes(2 * _FIRST_PAGES))
        self._pages: bytearray | None = bytearray(_PAGE * _FIRST_PAGES)
        self._file = -1
        self._process = os.getpid()
        self._sound = True

    def __len__(self) -> int:
        return self._count + len(self._recent)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a DigestTable is not copied: two of them would write to one file")

    def get(self, key: bytes) -> int | None:
        """Returns the number kept for a key, None if there is none."""
        if not self._sound:
            _fail("was not written in full before")
        found = self._recent.get(key)
        if found is None and self._count:
            name = self._name(key)
            entry = self._find(self._page(name), name)
            return None if entry is None else entry[1]
        return found

    def set(self, key: bytes, value: int) -> None:
        """Keeps a number for a key, in place of an earlier one."""
        if not self._sound:
            _fail("was not written in full before")
        if self._count and key not in self._recent:
            name = self._name(key)
            page = self._page(name)
            entry = self._find(page, name)
            if entry is not None:
                self._sound = False
                self._write(page, entry[0], name + value.to_bytes(8, "big"))
                self._sound = True
                return
        self._remember(key, value)

    def setdefault(self, key: bytes, value: int) -> int | None:
        """Returns the number kept for a key; if there is none, keep `value` and return None."""
        found = self.get(key)
        if found is None:
            self._remember(key, value)
        return found

    def _remember(self, key: bytes, value: int) -> None:
        self._recent[key] = value
        if len(self._recent) > self._most_recent:
            self._sound = False
            for recent, number in self._recent.items():
                name = self._name(recent)
                self._insert(self._page(name), name, number)
            self._recent.clear()
            self._sound = True

    def _name(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=_KEY, key=self._secret).digest()

    def _page(self, name: bytes) -> int:
        return int.from_bytes(name[:5], "big") & (len(self._fill) - 1)

    def _find(self, page: int, name: bytes) -> tuple[int, int] | None:
        """Returns the place of an entry within its page, and its number."""
        held = self._read(page)
        at = held.find(name)
        while at >= 0 and at % _ENTRY:
            at = held.find(name, at + 1)
        return None if at < 0 else (at, int.from_bytes(held[at + _KEY : at + _ENTRY], "big"))

    def _insert(self, page: int, name: bytes, value: int) -> None:
        packed = value.to_bytes(8, "big")
        while self._fill[page] == _PAGE_ENTRIES or self._count >= len(self._fill) * _PAGE_ENTRIES // 2:
            self._double()
            page = self._page(name)
        self._write(page, self._fill[page] * _ENTRY, name + packed)
        self._fill[page] += 1
        self._count += 1

    def _read(self, page: int) -> bytes | bytearray:
        length, start = self._fill[page] * _ENTRY, page * _PAGE
        if self._pages is not None:
            return self._pages[start : start + length]
        held: bytes = self._on_file(os.pread, length, start)
        if len(held) != length:
            _fail("is shorter than what was written to it")
        return held

    def _write(self, page: int, at: int, data: bytes) -> None:
        start = page * _PAGE + at
        if self._pages is not None:
            self._pages[start : start + len(data)] = data
        elif self._on_file(os.pwrite, data, start) != len(data):
            _fail("was not written in full")

    def _on_file(self, call: Callable[..., Any], what: Any, at: int) -> Any:
        if self._process != os.getpid():
            _fail("belongs to another process, from which this one was forked")
        try:
            return call(self._file, what, at)
        except OSError as error:
            _fail(f"failed: {error.strerror or error}", error)

    def _double(self) -> None:
        """Twice as many pages: each sends the entries whose next bit is set to a new page behind the old ones."""
        pages = len(self._fill)
        if self._pages is not None and self._count >= self._memory_entries:
            self._spill()
        if self._pages is not None:
            self._pages.extend(bytes(_PAGE * pages))
        self._fill.extend(array("H", bytes(2 * pages)))
        for page in range(pages):
            held = bytes(self._read(page))
            groups: tuple[list[bytes], list[bytes]] = ([], [])
            for at in range(0, len(held), _ENTRY):
                entry = held[at : at + _ENTRY]
                groups[self._page(entry) != page].append(entry)
            for target, group in zip((page, page + pages), groups, strict=True):
                self._write(target, 0, b"".join(group))
                self._fill[target] = len(group)

    def _spill(self) -> None:
        try:
            with tempfile.TemporaryFile(prefix="dptrain-gate-", buffering=0) as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            _fail(f"cannot be made: {error.strerror or error}", error)
        self._process = os.getpid()
        if self._pages is not None:
            data, self._pages = memoryview(self._pages), None
            for at in range(0, len(data), 1 << 20):
                part = data[at : at + (1 << 20)]
                if self._on_file(os.pwrite, part, at) != len(part):
                    _fail("was not written in full")


def _fail(what: str, cause: OSError | None = None) -> NoReturn:
    sentence = f"the temporary file of the gate {what}; give TMPDIR a folder with room and judge again from the start"
    raise GateFailed("STORAGE", sentence) from cause
