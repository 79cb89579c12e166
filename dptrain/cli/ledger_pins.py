"""Keys that whoever audits an export pins on the command line: those of ledgers, and that of the corpus owner."""

from pathlib import Path
from typing import Annotated

import typer

from attest import keys
from dptrain.cli.ledger_proofs import verifier_keys

VerifierKeys = Annotated[
    list[str],
    typer.Option("--key", metavar="PUB", help="Public key of the ledger: a file of verifier keys, or one itself; repeat."),
]
OwnersKey = Annotated[
    Path | None,
    typer.Option(
        "--owner-key", metavar="PUB", exists=True, dir_okay=False, help="Require a policy signed by this corpus owner."
    ),
]


def trusted(pinned: list[str], owner_key: Path | None) -> tuple[bytes | None, list[str]]:
    """Returns the owner's raw key, if any, and the verifier keys of the logs.

    Raises:
        KeyRefused, typer.BadParameter: a file holds no such key.
    """
    owner = None if owner_key is None else keys.load_public_key(owner_key)
    return owner, [vkey for text in pinned for vkey in verifier_keys(text)]
