"""The attestations of an export: read beside the leaves, a bundle at a time, and the terms that they name."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from attest.attestation import SIGNATURE_SIZE
from ledger import layout, tiles
from ledger.attestations import unpack
from ledger.audit.files import Export
from ledger.errors import LedgerCorrupt, ProofError

Report = Callable[[str, str, str], None]

_BUNDLES: Final = 16
"""Bundles of terms that are kept in memory."""

_HEADS: Final = 4096
"""Numbers of terms whose encoding is kept in memory."""

_SIGNATURE_HEAD: Final = b"\x58\x40"
"""Head of a byte string of 64 bytes."""


class Shown:
    """Reads what an export shows of attestations, in the order of the leaves.

    Memory is bounded: one bundle of signatures and some of terms, whatever the size of the export.
    """

    def __init__(self, export: Export, fault: Report) -> None:
        """Begins before leaf 0.

        Args:
            export: the directory, its names checked.
            fault: takes (code, where, sentence) of everything wrong.
        """
        self._export, self._fault = export, fault
        self._n, self._admits = -1, 0
        self._entries: list[bytes] | None = []
        self._numbers: dict[bytes, int] = {}
        self._bundle = lru_cache(maxsize=_BUNDLES)(self._read_terms)

    def entry(self, seq: int, *, admit: bool = False) -> bytes | None:
        """Returns what stands beside a leaf: empty where nothing does, None where it cannot be read, which was reported.

        Args:
            seq: position of the leaf; larger than that of the call before.
            admit: whether it is an ADMIT leaf whose body is there.
        """
        n, within = divmod(seq, layout.TILE_WIDTH)
        if n != self._n:
            self._turn(n)
        self._admits += admit
        if self._entries is None:
            return None
        return self._entries[within] if self._entries else b""

    def number(self, entry: bytes, seq: int) -> int | None:
        """Returns the number of the terms of an attestation, or None after reporting what is wrong.

        Args:
            entry: what stands beside an ADMIT leaf whose body is there; its last 64 bytes are the signature.
            seq: position of that leaf.
        """
        head, signature_head = entry[: -SIGNATURE_SIZE - 2], entry[-SIGNATURE_SIZE - 2 : -SIGNATURE_SIZE]
        number = self._numbers.get(head) if signature_head == _SIGNATURE_HEAD else None
        if number is None:
            try:
                number = unpack(entry)[0]
            except LedgerCorrupt as error:
                self._fault("ATTESTATION", f"seq {seq}", f"what stands beside it is no attestation: {error.sentence}")
                return None
            if len(self._numbers) >= _HEADS:
                self._numbers.clear()
            self._numbers[head] = number
        if number >= self._export.terms:
            there = f"the export has terms 0 to {self._export.terms - 1}" if self._export.terms else "the export has no terms"
            self._fault("TERMS", f"seq {seq}", f"its attestation names terms {number}; {there}")
            return None
        return number

    def terms(self, number: int) -> bytes | None:
        """Returns the bytes of common terms by their number, or None after reporting why not."""
        n, within = divmod(number, layout.TILE_WIDTH)
        bundle = self._bundle(n)
        return None if bundle is None else bundle[within]

    def end(self) -> None:
        """Says that every leaf was seen."""
        self._turn(None)

    def _turn(self, n: int | None) -> None:
        """Reads the bundle of signatures beside another bundle of entries; None at the end."""
        if self._entries and not self._admits:
            name = layout.signed_path(self._n, layout.width_of(self._n, self._export.size))
            self._fault("UNKNOWN_FILE", name, "no ADMIT leaf beside it has a body: nothing belongs here")
        self._admits, self._entries = 0, []
        if n is not None:
            self._n, width = n, layout.width_of(n, self._export.size)
            name = layout.signed_path(n, width)
            if name in self._export.names:
                self._entries = self._split(name, width)

    def _read_terms(self, n: int) -> list[bytes] | None:
        width = layout.width_of(n, self._export.terms)
        return self._split(layout.terms_path(n, width), width)

    def _split(self, name: str, width: int) -> list[bytes] | None:
        data = self._export.read(name)
        try:
            return None if data is None else tiles.split_bundle(data, width)
        except ProofError as error:
            self._fault("BUNDLE", name, error.sentence)
            return None
