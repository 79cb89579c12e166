"""The contributor registry: a signed, append-only log of which keys speak for whom, when, and for which classes.

* `entries`: the file, and the values in it: contributors and their keys, actions, key statements.
* `names`: opens the commitments to contributors and principals, from a file beside the registry.
* `enrolled`: all contributors as one mapping; many that were enrolled alike stand in columns of bytes.
* `replay`: the state after the last entry, and the rules by which one state follows from another.
* `log`: reads a file, verified, and appends to one.
* `memory`: the largest state that was used for a ledger or a corpus.
"""

from attest.registry.entries import (
    MAX_ENTRY,
    MAX_SIZE,
    Action,
    Contributor,
    Create,
    Enrol,
    Entry,
    Grant,
    KeyRecord,
    KeyStatement,
    Prove,
    Revoke,
    RevokeOwn,
    Rotate,
    SetClock,
)
from attest.registry.log import (
    Peek,
    RegistryLog,
    RegistryPast,
    RegistryReader,
    RegistryWalk,
    open_registry,
    peek,
    read_states,
)
from attest.registry.replay import Registry

__all__ = [
    "MAX_ENTRY", "MAX_SIZE", "Action", "Contributor", "Create", "Enrol", "Entry", "Grant", "KeyRecord", "KeyStatement", "Peek",
    "Prove", "Registry", "RegistryLog", "RegistryPast", "RegistryReader", "RegistryWalk", "Revoke", "RevokeOwn", "Rotate",
    "SetClock", "open_registry", "peek", "read_states",
]  # fmt: skip


def __dir__() -> list[str]:
    """Lists what is public."""
    return sorted(__all__)
