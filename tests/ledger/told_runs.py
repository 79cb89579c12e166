"""Runs whose operator has the log's key and writes what it likes: leaves, attestations beside them, and a registry.

A liar begins with an honest run and changes a part of it; what is written is hashed and signed as it should be, so that only
its meaning can refuse it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest import sign1
from attest.attestation import Attestation, CommonTerms
from attest.corpus.signing import sign_descriptor
from ledger import layout, tiles
from ledger.leaves import Admit
from ledger.leaves.attestations import pack
from ledger.log import Ledger
from ledger.replay.contributions import AdmitSpec
from tests.worlds.attested_ledgers import AttestedDriver, attestation, attested_header, registry_bytes, spec_of
from tests.worlds.ledgers import SIGNER, START
from tests.worlds.retained_ledgers import leaves_of

FIRST = 1
"""Position of the first ADMIT leaf."""

Shown = tuple[CommonTerms, bytes]
"""Common terms and signature."""


def shown_of(signed: Attestation) -> Shown:
    """What an export shows of an attestation."""
    message = sign1.read(signed.sign1)
    return CommonTerms.of(signed.read().signed, message.headers.key_id), message.signature


def signed_by(key: Ed25519PrivateKey, n: int, class_name: str = "open", **changes: object) -> Attestation:
    """`attestation` of a descriptor, signed by any key."""
    return sign_descriptor(attestation(n, class_name, **changes).opened(), key)


def two_windows(driver: AttestedDriver) -> None:
    """Two windows, an epoch and the close."""
    driver.steps(2)
    driver.epoch()
    driver.ledger.finish(now=driver.tick())


@dataclass
class Told:
    """What an operator writes; by default an honest run of four contributions, two of each class.

    Attributes:
        specs: the ADMIT leaves, from position `FIRST` on.
        shown: terms and signature beside each, None for nothing.
        registry: the registry in the export, None for none.
        header: changes of the header.
        life: what happens after the admissions.
        begun: what the clock says at the header.
        place: where the ledger lies, from the directory that it is written under.
        numbers: number of the terms of each contribution, None for that of their first use.
        terms: the terms in their order, None for that of their first use.
        attestations: whether anything is written of them.
    """

    specs: list[AdmitSpec] = field(default_factory=list)
    shown: list[Shown | None] = field(default_factory=list)
    registry: bytes | None = None
    header: dict = field(default_factory=dict)
    life: Callable[[AttestedDriver], None] = two_windows
    begun: int = START
    place: Callable[[Path], object] = lambda directory: directory / "ledger.db"
    numbers: Callable[[int], int] = lambda number: number
    terms: Callable[[list[bytes]], list[bytes]] = lambda terms: terms
    attestations: bool = True

    @classmethod
    def honest(cls) -> "Told":
        """Returns a run in which nothing is wrong."""
        told = cls(registry=bytes(registry_bytes()))
        for n, class_name in ((1, "open"), (2, "open"), (3, "sensitive"), (4, "sensitive")):
            told.add(attestation(n, class_name))
        return told

    def add(self, signed: Attestation, **leaf: object) -> None:
        """Admits one more; changes make its leaf say something else than was signed."""
        self.specs.append(spec_of(signed, **leaf))
        self.shown.append(shown_of(signed))

    def put(self, place: int, signed: Attestation, **leaf: object) -> None:
        """Admits something else in place of one."""
        self.specs[place], self.shown[place] = spec_of(signed, **leaf), shown_of(signed)

    def say(self, place: int, **leaf: object) -> None:
        """Lets a leaf say something else than was signed."""
        self.specs[place] = replace(self.specs[place], **leaf)

    def export(self, directory: Path) -> Path:
        """Writes it all under a directory, and returns the export."""
        directory.mkdir(exist_ok=True)
        with Ledger.create(self.place(directory), attested_header(**self.header), SIGNER, now=self.begun) as ledger:
            driver = AttestedDriver(ledger, now=self.begun)
            for spec in self.specs:
                ledger.admit([replace(spec, attestation=None)], now=driver.tick())
            self.life(driver)
            admitted = [leaf.seq for leaf in leaves_of(ledger) if isinstance(leaf, Admit)]
            export = ledger.export(directory / "export")
            size = ledger.size
        if self.attestations:
            attest(export, size, dict(zip(admitted, self.shown, strict=True)), self.numbers, self.terms)
        if self.registry is not None:
            (export / layout.REGISTRY).write_bytes(self.registry)
        return export


def attest(
    export: Path,
    size: int,
    shown: Mapping[int, Shown | None],
    numbers: Callable[[int], int] = lambda number: number,
    terms: Callable[[list[bytes]], list[bytes]] = lambda terms: terms,
) -> None:
    """Writes what stands beside ADMIT leaves, by their positions, as `ledger.export` does; or with other numbers and terms."""
    order: dict[bytes, int] = {}
    for n, width in layout.tile_widths(size):
        entries = [b""] * width
        for within in range(width):
            one = shown.get(n * layout.TILE_WIDTH + within)
            if one is not None:
                number = order.setdefault(one[0].to_cbor(), len(order))
                entries[within] = pack(numbers(number), one[1])
        if any(entries):
            write(export / layout.signed_path(n, width), tiles.entry_bundle(entries))
    found = terms(list(order))
    for n, width in layout.tile_widths(len(found)):
        some = found[n * layout.TILE_WIDTH : n * layout.TILE_WIDTH + width]
        write(export / layout.terms_path(n, width), tiles.entry_bundle(some))


def write(path: Path, data: bytes) -> None:
    """Writes a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
