"""The reading of a corpus that is kept beside a ledger, for the gate, the plan and the run over the same corpus."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.gate.reading import SUFFIX, Context, KeptReading
from attest.policy import SignedPolicy
from attest.registry import Registry
from ledger.storage.place import Place


def reading_beside(
    place: Place, key: Ed25519PrivateKey, signed: SignedPolicy, registry: Registry, largest: Registry | None = None
) -> KeptReading | None:
    """Opens the reading that is kept beside a ledger; None for a ledger on a server without a state directory.

    Args:
        place: where the ledger lies, or will lie.
        key: its private key, from which that of the reading is derived.
        signed: the policy.
        registry: the state that contributions are judged against.
        largest: the largest state that is known; None where that is the same one.
    """
    if place.beside is None:
        return None
    return KeptReading(place.side(SUFFIX), key, Context.of(signed, registry, largest))
