"""`dptrain ledger init`, `set-clock` and the key commands: what an owner does to a ledger between runs."""

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attest.keys import generate, save_private_key
from attest.schema.plain import utc, visible
from dptrain.cli.inputs import PassphraseFile, read_private_key
from dptrain.cli.ledger.place import LedgerKey, LedgerName, StateDirectory, checked, ledger_key, opened_to_sign, place_of
from dptrain.cli.options import argument, option
from dptrain.cli.results import Told
from ledger.note import NoteSigner, parse_verifier_key
from ledger.storage.place import Place

ClockReason = Annotated[
    str, option("Why, in at most 200 characters of ASCII; every auditor reads it.", "--reason", metavar="TEXT")
]


def set_clock(
    ledger: LedgerName,
    reason: ClockReason,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Take back times that a wrong clock put ahead, by a leaf that every audit shows.

    Times in a ledger never run back, so one start under a clock that is ahead would end it until that time has come. Set the
    machine's clock right first. Nothing else is taken back: what was charged counts, and who was withdrawn as expired stays
    withdrawn. Refused where the ledger can go on as it is. No run may hold the ledger.

    When appending is refused with `CLOCK` because an earlier start ran under a clock that was ahead, and the clock is right
    now. The leaf is shown by every audit; nobody who was withdrawn as expired comes back.

    Example: `dptrain ledger set-clock ledger.db --reason clock-was-a-year-ahead`
    """
    with opened_to_sign(place_of(ledger, state), ledger_key, passphrase_file) as log:
        leaf = log.set_clock(reason, now=int(time.time()))
    back = f"leaf {leaf.seq} sets the clock back from {utc(leaf.before)} to {utc(leaf.time)}: {visible(leaf.reason)}"
    return Told({"leaf": leaf.seq, "before": leaf.before, "time": leaf.time, "reason": leaf.reason}, [back])


Url = Annotated[str, argument("postgresql://OWNER@HOST/DATABASE[?schema=NAME]", metavar="URL", callback=checked)]


def init(url: Url, writer: Annotated[str, option("Role that runs write with; it exists.", metavar="ROLE")]) -> Told:
    """Make the tables of a ledger on a server, for a role that can only append.

    Connect as the role that shall own them. The run then connects as ROLE and begins the ledger. Not needed where the run's own
    role may create a schema: then the run makes the tables itself.

    Example: `dptrain ledger init postgresql://owner@db.example/run7 --writer trainer`
    """
    place = place_of(url, None)
    if place.kind != "postgresql":
        raise typer.BadParameter("a ledger in a file needs no preparation; training makes it")
    from ledger.storage.sql.postgres import PostgresStore

    store = PostgresStore.create(place)
    try:
        store.grant(writer)
    finally:
        store.close()
    made = f"made the tables of {place.shown} in schema {place.schema}; {writer} may append to them"
    return Told({"ledger": place.shown, "schema": place.schema, "writer": writer}, [made])


NewKey = Annotated[
    Path | None,
    option("New private key, made if it is not there; default: replaces the old.", "--new-key", metavar="KEY", dir_okay=False),
]


@dataclass(frozen=True)
class _Changed:
    """The KEY leaf, and all verifier keys that signed the ledger, the new one last."""

    seq: int
    vkeys: tuple[str, ...]


def rotate_key(
    ledger: LedgerName,
    new_key: NewKey = None,
    key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
) -> Told:
    """Let a new key sign the ledger from now on.

    A leaf says so that both keys sign.
    Without --new-key the new key takes the place of the old one, which stays beside it as KEY.retired-ID. Whoever pinned the
    old key can follow the change in any export; publish the new line of LEDGER.pub all the same. No run may hold the ledger.
    If the command is interrupted, run it again. After a theft of the key this does not help, since the thief holds it too:
    begin a new ledger under another origin.

    Example: `dptrain ledger rotate-key ledger.db`
    """
    from ledger.storage.beside import read_public, write_public

    place = place_of(ledger, state)
    old_file = key or place.key
    new_file = new_key or Path(f"{old_file}.next")
    old = ledger_key(place, old_file, passphrase_file)
    if not new_file.exists():
        _require_current(place, old)
        save_private_key(new_file, generate())
    known = read_public(place.public)
    changed = _change(place, old, read_private_key(new_file, None if new_key is None else passphrase_file))
    write_public(place.public, changed.vkeys, known)
    retired, current = changed.vkeys[-2:]
    if new_key is None:
        kept = old_file.with_name(f"{old_file.name}.retired-{parse_verifier_key(retired).key_id.hex()}")
        if not kept.exists():
            os.link(old_file, kept)
        new_file.replace(old_file)  # at no moment is there no key: a run that began then would make itself another
    where = str(old_file if new_key is None else new_file)
    named = f"name it where the ledger is written to: --ledger-key {shlex.quote(where)}, or ledger_key in the run file"
    return Told(
        {"leaf": changed.seq, "key": current, "retired": retired, "path": where},
        [
            f"leaf {changed.seq} hands the ledger over; {where} signs it from now on",
            *([named] if Path(where) != place.key else []),
            f"publish: {current}",
        ],
    )


def _require_current(place: Place, old: Ed25519PrivateKey) -> None:
    """Opens the ledger with the old key once, so that a wrong one is refused before a new key lies about."""
    from ledger.log import Ledger

    with Ledger.open(place, read_only=True) as log:
        origin = log.header.origin
    Ledger.open(place, NoteSigner(origin, old)).close()


def _change(place: Place, old: Ed25519PrivateKey, new: Ed25519PrivateKey) -> _Changed:
    """Changes the key, unless an earlier call that was interrupted did."""
    from ledger.log import Ledger

    with Ledger.open(place, read_only=True) as log:
        origin, keys = log.header.origin, log.state.keys
    successor = NoteSigner(origin, new)
    if keys.changes and keys.current == successor.vkey:
        return _Changed(keys.changes[-1][0], keys.vkeys)
    with Ledger.open(place, NoteSigner(origin, old)) as log:
        seq = log.size
        log.rotate_key(successor, now=int(time.time()))
    return _Changed(seq, (*keys.vkeys, successor.vkey))
