"""What a trainer hands to a ledger and gets back from it."""

from dataclasses import dataclass

from attest.attestation import CommonTerms
from attest.schema import declared
from ledger.leaves.kinds import ABOVE_0, ORIGIN, SHA256, Checked


@dataclass(frozen=True, slots=True)
class AdmitSpec:
    """A contribution to admit.

    Attributes: as in `ledger.leaves.Admit`, and
        attestation: what is kept of what its contributor signed: the common terms, and the signature of 64 bytes. The anchor is
            the rest (`attest.attestation`). None where the caller has none; an export can show none then.
    """

    descriptor_hash: bytes
    class_name: str
    profile_id: int
    clip_micro: int
    sigma_micro: int
    max_occurrences: int
    attestation_hash: bytes
    key_id: bytes
    anchor: bytes
    carried_micro: int = 0
    max_epsilon_micro: int = 0
    max_delta_pico: int = 0
    attestation: tuple[CommonTerms, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A window of steps that has been paid for."""

    id: int
    first_step: int
    n_steps: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Pin(Checked):
    """What a model checkpoint remembers: a tree that must still be there, unchanged, when training goes on."""

    origin: str = declared(2, ORIGIN, "The ledger's origin.")
    size: int = declared(3, ABOVE_0, "Number of leaves.")
    root: bytes = declared(4, SHA256, "Root over them.")
    header_digest: bytes = declared(5, SHA256, "SHA-256 of leaf 0.")
