"""`dptrain ledger set-clock`: go on with a ledger into which a wrong clock wrote times that lie ahead."""

import time
from typing import Annotated

import typer

from attest.schema.plain import utc, visible
from dptrain.cli.files import PassphraseFile
from dptrain.cli.ledger_place import LedgerKey, LedgerName, StateDirectory, opened_to_sign, place_of
from dptrain.cli.output import JsonFlag, console, print_json

ClockReason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, in at most 200 characters of ASCII; every auditor reads it.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the group."""
    app.command("set-clock")(set_clock)


def set_clock(
    ledger: LedgerName,
    reason: ClockReason,
    ledger_key: LedgerKey = None,
    passphrase_file: PassphraseFile = None,
    state: StateDirectory = None,
    json: JsonFlag = False,
) -> None:
    """Take back times that a wrong clock put ahead, by a leaf that every audit shows.

    Times in a ledger never run back, so one start under a clock that is ahead would end it until that time has come. Set the
    machine's clock right first. Nothing else is taken back: what was charged counts, and who was withdrawn as expired stays
    withdrawn. Refused where the ledger can go on as it is. No run may hold the ledger.

    Example: dptrain ledger set-clock ledger.db --reason "the clock of node 3 was a year ahead"
    """
    with opened_to_sign(place_of(ledger, state), ledger_key, passphrase_file) as log:
        leaf = log.set_clock(reason, now=int(time.time()))
    if json:
        print_json({"leaf": leaf.seq, "before": leaf.before, "time": leaf.time, "reason": leaf.reason})
        return
    console().print(f"leaf {leaf.seq} sets the clock back from {utc(leaf.before)} to {utc(leaf.time)}: {visible(leaf.reason)}")
