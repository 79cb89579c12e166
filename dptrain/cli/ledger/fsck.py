"""`dptrain ledger fsck`: a ledger where it is kept, held against itself and against all that pinned it."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dptrain.cli.ledger.place import LedgerName, StateDirectory, place_of
from dptrain.cli.options import file_option
from dptrain.cli.output import counted, counting, styled
from dptrain.cli.results import Shown, Told, pick
from ledger.errors import PinRefused

if TYPE_CHECKING:
    from ledger.log import Ledger
    from ledger.log.examining import Examination
    from ledger.storage.place import Place

Pins = Annotated[
    list[Path] | None,
    file_option(
        "PIN.cose",
        "A pin that the ledger must extend; repeat. Default: the model checkpoints beside the ledger, states and all.",
        "--pin",
    ),
]


def fsck(ledger: LedgerName, pin: Pins = None, state: StateDirectory = None) -> Told:
    """Check a ledger where it is kept: every byte, every signature, every number.

    Re-derives the tree from the leaves, every leaf from the leaves before it, every recorded epsilon from the charges, and the
    index from the leaves; then compares with what remembers an earlier state: the signer's record beside the ledger, and the
    model checkpoints, whose states must be the bytes that their signed pins name. Makes every attestation again that is kept,
    and holds it against its ADMIT leaf. Has SQLite check its own pages, and checks the file of verifier keys and the weights
    of the epochs beside the ledger. Changes nothing, and may run beside a training run.

    Exit code 0 if all of it is whole, 1 if anything is wrong.

    After a crash, a full disk or a restored backup, before a run goes on; and now and then on a ledger that you keep for
    long.

    Example: `dptrain ledger fsck ledger.db`
    """
    from dptrain.record.pin import open_record
    from ledger.log import Ledger

    place = place_of(ledger, state)
    folders = checkpoints_beside(place) if pin is None else []
    with counting(f"checking {place.shown}"), Ledger.open(place, read_only=True, recompute=True) as log:
        for path in pin or ():
            open_record(log, path)
        held = len(pin or ()) + sum(_holds(log, folder) for folder in folders)
        examined = log.examine()
        found = _found(log, place.beside is not None, held) | _beside(examined)
    return Told(found, _text(found, examined, place), code=bool(examined.findings))


def _text(found: dict[str, Any], examined: "Examination", place: "Place") -> Iterator[Shown]:
    style = "bold red" if examined.findings else "bold green"
    yield styled(style, found["verdict"], f"  {found['origin']}: {found['size']} leaves, root {found['root']}")
    for finding in examined.findings:
        yield styled("red", f"  {finding.code}", f" {finding.where}: {finding.sentence}")
    yield (
        f"{found['checkpoints']} signed checkpoints, the last over {found['signed']} leaves; {found['windows']} windows, "
        f"{found['unsettled']} of them never settled; {found['epsilons']} recorded epsilons computed again"
    )
    if found["pruned"]:
        which = f"{found['pruned']} leaves below {found['pruned_before']}"
        yield f"the bodies of {which} are gone; what stands for them was checked"
    yield _pages(examined)
    yield _signed(examined)
    yield _files(examined, place)
    for note in examined.notes:
        yield styled("yellow", "note", f": {note}")
    pins = f"compared with {counted(found['pins'], 'pin')} of model checkpoints"
    if found["record"]:
        yield f"{pins} and with the signer's record"
        return
    from ledger.storage import highwater

    why = "give --state, where it lies"
    if place.beside is not None:
        why = f"there is no {highwater.path_of(place)}, and no run goes on without it"
    yield styled("bold yellow", "NOT compared with the signer's record", f": {why}; {pins}")


def _pages(examined: "Examination") -> str:
    """Tells what was checked of the database below its leaves."""
    if examined.pages:
        return "the pages of the database were checked by SQLite"
    return "PostgreSQL checks no pages for a reader of the ledger; the keeper of the server runs pg_amcheck"


def _signed(examined: "Examination") -> str:
    """Tells what was checked of what contributors signed."""
    kept = examined.signed
    if not kept.fitting and not kept.missing:
        return "no attestations are kept: no ADMIT leaf is there that quotes one"
    return f"{counted(kept.fitting, 'attestation')} made again, and found to be what the ADMIT leaves quote"


def _files(examined: "Examination", place: "Place") -> str:
    """Tells what was checked beside the ledger, and what is not there."""
    if place.beside is None:
        return "the verifier keys, weights and model checkpoints in the state directory were not looked at: give --state"
    beside = examined.beside
    keys = "no file of verifier keys" if beside.keys is None else f"{counted(beside.keys, 'verifier key')} in its public file"
    if beside.weights is None:
        return f"beside it: {keys}, no weights of epochs (a release from here would be UNRECORDED)"
    less = f", {beside.let_go} let go by the policy's retention" if beside.let_go else ""
    more = f", and {counted(beside.unused, 'file')} of weights that no epoch cites" if beside.unused else ""
    return f"beside it: {keys}, the weights of {counted(beside.weights, 'epoch')}{less}{more}"


def _holds(log: "Ledger", folder: Path) -> bool:
    """Holds a checkpoint against its pin, and that against the ledger; False if the run beside removed it meanwhile."""
    from dptrain.record.pin import opened_state, read_record

    try:
        with opened_state(folder, read_record(log, folder)):
            return True
    except PinRefused:
        if folder.exists():
            raise
        return False


def checkpoints_beside(place: "Place") -> list[Path]:
    """Lists the model checkpoints beside a ledger; none of one on a server without a state directory."""
    from dptrain.record.pin import found

    return [] if place.beside is None else [path for _, path in found(place.side(".checkpoints"))]


def _found(log: "Ledger", record: bool, pins: int) -> dict[str, Any]:
    from ledger.storage import highwater

    run = log.state
    return pick(log, "size root pruned_before") | {
        "origin": log.header.origin,
        "checkpoints": len(log.checkpoint_sizes),
        "signed": log.checkpoint_sizes[-1],
        "windows": len(run.windows),
        "unsettled": len(run.unsettled) + (run.open_window is not None),
        "epsilons": run.spends,
        "pruned": _gone(log),
        "record": record and highwater.path_of(log.place).exists(),
        "pins": pins,
    }


def _beside(examined: "Examination") -> dict[str, Any]:
    told = pick(examined, "notes pages") | pick(examined.signed, "", attested="fitting", unattested="missing")
    told |= pick(examined.beside, "keys weights", weights_let_go="let_go", weights_unused="unused")
    findings = [pick(item, "code sentence", file="where") for item in examined.findings]
    return told | {"verdict": "FAILED" if examined.findings else "OK", "findings": findings}


def _gone(log: "Ledger") -> int:
    """Tells how many leaves were pruned."""
    if not log.pruned_before:
        return 0
    with log.rows() as rows:
        return sum(not row.body for row in islice(rows, log.pruned_before))
