"""The reading of a corpus that is kept beside a ledger: how commands name it, and what they say of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from attest.errors import KeyRefused
from attest.gate.reading import KeptReading
from attest.keys import generate, load_private_key, save_private_key
from attest.policy import SignedPolicy
from attest.registry import Registry
from dptrain.cli.ledger_place import place_of
from dptrain.kept_reading import reading_beside

ForLedger = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="LEDGER",
        help="Ledger of the run that trains on it, there or to come. Signatures that verify are kept beside it, for the next "
        "reading; its key is made if there is none.",
    ),
]
NoKeptReading = Annotated[
    bool, typer.Option("--no-kept-reading", help="Verify every signature, whatever was kept, and keep nothing.")
]


@dataclass(frozen=True)
class Keeping:
    """Says where the reading of a command is kept.

    Args:
        ledger: Name of the ledger; None to keep nothing.
        key: Its private key; None for the one beside it.
        state: State directory of a ledger on a server.
        make: Whether the key of a ledger that is still to come is made here.
    """

    ledger: str | None
    key: Path | None = None
    state: Path | None = None
    make: bool = False

    @property
    def there(self) -> bool:
        """Tells whether the ledger has begun."""
        if self.ledger is None:
            return False
        from ledger.storage.opening import exists

        return exists(place_of(self.ledger, self.state))

    def reading(self, signed: SignedPolicy, registry: Registry) -> KeptReading | None:
        """Opens the kept reading; None where there is no ledger, or no key of it at hand.

        Args:
            signed: The policy.
            registry: The contributors.

        Raises:
            KeyRefused: A key that was named cannot be read, or a new one cannot be written.
        """
        if self.ledger is None:
            return None
        place = place_of(self.ledger, self.state)
        if place.beside is None:
            return None
        path = self.key or place.key
        if not path.exists():
            if not self.make or self.there:
                return None
            place.make_state_directory()
            save_private_key(path, generate())
        try:
            return reading_beside(place, load_private_key(path), signed, registry)
        except KeyRefused:
            if self.key is not None or self.make:
                raise
            return None  # A gate that only asks for withdrawals needs no key, nor the right to read one.


def as_json(reading: KeptReading | None) -> dict[str, Any]:
    """Returns what a command with `--json` says of the kept reading; nothing if there is none."""
    if reading is None:
        return {}
    return {"kept_reading": {"path": str(reading.path), "spared": reading.spared, "told": reading.told or None}}


def sentences(reading: KeptReading | None) -> list[str]:
    """Returns what a command says of the kept reading: what it spared, and why it did not spare more."""
    if reading is None:
        return []
    spared = [f"{reading.spared} signatures had been verified before, as kept in {reading.path}"] if reading.spared else []
    return spared + ([reading.told] if reading.told else [])
