"""The contributor registry: a signed, append-only log of which keys speak for whom, when, and for which classes.

* `records`: contributors and their keys, the values that the gate asks for.
* `view`: the state after the last entry, immutable.
* `actions`, `entries`, `statements`: what the file holds.
* `names`: what opens the commitments to contributors and principals, in a file beside it.
* `runs`, `enrolled`, `packed_names`: many contributors enrolled alike, and their names, as columns of bytes; `digest_index`
  finds them.
* `replay`: the rules by which one state follows from another.
* `look_alikes`: names that a person takes for each other.
* `log`: reading a file, verified, and appending to one.
* `memory`: the largest state that was used for a ledger or a corpus.
"""

from attest.registry.actions import Action, Create, Enrol, Grant, Prove, Revoke, RevokeOwn, Rotate, SetClock
from attest.registry.entries import MAX_ENTRY, MAX_SIZE, Entry
from attest.registry.log import Peek, RegistryLog, RegistryReader, RegistryWalk, open_registry, peek, read_states
from attest.registry.records import Contributor, KeyRecord
from attest.registry.statements import KeyStatement
from attest.registry.view import Registry

__all__ = [
    "MAX_ENTRY",
    "MAX_SIZE",
    "Action",
    "Contributor",
    "Create",
    "Enrol",
    "Entry",
    "Grant",
    "KeyRecord",
    "KeyStatement",
    "Peek",
    "Prove",
    "Registry",
    "RegistryLog",
    "RegistryReader",
    "RegistryWalk",
    "Revoke",
    "RevokeOwn",
    "Rotate",
    "SetClock",
    "open_registry",
    "peek",
    "read_states",
]
