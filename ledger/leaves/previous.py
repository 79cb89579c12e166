"""Earlier ledgers that a ledger counts or continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from attest.schema import check_fields, declared
from attest.schema.quick import OneOf
from ledger.errors import LeafRefused, NoteError
from ledger.leaves.kinds import ABOVE_0, LOG_VKEY, ORIGIN, SHA256, Checked
from ledger.note import SIGNATURE_ED25519, parse_verifier_key

SPENT: Final = "spent"
"""What contributions spent in the earlier run is counted in this one."""

COMPROMISED: Final = "compromised"
"""The key of the earlier ledger is lost to others: it ends with the checkpoint cited, and this one continues it elsewhere."""


@dataclass(frozen=True, slots=True)
class Previous(Checked):
    """An earlier ledger, at a checkpoint of it."""

    CDDL: ClassVar = "earlier"
    origin: str = declared(1, ORIGIN, "Its origin.")
    size: int = declared(2, ABOVE_0, "Number of leaves.")
    root: bytes = declared(3, SHA256, "Root over them.")
    header_digest: bytes = declared(4, SHA256, "SHA-256 of its leaf 0.")
    log_vkey: str = declared(5, LOG_VKEY, "Verifier key of its signer at that size.")
    reason: str = declared(
        6,
        OneOf((SPENT, COMPROMISED), "TYPE", "how"),
        "`spent`: what contributions spent in it is counted in this one. `compromised`: besides, its key is lost to others, and"
        " this ledger continues it.",
    )

    def __post_init__(self) -> None:
        check_fields(self, LeafRefused)
        _public_key(self.log_vkey, self.origin)


def check_previous(previous: Sequence[Previous], origin: str, log_vkey: str) -> None:
    """Refuses earlier ledgers that a ledger of this origin and key may not cite.

    Guarantee:
        None is cited twice; a compromised one is cited once at most, and neither its origin nor its key is used on, so that
        who holds the lost key can write nothing that passes for this ledger.
    """
    if len({(item.origin, item.header_digest) for item in previous}) != len(previous):
        raise LeafRefused("PREVIOUS", "an earlier ledger is cited twice; cite each once")
    lost = [item for item in previous if item.reason == COMPROMISED]
    if len(lost) > 1:
        raise LeafRefused("PREVIOUS", f"a ledger continues one compromised ledger at most, this one cites {len(lost)}")
    for item in lost:
        if item.origin == origin:
            raise LeafRefused("PREVIOUS", f"the key of {origin!r} is compromised: go on under another origin")
        if _public_key(item.log_vkey, item.origin) == _public_key(log_vkey, origin):
            raise LeafRefused("PREVIOUS", f"the key of {item.origin!r} is compromised: go on with another key")


def _public_key(vkey: str, name: str) -> bytes:
    try:
        key = parse_verifier_key(vkey)
    except NoteError as error:
        raise LeafRefused("LOG_KEY", f"the log key {vkey!r:.100} is refused: {error.sentence}") from error
    if (key.name, key.kind) != (name, SIGNATURE_ED25519):
        raise LeafRefused("LOG_KEY", f"the log key is named {key.name!r}, the origin is {name!r}")
    return key.public_key
